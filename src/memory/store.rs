//! The store of an in-memory master. It does what the Lua files do on a server. `now` is an argument.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{Events, Lease, after};
use crate::holder::Holder;
use crate::memory::counters::Counters;
use crate::memory::lines::Lines;
use crate::memory::sweep::sweep;
use crate::wire::{self, AT_ITS_END, Action, Call, Hint, LEFT_TO_OTHERS, Line, Notice, RELEASED, Reply};

/// The reply to a command once it has run. The inner value is `None` if the connection broke first.
pub(crate) type PendingReply = Arc<OnceLock<Option<Reply>>>;

/// The most waiters of a line that one command skips because their processes are gone.
const MOST_SERVED: usize = 64;

/// How long a lock is left to clients that do not know the line. It is short, since all clients of a store are in this process.
const TURN: Duration = Duration::from_millis(1);

/// The data of a store. It changes only while it is locked, and never across an await.
#[derive(Default)]
pub(crate) struct Store {
    locks: HashMap<Arc<str>, StoredLock>,
    pub(crate) lines: Lines,
    pub(crate) counters: Counters,
    /// Once there are this many locks, expired ones are removed.
    sweep_at: usize,
    /// No command runs before this.
    pub(crate) stalled_until: Option<Instant>,
    /// How many of the next replies are dropped.
    pub(crate) unanswered: usize,
    /// Whether the next command is lost on its way.
    #[cfg(test)]
    pub(crate) loses: Option<Box<dyn FnMut() -> bool + Send>>,
    /// Whether calls are answered in their first poll, as may happen with a server whose connection another thread drives.
    #[cfg(test)]
    pub(crate) prompt: bool,
    /// Commands that have arrived and not run yet.
    pub(crate) backlog: VecDeque<(Call, PendingReply)>,
    /// When the store lost its data. A new store counts as old, since it can't have lost a lock.
    pub(crate) restarted: Option<Instant>,
    /// Whether calls that wait for a reply have to look again.
    pub(crate) progressed: bool,
    clients: HashMap<u64, Client>,
    /// Clients that gave up on an answer, and reconnect.
    pub(crate) reconnecting: HashSet<u64>,
    /// Subscriptions that are not confirmed yet.
    unconfirmed: Vec<(u64, Arc<str>)>,
    /// What is done once the store is unlocked.
    deliveries: Vec<Delivery>,
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

/// Delivers an event to one client.
pub(super) type Delivery = Box<dyn FnOnce() + Send>;

impl Client {
    fn delivery(&self, event: impl FnOnce(&dyn Events) + Send + 'static) -> Delivery {
        let events = self.events.clone();
        Box::new(move || {
            if let Some(events) = events.upgrade() {
                event(&*events);
            }
        })
    }
}

impl Store {
    /// Adds a client, which is notified until it calls [`leave`](Store::leave).
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

    /// Receives a command. It runs in its turn even if its sender is dropped.
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

