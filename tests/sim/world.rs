//! One run: the processes and masters are made, the program is carried out, and what is left is checked.

mod faults;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::backend::Backend;
use crate::base::testing::simulation::{Simulation, simulate};
use crate::base::{Events, lock};
use crate::client::connect_all;
use crate::config::Config;
use crate::error::ErrorKind;
use crate::owner::Owner;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::{EventRelay, MasterEvents, Session, Stage};
use crate::sim::allowed::Allowed;
use crate::sim::caller::{Caller, Held};
use crate::sim::dice::Key;
use crate::sim::gate::{self, Process};
use crate::sim::history::{History, Promise, Violation};
use crate::sim::master::SimMaster;
use crate::sim::network::{Between, Network};
use crate::sim::phases::{Phase, Phases};
use crate::sim::program::{FaultKind, NAMES, Op, Program, Setup};
use crate::sim::stream::{self, Cable};
use crate::sim::wire::Link;
use crate::{Locks, Master, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// The pause between two looks at the masters' counts.
const LOOK_AGAIN: Duration = Duration::from_millis(70);

/// The result of a run.
pub(super) struct Outcome {
    pub(super) violation: Option<Violation>,
    /// The lines about what happened, if they were requested.
    pub(super) lines: Vec<String>,
    pub(super) grants: u64,
    /// How many of the grants needed no command, since another owner's hold was passed on.
    pub(super) passed: u64,
    pub(super) commands: u64,
    /// The longest time that a request waited with nobody before it.
    pub(super) longest_wait: Duration,
    pub(super) simulated: Duration,
}

/// Carries out a program. `shown`: whether to record what happens.
pub(super) fn run(program: &Program, shown: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime needs nothing but memory");
    let simulation =
        Simulation { gate: gate::gate_background, time_of_day: gate::time_of_day, chance: gate::chance };
    simulate(Some(simulation));
    gate::set_slept(Duration::ZERO);
    let history = {
        let _inside = runtime.enter();
        Arc::new(History::new(shown))
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let world = World::new(program, history.clone()).await;
            world.play().await;
            history.since_start()
        })
    }));
    if ran.is_err() {
        history.violated(Promise::Sanity, "a panic outside of all tasks");
    }
    drop(runtime);
    simulate(None);
    stream::unplug();
    let violation = history.violation();
    let (lines, grants, passed, commands, longest_wait) = history.take();
    Outcome { violation, lines, grants, passed, commands, longest_wait, simulated: ran.unwrap_or_default() }
}

struct World<'a> {
    program: &'a Program,
    history: Arc<History>,
    network: Arc<Network>,
    processes: Vec<SimProcess>,
    phases: Arc<Phases>,
    allowed: Allowed,
    alarm: Arc<Notify>,
    leaked: Arc<Mutex<Vec<Held>>>,
    /// Holds whose levels most masters do not count, by process and name.
    miscounted: Mutex<BTreeMap<(usize, &'static str), Miscounted>>,
}

struct Miscounted {
    field: String,
    levels: u32,
    since: Instant,
}

struct SimProcess {
    process: Arc<Process>,
    links: Vec<Arc<dyn Between>>,
    session: Arc<Session>,
    locks: Locks,
    /// How many of its callers have not finished.
    callers: Arc<AtomicUsize>,
}

