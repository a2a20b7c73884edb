//! Drives an entry by random events beside a model of the server. Checks what must hold in every order of
//! events, and that no request is forgotten.

use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use self::master::{Listener, Master};
use super::*;
use crate::base::meter::Sample;
use crate::base::{Drift, Lease, MasterSet, Moment, Outcome, Spread};
use crate::error::Loss;
use crate::owner::OwnerEnds;
use crate::table::admission::{AcquireParams, Admission, Refusal};
use crate::table::effects::{Effects, LogEvent};
use crate::table::grant::{Grantee, NewLevel, NotHeld};
use crate::table::level::Grant;
use crate::table::numbers::Numbers;
use crate::table::outcome::{LateAnswer, Meaning};
use crate::table::timing::{Timing, WarnAfter};
use crate::wire::{Action, Call, Pending, Reply};

const DRIFT: Drift = Drift { factor: 0.0, slack: Duration::ZERO };
const LEASE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Nobody;

impl OwnerEnds for Nobody {
    fn owner_ended(&self, _: &Arc<str>, _: &Owner) {}
}

/// Set by a wake: the executor would poll the future.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

struct Asker {
    id: u64,
    flag: Arc<Flag>,
    nap: Option<Instant>,
    lease: Lease,
    fixed: bool,
    limit: Option<Duration>,
    single_attempt: bool,
    asking: Option<Pending>,
    /// Whether it has been polled before.
    known: bool,
}

/// What a request asks for.
#[derive(Clone, Copy)]
struct Options {
    lease: Duration,
    fixed: bool,
    limit: Option<Duration>,
    single_attempt: bool,
}

/// What the network does with a command whose answer nobody has read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Net {
    /// The answer is read. The command runs now, unless it has run.
    Answers,
    /// The command runs now, unless it has run, and its answer is lost.
    AnswerLost,
    /// The command has not run, and may run later.
    CommandLost,
    /// The command was refused before it ran.
    Refused,
}

struct Kept {
    grant: Arc<Grant>,
    /// The level's owner at its grant, if the level was one of several branches of that owner.
    branch_of: Option<Owner>,
}

impl Deref for Kept {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

struct World {
    random: StdRng,
    entry: LockEntry,
    numbers: Numbers,
    master: Master,
    now: Instant,
    timing: Timing,
    askers: Vec<Asker>,
    guards: Vec<Kept>,
    /// The commands of guards and of the background that are under way; an asker keeps its own.
    flight: Vec<Pending>,
    /// Commands without an answer, which may still run.
    late: Vec<Pending>,
    /// The answers to commands that have run, by command number, until somebody reads them.
    ran: BTreeMap<u64, Reply>,
    owners: Vec<Owner>,
    faults: bool,
    granted: usize,
    taken: usize,
    /// Holds with a command that ran after it was given up: their count may be wrong until the next settle.
    stale: Vec<u64>,
    /// The samples that the entry has recorded.
    samples: Vec<Sample>,
    /// Whether levels may be granted without a command; the value says whether the masters are connected.
    nests: Option<bool>,
    refuses: bool,
    hints_refused: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let now = Instant::now();
        let session: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
        let keys = Arc::new(Keys::new("", "stock"));
        let position = Position { session, name: keys.name.clone() };
        let lease = Lease::new("lease", LEASE, DRIFT).unwrap();
        let (patience, retry) = (Duration::from_secs(1), Duration::from_millis(500));
        let handoff = Duration::ZERO;
        let timing = Timing {
            masters: 1,
            lease,
            drift: DRIFT,
            patience,
            retry,
            epoch: now,
            handoff,
            warn_after: Some(WarnAfter { first: LEASE, again: LEASE }),
            line: None,
        };
        let roots = [Owner::new(), Owner::new()];
        let owners =
            roots.iter().flat_map(|root| [root.clone(), root.child(), root.child(), root.child().child()]);
        World {
            random: StdRng::seed_from_u64(seed),
            entry: LockEntry::new(keys, position, timing),
            numbers: Numbers::default(),
            master: Master::default(),
            now,
            timing,
            askers: Vec::new(),
            guards: Vec::new(),
            flight: Vec::new(),
            late: Vec::new(),
            ran: BTreeMap::new(),
            owners: owners.collect(),
            faults: true,
            granted: 0,
            taken: 0,
            stale: Vec::new(),
            samples: Vec::new(),
            nests: None,
            refuses: false,
            hints_refused: false,
        }
    }

