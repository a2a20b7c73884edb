//! Random calls over stores in this process. Their futures are polled only after they were woken, and then
//! late or never.
//!
//! A request that is forgotten stays forgotten here: nothing else polls it, and leases and poll intervals are
//! long. A run is nearly determined by its seed: what this test draws comes from it, but the order in which a
//! store notifies its clients does not.
//!
//! `FUZZ_FIRST` and `FUZZ_SEEDS` choose other and more seeds; `FUZZ_TRACE` prints what happens.

mod dice;
mod executor;
mod journal;
mod masters;
mod plan;
mod programs;
mod sections;

use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep, timeout};

use self::dice::Dice;
use self::executor::{Executor, Habit};
use self::journal::note;
use self::masters::Masters;
use self::plan::Plan;
use self::programs::{Caller, World};
use self::sections::Place;
use crate::{LockStatus, Locks, Owner};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// So long that no waiter asks earlier by itself.
const POLL_INTERVAL: Duration = Duration::from_secs(3600);

const NAMES: [&str; 2] = ["stock", "order"];

/// Far more than any run needs: the limit ends a run that goes round in circles.
const MOST_POLLS: usize = 20_000;
const MOST_COMMANDS: usize = 50_000;

/// How many more there may be for each second in which others wait for the end of a lease. Each of up to ten callers looks twice a
/// second, and a head of each process asks about once, of each of several masters.
const MORE_PER_SECOND: usize = 50;

struct Run {
    plan: Plan,
    dice: Dice,
    masters: Masters,
    processes: Vec<Process>,
    world: Rc<World>,
    executor: Executor,
    callers: u64,
    /// How many more polls, and commands, there may be because callers had to wait for the ends of leases.
    more: usize,
}

struct Process {
    locks: Locks,
    /// Some callers are children of this owner, to which they leave what they hold at their end.
    family: Owner,
}

impl Run {
    async fn new(seed: u64) -> Run {
        let dice = Dice::new(seed);
        let plan = Plan::draw(&dice);
        note(|| format!("seed {seed}: {plan:?}"));
        let masters = Masters::new(plan.masters, &dice);
        let world = Rc::new(World::new(plan.stay, plan.lease, plan.forces));
        let executor = Executor::new(dice.split());
        let mut run =
            Run { plan, dice, masters, processes: Vec::new(), world, executor, callers: 0, more: 0 };
        for _ in 0..2 + run.dice.roll(2) {
            let process = run.connect().await;
            run.processes.push(process);
        }
        run
    }

    async fn connect(&self) -> Process {
        // The pause is not random, since the random numbers of the crate come from no seed, and differs
        // between processes, which would otherwise ask in step.
        let pause = (50 + self.dice.roll(50) as u32) * MILLISECOND;
        let builder = self.masters.builder().retry_delay(pause..=pause);
        let builder = builder.lease(self.plan.lease);
        let builder = builder.node_timeout(self.plan.node_timeout).poll_interval(POLL_INTERVAL);
        Process { locks: builder.connect().await.unwrap(), family: Owner::new() }
    }

    /// A random series of events.
    async fn trouble(&mut self) {
        let crowd = 2 + self.dice.roll(8);
        for _ in 0..500 {
            match self.dice.roll(40) {
                0..3 if self.executor.len() < crowd => self.arrive(),
                3..22 => drop(self.executor.poll_one()),
                22..27 => yield_now().await,
                27..30 => sleep(self.dice.time(self.plan.stay)).await,
                30 if self.plan.blocks => {
                    let time = self.dice.time(self.plan.lease);
                    note(|| format!("blocked for {time:?}"));
                    advance(time).await;
                }
                31 if self.dice.one_in(4) => self.drop_one(),
                32 => self.take_from_shelf(1),
                33 if self.plan.faults => self.masters.fail(&self.dice, self.plan.longest_stall()),
                34 if self.plan.forces && self.dice.one_in(4) => self.lose(),
                35 if self.plan.restarts && self.dice.one_in(4) => self.restart(),
                36 if self.plan.closes && self.dice.one_in(8) => self.close().await,
                _ => sleep(MILLISECOND).await,
            }
            self.look();
        }
    }

