//! A job that runs once a period, in one of the copies of a service.
//!
//! The lock keeps the copies apart, even if their clocks differ: `at_least` keeps it for longer than the job takes. The lock does not
//! remember that the job was done. The record does, which is read and written while the lock is held: a copy that restarts, or whose clock
//! is late, finds it. (ShedLock has the lock and the record in one row: `lockAtLeastFor` is `at_least`, `lockAtMostFor` is the lease, which
//! is renewed here, and `lockedBy` the name of the holder.)
//!
//! Run it: `cargo run --example nightly_job`. Its three copies share a store in memory or, with the URL of a Redis in `REDIS_URL`, that
//! server: `scripts/redis cargo run --example nightly_job`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use nestlock::{Locks, Memory};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How often the job runs. In a service this would be a day.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the lock is kept: longer than the difference between the clocks of two copies, and shorter than a period.
const APART: Duration = Duration::from_millis(200);

const PERIODS: u32 = 3;
const COPIES: u32 = 3;

/// The last run. In a service it is a row of the database, written in the job's transaction.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    period: Option<u32>,
    by: String,
}

/// The database that the copies share.
type Database = Arc<Mutex<Record>>;

/// One copy of the service.
struct Copy {
    name: String,
    locks: Locks,
    database: Database,
}

impl Copy {
    /// Runs the job of this period, unless another copy is running it or has done it. Returns whether this copy ran it.
    async fn run_once(&self, period: u32) -> Result<bool> {
        // `None`: another copy has the lock, or had it a moment ago.
        let job = self.locks.mutex("nightly").try_lock().at_least(APART).run(async |_| {
            if self.record().await.period >= Some(period) {
                return false; // it was done before, by another copy, or by this one before it restarted
            }
            delete_old_rows().await;
            // A service would also have a metric here: the time of the last run, with an alert if it is too long ago.
            *self.database.lock().await = Record { period: Some(period), by: self.name.clone() };
            true
        });
        Ok(job.await?.unwrap_or(false))
    }

    async fn record(&self) -> Record {
        self.database.lock().await.clone()
    }
}

async fn delete_old_rows() {
    sleep(APART / 10).await;
}

/// Runs the job when it is due, and tries again when it was just done.
async fn serve(copy: Copy, late: Duration, began: Instant) -> Result<u32> {
    let mut runs = 0;
    for period in 0..PERIODS {
        sleep_until(began + PERIOD * period + late).await;
        if copy.run_once(period).await? {
            println!("period {period}: run by {}", copy.record().await.by);
            runs += 1;
        }
    }
    // The copy restarts, and takes the job for due again. By then, the lock is free.
    sleep(2 * APART).await;
    if copy.record().await.period == Some(PERIODS - 1) {
        assert!(!copy.run_once(PERIODS - 1).await?, "the job of a period runs once");
    }
    copy.locks.close().await?;
    Ok(runs)
}

#[tokio::main]
async fn main() -> Result<()> {
    let (memory, database, began) = (Memory::new(), Database::default(), Instant::now());
    // The process id keeps two people who try this on the same server out of each other's way.
    let prefix = format!("example:{}:", std::process::id());
    let mut copies = JoinSet::new();
    for number in 1..=COPIES {
        let options = match std::env::var("REDIS_URL") {
            Ok(url) => Locks::builder(url),
            Err(_) => Locks::builder(&memory),
        };
        let name = format!("shop@web-{number}");
        let locks = options.prefix(&prefix).holder_name(&name).connect().await?;
        let copy = Copy { name, locks, database: database.clone() };
        // The clocks of the copies differ by less than the time for which the lock is kept.
        copies.spawn(serve(copy, APART / 4 * number, began));
    }
    let mut runs = 0;
    while let Some(served) = copies.join_next().await {
        runs += served??;
    }
    println!("{PERIODS} periods, {COPIES} copies, {runs} runs");
    assert!(runs <= PERIODS, "the job of a period runs once");
    Ok(())
}
