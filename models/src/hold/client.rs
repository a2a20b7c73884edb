//! What a client decides about one hold: what it sends, what the answers mean together, and what follows. The
//! functions have the names of those in `src/table/` and `src/quorum/tally.rs` that they model.

use super::master::{Answer, Command, Commands, Link};
use super::{Design, HoldModel, LEASE, LONGEST, State};

/// A set of masters.
type Masters = u8;

/// The sets of masters that a hold has, as bits of `Link::sets`.
pub(super) const LACKING: u8 = 1;
const REMAINS: u8 = 2;
const UNANSWERED: u8 = 4;
const OPEN: u8 = 8;
const ABSENT: u8 = 16;
const REPAIRED: u8 = 32;
/// The masters where a command got no answer, so that the count may differ. The code has no such set.
pub(super) const UNKNOWN: u8 = 64;

/// How far a hold has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Its client does not use it yet.
    #[default]
    None,
    /// It is requested, held, or released without confirmation.
    Stands,
    /// Its guards report a loss. If `ends_key`, the client ends the key, whether or not the guards are gone.
    Lost {
        /// The hold ended before the key.
        ends_key: bool,
    },
    /// The masters confirmed that it is gone.
    Gone,
    /// Its client crashed.
    Crashed,
}

/// A level without a fixed lease. A level with one is one more than the ticks that are left.
const WATCHED: u8 = 9;

/// One hold, as its client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// How far it has got.
    pub stage: Stage,
    /// Whether a command's outcome is unknown.
    pub unsettled: bool,
    /// The levels by depth, then zeros.
    pub levels: [u8; 3],
    /// The count that the masters are known to have.
    pub stands: u8,
    /// Ticks for which a majority certainly keeps it.
    pub sure: u8,
    /// Ticks for which a majority may keep it, by a command of unknown outcome.
    pub perhaps: u8,
    /// The command under way.
    pub command: Option<UnderWay>,
    /// Whether an end of it had an unknown outcome.
    pub tried: bool,
    /// Its fencing token.
    pub token: u8,
    /// `Hold::gone_by`, if clocks are set back: ticks for which the leases that were asked for explain a TTL.
    pub until: u8,
    /// `Hold::too_long`: when the key ends, if these leases don't explain its TTL. 0: no such key is known.
    pub too_long: u8,
    /// Whether a TTL of it was shortened, or may be.
    pub shortens: bool,
    /// Ticks since the thread sent a backup renewal that has no answer yet.
    pub backup_renewal: Option<u8>,
    /// Whether another hold was granted since this one was. The code does not have this.
    pub overtaken: bool,
}

/// A command under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnderWay {
    pub(super) command: Command,
    /// Ticks since it was sent.
    pub(super) age: u8,
    /// Whether something may have happened since then that its answer does not show.
    pub(super) doubted: bool,
    /// One more than the level that an extension is for.
    level: u8,
    /// Whether it is the renewal that makes a grant's token known.
    acknowledges: bool,
    /// Whether it is sent only to some masters: those that may still have a hold that is gone.
    remains: bool,
}

/// What the answers to a command mean together.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    result: Meaning,
    lacking: Masters,
    remains: Masters,
    unanswered: Masters,
    missing: Masters,
    given_up: Masters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Meaning {
    Done,
    /// Busy, or certainly not run.
    Refused,
    Gone,
    #[default]
    Unknown,
}

impl Hold {
    pub(super) fn depth(&self) -> u8 {
        self.levels.iter().filter(|level| **level > 0).count() as u8
    }

    /// Returns whether it is held as far as its client knows.
    pub(super) fn lives(&self) -> bool {
        self.stage == Stage::Stands && self.depth() > 0
    }

    fn is_watched(&self) -> bool {
        self.levels.contains(&WATCHED)
    }

    /// Returns the ticks until its end: that of its latest level, but never later than the masters are sure to keep
    /// it.
    fn end(&self) -> u8 {
        match self.is_watched() {
            true => self.sure,
            false => self.levels.iter().max().map_or(0, |latest| latest.saturating_sub(1)).min(self.sure),
        }
    }

    /// Returns whether the key may outlive the hold, and nobody renews it.
    fn outlived(&self) -> bool {
        let key = if self.is_watched() { self.sure } else { self.sure.max(self.perhaps) };
        self.end() < key
    }

    fn under_way(&self) -> Option<Command> {
        self.command.map(|under| under.command)
    }

    pub(super) fn is_asked(&self) -> bool {
        matches!(self.under_way(), Some(Command::Acquire { count: 1, .. }))
            || self.command.is_some_and(|under| under.acknowledges)
    }

    /// Models `Hold::begin_backup_renewal`: whether the thread renews it.
    pub(super) fn is_due_for_backup_renewal(&self) -> bool {
        self.lives() && self.is_watched() && self.sure < LEASE && self.backup_renewal.is_none()
    }

