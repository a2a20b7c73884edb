//! The works that each library does, and the results of one round.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::peers::Effort;
use crate::peers::driver::{Driver, now};
use crate::peers::fleet::{About, Candidate};
use crate::peers::server::Server;
use crate::server::Result;

/// The time for an answer, in addition to the time of the work. If 1,000 tasks try again by the clock, the last of them is done late.
const PATIENCE: Duration = Duration::from_secs(60);

/// After this time a waiter has asked, got "busy", and sleeps.
const ASLEEP: Duration = Duration::from_millis(10);

/// After this time all processes have read their command.
const START: Duration = Duration::from_millis(50);

/// The tasks of each process if several processes compete.
const TASKS: usize = 10;

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    Pair,
    Nested,
    /// 64 tasks, a lock each.
    Own {
        workers: usize,
    },
    Handoff,
    /// Tasks of one process, one lock.
    Crowd {
        tasks: usize,
    },
    /// Processes of ten tasks, one lock.
    Processes {
        count: usize,
    },
}

impl Work {
    pub(crate) fn name(self) -> String {
        match self {
            Work::Pair => "one task, a free lock".to_owned(),
            Work::Nested => "nested three deep".to_owned(),
            Work::Own { workers: 1 } => "64 tasks, a lock each, one worker".to_owned(),
            Work::Own { .. } => "64 tasks, a lock each, two workers".to_owned(),
            Work::Handoff => "release → a waiter in another process holds".to_owned(),
            Work::Crowd { tasks } => format!("{tasks} tasks of one process, one lock"),
            Work::Processes { count } => format!("{count} processes of {TASKS} tasks, one lock"),
        }
    }

    /// Returns whether it is compared by its rate, so that more than the floor is better.
    pub(crate) fn is_rate(self) -> bool {
        !matches!(self, Work::Pair | Work::Nested | Work::Handoff)
    }

    pub(crate) fn can(self, about: &About) -> bool {
        self != Work::Nested || about.nests
    }
}

/// The figures of one library in one round. Times are in microseconds, for one operation: a lock and its release, or a hand-off.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    /// The median or, if many operations are under way at once, the time of all divided by their number.
    pub(crate) micros: f64,
    pub(crate) server: f64,
    pub(crate) client: Option<f64>,
    pub(crate) commands: Option<f64>,
    /// The longest wait for a lock, in milliseconds.
    pub(crate) longest: Option<f64>,
    /// The share of all grants that each process had or, if there is one process, each task.
    pub(crate) shares: Vec<f64>,
    pub(crate) errors: u64,
}

#[derive(Deserialize)]
struct Times {
    nanos: Vec<u64>,
}

#[derive(Deserialize)]
struct At {
    at: u64,
}

#[derive(Deserialize)]
struct Load {
    grants: Vec<u64>,
    /// Grants after the end: a wait that began before the end is not broken off.
    late: u64,
    longest: u64,
    errors: u64,
}

/// The results, except for the processor time and the commands.
#[derive(Default)]
struct Seen {
    /// The number of operations that the processor time was spent on.
    operations: u64,
    micros: f64,
    longest: Option<f64>,
    shares: Vec<f64>,
    errors: u64,
}

