//! Runs the model through all orders of a few events, breadth first, so that the first path to a fault is a
//! shortest one. A path is data: its printed text can be pasted into a test and run again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// One event. Requests, guards and commands are named by their place among the existing ones, the oldest
/// first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A request of this kind begins, and is polled.
    Begins(u8),
    /// A request that was woken, or whose timer has come, is polled.
    Polled(u8),
    /// The command of a request runs. Nobody reads the answer yet.
    Runs(u8),
    /// The command of a request is over for that request, in this way.
    Ends(u8, Net),
    /// A request is dropped.
    Dropped(u8),
    /// A guard sends its release.
    Released(u8),
    /// A guard is dropped.
    Left(u8),
    /// A command of a guard or of the background runs. Nobody reads the answer yet.
    CommandRuns(u8),
    /// A command of a guard or of the background is over for its sender, in this way.
    CommandEnds(u8, Net),
    /// A command that its sender has given up runs.
    RunsLate(u8),
    /// The server reads the subscription.
    Subscribes,
    /// The confirmation of the subscription arrives.
    Confirmed,
    /// A message arrives.
    Message,
    /// The background looks at what is due.
    Looks,
    /// Time passes until the next moment at which something may happen by itself.
    Passes,
    /// Another process takes the free lock, for a while.
    Taken,
    /// That process releases it.
    Freed,
    /// Somebody deletes the key.
    Deleted,
    /// The connection for messages is replaced.
    Unsubscribed,
    /// The connection for commands is replaced.
    Reconnected,
    /// The last scope of this owner ends.
    OwnerEnds(u8),
}

/// What a request asks for. The owner is given by its place in [`World::owners`]; `bare` is a `lock`,
/// otherwise it is a `run`, whose owner is a child of that one.
#[derive(Clone, Copy)]
struct Kind {
    owner: usize,
    bare: bool,
    options: Options,
}

const PLAIN: Options = Options { lease: LEASE, fixed: false, limit: None, single_attempt: false };
const ONCE: Options = Options { single_attempt: true, ..PLAIN };
const FIXED: Options = Options { lease: Duration::from_secs(1), fixed: true, ..PLAIN };

const fn lock(owner: usize) -> Kind {
    Kind { owner, bare: true, options: PLAIN }
}

const fn run(owner: usize) -> Kind {
    Kind { bare: false, ..lock(owner) }
}

/// What may happen on a path.
#[derive(Clone, Copy)]
struct Scope {
    /// The steps that have happened before; another scope explores their orders.
    from: &'static [Step],
    kinds: &'static [Kind],
    /// How many requests there are in all, of any kind.
    requests: usize,
    /// How many requests are dropped.
    drops: usize,
    /// How many faults of the network may happen; a step of `trouble` counts as one.
    faults: usize,
    trouble: &'static [Step],
    /// How long after its grant a hold passes on.
    handoff: Duration,
}

/// How far a path has used up what its scope has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    requests: usize,
    drops: usize,
    faults: usize,
    /// Somebody has deleted the key.
    tampered: bool,
    /// A command that makes a field has run after its sender gave it up: the field may stand for a lease.
    late: bool,
}

/// A world, and what its path has used up.
struct Walk {
    world: World,
    scope: Scope,
    spent: Spent,
    /// All owners by how they print, with names that are the same on every path.
    names: HashMap<String, String>,
}

impl Walk {
    fn new(scope: Scope) -> Walk {
        let mut world = World::new(0);
        world.faults = false;
        world.passes_on_for(scope.handoff);
        let names = world.owners.iter().enumerate();
        let names = names.map(|(at, owner)| (format!("{owner:?}"), format!("owner {at}"))).collect();
        let mut walk = Walk { world, scope, spent: Spent::default(), names };
        scope.from.iter().for_each(|step| walk.take(*step));
        walk
    }

    fn along(scope: Scope, path: &[Step]) -> Walk {
        let mut walk = Walk::new(scope);
        path.iter().for_each(|step| walk.take(*step));
        walk
    }

