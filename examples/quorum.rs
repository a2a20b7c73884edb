//! One lock over five masters: held by the owner that holds it on three of them, so that two may fail unnoticed.
//!
//! Each act prints what it shows, and fails if that does not happen:
//!
//! 1. Two masters fail: one does not answer any more, one comes back without its data. The hold continues and is renewed beyond its lease,
//!    and the next request gets the lock as fast as before.
//! 2. Three masters fail, and that is a majority: no lock can be granted, and the holder is notified at its
//!    deadline, before anybody else can have it.
//! 3. They come back, and all continues by itself.
//!
//! Run it: `cargo run --example quorum`. It needs no server: its masters are five `Memory`. To use servers, name five in `REDIS_URLS`,
//! separated by commas or spaces. They must be servers that you may disturb: the example stops them for some seconds, by `CLIENT PAUSE`.

use std::error::Error;
use std::time::{Duration, Instant};

use nestlock::{ErrorKind, Locks, Loss, Master, Memory, Mutex, Owner};
use tokio::time::{sleep, timeout};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The lease. It is short, so that this does not take long. The default is 30 s. A lease should be many times
/// `node_timeout`, which is 500 ms.
const LEASE: Duration = Duration::from_secs(2);

/// A master of the lock. If one fails for a while, the others do not notice.
enum Place {
    Memory(Memory),
    Server(String),
}

impl Place {
    /// Returns five masters.
    fn all() -> Result<Vec<Place>> {
        let urls = std::env::var("REDIS_URLS").unwrap_or_default();
        let servers = urls.split([',', ' ']).filter(|url| !url.is_empty());
        let masters: Vec<_> = servers.map(|url| Place::Server(url.to_owned())).collect();
        match masters.len() {
            0 => Ok((0..5).map(|_| Place::Memory(Memory::new())).collect()),
            5 => Ok(masters),
            given => Err(format!("REDIS_URLS has {given} servers, and this example is about five").into()),
        }
    }

    fn master(&self) -> Master {
        match self {
            Place::Memory(memory) => Master::memory(memory),
            Place::Server(url) => Master::server(url),
        }
    }

    /// Makes the master answer nothing for that time; commands that arrive meanwhile run later.
    async fn stall(&self, time: Duration) -> Result<()> {
        match self {
            Place::Memory(memory) => memory.faults().stall(time),
            Place::Server(url) => {
                let mut pause = redis::cmd("CLIENT");
                pause.arg("PAUSE").arg(time.as_millis() as u64).arg("ALL");
                pause.exec_async(&mut connection(url).await?).await?;
            }
        }
        Ok(())
    }

    /// Makes the master lose the lock. A `Memory` restarts without any data; a server must not be restarted
    /// here, so the key is deleted.
    async fn forget(&self, lock: &str) -> Result<()> {
        match self {
            Place::Memory(memory) => memory.faults().restart_empty(),
            Place::Server(url) => {
                redis::cmd("DEL").arg(lock).exec_async(&mut connection(url).await?).await?;
            }
        }
        Ok(())
    }
}

async fn connection(url: &str) -> Result<redis::aio::MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// Connects a client to these masters; each process has one. All clients name the same masters, and agree on
/// the lease. If all masters are servers, their URLs are enough: `Locks::quorum(["redis://one",
/// "redis://two", …])`.
async fn connect(masters: &[Place]) -> Result<Locks> {
    let masters = masters.iter().map(Place::master);
    Ok(Locks::quorum(masters).lease(LEASE).connect().await?)
}

/// Takes a free lock, which is granted quickly although some masters do not answer.
async fn work(lock: &Mutex, who: &str) -> Result<()> {
    let began = Instant::now();
    let guard = lock.lock().owner(&Owner::new()).await?;
    println!("  {who} has the lock after {:.1?}", began.elapsed());
    Ok(guard.release().await?)
}

async fn a_minority_fails(masters: &[Place], ours: &Mutex, theirs: &Mutex) -> Result<()> {
    println!("Two of five masters fail");
    let guard = ours.lock().await?;
    masters[3].stall(LEASE * 2).await?;
    masters[4].forget(ours.name()).await?;
    // The hold is renewed beyond its lease, by the three masters that are left.
    if let Ok(loss) = timeout(LEASE * 3 / 2, guard.lost()).await {
        return Err(format!("a minority failed, and the hold was lost: {loss}").into());
    }
    println!("  still held after {:.1?}, under a lease of {LEASE:?}", LEASE * 3 / 2);
    ours.run(async |_| {}).await?; // a nested call re-enters as before
    if theirs.try_lock().await?.is_some() {
        return Err("two hold the lock".into());
    }
    println!("  nobody else gets in");
    guard.release().await?;
    work(theirs, "the next one").await
}

async fn a_majority_fails(masters: &[Place], ours: &Mutex, theirs: &Mutex) -> Result<()> {
    println!("Three of five masters fail");
    let guard = ours.lock().await?;
    for master in &masters[..3] {
        master.stall(LEASE * 2).await?;
    }
    let (began, end) = (Instant::now(), guard.valid_until());
    match theirs.try_lock().await {
        Err(error) if error.kind() == ErrorKind::Unavailable => println!("  another one fails: {error}"),
        other => return Err(format!("nobody can be sure of anything, and yet: {other:?}").into()),
    }
    // The two masters that are left can't renew the hold. It ends before any of the masters grants the lock to another owner.
    let loss = guard.lost().await;
    println!("  the holder is notified after {:.1?}: {loss}", began.elapsed());
    if loss != Loss::Expired || tokio::time::Instant::now() < end {
        return Err("the hold stays until its deadline, and ends there".into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let masters = Place::all()?;
    // The process id keeps two people who try this on the same servers out of each other's way.
    let name = format!("example:quorum:{}", std::process::id());
    let (one, another) = (connect(&masters).await?, connect(&masters).await?);
    let (ours, theirs) = (one.mutex(&name), another.mutex(&name));

    // A server that was started less than a lease ago may have forgotten what it granted, and has no vote until then.
    println!("Five masters");
    work(&ours, "the first one").await?;
    work(&theirs, "another").await?;

    a_minority_fails(&masters, &ours, &theirs).await?;
    sleep(LEASE).await;
    a_majority_fails(&masters, &ours, &theirs).await?;

    println!("They are back");
    work(&theirs, "who waits for it").await?;
    one.close().await?;
    another.close().await?;
    Ok(())
}