    /// Returns whether nobody holds it any more, and the masters have not confirmed that.
    pub(super) fn ends(&self) -> bool {
        match self.stage {
            Stage::Stands | Stage::Lost { ends_key: false } => self.depth() == 0 && !self.is_asked(),
            Stage::Lost { ends_key: true } => true,
            _ => false,
        }
    }

    /// Lets a tick pass: every remaining time shrinks, and a hold whose time is over is lost.
    pub(super) fn tick(&mut self, design: Design) {
        let outlived = self.outlived();
        self.sure = self.sure.saturating_sub(1);
        self.perhaps = self.perhaps.saturating_sub(1);
        self.until = self.until.saturating_sub(1);
        for level in self.levels.iter_mut().filter(|level| (2..WATCHED).contains(*level)) {
            *level -= 1;
        }
        if let Some(under) = &mut self.command {
            under.age = (under.age + 1).min(LONGEST);
        }
        self.backup_renewal = self.backup_renewal.map(|age| (age + 1).min(LEASE));
        if self.lives() && self.end() == 0 && design != Design::DeadlineIgnored {
            self.stage = Stage::Lost { ends_key: outlived };
            (self.sure, self.perhaps, self.unsettled, self.tried) = (0, 0, false, false);
        }
    }
}

impl HoldModel {
    fn majority(&self) -> u32 {
        match self.design {
            Design::MinorityCounts => 1,
            _ => self.masters as u32 / 2 + 1,
        }
    }

    fn is_majority(&self, masters: Masters) -> bool {
        masters.count_ones() >= self.majority()
    }

    /// Returns whether so many masters are against it that the others are no majority.
    fn is_blocking(&self, masters: Masters) -> bool {
        self.masters as u32 - masters.count_ones() < self.majority()
    }

    fn all(&self) -> Masters {
        (1 << self.masters) - 1
    }
}

impl State {
    /// Returns the masters that are in a set of a hold.
    pub(super) fn set(&self, hold: usize, which: u8) -> Masters {
        self.masters_where(|links| links[hold].sets & which != 0)
    }

    fn masters_where(&self, is: impl Fn(&[Link; super::HOLDS]) -> bool) -> Masters {
        let masters = self.masters.iter().enumerate();
        masters.fold(0, |set, (at, master)| set | (u8::from(is(&master.links)) << at))
    }

    fn put(&mut self, hold: usize, which: u8, masters: Masters) {
        for (at, master) in self.masters.iter_mut().enumerate() {
            let link = &mut master.links[hold];
            link.sets = if masters & (1 << at) != 0 { link.sets | which } else { link.sets & !which };
        }
    }

    fn add(&mut self, hold: usize, which: u8, masters: Masters) {
        self.put(hold, which, self.set(hold, which) | masters);
    }

    /// Returns whether a master has no vote on fresh grants.
    fn is_young(&self, model: &HoldModel, at: usize) -> bool {
        let young = self.masters.iter().take(model.masters).filter(|master| master.young > 0).count() as u32;
        match model.design {
            Design::YoungVotes => false,
            Design::YoungMajorityVotes if young >= model.majority() => false,
            _ => self.masters[at].young > 0,
        }
    }

    /// Sends a command to these masters.
    fn begin(&mut self, model: &HoldModel, hold: usize, command: Command, to: Masters) {
        let remains = command == Command::END && self.holds[hold].stage == Stage::Gone;
        let under = UnderWay { command, age: 0, doubted: false, level: 0, acknowledges: false, remains };
        self.holds[hold].command = Some(under);
        self.send(model, hold, command, to);
        for (at, master) in self.masters.iter_mut().enumerate() {
            master.links[hold].answer = if to & (1 << at) != 0 { Answer::Waiting } else { Answer::Unasked };
        }
    }

    fn send(&mut self, model: &HoldModel, hold: usize, command: Command, to: Masters) {
        for (at, master) in self.masters.iter_mut().enumerate() {
            if to & (1 << at) != 0 {
                let link = &mut master.links[hold];
                if model.late && link.flying.contains(command) {
                    link.stray.insert(command);
                }
                link.flying.insert(command);
            }
        }
    }

    /// Models `LockEntry::admit_outermost` and `Quorum::tally`: young masters are not asked.
    pub(super) fn ask(&mut self, model: &HoldModel, hold: usize, lease: u8) {
        self.holds[hold] = Hold { stage: Stage::Stands, ..Hold::default() };
        let old = (0..model.masters).filter(|at| !self.is_young(model, *at));
        let old = old.fold(0, |set, at| set | (1 << at));
        self.begin(model, hold, Command::Acquire { count: 1, lease, moves: false }, old);
    }