    /// What may happen next.
    fn steps(&self) -> Vec<Step> {
        let (Walk { world, scope, spent, .. }, mut steps) = (self, Vec::new());
        let nets = |ran: bool, spent: &Spent| match (spent.faults < scope.faults, ran) {
            (false, false) => &[][..],
            (false, true) => &[Net::Answers],
            (true, true) => &[Net::Answers, Net::AnswerLost],
            (true, false) => &[Net::CommandLost, Net::Refused],
        };
        if spent.requests < scope.requests {
            steps.extend((0..scope.kinds.len() as u8).map(Step::Begins));
        }
        for (at, asker) in world.askers.iter().enumerate() {
            if let Some(pending) = &asker.asking {
                let (ran, at) = (world.ran.contains_key(&pending.command_id), at as u8);
                steps.extend((!ran).then_some(Step::Runs(at)));
                steps.extend(nets(ran, spent).iter().map(|net| Step::Ends(at, *net)));
            }
            if world.is_ready(at) {
                steps.push(Step::Polled(at as u8));
            }
            if spent.drops < scope.drops {
                steps.push(Step::Dropped(at as u8));
            }
        }
        for at in 0..world.guards.len() as u8 {
            steps.extend([Step::Released(at), Step::Left(at)]);
        }
        for (at, pending) in world.flight.iter().enumerate() {
            let (ran, at) = (world.ran.contains_key(&pending.command_id), at as u8);
            steps.extend((!ran).then_some(Step::CommandRuns(at)));
            steps.extend(nets(ran, spent).iter().map(|net| Step::CommandEnds(at, *net)));
        }
        steps.extend((0..world.late.len() as u8).map(Step::RunsLate));
        match world.master.listener {
            Listener::Asks => steps.push(Step::Subscribes),
            Listener::Unconfirmed => steps.push(Step::Confirmed),
            Listener::Listens if world.master.messages > 0 => steps.push(Step::Message),
            Listener::None | Listener::Listens => {}
        }
        if world.is_due() {
            steps.push(Step::Looks);
        }
        if world.next_moment().is_some() {
            steps.push(Step::Passes);
        }
        if world.is_strangers() {
            steps.push(Step::Freed);
        }
        if spent.faults < scope.faults {
            let free = world.master.key.as_ref().is_none_or(|(_, _, until)| *until <= world.now);
            steps.extend(scope.trouble.iter().filter(|step| match step {
                Step::Taken => free,
                Step::Deleted => !free,
                Step::Unsubscribed => world.master.listener != Listener::None,
                _ => true,
            }));
        }
        steps
    }

    fn take(&mut self, step: Step) {
        let Walk { world, scope, spent, .. } = self;
        let is_trouble = scope.trouble.contains(&step);
        spent.faults += usize::from(is_trouble);
        match step {
            Step::Begins(kind) => {
                let Kind { owner, bare, options } = scope.kinds[kind as usize];
                spent.requests += 1;
                let mut by = world.owners[owner].clone();
                if !bare {
                    by = by.child();
                    self.names.insert(format!("{by:?}"), format!("run {} of {owner}", spent.requests));
                }
                world.begin(by, bare, options);
            }
            Step::Polled(at) => world.poll(at as usize),
            Step::Runs(at) => {
                let pending = world.askers[at as usize].asking.clone().expect("it asks");
                world.runs_unread(&pending);
            }
            Step::Ends(at, net) => {
                spent.faults += usize::from(net != Net::Answers);
                world.answer_by(at as usize, net);
            }
            Step::Dropped(at) => {
                spent.drops += 1;
                world.go(at as usize);
            }
            Step::Released(at) => world.release_by(at as usize, true),
            Step::Left(at) => world.release_by(at as usize, false),
            Step::CommandRuns(at) => {
                let pending = world.flight[at as usize].clone();
                world.runs_unread(&pending);
            }
            Step::CommandEnds(at, net) => {
                spent.faults += usize::from(net != Net::Answers);
                world.arrives_by(at as usize, net);
            }
            Step::RunsLate(at) => {
                spent.late |= world.late[at as usize].call.action.creates();
                world.runs_late(at as usize);
            }
            Step::Subscribes => world.subscribes(),
            Step::Confirmed => world.confirmed(),
            Step::Message => world.message(),
            Step::Looks => world.check(),
            Step::Passes => world.now = world.next_moment().expect("something will happen by itself"),
            Step::Taken => world.master.key = Some(("another".into(), 1, world.now + LEASE / 3)),
            Step::Freed => world.master.free(),
            Step::Deleted => {
                (world.master.key, spent.tampered) = (None, true);
            }
            Step::Unsubscribed => world.unsubscribed(),
            Step::Reconnected => {
                world.entry.doubt_all(world.now);
                world.entry.orphans.retry(0, world.now);
                world.entry.head_asks_once_more(world.now);
            }
            Step::OwnerEnds(at) => {
                let owner = world.owners[at as usize].clone();
                self.names.insert(format!("{owner:?}"), format!("owner {at}, which has ended"));
                world.ends(&owner);
            }
        }
        world.wake();
    }

