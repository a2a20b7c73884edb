//! `Turns`: how often other processes have the lock between the turns of this one, and how many such processes there are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How much longer a process lets others go first: for each release of theirs that it missed, and for each turn that is due to one
/// of them.
const MISSED: Duration = Duration::from_micros(500);

/// At most this many other processes are distinguished.
const MOST: usize = 32;

/// A process counts as gone once it has not had the lock for this many turns for each known process, and for each of [`FEW`] at
/// least.
const ROUNDS: usize = 3;

const FEW: usize = 4;

/// One of this many pauses is made if nobody is known who would go first. A process that only polls, or is subscribed elsewhere, is
/// unknown until it has had the lock once.
const ONE_IN: u8 = 4;

/// The turns of one lock. `None` while nobody waits for it.
#[derive(Debug, Default)]
pub(super) struct Turns(Option<Box<Others>>);

/// Releases of other processes, as far as their messages arrived, and the processes that were seen to have the lock.
#[derive(Debug, Default)]
struct Others {
    since: u32,
    before: u32,
    /// All turns, those of this process included; they serve as a clock.
    turns: u64,
    /// When the last turn of this process ended.
    ended: u64,
    /// Each process with the turn at which it was last seen.
    seen: Vec<(u64, u64)>,
    /// Whether this process had the lock for as long as it may in its last turn.
    whole: bool,
    /// Whether it has let others go first, and nobody was seen to have the lock since.
    in_vain: bool,
    /// How many pauses were skipped since the last one.
    skipped: u8,
}

impl Turns {
    /// Called when another process has released the lock.
    pub(super) fn note(&mut self) {
        let others = self.0.get_or_insert_default();
        others.since = others.since.saturating_add(1);
        others.turns += 1;
        others.in_vain = false;
    }

    /// Called when holds of this session had the lock at a refusal of this process.
    pub(super) fn saw(&mut self, session: &str) {
        let mut hasher = DefaultHasher::new();
        session.hash(&mut hasher);
        self.0.get_or_insert_default().saw(hasher.finish());
    }

    /// Returns whether no other process is known, and none has released the lock since the turn before the last one of this process
    /// ended.
    pub(super) fn are_ours(&self) -> bool {
        self.0.as_ref().is_none_or(|others| others.since == 0 && others.before == 0 && others.known() == 0)
    }

    /// Called if nobody is known who would go first. Returns whether the pause is skipped.
    pub(super) fn skips_a_pause(&mut self) -> bool {
        let others = self.0.get_or_insert_default();
        others.skipped = (others.skipped + 1) % ONE_IN;
        others.skipped > 0
    }

    /// Called when a turn of this process is over. `whole`: it had the lock for as long as it may. Returns how much longer than
    /// usual this process should let others go first: if they had fewer turns between its last two turns than between the two
    /// before, it came too early.
    pub(super) fn end(&mut self, whole: bool) -> Duration {
        let others = match &mut self.0 {
            Some(others) => others,
            none if whole => none.get_or_insert_default(),
            None => return Duration::ZERO,
        };
        // 1. Many processes have the lock now and then. 2. This process would let all of them go first, at each release of one.
        if std::mem::take(&mut others.in_vain) {
            others.seen.retain(|(_, at)| *at >= others.ended);
        }
        let missed = others.before.saturating_sub(others.since);
        (others.since, others.before, others.whole) = (0, others.since, whole);
        // Processes that are seen from now on are seen later.
        others.turns += 1;
        others.ended = others.turns;
        MISSED.saturating_mul(missed)
    }

    /// Returns for how long this process lets others go first after one of them has released the lock: for each known process that
    /// has had no turn since this one's last. The process whose last turn is longest ago lets nobody go first.
    ///
    /// Otherwise the fastest process is always next, and that is the same few of many: a server notifies them in one order.
    pub(super) fn until_due(&self) -> Duration {
        let Some(others) = self.0.as_ref().filter(|others| others.whole) else { return Duration::ZERO };
        MISSED.saturating_mul(others.known().saturating_sub(others.since))
    }

    /// Called when this process lets them go first.
    pub(super) fn waits(&mut self) {
        self.0.iter_mut().for_each(|others| others.in_vain = true);
    }
}

impl Others {
    fn saw(&mut self, process: u64) {
        self.in_vain = false;
        let (now, oldest) = (self.turns, self.oldest());
        if let Some((_, at)) = self.seen.iter_mut().find(|(known, _)| *known == process) {
            *at = now;
            return;
        }
        self.seen.retain(|(_, at)| *at >= oldest);
        if self.seen.len() < MOST {
            self.seen.push((process, now));
        }
    }

    /// Returns the turn before which a process that was seen last counts as gone.
    fn oldest(&self) -> u64 {
        self.turns.saturating_sub((ROUNDS * self.seen.len().max(FEW)) as u64)
    }

    /// Returns how many processes are known.
    fn known(&self) -> u32 {
        let oldest = self.oldest();
        self.seen.iter().filter(|(_, at)| *at >= oldest).count() as u32
    }
}

#[cfg(test)]
mod tests;