    /// Lets a hold pass on for this long after its grant.
    fn passes_on_for(&mut self, longest: Duration) {
        self.timing.handoff = longest;
        self.entry.timing = Arc::new(self.timing);
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, slept: Duration::ZERO }
    }

    fn number(&mut self) -> u64 {
        self.numbers.next()
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random.random_range(0..sides)
    }

    fn run(&mut self, pending: &Pending) -> Reply {
        if let Some(reply) = self.ran.remove(&pending.command_id) {
            return reply;
        }
        if !self.entry.hold(pending.hold).is_some_and(|hold| hold.under_way(pending.command_id)) {
            self.stale.push(pending.hold);
        }
        self.master.run(pending, self.now)
    }

    fn arrive(&mut self) {
        if self.askers.len() > 5 {
            return;
        }
        let (who, bare) = (self.dice(self.owners.len()), self.dice(2) == 0);
        // A `run` asks as a child of its owner.
        let owner = if bare { self.owners[who].clone() } else { self.owners[who].child() };
        let fixed = self.dice(4) == 0;
        let asked = if fixed { Duration::from_millis(100 * (1 + self.dice(600) as u64)) } else { LEASE };
        let limit = (self.dice(8) == 0).then(|| Duration::from_secs(1 + self.dice(20) as u64));
        let single_attempt = self.dice(4) == 0;
        self.begin(owner, bare, Options { lease: asked, fixed, limit, single_attempt });
    }

    /// A request's first poll.
    fn begin(&mut self, owner: Owner, bare: bool, options: Options) {
        let plain = !bare && !options.fixed && options.limit.is_none();
        let here = if plain && self.nests.is_some() { self.nests_here(&owner) } else { None };
        if here.is_some_and(|kept| kept) {
            return;
        }
        let (id, guards) = (self.number(), self.guards.len());
        let request = Waiter::new(id, owner, bare, self.now);
        if self.entry.enter_alone(request.taking(!options.fixed)).is_err() {
            return;
        }
        let Options { lease, fixed, limit, single_attempt } = options;
        let (lease, flag) = (Lease::new("lease", lease, DRIFT).unwrap(), Arc::<Flag>::default());
        self.askers.push(Asker {
            id,
            flag,
            nap: None,
            lease,
            fixed,
            limit,
            single_attempt,
            asking: None,
            known: false,
        });
        self.poll(self.askers.len() - 1);
        assert!(here.is_none() || self.guards.len() > guards, "granted by `nest`, but not by its queue");
    }

    /// Grants a `run` without a visit, if possible. Returns whether that grant is kept; if not, the request
    /// goes through the queue, which has to grant it as well.
    fn nests_here(&mut self, owner: &Owner) -> Option<bool> {
        let (connected, at, due) = (self.nests == Some(true), self.at(), self.entry.due());
        let granted = self.entry.nest(owner, false, &self.numbers, || connected.then_some(at))?;
        assert_eq!(self.entry.due(), due, "a nested grant moved the next look");
        let keeps = self.dice(2) == 0;
        match keeps {
            true => {
                self.guards.push(Kept { grant: granted, branch_of: None });
                self.samples.push(Sample::Nested);
                (self.granted, self.taken) = (self.granted + 1, self.taken + 1);
            }
            false => assert!(self.entry.unnest(&granted, at).is_some(), "it is the last level"),
        }
        Some(keeps)
    }

    /// Polls a request that was woken, or whose timer has come.
    fn poll(&mut self, at: usize) {
        let (moment, number) = (self.at(), self.number());
        let asker = &mut self.askers[at];
        asker.flag.0.store(false, SeqCst);
        asker.nap = asker.nap.filter(|nap| *nap > moment.now);
        let (id, waker) = (asker.id, Waker::from(asker.flag.clone()));
        let _before = self.entry.polled(id, &waker, moment.now);
        if asker.asking.is_some() {
            return;
        }
        let (connected, nests) = (self.nests == Some(true), self.nests.is_some());
        let connected = || connected;
        let ask = AcquireParams {
            new: NewLevel {
                fixed: asker.fixed,
                max_hold: asker.limit,
                ..NewLevel::watched(number, asker.lease)
            },
            may_nest_locally: nests.then_some(&connected as &dyn Fn() -> bool),
            refuses: self.refuses,
            hints_refused: self.hints_refused,
            single_attempt: asker.single_attempt,
            takes_over: std::mem::replace(&mut asker.known, true),
            line: self.timing.line,
            ..AcquireParams::plain(number, asker.lease)
        };
        let turn = self.entry.admit(id, ask, moment);
        if asker.single_attempt && matches!(turn, Admission::Wait(_)) {
            self.entry.wake_on_command_end(&waker);
        }
        match turn {
            Admission::Ask(pending) => asker.asking = Some(pending),
            Admission::Granted(grant, spent) => {
                // The hold of another owner passed on to this one.
                self.askers.remove(at);
                let branch_of = spent.branch.then(|| spent.owner.clone());
                self.guards.push(Kept { grant, branch_of });
                (self.granted, self.taken) = (self.granted + 1, self.taken + 1);
            }
            Admission::Refused(_) if asker.single_attempt => self.go(at),
            Admission::Refused(until) => {
                self.entry.schedule_wait_report(id, Location::caller(), moment.now);
                asker.nap = until;
                assert!(asker.nap.is_none_or(|nap| nap > moment.now), "a nap in the past would spin");
            }
            Admission::Wait(until) => {
                let soon = moment.now + Duration::from_millis(500);
                asker.nap = Some(until.filter(|t| *t > moment.now).unwrap_or(soon).min(soon));
                assert!(asker.nap.is_none_or(|nap| nap > moment.now), "a nap in the past would spin");
            }
            Admission::Yield => asker.nap = None,
            Admission::Lost(_) | Admission::Unfenced | Admission::Ambiguous => self.go(at),
        }
        self.wake();
    }

    /// A request is dropped, or ends without a grant.
    fn go(&mut self, at: usize) {
        let asker = self.askers.remove(at);
        if let Some(pending) = asker.asking {
            self.entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), self.at());
            if self.ran.remove(&pending.command_id).is_none() {
                self.late.push(pending);
            }
        }
        let _gone = self.entry.leave_queue(asker.id, self.now);
        self.wake();
    }

    fn is_ready(&self, at: usize) -> bool {
        let asker = &self.askers[at];
        asker.flag.0.load(SeqCst) || asker.nap.is_some_and(|nap| nap <= self.now)
    }

    /// The answer to an asker's command arrives, and the asker is polled.
    fn answer(&mut self, at: usize) {
        let net = match self.faults && self.dice(10) == 0 {
            false => Net::Answers,
            true if self.dice(2) == 0 => Net::AnswerLost,
            true => Net::CommandLost,
        };
        self.answer_by(at, net);
    }

    fn answer_by(&mut self, at: usize, net: Net) {
        let Some(pending) = self.askers[at].asking.take() else { return };
        let (moment, id) = (self.at(), self.askers[at].id);
        match net {
            Net::Answers => match self.run(&pending) {
                reply @ Reply::Busy(left, _) => {
                    let until = pending.sent + left + STEP;
                    self.entry.conclude(&pending, Ok(&reply), Spread::default(), moment);
                    self.entry.refused(id, Refusal::until(until));
                }
                Reply::Gone => {
                    self.entry.back_to_waiting(id);
                    self.entry.conclude(&pending, Ok(&Reply::Gone), Spread::default(), moment);
                }
                _ => return self.grant(at, &pending),
            },
            _ => {
                let pause = self.now + Duration::from_millis(100);
                self.fails(&pending, net);
                match pending.call.action.creates() && net != Net::Refused {
                    true => self.entry.pause_request(id, pause),
                    false => self.entry.put_to_sleep(id, pause),
                }
            }
        }
        if self.askers[at].single_attempt {
            return self.go(at);
        }
        self.poll(at);
    }

    /// Nobody reads an answer to the command.
    fn fails(&mut self, pending: &Pending, net: Net) {
        let outcome = if net == Net::Refused { Outcome::NotRun } else { Outcome::Unknown };
        match net {
            Net::AnswerLost => drop(self.run(pending)),
            Net::CommandLost => self.late.push(pending.clone()),
            Net::Answers | Net::Refused => {}
        }
        self.entry.conclude(pending, Err(outcome), Spread::default(), self.at());
    }

    fn grant(&mut self, at: usize, pending: &Pending) {
        let (moment, level) = (self.at(), self.number());
        let asker = &self.askers[at];
        let new = NewLevel {
            level,
            lease: asker.lease,
            fixed: asker.fixed,
            max_hold: asker.limit,
            at_least: None,
            token: None,
        };
        match self.entry.granted(&Grantee::Waiter(asker.id), pending, &new, Spread::default(), moment) {
            Ok((grant, request)) => {
                self.askers.remove(at);
                self.granted += 1;
                let branch_of = request.branch.then_some(request.owner);
                self.guards.push(Kept { grant, branch_of });
                self.wake();
            }
            Err(_) => self.poll(at),
        }
    }

    fn release(&mut self) {
        if self.guards.is_empty() {
            return;
        }
        // Mostly the last one, as nested calls do.
        let last = self.guards.len() - 1;
        let at = if self.dice(4) == 0 { self.dice(last + 1) } else { last };
        let sends = self.dice(2) == 0;
        self.release_by(at, sends);
    }

    /// Releases a guard: it either sends the command itself or is dropped.
    fn release_by(&mut self, at: usize, sends: bool) {
        let guard = self.guards.remove(at);
        let (moment, due) = (self.at(), self.entry.due());
        if self.nests.is_some() && self.entry.unnest(&guard, moment).is_some() {
            assert_eq!(self.entry.due(), due, "a nested release moved the next look");
            return;
        }
        let command_id = sends.then(|| self.number());
        if let Continue(pending) = self.entry.leave(guard.hold, guard.level, command_id, moment) {
            self.flight.push(pending);
        }
        self.wake();
    }

    /// A command of a guard or of the background is answered, or fails.
    fn arrives(&mut self) {
        if self.flight.is_empty() {
            return;
        }
        let at = self.dice(self.flight.len());
        let net = match self.faults && self.dice(8) == 0 {
            false => Net::Answers,
            true => [Net::AnswerLost, Net::CommandLost, Net::Refused][self.dice(3)],
        };
        self.arrives_by(at, net);
    }

    fn arrives_by(&mut self, at: usize, net: Net) {
        let pending = self.flight.remove(at);
        let moment = self.at();
        if net == Net::Answers {
            let reply = self.run(&pending);
            self.entry.conclude(&pending, Ok(&reply), Spread::default(), moment);
        } else {
            self.fails(&pending, net);
        }
        self.wake();
    }

    /// Does what the background task does: it looks when something is due, until nothing is. A look at each
    /// step would hide faults that only a look repairs.
    fn check(&mut self) {
        // One look passes over at most one head, and each hold has few things to do.
        for _ in 0..self.entry.queue.len() + 2 * self.entry.holds.len() + 1 {
            if self.entry.due().is_none_or(|due| due > self.now) {
                return;
            }
            let commands = self.entry.check(self.at(), MasterSet::NONE, &self.numbers);
            self.flight.extend(commands);
            self.wake();
        }
        if self.entry.due().is_none_or(|due| due > self.now) {
            return;
        }
        panic!("due again and again: {:#?}", self.entry);
    }

    /// The server reads the subscription; this process receives the confirmation and the messages.
    fn confirm(&mut self) {
        self.wake();
        self.subscribes();
        self.confirmed();
        while self.master.messages > 0 {
            self.message();
        }
    }

    /// The server reads the subscription of this process.
    fn subscribes(&mut self) {
        if self.master.listener == Listener::Asks {
            self.master.listener = Listener::Unconfirmed;
        }
    }

    fn confirmed(&mut self) {
        if self.master.listener == Listener::Unconfirmed {
            self.master.listener = Listener::Listens;
            self.entry.subscribed(0, self.at());
            self.wake();
        }
    }

    fn message(&mut self) {
        self.master.messages -= 1;
        self.entry.message(0, self.now);
        self.wake();
    }

    /// The connection for messages is replaced.
    fn unsubscribed(&mut self) {
        self.master.messages = 0;
        if self.master.listener != Listener::None {
            self.master.listener = Listener::Asks;
        }
        self.entry.unsubscribed(0, self.at());
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(on) = self.entry.subscription_change(self.now) {
            self.master.listener = if on { Listener::Asks } else { Listener::None };
            if !on {
                self.master.messages = 0;
            }
        }
        let out = self.entry.out.take().unwrap_or_default();
        out.wake.into_iter().for_each(Waker::wake);
        self.samples.extend(out.log.into_iter().filter_map(samples::sample));
    }
}