    /// What must hold after each step.
    fn look(&self) {
        let world = &self.world;
        world.look();
        let live = world.entry.live().filter(|hold| world.now < hold.deadline());
        if let (Some(hold), false) = (live, self.spent.tampered) {
            let key = world.master.key.as_ref();
            let stands =
                key.is_some_and(|(field, _, until)| *field == hold.field && *until >= hold.deadline());
            assert!(stands, "good here but not on the server, which has {key:?}: {hold:#?}");
        }
        if !self.spent.tampered {
            world.wakes();
        }
    }

    /// A hash of all that a later step may depend on, equal for equal states. The entry is hashed as it
    /// prints, so that a field that is added later is not left out.
    fn print(&self) -> u64 {
        let (world, mut text) = (&self.world, String::with_capacity(8192));
        let since = (world.now - world.timing.epoch).as_nanos() % (LEASE / 30).as_nanos();
        let master = &world.master;
        let guards = world.guards.iter().map(|guard| {
            let Kept { grant, branch_of } = guard;
            format!("hold: {}, level: {}, {:?} {branch_of:?}", grant.hold, grant.level, grant.signal.loss())
        });
        let askers = world.askers.iter().map(|asker| {
            let Asker { id, flag, nap, lease, fixed, limit, single_attempt, asking, known } = asker;
            let woken = flag.0.load(SeqCst);
            format!(
                "id: {id}, {woken} {nap:?} {lease:?} {fixed} {limit:?} {single_attempt} {asking:?} {known}"
            )
        });
        let (guards, askers): (Vec<_>, Vec<_>) = (guards.collect(), askers.collect());
        let ran = world
            .ran
            .iter()
            .map(|(command_id, reply)| format!("{command_id}: {reply:?}"))
            .collect::<Vec<_>>();
        let stale = world.stale.iter().filter(|id| world.entry.holds.iter().any(|hold| hold.id == **id));
        let stale = stale.collect::<BTreeSet<_>>().len();
        write!(
            text,
            "{:?} {since} {:?} {:?} {} {askers:?} {guards:?} {:?} {:?} {ran:?} {stale} {:?}",
            world.entry, master.key, master.listener, master.messages, world.flight, world.late, self.spent
        )
        .expect("a string has room");
        let wakers = world.askers.iter().map(|asker| (format!("{:?}", Arc::as_ptr(&asker.flag)), asker.id));
        let mut hasher = DefaultHasher::new();
        canonical(&text, world.now, &self.names, &wakers.collect()).hash(&mut hasher);
        hasher.finish()
    }
}

impl World {
    fn runs_unread(&mut self, pending: &Pending) {
        let reply = self.run(pending);
        self.ran.insert(pending.command_id, reply);
    }

    fn is_due(&self) -> bool {
        self.entry.due().is_some_and(|due| due <= self.now)
    }

    fn is_strangers(&self) -> bool {
        self.master.key.as_ref().is_some_and(|(field, _, until)| **field == *"another" && self.now < *until)
    }

    /// The next moment at which something happens by itself: the background looks, a timer ends, a key
    /// expires, or a hold ends.
    fn next_moment(&self) -> Option<Instant> {
        let naps = self.askers.iter().filter_map(|asker| asker.nap);
        let key = self.master.key.as_ref().map(|(_, _, until)| *until);
        let due = self.entry.due();
        let ends = self.entry.holds.iter().map(Hold::deadline);
        naps.chain(key).chain(due).chain(ends).filter(|moment| *moment > self.now).min()
    }