    /// Models `LockEntry::admit_nested`.
    pub(super) fn nest(&mut self, model: &HoldModel, hold: usize, lease: u8) {
        let count = self.holds[hold].depth() + 1;
        let moves = self.moves(model, hold, lease);
        self.begin(model, hold, Command::Acquire { count, lease, moves }, model.all());
    }

    /// Models `Hold::is_certain`.
    pub(super) fn is_certain(&self, model: &HoldModel, hold: usize) -> bool {
        let record = &self.holds[hold];
        let renews = |under: UnderWay| matches!(under.command, Command::Renew { .. }) && !under.doubted;
        let next = self.next_action(model, hold);
        record.lives()
            && record.sure >= LEASE / 2
            && record.command.is_none_or(renews)
            && next.is_none_or(|next| matches!(next, Command::Renew { .. } | Command::Shorten { .. }))
            && self.set(hold, LACKING) == 0
            && !record.unsettled
            && record.stands <= record.depth()
    }

    /// Models `LockEntry::nest`.
    pub(super) fn nest_locally(&mut self, model: &HoldModel, hold: usize) {
        let record = &mut self.holds[hold];
        let depth = record.depth();
        record.levels[usize::from(depth)] = WATCHED;
        if model.design == Design::LocalCounts {
            record.stands = depth + 1;
        }
        self.hand_out(model, hold, depth + 1);
    }

    /// Models `Hold::begin_backup_renewal`.
    pub(super) fn begin_backup_renewal(&mut self, hold: usize) {
        let record = &mut self.holds[hold];
        record.backup_renewal = Some(0);
        (record.perhaps, record.until) = (record.perhaps.max(LEASE), record.until.max(LEASE));
    }

    /// Models `Hold::renewed_by_backup`: the renewal runs, and a majority of answers moves the deadline.
    pub(super) fn end_backup_renewal(&mut self, model: &HoldModel, hold: usize, answers: bool) {
        let Some(age) = self.holds[hold].backup_renewal.take() else { return };
        let (token, field, mut renewed) = (self.holds[hold].token, hold as u8 + 1, 0);
        for at in 0..model.masters {
            let master = &mut self.masters[at];
            if master.former.0 == field {
                master.former.1 = master.former.1.max(LEASE);
                renewed += u32::from(model.design == Design::AnyServerConfirms);
                continue;
            }
            let renewal = Command::Renew { lease: LEASE, moves: false };
            let answer = master.run(hold, renewal, token, model.fenced, model.design);
            renewed += u32::from(matches!(answer, Answer::Done { .. }));
        }
        let record = &mut self.holds[hold];
        if answers && renewed >= model.majority() && record.lives() {
            record.sure = record.sure.max(LEASE - age);
        }
    }

    /// Models `Hold::begin`: returns whether a command that asks for this lease gives a key another end.
    fn moves(&self, model: &HoldModel, hold: usize, lease: u8) -> bool {
        self.holds[hold].shortens && lease > LEASE && model.design != Design::EndNotMoved
    }

    /// Models `LockEntry::begin_renewal`. `level` is one more than the level's index, or 0 for a watched level.
    pub(super) fn extend(&mut self, model: &HoldModel, hold: usize, level: u8) {
        let moves = self.moves(model, hold, LONGEST);
        self.begin(model, hold, Command::Renew { lease: LONGEST, moves }, model.all());
        if let Some(under) = &mut self.holds[hold].command {
            under.level = level;
        }
    }

    /// Models `LockEntry::leave`. If `now`, its guard sends the release, which needs no other command to be before
    /// it.
    pub(super) fn leave(&mut self, model: &HoldModel, hold: usize, level: usize, now: bool) {
        let record = &mut self.holds[hold];
        record.levels[level..].rotate_left(1);
        record.levels[2] = 0;
        record.tried &= record.stage == Stage::Gone;
        if let Some(under) = &mut record.command {
            under.level = match under.level.cmp(&(level as u8 + 1)) {
                std::cmp::Ordering::Less => under.level,
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Greater => under.level - 1,
            };
        }
        if now {
            self.release(model, hold);
        }
    }

    fn release(&mut self, model: &HoldModel, hold: usize) {
        let count = self.holds[hold].depth();
        let to = match model.design {
            Design::PartialRelease if count == 0 => model.all() & 0b011,
            _ => model.all(),
        };
        self.begin(model, hold, Command::Release { count }, to);
    }

