//! The renewals that the thread `nestlock` makes while a runtime is blocked. Their answers change deadlines, and nothing else.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Lease, Moment, after};
use crate::table::entry::LockEntry;
use crate::table::hold::Hold;
use crate::table::level::Level;
use crate::table::table::LockTable;
use crate::wire::keys::Keys;
use crate::wire::{Action, Call};

/// A renewal that the watchdog does not know of. It is not one of the hold's commands: it has no number, and its result is noted
/// only if the hold was renewed.
#[derive(Clone, Debug)]
pub(crate) struct BackupRenewal {
    pub(crate) hold: u64,
    pub(crate) call: Call,
}

impl LockTable {
    /// Begins the renewals of all holds that are good for no longer than `left`. Each runs within the time `longest`, or never.
    pub(crate) fn begin_backup_renewals(
        &mut self,
        left: Duration,
        longest: Duration,
        now: Instant,
    ) -> Vec<BackupRenewal> {
        let holds = self.entries_mut().flat_map(|entry| &mut entry.holds);
        holds.filter_map(|hold| hold.begin_backup_renewal(left, longest, now)).collect()
    }

    /// Returns whether a hold that is renewed is good for no longer than `left`.
    pub(crate) fn has_late(&mut self, left: Duration, now: Instant) -> bool {
        self.entries_mut().flat_map(|entry| &entry.holds).any(|hold| hold.is_late(left, now))
    }

    /// Returns whether a lock has a hold that is renewed.
    pub(crate) fn is_watched(&self, keys: &Keys) -> bool {
        self.entry_of(keys).is_some_and(|entry| entry.holds.iter().any(Hold::is_watched))
    }
}

impl LockEntry {
    /// Called when a majority of the masters has renewed a hold without the watchdog, by a command that was sent at `sent`. `at` is now.
    pub(crate) fn renewed_by_backup(&mut self, hold: u64, lease: Lease, sent: Moment, at: Moment) {
        if let Some(hold) = self.holds.iter_mut().find(|standing| standing.id == hold) {
            hold.renewed_by_backup(lease, sent, at);
        }
    }
}

impl Hold {
    /// Returns whether it has a level that is to be renewed, and its end has not come. A level whose `max_hold` is over does not
    /// count, even if that was not noticed yet.
    fn is_renewed_at(&self, now: Instant) -> bool {
        let counts = |level: &Level| {
            level.watched && level.loss().is_none() && level.max_hold.is_none_or(|limit| now < limit.at())
        };
        self.lives() && now < self.deadline() && self.levels.iter().any(counts)
    }

    fn is_late(&self, left: Duration, now: Instant) -> bool {
        self.is_renewed_at(now) && self.valid_until <= after(now, left)
    }

    fn begin_backup_renewal(
        &mut self,
        left: Duration,
        longest: Duration,
        now: Instant,
    ) -> Option<BackupRenewal> {
        if !self.is_late(left, now) {
            return None;
        }
        let lease = self.timing.lease;
        // The renewal may run even if it is never answered.
        let until = after(after(now, longest), lease.duration());
        self.maybe_until = self.maybe_until.max(Some(until.into()));
        self.gone_by = self.gone_by.max(until);
        let call = Call { field: self.field.clone(), ..Call::of_lock(&self.keys, Action::Renew { lease }) };
        Some(BackupRenewal { hold: self.id, call })
    }

    /// Moves the deadline, and nothing else. Doubts and due work remain: the runtime handles them as soon as it runs. A hold that
    /// is past its end is lost, even if that was not noticed yet.
    fn renewed_by_backup(&mut self, lease: Lease, sent: Moment, at: Moment) {
        let until = lease.valid_until(sent.now, self.timing.drift);
        if self.is_renewed_at(at.now) && until > self.valid_until {
            self.valid_until = until;
            self.slept = sent.slept;
        }
    }
}

#[cfg(test)]
mod tests;
