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
mod tests {
    use super::*;

    /// Makes the turns after a whole one, before which these sessions had the lock.
    fn behind(sessions: &[&str]) -> Turns {
        let mut turns = Turns::default();
        sessions.iter().for_each(|session| turns.saw(session));
        turns.end(true);
        turns
    }

    #[test]
    fn others_go_first_until_each_of_them_had_a_turn() {
        let mut turns = behind(&["a", "b", "a", "c"]);
        let due = [0; 5].map(|_| {
            turns.note();
            turns.until_due()
        });
        assert_eq!(due, [2, 1, 0, 0, 0].map(|missed| missed * MISSED));
    }

    /// No other request of this process waited: its hold did not pass on, so it keeps nobody waiting for long.
    #[test]
    fn who_has_not_had_a_whole_turn_lets_nobody_go_first() {
        let mut turns = behind(&["a", "b", "c"]);
        turns.end(false);
        turns.note();
        assert_eq!(turns.until_due(), Duration::ZERO);
        assert_eq!(Turns::default().until_due(), Duration::ZERO);
    }

    #[test]
    fn who_has_not_had_the_lock_for_long_is_not_waited_for() {
        for (releases, known) in [(10, 2), (11, 0)] {
            let mut turns = behind(&["a", "b"]);
            (0..releases).for_each(|_| turns.note());
            turns.end(true);
            assert_eq!(turns.until_due(), known * MISSED, "{releases}");
        }
        // With many processes it waits for longer.
        let mut turns = behind(&["a", "b", "c", "d", "e"]);
        (0..13).for_each(|_| turns.note());
        turns.end(true);
        assert_eq!(turns.until_due(), 5 * MISSED);
    }

    /// Known processes keep their slots; a new one is ignored while all are taken.
    #[test]
    fn as_many_are_known_as_there_is_room_for() {
        let names: Vec<String> = (0..40).map(|no| no.to_string()).collect();
        let mut turns = behind(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(turns.until_due(), MOST as u32 * MISSED);
        (0..97).for_each(|_| turns.note());
        turns.saw("another");
        turns.end(true);
        assert_eq!(turns.until_due(), MISSED);
    }

    #[test]
    fn of_the_pauses_for_nobody_one_in_four_is_made() {
        let mut turns = Turns::default();
        let skipped = [0; 16].map(|_| turns.skips_a_pause());
        assert_eq!(
            (skipped.iter().filter(|skips| !**skips).count(), skipped[3], skipped[15]),
            (4, false, false)
        );
    }

    /// 1. Two others are known. 2. One of them releases the lock, and the other one does not come. 3. This process has a turn.
    #[test]
    fn who_does_not_come_when_others_let_it_go_first_is_not_waited_for_again() {
        for (comes, known) in [(false, 1), (true, 2)] {
            let mut turns = behind(&["a", "b"]);
            turns.note();
            turns.saw("a");
            assert_eq!(turns.until_due(), MISSED);
            turns.waits();
            if comes {
                turns.saw("b");
            }
            turns.end(true);
            assert_eq!(turns.until_due(), known * MISSED);
        }
    }
}