    /// Models `Hold::next_action`, and whether a renewal is due (`Hold::is_renewable`).
    pub(super) fn next_action(&self, model: &HoldModel, hold: usize) -> Option<Command> {
        let record = &self.holds[hold];
        let lacking = self.set(hold, LACKING) != 0;
        let count_of_others = record.stands.clamp(1, record.depth().max(1));
        let repair = Command::Repair { count: count_of_others, lease: LEASE };
        if model.design == Design::RepairAfterEnd && lacking && !record.is_asked() {
            return Some(repair);
        }
        if record.command.is_some() {
            return None;
        }
        let count = record.depth();
        let renewal = Command::Renew { lease: LEASE, moves: false };
        match record.stage {
            Stage::None | Stage::Crashed => None,
            Stage::Gone => (self.set(hold, REMAINS) != 0).then_some(Command::END),
            _ if count == 0 => Some(Command::END),
            Stage::Lost { ends_key } => ends_key.then_some(Command::END),
            Stage::Stands if lacking => {
                let lease = if record.is_watched() { LEASE } else { record.end().max(1) };
                Some(Command::Repair { count: count_of_others, lease })
            }
            Stage::Stands if record.unsettled => {
                Some(Command::Settle { count, lease: if record.is_watched() { LEASE } else { 0 } })
            }
            Stage::Stands if record.stands > count => Some(Command::Release { count }),
            Stage::Stands if !record.is_watched() => None,
            Stage::Stands if record.sure < LEASE => Some(renewal),
            Stage::Stands if record.too_long > 0 => {
                let lease = match model.design {
                    Design::ShortenedBelowDeadline => LEASE,
                    _ => record.until.max(LEASE),
                };
                Some(Command::Shorten { lease, ends: record.too_long })
            }
            // If clocks are set back, renewals are due at any time, even long before a longer lease is over.
            Stage::Stands => (model.jumps > 0).then_some(renewal),
        }
    }

    /// Returns whether no other command of the hold has to precede what a request or a guard would send.
    pub(super) fn is_idle(&self, model: &HoldModel, hold: usize) -> bool {
        let next = self.next_action(model, hold);
        self.holds[hold].command.is_none()
            && next.is_none_or(|next| matches!(next, Command::Renew { .. } | Command::Shorten { .. }))
    }

    /// Models `Hold::due_command`: the background sends what is due.
    pub(super) fn background(&mut self, model: &HoldModel, hold: usize) {
        match self.next_action(model, hold) {
            None => {}
            // Nothing waits for the answers: `Rule::Repair`.
            Some(repair @ Command::Repair { .. }) => {
                let lacking = self.set(hold, LACKING);
                self.send(model, hold, repair, lacking);
                self.add(hold, REPAIRED, lacking);
                self.put(hold, ABSENT, self.set(hold, ABSENT) & !lacking);
                self.put(hold, LACKING, 0);
            }
            Some(Command::END) if self.holds[hold].stage == Stage::Gone => {
                self.begin(model, hold, Command::END, self.set(hold, REMAINS));
            }
            Some(Command::END) => self.release(model, hold),
            Some(command @ Command::Shorten { .. }) => {
                (self.holds[hold].too_long, self.holds[hold].shortens) = (0, true);
                self.begin(model, hold, command, model.all());
            }
            Some(command) => self.begin(model, hold, command, model.all()),
        }
    }

    /// Models `Tally::verdict`.
    fn verdict(&self, model: &HoldModel, hold: usize) -> Option<Verdict> {
        let record = &self.holds[hold];
        let under = record.command?;
        let answers = |is: &dyn Fn(usize, Answer) -> bool| {
            let masters = self.masters.iter().take(model.masters).enumerate();
            masters.fold(0, |set, (at, m)| set | (u8::from(is(at, m.links[hold].answer)) << at))
        };
        let fresh = matches!(under.command, Command::Acquire { count: 1, .. });
        // A master that has become old since its answer is believed; one that was old when it answered was counted
        // then.
        let votes = |at: usize, young: bool| !(young && self.is_young(model, at));
        let waiting = answers(&|_, answer| answer == Answer::Waiting);
        let failed = answers(&|_, answer| answer == Answer::Failed);
        let busy = answers(&|_, answer| answer == Answer::Busy);
        let unasked = answers(&|_, answer| answer == Answer::Unasked);
        let all_done = answers(&|_, answer| matches!(answer, Answer::Done { .. }));
        let done =
            answers(&|at, answer| matches!(answer, Answer::Done { young, .. } if !fresh || votes(at, young)));
        let gone = answers(&|at, answer| matches!(answer, Answer::Gone { young } if votes(at, young)));
        let all_gone = answers(&|_, answer| matches!(answer, Answer::Gone { .. }));
        let gone_young = all_gone & !gone;
        let given_up = if under.command.creates() { failed } else { 0 };
        let unanswered = Verdict { unanswered: waiting, given_up, ..Verdict::default() };
        if fresh {
            // `Tally::fresh`.
            let unknown = failed | (all_done & !done);
            if model.is_majority(done) {
                let lacking = unasked | busy;
                return Some(Verdict { result: Meaning::Done, lacking, ..unanswered });
            }
            let (remains, voters) = (done | unknown, done | busy);
            let refused = model.is_majority(voters);
            if model.is_majority(done | waiting) || !refused && model.is_majority(voters | waiting) {
                return None;
            }
            let result = if refused || remains == 0 { Meaning::Refused } else { Meaning::Unknown };
            return Some(Verdict { result, remains, ..unanswered });
        }
        let ended = Verdict { remains: failed, missing: all_gone, ..unanswered };
        if under.remains {
            return (waiting == 0).then_some(Verdict { result: Meaning::Gone, ..ended });
        }
        if under.command == Command::END {
            // `Tally::end`.
            let (mut yes, mut no) = (done | gone_young, gone);
            if record.tried {
                (yes, no) = (yes | no, 0);
            }
            if model.is_majority(yes) || model.is_blocking(no) {
                return Some(Verdict { result: Meaning::Gone, ..ended });
            }
            let open = model.is_majority(yes | waiting) || model.is_blocking(no | waiting);
            return (!open).then_some(Verdict::default());
        }
        // `Tally::standing`.
        let no = gone | busy;
        if model.is_majority(done) {
            return Some(Verdict { result: Meaning::Done, lacking: all_gone, ..unanswered });
        }
        if model.is_blocking(no) {
            let missing = if model.design == Design::OvertakenAcquire { 0 } else { no };
            return Some(Verdict {
                result: Meaning::Gone,
                remains: model.all() & !no,
                missing,
                ..unanswered
            });
        }
        let open = model.is_majority(done | waiting) || model.is_blocking(no | waiting);
        (!open).then_some(Verdict { lacking: gone_young, ..Verdict::default() })
    }

