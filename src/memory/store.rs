//! The store behind an in-memory master: what the Lua files do, in this process. `now` is an argument.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Events, Lease, Stamp, after};
use crate::holder::Holder;
use crate::memory::counters::Counters;
use crate::wire::{self, AT_ITS_END, Action, Call, Fence, Limit, Reply};

/// The reply to a command, once it has run. `None` inside: the connection broke first.
pub(crate) type PendingReply = Arc<OnceLock<Option<Reply>>>;

/// Changes only while locked, and never across an await.
#[derive(Default)]
pub(crate) struct Store {
    locks: HashMap<Arc<str>, StoredLock>,
    pub(crate) counters: Counters,
    /// At this number of locks expired ones are removed.
    sweep_at: usize,
    /// No command runs before.
    pub(crate) stalled_until: Option<Instant>,
    /// How many of the next replies are dropped.
    pub(crate) unanswered: usize,
    /// Whether the next command is lost on its way.
    #[cfg(test)]
    pub(crate) loses: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Calls are answered in their first poll, as may happen with a server whose connection another thread drives.
    #[cfg(test)]
    pub(crate) prompt: bool,
    /// Commands that have arrived and not run.
    pub(crate) backlog: VecDeque<(Call, PendingReply)>,
    /// When it lost its data. A new store counts as old: it can't have lost a lock.
    pub(crate) restarted: Option<Instant>,
    /// Whether calls that wait for a reply have to look again.
    pub(crate) progressed: bool,
    clients: HashMap<u64, Client>,
    /// Clients that gave up an answer, and reconnect.
    pub(crate) reconnecting: HashSet<u64>,
    /// Subscriptions that are not confirmed.
    unconfirmed: Vec<(u64, Arc<str>)>,
    /// To be delivered once the store is not locked.
    notices: Vec<Notice>,
    ids: u64,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredLock {
    pub(crate) field: Arc<str>,
    pub(crate) count: u32,
    pub(crate) until: Instant,
}

/// One client, and its subscriptions.
struct Client {
    events: Weak<dyn Events>,
    channels: HashSet<Arc<str>>,
}

/// An event for one client.
pub(super) struct Notice {
    to: Weak<dyn Events>,
    kind: NoticeKind,
}

enum NoticeKind {
    Reconnected,
    Subscribed(Arc<str>),
    Message(Arc<str>),
    SubscriptionsLost,
}

impl Notice {
    pub(super) fn deliver(self) {
        let Some(events) = self.to.upgrade() else { return };
        match self.kind {
            NoticeKind::Reconnected => events.reconnected(),
            NoticeKind::Subscribed(channel) => events.subscribed(&channel),
            NoticeKind::Message(channel) => events.message(&channel),
            NoticeKind::SubscriptionsLost => events.subscriptions_lost(),
        }
    }
}

impl Store {
    /// Adds a client, which is notified until it [`leave`](Store::leave)s.
    pub(crate) fn join(&mut self, events: Weak<dyn Events>) -> u64 {
        self.ids += 1;
        self.clients.insert(self.ids, Client { events, channels: HashSet::new() });
        self.ids
    }

    pub(crate) fn leave(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    pub(crate) fn is_joined(&self, client: u64) -> bool {
        self.clients.contains_key(&client)
    }

    /// Receives a command. It runs in its order even if its sender is dropped.
    pub(crate) fn receive(&mut self, call: Call, now: Instant) -> PendingReply {
        let reply = PendingReply::default();
        #[cfg(test)]
        if self.loses.as_mut().is_some_and(|loses| loses()) {
            return reply;
        }
        self.backlog.push_back((call, reply.clone()));
        self.run_backlog(now);
        reply
    }

    /// Confirmed at the next [`run_backlog`](Store::run_backlog): like a server, never within this call.
    pub(crate) fn subscribe(&mut self, client: u64, channel: &str) {
        self.unconfirmed.push((client, channel.into()));
    }

    pub(crate) fn unsubscribe(&mut self, id: u64, channel: &str) {
        self.unconfirmed.retain(|(other, wanted)| *other != id || **wanted != *channel);
        if let Some(client) = self.clients.get_mut(&id) {
            client.channels.remove(channel);
        }
    }

    /// Runs the commands that have arrived, unless the store is stalled.
    pub(crate) fn run_backlog(&mut self, now: Instant) {
        if self.stalled_until.is_some_and(|until| now < until) {
            return;
        }
        self.stalled_until = None;
        while let Some((call, pending)) = self.backlog.pop_front() {
            let reply = self.run(&call, now);
            self.progressed = true;
            if self.unanswered > 0 {
                self.unanswered -= 1;
            } else {
                // Not set before: it was taken off the backlog just now.
                let _ = pending.set(Some(reply));
            }
        }
        // Not while replies are dropped: all commands would be sent again without a pause, and dropped again.
        let back = if self.unanswered == 0 { std::mem::take(&mut self.reconnecting) } else { HashSet::new() };
        for id in back {
            self.notices.extend(
                self.clients
                    .get(&id)
                    .map(|client| Notice { to: client.events.clone(), kind: NoticeKind::Reconnected }),
            );
        }
        for (id, channel) in std::mem::take(&mut self.unconfirmed) {
            if let Some(client) = self.clients.get_mut(&id) {
                client.channels.insert(channel.clone());
                self.notices
                    .push(Notice { to: client.events.clone(), kind: NoticeKind::Subscribed(channel) });
            }
        }
    }

    /// Deletes a lock, as an operator's `DEL` would, and makes all clients ask again.
    pub(crate) fn lose(&mut self, key: &str, now: Instant) -> bool {
        let lost = self.held(key, now).is_some();
        self.locks.remove(key);
        if lost {
            self.notify_all(|| NoticeKind::Reconnected);
        }
        lost
    }

    /// Deletes a lock, and nobody notices.
    #[cfg(test)]
    pub(crate) fn delete(&mut self, key: &str) {
        self.locks.remove(key);
    }

    /// Drops locks, commands that have not run, and subscriptions. The clients reconnect at once.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.locks.clear();
        self.counters.clear();
        self.restarted = Some(now);
        (self.stalled_until, self.unanswered) = (None, 0);
        for (_, pending) in self.backlog.drain(..) {
            let _ = pending.set(None);
        }
        self.progressed = true;
        for (id, client) in &mut self.clients {
            self.unconfirmed.extend(client.channels.drain().map(|channel| (*id, channel)));
        }
        self.notify_all(|| NoticeKind::SubscriptionsLost);
        self.notify_all(|| NoticeKind::Reconnected);
    }

