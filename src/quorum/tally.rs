//! Combines the answers of several masters to one command. With a single master, its answer decides.

mod looks;

use std::num::NonZeroU64;
use std::time::Duration;

use crate::base::{Failure, MasterSet, Outcome, Spread};
use crate::error::{Error, ErrorKind};
use crate::holder::Holder;
use crate::wire::keys::Keys;
use crate::wire::{CallResult, Reply, Rule, Token};

/// The masters' answers to one command, as one answer.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) result: CallResult,
    pub(crate) spread: Spread,
    /// The request is refused although some masters granted it: other requests may have got the other masters in the same way.
    pub(crate) split: bool,
    /// The fencing token of a grant.
    pub(crate) token: Option<Token>,
}

impl Verdict {
    /// The verdict of a single master that did as asked.
    pub(super) const DONE: Verdict =
        Verdict { result: Ok(Reply::Done), spread: Spread::NONE, split: false, token: None };

    /// Returns the part of the verdict that the entry has to know.
    pub(crate) fn answer(&self) -> Result<&Reply, Outcome> {
        self.result.as_ref().map_err(|failure| failure.outcome)
    }

    /// Combines a grant with the renewal by which its holder tried to make the highest token known to a majority.
    pub(crate) fn acknowledged(self, renewal: Verdict) -> Verdict {
        let unavailable = |why: &str| Error::new(ErrorKind::Unavailable, why);
        let error = match renewal.result {
            Ok(Reply::Done | Reply::Longer(..)) => return self,
            Ok(Reply::Deferred(why)) => {
                unavailable(&format!("its fencing counter could not be raised: {why}; try again later"))
            }
            Ok(_) => unavailable("it was lost before its fencing token was known to a majority; try again"),
            Err(failure) => failure.error,
        };
        // The acquire was granted, and the renewal that was sent after it may have run.
        Verdict { result: Err(Failure::unknown(error)), ..self }
    }

    /// Adds the name of the lock to the error.
    pub(super) fn on(mut self, keys: &Keys) -> Verdict {
        self.result =
            self.result.map_err(|failure| Failure { error: failure.error.on(&keys.name), ..failure });
        self
    }
}

/// The votes on one command.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How the votes are counted: see [`Rule`].
    rule: Rule,
    masters: usize,
    majority: usize,
    pending: MasterSet,
    /// Masters that did as asked.
    done: MasterSet,
    /// Masters that lack the field, except young ones.
    gone: MasterSet,
    /// Young masters that lack the field. They do not vote against the hold: they forgot it, and nobody else can have been granted the
    /// lock there, so the field may be written to them again.
    gone_young: MasterSet,
    /// Masters with a hold of somebody else.
    busy: MasterSet,
    /// How long each of those holds lasts.
    ttls: Vec<Duration>,
    /// The holders, if they are known.
    holders: Vec<Holder>,
    /// Masters on which nobody holds the lock.
    free: MasterSet,
    /// Foreign masters: the key of the lock, or of its counter, holds something else there.
    foreign: MasterSet,
    /// Masters that could not lower the count, or raise the counter: the hold stands there.
    deferred: MasterSet,
    /// Masters whose answer is an error, or is missing.
    failed: MasterSet,
    /// The failed masters on which the command may have run, and young ones that granted.
    unknown: MasterSet,
    /// The failed masters whose error does not pass by itself.
    lasting: MasterSet,
    /// Masters without a vote: young ones that granted, and young ones that were not asked.
    barred: MasterSet,
    /// What a foreign master has instead.
    obstacle: Option<Reply>,
    /// The longest TTL of a key that stays longer than a renewal requested, and the number that stands for its end in a
    /// command that shortens it.
    longer: Option<(Duration, NonZeroU64)>,
    /// Why one of the masters deferred the command.
    deferral: Option<Reply>,
    /// The last failure, or the last one whose error does not pass by itself.
    failure: Option<Failure>,
    /// The tokens of the masters that granted.
    tokens: Vec<u64>,
    /// A reply other than `Done` of a master that did as asked.
    special: Option<Reply>,
    /// How many fields are in the line; 0 if this one is not among them.
    in_line: u32,
}

impl Tally {
    pub(super) fn new(rule: Rule, masters: usize, asked: MasterSet) -> Tally {
        Tally { rule, masters, majority: masters / 2 + 1, pending: asked, ..Tally::default() }
    }