    pub(super) fn is_decided(&self, model: &HoldModel, hold: usize) -> bool {
        self.verdict(model, hold).is_some()
    }

    pub(super) fn is_awaited(&self, hold: usize) -> bool {
        self.masters.iter().any(|master| master.links[hold].answer == Answer::Waiting)
    }

    /// Models masters that do not answer in time. The commands that were sent to them may still run, if the network
    /// is late.
    pub(super) fn give_up(&mut self, model: &HoldModel, hold: usize) {
        let Some(command) = self.holds[hold].under_way() else { return };
        for link in self.masters.iter_mut().map(|master| &mut master.links[hold]) {
            if link.answer == Answer::Waiting {
                link.answer = Answer::Failed;
                give_up(link, command, model.late || model.streams);
            }
        }
    }

    /// Models that the future that waits for the answers is dropped.
    pub(super) fn abandon(&mut self, model: &HoldModel, hold: usize) {
        self.may_be_made_late(hold, self.asked(hold));
        self.give_up(model, hold);
        self.unknown(hold, 0);
    }

    /// Models `LockEntry::conclude` and `LockEntry::granted`.
    pub(super) fn conclude(&mut self, model: &HoldModel, hold: usize) {
        let (Some(verdict), Some(under)) = (self.verdict(model, hold), self.holds[hold].command) else {
            return;
        };
        let acknowledges = under.acknowledges;
        self.may_be_made_late(hold, verdict.given_up);
        match (under.command, verdict.result) {
            (_, Meaning::Unknown) => self.unknown(hold, verdict.lacking),
            (_, Meaning::Gone) if acknowledges => self.unknown(hold, 0),
            (_, Meaning::Refused) => self.not_run(hold, verdict),
            (_, Meaning::Gone) => {
                let asked = if under.remains { self.asked(hold) } else { model.all() };
                self.finish(hold);
                self.confirmed_gone(model, hold, asked, under, verdict);
            }
            (Command::Acquire { count: 1, lease, .. }, Meaning::Done)
                if self.must_acknowledge(model, hold) =>
            {
                // `Session::ask`: the token becomes known to a majority before it is handed out.
                self.put(hold, LACKING, verdict.lacking);
                let command = Command::Renew { lease, moves: false };
                self.begin(model, hold, command, model.all());
                self.holds[hold].command = Some(UnderWay { command, acknowledges: true, ..under });
            }
            (Command::Acquire { count, .. }, Meaning::Done) => {
                self.granted(model, hold, under, count, verdict.lacking);
            }
            (_, Meaning::Done) if acknowledges => {
                self.granted(model, hold, under, 1, self.set(hold, LACKING));
            }
            (_, Meaning::Done) => self.done(model, hold, under, verdict),
        }
    }

    /// Notes the highest token that was answered. Returns whether fewer than a majority answered it.
    fn must_acknowledge(&mut self, model: &HoldModel, hold: usize) -> bool {
        let tokens = self.masters.iter().filter_map(|master| match master.links[hold].answer {
            Answer::Done { token, .. } => Some(token),
            _ => None,
        });
        let tokens: Vec<u8> = tokens.collect();
        let highest = tokens.iter().copied().max().unwrap_or(0);
        self.holds[hold].token = highest;
        let agreed = tokens.iter().filter(|token| **token == highest).count() as u32 >= model.majority();
        !agreed && model.design != Design::TokenNotWrittenBack
    }

