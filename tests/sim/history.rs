//! What happened, and checks of what must not happen: each grant is compared with all holds that stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock;
use crate::session::Session;
use crate::sim::gate;
use crate::sim::program::NAMES;
use crate::sim::requests::{Path, Request, Requests};
use crate::{Claim, Fenced, Guard};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) promise: Promise,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// Holds of different owners do not overlap.
    Exclusion,
    /// Tokens grow.
    Tokens,
    /// The depth of a guard, and the count on the masters, equal the number of levels that stand.
    Depth,
    /// A lost hold stays lost, is reported, and is not silently acquired again.
    Loss,
    /// A hold that is renewed is not lost.
    Renewal,
    /// No request waits longer than the faults explain.
    Liveness,
    /// Nothing is left at the end.
    Leftovers,
    /// A hold passes on inside a process only for a limited time, and is then valid for as long as a fresh one.
    Handoff,
    /// Errors have a cause.
    Errors,
    /// No panic, and no work without end.
    Sanity,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.text)
    }
}

/// A guard, with or without a token.
pub(super) struct AnyGuard {
    pub(super) guard: Guard,
    pub(super) token: Option<u64>,
}

impl From<Guard> for AnyGuard {
    fn from(guard: Guard) -> AnyGuard {
        AnyGuard { guard, token: None }
    }
}

impl From<Guard<Fenced>> for AnyGuard {
    fn from(guard: Guard<Fenced>) -> AnyGuard {
        let token = Some(guard.token());
        AnyGuard { guard: guard.into(), token }
    }
}

impl Deref for AnyGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// The way to look at a level.
pub(super) enum Handle {
    Guard(Weak<AnyGuard>),
    /// The work of a `run`, which has no guard. The time is its latest end, if `max_hold` limits it.
    Run(Option<Instant>),
}

/// One level of a hold, from its grant until its end.
pub(super) struct LevelRecord {
    pub(super) name: usize,
    pub(super) field: String,
    pub(super) caller: u64,
    pub(super) process: usize,
    pub(super) owner: Path,
    /// The request that was granted.
    pub(super) request: u64,
    /// Whether the request was one of several branches of its owner.
    pub(super) branch: bool,
    pub(super) session: Arc<Session>,
    pub(super) handle: Handle,
    pub(super) depth: Option<usize>,
    pub(super) token: Option<u64>,
    /// Whether the level is renewed and has no end of its own.
    pub(super) watched: bool,
    /// Whether `max_hold` limits it. That time counts from before the grant, so it may be over when this is read.
    pub(super) limited: bool,
    /// The earliest time at which its fixed lease may be over.
    pub(super) may_end_from: Option<Instant>,
}

impl LevelRecord {
    /// Returns whether this level must not be granted while the other one, of the same name, stands.
    fn excludes(&self, other: &LevelRecord) -> bool {
        let fellows = self.branch && other.branch && self.owner == other.owner;
        self.field != other.field || fellows || !self.owner.starts_with(&other.owner)
    }

    /// Returns whether the process has reported no loss of this level's hold. The level itself may be over.
    fn is_of_live_hold(&self) -> bool {
        field_of(&self.session, self.name).is_some_and(|field| field == self.field)
    }

    /// Returns whether the guard knows that its hold is lost.
    fn is_lost(&self) -> bool {
        match &self.handle {
            Handle::Guard(guard) => guard.upgrade().is_some_and(|guard| guard.is_lost()),
            Handle::Run(_) => !self.is_of_live_hold(),
        }
    }

    /// Returns whether the hold is valid now, as far as its process knows.
    pub(super) fn is_valid(&self) -> bool {
        match &self.handle {
            Handle::Guard(guard) => guard.upgrade().is_some_and(|guard| Instant::now() < guard.valid_until()),
            Handle::Run(end) => {
                let stands = self.session.table(|table, at| {
                    let entry = table.entry(NAMES[self.name])?;
                    entry
                        .live()
                        .filter(|hold| *hold.field == *self.field && at.now < hold.deadline())
                        .map(|_| ())
                });
                stands.is_some() && end.is_none_or(|end| Instant::now() < end)
            }
        }
    }
}

/// A hold that was handed over, or a lock that is kept.
pub(super) struct Reserved {
    pub(super) name: usize,
    /// The field of the hold, and the field by which the lock now stands.
    pub(super) field: String,
    pub(super) stands_by: String,
    /// The lock is nobody else's before this time. The time is that of a machine that has slept for `slept`.
    pub(super) until: Instant,
    pub(super) slept: Duration,
    pub(super) claim: Option<Claim>,
    /// How often a caller has begun to resume it.
    pub(super) resumes: u32,
}