    /// No request sleeps for long beside a free lock if nothing is under way that would wake it.
    fn wakes(&self) {
        let free = self.master.key.as_ref().is_none_or(|(_, _, until)| *until <= self.now);
        let still = self.flight.is_empty()
            && self.askers.iter().all(|asker| asker.asking.is_none())
            && (0..self.askers.len()).all(|at| !self.is_ready(at))
            && self.master.messages == 0
            && !matches!(self.master.listener, Listener::Asks | Listener::Unconfirmed);
        if free && still && !self.askers.is_empty() {
            let naps = self.askers.iter().filter_map(|asker| asker.nap);
            // At most the pause after a failure, or between two tries of the background.
            let soon = naps.chain(self.entry.due()).min();
            let soon = soon.is_some_and(|soon| soon <= self.now + self.timing.retry);
            assert!(soon, "it sleeps beside a free lock: {:#?}", self.entry);
        }
    }

    /// From now on the network is good, every woken request is polled, and guards go, so that all comes to
    /// its end in bounded time.
    fn comes_to_rest(&mut self, leaves_nothing: bool) {
        let begun = self.now;
        self.late.clear();
        for round in 0.. {
            assert!(round < 2_000, "it does not come to an end: {:#?}", self.entry);
            let before = self.numbers.next();
            let mut moved = false;
            while !self.flight.is_empty() {
                self.arrives_by(0, Net::Answers);
                moved = true;
            }
            for id in self.askers.iter().map(|asker| asker.id).collect::<Vec<_>>() {
                let at = |world: &World| world.askers.iter().position(|asker| asker.id == id);
                if let Some(at) = at(self).filter(|at| self.askers[*at].asking.is_some()) {
                    self.answer_by(at, Net::Answers);
                    moved = true;
                }
                if let Some(at) = at(self).filter(|at| self.is_ready(*at)) {
                    self.poll(at);
                    moved = true;
                }
            }
            moved |= self.master.messages > 0
                || matches!(self.master.listener, Listener::Asks | Listener::Unconfirmed);
            self.confirm();
            if let Some(last) = self.guards.len().checked_sub(1) {
                self.release_by(last, round % 2 == 0);
                moved = true;
            }
            if self.is_due() {
                self.check();
                moved = true;
            }
            self.look();
            if self.numbers.next() != before + 1 || moved {
                continue;
            }
            if self.askers.is_empty() && self.guards.is_empty() && self.entry.is_empty() {
                break;
            }
            let next = self.next_moment();
            self.now = next.unwrap_or_else(|| panic!("somebody is forgotten: {:#?}", self.entry));
        }
        let left =
            self.master.key.as_ref().filter(|(field, _, until)| **field != *"another" && self.now < *until);
        assert!(left.is_none() || !leaves_nothing, "nobody holds it, but the key stands: {left:?}");
        let took = self.now - begun;
        assert!(took <= LEASE + 2 * self.timing.patience, "it took {took:?}");
    }
}

/// Replaces names, numbers and times by how they compare with each other: a number by its rank, an instant by
/// its distance from now.
fn canonical(
    text: &str,
    now: Instant,
    owners: &HashMap<String, String>,
    wakers: &HashMap<String, u64>,
) -> String {
    let marks = marks(text);
    let numbers: BTreeSet<u64> = marks.iter().filter_map(|mark| mark.number(text)).collect();
    let rank = |number: u64| numbers.range(..number).count();
    let now = seconds(&format!("{now:?}")).expect("an instant prints its seconds");
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for mark in marks {
        out.push_str(&text[copied..mark.begin]);
        let piece = &text[mark.begin..mark.end];
        copied = mark.end;
        match mark.kind {
            Mark::NUMBER => write!(out, "{}", rank(mark.number(text).unwrap_or_default())),
            Mark::INSTANT if out.ends_with("epoch: ") => Ok(()),
            Mark::INSTANT => {
                let (seconds, nanos) = seconds(piece).expect("an instant prints its seconds");
                let away = (seconds - now.0) * 1_000_000_000 + (nanos - now.1);
                // Nothing depends on a time longer ago than a lease.
                write!(out, "{}", away.max(-(LEASE.as_nanos() as i64)))
            }
            Mark::OWNER => write!(out, "{}", owners.get(piece).expect("an owner that has no name")),
            _ => {
                let data = piece.split("data: ").nth(1).and_then(|data| data.split(',').next());
                write!(out, "{:?}", data.and_then(|data| wakers.get(data)).map(|whose| rank(*whose)))
            }
        }
        .expect("a string has room");
    }
    out.push_str(&text[copied..]);
    out
}

