//! A program that forks, and then takes locks in both processes. Each prints one line per result.
//!
//! `forks URL WHAT [drop|release]`: `WHAT` is what the child uses, see [`What`]. With a third word the parent
//! holds the lock when it forks, and the word says how the child ends its copy of the guard. Without one the
//! parent takes the lock after the fork, before the child asks for it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fork::{Fork, fork};
use nestlock::{ErrorKind, Guard, Locks, Mutex};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// What the child uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// A `Locks` of its own, on a runtime of its own.
    Own,
    /// The `Locks` of its parent, on a runtime of its own. The threads of the parent's runtime are not in the child.
    Inherited,
    /// The `Locks` of its parent, on the runtime of its parent, which has no thread of its own.
    Continued,
}

const NAME: &str = "stock";
/// How long the child waits for a lock.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a hold may pass on to another owner in its process: longer than until the child drops its copy.
const HANDOFF: Duration = Duration::from_secs(4);
/// The child ends after this time, whatever it does.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let url = args.first().ok_or("the server is missing")?;
    let what = match args.get(1).map(String::as_str) {
        Some("own") => What::Own,
        Some("inherited") => What::Inherited,
        Some("continued") => What::Continued,
        other => return Err(format!("unknown: {other:?}").into()),
    };
    let ends_by_release = args.get(2).map(|arg| arg == "release");
    let runtime = match what {
        What::Inherited => Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
        What::Own | What::Continued => Builder::new_current_thread().enable_all().build()?,
    };
    let locks = runtime.block_on(Locks::builder(url).local_handoff(HANDOFF).connect())?;
    let stock = locks.mutex(NAME);
    runtime.block_on(async { stock.lock().await?.release().await })?;
    let held = if ends_by_release.is_some() { Some(runtime.block_on(stock.lock())?) } else { None };
    let (mut here, there) = UnixStream::pair()?;
    match fork()? {
        Fork::Child => {
            drop((here, stock));
            if let Err(error) = child(
                url,
                what,
                locks,
                runtime,
                held.map(|guard| (guard, ends_by_release == Some(true))),
                &there,
            ) {
                println!("child failed: {error}");
            }
            // The runtime is not dropped: it would wait for threads that are not in this process.
            std::process::exit(0);
        }
        Fork::Parent(_) => {
            drop(there);
            let guard = match held {
                Some(guard) => guard,
                None => runtime.block_on(stock.lock())?,
            };
            println!("parent has {}", guard.hold_id());
            here.write_all(b"\n")?;
            // Returns once the child has ended.
            here.read_to_end(&mut Vec::new())?;
            runtime.block_on(after(&stock, guard))
        }
    }
}

/// What the child does while its parent holds the lock.
fn child(
    url: &str,
    what: What,
    locks: Locks,
    runtime: Runtime,
    held: Option<(Guard, bool)>,
    mut there: &UnixStream,
) -> Result<()> {
    there.read_exact(&mut [0])?;
    let runtime = match what {
        What::Continued => runtime,
        _ => {
            std::mem::forget(runtime);
            Builder::new_current_thread().enable_all().build()?
        }
    };
    let done = runtime.block_on(async { timeout(LIMIT, take(url, what, locks, held)).await });
    // Dropping the runtime would also drop its driver.
    std::mem::forget(runtime);
    done?
}

async fn take(url: &str, what: What, locks: Locks, held: Option<(Guard, bool)>) -> Result<()> {
    let locks = match what {
        What::Own => Locks::connect(url).await?,
        _ => locks,
    };
    let stock = locks.mutex(NAME);
    if let (Some((guard, _)), What::Inherited | What::Continued) = (&held, &what) {
        // This comes first: a call that is refused makes the copy of the hold uncertain.
        let nested = guard.scope(stock.run(async |_| {})).await;
        println!("child nested: {:?}", nested.map_err(|error| error.kind()));
    }
    show("try_lock", stock.try_lock().await).await;
    show("within", stock.try_lock().within(PATIENCE).await).await;
    show("another", locks.mutex("shelf").try_lock().await).await;
    // The thread that renews while the runtime does not run gets its name only once it has started.
    while what == What::Own && threads()? == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    println!("child threads: {}", threads()?);
    if let Some((guard, by_release)) = held {
        // Another owner, which waits for this owner's hold as far as the child knows.
        let other = tokio::spawn(stock.clone().lock().within(PATIENCE));
        tokio::task::yield_now().await;
        println!("child check: {:?}", guard.check().await.map_err(|error| error.kind()));
        if by_release {
            println!("child release: {:?}", guard.release().await.map_err(|error| error.kind()));
        } else {
            drop(guard);
        }
        show("other owner", other.await?.map(Some)).await;
        // If there is a background task, this gives it time to finish.
        sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// How many threads of this process renew while the runtime does not run.
fn threads() -> Result<usize> {
    let mut count = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        count += usize::from(std::fs::read_to_string(task?.path().join("comm"))?.trim() == "nestlock");
    }
    Ok(count)
}

async fn show(what: &str, asked: nestlock::Result<Option<Guard>>) {
    match asked {
        Ok(Some(guard)) => {
            println!("child {what}: has {}", guard.hold_id());
            let _ = guard.release().await;
        }
        Ok(None) => println!("child {what}: busy"),
        Err(error) => println!("child {what}: {:?}", error.kind()),
    }
}

/// What the parent does once the child has ended.
async fn after(stock: &Mutex, guard: Guard) -> Result<()> {
    let mut checked = guard.check().await;
    // A child that continued on the same runtime may have received I/O events that were meant for the parent.
    for _ in 0..20 {
        if !checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
            break;
        }
        sleep(Duration::from_millis(100)).await;
        checked = guard.check().await;
    }
    println!("parent check: {:?}", checked.map_err(|error| error.kind()));
    guard.release().await?;
    stock.lock().await?.release().await?;
    println!("parent is done");
    Ok(())
}