impl Reserved {
    fn stands(&self) -> bool {
        Instant::now() + gate::slept().saturating_sub(self.slept) < self.until
    }
}

/// A request that has begun.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) request: u64,
    /// The owner or an ancestor of it has a level, which may be lost.
    pub(super) nested: bool,
    /// The request may be nested or a branch: the two look the same.
    pub(super) ambiguous: bool,
}

/// Returns the field of the hold that stands in a process.
pub(super) fn field_of(session: &Session, name: usize) -> Option<String> {
    session.table(|table, _| table.entry(NAMES[name])?.live().map(|hold| hold.field.to_string()))
}

pub(super) struct History {
    start: Instant,
    shown: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    violation: Option<Violation>,
    levels: BTreeMap<u64, LevelRecord>,
    requests: Requests,
    /// The fields of the holds beneath which each request under way began.
    beneath: BTreeMap<u64, Vec<String>>,
    dead: BTreeSet<usize>,
    numbers: u64,
    /// Whether a master may be without its counters while the time from which new counters begin may be earlier: then nothing orders the
    /// tokens.
    unordered: bool,
    calm: bool,
    /// The longest time that a request may wait with nobody before it once all faults are over, and the longest such wait so far.
    patience: Duration,
    longest_wait: Duration,
    trouble_until: Option<Instant>,
    grants: u64,
    commands: u64,
    /// How often a hold has passed on, for how long a hold may pass on, and the lease.
    passed: u64,
    handoff: Duration,
    lease: Duration,
    /// When each field was first granted.
    fields: BTreeMap<String, Instant>,
    /// Fields that were released by force, or that their only master forgot: their holds are over, even if
    /// nobody has noticed.
    forced: BTreeSet<String>,
    forgotten: BTreeSet<String>,
    /// Locks that must not be granted although no level stands.
    reserved: Vec<Reserved>,
    /// Until when the lock of a hold has to be kept, by its field. The time is that of a machine that has never slept.
    kept_until: BTreeMap<String, Instant>,
    /// The highest token of each name.
    tokens: [u64; NAMES.len()],
}

impl History {
    pub(super) fn new(shown: bool) -> History {
        History { start: Instant::now(), shown, state: Mutex::default() }
    }

    /// Declares that no hold that is renewed may be lost.
    pub(super) fn set_calm(&self) {
        lock(&self.state).calm = true;
    }

    pub(super) fn forget_order_of_tokens(&self) {
        lock(&self.state).unordered = true;
    }

    pub(super) fn since_start(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if self.shown {
            let line = format!("{:>9} ms  {}", self.start.elapsed().as_millis(), line());
            lock(&self.state).lines.push(line);
        }
    }

    /// Counts a command that is sent. Returns how many there are.
    pub(super) fn command(&self) -> u64 {
        let mut state = lock(&self.state);
        state.commands += 1;
        state.commands
    }

    /// Reports a violation. Only the first one counts, since later ones may be its consequences.
    pub(super) fn violated(&self, promise: Promise, text: impl Into<String>) {
        let text = text.into();
        self.note(|| format!("VIOLATED {promise:?}: {text}"));
        lock(&self.state).violation.get_or_insert(Violation { promise, text });
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        lock(&self.state).violation.clone()
    }

    pub(super) fn take(&self) -> (Vec<String>, u64, u64, u64, Duration) {
        let mut state = lock(&self.state);
        let lines = std::mem::take(&mut state.lines);
        (lines, state.grants, state.passed, state.commands, state.longest_wait)
    }

    pub(super) fn forced(&self, field: &str) {
        self.note(|| format!("{field} is forced away"));
        lock(&self.state).forced.insert(field.to_owned());
    }

    /// Notes that its only master has lost this field.
    pub(super) fn forgotten(&self, field: &str) {
        lock(&self.state).forgotten.insert(field.to_owned());
    }