    fn asked(&self, hold: usize) -> Masters {
        self.masters_where(|links| links[hold].answer != Answer::Unasked)
    }

    fn finish(&mut self, hold: usize) {
        let record = &mut self.holds[hold];
        record.until = record.until.max(record.command.map_or(0, |under| under.command.lease()));
        record.command = None;
        self.masters.iter_mut().for_each(|master| master.links[hold].answer = Answer::Unasked);
    }

    fn granted(&mut self, model: &HoldModel, hold: usize, under: UnderWay, count: u8, lacking: Masters) {
        self.finish(hold);
        let lease = under.command.lease();
        let reply = model.design == Design::DeadlineFromReply;
        let ends = if reply { lease } else { lease.saturating_sub(under.age) };
        let record = &mut self.holds[hold];
        let over = if record.depth() == 0 { ends } else { record.end() };
        if record.stage != Stage::Stands || over == 0 && model.design != Design::DeadlineIgnored {
            // The grant is undone.
            record.unsettled = true;
            return;
        }
        let level = if lease == LEASE { WATCHED } else { ends + 1 };
        let depth = record.depth();
        record.levels[usize::from(depth)] = level;
        record.sure = record.sure.max(ends);
        record.stands = count;
        record.unsettled |= under.doubted;
        self.put(hold, LACKING, lacking);
        if count == 1 {
            // `Differences::note_absent`.
            self.add(hold, ABSENT, lacking & !self.set(hold, REPAIRED));
        }
        self.hand_out(model, hold, count);
    }

    /// Updates what the properties are about.
    fn hand_out(&mut self, model: &HoldModel, hold: usize, count: u8) {
        let granted = self.holds[hold];
        self.reentered_lost |= count > 1 && granted.overtaken;
        if count > 1 {
            return;
        }
        if model.fenced {
            self.token_fell |= granted.token <= self.token;
            self.token = granted.token;
        }
        for other in self.holds.iter_mut().enumerate().filter(|(other, _)| *other != hold).map(|(_, it)| it) {
            other.overtaken |= other.depth() > 0;
        }
    }

    fn done(&mut self, model: &HoldModel, hold: usize, under: UnderWay, verdict: Verdict) {
        let ends = self.masters.iter().map(|master| match master.links[hold].answer {
            Answer::Done { ends, .. } => ends,
            _ => 0,
        });
        let ends = ends.max().unwrap_or(0);
        self.finish(hold);
        let age = if model.design == Design::DeadlineFromReply { 0 } else { under.age };
        let until = under.command.lease().saturating_sub(age);
        let record = &mut self.holds[hold];
        match under.command {
            Command::Renew { .. } => {
                if let Some(level) = usize::from(under.level).checked_sub(1) {
                    record.levels[level] = record.levels[level].max(until + 1);
                }
                // `Hold::renewed`.
                if record.is_watched() {
                    record.too_long = ends;
                }
            }
            // The TTL that it has found may be another one.
            Command::Shorten { .. } => {
                self.put(hold, LACKING, verdict.lacking);
                return;
            }
            Command::Settle { count, .. } => {
                if record.stage == Stage::Stands {
                    record.unsettled = under.doubted;
                }
                record.stands = count;
            }
            Command::Release { count } => record.stands = count,
            _ => {}
        }
        if record.stage == Stage::Stands {
            record.sure = record.sure.max(until);
            self.put(hold, LACKING, verdict.lacking);
        }
    }

    /// Models `LockEntry::not_run`: a refused acquire is ended where it was granted, and where it may still be.
    fn not_run(&mut self, hold: usize, verdict: Verdict) {
        self.finish(hold);
        self.holds[hold].stage = Stage::Gone;
        self.put(hold, REMAINS, verdict.remains);
        self.put(hold, UNANSWERED, verdict.unanswered);
    }

    /// Models `Hold::unknown`.
    fn unknown(&mut self, hold: usize, lacking: Masters) {
        let Some(under) = self.holds[hold].command else { return };
        self.finish(hold);
        let record = &mut self.holds[hold];
        record.perhaps = record.perhaps.max(under.command.lease());
        record.tried |= under.command == Command::END;
        record.unsettled |= record.stage == Stage::Stands;
        if record.lives() {
            self.put(hold, LACKING, lacking);
        }
    }

