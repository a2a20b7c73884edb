//! Many locks held at once, renewed by the watchdog.

use std::time::Duration;

use nestlock::{Guard, Locks};
use tokio::task::JoinSet;

use crate::sample::{Load, left, samples};
use crate::server::{Result, patient};

/// How many tasks take the locks.
const TASKS: u64 = 64;

pub(crate) async fn held(holds: u64, time: Duration) -> Result<Load> {
    let locks = patient().connect().await?;
    let guards = take(&locks, holds).await?;
    let samples = samples(time).await?;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count() as u64;
    for guard in guards {
        // A lost hold was counted before.
        let _ = guard.release().await;
    }
    locks.close().await?;
    let (keys_left, channels_left) = left().await?;
    let what = format!("{holds} locks are held");
    Ok(Load { what, grants: holds, lost, samples, keys_left, channels_left })
}

async fn take(locks: &Locks, holds: u64) -> Result<Vec<Guard>> {
    let mut tasks = JoinSet::new();
    for first in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for at in (first..holds).step_by(TASKS as usize) {
                guards.push(locks.mutex(format!("load:held:{at}")).lock().await?);
            }
            Ok::<_, nestlock::Error>(guards)
        });
    }
    let mut guards = Vec::new();
    while let Some(done) = tasks.join_next().await {
        guards.extend(done??);
    }
    Ok(guards)
}
