//! Many tasks of one process wait for one lock, which goes from one to the next all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::sample::{Load, left, samples};
use crate::server::{Result, patient};

/// How long each of them holds it: the lock is granted some hundred times a second.
const WORK: Duration = Duration::from_millis(5);

pub(crate) async fn waiters(waiters: u64, time: Duration) -> Result<Load> {
    let locks = patient().connect().await?;
    let (grants, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (lock, over) = (locks.mutex("load:waiters"), over.clone());
        let (grants, lost) = (grants.clone(), lost.clone());
        tasks.spawn(async move {
            while !over.load(SeqCst) {
                let guard = lock.lock().await?;
                grants.fetch_add(1, SeqCst);
                if !over.load(SeqCst) {
                    sleep(WORK).await;
                }
                lost.fetch_add(u64::from(guard.is_lost()), SeqCst);
                guard.release().await?;
            }
            Ok::<_, nestlock::Error>(())
        });
    }
    let samples = samples(time).await?;
    over.store(true, SeqCst);
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    locks.close().await?;
    let (keys_left, channels_left) = left().await?;
    let what = format!("{waiters} tasks wait for one lock");
    let (grants, lost) = (grants.load(SeqCst), lost.load(SeqCst));
    Ok(Load { what, grants, lost, samples, keys_left, channels_left })
}