    /// Excludes a master that is not asked, since it has no vote.
    pub(super) fn bar(&mut self, master: usize) {
        self.pending.remove(master);
        self.barred.insert(master);
    }

    /// Returns whether this master is still to be asked or to answer.
    pub(super) fn awaits(&self, master: usize) -> bool {
        self.pending.contains(master)
    }

    /// Counts the answer of a master, or a missing one. `young`: it has no vote on fresh grants.
    pub(super) fn count(&mut self, master: usize, young: bool, answer: CallResult) {
        self.pending.remove(master);
        match answer {
            Ok(Reply::Done | Reply::Token(_)) if young && self.rule == Rule::Fresh => {
                // The master restarted while it was asked. If the request is refused, its field has to be ended there; if it is
                // granted, the field is there already.
                self.barred.insert(master);
                self.unknown.insert(master);
            }
            // A move on a young master is no vote, and is ended unless a majority has moved the hold: 1. A claim is used, on this
            // master too. 2. A replica that still has the claim's field takes the master's place. 3. The claim is used again. If this
            // master had a vote, both uses could have a majority.
            Ok(Reply::Done) if young && self.rule == Rule::Claim => self.barred.insert(master),
            Ok(Reply::Token(token)) => {
                self.done.insert(master);
                self.tokens.push(token);
            }
            Ok(Reply::Done) => self.done.insert(master),
            Ok(Reply::Longer(left, ends)) => {
                self.done.insert(master);
                self.longer = self.longer.max(Some((left, ends)));
            }
            // Only a single master gives these answers.
            Ok(reply @ (Reply::Ended(_) | Reply::Waiters(_))) => {
                self.done.insert(master);
                self.special = Some(reply);
            }
            Ok(Reply::Gone) if young => self.gone_young.insert(master),
            Ok(Reply::Gone) => self.gone.insert(master),
            Ok(Reply::Free) => self.free.insert(master),
            Ok(Reply::Busy(ttl, holder)) => self.refused(master, ttl, holder),
            Ok(Reply::InLine(ttl, holder, length)) => {
                self.refused(master, ttl, Some(holder));
                self.in_line = length;
            }
            Ok(Reply::Nameless(ttl)) => self.refused(master, ttl, None),
            Ok(reply @ (Reply::NotALock(_) | Reply::NotACounter(_))) => {
                self.foreign.insert(master);
                self.obstacle = Some(reply);
            }
            Ok(reply @ Reply::Deferred(_)) => {
                self.deferred.insert(master);
                self.deferral = Some(reply);
            }
            Err(failure) => {
                self.failed.insert(master);
                if failure.outcome == Outcome::Unknown {
                    self.unknown.insert(master);
                }
                let lasts = failure.error.kind() != ErrorKind::Unavailable;
                if lasts {
                    self.lasting.insert(master);
                }
                // An error that lasts is kept, in whatever order they come, since it decides the kind of the whole error.
                if lasts || self.lasting.is_empty() {
                    self.failure = Some(failure);
                }
            }
        }
    }

    fn refused(&mut self, master: usize, ttl: Duration, holder: Option<Box<Holder>>) {
        self.busy.insert(master);
        self.ttls.push(ttl);
        self.holders.extend(holder.map(|holder| *holder));
    }