    fn notify_all(&mut self, kind: impl Fn() -> NoticeKind) {
        self.notices
            .extend(self.clients.values().map(|client| Notice { to: client.events.clone(), kind: kind() }));
    }

    /// How many locks are stored, expired ones included.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.locks.len()
    }

    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The locks that have not expired, in the order of their keys.
    pub(crate) fn live(&self, now: Instant) -> Vec<(&Arc<str>, &StoredLock)> {
        let mut live: Vec<_> = self.locks.iter().filter(|(_, held)| held.is_live(now)).collect();
        live.sort_by_key(|(key, _)| *key);
        live
    }

    fn held(&mut self, key: &str, now: Instant) -> Option<&mut StoredLock> {
        self.locks.get_mut(key).filter(|held| held.is_live(now))
    }

    /// The lock if this field holds it.
    fn held_by(&mut self, key: &str, field: &str, now: Instant) -> Option<&mut StoredLock> {
        self.held(key, now).filter(|held| *held.field == *field)
    }

    fn run(&mut self, call: &Call, now: Instant) -> Reply {
        let (Call { keys, field, action, fence, .. }, key) = (call, &call.keys.key);
        if let (Action::Renew { .. } | Action::Settle { .. } | Action::Repair { .. }, Some(fence)) =
            (action, fence)
        {
            // Even if another field holds the lock: a token must not be handed out twice.
            self.counters.raise(fence, now);
        }
        match *action {
            Action::Acquire { count, lease } => {
                let held = self.held(key, now).is_some();
                let reply = self.acquire(call, (count, lease), now);
                self.fenced(key, reply, fence.as_deref(), held, now)
            }
            Action::END | Action::Settle { count: 0, .. } => match self.held_by(key, field, now) {
                Some(_) => {
                    let listeners = self.free(key, keys.channel());
                    if *action == Action::END { Reply::Ended(listeners) } else { Reply::Done }
                }
                None => Reply::Gone,
            },
            Action::Move { lease } => {
                let from = call.from.as_deref().unwrap_or_default();
                let held = self.held(key, now).filter(|held| *held.field == *from || held.field == *field);
                change_if_held(held, |held| {
                    if held.field != *field {
                        (held.field, held.count) = (field.clone(), 1);
                    }
                    held.extend(lease, now);
                })
            }
            Action::Keep { lease } => self.keep(call, lease, now),
            Action::Release { count } => {
                change_if_held(self.held_by(key, field, now), |held| held.count = held.count.min(count))
            }
            Action::Renew { lease } => match self.held_by(key, field, now) {
                Some(held) => held.renew(lease, call.limit.as_deref(), now),
                None => Reply::Gone,
            },
            Action::Repair { count, lease } if self.held(key, now).is_none() => {
                let until = after(now, lease.duration());
                self.put(key, StoredLock { field: field.clone(), count, until }, now)
            }
            Action::Settle { count, lease } | Action::Repair { count, lease } => {
                change_if_held(self.held_by(key, field, now), |held| {
                    held.extend(lease, now);
                    held.count = count;
                })
            }
            Action::Force => match self.held(key, now) {
                Some(_) => {
                    self.free(key, keys.channel());
                    Reply::Done
                }
                None => Reply::Free,
            },
            Action::Look if !call.names => {
                self.held(key, now).map_or(Reply::Free, |held| Reply::busy(held.left(now)))
            }
            Action::Look | Action::Who => {
                self.held(key, now).map_or(Reply::Free, |held| Reply::held_by(held.holder(now)))
            }
            // Only nodes of a cluster are asked this: a store has all its keys.
            Action::Count(_) => {
                let stands = fence.as_ref().and_then(|fence| self.counters.stands(&fence.counter, now));
                Reply::Token(stands.unwrap_or_default())
            }
        }
    }

