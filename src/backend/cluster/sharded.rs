//! Subscriptions to sharded channels, each at the node that serves its slot.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::backend::Backend;
use crate::backend::cluster::nodes::{Node, Nodes};
use crate::backend::cluster::shard_reports::{Inbox, Note, Report, ShardReports};
use crate::backend::cluster::slots::slot;
use crate::backend::connection::Subscriber;
use crate::backend::server::RedisServer;
use crate::base::Events;
use crate::wire::keys::{is_for_hints, keys_of};

/// How many redirections of a subscription are followed without a pause. Two nodes that redirect to each other may both be about to
/// learn of a change.
const HOPS: u32 = 4;

/// Returns whether the messages on a channel are sharded. Those of releases are not if the channel is in another slot than the keys of the
/// locks, since no script may publish to it then. Hints always are.
pub(super) fn is_sharded(channel: &str) -> bool {
    if is_for_hints(channel) {
        return true;
    }
    let at = slot(channel);
    let mut keys = keys_of(channel).peekable();
    keys.peek().is_some() && keys.all(|key| slot(key) == at)
}

/// The handle of the task.
pub(super) struct ShardedSubscriber {
    inbox: Inbox,
    task: AbortHandle,
    wanted: watch::Receiver<bool>,
    plain: Arc<Subscriber>,
    /// Receives the reports of `plain`, which only references it weakly.
    _plain_reports: Arc<ShardReports>,
}

impl ShardedSubscriber {
    /// Starts the task on the current runtime. `start_plain` starts the subscriber for channels that can't be sharded.
    pub(super) fn start(
        nodes: Arc<Nodes>,
        events: Weak<dyn Events>,
        (inbox, notes): (Inbox, mpsc::UnboundedReceiver<Note>),
        start_plain: impl FnOnce(Weak<dyn Events>) -> Subscriber,
    ) -> ShardedSubscriber {
        let plain_reports = Arc::new(ShardReports::of_plain(inbox.clone()));
        let reports: Arc<dyn Events> = plain_reports.clone();
        let plain = Arc::new(start_plain(Arc::downgrade(&reports)));
        let wanted = watch::Sender::new(false);
        let state = wanted.subscribe();
        let task = Task { nodes, plain: plain.clone(), events, channels: HashMap::new(), wanted };
        let task = tokio::spawn(task.run(notes)).abort_handle();
        ShardedSubscriber { inbox, task, wanted: state, plain, _plain_reports: plain_reports }
    }

    /// Returns the subscriber for plain channels.
    pub(super) fn plain(&self) -> &Subscriber {
        &self.plain
    }

    /// Returns whether any channel is wanted.
    pub(super) fn wanted(&self) -> watch::Receiver<bool> {
        self.wanted.clone()
    }

    pub(super) fn subscribe(&self, channel: &str) {
        let _ = self.inbox.send(Note::Want(channel.into()));
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        let _ = self.inbox.send(Note::Leave(channel.into()));
    }

    pub(super) fn close(&self) {
        self.task.abort();
        self.plain.close();
    }
}

/// Chooses the node of each wanted channel. Only this task reports to the session, so that the reports about a channel are in order: the
/// confirmation by a node that is left is not reported after the loss.
struct Task {
    nodes: Arc<Nodes>,
    /// The subscriber for channels that can't be sharded.
    plain: Arc<Subscriber>,
    events: Weak<dyn Events>,
    channels: HashMap<Arc<str>, Channel>,
    wanted: watch::Sender<bool>,
}

/// A wanted channel.
#[derive(Default)]
struct Channel {
    /// The node that it is subscribed at, or that was asked to subscribe it.
    at: Option<Weak<RedisServer>>,
    /// Whether that node has confirmed it.
    is_on: bool,
    /// Whether it is subscribed as a plain channel too.
    plain: bool,
    /// Whether the plain subscription was confirmed.
    plain_is_on: bool,
    /// Redirections since the last confirmation.
    hops: u32,
}

impl Channel {
    fn is_at(&self, server: &Weak<RedisServer>) -> bool {
        self.at.as_ref().is_some_and(|at| at.ptr_eq(server))
    }
}

