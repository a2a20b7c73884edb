//! What the backends report by themselves, passed on to the entries that it is about.

use std::sync::{Arc, OnceLock, Weak};

use crate::base::{Events, Moment};
use crate::session::session::Session;
use crate::table::LockEntry;

/// Passes what the backends report on to the session, which is made after them.
#[derive(Default)]
pub(crate) struct EventRelay(OnceLock<Weak<Session>>);

impl EventRelay {
    pub(crate) fn relay_to(&self, session: &Arc<Session>) {
        // Set once, before anything that matters is reported.
        let _ = self.0.set(Arc::downgrade(session));
    }

    fn notify(&self, channel: &str, visit: impl Fn(&mut LockEntry, Moment)) {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return };
        for name in session.table(|table, _| table.names_of(channel)) {
            session.visit_known(&name, |entry, _, at| visit(entry, at));
        }
    }

    fn notify_all(&self, visit: impl FnMut(&mut LockEntry, Moment)) {
        if let Some(session) = self.0.get().and_then(Weak::upgrade) {
            session.visit_all(visit);
        }
    }
}

/// What one master reports.
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
        // A server that came back empty is noticed now, not after a third of the lease.
        self.relay.notify_all(|entry, at| {
            entry.ask_all(at.now);
            entry.orphans.retry(self.master, at.now);
            entry.freed(at.now);
        });
    }

    fn subscribed(&self, channel: &str) {
        self.relay.notify(channel, |entry, at| entry.subscribed(self.master, at));
    }

    fn message(&self, channel: &str) {
        self.relay.notify(channel, |entry, at| entry.message(self.master, at.now));
    }

    fn not_subscribed(&self, channel: &str) {
        self.relay.notify(channel, |entry, at| entry.unsubscribed(self.master, at));
    }

    fn subscriptions_lost(&self) {
        self.relay.notify_all(|entry, at| entry.unsubscribed(self.master, at));
    }
}

#[cfg(test)]
mod tests;
