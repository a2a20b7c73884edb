//! Locks of names that nobody used before: taken, and dropped without a release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::sample::{Load, left, samples};
use crate::server::{Result, patient};

/// How often a batch of them is taken.
const TICK: Duration = Duration::from_millis(10);

pub(crate) async fn churn(per_second: u64, time: Duration) -> Result<Load> {
    let locks = patient().connect().await?;
    let grants = Arc::new(AtomicU64::new(0));
    let load = {
        let (locks, grants) = (locks.clone(), grants.clone());
        let each = (per_second * TICK.as_millis() as u64 / 1000).max(1);
        tokio::spawn(async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for round in 0_u64.. {
                ticks.tick().await;
                let mut tasks = JoinSet::new();
                for at in 0..each {
                    let (lock, grants) = (locks.mutex(format!("load:churn:{round}:{at}")), grants.clone());
                    tasks.spawn(async move {
                        drop(lock.lock().await?);
                        grants.fetch_add(1, SeqCst);
                        Ok::<_, nestlock::Error>(())
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done.map_err(std::io::Error::other)?.map_err(std::io::Error::other)?;
                }
            }
            Ok::<_, std::io::Error>(())
        })
    };
    let samples = samples(time).await?;
    if load.is_finished() {
        load.await??;
        return Err("the load ended too early".into());
    }
    load.abort();
    // These were cancelled on purpose.
    let _ = load.await;
    locks.close().await?;
    let (keys_left, channels_left) = left().await?;
    let what = format!("{per_second} locks a second are made and dropped");
    Ok(Load { what, grants: grants.load(SeqCst), lost: 0, samples, keys_left, channels_left })
}
