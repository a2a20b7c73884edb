//! One process: a `Locks`, and tasks that take locks until the parent tells them to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nestlock::Locks;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::hold::User;
use crate::job::{Job, NAMES, TASKS};
use crate::journal::{Event, Journal};
use crate::login::Login;
use crate::operation::Operation;
use crate::spool::Spool;
use crate::{Result, claims, forced, pairs, trace, turns};

/// From the parent: all tasks end their operations, and nothing is held any more.
pub(crate) const REST: &str = "rest";
/// From the parent: the process ends.
pub(crate) const END: &str = "end";
/// The answer once nothing is held.
pub(crate) const RESTING: &str = "resting";

pub(crate) async fn work(job: Job) -> Result<()> {
    trace::start(&job.file("trace"))?;
    let journal = Arc::new(Journal::create(&job.log())?);
    journal.write(Event::Begun { process: job.process });
    journal.clone().note_stalls();
    let mut orders = BufReader::new(stdin()).lines();
    let locks = tokio::select! {
        locks = connect(&job) => locks,
        order = orders.next_line() => {
            order?;
            println!("{RESTING}");
            return Ok(());
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let user = User {
        journal,
        locks: locks.clone(),
        folder: job.folder.clone(),
        spool: Spool::of(&job.folder)?,
        stop: stop.clone(),
        requests: Arc::new(AtomicU64::new(0)),
    };
    let mut tasks = JoinSet::new();
    for task in 0..TASKS as u64 {
        let place = (job.process as u64) << 32 | job.life << 16 | task;
        tasks.spawn(operate(user.clone(), StdRng::seed_from_u64(job.seed ^ (place + 1))));
    }
    let random_of = |what: u64| StdRng::seed_from_u64(job.seed ^ what << 32 ^ job.process as u64);
    tasks.spawn(claims::resume(user.clone(), random_of(0xc1a1)));
    tasks.spawn(forced::take(user.clone(), random_of(0xf0ced)));
    let random = random_of(0);
    if job.process < 2 {
        tasks.spawn(pairs::meet(user, random));
    } else {
        tasks.spawn(turns::take(user, random));
    }
    while orders.next_line().await?.is_some_and(|order| order != REST) {}
    stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    println!("{RESTING}");
    while orders.next_line().await?.is_some_and(|order| order != END) {}
    locks.close().await?;
    Ok(())
}

/// Connects. A process may be started while no server answers.
async fn connect(job: &Job) -> Locks {
    // Half of the processes get their credentials in each of the two ways.
    let builder = job.target.builder(&Login::of(job.seed), job.process % 2 == 1);
    trace::show(&builder);
    loop {
        match builder.clone().connect().await {
            Ok(locks) => {
                trace::show(&locks);
                trace::show(&locks.mutex(NAMES[0]));
                trace::show(&locks.mutexes(NAMES));
                return locks;
            }
            Err(error) => {
                trace::error("connect", &error);
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn operate(user: User, mut random: StdRng) {
    while !user.is_stopped() {
        let operation = Operation::draw(&mut random);
        if let Err(error) = operation.perform(&user).await {
            user.failed(operation.how(), &*error);
        }
        sleep(operation.pause()).await;
    }
}