    fn arrive(&mut self) {
        self.callers += 1;
        let (id, process) = (self.callers, self.dice.roll(self.processes.len()));
        let Process { locks, family } = &self.processes[process];
        let name = if self.dice.one_in(4) { NAMES[1] } else { NAMES[0] };
        let place =
            Place { locks: locks.clone(), mutex: locks.mutex(name), process, caller: id, branch: None };
        let caller = Caller { world: self.world.clone(), place, dice: Rc::new(self.dice.split()) };
        let owner = if self.dice.one_in(3) { family.child() } else { Owner::new() };
        let habit = match self.dice.roll(3) {
            0 => Habit::AtOnce,
            _ => Habit::Late { longest: self.plan.lateness },
        };
        self.executor.add(id, habit, owner.scope(caller.program()));
    }

    fn drop_one(&mut self) {
        let gone = self.dice.roll(self.executor.len().max(1));
        let mut at = 0..;
        drop(self.executor.take(|_| at.next() == Some(gone)));
    }

    /// Drops at most this many of the guards that were left on the shelf.
    fn take_from_shelf(&self, most: usize) {
        let taken: Vec<_> = {
            let mut shelf = self.world.shelf.borrow_mut();
            let left = shelf.len().saturating_sub(most);
            shelf.drain(left..).collect()
        };
        drop(taken);
    }

    fn lose(&self) {
        note(|| "the locks are deleted");
        self.masters.lose(&NAMES);
        self.forced();
    }

    fn restart(&self) {
        note(|| "a master comes back empty");
        self.masters.restart();
        if !self.masters.are_several() {
            self.forced();
        }
    }

    /// Ends a process, and starts another one.
    async fn close(&mut self) {
        let at = self.dice.roll(self.processes.len());
        note(|| format!("process {at} is closed"));
        let closing = self.processes[at].locks.clone();
        if self.dice.one_in(2) {
            let _ = timeout(self.dice.time(self.plan.stay), closing.close()).await;
        } else {
            drop(tokio::spawn(async move { closing.close().await }));
        }
        self.processes[at] = self.connect().await;
    }

    /// Notes that the present holds no longer count. Each hold is known to its process before its acquire is
    /// sent.
    fn forced(&self) {
        for process in &self.processes {
            self.world.sections.forced(process.locks.handle.table(|table, _| {
                let entries = NAMES.iter().filter_map(|name| table.entry(name));
                let fields = entries.flat_map(|entry| &entry.holds).map(|hold| hold.field.to_string());
                fields.collect::<Vec<_>>()
            }));
        }
    }

    fn look(&self) {
        // A forced release that waits at a stalled master may run at any time, until a look finds none
        // waiting.
        let waits = self.masters.are_to_force();
        if self.world.forced.replace(waits) || waits {
            self.forced();
        }
        self.world.sections.check();
        assert!(self.executor.polls < MOST_POLLS + self.more, "polled without end: {}", self.shown());
        assert!(
            self.masters.commands() < MOST_COMMANDS + self.more,
            "commands without end: {}",
            self.shown()
        );
    }

    /// Ends the trouble, and checks that the locks are free soon, that nobody waits any more, and that nothing is left.
    async fn settle(&mut self) {
        self.masters.recover();
        self.world.end();
        self.executor.hurry();
        let mut patience = self.plan.patience();
        // These are no longer polled, and what they were granted stands for a lease.
        let frozen = self.freeze();
        if !frozen.is_empty() {
            patience += self.plan.lease;
            self.more += MORE_PER_SECOND * self.plan.lease.as_secs() as usize;
        }
        if self.dice.one_in(4) {
            note(|| "all are dropped");
            drop(self.executor.take(|_| true));
        }
        self.all_end(patience).await;
        // Beside a request that is not polled, `try_lock` finds the lock free only if it waits until that one
        // is passed over. If such requests are in the line, the lock is kept for each of them for a term of a
        // second. A release that is not polled is given up after two node timeouts.
        let frozen_ones = u32::try_from(frozen.len()).unwrap();
        let wait = (10 * self.plan.node_timeout).min(frozen_ones * SECOND) + frozen_ones * SECOND;
        let wait = wait + frozen_ones.min(1) * 2 * self.plan.node_timeout;
        self.are_free(patience, wait).await;
        self.executor.put_back(frozen);
        self.all_end(patience).await;
        self.are_free(patience, Duration::ZERO).await;
        self.world.begin();
    }