    /// Returns a hold that its only master has lost, while its process still considers it good.
    pub(super) fn unnoticed(&self, living: &[usize]) -> Option<String> {
        let (levels, forgotten) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.levels), state.forgotten.clone())
        };
        let unnoticed = levels.values().find(|level| {
            living.contains(&level.process) && forgotten.contains(&level.field) && level.is_valid()
        });
        let text =
            unnoticed.map(|level| format!("p{} has not noticed that {} is gone", level.process, level.field));
        lock(&self.state).levels = levels;
        text
    }

    pub(super) fn was_forced(&self, field: &str) -> bool {
        lock(&self.state).forced.contains(field)
    }

    /// Returns a number that is used only once.
    pub(super) fn number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.numbers += 1;
        state.numbers
    }

    /// Notes that a request begins.
    pub(super) fn asks(&self, process: usize, name: usize, owner: &Path, bare: bool) -> Asked {
        let request = self.number();
        let mut state = lock(&self.state);
        let above = state.levels.values().filter(|other| other.name == name);
        let nested = above.clone().any(|level| owner.starts_with(&level.owner));
        let holds = above.clone().any(|level| level.owner == *owner);
        let beneath = above.filter(|level| owner.starts_with(&level.owner));
        let beneath: Vec<String> = beneath.map(|level| level.field.clone()).collect();
        let ambiguous = bare && holds && state.requests.is_proven(name, owner);
        if nested {
            state.beneath.insert(request, beneath);
        }
        let owner = owner.clone();
        let (branch, neglected, free_since) = (false, false, None);
        state.requests.begin(request, Request { name, owner, process, bare, branch, free_since, neglected });
        drop(state);
        self.look_at_waits();
        Asked { request, nested, ambiguous }
    }

    /// Notes that a request ends without a grant.
    pub(super) fn asks_no_more(&self, request: u64, failed: bool) {
        self.look_at_waits();
        let mut state = lock(&self.state);
        state.beneath.remove(&request);
        if failed {
            state.requests.fail(request);
        } else {
            state.requests.end(request);
        }
        drop(state);
        self.forget_proofs();
    }

    /// Notes that the futures of requests are not polled, or are polled again: those that these scopes have begun, from the number `first`
    /// on.
    pub(super) fn neglects(&self, first: u64, owner: &Path, on: bool) {
        self.look_at_waits();
        lock(&self.state).requests.neglect(first, owner, on);
    }

    /// Notes that something may be late until this time, which excuses waits.
    pub(super) fn trouble_until(&self, at: Instant) {
        self.look_at_waits();
        let mut state = lock(&self.state);
        state.trouble_until = state.trouble_until.max(Some(at));
    }

    pub(super) fn process_dies(&self, process: usize) {
        let mut state = lock(&self.state);
        state.dead.insert(process);
        state.requests.forget_process(process);
    }

    pub(super) fn set_handoff(&self, longest: Duration, lease: Duration) {
        let mut state = lock(&self.state);
        (state.handoff, state.lease) = (longest, lease);
    }

    pub(super) fn set_patience(&self, patience: Duration) {
        lock(&self.state).patience = patience;
    }

    /// Checks that a free lock with a waiter is taken at once.
    pub(super) fn look_at_waits(&self) {
        let mut state = lock(&self.state);
        let State { requests, levels, dead, patience, longest_wait, trouble_until, .. } = &mut *state;
        let keeps_out = |level: &LevelRecord, request: &Request| {
            // Such a request may be nested, or one more branch.
            let fellows = request.bare && request.owner == level.owner;
            level.name == request.name && (fellows || !request.owner.starts_with(&level.owner))
        };
        let is_kept_out = |request: &Request| {
            levels.values().any(|level| !dead.contains(&level.process) && keeps_out(level, request))
        };
        let longest = requests.longest_wait(trouble_until.unwrap_or(self.start), Instant::now(), is_kept_out);
        let Some((waited, request)) = longest else { return };
        *longest_wait = waited.max(*longest_wait);
        if waited > *patience {
            let (name, process) = (NAMES[request.name], request.process);
            let text = format!(
                "a request of p{process} for {name} has waited {waited:?} with nobody before it, of {patience:?}"
            );
            drop(state);
            self.violated(Promise::Liveness, text);
        }
    }

    /// Notes that an owner's last scope has ended: its holds are now its parent's.
    pub(super) fn owner_ended(&self, owner: &Path) {
        // A root owner that has ended keeps its holds.
        if owner.len() < 2 {
            return;
        }
        let mut state = lock(&self.state);
        for level in state.levels.values_mut().filter(|level| level.owner.starts_with(owner)) {
            level.owner.truncate(owner.len() - 1);
        }
    }

    fn forget_proofs(&self) {
        let levels = {
            let mut state = lock(&self.state);
            if state.requests.proves_nothing() {
                return;
            }
            std::mem::take(&mut state.levels)
        };
        let holds = |name, owner: &Path| {
            let mut of_owner = levels.values().filter(|level| level.name == name && level.owner == *owner);
            of_owner.clone().next().map(|_| of_owner.any(LevelRecord::is_of_live_hold))
        };
        lock(&self.state).requests.forget_proofs(holds);
        lock(&self.state).levels = levels;
    }

    /// Notes that a level is granted.
    pub(super) fn granted(&self, mut level: LevelRecord) -> u64 {
        let (name, field) = (level.name, level.field.clone());
        self.look_at_waits();
        level.branch = lock(&self.state).requests.end(level.request);
        // The outer guard may be gone when the request is polled, but it existed when the level was granted.
        let beneath = lock(&self.state).beneath.remove(&level.request).unwrap_or_default();
        let entered = beneath.contains(&field);
        self.note(|| {
            let LevelRecord { caller, process, depth, token, .. } = &level;
            let token = token.map(|token| format!(", token {token}")).unwrap_or_default();
            format!("caller {caller} of p{process} holds {} as {field}, depth {depth:?}{token}", NAMES[name])
        });
        if !level.limited && !level.is_valid() && !self.was_forced(&field) {
            self.violated(Promise::Loss, format!("{field} of {} is over when it is handed out", NAMES[name]));
        }
        self.excludes(&level);
        self.is_not_reserved(&level);
        let stands = self.levels(|other| other.name == name && other.field == field);
        if let Some(depth) = level.depth.filter(|depth| *depth != stands + 1 && !self.was_forced(&field)) {
            let text = format!("{field} of {} has depth {depth} beside {stands} levels", NAMES[name]);
            self.violated(Promise::Depth, text);
        }
        if let Some(token) = level.token {
            self.grows(&level, token, stands > 0 || entered);
        }
        if stands == 0 && !entered {
            self.passes(&level);
        }
        let mut state = lock(&self.state);
        state.grants += 1;
        let id = state.grants;
        state.levels.insert(id, level);
        drop(state);
        self.look_at_waits();
        id
    }

    fn excludes(&self, level: &LevelRecord) {
        if self.was_forced(&level.field) {
            return;
        }
        // The levels are looked at while nothing is locked.
        let others = {
            let mut state = lock(&self.state);
            std::mem::take(&mut state.levels)
        };
        let mut broken = None;
        for other in others.values().filter(|other| other.name == level.name) {
            if level.excludes(other) && !self.was_forced(&other.field) && other.is_valid() {
                broken = Some(format!(
                    "{} is granted to caller {} of p{} as {} while caller {} of p{} holds it as {}",
                    NAMES[level.name],
                    level.caller,
                    level.process,
                    level.field,
                    other.caller,
                    other.process,
                    other.field
                ));
            }
        }
        lock(&self.state).levels = others;
        if let Some(text) = broken {
            self.violated(Promise::Exclusion, text);
        }
    }

    /// Checks that nobody gets a handed-over lock before it is resumed, or a lock that is kept.
    fn is_not_reserved(&self, level: &LevelRecord) {
        let state = lock(&self.state);
        let against = |one: &&Reserved| {
            one.name == level.name
                && one.field != level.field
                && one.resumes == 0
                && one.stands()
                && ![&one.field, &one.stands_by, &level.field]
                    .iter()
                    .any(|field| state.forced.contains(*field))
        };
        let broken = state.reserved.iter().find(against).map(|one| {
            let what = if one.claim.is_some() { "a claim of" } else { "kept after" };
            format!("{} is granted as {}, and is {what} {}", NAMES[level.name], level.field, one.field)
        });
        drop(state);
        if let Some(text) = broken {
            self.violated(Promise::Exclusion, text);
        }
    }

    pub(super) fn reserve(&self, reserved: Reserved) {
        lock(&self.state).reserved.push(reserved);
    }

    /// Notes that the lock of this hold has to be kept for this time from now on.
    pub(super) fn keep(&self, field: &str, least: Duration) {
        // The masters' time goes on while the machine of the processes sleeps. The drift of the clocks is less than a fifth.
        let until = Instant::now() + gate::slept() + least * 4 / 5;
        let mut state = lock(&self.state);
        let kept = state.kept_until.entry(field.to_owned()).or_insert(until);
        *kept = until.max(*kept);
    }

    /// Returns until when the lock of this hold, which has no more levels, is kept. The time is that of a machine that has never slept.
    pub(super) fn kept_until(&self, field: &str) -> Option<Instant> {
        let state = lock(&self.state);
        let held = state.levels.values().any(|level| level.field == field);
        state.kept_until.get(field).copied().filter(|_| !held)
    }

    /// Returns the newest claim of this name, and whether this is the first resume, which has to succeed. `copies`: the claim stays
    /// available to others.
    pub(super) fn claim(&self, name: usize, copies: bool) -> Option<(Claim, bool)> {
        let mut state = lock(&self.state);
        let State { reserved, forced, .. } = &mut *state;
        let one = reserved.iter_mut().rev().find(|one| one.name == name && one.claim.is_some())?;
        one.resumes += 1;
        let good = one.resumes == 1 && one.stands() && !forced.contains(&one.field);
        let claim = if copies { one.claim.clone() } else { one.claim.take() };
        claim.map(|claim| (claim, good))
    }

    /// Notes an outermost level. Its field is fresh, or another owner of its process had it before.
    fn passes(&self, level: &LevelRecord) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let Some(since) = state.fields.get(&level.field).copied() else {
            state.fields.insert(level.field.clone(), now);
            return;
        };
        state.passed += 1;
        let State { handoff, lease, .. } = *state;
        drop(state);
        let until = level.session.table(|table, at| {
            let entry = table.entry(NAMES[level.name])?;
            let hold = entry.live().filter(|hold| *hold.field == *level.field)?;
            Some(hold.deadline().saturating_duration_since(at.now))
        });
        let LevelRecord { field, process, token, may_end_from, .. } = level;
        self.note(|| format!("{field} passes on inside p{process}, {:?} after its grant", now - since));
        if now - since > handoff {
            let text = format!("{field} passes on {:?} after its grant, of {handoff:?}", now - since);
            self.violated(Promise::Handoff, text);
        }
        if token.is_some() || may_end_from.is_some() {
            self.violated(
                Promise::Handoff,
                format!("{field} passes on to one with a token, or a fixed lease"),
            );
        }
        if let Some(left) = until.filter(|left| *left < lease / 2 || lease < *left) {
            self.violated(
                Promise::Handoff,
                format!("{field} passes on, and is good for {left:?} of {lease:?}"),
            );
        }
    }

    fn grows(&self, level: &LevelRecord, token: u64, nested: bool) {
        let (name, field) = (level.name, &level.field);
        let mut state = lock(&self.state);
        let highest = state.tokens[name];
        state.tokens[name] = highest.max(token);
        let beside = state.levels.values().filter(|other| other.name == name && other.field == *field);
        let differs = beside.filter_map(|other| other.token).any(|other| other != token);
        let ordered = !nested && !state.unordered && !state.forced.contains(field);
        drop(state);
        if differs || (ordered && token <= highest) {
            let text = format!("{field} of {} has token {token} after {highest}", NAMES[name]);
            self.violated(Promise::Tokens, text);
        }
    }

    /// Notes that a level ends: its guard is released or dropped, or its work is over.
    pub(super) fn left(&self, level: u64) {
        self.look_at_waits();
        let gone = lock(&self.state).levels.remove(&level);
        if let Some(gone @ LevelRecord { caller, name, field, .. }) = &gone {
            if lock(&self.state).calm && gone.watched && gone.is_lost() {
                self.violated(
                    Promise::Renewal,
                    format!("{field} of p{} is lost, though all is well", gone.process),
                );
            }
            self.note(|| format!("caller {caller} leaves {} ({field})", NAMES[*name]));
            self.forget_proofs();
            self.look_at_waits();
        }
    }

    pub(super) fn levels(&self, which: impl Fn(&LevelRecord) -> bool) -> usize {
        lock(&self.state).levels.values().filter(|level| which(level)).count()
    }

    /// Returns the earliest time at which the hold may end by itself, if no other levels than those that stand now keep it.
    pub(super) fn may_end_from(&self, field: &str) -> Option<Instant> {
        let state = lock(&self.state);
        let of_hold = state.levels.values().filter(|level| level.field == field);
        of_hold.filter_map(|level| level.may_end_from).min()
    }

    /// Returns the numbers of the levels of these processes that are renewed and valid.
    pub(super) fn standing(&self, living: &[usize]) -> Vec<u64> {
        let levels = std::mem::take(&mut lock(&self.state).levels);
        let good = levels.iter().filter(|(_, level)| {
            level.watched
                && living.contains(&level.process)
                && !self.was_forced(&level.field)
                && level.is_valid()
        });
        let good = good.map(|(id, _)| *id).collect();
        lock(&self.state).levels = levels;
        good
    }

    /// Calls `look` with each of these levels. Nothing may be granted or ended in `look`.
    pub(super) fn each<R>(&self, ids: &[u64], mut look: impl FnMut(&LevelRecord) -> R) -> Vec<R> {
        let levels = std::mem::take(&mut lock(&self.state).levels);
        let seen = ids.iter().filter_map(|id| levels.get(id)).map(&mut look).collect();
        lock(&self.state).levels = levels;
        seen
    }
}