impl Task {
    async fn run(mut self, mut notes: mpsc::UnboundedReceiver<Note>) {
        let mut changes = self.nodes.changes.subscribe();
        loop {
            // Biased: what could arrive without end comes last.
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => self.follow(),
                note = notes.recv() => match note {
                    Some(Note::Want(channel)) => self.want(&channel),
                    Some(Note::Leave(channel)) => self.leave(&channel),
                    Some(Note::Report(Some(server), report)) => self.node_reports(&server, report),
                    Some(Note::Report(None, report)) => self.plain_reports(report),
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
            match is_sharded(channel) {
                true => self.assign(channel),
                false => self.make_plain(channel),
            }
        }
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
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
        self.wanted.send_if_modified(|known| std::mem::replace(known, wanted) != wanted);
    }

    /// Subscribes at the node that serves the slot, in place of any other.
    fn assign(&mut self, channel: &Arc<str>) {
        let owner: Option<Node> = self.nodes.owner(slot(channel)).ok();
        let Some(known) = self.channels.get_mut(channel) else { return };
        let before = known.at.take().and_then(|at| at.upgrade());
        if let (Some(before), Some(owner)) = (&before, &owner)
            && Arc::ptr_eq(before, &owner.server)
        {
            known.at = Some(Arc::downgrade(before));
            return;
        }
        if let Some(before) = before {
            before.unsubscribe(channel);
        }
        let was_on = std::mem::take(&mut known.is_on) && !known.plain_is_on;
        let reported = match owner {
            Some(owner) => {
                known.at = Some(Arc::downgrade(&owner.server));
                owner.server.subscribe(channel);
                was_on
            }
            None => !known.plain_is_on,
        };
        if reported {
            self.with_events(|events| events.not_subscribed(channel));
        }
    }

    /// Subscribes where the slots are now, after a change in the cluster. A channel that was made plain is tried there as a sharded one
    /// again, since the node may know sharded channels by now.
    fn follow(&mut self) {
        let channels: Vec<_> = self.channels.keys().filter(|channel| is_sharded(channel)).cloned().collect();
        channels.iter().for_each(|channel| self.assign(channel));
    }

    fn make_plain(&mut self, channel: &Arc<str>) {
        let Some(known) = self.channels.get_mut(channel) else { return };
        if let Some(server) = known.at.take().and_then(|at| at.upgrade()) {
            server.unsubscribe(channel);
        }
        known.is_on = false;
        if is_for_hints(channel) {
            // There are no plain hints: the lock has no line here.
            return self.with_events(|events| events.not_subscribed(channel));
        }
        if !std::mem::replace(&mut known.plain, true) {
            self.plain.subscribe(channel);
        }
    }

    fn node_reports(&mut self, server: &Weak<RedisServer>, report: Report) {
        match report {
            Report::Subscribed(channel) => {
                let Some(known) = self.at(&channel, server) else { return };
                (known.is_on, known.hops) = (true, 0);
                // Sharded messages that were published before did not arrive: the session has to look again.
                let again = std::mem::take(&mut known.plain_is_on);
                let was_plain = std::mem::take(&mut known.plain);
                if was_plain {
                    self.plain.unsubscribe(&channel);
                }
                self.with_events(|events| {
                    if again {
                        events.not_subscribed(&channel);
                    }
                    events.subscribed(&channel);
                });
            }
            Report::Message(channel, text) => {
                if self.at(&channel, server).is_some() {
                    self.with_events(|events| events.message(&channel, &text));
                }
            }
            Report::NotSubscribed(channel) => {
                let Some(known) = self.at(&channel, server) else { return };
                known.is_on = false;
                if !known.plain_is_on {
                    self.with_events(|events| events.not_subscribed(&channel));
                }
            }
            Report::Lost => self.lost(|known| known.is_at(server) && std::mem::take(&mut known.is_on)),
            Report::Moved(channel, to) => {
                let Some(known) = self.at(&channel, server) else { return };
                known.hops += 1;
                if known.hops > HOPS {
                    // The node is asked again after a pause.
                    known.hops = 0;
                    return;
                }
                self.nodes.moved(slot(&channel), &to);
                self.assign(&channel);
            }
            Report::NotSharded(channel) => {
                if self.at(&channel, server).is_some() {
                    self.make_plain(&channel);
                }
            }
        }
    }

    fn plain_reports(&mut self, report: Report) {
        match report {
            Report::Subscribed(channel) => {
                let known = self.channels.get_mut(&channel).filter(|known| known.plain && !known.is_on);
                if let Some(known) = known {
                    known.plain_is_on = true;
                    self.with_events(|events| events.subscribed(&channel));
                }
            }
            Report::Message(channel, text) => {
                if self.channels.get(&channel).is_some_and(|known| known.plain) {
                    self.with_events(|events| events.message(&channel, &text));
                }
            }
            Report::NotSubscribed(channel) => {
                let known = self.channels.get_mut(&channel).filter(|known| known.plain);
                if let Some(known) = known {
                    known.plain_is_on = false;
                    if !known.is_on {
                        self.with_events(|events| events.not_subscribed(&channel));
                    }
                }
            }
            Report::Lost => self.lost(|known| std::mem::take(&mut known.plain_is_on)),
            // They belong to no channel.
            Report::Moved(..) | Report::NotSharded(_) => {}
        }
    }

    /// Reports each channel that was subscribed over a lost connection. `was_on` returns whether it was, and notes that it is not any
    /// more.
    fn lost(&mut self, was_on: impl Fn(&mut Channel) -> bool) {
        let events = self.events.upgrade();
        for (channel, known) in &mut self.channels {
            if was_on(known)
                && let Some(events) = &events
            {
                events.not_subscribed(channel);
            }
        }
    }

    /// Returns the channel, if it is or is to be subscribed at this node.
    fn at(&mut self, channel: &str, server: &Weak<RedisServer>) -> Option<&mut Channel> {
        self.channels.get_mut(channel).filter(|known| known.is_at(server))
    }

    fn with_events(&self, call: impl FnOnce(&dyn Events)) {
        if let Some(events) = self.events.upgrade() {
            call(&*events);
        }
    }
}

#[cfg(test)]
mod tests;