    /// Subscribes a client. The next [`run_backlog`](Store::run_backlog) confirms it: as on a server, never within this call.
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
                // It is not set yet: it was taken off the backlog just now.
                let _ = pending.set(Some(reply));
            }
        }
        // Nobody reconnects while replies are dropped: all commands would be sent and their replies dropped again, without a pause.
        let back = if self.unanswered == 0 { std::mem::take(&mut self.reconnecting) } else { HashSet::new() };
        for id in back {
            let client = self.clients.get(&id);
            self.deliveries.extend(client.map(|client| client.delivery(|events| events.reconnected())));
        }
        for (id, channel) in std::mem::take(&mut self.unconfirmed) {
            if let Some(client) = self.clients.get_mut(&id) {
                client.channels.insert(channel.clone());
                self.deliveries.push(client.delivery(move |events| events.subscribed(&channel)));
            }
        }
    }

    /// Deletes a lock, as an operator's `DEL` would, and makes all clients ask again.
    pub(crate) fn lose(&mut self, key: &str, now: Instant) -> bool {
        let lost = self.held(key, now).is_some();
        self.locks.remove(key);
        if lost {
            self.notify_all(|events| events.reconnected());
        }
        lost
    }

    /// Drops locks, commands that have not run, and subscriptions. The clients reconnect at once.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.locks.clear();
        (self.lines, self.counters) = Default::default();
        self.restarted = Some(now);
        (self.stalled_until, self.unanswered) = (None, 0);
        for (_, pending) in self.backlog.drain(..) {
            let _ = pending.set(None);
        }
        self.progressed = true;
        for (id, client) in &mut self.clients {
            self.unconfirmed.extend(client.channels.drain().map(|channel| (*id, channel)));
        }
        self.notify_all(|events| events.subscriptions_lost());
        self.notify_all(|events| events.reconnected());
    }

    fn notify_all(&mut self, event: fn(&dyn Events)) {
        self.deliveries.extend(self.clients.values().map(|client| client.delivery(event)));
    }

    pub(super) fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    /// Returns the locks that have not expired, in the order of their keys.
    pub(crate) fn live(&self, now: Instant) -> Vec<(&Arc<str>, &StoredLock)> {
        let mut live: Vec<_> = self.locks.iter().filter(|(_, held)| held.is_live(now)).collect();
        live.sort_by_key(|(key, _)| *key);
        live
    }

    fn held(&mut self, key: &str, now: Instant) -> Option<&mut StoredLock> {
        self.locks.get_mut(key).filter(|held| held.is_live(now))
    }

    /// Returns the lock if this field holds it. A lock that was handed to the field is held by nobody until the field's acquire.
    fn held_by(&mut self, key: &str, field: &str, now: Instant) -> Option<&mut StoredLock> {
        self.held(key, now).filter(|held| *held.field == *field && held.count > 0)
    }

    fn run(&mut self, call: &Call, now: Instant) -> Reply {
        let (Call { keys, field, action, fence, .. }, key) = (call, &call.keys.key);
        if let (Action::Renew { .. } | Action::Settle { .. } | Action::Repair { .. }, Some(fence)) =
            (action, fence)
        {
            // Raised even if another field holds the lock: a token must not be handed out twice.
            self.counters.raise(fence, now);
        }
        match *action {
            Action::Acquire { count, lease } => {
                // A lock that was handed to the field is not held yet, and the counter still has the token of the previous hold.
                let held = self.held(key, now).is_some_and(|held| held.field != *field || held.count > 0);
                if let Some(fence) = fence
                    && !held
                    && count == 1
                    && self.counters.is_at_its_end(fence, now)
                {
                    return Reply::NotACounter(AT_ITS_END.to_owned());
                }
                match (self.acquire(call, count, lease, now), fence) {
                    (Reply::Done, Some(fence)) => {
                        // A repeated call returns the token that it was given before.
                        let given = self.counters.stands(&fence.counter, now).filter(|_| held);
                        Reply::Token(given.unwrap_or_else(|| self.counters.next(fence, now)))
                    }
                    (reply, _) => reply,
                }
            }
            Action::END | Action::Settle { count: 0, .. } => self.end(call, now),
            Action::Decline => match self.held(key, now) {
                Some(held) if held.field == *field && held.count == 0 => self.end(call, now),
                _ => Reply::Gone,
            },
            Action::Move { lease } => {
                let from = call.from.as_deref().unwrap_or_default();
                let moves =
                    |held: &&mut StoredLock| held.count > 0 && (*held.field == *from || held.field == *field);
                let held = self.held(key, now).filter(moves);
                change_if_held(held, |held| {
                    if held.field != *field {
                        let until = after(now, lease.duration());
                        *held = StoredLock { field: field.clone(), count: 1, until };
                    }
                    held.extend(lease, now);
                })
            }
            Action::Keep { lease } => self.keep(call, lease, now),
            Action::Release { count } => {
                change_if_held(self.held_by(key, field, now), |held| held.count = held.count.min(count))
            }
            Action::Renew { lease } => {
                change_if_held(self.held_by(key, field, now), |held| held.extend(lease, now))
            }
            // Never asked for, since the store's clock is never set and no reply of the store names the end of a key.
            Action::Shorten { .. } => change_if_held(self.held_by(key, field, now), |_| ()),
            Action::Repair { count, lease } if self.held(key, now).is_none() => {
                self.put(key, field, count, lease, now)
            }
            Action::Settle { count, lease } | Action::Repair { count, lease } => {
                change_if_held(self.held_by(key, field, now), |held| {
                    held.extend(lease, now);
                    held.count = count;
                })
            }
            Action::Force => match self.held(key, now).map(|held| held.field.clone()) {
                Some(field) => {
                    self.locks.remove(key);
                    // This hint is for the holder that has lost the lock.
                    call.line.is_some().then(|| self.hint(call, &field, None));
                    call.line.and_then(|line| self.serve(call, line, None, now));
                    self.publish(keys.channel(), RELEASED);
                    Reply::Done
                }
                None => Reply::Free,
            },
            Action::Look if !call.report_holder => {
                self.held(key, now).map_or(Reply::Free, |held| Reply::busy(held.left(now)))
            }
            Action::Look | Action::Who => {
                self.held(key, now).map_or(Reply::Free, |held| Reply::held_by(held.holder(now)))
            }
            Action::Waiters => Reply::Waiters(match call.line {
                Some(_) => self.lines.waiters(&keys.line().line, now),
                None => Vec::new(),
            }),
            // Only nodes of a cluster get this command, since a store has all its keys.
            Action::Count(_) => {
                let stands = fence.as_ref().and_then(|fence| self.counters.stands(&fence.counter, now));
                Reply::Token(stands.unwrap_or_default())
            }
        }
    }

    fn acquire(&mut self, call: &Call, count: u32, lease: Lease, now: Instant) -> Reply {
        let (Call { keys, field, report_holder, .. }, key) = (call, &call.keys.key);
        let line = call.line.filter(|_| count == 1);
        if let Some(line) = line.filter(|line| line.again)
            && self.held(key, now).is_none()
            && self.serve(call, line, Some(lease), now).is_none()
        {
            self.lines.remove(&keys.line().line, field, now);
        }
        match self.held(key, now) {
            Some(held) if held.field == *field && (held.count > 0 || count == 1) => {
                held.count = held.count.max(count);
                held.extend(lease, now);
                Reply::Done
            }
            // A re-entry whose hold is gone must not acquire the lock.
            _ if count > 1 => Reply::Gone,
            Some(held) => {
                let holder = held.holder(now);
                match line {
                    Some(line) => {
                        let length = self.lines.enter(keys, field, line.stays, now);
                        Reply::InLine(holder.remaining_lease(), Box::new(holder), length)
                    }
                    None if *report_holder => Reply::held_by(holder),
                    None => Reply::busy(holder.remaining_lease()),
                }
            }
            None => self.put(key, field, count, lease, now),
        }
    }

    /// Ends a hold, or a wait in the line.
    fn end(&mut self, call: &Call, now: Instant) -> Reply {
        let (Call { keys, field, action, .. }, key) = (call, &call.keys.key);
        let ended = self.held(key, now).is_some_and(|held| held.field == *field);
        if ended {
            self.locks.remove(key);
        }
        let line = call.line.filter(|_| matches!(*action, Action::END | Action::Decline));
        let handed = match line.filter(|_| self.lines.first(&keys.line().line, now).is_some()) {
            Some(line) => {
                let left = self.lines.remove(&keys.line().line, field, now);
                // A holder that polls may lack the right to publish too. Its release would notify nobody, so the next waiter begins to
                // poll now.
                let wait_and_count = |held: &mut StoredLock| match wire::polls(&held.field) {
                    true => (Duration::ZERO, held.count),
                    false => (held.left(now), held.count),
                };
                let (handed, tells_others) = match self.held(key, now).map(wait_and_count) {
                    None if ended && self.gives_way(call, line, now) => {
                        return Reply::Ended(Notice::LeftToOthers(TURN));
                    }
                    None => {
                        let handed = self.serve(call, line, None, now).is_some();
                        (handed, handed && ended)
                    }
                    Some((wait, count)) if left => {
                        self.tell(0, call, wait, now);
                        (false, count == 0)
                    }
                    Some(_) => (false, false),
                };
                if tells_others && self.others(call) > 0 && self.lines.first(&keys.line().line, now).is_none()
                {
                    self.publish(keys.channel(), LEFT_TO_OTHERS);
                }
                handed
            }
            None => false,
        };
        if !ended {
            return Reply::Gone;
        }
        let listeners = if handed { 0 } else { self.publish(keys.channel(), RELEASED) };
        match *action {
            Action::Settle { .. } => Reply::Done,
            _ if line.is_some() && listeners > 0 && self.others(call) > 0 => {
                Reply::Ended(Notice::LeftToOthers(TURN))
            }
            _ => Reply::Ended(Notice::Sent(listeners)),
        }
    }

    /// Returns how many waiting clients do not know the line. Clients that know it are subscribed to a second channel.
    fn others(&self, call: &Call) -> usize {
        let channel = call.keys.channel();
        let beside = [&*call.keys.line().wakes, &**channel].concat();
        let count =
            |channel: &str| self.clients.values().filter(|one| one.channels.contains(channel)).count();
        count(channel).saturating_sub(count(&beside))
    }

    /// Leaves a free lock to clients that do not know the line, if it is their turn. Returns whether it is.
    fn gives_way(&mut self, call: &Call, line: Line, now: Instant) -> bool {
        let others = self.others(call);
        if others == 0 || !self.lines.gives_way(&call.keys.line().line, others, now) {
            return false;
        }
        self.publish(call.keys.channel(), LEFT_TO_OTHERS);
        self.tell(0, call, TURN, now);
        self.tell(1, call, line.term.duration(), now);
        true
    }

    /// Hands a free lock to the first waiter of its line that can be reached. `mine`: if that is the call's own field, the reply grants
    /// the lock for this lease. Returns the field that has the lock now.
    fn serve(&mut self, call: &Call, line: Line, mine: Option<Lease>, now: Instant) -> Option<Arc<str>> {
        for _ in 0..MOST_SERVED {
            let line_key = &call.keys.line().line;
            let first = self.lines.first(line_key, now)?;
            self.lines.remove(line_key, &first, now);
            let mine = mine.filter(|_| first == call.field);
            if mine.is_some() || wire::polls(&first) || self.hint(call, &first, None) {
                let lease = mine.unwrap_or(line.term);
                if mine.is_none() {
                    self.put(&call.keys.key, &first, 0, lease, now);
                }
                self.tell(0, call, if wire::polls(&first) { Duration::ZERO } else { lease.duration() }, now);
                return Some(first);
            }
        }
        None
    }

    /// Sends a hint that says when the lock may be free: to the waiter at this place in the line, or to the next one that gets messages.
    fn tell(&mut self, mut place: usize, call: &Call, wait: Duration, now: Instant) {
        let line = &call.keys.line().line;
        for _ in 0..MOST_SERVED {
            let Some(field) = self.lines.get(line, place, now) else { return };
            if wire::polls(&field) {
                place += 1;
                continue;
            }
            if self.hint(call, &field, Some(wait)) {
                return;
            }
            self.lines.remove(line, &field, now);
        }
    }

    /// Sends a hint to the field's process. Returns whether the process gets it.
    fn hint(&mut self, call: &Call, field: &str, wait: Option<Duration>) -> bool {
        let Some((session, number)) = field.rsplit_once(':') else { return false };
        let Ok(number) = number.parse() else { return false };
        let channel = [&call.keys.line().wakes, session].concat();
        self.publish(&channel, &Hint { number, wait, key: &call.keys.key }.write()) > 0
    }

    fn keep(&mut self, call: &Call, lease: Lease, now: Instant) -> Reply {
        let Some(held) = self.held_by(&call.keys.key, &call.field, now) else { return Reply::Gone };
        let kept = wire::kept_field(&call.field);
        *held = StoredLock { field: kept.into(), count: 1, until: after(now, lease.duration()) };
        self.publish(call.keys.channel(), RELEASED);
        Reply::Done
    }

    /// Gives a lock that nobody holds to this field.
    fn put(&mut self, key: &Arc<str>, field: &Arc<str>, count: u32, lease: Lease, now: Instant) -> Reply {
        sweep(&mut self.locks, &mut self.sweep_at, |held| held.is_live(now));
        let until = after(now, lease.duration());
        self.locks.insert(key.clone(), StoredLock { field: field.clone(), count, until });
        Reply::Done
    }

    /// Publishes a message. Returns how many clients are notified.
    fn publish(&mut self, channel: &str, text: &str) -> u64 {
        let before = self.deliveries.len();
        for client in self.clients.values() {
            if let Some(channel) = client.channels.get(channel) {
                let (channel, text) = (channel.clone(), text.to_owned());
                self.deliveries.push(client.delivery(move |events| events.message(&channel, &text)));
            }
        }
        (self.deliveries.len() - before) as u64
    }
}