mod answers;
mod ends;
mod heads;
mod late;
mod line;
mod master;
mod messages;
mod nested;
mod offers;
mod runs;
mod samples;
mod scopes;
mod stragglers;
mod subscriptions;
mod turns;
mod waits;
mod wakes;

impl World {
    /// An acquire whose hold this process no longer knows.
    fn bygone(&self) -> Pending {
        let action = Action::Acquire { count: 1, lease: self.timing.lease };
        let (field, masters) = ("me:7".into(), MasterSet::ALL);
        let (sent, repeated, fence) = (self.now, false, None);
        let call = Call {
            keys: self.entry.keys.clone(),
            field,
            action,
            fence,
            sharded: false,
            report_holder: false,
            from: None,
            end: Default::default(),
            line: None,
        };
        Pending { hold: 7, command_id: 7, call, masters, repeated, sent }
    }
}

#[test]
fn what_a_master_that_is_away_may_have_waits_for_its_return() {
    let mut world = World::new(1);
    let (pending, timing) = (world.bygone(), world.timing);
    world.entry.straggled(&pending, 2, LateAnswer::Done, world.now);
    let asked = |world: &mut World, away| {
        let commands = world.entry.check(world.at(), away, &world.numbers);
        commands.iter().map(|pending| pending.masters).collect::<Vec<_>>()
    };
    for _ in 0..8 {
        assert_eq!(asked(&mut world, MasterSet::first(3)), []);
        world.now += timing.lease.duration() / 20;
    }
    world.entry.orphans.retry(2, world.now);
    // The end is due, and some time has passed since the last look.
    world.now += timing.lease.duration() / 20;
    assert_eq!(asked(&mut world, MasterSet::first(2)), [MasterSet::one(2)]);
}