pub(crate) async fn round(
    work: Work,
    of: &mut Candidate,
    server: &mut Server,
    effort: &Effort,
) -> Result<Sample> {
    let (name, sends) = (of.about.name.clone(), of.about.sends.clone());
    let drivers = match work {
        Work::Own { workers: 2 } => of.two_workers(server).await?,
        Work::Handoff => of.processes(2).await?,
        // The floor has one task only: raw commands do not wait for each other.
        Work::Processes { count } if of.about.waits => of.processes(count).await?,
        _ => of.processes(1).await?,
    };
    server.reset().await?;
    let before = (server.cpu().await?, clients(drivers));
    let seen = match work {
        Work::Pair => times(&mut drivers[0], "pair", effort.pairs).await?,
        Work::Nested => times(&mut drivers[0], "nested", effort.pairs).await?,
        Work::Handoff => handoffs(drivers, &name, effort.handoffs).await?,
        Work::Own { .. } => load(drivers, "-", 64, effort.own).await?,
        Work::Crowd { tasks } => {
            let time = if tasks > 100 { effort.large_crowd } else { effort.crowd };
            load(drivers, &format!("peers:{name}:crowd:{tasks}"), tasks, time).await?
        }
        Work::Processes { count } => {
            load(drivers, &format!("peers:{name}:processes:{count}"), TASKS, effort.processes_for).await?
        }
    };
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / seen.operations as f64;
    let client = before.1.zip(clients(drivers)).map(|(before, after)| each(after.saturating_sub(before)));
    Ok(Sample {
        operations: seen.operations,
        micros: seen.micros,
        server: each(server.cpu().await?.saturating_sub(before.0)),
        client,
        commands: Some(server.commands(&sends).await? as f64 / seen.operations as f64),
        longest: seen.longest,
        shares: seen.shares,
        errors: seen.errors,
    })
}

fn clients(drivers: &[Driver]) -> Option<Duration> {
    drivers.iter().map(Driver::cpu).sum()
}

async fn times(driver: &mut Driver, command: &str, count: usize) -> Result<Seen> {
    let mut seen: Times = driver.ask(&format!("{command} {count}"), PATIENCE).await?;
    Ok(Seen { operations: count as u64, micros: median(&mut seen.nanos), ..Seen::default() })
}

/// One process holds the lock and the other one waits, then the other way round, so that neither core is warmer.
async fn handoffs(drivers: &mut [Driver], of: &str, count: usize) -> Result<Seen> {
    let [one, two] = drivers else { return Err("a hand-off needs two processes".into()) };
    let mut nanos = Vec::new();
    for at in 0..count {
        let (holder, waiter) = if at % 2 == 0 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
        // Each process waits for a name of its own: the floor stays subscribed to it, and would receive messages while it holds.
        let name = format!("peers:{of}:handoff:{}", at % 2);
        let _: Value = holder.ask(&format!("hold {name}"), PATIENCE).await?;
        waiter.tell(&format!("wait {name}")).await?;
        tokio::time::sleep(ASLEEP).await;
        holder.tell(&format!("free {name}")).await?;
        let (sent, held): (At, At) = (holder.receive(PATIENCE).await?, waiter.receive(PATIENCE).await?);
        nanos.push(held.at.saturating_sub(sent.at));
        let _: At = waiter.ask(&format!("free {name}"), PATIENCE).await?;
    }
    Ok(Seen { operations: count as u64, micros: median(&mut nanos), ..Seen::default() })
}

async fn load(drivers: &mut [Driver], name: &str, tasks: usize, time: Duration) -> Result<Seen> {
    let (start, millis) = (now() + START.as_nanos() as u64, time.as_millis());
    for driver in &mut *drivers {
        driver.tell(&format!("load {name} {tasks} {start} {millis}")).await?;
    }
    let alone = drivers.len() == 1;
    let (mut grants, mut late, mut longest, mut errors) = (Vec::new(), 0, 0, 0);
    for driver in drivers {
        let seen: Load = driver.receive(time + PATIENCE).await?;
        if alone {
            grants.extend(seen.grants);
        } else {
            grants.push(seen.grants.iter().sum());
        }
        late += seen.late;
        longest = longest.max(seen.longest);
        errors += seen.errors;
    }
    let all: u64 = grants.iter().sum();
    if all == 0 {
        return Err(format!("nobody had `{name}` within {millis} ms").into());
    }
    Ok(Seen {
        operations: all + late,
        micros: time.as_secs_f64() * 1e6 / all as f64,
        longest: Some(longest as f64 / 1e6),
        shares: grants.iter().map(|&grants| grants as f64 / all as f64).collect(),
        errors,
    })
}

fn median(nanos: &mut [u64]) -> f64 {
    nanos.sort_unstable();
    nanos.get(nanos.len() / 2).map_or(f64::NAN, |&nanos| nanos as f64 / 1e3)
}
