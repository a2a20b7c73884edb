//! Passes the reports of a cluster's subscribers to the one task that forwards them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;

use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::server::RedisServer;
use crate::base::Events;
use crate::wire::keys::is_for_hints;

/// What the task is notified of, in order.
pub(super) enum Note {
    Want(Arc<str>),
    Leave(Arc<str>),
    /// A report of the subscriber of this node, or, with `None`, of that for plain channels.
    Report(Option<Weak<RedisServer>>, Report),
}

pub(super) enum Report {
    Subscribed(Arc<str>),
    Message(Arc<str>, Arc<str>),
    NotSubscribed(Arc<str>),
    Lost,
    /// Another node serves the slot, at the address that the node reports.
    Moved(Arc<str>, NodeAddress),
    /// The node does not know sharded channels, or the user may not use them.
    NotSharded(Arc<str>),
}

pub(super) type Inbox = mpsc::UnboundedSender<Note>;

/// Passes on the reports of one subscriber.
pub(super) struct ShardReports {
    inbox: Inbox,
    /// The node. `None` for the subscriber for plain channels, whose refusals move nothing to another node.
    node: Option<(Weak<RedisServer>, NodeAddress)>,
    /// Whether it was logged that hints are denied, which is done once for all locks.
    logged: AtomicBool,
}

impl ShardReports {
    pub(super) fn new(inbox: Inbox, node: Option<(Weak<RedisServer>, NodeAddress)>) -> ShardReports {
        ShardReports { inbox, node, logged: AtomicBool::new(false) }
    }

    fn send(&self, report: Report) {
        let server = self.node.as_ref().map(|(server, _)| server.clone());
        // Fails once the task has ended, and all subscriptions with it.
        let _ = self.inbox.send(Note::Report(server, report));
    }
}

impl Events for ShardReports {
    fn reconnected(&self) {}

    fn subscribed(&self, channel: &str) {
        self.send(Report::Subscribed(channel.into()));
    }

    fn message(&self, channel: &str, text: &str) {
        self.send(Report::Message(channel.into(), text.into()));
    }

    fn not_subscribed(&self, channel: &str) {
        self.send(Report::NotSubscribed(channel.into()));
    }

    fn refused(&self, channel: &str, why: &str) -> bool {
        let Some((_, node_address)) = &self.node else { return false };
        let moved = why.strip_prefix("MOVED ").and_then(|rest| rest.split_once(' '));
        if let Some((number, address)) = moved {
            // A refusal that names another slot answers another request: see `Requester`.
            let is_its_own = number.parse() == Ok(slot(channel));
            let to = NodeAddress::of(address, node_address).filter(|_| is_its_own);
            return to.is_some_and(|to| {
                self.send(Report::Moved(channel.into(), to));
                true
            });
        }
        let denied = why.starts_with("NOPERM");
        let not_sharded = denied || why.contains("unknown command");
        if not_sharded {
            self.send(Report::NotSharded(channel.into()));
        }
        not_sharded && !(denied && is_for_hints(channel) && !self.logged.swap(true, Relaxed))
    }

    fn subscriptions_lost(&self) {
        self.send(Report::Lost);
    }
}
