//! A job that takes longer than the lease of its lock, and what it does when the lock is lost.
//!
//! The watchdog renews the lease for as long as the job runs. If the lock is lost nevertheless, another owner may have it, so the job must
//! stop. There are two ways to stop it:
//!
//! - `run` drops the work at its current `.await`. Whatever the work has not written by then is not written.
//! - With `select!` and `guard.lost()` you decide what is done then; here the job notes how far it got.
//!
//! Run it: `cargo run --example long_job`. It needs no server: it takes the lock away by `Faults::lose`. With
//! the URL of a Redis in `REDIS_URL`, an operator frees the lock there: `scripts/redis cargo run --example
//! long_job`.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nestlock::{Locks, Loss, Memory, Mutex};
use tokio::time::sleep;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The lease. It is short, so that this does not take long. The default is 30 s. A lease should be many times
/// `node_timeout`, which is 500 ms.
const LEASE: Duration = Duration::from_secs(2);

const BATCHES: u32 = 10;

/// The job. It counts the batches that it has finished.
async fn import(done: &AtomicU32) {
    while done.load(Ordering::Relaxed) < BATCHES {
        sleep(LEASE / 8).await;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Finished,
    Stopped { after: u32, loss: Loss },
}

/// `run` drops the work when the lock is lost, and its error has the reason.
async fn by_run(lock: &Mutex) -> Result<Outcome> {
    let done = AtomicU32::new(0);
    match lock.run(|_| import(&done)).await {
        Ok(()) => Ok(Outcome::Finished),
        Err(error) => match error.loss() {
            Some(loss) => Ok(Outcome::Stopped { after: done.into_inner(), loss }),
            None => Err(error.into()), // it never started
        },
    }
}

/// `select!` with `lost()` ends the work too, and the code decides what is done next.
async fn by_select(lock: &Mutex) -> Result<Outcome> {
    let done = AtomicU32::new(0);
    let guard = lock.lock().await?;
    tokio::select! {
        () = import(&done) => {
            guard.release().await?; // an error of kind `Lost`, if it was not held to the end
            Ok(Outcome::Finished)
        }
        loss = guard.lost() => Ok(Outcome::Stopped { after: done.into_inner(), loss }),
    }
}

/// An operator who deletes the lock in the middle of the job.
enum Trouble {
    /// Deletes the lock in memory, like `DEL` on a server.
    Memory(Memory),
    /// An operator, with a connection of its own.
    Operator(Locks),
}

impl Trouble {
    async fn strike(&self, name: &str) -> Result<bool> {
        sleep(LEASE / 2).await;
        match self {
            Trouble::Memory(memory) => Ok(memory.faults().lose(name)),
            Trouble::Operator(locks) => Ok(locks.mutex(name).force_release().await?),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (locks, trouble) = match std::env::var("REDIS_URL") {
        Ok(url) => {
            let locks = Locks::builder(&url).lease(LEASE).connect().await?;
            (locks, Trouble::Operator(Locks::connect(url).await?))
        }
        Err(_) => {
            let memory = Memory::new();
            let locks = Locks::builder(&memory).lease(LEASE).connect().await?;
            (locks, Trouble::Memory(memory))
        }
    };
    // The process id keeps two people who try this on one Redis out of each other's way.
    let lock = locks.mutex(format!("example:import:{}", std::process::id()));

    let began = Instant::now();
    let outcome = by_select(&lock).await?;
    println!("undisturbed: {outcome:?} after {:.1?}, under a lease of {LEASE:?}", began.elapsed());
    if outcome != Outcome::Finished || began.elapsed() <= LEASE {
        return Err("the job must take longer than the lease, and be finished".into());
    }

    let (outcome, struck) = tokio::join!(by_run(&lock), trouble.strike(lock.name()));
    println!("run: {:?}", stopped(outcome?, struck?)?);
    let (outcome, struck) = tokio::join!(by_select(&lock), trouble.strike(lock.name()));
    println!("select!: {:?}", stopped(outcome?, struck?)?);

    locks.close().await?;
    Ok(())
}

/// Checks that the job was stopped by the operator.
fn stopped(outcome: Outcome, struck: bool) -> Result<Outcome> {
    match outcome {
        Outcome::Stopped { loss: Loss::Gone, .. } if struck => Ok(outcome),
        _ => {
            Err(format!("the lock was taken away ({struck}), and the job was not stopped by it: {outcome:?}")
                .into())
        }
    }
}
