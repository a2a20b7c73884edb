//! Passes the reports of the backends to the entries that they are about.

use std::sync::{Arc, OnceLock, Weak};

use crate::base::{Events, Moment, gated};
use crate::session::session::Session;
use crate::table::LockEntry;
use crate::wire::keys::{self, Keys};
use crate::wire::{self, Hint, LEFT_TO_OTHERS};

/// The session that gets the reports of the backends. It is made after them, and set before anything that matters is reported.
pub(crate) type EventRelay = OnceLock<Weak<Session>>;

impl Session {
    /// Visits the locks whose releases a channel reports.
    fn notify(&self, channel: &str, visit: impl Fn(&mut LockEntry, Moment)) {
        for name in self.table(|table, _| table.names_of(channel)) {
            self.visit_known(&name, |entry, at| visit(entry, at));
        }
    }

    /// Returns whether this is the channel of the hints about one lock; if so, notes whether they arrive from now on.
    fn set_hints_of_lock(&self, channel: &str, on: bool) -> bool {
        let lock = self.hints.releases_of(channel);
        lock.inspect(|lock| self.notify(lock, |entry, at| entry.hints_of_lock(on, at.now))).is_some()
    }

    /// Gives back a lock that was handed to a field of this process that is not known here. For example: 1. The server restarts with data
    /// that are a second old. 2. In its line are fields that have left it. 3. Each of them would keep the lock idle for a second. It is not
    /// simply ended, since it may have been granted and handed over as a claim before this message came.
    ///
    /// Few at a time, since anybody who may publish can send such messages; and not if this process may not publish, since the next process
    /// would lose its place without a message. What is not declined is idle until its time is over.
    fn decline(&self, name: &str, number: u64) {
        let permit = self.declines.clone().try_acquire_owned();
        let (Ok(permit), Some(runtime), Some(me)) = (permit, &self.runtime, self.me.upgrade()) else {
            return;
        };
        if self.hints.is_mute()
            || self.check_open().is_err()
            || keys::check(name, &self.config.prefix).is_err()
        {
            return;
        }
        let keys = self.table(|table, _| table.entry(name).map(|entry| entry.keys.clone()));
        let keys = keys.unwrap_or_else(|| Arc::new(Keys::new(&self.config.prefix, name)));
        let field = wire::field(&self.uuid, number);
        drop(runtime.spawn(gated(Box::pin(async move {
            me.quorum.decline(&keys, field, me.timing.line).await;
            drop(permit);
        }))));
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

    fn session(&self) -> Option<Arc<Session>> {
        self.relay.get()?.upgrade()
    }
}

impl Events for MasterEvents {
    fn reconnected(&self) {
        self.moved(&|_| true);
    }

    fn moved(&self, is_concerned: &dyn Fn(&str) -> bool) {
        let Some(session) = self.session() else { return };
        // This way a server that restarted empty is noticed now, not only after a third of the lease.
        session.visit_all(|entry, at| {
            if is_concerned(&entry.keys.key) {
                entry.doubt_all(at.now);
                entry.orphans.retry(self.master, at.now);
                entry.head_asks_once_more(at.now);
            }
        });
    }

    fn subscribed(&self, channel: &str) {
        let Some(session) = self.session() else { return };
        if session.hints.set(channel, true) {
            // Announces that this process knows of lines, for each lock that it already waits for.
            session.table(|table, _| {
                let companions =
                    table.channels().filter_map(|channel| session.hints.companion(channel, true));
                companions.for_each(|companion| session.quorum.subscribe(&companion, true));
            });
            return session.visit_all(|entry, at| entry.hints_change(at.now));
        }
        if !session.set_hints_of_lock(channel, true) {
            session.notify(channel, |entry, at| entry.subscribed(self.master, at));
        }
    }

    fn message(&self, channel: &str, text: &str) {
        let Some(session) = self.session() else { return };
        if !session.hints.arrive_on(channel) {
            return session.notify(channel, |entry, at| match text {
                LEFT_TO_OTHERS => entry.left_to_others(self.master, at.now),
                _ => entry.message(self.master, at.now),
            });
        }
        if let Some(hint) = Hint::read(text)
            && let Some(name) = hint.key.strip_prefix(&*session.config.prefix)
        {
            let is_known = session.visit_known(name, |entry, at| entry.hinted(hint, at.now));
            if hint.wait.is_none() && is_known != Some(true) {
                session.decline(name, hint.number);
            }
        }
    }

    fn not_subscribed(&self, channel: &str) {
        let Some(session) = self.session() else { return };
        if session.hints.set(channel, false) {
            return session.visit_all(|entry, at| entry.hints_change(at.now));
        }
        if !session.set_hints_of_lock(channel, false) {
            session.notify(channel, |entry, at| entry.unsubscribed(self.master, at));
        }
    }

    fn subscriptions_lost(&self) {
        let Some(session) = self.session() else { return };
        session.hints.lost();
        session.visit_all(|entry, at| entry.unsubscribed(self.master, at));
    }
}

#[cfg(test)]
mod tests;
