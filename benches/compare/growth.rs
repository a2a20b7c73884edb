//! How the cost of one lock grows with the number of other locks, names, waiters, masters or clients.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nestlock::{Guard, Locks};
use tokio::task::JoinSet;

use crate::crowd;
use crate::many::take;
use crate::masters::Masters;
use crate::results::{Growth, Point};
use crate::server::{Result, patience, url};
use crate::stats::Stats;

/// A lease so long that nothing is renewed during the measurement.
const LEASE: Duration = Duration::from_secs(600);
const RELEASING: usize = 64;
const NAME: &str = "bench:growth";

/// The largest numbers that are measured.
pub(crate) struct Reach {
    pub(crate) most: usize,
    pub(crate) waiters: u64,
    pub(crate) clients: usize,
    pub(crate) pairs: u64,
}

/// Returns 1, 10, 100, and so on.
fn decades(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |count| Some(count * 10)).take_while(move |count| *count <= most)
}

pub(crate) async fn growth(reach: &Reach) -> Result<Vec<Growth>> {
    let mut all =
        vec![waiters(reach).await?, holds(reach).await?, names(reach).await?, clients(reach).await?];
    all.extend(masters(reach).await?);
    Ok(all)
}

async fn connect() -> Result<Locks> {
    let builder = Locks::builder(url()).lease(LEASE).node_timeout(patience());
    Ok(builder.unavailable_after(Duration::from_secs(60)).connect().await?)
}

/// Measures a hand-off among tasks of one process.
async fn waiters(reach: &Reach) -> Result<Growth> {
    let locks = connect().await?;
    let mut points = Vec::new();
    for count in decades(reach.waiters as usize) {
        let seen = crowd::crowd(&[&locks], count as u64, &mut crowd::one_server().await?).await?;
        points.push(Point { count, micros: seen.micros_per_handoff, commands: seen.per_handoff() });
    }
    locks.close().await?;
    Ok(Growth { what: "waiters of one process: a hand-off".to_owned(), points })
}

/// Measures a hand-off among that many clients with ten tasks each, all with connections of their own.
async fn clients(reach: &Reach) -> Result<Growth> {
    let mut all = Vec::new();
    let mut points = Vec::new();
    for count in 1..=reach.clients {
        all.push(connect().await?);
        let of: Vec<_> = all.iter().collect();
        let seen = crowd::crowd(&of, 10 * count as u64, &mut crowd::one_server().await?).await?;
        points.push(Point { count, micros: seen.micros_per_handoff, commands: seen.per_handoff() });
    }
    for locks in all {
        locks.close().await?;
    }
    Ok(Growth { what: "`Locks` of ten tasks: a hand-off".to_owned(), points })
}

/// Measures a free lock while that many others are held.
async fn holds(reach: &Reach) -> Result<Growth> {
    let locks = connect().await?;
    let (mut held, mut points) = (Vec::new(), Vec::new());
    for count in decades(reach.most) {
        held.extend(take(&locks, NAME, held.len() as u64..count as u64).await?);
        points.push(pairs(&locks, reach.pairs, count, |_| format!("{NAME}:free")).await?);
    }
    give_back(held).await?;
    locks.close().await?;
    Ok(Growth { what: "locks held: a lock and its release beside them".to_owned(), points })
}

/// Measures a free lock with another name each time, out of that many names.
async fn names(reach: &Reach) -> Result<Growth> {
    let locks = connect().await?;
    let mut points = Vec::new();
    for count in decades(reach.most) {
        give_back(take(&locks, NAME, 0..count as u64).await?).await?;
        // Consecutive names are far apart, so that none comes again while it is still in a cache.
        let name = |at: u64| format!("{NAME}:{}", (at as usize * 7_919) % count);
        points.push(pairs(&locks, reach.pairs, count, name).await?);
    }
    locks.close().await?;
    Ok(Growth { what: "names in use: a lock and its release".to_owned(), points })
}

/// Measures a free lock over up to that many masters. Returns `None` if there are none.
async fn masters(reach: &Reach) -> Result<Option<Growth>> {
    let mut points = Vec::new();
    for count in 1..=reach.clients {
        let Some(masters) = Masters::first(count) else { break };
        let locks = masters.locks().connect().await?;
        // Masters that were just started have no vote yet.
        locks.mutex("bench:growth:first").run(async |_| {}).await?;
        let mut stats = Vec::new();
        for url in &masters.urls {
            stats.push(Stats::of(url).await?);
        }
        points.push(pairs_of(&locks, &mut stats, reach.pairs, count, |_| NAME.to_owned()).await?);
        locks.close().await?;
    }
    let what = "masters: a lock and its release, commands on each".to_owned();
    Ok((!points.is_empty()).then_some(Growth { what, points }))
}

async fn pairs(locks: &Locks, samples: u64, count: usize, name: impl Fn(u64) -> String) -> Result<Point> {
    pairs_of(locks, &mut crowd::one_server().await?, samples, count, name).await
}

/// Returns the median of that many pairs.
async fn pairs_of(
    locks: &Locks,
    servers: &mut [Stats],
    samples: u64,
    count: usize,
    name: impl Fn(u64) -> String,
) -> Result<Point> {
    let mut times = Histogram::<u64>::new(3)?;
    let mut mutexes = Vec::new();
    for at in 0..samples {
        mutexes.push(locks.mutex(name(at)));
    }
    for server in &mut *servers {
        server.reset().await?;
    }
    for mutex in &mutexes {
        let began = Instant::now();
        mutex.lock().await?.release().await?;
        times.record(began.elapsed().as_nanos() as u64)?;
    }
    let mut commands = 0;
    for server in &mut *servers {
        commands += server.commands().await?.values().sum::<u64>();
    }
    Ok(Point {
        count,
        micros: times.value_at_quantile(0.5) as f64 / 1e3,
        commands: commands as f64 / (samples * servers.len() as u64) as f64,
    })
}

async fn give_back(guards: Vec<Guard>) -> Result<()> {
    let mut parts: Vec<Vec<Guard>> = (0..RELEASING).map(|_| Vec::new()).collect();
    for (at, guard) in guards.into_iter().enumerate() {
        parts[at % RELEASING].push(guard);
    }
    let mut tasks = JoinSet::new();
    for part in parts {
        tasks.spawn(async move {
            for guard in part {
                guard.release().await?;
            }
            Ok::<_, nestlock::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