/// In this order: 1. What is left on a master is being ended there. 2. The master gets another connection, or
/// a late grant runs there. 3. The answer to the end arrives.
#[test]
fn what_happens_on_a_master_while_something_is_ended_there_is_not_forgotten() {
    let mut world = World::new(1);
    let bygone = world.bygone();
    world.entry.straggled(&bygone, 2, LateAnswer::Done, world.now);
    let asked = |world: &mut World| {
        world.now += Duration::from_millis(20);
        world.entry.check(world.at(), MasterSet::NONE, &world.numbers)
    };
    let failed = Spread { remains: MasterSet::one(2), ..Spread::default() };
    for (again, spread) in [(false, failed), (true, Spread::default())] {
        let [end] = &asked(&mut world)[..] else { panic!("it is due") };
        match again {
            true => world.entry.straggled(&bygone, 2, LateAnswer::Done, world.now),
            false => world.entry.orphans.retry(2, world.now),
        }
        world.entry.conclude(end, Ok(&Reply::Done), spread, world.at());
    }
    let [end] = &asked(&mut world)[..] else { panic!("it is due") };
    world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.entry.is_empty());
}

/// The acquire was sent to the master again, with the text of its script, after the end of the hold.
#[test]
fn what_a_master_has_granted_after_the_end_is_ended_there() {
    let mut world = World::new(1);
    let (pending, at) = (world.bygone(), world.at());
    let entry = &mut world.entry;
    for (late, ends) in [(LateAnswer::Missing, 0), (LateAnswer::Unsent, 0), (LateAnswer::Done, 1)] {
        entry.straggled(&pending, 2, late, at.now);
        let commands = entry.check(at, MasterSet::NONE, &Numbers::default());
        assert_eq!(commands.len(), ends, "{late:?}");
        for end in commands {
            assert_eq!((end.call.action, end.masters), (Action::END, MasterSet::one(2)));
            assert_eq!(entry.conclude(&end, Ok(&Reply::Done), Spread::default(), at), Meaning::Done);
        }
        assert!(entry.is_empty());
    }
}

/// What is left is looked at in steps. If nothing was left for a time, the next one is looked at as soon as
/// it is due.
#[test]
fn what_is_left_on_a_master_is_ended_at_once_where_nothing_was_left_before() {
    let mut world = World::new(1);
    let (pending, at) = (world.bygone(), world.at());
    for _ in 0..2 {
        world.entry.straggled(&pending, 2, LateAnswer::Done, at.now);
        let [end] = &world.entry.check(at, MasterSet::NONE, &world.numbers)[..] else { panic!("it is due") };
        world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), at);
        assert!(world.entry.is_empty());
        world.entry.reset();
    }
}

/// The memory of a held lock, beside its names. A part that most locks never have is behind a pointer.
#[test]
fn a_held_lock_at_rest_takes_no_more_than_this() {
    let sizes = [size_of::<LockEntry>(), size_of::<Hold>(), size_of::<Level>(), size_of::<Grant>()];
    assert!(sizes.iter().zip([168, 336, 64, 112]).all(|(size, most)| *size <= most), "{sizes:?}");
}

/// Function calls move a request, so a larger one costs more.
#[test]
fn a_request_takes_no_more_than_this() {
    assert!(size_of::<Waiter>() <= 128, "{}", size_of::<Waiter>());
}
