//! `Hints`: the channels on which this process gets hints about the lines that it waits in.

use std::sync::Arc;

use crate::base::atomic::{AtomicBool, Ordering::SeqCst};
use crate::table::LockEntry;
use crate::wire::Line;
use crate::wire::keys::{self, Keys, LineKeys};

/// There is one channel for all locks. The process subscribes to it at its first wait, and stays subscribed. Otherwise a process
/// that waits for a lock now and then would have to subscribe before each of its requests could enter the line.
///
/// On a Cluster each lock has a channel of its own, in its slot, since only the node of that slot can send hints. The process
/// subscribes to it together with the channel of the lock's releases.
pub(crate) struct Hints {
    /// What scripts need to know about a lock's line. `None` if these locks have no line.
    line: Option<Line>,
    /// The channel for all locks.
    channel: Arc<str>,
    /// The prefix of the fields of all holds of this session.
    uuid: Box<str>,
    /// The prefix of the channels of all processes.
    wakes: String,
    /// Whether the process has asked for a subscription.
    wanted: AtomicBool,
    /// Whether messages arrive on the channel for all locks.
    on: AtomicBool,
    /// Whether the last attempt to subscribe was refused or failed.
    failed: AtomicBool,
    /// Whether this process may not publish, so that its releases notify nobody. Tried again once messages arrive over a new connection.
    mute: AtomicBool,
}

impl Hints {
    pub(super) fn new(prefix: &str, uuid: &str, line: Option<Line>) -> Hints {
        let wakes = keys::wakes(prefix);
        let channel = [&wakes, uuid].concat().into();
        let [wanted, on, failed, mute] = [false; 4].map(AtomicBool::new);
        Hints { line, channel, uuid: uuid.into(), wakes, wanted, on, failed, mute }
    }

    fn are_sharded(&self) -> bool {
        self.line.is_some_and(|line| line.sharded)
    }

    /// Returns the channel for all locks at the first call, whose caller has to subscribe to it.
    pub(super) fn begin(&self) -> Option<&str> {
        let has_one = self.line.is_some_and(|line| !line.sharded);
        (has_one && !self.wanted.swap(true, SeqCst)).then_some(&*self.channel)
    }

    /// Returns whether this is the channel for all locks; if so, notes whether its messages arrive from now on.
    pub(super) fn set(&self, channel: &str, on: bool) -> bool {
        let is_this = *self.channel == *channel;
        if is_this {
            self.on.store(on, SeqCst);
            self.failed.store(!on, SeqCst);
            self.mute.store(false, SeqCst);
        }
        is_this
    }

    /// Returns the channel of the lock's releases if this channel carries the hints of a single lock.
    pub(super) fn releases_of(&self, channel: &str) -> Option<String> {
        let sharded = self.are_sharded();
        sharded.then(|| keys::channel_of_hints(channel, &self.wakes, &self.uuid)).flatten()
    }

    /// Returns the second channel to subscribe to, or to leave, along with this channel of a lock's releases. Its subscription
    /// shows scripts that this process knows of lines. `None` if no hints arrive, for example because the user lacks the right that
    /// both channels need.
    pub(super) fn companion(&self, channel: &str, on: bool) -> Option<String> {
        let arrive = self.line.is_some_and(|line| !line.sharded) && (!on || self.on.load(SeqCst));
        arrive.then(|| [&self.wakes, channel].concat())
    }

    /// Returns the channels to subscribe to, or to leave, along with that of this lock's releases: the [`companion`](Hints::companion)
    /// or, on a Cluster, the channel of the lock's hints and its companion. Both are refused to a user that lacks the right.
    pub(super) fn channels_beside(&self, keys: &Keys, on: bool) -> Vec<String> {
        if !self.are_sharded() {
            return self.companion(keys.channel(), on).into_iter().collect();
        }
        let both =
            |line: &LineKeys| [&self.uuid, &**keys.channel()].map(|rest| [&*line.wakes, rest].concat());
        keys.sharded_line().map(both).into_iter().flatten().collect()
    }

    pub(super) fn may_not_publish(&self) {
        self.mute.store(true, SeqCst);
    }

    pub(super) fn is_mute(&self) -> bool {
        self.mute.load(SeqCst)
    }

    pub(super) fn lost(&self) {
        self.on.store(false, SeqCst);
    }

    /// Returns whether hints are refused to this process. They are not while a lost connection is replaced, nor on a Cluster, where the channel
    /// of a lock is also left when its slot moves.
    pub(crate) fn are_refused(&self) -> bool {
        self.failed.load(SeqCst) && !self.on.load(SeqCst)
    }

    /// Returns what a request passes to the script to enter the line of this lock, or `None` if it is not known yet whether hints
    /// will reach this process. If they can't, the request polls in the line. So it does if this process may not publish: the others poll
    /// while a field that polls has the lock. But if this process is subscribed to the lock's releases and gets no hints, the result is
    /// `None`: scripts take the process for a client that does not know the line, and such clients have turns of their own.
    pub(crate) fn line(&self, entry: &LockEntry) -> Option<Line> {
        let line = self.line?;
        let mute = self.mute.load(SeqCst);
        let (on, failed) = match line.sharded {
            true => (entry.gets_hints(), false),
            false => (self.on.load(SeqCst), self.failed.load(SeqCst) || mute),
        };
        (on || failed && !entry.is_subscribed()).then_some(Line { polls: !on || mute, ..line })
    }

    /// Returns whether hints arrive on this channel.
    pub(super) fn arrive_on(&self, channel: &str) -> bool {
        *self.channel == *channel || self.releases_of(channel).is_some()
    }
}
