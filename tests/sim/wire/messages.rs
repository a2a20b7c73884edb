//! The connection for messages: subscriptions, and what the master publishes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Events, lock};
use crate::sim::master::Run;
use crate::sim::wire::{Incoming, Link, State};

/// The master's end of a connection for messages.
pub(super) struct MessageEnd {
    link: Weak<Link>,
    connection: u64,
    run: Run,
}

impl MessageEnd {
    pub(super) fn new(link: Weak<Link>, connection: u64, run: Run) -> Arc<MessageEnd> {
        Arc::new(MessageEnd { link, connection, run })
    }
}

impl Events for MessageEnd {
    fn reconnected(&self) {}
    fn subscribed(&self, _: &str) {}
    fn not_subscribed(&self, _: &str) {}
    fn subscriptions_lost(&self) {}

    fn message(&self, channel: &str, text: &str) {
        if let Some(link) = self.link.upgrade() {
            link.publish(self.connection, self.run, channel.into(), text.to_owned());
        }
    }
}

impl Link {
    /// Returns when a message that is sent now on the connection for messages arrives.
    pub(super) fn message_arrives_at(&self, state: &mut State, takes: Duration) -> Instant {
        let at = (Instant::now() + takes).max(state.message_sent);
        state.message_sent = at;
        at
    }

    pub(super) fn send_subscribe(&self, channel: Arc<str>, request: u64) {
        let mut state = lock(&self.state);
        let (connection, run) = (state.connection, state.run.number);
        let takes = self.key(request).with(108).time(self.network.latency);
        let at = self.message_arrives_at(&mut state, takes);
        drop(state);
        self.add(at, move |link| link.subscribe_there((connection, run), channel, request));
    }

    fn subscribe_there(&self, (connection, run): (u64, u64), channel: Arc<str>, request: u64) {
        let network = &self.network;
        let master = &network.masters[self.master];
        if master.run().number != run || network.is_cut(self.process, self.master) {
            return;
        }
        if let Some(until) = network.stalled_until(self.master) {
            lock(&self.state).held += 1;
            return self.add(until, move |link| {
                lock(&link.state).held -= 1;
                link.subscribe_there((connection, run), channel, request);
            });
        }
        let mut state = lock(&self.state);
        if state.connection != connection || state.closed {
            return;
        }
        let client = state.client;
        let at = self.message_arrives_at(&mut state, self.key(request).with(109).time(network.latency));
        if network.polls(self.process) {
            drop(state);
            return self
                .add(at, move |link| link.deliver(Incoming::Refused { connection, request, channel }));
        }
        state.subscribed.insert(channel.clone());
        drop(state);
        let now = master.now();
        master.memory.visit(|store| {
            store.subscribe(client, &channel);
            store.run_backlog(now);
        });
        self.add(at, move |link| {
            if !link.network.is_cut(link.process, link.master) {
                link.deliver(Incoming::Subscribed { connection, request, channel });
            }
        });
    }

    pub(super) fn unsubscribe_there(&self, connection: u64, client: u64, channel: Arc<str>) {
        let held = (lock(&self.state).held > 0).then(Instant::now);
        if let Some(until) = self.network.stalled_until(self.master).or(held) {
            // This comes after a subscribe request that also waits there, even if it arrives at the moment when the master continues.
            return self.add(until, move |link| link.unsubscribe_there(connection, client, channel));
        }
        let mut state = lock(&self.state);
        // A client sends its requests one after another, so a channel that is wanted again by now stays subscribed.
        if state.connection == connection && !state.wanted.contains_key(&channel) {
            state.subscribed.remove(&channel);
            drop(state);
            self.network.masters[self.master].memory.visit(|store| store.unsubscribe(client, &channel));
        }
    }

    /// Sends a message as the master does.
    fn publish(&self, connection: u64, run: Run, channel: Arc<str>, text: String) {
        let mut state = lock(&self.state);
        if state.connection != connection || self.network.masters[self.master].run() != run {
            return;
        }
        state.messages += 1;
        let key = self.key(state.messages).with(110);
        let (lost, takes) = self.network.message(self.process, self.master, key);
        let at = self.message_arrives_at(&mut state, takes);
        drop(state);
        if lost {
            return self.note(|| format!("the message of {channel} is lost"));
        }
        self.is_late(at);
        self.add(at, move |link| {
            if !link.network.is_cut(link.process, link.master) {
                link.deliver(Incoming::Message { connection, channel, text });
            }
        });
    }
}
