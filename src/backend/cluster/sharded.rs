//! The subscriptions to channels: to a sharded one at the node that serves its slot, to a plain one at any node.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::route::HOPS;
use crate::backend::cluster::shard_reports::{Note, Report};
use crate::backend::cluster::slots::slot;
use crate::backend::connection::Subscriber;
use crate::backend::server::RedisServer;
use crate::backend::{Backend, with_events};
use crate::base::Events;
use crate::wire::keys::{is_for_hints, keys_of};

/// Returns whether the messages on a channel are sharded. Messages about releases are not if the channel is in another slot than the
/// locks' keys, since then no script may publish to it. Hints always are.
fn is_sharded(channel: &str) -> bool {
    if is_for_hints(channel) {
        return true;
    }
    let at = slot(channel);
    let mut keys = keys_of(channel).peekable();
    keys.peek().is_some() && keys.all(|key| slot(key) == at)
}

impl Nodes {
    /// Returns whether the messages on a channel are sharded here. Waiters and releases follow the same rule.
    pub(super) fn shards(&self, channel: &str) -> bool {
        self.inbox.is_some() && is_sharded(channel)
    }
}

/// Chooses the node of each wanted channel. Only its task reports to the session, so that the reports about a channel are in order: a
/// confirmation by a node that is no longer used is not reported after the loss.
pub(super) struct Subscriptions {
    pub(super) nodes: Arc<Nodes>,
    pub(super) events: Weak<dyn Events>,
    /// The subscriber for channels that are not sharded.
    pub(super) plain: Subscriber,
    /// Receives what `plain` reports, which only references it weakly.
    pub(super) _reports: Arc<dyn Events>,
    pub(super) channels: HashMap<Arc<str>, Channel>,
}

/// A wanted channel.
#[derive(Default)]
pub(super) struct Channel {
    /// The node that it is subscribed at, or that was asked to subscribe it.
    at: Option<Weak<RedisServer>>,
    /// Whether it is subscribed as a plain channel. If it is at a node too, that node has not confirmed it yet.
    plain: bool,
    /// Whether its subscription was confirmed: as a plain channel if `plain` is set, otherwise by its node.
    is_on: bool,
    /// Redirections since the last confirmation.
    hops: u32,
}

impl Channel {
    /// Returns whether this subscriber (of a node, or the one for plain channels) has subscribed to it, or was asked to.
    fn is_at(&self, source: Option<&Weak<RedisServer>>) -> bool {
        match source {
            Some(server) => self.at.as_ref().is_some_and(|at| at.ptr_eq(server)),
            None => self.plain,
        }
    }

    /// Returns whether its subscription was confirmed to this subscriber.
    fn is_on_at(&self, source: Option<&Weak<RedisServer>>) -> bool {
        self.is_on && self.plain == source.is_none() && self.is_at(source)
    }
}

