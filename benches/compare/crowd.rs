//! Many tasks that wait for one lock: the cost of a hand-off must not depend on their number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nestlock::Locks;
use tokio::task::JoinSet;

use crate::results::Crowd;
use crate::server::Result;
use crate::stats::Stats;

/// After this time the heads have asked, are subscribed, and sleep.
const ASLEEP: Duration = Duration::from_millis(50);

/// Returns the only master of these locks.
pub(crate) async fn one_server() -> Result<Vec<Stats>> {
    Ok(vec![Stats::connect().await?])
}

/// Starts that many waiting tasks, divided evenly among these `Locks`, and counts commands until all of them have had the lock.
pub(crate) async fn crowd(of: &[&Locks], waiters: u64, masters: &mut [Stats]) -> Result<Crowd> {
    let name = format!("bench:crowd:{}:{waiters}", of.len());
    let guard = of[0].mutex(&name).lock().await?;
    let begun = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for locks in of.iter().cycle().take(waiters as usize) {
        let (lock, begun) = (locks.mutex(&name), begun.clone());
        tasks.spawn(async move {
            begun.fetch_add(1, SeqCst);
            lock.lock().await?.release().await
        });
    }
    while begun.load(SeqCst) < waiters {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(ASLEEP).await;
    for stats in &mut *masters {
        stats.reset().await?;
    }
    let began = Instant::now();
    guard.release().await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let took = began.elapsed();
    let mut commands = BTreeMap::new();
    for stats in &mut *masters {
        for (name, count) in stats.commands().await? {
            *commands.entry(name).or_default() += count;
        }
    }
    Ok(Crowd {
        masters: masters.len() as u64,
        waiters,
        processes: of.len() as u64,
        handoffs: waiters,
        commands,
        micros_per_handoff: took.as_secs_f64() * 1e6 / waiters as f64,
    })
}
