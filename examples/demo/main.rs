//! A small shop in two processes, which share a list of orders and the stock in one Redis.
//!
//! Stock is read with GET and written with SET, so only locks prevent that one unit is sold twice.
//! One process is killed in the middle of an order; the other takes over when the lease is over.
//! At the end the books must balance to the unit, and without locks they do not.
//!
//! Run it with `scripts/demo`, or on a Redis of your own:
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example demo`.
//!
//! With `scripts/demo --quorum` the locks are on five masters, of which two are killed together with the process. To use masters of your
//! own, name them in `REDIS_URLS`, separated by commas or spaces; the books stay in `REDIS_URL`, and only masters whose process ids are in
//! `REDIS_PIDS` are killed.
//!
//! From the top down: `order` is the upper layer of the service and `stock` the lower one, `journal` makes an interrupted order repeatable,
//! and `exclusion` takes the locks. The rest shows how they work: this program starts itself twice more as a `worker`, and `run` watches
//! them.

mod audit;
mod catalogue;
mod crew;
mod exclusion;
mod halt;
mod journal;
mod order;
mod places;
mod report;
mod run;
mod screen;
mod stock;
mod worker;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::audit::ordered;
use crate::catalogue::Catalogue;
use crate::order::Order;
use crate::places::{Doomed, Places};
use crate::run::{Outcome, Run};
use crate::screen::{Colour, Screen};
use crate::worker::Job;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Far longer than the demo takes; a deadlock would show as this timeout.
const TOO_LONG: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        Some((first, job)) if first == "worker" => as_worker(job).await,
        _ => conduct().await,
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn as_worker(args: &[String]) -> Result<bool> {
    worker::work(Job::from_args(args)?).await.map(|()| true)
}

async fn conduct() -> Result<bool> {
    let begun = Instant::now();
    let places = Places::from_env();
    let doomed = Doomed::from_env(&places)?;
    let catalogue = Catalogue::load()?;
    let orders = Order::list()?;
    let mut screen = Screen::new();
    screen.heading(&match places.masters.len() {
        1 => "nestlock: one shop, two processes, one Redis".to_owned(),
        masters => format!("nestlock: one shop, two processes, locks on {masters} masters"),
    })?;
    screen.line(&format!(
        "  {} orders, {} items of which {} are bundles; stock is kept with plain GET and SET",
        orders.len(),
        catalogue.items().len(),
        catalogue.bundles()
    ))?;

    let to_kill = doomed.count();
    screen.heading(&match to_kill {
        0 => "With locks; one process is killed half way".to_owned(),
        masters => format!("With locks; one process and {masters} masters are killed half way"),
    })?;
    let run = Run::new(&places, doomed, &catalogue, &orders);
    let locked = tokio::time::timeout(TOO_LONG, run.locked(&mut screen)).await??;
    screen.heading("The same without locks; nobody is killed, and an order that both take is done twice")?;
    let run = Run::new(&places, Doomed::default(), &catalogue, &orders);
    let free = tokio::time::timeout(TOO_LONG, run.free(&mut screen)).await??;

    screen.heading("The books")?;
    let expected = show_books(&mut screen, &catalogue, &ordered(&catalogue, &orders), &locked, &free)?;
    screen.line("")?;
    let mut good = judge(&mut screen, &expected, orders.len(), &locked, &free)?;
    if places.is_quorum() {
        let (killed, masters) = (locked.masters_killed, places.masters.len());
        screen.verdict(killed == to_kill, &format!("{killed} of {masters} masters were killed meanwhile"))?;
        good &= killed == to_kill;
    }
    screen.line(&format!("\n  {:.1} s in all", begun.elapsed().as_secs_f64()))?;
    Ok(good)
}

/// Prints the table of all items, and returns what should be left of each.
fn show_books(
    screen: &mut Screen,
    catalogue: &Catalogue,
    ordered: &[i64],
    locked: &Outcome,
    free: &Outcome,
) -> Result<Vec<i64>> {
    let heading = format!(
        "  {:<14}{:>8}{:>9}{:>13}{:>13}{:>16}",
        "item", "stock", "ordered", "must remain", "with locks", "without locks"
    );
    screen.line(&screen.paint(Colour::Dim, &heading))?;
    let mut expected = Vec::new();
    for (number, (item, before)) in catalogue.items().iter().enumerate() {
        let remain = before - ordered[number];
        let cell = |found: i64, width: usize| {
            let off = if found == remain { String::new() } else { format!(" ({:+})", found - remain) };
            let colour = if found == remain { Colour::Green } else { Colour::Red };
            screen.paint(colour, &format!("{:>width$}", format!("{found}{off}")))
        };
        let (with, without) = (cell(locked.audit.stock[number], 13), cell(free.audit.stock[number], 16));
        let line = format!("  {item:<14}{before:>8}{:>9}{remain:>13}{with}{without}", ordered[number]);
        screen.line(&line)?;
        expected.push(remain);
    }
    Ok(expected)
}

fn judge(
    screen: &mut Screen,
    expected: &[i64],
    orders: usize,
    locked: &Outcome,
    free: &Outcome,
) -> Result<bool> {
    let (twice, lost) = locked.audit.wrong(expected);
    let (free_twice, free_lost) = free.audit.wrong(expected);
    let once = locked.audit.open == 0 && locked.audit.miscounted == 0;
    let verdicts = [
        (twice == 0 && lost == 0, format!("with locks, {twice} units sold twice and {lost} lost")),
        (
            once,
            format!(
                "{orders} orders, {} not done, {} customers miscounted",
                locked.audit.open, locked.audit.miscounted
            ),
        ),
        (
            locked.rescued,
            "the interrupted order was finished by the other process, each step done once".to_owned(),
        ),
        (locked.reentries > 0, format!("{} times a lock was entered again by its holder", locked.reentries)),
        (locked.locks_left == 0, format!("{} locks left in Redis", locked.locks_left)),
        (
            free_twice + free_lost > 0,
            format!(
                "without locks, {free_twice} units sold twice and {free_lost} lost: this is what the locks prevent"
            ),
        ),
    ];
    for (good, text) in &verdicts {
        screen.verdict(*good, text)?;
    }
    Ok(verdicts.iter().all(|(good, _)| *good))
}
