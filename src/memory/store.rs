//! The store behind an in-memory master: what the Lua files do, in this process. `now` is an argument.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Events, Lease, after};
use crate::memory::counters::Counters;
use crate::wire::{AT_ITS_END, Call, Fence, Reply};

/// What a command was answered: `None` where the connection broke first.
pub(crate) type Slip = Arc<OnceLock<Option<Reply>>>;

/// Changes only while locked, and never across an await.
#[derive(Default)]
pub(crate) struct Store {
    locks: HashMap<Arc<str>, Held>,
    pub(crate) counters: Counters,
    /// With so many locks those that are over are looked for.
    crowded: usize,
    /// Nothing runs before.
    pub(crate) stalled_until: Option<Instant>,
    /// So many of the next answers never come.
    pub(crate) unanswered: usize,
    /// Whether the next command is lost on its way.
    #[cfg(test)]
    pub(crate) loses: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Answers come in a call's first poll, as they may from a server whose connection another thread drives.
    #[cfg(test)]
    pub(crate) prompt: bool,
    /// Commands that have arrived and not run.
    pub(crate) backlog: VecDeque<(Call, Slip)>,
    /// When it came back empty. A new one counts as old: nothing can have been forgotten.
    pub(crate) restarted: Option<Instant>,
    /// Whoever waits for an answer has to look.
    pub(crate) worked: bool,
    ears: HashMap<u64, Listener>,
    /// Clients that gave up an answer, and connect anew.
    pub(crate) returning: HashSet<u64>,
    /// Subscriptions that are not confirmed.
    asked: Vec<(u64, Arc<str>)>,
    /// What has to be told once nothing is locked.
    out: Vec<Notice>,
    ids: u64,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) field: Arc<str>,
    pub(crate) count: u32,
    pub(crate) until: Instant,
}

/// One client's subscriptions.
struct Listener {
    events: Weak<dyn Events>,
    channels: HashSet<Arc<str>>,
}

/// Something to tell one client.
pub(crate) struct Notice {
    to: Weak<dyn Events>,
    told: NoticeKind,
}

enum NoticeKind {
    Changed,
    Subscribed(Arc<str>),
    Message(Arc<str>),
    Deaf,
}

impl Notice {
    pub(crate) fn tell(self) {
        let Some(events) = self.to.upgrade() else { return };
        match self.told {
            NoticeKind::Changed => events.reconnected(),
            NoticeKind::Subscribed(channel) => events.subscribed(&channel),
            NoticeKind::Message(channel) => events.message(&channel),
            NoticeKind::Deaf => events.subscriptions_lost(),
        }
    }
}

impl Store {
    /// A client, which hears of what it subscribes to until it [`leave`](Store::leave)s.
    pub(crate) fn join(&mut self, events: Weak<dyn Events>) -> u64 {
        self.ids += 1;
        self.ears.insert(self.ids, Listener { events, channels: HashSet::new() });
        self.ids
    }

    pub(crate) fn leave(&mut self, client: u64) {
        self.ears.remove(&client);
    }

    pub(crate) fn is_joined(&self, client: u64) -> bool {
        self.ears.contains_key(&client)
    }

    /// A command arrives. It runs in its turn, whatever becomes of its sender.
    pub(crate) fn arrive(&mut self, call: Call, now: Instant) -> Slip {
        let slip = Slip::default();
        #[cfg(test)]
        if self.loses.as_mut().is_some_and(|loses| loses()) {
            return slip;
        }
        self.backlog.push_back((call, slip.clone()));
        self.work(now);
        slip
    }

    /// Confirmed at the next [`work`](Store::work), as by a server: never within this call.
    pub(crate) fn subscribe(&mut self, client: u64, channel: &str) {
        self.asked.push((client, channel.into()));
    }

    pub(crate) fn unsubscribe(&mut self, client: u64, channel: &str) {
        self.asked.retain(|(asks, asked)| *asks != client || **asked != *channel);
        if let Some(ear) = self.ears.get_mut(&client) {
            ear.channels.remove(channel);
        }
    }