    /// Takes out some futures that no other has to wait for.
    fn freeze(&mut self) -> Vec<executor::Driven> {
        if !self.dice.one_in(3) {
            return Vec::new();
        }
        let (dice, sections) = (&self.dice, &self.world.sections);
        let frozen = self.executor.take(|caller| !sections.has(caller) && dice.one_in(3));
        frozen.iter().for_each(|caller| note(|| format!("caller {} is frozen", caller.id)));
        frozen
    }

    /// Polls each future as soon as it is woken, until all are ready.
    async fn all_end(&mut self, patience: Duration) {
        let limit = Instant::now() + patience;
        loop {
            self.take_from_shelf(usize::MAX);
            while self.executor.poll_one().is_some() {
                self.look();
                self.take_from_shelf(usize::MAX);
            }
            if self.executor.len() == 0 {
                return;
            }
            let woken = timeout(limit - Instant::now(), self.executor.woken()).await;
            assert!(woken.is_ok(), "somebody is forgotten: {}", self.shown());
            self.look();
        }
    }

    async fn are_free(&self, patience: Duration, wait: Duration) {
        let limit = Instant::now() + patience;
        // The request that was woken last and is not polled is passed over meanwhile.
        sleep(SECOND).await;
        while !self.masters.are_empty() || self.is_place_left() {
            assert!(Instant::now() < limit, "something is left: {}", self.shown());
            sleep(SECOND).await;
        }
        for process in &self.processes {
            for name in NAMES {
                let asked = process.locks.mutex(name).try_lock().within(wait).owner(&Owner::new()).await;
                let guard = asked.unwrap_or_else(|error| panic!("{error}: {}", self.shown()));
                let guard = guard.unwrap_or_else(|| panic!("{name} is not free: {}", self.shown()));
                guard.release().await.unwrap();
            }
            sleep(SECOND).await;
        }
        assert!(self.masters.are_empty(), "something is left: {}", self.shown());
    }

    /// Returns whether a process is in the line of a lock for which it has no request, polled or not. An
    /// example: 1. A request in the line is dropped. 2. The end of its place is lost on its way, and its
    /// process sends another one after a node timeout. 3. Until then the lock may be handed to that process,
    /// which keeps others out for as long.
    fn is_place_left(&self) -> bool {
        let is_left = |process: &Process, name| {
            let waits = |status: &LockStatus| status.name() == name && status.waiting() > 0;
            let uuid = &process.locks.handle.uuid;
            !process.locks.status().iter().any(waits)
                && self.masters.line(name).iter().any(|field| field.starts_with(uuid))
        };
        self.processes.iter().any(|process| NAMES.iter().any(|name| is_left(process, name)))
    }

    fn shown(&self) -> String {
        let entries = self.processes.iter().flat_map(|process| {
            NAMES.map(|name| process.locks.handle.table(|table, _| format!("{:#?}", table.entry(name))))
        });
        let entries: Vec<String> = entries.collect();
        let (masters, lines) = (self.masters.shown(), NAMES.map(|name| self.masters.line(name)));
        let now = Instant::now();
        format!("{:?}\n{}\n{masters}\nlines {lines:?}\nat {now:?}", self.plan, entries.join("\n"))
    }
}

/// Makes a run, and returns how many locks were granted.
async fn run(seed: u64) -> u64 {
    journal::begin();
    let mut run = Run::new(seed).await;
    for _ in 0..run.plan.rounds {
        run.trouble().await;
        run.settle().await;
    }
    run.world.sections.granted()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_calls_polled_late_exclude_each_other_and_nobody_is_forgotten() {
    let first = number("FUZZ_FIRST").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let seeds = number("FUZZ_SEEDS").unwrap_or(50);
    let (mut granted, mut red) = (0, Vec::new());
    for seed in first..first + seeds {
        let (done, ends) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _done = done;
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.unwrap().block_on(run(seed))
        });
        // Real time, of which a run takes very little. A run in which paused time does not pass would never
        // end.
        let ended = ends.recv_timeout(120 * SECOND);
        assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "seed {seed}: time stands still");
        match thread.join() {
            Ok(grants) => granted += grants,
            Err(_) => red.push(seed),
        }
    }
    assert!(red.is_empty(), "red: {red:?}");
    assert!(granted > 5 * seeds, "{granted} grants are too few to say anything");
}