/// A piece of text that differs between two equal worlds.
struct Mark {
    kind: &'static str,
    begin: usize,
    end: usize,
}

impl Mark {
    const NUMBER: &str = ": ";
    const INSTANT: &str = "Instant {";
    const OWNER: &str = "Owner(0x";
    const WAKER: &str = "Waker {";

    fn number(&self, text: &str) -> Option<u64> {
        let number = (self.kind == Mark::NUMBER).then(|| text[self.begin..self.end].parse());
        number.and_then(Result::ok)
    }
}

/// The marks of a text, in order.
fn marks(text: &str) -> Vec<Mark> {
    const NUMBERED: [&str; 4] = ["id", "command_id", "hold", "level"];
    let number = |begin: usize| {
        let digits = text[begin..].bytes().take_while(u8::is_ascii_digit).count();
        (digits > 0).then_some(Mark { kind: Mark::NUMBER, begin, end: begin + digits })
    };
    let until = |kind, begin: usize, close| {
        let end = begin + text[begin..].find(close).map_or(0, |end| end + 1);
        Mark { kind, begin, end }
    };
    let mut marks = Vec::new();
    for kind in [Mark::INSTANT, Mark::WAKER] {
        marks.extend(text.match_indices(kind).map(|(at, _)| until(kind, at, '}')));
    }
    marks.extend(text.match_indices(Mark::OWNER).map(|(at, _)| until(Mark::OWNER, at, ')')));
    marks.extend(text.match_indices("\"me:").filter_map(|(at, field)| number(at + field.len())));
    for name in NUMBERED {
        let named = text.match_indices(name).filter_map(|(at, _)| {
            let whole = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let behind = text[at + name.len()..].starts_with(": ");
            (whole && behind).then(|| number(at + name.len() + 2)).flatten()
        });
        marks.extend(named);
    }
    marks.sort_by_key(|mark| mark.begin);
    marks
}

/// The two numbers in `Instant { tv_sec: 1, tv_nsec: 2 }`.
fn seconds(text: &str) -> Option<(i64, i64)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Explores all states that this many steps lead to, each by a shortest path.
fn explore(name: &str, scope: Scope, deepest: usize) -> usize {
    let begun = std::time::Instant::now();
    // Each state's predecessor and the step from it. A path is found from its end.
    let mut states: Vec<(u32, Step)> = vec![(0, Step::Looks)];
    let path = |states: &[(u32, Step)], mut state: u32| {
        let mut path = Vec::new();
        while state > 0 {
            let (before, step) = states[state as usize];
            path.push(step);
            state = before;
        }
        path.reverse();
        path
    };
    let (mut seen, mut border) = (HashSet::from([Walk::new(scope).print()]), vec![0]);
    for _ in 0..deepest {
        for before in std::mem::take(&mut border) {
            let way = path(&states, before);
            for step in Walk::along(scope, &way).steps() {
                let mut walked = false;
                let print = catch_unwind(AssertUnwindSafe(|| {
                    let mut walk = Walk::along(scope, &way);
                    walk.take(step);
                    walk.look();
                    walked = true;
                    let print = walk.print();
                    if seen.insert(print) {
                        walk.world.comes_to_rest(!walk.spent.late);
                        return true;
                    }
                    false
                }));
                match print {
                    Ok(false) => {}
                    Ok(true) => {
                        border.push(states.len() as u32);
                        states.push((before, step));
                    }
                    Err(_) => {
                        let after = if walked { ", and then to rest" } else { "" };
                        panic!("{name}, by {:?}{after}", [&way[..], &[step]].concat());
                    }
                }
            }
        }
        if border.is_empty() {
            break;
        }
    }
    let took = begun.elapsed();
    eprintln!("{name}: {} states in {deepest} steps, {} on the border, {took:?}", states.len(), border.len());
    states.len()
}