    /// Runs what has arrived, unless the store is stalled.
    pub(crate) fn work(&mut self, now: Instant) {
        if self.stalled_until.is_some_and(|until| now < until) {
            return;
        }
        self.stalled_until = None;
        while let Some((call, slip)) = self.backlog.pop_front() {
            let reply = self.run(&call, now);
            self.worked = true;
            if self.unanswered > 0 {
                self.unanswered -= 1;
            } else {
                // Set once: this slip was taken off the backlog.
                let _ = slip.set(Some(reply));
            }
        }
        // Not while answers are dropped: all would be sent again without a pause, to be dropped again.
        let back = if self.unanswered == 0 { std::mem::take(&mut self.returning) } else { HashSet::new() };
        for client in back {
            self.out.extend(
                self.ears
                    .get(&client)
                    .map(|ear| Notice { to: ear.events.clone(), told: NoticeKind::Changed }),
            );
        }
        for (client, channel) in std::mem::take(&mut self.asked) {
            if let Some(ear) = self.ears.get_mut(&client) {
                ear.channels.insert(channel.clone());
                self.out.push(Notice { to: ear.events.clone(), told: NoticeKind::Subscribed(channel) });
            }
        }
    }

    /// Deletes a lock, as an operator's DEL would; everybody is told that something has changed.
    pub(crate) fn lose(&mut self, key: &str, now: Instant) -> bool {
        let lost = self.held(key, now).is_some();
        self.locks.remove(key);
        if lost {
            self.tell_all(|| NoticeKind::Changed);
        }
        lost
    }

