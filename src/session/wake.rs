//! What the backend tells by itself, brought to the rooms that it is about.

use std::sync::{Arc, OnceLock, Weak};

use crate::base::{Events, Moment};
use crate::session::session::Session;
use crate::table::Room;

/// Brings what the backend tells to the session, which is made after it.
#[derive(Default)]
pub(crate) struct Doorbell(OnceLock<Weak<Session>>);

impl Doorbell {
    pub(crate) fn lead_to(&self, session: &Arc<Session>) {
        // Set once, before anything can be heard that matters.
        let _ = self.0.set(Arc::downgrade(session));
    }

    fn ring(&self, channel: &str, visit: impl Fn(&mut Room, Moment)) {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return };
        for name in session.registry(|registry, _| registry.names_of(channel)) {
            session.visit_known(&name, |room, _, at| visit(room, at));
        }
    }

    fn ring_all(&self, visit: impl FnMut(&mut Room, Moment)) {
        if let Some(session) = self.0.get().and_then(Weak::upgrade) {
            session.visit_all(visit);
        }
    }
}

/// One master's part of the bell.
pub(crate) struct Bell {
    doorbell: Arc<Doorbell>,
    node: usize,
}

impl Bell {
    pub(crate) fn of(doorbell: Arc<Doorbell>, node: usize) -> Arc<dyn Events> {
        Arc::new(Bell { doorbell, node })
    }
}

impl Events for Bell {
    fn reconnected(&self) {
        // A server that came back empty is noticed now, not after a third of the lease.
        self.doorbell.ring_all(|room, at| {
            room.ask_all(at.now);
            room.remnants.retry(self.node, at.now);
            room.freed(at.now);
        });
    }

    fn subscribed(&self, channel: &str) {
        self.doorbell.ring(channel, |room, at| room.hears_now(self.node, at));
    }

    fn message(&self, channel: &str) {
        self.doorbell.ring(channel, |room, at| room.message(self.node, at.now));
    }

    fn not_subscribed(&self, channel: &str) {
        self.doorbell.ring(channel, |room, at| room.hears_no_more(self.node, at));
    }

    fn subscriptions_lost(&self) {
        self.doorbell.ring_all(|room, at| room.hears_no_more(self.node, at));
    }
}
