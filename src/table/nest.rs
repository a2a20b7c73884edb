//! A nested level from which nothing else follows: it is added and removed by a look at its hold, without a place in the line.

use crate::base::Moment;
use crate::owner::Owner;
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::level::{Grant, Level};
use crate::table::numbers::Numbers;
use crate::table::queue::Queue;

/// Returns the hold, if only one is known and one renewed level more or less changes nothing but its levels: no request of its tree waits,
/// no branches are proven, and no level ends before the hold does. A visit would find nothing to wake, to send, to forget, or to look at
/// sooner.
fn simple<'a>(holds: &'a mut [Hold], queue: &Queue) -> Option<&'a mut Hold> {
    let [hold] = holds else { return None };
    let first = hold.levels.first()?;
    let is_simple = first.watched && hold.limited().is_empty() && !queue.concerns(&first.owner);
    is_simple.then_some(hold)
}

impl LockEntry {
    /// Grants a renewed level to this owner, a new one that has made no request yet, if [`admit`](LockEntry::admit) would have it
    /// enter the hold of its tree, and nothing else follows. `at` is `None` if nothing is granted here without a command.
    pub(crate) fn nest(
        &mut self,
        owner: &Owner,
        fenced: bool,
        numbers: &Numbers,
        at: impl FnOnce() -> Option<Moment>,
    ) -> Option<Grant> {
        let hold = simple(&mut self.holds, &self.queue)?;
        let enters = hold.admits(owner) && (!fenced || hold.fence.is_some());
        if !enters || !self.is_open || !self.outage.is_over() {
            return None;
        }
        let at = at()?;
        // So it is not lost either, and does not end within half a lease.
        if !hold.is_certain(at.now) {
            return None;
        }
        let level = Level::nested(numbers.next(), owner.settle_at(&self.position));
        // The masters have counted nothing.
        Some(hold.add_level(level, hold.stands))
    }

    /// Takes the innermost level out of its hold as [`leave`](LockEntry::leave) would, if no command follows. Returns its owner, to be
    /// dropped once nothing is locked. Its guard has the rest of the level.
    pub(crate) fn unnest(&mut self, id: u64, level: u64, at: Moment) -> Option<Owner> {
        let hold =
            simple(&mut self.holds, &self.queue).filter(|hold| hold.id == id && at.now < hold.end())?;
        // The masters have counted no more levels than are left. That is at least one, so the last level never goes here.
        let is_done = hold.is_in_sync() && hold.stands < hold.count();
        let Level { owner, .. } = hold.levels.pop_if(|last| is_done && last.id == level)?;
        owner.forget(&self.position);
        Some(owner)
    }
}