    /// All is gone: locks, commands that have not run, subscriptions. The clients come back at once.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.locks.clear();
        self.counters.clear();
        self.restarted = Some(now);
        (self.stalled_until, self.unanswered) = (None, 0);
        for (_, slip) in self.backlog.drain(..) {
            let _ = slip.set(None);
        }
        self.worked = true;
        for (client, ear) in &mut self.ears {
            self.asked.extend(ear.channels.drain().map(|channel| (*client, channel)));
        }
        self.tell_all(|| NoticeKind::Deaf);
        self.tell_all(|| NoticeKind::Changed);
    }

    fn tell_all(&mut self, told: impl Fn() -> NoticeKind) {
        self.out.extend(self.ears.values().map(|ear| Notice { to: ear.events.clone(), told: told() }));
    }

    /// How many locks are kept, those that are over among them.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.locks.len()
    }

    /// What has to be told now that nothing is locked any more.
    pub(crate) fn news(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.out)
    }

    /// The locks that stand, in the order of their keys.
    pub(crate) fn standing(&self, now: Instant) -> Vec<(&Arc<str>, &Held)> {
        let mut standing: Vec<_> = self.locks.iter().filter(|(_, held)| held.stands(now)).collect();
        standing.sort_by_key(|(key, _)| *key);
        standing
    }

    fn held(&mut self, key: &str, now: Instant) -> Option<&mut Held> {
        self.locks.get_mut(key).filter(|held| held.stands(now))
    }

    /// The hold of this field.
    fn own(&mut self, key: &str, field: &str, now: Instant) -> Option<&mut Held> {
        self.held(key, now).filter(|held| *held.field == *field)
    }

    fn run(&mut self, call: &Call, now: Instant) -> Reply {
        if let Call::Renew { fence: Some(fence), .. } | Call::Settle { fence: Some(fence), .. } = call {
            // Whoever holds the lock: what was given out stays given out.
            self.counters.raise(fence, now);
        }
        match call {
            Call::Acquire { key, field, count, lease, fence } => {
                let held = self.held(key, now).is_some();
                let reply = self.acquire(key, field, (*count, *lease), now);
                self.fenced(key, reply, fence.as_deref(), held, now)
            }
            Call::Release { key, channel, field, count: 0 }
            | Call::Settle { key, channel, field, count: 0, .. } => match self.own(key, field, now) {
                Some(_) => self.free(key, channel),
                None => Reply::Gone,
            },
            Call::Release { key, field, count, .. } => {
                found(self.own(key, field, now), |held| held.count = held.count.min(*count))
            }
            Call::Renew { key, field, lease, .. } => {
                found(self.own(key, field, now), |held| held.last(*lease, now))
            }
            Call::Settle { key, field, count, lease, create, .. } => match self.held(key, now) {
                None if *create => self.put(
                    key,
                    Held { field: field.clone(), count: *count, until: after(now, lease.duration()) },
                    now,
                ),
                _ => found(self.own(key, field, now), |held| {
                    held.last(*lease, now);
                    held.count = *count;
                }),
            },
            Call::Force { key, channel } => match self.held(key, now) {
                Some(_) => self.free(key, channel),
                None => Reply::Free,
            },
            Call::Look { key } => self.held(key, now).map_or(Reply::Free, |held| Reply::Busy(held.left(now))),
            // Asked for by nodes of a cluster alone: a store has all its keys.
            Call::Count { fence, .. } => {
                Reply::Token(self.counters.stands(&fence.counter, now).unwrap_or_default())
            }
        }
    }

    fn acquire(
        &mut self,
        key: &Arc<str>,
        field: &Arc<str>,
        (count, lease): (u32, Lease),
        now: Instant,
    ) -> Reply {
        match self.held(key, now) {
            Some(held) if held.field == *field => {
                held.count = held.count.max(count);
                held.last(lease, now);
                Reply::Done
            }
            // A re-entry whose hold is gone must not take the lock anew.
            _ if count > 1 => Reply::Gone,
            Some(held) => Reply::Busy(held.left(now)),
            None => {
                self.put(key, Held { field: field.clone(), count, until: after(now, lease.duration()) }, now)
            }
        }
    }

    /// A grant with its token, where one is asked for. A repeat is told it as it stands.
    fn fenced(&mut self, key: &str, reply: Reply, fence: Option<&Fence>, held: bool, now: Instant) -> Reply {
        let (Reply::Done, Some(fence)) = (&reply, fence) else { return reply };
        let stands = self.counters.stands(&fence.counter, now).filter(|_| held);
        match stands.or_else(|| self.counters.next(fence, now)) {
            Some(token) => Reply::Token(token),
            None => {
                self.locks.remove(key);
                Reply::NotACounter(AT_ITS_END.to_owned())
            }
        }
    }

    fn put(&mut self, key: &Arc<str>, held: Held, now: Instant) -> Reply {
        self.make_room(now);
        self.locks.insert(key.clone(), held);
        Reply::Done
    }

    fn free(&mut self, key: &str, channel: &Arc<str>) -> Reply {
        self.locks.remove(key);
        for ear in self.ears.values().filter(|ear| ear.channels.contains(channel)) {
            self.out.push(Notice { to: ear.events.clone(), told: NoticeKind::Message(channel.clone()) });
        }
        Reply::Done
    }

    /// What nobody released is taken away now and then: names may be without number.
    fn make_room(&mut self, now: Instant) {
        if self.locks.len() >= self.crowded {
            self.locks.retain(|_, held| held.stands(now));
            self.crowded = (2 * self.locks.len()).max(64);
        }
    }
}

fn found(held: Option<&mut Held>, change: impl FnOnce(&mut Held)) -> Reply {
    held.map_or(Reply::Gone, |held| {
        change(held);
        Reply::Done
    })
}

impl Held {
    /// A key lives through its last moment, as on a server.
    fn stands(&self, now: Instant) -> bool {
        now <= self.until
    }

    /// Never shortens.
    fn last(&mut self, lease: Lease, now: Instant) {
        self.until = self.until.max(after(now, lease.duration()));
    }

    /// In whole milliseconds, as a server tells it; never none while it stands.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let left = self.until.saturating_duration_since(now).as_millis() as u64;
        Duration::from_millis(left.max(1))
    }
}