fn change_if_held(held: Option<&mut StoredLock>, change: impl FnOnce(&mut StoredLock)) -> Reply {
    held.map_or(Reply::Gone, |held| {
        change(held);
        Reply::Done
    })
}

impl StoredLock {
    /// Returns whether the lock has not expired. As on a server, a key is live up to and including its last millisecond.
    fn is_live(&self, now: Instant) -> bool {
        now <= self.until
    }

    /// Extends the lock, and never shortens it.
    fn extend(&mut self, lease: Lease, now: Instant) {
        self.until = self.until.max(after(now, lease.duration()));
    }

    pub(crate) fn holder(&self, now: Instant) -> Holder {
        Holder::new(self.field.clone(), self.count as usize, self.left(now))
    }

    /// Returns the rest of the lease in whole milliseconds, as a server reports it. It is never zero while the lock is live.
    fn left(&self, now: Instant) -> Duration {
        let left = self.until.saturating_duration_since(now).as_millis() as u64;
        Duration::from_millis(left.max(1))
    }
}

#[cfg(test)]
impl Store {
    /// Deletes a lock without notifying anybody.
    pub(crate) fn delete(&mut self, key: &str) {
        self.locks.remove(key);
    }

    /// Returns how many locks are stored, including expired ones.
    pub(crate) fn size(&self) -> usize {
        self.locks.len()
    }
}