    /// Models `Hold::confirmed_gone`.
    fn confirmed_gone(
        &mut self,
        model: &HoldModel,
        hold: usize,
        asked: Masters,
        under: UnderWay,
        verdict: Verdict,
    ) {
        let absent = self.set(hold, ABSENT);
        let over = if under.doubted { 0 } else { asked };
        let answered = asked & !verdict.unanswered & !verdict.remains;
        let ended = if under.command == Command::END { answered } else { 0 };
        let again = self.note_end(model, hold, ended, verdict.missing);
        let remains = (verdict.remains & !absent) | (self.set(hold, REMAINS) & !over);
        self.put(hold, REMAINS, remains | again);
        let unanswered = verdict.unanswered & !absent;
        self.put(hold, UNANSWERED, unanswered | (self.set(hold, UNANSWERED) & !asked));
        self.put(hold, LACKING, 0);
        let record = &mut self.holds[hold];
        (record.stage, record.unsettled, record.sure, record.perhaps) = (Stage::Gone, false, 0, 0);
    }

    /// Models `Differences::note_end`.
    fn note_end(&mut self, model: &HoldModel, hold: usize, ended: Masters, missing: Masters) -> Masters {
        let (open, repaired) = (self.set(hold, OPEN), self.set(hold, REPAIRED));
        self.put(hold, OPEN, open & !ended);
        match model.design {
            Design::OneEnd => 0,
            Design::OneMaker => open & missing,
            _ => open & (missing | (repaired & ended)),
        }
    }

    /// Models `Hold::may_be_made_late`.
    fn may_be_made_late(&mut self, hold: usize, given_up: Masters) {
        let open = match self.holds[hold].stage {
            Stage::Gone => self.set(hold, REMAINS | UNANSWERED),
            _ => !0,
        };
        self.add(hold, OPEN, given_up & open);
    }

    /// Handles the answer to a command that ran.
    pub(super) fn answered(
        &mut self,
        model: &HoldModel,
        hold: usize,
        at: usize,
        command: Command,
        answer: Answer,
    ) {
        let link = &mut self.masters[at].links[hold];
        link.flying.remove(command);
        if let Command::Settle { .. } | Command::Repair { .. } = command {
            link.sets &= !UNKNOWN;
        }
        if self.holds[hold].under_way() == Some(command) && link.answer == Answer::Waiting {
            link.answer = answer;
        } else {
            self.straggled(model, hold, at, command, matches!(answer, Answer::Done { .. }), false);
        }
    }

    /// Gives up the commands that have no answer after their verdict.
    pub(super) fn lose_stragglers(&mut self, model: &HoldModel, hold: usize, at: usize) {
        let stragglers = self.stragglers(hold, at);
        for command in stragglers.iter() {
            give_up(&mut self.masters[at].links[hold], command, model.late || model.streams);
            self.straggled(model, hold, at, command, false, true);
        }
    }

    /// Returns the commands on their way to a master whose answers the command under way does not wait for.
    pub(super) fn stragglers(&self, hold: usize, at: usize) -> Commands {
        let link = self.masters[at].links[hold];
        let mut flying = link.flying.union(link.ran);
        if let Some(command) = self.holds[hold].under_way().filter(|_| link.answer == Answer::Waiting) {
            flying.remove(command);
        }
        flying
    }

    /// Models `LockEntry::straggled`: a master's answer after the verdict. `there` means that the master did as
    /// asked, `unknown` that the outcome is unknown.
    fn straggled(
        &mut self,
        model: &HoldModel,
        hold: usize,
        at: usize,
        command: Command,
        there: bool,
        unknown: bool,
    ) {
        if model.design == Design::RepairAfterEnd && matches!(command, Command::Repair { .. }) {
            return;
        }
        let one: Masters = 1 << at;
        let left = command.creates() && (there || unknown);
        if self.holds[hold].stage == Stage::None {
            if left {
                // `Hold::left_behind`.
                self.holds[hold].stage = Stage::Gone;
                self.put(hold, REMAINS, one);
                self.put(hold, OPEN, if unknown { one } else { 0 });
            }
            return;
        }
        let acquired = matches!(command, Command::Acquire { count: 1, .. });
        let ended = command == Command::END;
        let missing = !there && !unknown;
        if acquired || ended {
            self.put(hold, UNANSWERED, self.set(hold, UNANSWERED) & !one);
        }
        if acquired && missing {
            let repaired = self.set(hold, REPAIRED);
            self.add(hold, ABSENT, one & !repaired);
            self.put(hold, REMAINS, self.set(hold, REMAINS) & !self.set(hold, ABSENT));
        }
        let record = self.holds[hold];
        let gone = record.stage == Stage::Gone;
        let is_in = |which: u8| self.set(hold, which) & one != 0;
        if left {
            // `Hold::made_late_at`.
            let is_made_again = record.under_way() == Some(Command::END) && is_in(REPAIRED);
            if !is_made_again && (unknown || record.command.is_some() && !gone) {
                self.add(hold, OPEN, one);
            }
            if is_made_again || gone {
                self.remains_at(hold, one);
            }
        } else if ended && gone {
            // `Hold::ended_late_at`.
            let again = match unknown {
                true => one & !self.set(hold, ABSENT),
                false => self.note_end(model, hold, one, if missing { one } else { 0 }),
            };
            if again != 0 {
                self.remains_at(hold, again);
            }
        } else if missing && record.lives() && !ended && !matches!(command, Command::Repair { .. }) {
            self.add(hold, LACKING, one);
        }
    }