    fn acquire(&mut self, call: &Call, (count, lease): (u32, Lease), now: Instant) -> Reply {
        let (Call { field, names, .. }, key) = (call, &call.keys.key);
        match self.held(key, now) {
            Some(held) if held.field == *field => {
                held.count = held.count.max(count);
                if !held.limited(lease, call.limit.as_deref(), now) {
                    held.extend(lease, now);
                }
                Reply::Done
            }
            // A re-entry whose hold is gone must not acquire the lock.
            _ if count > 1 => Reply::Gone,
            Some(held) if *names => Reply::held_by(held.holder(now)),
            Some(held) => Reply::busy(held.left(now)),
            None => self.put(
                key,
                StoredLock { field: field.clone(), count, until: after(now, lease.duration()) },
                now,
            ),
        }
    }

    fn keep(&mut self, call: &Call, lease: Lease, now: Instant) -> Reply {
        let kept = wire::kept_field(&call.field);
        match self.held(&call.keys.key, now) {
            Some(held) if held.field == call.field => {
                *held = StoredLock { field: kept.into(), count: 1, until: after(now, lease.duration()) };
            }
            _ => return Reply::Gone,
        }
        self.publish(call.keys.channel());
        Reply::Done
    }

    /// Adds the token to a grant, where the call is fenced. A repeated call returns the token that it was given before.
    fn fenced(&mut self, key: &str, reply: Reply, fence: Option<&Fence>, held: bool, now: Instant) -> Reply {
        let (Reply::Done, Some(fence)) = (&reply, fence) else { return reply };
        let given = self.counters.stands(&fence.counter, now).filter(|_| held);
        match given.or_else(|| self.counters.next(fence, now)) {
            Some(token) => Reply::Token(token),
            None => {
                self.locks.remove(key);
                Reply::NotACounter(AT_ITS_END.to_owned())
            }
        }
    }

    fn put(&mut self, key: &Arc<str>, held: StoredLock, now: Instant) -> Reply {
        self.sweep(now);
        self.locks.insert(key.clone(), held);
        Reply::Done
    }

    /// How many clients are notified.
    fn free(&mut self, key: &str, channel: &Arc<str>) -> u64 {
        self.locks.remove(key);
        self.publish(channel)
    }

    fn publish(&mut self, channel: &Arc<str>) -> u64 {
        let before = self.notices.len();
        for client in self.clients.values().filter(|client| client.channels.contains(channel)) {
            self.notices
                .push(Notice { to: client.events.clone(), kind: NoticeKind::Message(channel.clone()) });
        }
        (self.notices.len() - before) as u64
    }

    /// Removes expired locks now and then: the number of names is not bounded.
    fn sweep(&mut self, now: Instant) {
        if self.locks.len() >= self.sweep_at {
            self.locks.retain(|_, held| held.is_live(now));
            self.sweep_at = (2 * self.locks.len()).max(64);
        }
    }
}

fn change_if_held(held: Option<&mut StoredLock>, change: impl FnOnce(&mut StoredLock)) -> Reply {
    held.map_or(Reply::Gone, |held| {
        change(held);
        Reply::Done
    })
}

impl StoredLock {
    /// As on a server, a key is live up to and including its last millisecond.
    fn is_live(&self, now: Instant) -> bool {
        now <= self.until
    }

    /// Never shortens.
    fn extend(&mut self, lease: Lease, now: Instant) {
        self.until = self.until.max(after(now, lease.duration()));
    }

    fn renew(&mut self, lease: Lease, limit: Option<&Limit>, now: Instant) -> Reply {
        if self.limited(lease, limit, now) {
            return Reply::Done;
        }
        self.extend(lease, now);
        let left = self.left(now);
        if left <= lease.duration() {
            return Reply::Done;
        }
        let is_beyond = limit.is_some_and(|limit| left > limit.lease.duration());
        Reply::Longer(left, is_beyond.then(|| Stamp::from(self.until).number()))
    }

    /// Sets the TTL to the limit where it is for this key. Whether it is so.
    fn limited(&mut self, lease: Lease, limit: Option<&Limit>, now: Instant) -> bool {
        let is_longer = self.left(now) >= lease.duration();
        let named = |limit: &&Limit| limit.ends.contains(&Stamp::from(self.until).number());
        let Some(limit) = limit.filter(named).filter(|_| is_longer) else { return false };
        self.until = after(now, limit.lease.duration());
        true
    }

    fn holder(&self, now: Instant) -> Holder {
        Holder::new(self.field.clone(), self.count as usize, self.left(now))
    }

    /// In whole milliseconds, as a server reports it. Never zero while the lock is live.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let left = self.until.saturating_duration_since(now).as_millis() as u64;
        Duration::from_millis(left.max(1))
    }
}
