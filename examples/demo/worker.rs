//! One worker process: works through the list in a few lanes at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nestlock::{Error, ErrorKind};
use tokio::task::JoinSet;

use crate::catalogue::Catalogue;
use crate::exclusion::Exclusion;
use crate::halt::Halt;
use crate::journal::Journal;
use crate::order::{Order, Orders, Outcome};
use crate::places::{Places, split};
use crate::report::Report;
use crate::stock::Stock;
use crate::{Failure, Result};

const LANES: usize = 3;

/// The command line of a worker.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) places: Places,
    pub(crate) prefix: String,
    pub(crate) locked: bool,
    /// The order, and the step in it, at which to stop and wait.
    pub(crate) halt: Option<(String, usize)>,
}

impl Job {
    pub(crate) fn to_args(&self) -> Vec<String> {
        let mode = if self.locked { "locked" } else { "free" };
        let Places { books, masters } = &self.places;
        let args = ["worker", &self.name, books, &masters.join(","), &self.prefix, mode];
        let mut args = args.map(str::to_owned).to_vec();
        if let Some((order, step)) = &self.halt {
            args.extend([order.clone(), step.to_string()]);
        }
        args
    }

    pub(crate) fn from_args(args: &[String]) -> Result<Job> {
        let [name, books, masters, prefix, mode, halt @ ..] = args else {
            return Err("worker NAME BOOKS MASTERS PREFIX locked|free [ORDER STEP]".into());
        };
        let halt = match halt {
            [order, step] => Some((order.clone(), step.parse()?)),
            _ => None,
        };
        let locked = mode == "locked";
        let places = Places { books: books.clone(), masters: split(masters) };
        Ok(Job { name: name.clone(), places, prefix: prefix.clone(), locked, halt })
    }
}

pub(crate) async fn work(job: Job) -> Result<()> {
    let exclusion = match job.locked {
        true => Exclusion::locked(&job.places, &job.prefix).await?,
        false => Exclusion::none(&job.prefix),
    };
    let journal = Journal::open(&job.places.books, &job.prefix).await?;
    // Each process measures the age of the masters by itself, so this one may wait for their votes a moment
    // longer than the conductor.
    exclusion.ready().await?;
    let stock = Stock {
        catalogue: Arc::new(Catalogue::load()?),
        exclusion: exclusion.clone(),
        journal: journal.clone(),
        halt: job.halt.map_or_else(Halt::default, |(order, step)| Halt::within(&order, step)),
    };
    let mut list: Vec<Arc<Order>> = Order::list()?.into_iter().map(Arc::new).collect();
    if job.name != "A" {
        // The two workers begin at the two ends of the list, and meet in the middle.
        list.reverse();
    }
    let orders = Arc::new(Orders { worker: job.name, exclusion: exclusion.clone(), journal, stock });
    // The first pass takes the orders whose locks are free. The others are locked by the other process: they become free when it is done
    // with them, or when it has died and its lease is over.
    let mut wait = false;
    while !list.is_empty() {
        list = pass(&orders, list, wait).await?;
        wait = true;
    }
    exclusion.close().await?;
    Report::Bye { reentries: exclusion.reentries() }.send()
}

/// Goes through the list once, and returns what is left.
async fn pass(orders: &Arc<Orders>, list: Vec<Arc<Order>>, wait: bool) -> Result<Vec<Arc<Order>>> {
    let list = Arc::new(list);
    let next = Arc::new(AtomicUsize::new(0));
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        // A spawned task is an owner of its own, so lanes exclude each other like processes.
        lanes.spawn(lane(orders.clone(), list.clone(), next.clone(), wait));
    }
    let mut left = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        left.extend(lane??);
    }
    Ok(left)
}

async fn lane(
    orders: Arc<Orders>,
    list: Arc<Vec<Arc<Order>>>,
    next: Arc<AtomicUsize>,
    wait: bool,
) -> Result<Vec<Arc<Order>>> {
    let mut left = Vec::new();
    while let Some(order) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
        let placed = if wait { orders.place(order).await } else { orders.try_place(order).await };
        let id = order.id.to_owned();
        match placed {
            Ok(Outcome::Placed) => Report::Done { order: id }.send()?,
            Ok(Outcome::Finished(steps)) => {
                Report::Finished { order: id, before: steps.before, now: steps.now }.send()?;
            }
            Ok(Outcome::Old) => {}
            Ok(Outcome::Busy) => left.push(order.clone()),
            // The work was dropped somewhere in the middle. The journal shows where, as after a kill.
            Err(error) if lock_lost(&error) => {
                Report::Lost { order: id }.send()?;
                left.push(order.clone());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

/// Returns whether a lock was lost, or a server did not answer in time, which happens if the machine stalls for a moment. The journal shows
/// how far the order is.
fn lock_lost(error: &Failure) -> bool {
    let again = |error: &Error| matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable);
    error.downcast_ref::<Error>().is_some_and(again)
}