/// `SCOPE_STEPS` makes all paths longer by that many steps, and `SCOPE_FAULTS` allows that many more faults:
/// `scripts/lab/scopes` does both.
fn explored(name: &str, scope: Scope, deepest: usize) {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let faults = scope.faults + number("SCOPE_FAULTS").unwrap_or_default();
    let deepest = deepest + number("SCOPE_STEPS").unwrap_or_default();
    assert!(explore(name, Scope { faults, ..scope }, deepest) > 100, "too few states to show anything");
}

/// Owners 0 to 3 are a root, two children of it, and a child of a third child; 4 to 7 are another such tree.
const ANY_TWO: Scope = Scope {
    from: &[],
    kinds: &[
        lock(0),
        run(0),
        lock(1),
        lock(4),
        Kind { options: ONCE, ..lock(4) },
        Kind { options: FIXED, ..lock(0) },
    ],
    requests: 2,
    drops: 0,
    faults: 0,
    trouble: &[],
    handoff: Duration::ZERO,
};

const STRANGERS: Scope = Scope { kinds: &[lock(0), lock(4)], ..ANY_TWO };
const PARENT_AND_CHILD: Scope = Scope { kinds: &[lock(0), lock(1)], ..ANY_TWO };
const THREE_OF_A_TREE: Scope = Scope { kinds: &[lock(0), run(0), lock(4)], requests: 3, ..ANY_TWO };

/// The first request holds the lock, the second one sleeps, and messages reach this process.
const ONE_WAITS: &[Step] =
    &[Step::Begins(0), Step::Ends(0, Net::Answers), Step::Begins(1), Step::Subscribes, Step::Confirmed];

#[test]
fn any_two_requests_in_all_orders_of_events() {
    explored("any two requests", ANY_TWO, 4);
}

#[test]
fn two_strangers_in_all_orders_of_events_with_a_fault() {
    let scope = Scope { drops: 1, faults: 1, ..STRANGERS };
    explored("two strangers, a fault", scope, 5);
    explored("one waits for the other, a fault", Scope { from: ONE_WAITS, ..scope }, 5);
}

#[test]
fn a_hold_that_passes_on_in_all_orders_of_events_with_trouble() {
    let passes = Scope { handoff: Duration::from_millis(100), requests: 3, ..STRANGERS };
    let trouble = &[Step::Deleted, Step::Taken, Step::Reconnected];
    let scope = Scope { from: ONE_WAITS, drops: 1, faults: 1, trouble, ..passes };
    explored("one waits, and the hold passes on", scope, 4);
    let passed = &[Step::Begins(0), Step::Ends(0, Net::Answers), Step::Begins(1), Step::Released(0)];
    explored("a hold is offered", Scope { from: passed, ..scope }, 4);
    const KINDS: &[Kind] = &[lock(0), Kind { options: FIXED, ..lock(4) }, Kind { options: ONCE, ..lock(4) }];
    explored("a hold is offered beside one that takes none", Scope { kinds: KINDS, ..scope }, 4);
}

#[test]
fn two_requests_and_another_process_in_all_orders_of_events() {
    let trouble = &[Step::Taken, Step::Unsubscribed, Step::Reconnected];
    let scope = Scope { faults: 2, trouble, ..STRANGERS };
    explored("two and another process", scope, 4);
    explored("one waits, another process", Scope { from: ONE_WAITS, ..scope }, 4);
}

#[test]
fn a_parent_and_a_child_in_all_orders_of_events_with_trouble() {
    let trouble = &[Step::OwnerEnds(1), Step::Deleted];
    let scope = Scope { drops: 1, faults: 1, trouble, ..PARENT_AND_CHILD };
    explored("parent and child, trouble", scope, 4);
    let nested =
        &[Step::Begins(0), Step::Ends(0, Net::Answers), Step::Begins(1), Step::Ends(0, Net::Answers)];
    explored("a nested hold, trouble", Scope { from: nested, ..scope }, 4);
}

#[test]
fn three_requests_of_a_tree_in_all_orders_of_events() {
    explored("three of a tree", THREE_OF_A_TREE, 5);
}
