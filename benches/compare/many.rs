//! Many locks held at once, with a short lease: every one has to be renewed in time.

use std::ops::Range;
use std::time::{Duration, Instant};

use nestlock::{Guard, Locks};
use tokio::task::JoinSet;

use crate::cpu;
use crate::results::Many;
use crate::server::{Result, url};
use crate::stats::Stats;

const LEASE: Duration = Duration::from_secs(3);
const ASKING: usize = 64;

/// The pause between two looks at a part of the holds.
const LOOK: Duration = Duration::from_millis(50);
const PARTS: usize = 20;

pub(crate) async fn many(holds: u64, leases: u32) -> Result<Many> {
    let locks = Locks::builder(url()).lease(LEASE).connect().await?;
    let rss = resident();
    let guards = take(&locks, "bench:many", 0..holds).await?;
    let rss_per_hold = rss.zip(resident()).map(|(before, after)| (after - before) / holds as i64);
    let mut stats = Stats::connect().await?;
    stats.reset().await?;
    let (began, cpu) = (Instant::now(), cpu::own());
    let mut least = Duration::MAX;
    for at in 0.. {
        if began.elapsed() >= LEASE * leases {
            break;
        }
        tokio::time::sleep(LOOK).await;
        // Looking at all of them each time would cost more than renewing them.
        let now = tokio::time::Instant::now();
        let part = guards.iter().skip(at % PARTS).step_by(PARTS);
        let left = part.map(|guard| guard.valid_until().saturating_duration_since(now)).min();
        least = least.min(left.unwrap_or(least));
    }
    let (wall, cpu) = (began.elapsed(), cpu::own() - cpu);
    let renewals = stats.commands().await?.values().sum();
    let lost = guards.iter().filter(|guard| guard.is_lost()).count() as u64;
    for guard in guards {
        // A lost hold was reported above.
        let _ = guard.release().await;
    }
    Ok(Many {
        holds,
        lease_ms: LEASE.as_millis() as u64,
        leases: wall.as_secs_f64() / LEASE.as_secs_f64(),
        lost,
        least_left_ms: least.as_millis() as u64,
        renewals,
        cpu_share: cpu.as_secs_f64() / wall.as_secs_f64(),
        rss_per_hold,
    })
}

/// Takes locks with this name and these numbers, many at once.
pub(crate) async fn take(locks: &Locks, name: &'static str, which: Range<u64>) -> Result<Vec<Guard>> {
    let mut tasks = JoinSet::new();
    for first in 0..ASKING {
        let (locks, which) = (locks.clone(), which.clone());
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for at in which.skip(first).step_by(ASKING) {
                guards.push(locks.mutex(format!("{name}:{at}")).lock().await?);
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

/// Returns the memory of this process, if the system reports it.
fn resident() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<i64>().ok().map(|kib| kib * 1024)
}