impl Subscriptions {
    /// Runs until it is aborted.
    pub(super) async fn run(mut self, mut notes: mpsc::UnboundedReceiver<Note>) {
        let mut changes = self.nodes.changes.subscribe();
        loop {
            // Biased: what could arrive without end comes last.
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => self.follow(),
                note = notes.recv() => match note {
                    Some(Note::Want(channel)) => self.want(&channel),
                    Some(Note::Leave(channel)) => self.leave(&channel),
                    Some(Note::Report(source, report)) => self.handle(source.as_ref(), report),
                    None => return,
                },
            }
        }
    }

    fn want(&mut self, channel: &Arc<str>) {
        let known = self.channels.entry(channel.clone()).or_default();
        let at = known.at.as_ref().and_then(Weak::upgrade);
        if let Some(server) = &at {
            server.subscribe(channel);
        }
        if known.plain {
            self.plain.subscribe(channel);
        } else if at.is_none() {
            match self.nodes.shards(channel) {
                true => self.assign(channel),
                false => self.make_plain(channel),
            }
        }
        self.nodes.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    fn leave(&mut self, channel: &Arc<str>) {
        let Some(left) = self.channels.remove(channel) else { return };
        if let Some(server) = left.at.and_then(|at| at.upgrade()) {
            server.unsubscribe(channel);
        }
        if left.plain {
            self.plain.unsubscribe(channel);
        }
        let wanted = !self.channels.is_empty();
        self.nodes.wanted.send_if_modified(|known| std::mem::replace(known, wanted) != wanted);
    }

    /// Subscribes at the node that serves the slot, and no longer at any other.
    fn assign(&mut self, channel: &Arc<str>) {
        let owner = self.nodes.owner(slot(channel)).ok().map(|node| node.server);
        let Some(known) = self.channels.get_mut(channel) else { return };
        let to = owner.as_ref().map(Arc::downgrade);
        if to.is_some() && known.is_at(to.as_ref()) {
            return;
        }
        if let Some(before) = std::mem::replace(&mut known.at, to).and_then(|at| at.upgrade()) {
            before.unsubscribe(channel);
        }
        let was_on = known.is_on;
        known.is_on &= known.plain;
        let is_lost = !known.is_on && (was_on || owner.is_none());
        if let Some(owner) = owner {
            owner.subscribe(channel);
        }
        if is_lost {
            with_events(&self.events, |events| events.not_subscribed(channel));
        }
    }

    /// Subscribes where the slots are now, after a change in the cluster. A channel that was made plain is tried there as a sharded one
    /// again, since the node may know sharded channels by now.
    fn follow(&mut self) {
        let channels: Vec<_> =
            self.channels.keys().filter(|channel| self.nodes.shards(channel)).cloned().collect();
        channels.iter().for_each(|channel| self.assign(channel));
    }

    fn make_plain(&mut self, channel: &Arc<str>) {
        let Some(known) = self.channels.get_mut(channel) else { return };
        if let Some(server) = known.at.take().and_then(|at| at.upgrade()) {
            server.unsubscribe(channel);
        }
        if known.plain {
            return;
        }
        known.is_on = false;
        if is_for_hints(channel) {
            // There are no plain hints: the lock has no line here.
            return with_events(&self.events, |events| events.not_subscribed(channel));
        }
        known.plain = true;
        self.plain.subscribe(channel);
    }

    /// Handles a report of the subscriber of a node or, with `None`, of that for plain channels.
    fn handle(&mut self, source: Option<&Weak<RedisServer>>, report: Report) {
        match report {
            Report::Subscribed(channel) => {
                let Some(known) = self.at(&channel, source) else { return };
                let was_plain = source.is_some() && std::mem::take(&mut known.plain);
                let was_on = std::mem::replace(&mut known.is_on, true);
                known.hops = 0;
                if was_plain {
                    self.plain.unsubscribe(&channel);
                }
                with_events(&self.events, |events| {
                    if was_plain && was_on {
                        // Sharded messages that were published before did not arrive: the session has to look again.
                        events.not_subscribed(&channel);
                    }
                    events.subscribed(&channel);
                });
            }
            Report::Message(channel, text) => {
                if self.at(&channel, source).is_some() {
                    with_events(&self.events, |events| events.message(&channel, &text));
                }
            }
            Report::NotSubscribed(channel) => self.lose(&channel, source),
            Report::Lost => {
                let channels: Vec<_> = self.channels.keys().cloned().collect();
                channels.iter().for_each(|channel| self.lose(channel, source));
            }
            Report::Moved(channel, to) => {
                let Some(known) = self.at(&channel, source) else { return };
                known.hops += 1;
                if known.hops > HOPS {
                    // The node is asked again after a pause.
                    known.hops = 0;
                    return;
                }
                self.nodes.moved(slot(&channel), &to.mapped(self.nodes.address_map()));
                self.assign(&channel);
            }
            Report::NotSharded(channel) => {
                if self.at(&channel, source).is_some() {
                    self.make_plain(&channel);
                }
            }
        }
    }

    /// Reports that the subscription by this subscriber has failed or was lost. Reports that even if it is not confirmed yet, since the
    /// confirmation of an earlier one may have been reported.
    fn lose(&mut self, channel: &str, source: Option<&Weak<RedisServer>>) {
        let known = self.at(channel, source);
        if let Some(known) = known.filter(|known| !known.is_on || known.is_on_at(source)) {
            known.is_on = false;
            with_events(&self.events, |events| events.not_subscribed(channel));
        }
    }

    /// Returns the channel, if that subscriber has subscribed to it or was asked to.
    fn at(&mut self, channel: &str, source: Option<&Weak<RedisServer>>) -> Option<&mut Channel> {
        self.channels.get_mut(channel).filter(|known| known.is_at(source))
    }
}

#[cfg(test)]
mod tests;
