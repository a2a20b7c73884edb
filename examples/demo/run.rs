//! One run of the shop: two workers through the whole list, with or without locks.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::Result;
use crate::audit::{Audit, by_customer};
use crate::catalogue::Catalogue;
use crate::crew::{Crew, Event};
use crate::exclusion::{Exclusion, LEASE};
use crate::journal::Journal;
use crate::order::{Order, customer_key, lock_name};
use crate::places::{Doomed, Places};
use crate::report::Report;
use crate::screen::{Colour, Screen};
use crate::stock::stock_key;
use crate::worker::Job;

const NAMES: [&str; 2] = ["A", "B"];

/// The order during which worker A is killed, and the step after which that happens.
struct Kill {
    order: &'static str,
    item: &'static str,
    after: usize,
    steps: usize,
    at: Option<Instant>,
}

impl Kill {
    /// Chooses the first big bundle in the second quarter of the list or later: A and B begin at the two ends, so about half of all orders
    /// are done when A gets there.
    fn choose(catalogue: &Catalogue, orders: &[Order]) -> Result<Kill> {
        let big = |order: &&Order| catalogue.steps(order.item) >= 10;
        let order = orders[orders.len() / 4..].iter().find(big).ok_or("orders.csv: no big bundle")?;
        let steps = catalogue.steps(order.item);
        Ok(Kill { order: order.id, item: order.item, after: steps / 2, steps, at: None })
    }
}

