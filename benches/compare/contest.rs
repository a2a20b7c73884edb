//! Clients that compete for one lock over several masters: each may get some of the masters, and none a majority.

use std::time::Instant;

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::masters::Masters;
use crate::results::Contest;
use crate::server::Result;
use crate::stats::Stats;

pub(crate) async fn contest(masters: &Masters, clients: u64, rounds: u64) -> Result<Contest> {
    let mut stats = Vec::new();
    for url in &masters.urls {
        stats.push(Stats::of(url).await?);
    }
    let mut locks = Vec::new();
    for _ in 0..clients {
        // Each client has connections of its own, like a process of its own.
        let client = masters.locks().connect().await?;
        client.mutex("bench:contest:first").run(async |_| {}).await?;
        locks.push(client);
    }
    for stats in &mut stats {
        stats.reset().await?;
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for client in &locks {
        let lock = client.mutex("bench:contest");
        tasks.spawn(async move {
            let mut waits = Vec::new();
            for _ in 0..rounds {
                let asked = Instant::now();
                let guard = lock.lock().await?;
                waits.push(asked.elapsed());
                guard.release().await?;
                // Now it is the others' turn.
                tokio::task::yield_now().await;
            }
            Ok::<_, nestlock::Error>(waits)
        });
    }
    let mut waits = Histogram::<u64>::new(3)?;
    while let Some(done) = tasks.join_next().await {
        for wait in done?? {
            waits.record(wait.as_micros() as u64)?;
        }
    }
    let took = began.elapsed();
    let (mut acquires, mut scripts) = (0, 0);
    for stats in &mut stats {
        acquires += stats.acquires().await?;
        scripts += stats.commands().await?.values().sum::<u64>();
    }
    let (grants, masters) = (clients * rounds, masters.count() as u64);
    let each = |count: u64| count as f64 / (grants * masters) as f64;
    Ok(Contest {
        masters,
        clients,
        grants,
        acquires: each(acquires),
        commands: each(scripts),
        micros: took.as_secs_f64() * 1e6 / grants as f64,
        wait_p50: waits.value_at_quantile(0.5),
        wait_p99: waits.value_at_quantile(0.99),
        wait_max: waits.max(),
    })
}