impl<'a> World<'a> {
    async fn new(program: &'a Program, history: Arc<History>) -> World<'a> {
        let network = Arc::new(Network::new(program, history.clone()));
        let alarm = Arc::new(Notify::new());
        let key = Key::new(program.seed).with(4);
        let processes: Vec<_> = (0..program.setup.processes)
            .map(|id| {
                let key = key.with(id as u64);
                Process::new(id, key, program.setup.lateness, program.count_of_names(), alarm.clone())
            })
            .collect();
        let processes = if program.over_streams {
            run_agenda(&network);
            connect_over_streams(program, &network, processes).await
        } else {
            let wired = |process: Arc<Process>| process.clone().enter(|| connect(program, &network, process));
            processes.into_iter().map(wired).collect()
        };
        let (phases, leaked) = (Arc::default(), Arc::default());
        let allowed = program.allowed();
        let world = World {
            program,
            history,
            network,
            processes,
            phases,
            allowed,
            alarm,
            leaked,
            miscounted: Mutex::default(),
        };
        world.history.set_patience(program.patience());
        world.history.set_handoff(program.setup.handoff.min(program.setup.lease / 6), program.setup.lease);
        if world.allowed.calm {
            world.history.set_calm();
        }
        if program.restarts_tokens() {
            world.history.forget_order_of_tokens();
        }
        world
    }

    async fn play(&self) {
        if !self.program.over_streams {
            run_agenda(&self.network);
        }
        self.plan_faults();
        self.spawn_callers();
        let over = self.network.start + self.program.setup.trouble;
        self.wait_until(over).await;
        self.history.note(|| "all faults are over".to_owned());
        self.processes.iter().for_each(|one| one.process.hurry());
        self.phases.begin(Phase::Rest);
        self.rest().await;
        self.history.note(|| "everybody lets go".to_owned());
        self.phases.begin(Phase::Over);
        self.all_end().await;
        lock(&self.leaked).clear();
        // The session is used once more. Otherwise nobody would continue the work that an ended runtime has left.
        for one in self.living().filter(|one| one.process.has_lost_its_runtime()) {
            one.process.enter(|| one.session.ensure_watchdog());
        }
        self.nothing_is_left().await;
    }

    /// Waits until this time, or until something has gone wrong.
    async fn until(&self, at: Instant) {
        if self.history.violation().is_some() {
            return;
        }
        let _ = timeout_at(at, self.alarm.notified()).await;
        for one in &self.processes {
            if let Some(failure) = one.process.failure() {
                self.history.violated(Promise::Sanity, format!("p{}: {failure}", one.process.id));
            }
        }
    }

    fn spawn_callers(&self) {
        for plan in &self.program.callers {
            let one = &self.processes[plan.process];
            let caller = Caller {
                id: plan.id,
                process: plan.process,
                locks: one.locks.clone(),
                session: one.session.clone(),
                history: self.history.clone(),
                phases: self.phases.clone(),
                allowed: self.allowed,
                leaked: self.leaked.clone(),
                is_leaky: AtomicBool::new(false),
            };
            one.callers.fetch_add(1, SeqCst);
            let (callers, alarm) = (one.callers.clone(), self.alarm.clone());
            let (begins, ops) = (self.network.start + plan.begins, plan.ops.clone());
            let work = async move {
                sleep_until(begins).await;
                Owner::new().scope(caller.perform(ops)).await;
                callers.fetch_sub(1, SeqCst);
                alarm.notify_one();
            };
            let task = one.process.clone().enter(|| gate::gate(Box::pin(work)));
            drop(tokio::spawn(task));
        }
    }

    fn living(&self) -> impl Iterator<Item = &SimProcess> {
        self.processes.iter().filter(|one| !one.process.is_dead())
    }

    /// Nothing fails and holds stay as they are: renewed holds must stay, and masters must count the levels that stand.
    async fn rest(&self) {
        let setup = &self.program.setup;
        let quiet = self.network.last_arrival().max(Instant::now());
        let begins = quiet + 10 * setup.node_timeout + 20 * setup.latency + 5 * SECOND;
        self.wait_until(begins).await;
        if self.history.violation().is_some() {
            return;
        }
        // If the runtime of the background has ended, nothing is renewed before another runtime takes the background over.
        let living = self.living().filter(|one| !one.process.has_lost_its_runtime());
        let living: Vec<_> = living.map(|one| one.process.id).collect();
        if let Some(text) = self.history.unnoticed(&living) {
            self.history.violated(Promise::Loss, text);
        }
        let standing = self.history.standing(&living);
        // A loss that no message reports is found by the next renewal.
        let unseen = self.program.has(|kind| matches!(kind, FaultKind::Deletes(..) | FaultKind::Foreign(..)));
        let renewed = if unseen { setup.lease * 2 / 5 } else { Duration::ZERO };
        self.wait_until(begins + (setup.lease * 6 / 5).min(60 * SECOND).max(renewed)).await;
        if self.history.violation().is_some() {
            return;
        }
        let stays = self.history.standing(&living);
        if !self.program.has_op(|op| matches!(op, Op::Close | Op::Force(_)))
            && let Some(lost) = standing.iter().find(|id| !stays.contains(id))
        {
            let texts = self.history.each(&[*lost], |level| {
                format!("{} of p{} is over, though all was well", level.field, level.process)
            });
            if let Some(text) = texts.into_iter().next() {
                self.history.violated(Promise::Renewal, text);
            }
        }
        self.counts_are_right(&stays);
    }

    /// Waits until this time. The alarm also rings when callers finish.
    async fn wait_until(&self, at: Instant) {
        while Instant::now() < at && self.history.violation().is_none() {
            if self.program.edition < 5 {
                self.until(at).await;
                continue;
            }
            self.until(at.min(Instant::now() + LOOK_AGAIN)).await;
            self.quiet_counts_are_right();
        }
    }

    /// Checks the counts in spite of any fault: if a process has had all answers about a hold, most masters count its levels, at the latest
    /// when the commands have run that the verdict did not wait for. Until then two of three may differ: a master to which the command is
    /// still under way, and a master that was full and counts a level that it could not take back.
    fn quiet_counts_are_right(&self) {
        if self.program.runs_what_was_refused() {
            return;
        }
        let setup = &self.program.setup;
        let soon = setup.node_timeout + setup.latency + setup.lateness;
        for one in self.living() {
            for name in NAMES {
                let quiet = one.session.table(|table, _| {
                    let hold = table.entry(name)?.live()?;
                    Some((hold.field.to_string(), hold.at_rest()?))
                });
                let Some((field, levels)) = quiet else {
                    lock(&self.miscounted).remove(&(one.process.id, name));
                    continue;
                };
                let counts: Vec<_> =
                    self.network.masters.iter().map(|master| master.count_of(name, &field)).collect();
                let wrong = counts.iter().filter(|count| count.is_some_and(|count| count != levels)).count();
                if wrong <= counts.len() / 2 {
                    lock(&self.miscounted).remove(&(one.process.id, name));
                    continue;
                }
                let since = self.miscounted_since((one.process.id, name), &field, levels);
                if since.elapsed() >= soon {
                    let text =
                        format!("{field} of {name} has {levels} levels, and the masters count {counts:?}");
                    self.history.violated(Promise::Depth, text);
                }
            }
        }
    }

    /// Returns since when most masters have had another count.
    fn miscounted_since(&self, which: (usize, &'static str), field: &str, levels: u32) -> Instant {
        let mut miscounted = lock(&self.miscounted);
        let known = miscounted.get(&which).filter(|known| known.field == field && known.levels == levels);
        let since = known.map_or_else(Instant::now, |known| known.since);
        miscounted.insert(which, Miscounted { field: field.to_owned(), levels, since });
        since
    }

    fn counts_are_right(&self, standing: &[u64]) {
        let fields = self.history.each(standing, |level| {
            let rests = level.session.table(|table, _| table.entry(NAMES[level.name])?.live()?.at_rest());
            (level.name, level.field.clone(), rests.is_some())
        });
        let mut depths = BTreeMap::new();
        for (name, field, rests) in fields {
            let levels = self.history.levels(|level| level.field == field);
            depths.insert((NAMES[name].to_owned(), field), (levels as u32, rests));
        }
        for ((name, field), (depth, rests)) in depths {
            let mut counts = Vec::new();
            let (mut right, mut young, mut deleted) = (0, 0, false);
            for master in &self.network.masters {
                let held = master.contents().into_iter().find(|(_, other, _)| *other == field);
                let count = held.map(|(_, _, count)| count);
                // A command that was given up and runs after later ones may leave an older count. The field belongs to its owner at any
                // count, and its end deletes it.
                let as_asked = if self.program.setup.reentry.1 { depth } else { 1 };
                let counts_all = count.is_some_and(|count| (as_asked..=depth).contains(&count));
                right += usize::from(counts_all || count.is_some() && !master.is_sure_of(&field));
                let other = master.contents().into_iter().find(|(key, _, _)| *key == name);
                let (is_free, is_young) = (other.is_none(), self.is_young(master));
                // If masters lost their data, a holder that does not know yet that its hold was released by
                // force may be the first to repair it there.
                right += usize::from(
                    other.is_some_and(|(_, other, _)| other != field && self.history.was_forced(&other)),
                );
                young += usize::from(is_free && is_young);
                deleted |= is_free && !is_young && master.has_deleted(&field);
                counts.push(count);
            }
            // 1. The key of a hold is deleted on one of three masters. 2. Another one comes back empty before anybody notices. 3. The hold
            // is not put back on the young master, since an old master that had the hold lacks it now. So the hold stays in doubt until its
            // lease ends.
            if deleted && !rests {
                right += young;
            }
            // A minority may have another count.
            if right <= self.network.masters.len() / 2 {
                let text = format!("{field} of {name} has {depth} levels, and the masters count {counts:?}");
                self.history.violated(Promise::Depth, text);
            }
        }
    }

    /// Returns whether a master has no vote, since it started less than the longest lease ago.
    fn is_young(&self, master: &SimMaster) -> bool {
        master.run().started.is_some_and(|started| started.elapsed() < self.program.setup.longest_lease)
    }

    /// Checks that all callers end in time, which shows that none of them waits for too long.
    async fn all_end(&self) {
        let quiet = self.network.last_arrival().max(Instant::now());
        let limit = quiet
            + SECOND
            + self.program.patience()
            + self.program.network_time() * self.program.callers.len() as u32;
        // Nobody renews a guard that its caller has leaked.
        let limit = if self.program.leaks() { limit + self.program.setup.longest_lease } else { limit };
        let busy = || self.living().map(|one| one.callers.load(SeqCst)).sum::<usize>();
        while busy() > 0 && self.history.violation().is_none() {
            if limit <= Instant::now() {
                let text =
                    format!("{} callers wait {:?} after the last fault", busy(), self.program.patience());
                return self.history.violated(Promise::Liveness, text);
            }
            self.until(limit.min(Instant::now() + SECOND)).await;
            self.history.look_at_waits();
        }
    }

    /// Checks that nothing is left. In a calm run, nothing may be left after a few moments.
    async fn nothing_is_left(&self) {
        let limit = Instant::now() + SECOND + self.program.patience();
        while self.history.violation().is_none() {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            if limit <= Instant::now() {
                return self.history.violated(Promise::Leftovers, left);
            }
            sleep(SECOND / 2).await;
        }
    }

    /// Returns a description of what is left of locks, on masters and in processes.
    fn left(&self) -> String {
        let mut left = String::new();
        for (at, master) in self.network.masters.iter().enumerate() {
            for (key, field, count) in master.contents() {
                left += &format!("m{at} has {field} of {key} with {count}; ");
            }
        }
        for one in self.living() {
            // After its close a session ignores late answers of masters.
            let open = one.session.stage() < Stage::Closed;
            if open && !one.session.table(|table, _| table.is_empty()) {
                left += &format!("p{} has an entry; ", one.process.id);
            }
            if one.links.iter().any(|link| link.subscriptions() > 0) {
                left += &format!("p{} is subscribed; ", one.process.id);
            }
        }
        left
    }
}

fn run_agenda(network: &Arc<Network>) {
    let network = network.clone();
    drop(tokio::spawn(async move { network.agenda.run().await }));
}

fn config(setup: &Setup, process: usize, master: impl Fn(usize) -> Master) -> Config {
    let config = Locks::quorum((0..setup.masters).map(master))
        .lease(setup.lease)
        .restart_delay(if setup.masters > 1 { setup.longest_lease } else { Duration::ZERO })
        .node_timeout(setup.node_timeout)
        .poll_interval(setup.poll_interval)
        .local_handoff(setup.handoff)
        .bare_reentry(setup.reentry.0)
        .confirm_reentry(setup.reentry.1)
        .fair(setup.fair && !(setup.others && process % 2 == 1))
        .check();
    config.expect("the options are good")
}

/// Returns the path by which masters report events to a session that is made after them.
fn events(setup: &Setup) -> (Arc<EventRelay>, Vec<Arc<dyn Events>>) {
    let relay = Arc::new(EventRelay::default());
    let events = (0..setup.masters).map(|master| MasterEvents::of(relay.clone(), master));
    let events = events.collect();
    (relay, events)
}

/// Makes one process as `Builder::connect` does, with a wire to each master.
fn connect(program: &Program, network: &Arc<Network>, process: Arc<Process>) -> SimProcess {
    let (setup, id) = (&program.setup, process.id);
    let config = config(setup, id, |_| Master::memory(&Memory::new()));
    let (relay, events) = events(setup);
    let links: Vec<Arc<Link>> = events
        .iter()
        .enumerate()
        .map(|(master, events)| {
            let events: Weak<dyn Events> = Arc::downgrade(events);
            Link::new(network, id, master, events)
        })
        .collect();
    for link in &links {
        drop(tokio::spawn(gate::gate(Box::pin(link.clone().read()))));
    }
    let masters = links.iter().map(|link| link.clone() as Arc<dyn Backend>).collect();
    let between = links.iter().map(|link| link.clone() as Arc<dyn Between>).collect();
    let quorum = Quorum::new(masters, config.probation());
    let session = Session::new(
        config,
        quorum,
        format!("p{id}"),
        Clock::with(|| gate::slept().as_nanos() as i64),
        events,
    );
    if setup.portable {
        links.iter().for_each(|link| link.make_portable());
    }
    let locks = Locks::over(session.clone(), &relay);
    SimProcess { process, links: between, session, locks, callers: Arc::default() }
}

/// Makes all processes as `Builder::connect` does. Each one tries again until it is connected to most masters.
async fn connect_over_streams(
    program: &Program,
    network: &Arc<Network>,
    processes: Vec<Arc<Process>>,
) -> Vec<SimProcess> {
    let setup = &program.setup;
    let cables = stream::plug(network, processes.len(), program.sealed);
    let mut connecting = Vec::new();
    for (process, cables) in processes.into_iter().zip(cables) {
        process.take_turns();
        let config = config(setup, process.id, |master| Master::server((stream::host(master), 6379)));
        let (relay, events) = events(setup);
        let (done, connected) = oneshot::channel();
        let (history, me) = (network.history.clone(), process.clone());
        let work = async move {
            let masters = loop {
                match connect_all(&config, &events).await {
                    Ok(masters) => break masters,
                    Err(error) if error.kind() == ErrorKind::Unavailable => sleep(SECOND / 10).await,
                    Err(error) => return history.violated(Promise::Errors, format!("connecting: {error}")),
                }
            };
            let links = cables.into_iter().map(|cable: Arc<Cable>| cable as Arc<dyn Between>).collect();
            let (quorum, uuid) = (Quorum::new(masters, config.probation()), format!("p{}", me.id));
            let session =
                Session::new(config, quorum, uuid, Clock::with(|| gate::slept().as_nanos() as i64), events);
            let locks = Locks::over(session.clone(), &relay);
            let _ = done.send(SimProcess { process: me, links, session, locks, callers: Arc::default() });
        };
        let task = process.enter(|| gate::gate(Box::pin(work)));
        drop(tokio::spawn(task));
        connecting.push(connected);
    }
    let mut connected = Vec::new();
    for connecting in connecting {
        connected.extend(connecting.await);
    }
    connected
}
