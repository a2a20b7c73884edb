//! A holder that is paused past its lease, and its late write: what the write destroys, and how a fencing token prevents it.
//!
//! The resource is a table in SQLite. Ada takes the lock, reads the stock, and is paused before she writes,
//! as garbage collection, a machine that swaps or a debugger may pause a process: her thread stands still,
//! and so does the task that renews her lease. Bo gets the lock and sells. Then Ada wakes up and writes the
//! result that she computed before.
//!
//! - Without tokens the table accepts her write: what Bo sold is in stock again.
//! - With tokens the table has seen Bo's token, and refuses a write with a smaller one.
//!
//! It would not help if Ada looked at `guard.is_lost()` first: she may be paused right after that.
//!
//! Run it: `cargo run -p fencing`. It needs no server. With the URL of a Redis in `REDIS_URL` the lock is kept there:
//! `scripts/redis cargo run -p fencing`.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nestlock::{ErrorKind, Guard, Locks, Master, Memory};
use rusqlite::Connection;
use tokio::runtime;
use tokio::sync::oneshot;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The lease: how long Bo has to wait for a lock whose holder is paused. It is short, so that this does not
/// take long.
const LEASE: Duration = Duration::from_secs(1);

const IN_STOCK: i64 = 10;
const ADA_SELLS: i64 = 3;
const BO_SELLS: i64 = 4;

/// The table that the lock guards.
#[derive(Clone)]
struct Stock(Arc<Mutex<Connection>>);

impl Stock {
    fn new() -> Result<Stock> {
        let table = Connection::open_in_memory()?;
        // The token is stored in the row that it protects. Counters in Redis end at 2^63 - 1, so a token fits any BIGINT.
        table.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, units INTEGER, token INTEGER)", [])?;
        table.execute("INSERT INTO stock VALUES (42, ?1, 0)", [IN_STOCK])?;
        Ok(Stock(Arc::new(Mutex::new(table))))
    }

    fn units(&self) -> Result<i64> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(table.query_row("SELECT units FROM stock WHERE id = 42", [], |row| row.get(0))?)
    }

    /// Writes the units. Returns whether the table accepted them. One statement checks and writes, atomically.
    fn write(&self, units: i64, token: Option<u64>) -> Result<bool> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = match token {
            // Not `<`: a holder may write more than once.
            Some(token) => table.execute(
                "UPDATE stock SET units = ?1, token = ?2 WHERE id = 42 AND token <= ?2",
                (units, i64::try_from(token)?),
            )?,
            None => table.execute("UPDATE stock SET units = ?1 WHERE id = 42", [units])?,
        };
        Ok(rows == 1)
    }
}

/// A hold of the lock, and its token if there is one.
type Hold = (Guard, Option<u64>);

/// The stock that both sell from, and the lock that they use.
#[derive(Clone)]
struct Shop {
    stock: Stock,
    master: Master,
    lock: String,
    fenced: bool,
}

impl Shop {
    /// Takes the lock, with a token or without. A real program would have only one of the two.
    async fn lock(&self, locks: &Locks) -> Result<Hold> {
        let lock = locks.mutex(&self.lock);
        Ok(match self.fenced {
            true => {
                let guard = lock.fenced().lock().await?;
                let token = guard.token();
                (guard.into(), Some(token))
            }
            false => (lock.lock().await?, None),
        })
    }

    /// Acquires the lock, reads, decides, reports that it got this far, waits until it may continue, and
    /// writes.
    async fn ada(&self, paused: oneshot::Sender<()>, goes_on: mpsc::Receiver<()>) -> Result<()> {
        // By default, a thread renews the lease while only the runtime stands still. A pause of the whole
        // process stops that thread too.
        let locks =
            Locks::builder(self.master.clone()).lease(LEASE).blocked_for(Duration::ZERO).connect().await?;
        let (guard, token) = self.lock(&locks).await?;
        let left = self.stock.units()? - ADA_SELLS;
        println!("  Ada{} sells {ADA_SELLS} of {IN_STOCK} units, and is paused", with(token));

        let _ = paused.send(());
        goes_on.recv()?; // blocks the thread, and everything that runs on it

        if self.stock.write(left, token)? {
            println!("  Ada wakes up and writes: {left} are left");
        } else {
            println!(
                "  Ada wakes up, and the table refuses her write{}: it has seen a later one",
                with(token)
            );
        }
        match guard.release().await {
            Err(error) if error.kind() == ErrorKind::Lost => {
                println!("  Ada's release fails: her hold was lost")
            }
            other => return Err(format!("her lease was over, and release gave {other:?}").into()),
        }
        if self.fenced {
            // She starts over, with a new hold and a new token.
            let (guard, token) = self.lock(&locks).await?;
            let left = self.stock.units()? - ADA_SELLS;
            if !self.stock.write(left, token)? {
                return Err("the table refused who holds the lock".into());
            }
            println!("  Ada{} sells {ADA_SELLS}: {left} are left", with(token));
            guard.release().await?;
        }
        locks.close().await?;
        Ok(())
    }

    async fn bo(&self) -> Result<()> {
        let locks = Locks::builder(self.master.clone()).lease(LEASE).connect().await?;
        let (guard, token) = self.lock(&locks).await?; // as soon as Ada's lease is over
        let left = self.stock.units()? - BO_SELLS;
        if !self.stock.write(left, token)? {
            return Err("the table refused who holds the lock".into());
        }
        println!("  Bo{} gets the lock and sells {BO_SELLS}: {left} are left", with(token));
        guard.release().await?;
        locks.close().await?;
        Ok(())
    }

    /// Runs both, and returns the final units in the table.
    async fn sell(&self) -> Result<i64> {
        let (paused, is_paused) = oneshot::channel();
        let (go_on, goes_on) = mpsc::channel();
        // Ada has a thread and a runtime of her own, like a process: all of it stands still, and nothing else does.
        let ada = self.clone();
        let ada = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(ada.ada(paused, goes_on))
        });
        if is_paused.await.is_ok() {
            self.bo().await?;
        }
        let _ = go_on.send(());
        let ada = tokio::task::spawn_blocking(|| ada.join()).await?;
        ada.map_err(|_| "Ada panicked")??;
        self.stock.units()
    }
}

fn with(token: Option<u64>) -> String {
    token.map_or_else(String::new, |token| format!(" (token {token})"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let master = std::env::var("REDIS_URL").map_or_else(|_| Master::memory(&Memory::new()), Master::server);
    // The process id keeps two people who try this on one Redis out of each other's way.
    let lock = format!("example:stock:{}", std::process::id());
    let right = IN_STOCK - ADA_SELLS - BO_SELLS;

    for fenced in [false, true] {
        println!("{} fencing tokens", if fenced { "With" } else { "Without" });
        let shop = Shop { stock: Stock::new()?, master: master.clone(), lock: lock.clone(), fenced };
        let left = shop.sell().await?;
        println!(
            "  In the table: {left}. Of {IN_STOCK}, {ADA_SELLS} and {BO_SELLS} were sold, so {right} are right."
        );
        if fenced != (left == right) {
            return Err("the late write must destroy what is not fenced, and nothing else".into());
        }
    }
    Ok(())
}