pub(crate) struct Run<'a> {
    places: &'a Places,
    /// Masters that are killed together with worker A.
    doomed: Doomed,
    prefix: String,
    catalogue: &'a Catalogue,
    orders: &'a [Order],
    kill: Option<Kill>,
    done: [usize; 2],
    /// Orders that B finished for A.
    finished: usize,
    /// Whether B has reported that it finished the order during which A was killed.
    rescued: bool,
    pub(crate) reentries: u64,
    masters_killed: usize,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) audit: Audit,
    /// Whether B finished the order during which A was killed.
    pub(crate) rescued: bool,
    /// The number of locks whose keys still exist.
    pub(crate) locks_left: usize,
    pub(crate) reentries: u64,
    pub(crate) masters_killed: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        places: &'a Places,
        doomed: Doomed,
        catalogue: &'a Catalogue,
        orders: &'a [Order],
    ) -> Run<'a> {
        Run {
            places,
            doomed,
            prefix: String::new(),
            catalogue,
            orders,
            kill: None,
            done: [0, 0],
            finished: 0,
            rescued: false,
            reentries: 0,
            masters_killed: 0,
        }
    }

    /// Returns a run with locks, in which A is killed halfway.
    pub(crate) async fn locked(mut self, screen: &mut Screen) -> Result<Outcome> {
        self.prefix = format!("demo:{}:locked:", std::process::id());
        self.kill = Some(Kill::choose(self.catalogue, self.orders)?);
        let exclusion = Exclusion::locked(self.places, &self.prefix).await?;
        if self.places.is_quorum() {
            self.await_votes(screen, &exclusion).await?;
        }
        self.go(screen, &exclusion, true).await
    }

    /// Returns a run without locks, in which no process is killed.
    pub(crate) async fn free(mut self, screen: &mut Screen) -> Result<Outcome> {
        self.prefix = format!("demo:{}:free:", std::process::id());
        let exclusion = Exclusion::none(&self.prefix);
        self.go(screen, &exclusion, false).await
    }

    async fn await_votes(&self, screen: &mut Screen, exclusion: &Exclusion) -> Result<()> {
        let begun = Instant::now();
        exclusion.ready().await?;
        screen.line(&format!(
            "  The {} masters granted a first lock after {:.1} s: one that was just started has no vote for a lease, {LEASE:?}",
            self.places.masters.len(),
            begun.elapsed().as_secs_f64()
        ))
    }

    async fn go(mut self, screen: &mut Screen, exclusion: &Exclusion, locked: bool) -> Result<Outcome> {
        let journal = Journal::open(&self.places.books, &self.prefix).await?;
        self.fill_shelves(&journal).await?;
        screen.new_bars();
        let worked = self.work(screen, exclusion, locked).await;
        let outcome = match worked {
            Ok(()) => self.outcome(&journal).await,
            Err(error) => Err(error),
        };
        journal.clear().await?;
        exclusion.close().await?;
        outcome
    }

    async fn fill_shelves(&self, journal: &Journal) -> Result<()> {
        for (item, count) in self.catalogue.items() {
            journal.store(&stock_key(item), *count).await?;
        }
        for customer in by_customer(self.orders).keys() {
            journal.store(&customer_key(customer), 0).await?;
        }
        Ok(())
    }

    async fn work(&mut self, screen: &mut Screen, exclusion: &Exclusion, locked: bool) -> Result<()> {
        let mut crew = Crew::new();
        for name in NAMES {
            let halt =
                self.kill.as_ref().filter(|_| name == "A").map(|kill| (kill.order.to_owned(), kill.after));
            let (name, places, prefix) = (name.to_owned(), self.places.clone(), self.prefix.clone());
            crew.start(&Job { name, places, prefix, locked, halt })?;
        }
        let mut at_work = NAMES.len();
        let mut redraw = interval(Duration::from_millis(50));
        redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while at_work > 0 {
            tokio::select! {
                event = crew.next() => match event? {
                    Event::Reported(worker, report) => self.handle(worker, report, screen, exclusion, &mut crew).await?,
                    Event::Ended(worker) => {
                        at_work -= 1;
                        if !crew.succeeded(worker).await? && !self.killed(worker) {
                            return Err(format!("worker {} failed", NAMES[worker]).into());
                        }
                    }
                },
                _ = redraw.tick() => self.draw(screen)?,
            }
        }
        self.draw(screen)
    }

    fn killed(&self, worker: usize) -> bool {
        worker == 0 && self.kill.as_ref().is_some_and(|kill| kill.at.is_some())
    }

    fn draw(&self, screen: &mut Screen) -> Result<()> {
        let note = |worker| if self.killed(worker) { Some("killed") } else { None };
        let bars = [0, 1].map(|worker| (NAMES[worker], self.done[worker], note(worker)));
        screen.bars(&bars, self.orders.len())
    }

    async fn handle(
        &mut self,
        worker: usize,
        report: Report,
        screen: &mut Screen,
        exclusion: &Exclusion,
        crew: &mut Crew,
    ) -> Result<()> {
        match report {
            Report::Done { .. } => self.done[worker] += 1,
            Report::Finished { order, before, now } => {
                self.done[worker] += 1;
                self.finished += 1;
                self.report_rescue(&order, before, now, screen)?;
            }
            Report::Inside { .. } => self.strike(screen, exclusion, crew).await?,
            Report::Lost { order } => {
                screen.line(&format!("  {} lost a lock in order {order}, tries again", NAMES[worker]))?;
            }
            Report::Bye { reentries } => self.reentries += reentries,
        }
        Ok(())
    }

    async fn strike(&mut self, screen: &mut Screen, exclusion: &Exclusion, crew: &mut Crew) -> Result<()> {
        self.draw(screen)?;
        let Some(kill) = &mut self.kill else { return Ok(()) };
        crew.kill(0).await?;
        kill.at = Some(Instant::now());
        self.masters_killed = self.doomed.kill()?;
        let lease = exclusion.remaining_lease(&lock_name(kill.order)).await?.unwrap_or_default();
        screen.line("")?;
        screen.line(&screen.paint(
            Colour::Yellow,
            &format!(
                "  A is killed (SIGKILL) in the middle of order {}, a {}: {} of {} steps are done.",
                kill.order, kill.item, kill.after, kill.steps
            ),
        ))?;
        screen.line(&format!(
            "  It leaves its locks behind; their leases end in {:.1} s.",
            lease.as_secs_f64()
        ))?;
        if self.masters_killed > 0 {
            let text = format!(
                "  {} of the {} masters are killed too. The others are a majority: the shop goes on.",
                self.masters_killed,
                self.places.masters.len()
            );
            screen.line(&screen.paint(Colour::Yellow, &text))?;
        }
        screen.line("")
    }

    /// Prints the order during which A was killed; other orders that A had begun are only counted.
    fn report_rescue(&mut self, order: &str, before: usize, now: usize, screen: &mut Screen) -> Result<()> {
        let Some(kill) = &self.kill else { return Ok(()) };
        let Some(at) = kill.at.filter(|_| kill.order == order) else { return Ok(()) };
        self.rescued = before > 0 && before + now == kill.steps;
        let text = format!(
            "  B came to order {order} {:.1} s after the kill, and finished it: {before} steps were done, it did the other {now}.",
            at.elapsed().as_secs_f64()
        );
        screen.line("")?;
        screen.line(&screen.paint(Colour::Yellow, &text))?;
        screen.line("")
    }

    async fn outcome(&self, journal: &Journal) -> Result<Outcome> {
        let audit = Audit::read(self.catalogue, self.orders, journal).await?;
        let rescued = match &self.kill {
            Some(kill) => self.rescued && journal.done_by(kill.order, NAMES[1]).await?,
            None => false,
        };
        let locks_left = if self.kill.is_some() { self.locks_left().await? } else { 0 };
        let (reentries, masters_killed) = (self.reentries, self.masters_killed);
        Ok(Outcome { audit, rescued, locks_left, reentries, masters_killed })
    }

    /// Waits for the killed process's locks, which end with their leases and not before.
    async fn locks_left(&self) -> Result<usize> {
        let mut masters = Vec::new();
        for master in &self.places.masters[..self.places.masters.len() - self.masters_killed] {
            masters.push(Journal::open(master, &self.prefix).await?);
        }
        loop {
            let mut left = 0;
            for master in &masters {
                left += master.keys("lock:").await?.len();
            }
            let waited = self.kill.as_ref().and_then(|kill| kill.at).map(|at| at.elapsed());
            if left == 0 || waited.is_none_or(|waited| waited > LEASE * 2) {
                return Ok(left);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
