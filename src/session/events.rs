//! Passes the reports of the backends to the entries that they are about.

use std::sync::{Arc, OnceLock, Weak};

use crate::base::{Events, Moment};
use crate::session::session::Session;
use crate::table::LockEntry;
use crate::wire::{Hint, LEFT_TO_OTHERS};

/// Passes the reports of the backends to the session, which is made after them.
#[derive(Default)]
pub(crate) struct EventRelay(OnceLock<Weak<Session>>);

impl EventRelay {
    pub(crate) fn relay_to(&self, session: &Arc<Session>) {
        // This is set once, before anything that matters is reported.
        let _ = self.0.set(Arc::downgrade(session));
    }

    fn notify(&self, channel: &str, visit: impl Fn(&mut LockEntry, Moment)) {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return };
        for name in session.table(|table, _| table.names_of(channel)) {
            session.visit_known(&name, |entry, _, at| visit(entry, at));
        }
    }

    /// Handles a message on the channel of hints. Returns whether it was one.
    fn hint(&self, channel: &str, text: &str) -> bool {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return false };
        if !session.hints.are_of(channel) {
            return false;
        }
        if let Some(hint) = Hint::read(text)
            && let Some(name) = hint.key.strip_prefix(&*session.config.prefix)
        {
            session.visit_known(name, |entry, _, at| entry.hinted(hint, at.now));
        }
        true
    }

    /// Returns whether this is the channel of this process's hints; if so, notes whether its messages arrive from now on.
    fn hears(&self, channel: &str, on: bool) -> bool {
        let session = self.0.get().and_then(Weak::upgrade);
        session.is_some_and(|session| session.hints.set(channel, on))
    }

    /// Returns whether this is the channel of the hints about one lock; if so, visits the lock.
    fn hears_of_lock(&self, channel: &str, visit: impl Fn(&mut LockEntry, Moment)) -> bool {
        let session = self.0.get().and_then(Weak::upgrade);
        let lock = session.and_then(|session| session.hints.lock_of(channel));
        lock.inspect(|lock| self.notify(lock, visit)).is_some()
    }

    /// Announces, for each lock that this process waits for already, that it knows of lines. Called when hints begin to arrive.
    fn is_known(&self) {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return };
        session
            .table(|table, _| table.channels().for_each(|channel| session.subscribe_beside(channel, true)));
    }

    fn hears_nothing(&self) {
        if let Some(session) = self.0.get().and_then(Weak::upgrade) {
            session.hints.lost();
        }
    }

    fn notify_all(&self, visit: impl FnMut(&mut LockEntry, Moment)) {
        if let Some(session) = self.0.get().and_then(Weak::upgrade) {
            session.visit_all(visit);
        }
    }
}

/// Receives the reports of one master.
pub(crate) struct MasterEvents {
    relay: Arc<EventRelay>,
    master: usize,
}

impl MasterEvents {
    pub(crate) fn of(relay: Arc<EventRelay>, master: usize) -> Arc<dyn Events> {
        Arc::new(MasterEvents { relay, master })
    }
}

impl Events for MasterEvents {
    fn reconnected(&self) {
        // This way a server that came back empty is noticed now, not only after a third of the lease.
        self.relay.notify_all(|entry, at| {
            entry.doubt_all(at.now);
            entry.orphans.retry(self.master, at.now);
            entry.head_asks_once_more(at.now);
        });
    }

    fn subscribed(&self, channel: &str) {
        if self.relay.hears(channel, true) {
            self.relay.is_known();
            return self.relay.notify_all(|entry, at| entry.hints_begin(at.now));
        }
        if !self.relay.hears_of_lock(channel, |entry, at| entry.hints_of_lock(true, at.now)) {
            self.relay.notify(channel, |entry, at| entry.subscribed(self.master, at));
        }
    }

    fn message(&self, channel: &str, text: &str) {
        if !self.relay.hint(channel, text) {
            self.relay.notify(channel, |entry, at| match text {
                LEFT_TO_OTHERS => entry.left_to_others(self.master, at.now),
                _ => entry.message(self.master, at.now),
            });
        }
    }

    fn not_subscribed(&self, channel: &str) {
        if self.relay.hears(channel, false)
            || self.relay.hears_of_lock(channel, |entry, at| entry.hints_of_lock(false, at.now))
        {
            return;
        }
        self.relay.notify(channel, |entry, at| entry.unsubscribed(self.master, at));
    }

    fn subscriptions_lost(&self) {
        self.relay.hears_nothing();
        self.relay.notify_all(|entry, at| entry.unsubscribed(self.master, at));
    }
}

#[cfg(test)]
mod tests;