    fn remains_at(&mut self, hold: usize, masters: Masters) {
        self.add(hold, REMAINS, masters);
        self.doubt(hold);
    }

    fn doubt(&mut self, hold: usize) {
        if let Some(under) = &mut self.holds[hold].command {
            under.doubted = true;
        }
    }

    /// Models `LockEntry::doubt_all`: a sign that a hold may be gone.
    pub(super) fn doubt_hold(&mut self, hold: usize) {
        self.doubt(hold);
        let record = &mut self.holds[hold];
        record.unsettled |= record.lives();
    }

    /// Resets fields that are no longer read, so that states that differ only by them are one.
    fn forget_unused(&mut self, model: &HoldModel, hold: usize) {
        let record = &mut self.holds[hold];
        if record.stage == Stage::Gone {
            // Its guards have nothing left to end.
            record.levels = [0; 3];
        } else if record.stage != Stage::Stands && record.depth() > 0 {
            record.levels = [1, 0, 0];
        }
        if record.depth() == 0 {
            (record.sure, record.stands, record.overtaken) = (0, 0, false);
            record.unsettled = false;
        }
        if !record.lives() && !record.is_asked() || model.leases == [LEASE] {
            record.perhaps = 0;
        }
        // A re-entry under way may be granted though the level above it has gone.
        if record.depth() == 0 && record.command.is_none() || model.jumps == 0 {
            (record.until, record.too_long, record.shortens) = (0, 0, false);
        }
        if let Some(under) = &mut record.command {
            under.age = under.age.min(under.command.lease());
        }
        if !record.lives() {
            for link in self.masters.iter_mut().map(|master| &mut master.links[hold]) {
                link.sets &= !UNKNOWN;
            }
        }
    }

    /// Models `Hold::is_over`: returns whether nothing is left to do or to report, so that the hold is forgotten.
    pub(super) fn tidy(&mut self, model: &HoldModel) {
        for hold in 0..self.holds.len() {
            for link in self.masters.iter_mut().map(|master| &mut master.links[hold]) {
                link.overtaken &= link.has_maker();
            }
            if self.holds[hold] != Hold::default() {
                self.forget_unused(model, hold);
            }
            let record = &self.holds[hold];
            let idle = record.stage == Stage::Gone
                && record.depth() == 0
                && record.command.is_none()
                && record.backup_renewal.is_none();
            let over = idle && self.set(hold, REMAINS | UNANSWERED) == 0;
            if over || record.stage == Stage::Crashed && self.is_traceless(hold) {
                self.holds[hold] = Hold { token: record.token, ..Hold::default() };
                for link in self.masters.iter_mut().map(|master| &mut master.links[hold]) {
                    link.sets &= UNKNOWN;
                }
            }
            if self.holds[hold].stage == Stage::None && self.is_traceless(hold) {
                // It is as good as a hold that never was.
                self.holds[hold].token = 0;
                self.masters.iter_mut().for_each(|master| master.links[hold].sets = 0);
            }
        }
    }

    /// Returns whether it has no field on a master, and no command on its way to one.
    pub(super) fn is_traceless(&self, hold: usize) -> bool {
        self.masters.iter().all(|master| {
            let link = &master.links[hold];
            master.field != hold as u8 + 1 && link.is_quiet()
        })
    }

    /// Models that the client of these holds dies. Another one takes its place, with fresh holds.
    pub(super) fn crash(&mut self, model: &HoldModel, holds: std::ops::Range<usize>) {
        for hold in holds {
            self.finish(hold);
            let token = self.holds[hold].token;
            self.holds[hold] = Hold { stage: Stage::Crashed, token, ..Hold::default() };
            for link in self.masters.iter_mut().map(|master| &mut master.links[hold]) {
                let sent = std::mem::take(&mut link.flying);
                if model.late {
                    link.stray = link.stray.union(sent);
                }
                (link.ran, link.sets) = (Commands::default(), 0);
            }
        }
    }
}

/// Stops waiting for an answer. A command that has not run may still run, if the network is late.
fn give_up(link: &mut Link, command: Command, late: bool) {
    link.sets |= UNKNOWN;
    if late && link.flying.contains(command) {
        link.stray.insert(command);
    }
    link.flying.remove(command);
    link.ran.remove(command);
}