    /// Returns the verdict as soon as no later answer can change what it means to the caller. Its details may still change, and are
    /// reported as stragglers: the spread, a time, the token, or whether the command was deferred.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        match self.rule {
            Rule::IsHeld | Rule::HeldFor | Rule::Who if self.is_majority(self.free) => {
                Some(self.with_reply(Reply::Free))
            }
            Rule::Fresh => self.fresh(),
            Rule::Standing | Rule::Claim => self.standing(),
            Rule::End { repeated } => self.end(repeated),
            Rule::Remains => self.pending.is_empty().then(|| self.ended(self.done_as_one())),
            Rule::Repair => Some(self.with_reply(Reply::Done)),
            Rule::Force => self.force(),
            Rule::IsHeld => self.is_held(),
            Rule::HeldFor => self.held_for(),
            Rule::Who => self.who(),
            Rule::Waiters => self.special.clone().map(|reply| self.with_reply(reply)),
        }
    }

    /// Returns the verdict once all have answered.
    pub(super) fn decided(&self) -> Verdict {
        self.verdict().unwrap_or_else(|| self.undecided())
    }

    fn is_majority(&self, masters: MasterSet) -> bool {
        masters.len() >= self.majority
    }

    /// Returns whether the masters other than these are too few for a majority.
    fn is_blocking(&self, masters: MasterSet) -> bool {
        self.masters - masters.len() < self.majority
    }

    fn fresh(&self) -> Option<Verdict> {
        if self.is_majority(self.done) {
            // `lacking` leaves out masters that failed, which get the field when they are back, and young masters that granted, which have
            // it. No end has to reach those that are `missing` it.
            let lacking = self.barred.union(self.busy).without(self.unknown);
            let missing = lacking.union(self.failed).without(self.unknown);
            let spread = Spread { lacking, missing, ..self.spread() };
            return Some(Verdict { spread, token: self.token(), ..self.with_reply(Reply::Done) });
        }
        if self.is_majority(self.done.union(self.pending)) {
            return None;
        }
        let remains = self.done.union(self.unknown);
        let voters = self.done.union(self.busy).union(self.foreign);
        if !self.is_majority(voters) && self.is_majority(voters.union(self.pending)) {
            // Either a majority refuses or a majority does not answer: the answers still to come decide which.
            return None;
        }
        let refused = if !self.is_majority(voters) {
            let outcome = if remains.is_empty() { Outcome::NotRun } else { Outcome::Unknown };
            Err(Failure { outcome, error: self.error() })
        } else if self.is_blocking(self.foreign) {
            Ok(self.foreign_reply())
        } else {
            match (self.again(), self.holder().map(Box::new)) {
                (left, Some(holder)) if self.in_line > 0 => Ok(Reply::InLine(left, holder, self.in_line)),
                (left, holder) => Ok(Reply::Busy(left, holder)),
            }
        };
        let (spread, split) = (Spread { remains, ..self.spread() }, !self.done.is_empty());
        Some(Verdict { result: refused, spread, split, token: None })
    }

    fn token(&self) -> Option<Token> {
        let highest = self.tokens.iter().copied().max()?;
        let as_high = self.tokens.iter().filter(|token| **token == highest).count();
        Some(Token { highest, agreed: as_high >= self.majority })
    }

    fn standing(&self) -> Option<Verdict> {
        let stands = self.done.union(self.deferred);
        let lacking = self.gone.union(self.gone_young);
        let no = self.gone.union(self.busy).union(self.foreign).union(self.free);
        if self.is_majority(stands) {
            let longer = self.longer.map_or(Reply::Done, |(left, ends)| Reply::Longer(left, ends));
            let deferral = self.deferral.clone().filter(|_| !self.is_majority(self.done));
            let spread = Spread { lacking, ..self.spread() };
            return Some(Verdict { spread, ..self.with_reply(deferral.unwrap_or(longer)) });
        }
        if self.is_blocking(no) {
            // The fields on the other masters are no longer a hold.
            let remains = MasterSet::first(self.masters).without(no);
            let spread = Spread { remains, missing: no, unanswered: MasterSet::NONE, ..self.spread() };
            return Some(Verdict { spread, ..self.with_reply(Reply::Gone) });
        }
        if self.is_majority(stands.union(self.pending)) || self.is_blocking(no.union(self.pending)) {
            return None;
        }
        // The field may be put on young masters that lack it, as they have voted for nobody else. That depends on what old masters answer
        // (`Hold::lacked_in_doubt`), so all answers are awaited.
        if !self.gone_young.is_empty() && !self.pending.is_empty() {
            return None;
        }
        let spread = Spread { lacking: self.gone_young, missing: self.gone, ..self.spread() };
        Some(Verdict { spread, ..self.undecided() })
    }

    fn end(&self, repeated: bool) -> Option<Verdict> {
        let (mut yes, mut no) = (self.done.union(self.gone_young), self.gone);
        if repeated {
            (yes, no) = (yes.union(no), MasterSet::NONE);
        }
        if self.is_majority(yes) {
            let reply = if self.done.is_empty() { Reply::Gone } else { self.done_as_one() };
            return Some(self.ended(reply));
        }
        if self.is_blocking(no) {
            return Some(self.ended(Reply::Gone));
        }
        let is_open = self.is_majority(yes.union(self.pending)) || self.is_blocking(no.union(self.pending));
        (!is_open).then(|| self.undecided())
    }

    /// Returns the reply of a single master that did as asked. Each of several masters has its own subscribers.
    fn done_as_one(&self) -> Reply {
        self.special.clone().filter(|_| self.masters == 1).unwrap_or(Reply::Done)
    }

    fn force(&self) -> Option<Verdict> {
        for (masters, reply) in [(self.done, Reply::Done), (self.free, Reply::Free)] {
            if self.is_majority(masters) {
                return Some(self.with_reply(reply));
            }
        }
        self.once_all_answered(if self.done.is_empty() { Reply::Free } else { Reply::Done })
    }

    /// Decides once all masters have answered, or too many of them are foreign. `reply`: the verdict if a majority gave an answer that
    /// counts.
    fn once_all_answered(&self, reply: Reply) -> Option<Verdict> {
        if self.is_blocking(self.foreign) {
            return Some(self.with_reply(self.foreign_reply()));
        }
        if !self.pending.is_empty() {
            return None;
        }
        let counts = self.is_majority(self.done.union(self.free).union(self.busy));
        Some(if counts { self.with_reply(reply) } else { self.undecided() })
    }

    fn with_reply(&self, reply: Reply) -> Verdict {
        Verdict { result: Ok(reply), spread: self.spread(), split: false, token: None }
    }

    /// Returns the verdict that there is no majority.
    fn undecided(&self) -> Verdict {
        // Masters that were not asked count as if the command ran there: `Unknown` is always safe.
        let ran = self.masters > self.failed.len() || !self.unknown.is_empty();
        let outcome = if ran { Outcome::Unknown } else { Outcome::NotRun };
        Verdict { result: Err(Failure { outcome, error: self.error() }), ..self.with_reply(Reply::Done) }
    }

    /// Returns the part of the spread that no verdict decides.
    fn spread(&self) -> Spread {
        let given_up = match self.rule {
            // Masters that gave no answer and may still run the command. A young master that granted has answered.
            Rule::Fresh | Rule::Standing | Rule::Claim => self.failed.within(self.unknown),
            _ => MasterSet::NONE,
        };
        Spread { unanswered: self.pending, given_up, ..Spread::NONE }
    }

    /// Returns the verdict on the end of a hold. Masters that did not confirm it may still have the field.
    fn ended(&self, reply: Reply) -> Verdict {
        let missing = self.gone.union(self.gone_young);
        let spread = Spread { remains: self.failed, missing, ..self.spread() };
        Verdict { spread, ..self.with_reply(reply) }
    }

    fn foreign_reply(&self) -> Reply {
        self.obstacle.clone().unwrap_or_else(|| Reply::NotALock("something else".to_owned()))
    }

    /// Returns one of the failures, with the numbers of masters that answered and failed. If none failed, the error says why there
    /// is no majority.
    fn error(&self) -> Error {
        let (young, masters) = (self.barred.union(self.gone_young).len(), self.masters);
        match &self.failure {
            Some(failure) if masters == 1 => return failure.error.clone(),
            Some(failure) => {
                let failed = self.failed.len();
                let uncounted = self.failed.union(self.pending).union(self.barred).union(self.gone_young);
                let answered = masters - uncounted.len();
                let young = match young {
                    0 => String::new(),
                    1 => ", 1 has no vote yet".to_owned(),
                    _ => format!(", {young} have no vote yet"),
                };
                let counted = format!(
                    "{answered} of {masters} masters gave an answer that counts, but {} are needed; {failed} failed{young}; one failure",
                    self.majority
                );
                let error = failure.error.clone().prefixed(&counted);
                // An error that does not pass by itself ends a request. So it is reported as one only if such errors alone keep a majority
                // from forming: one master with a wrong password must not end requests that only have to wait for another one.
                return match self.is_blocking(self.lasting) {
                    true => error,
                    false => error.that_passes(),
                };
            }
            None => {}
        }
        let why = if young > 0 {
            format!(
                "{young} of {masters} masters have no vote yet: they were started a short while ago, or have been replicas before this \
                 client connected (`master_replid2` in INFO), and may lack what was granted before; that is over after \
                 `restart_delay`: try again then, or connect with a `restart_delay` of zero if nothing can have been held before"
            )
        } else {
            format!("the {masters} masters do not agree, and there is no majority; try again")
        };
        Error::new(ErrorKind::Unavailable, why)
    }
}

#[cfg(test)]
mod tests;
