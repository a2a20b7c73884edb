//! The names on the wire: a lock's key, its release channel and its fencing counter, in Redisson's naming.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result, shown};
use crate::wire::line::Line;

/// The longest name of a lock, in bytes. The name travels with every command.
const LONGEST: usize = 1024;

const CHANNEL: &str = "redisson_lock__channel:";

/// The beginning of the key of a lock's line, in which the server keeps the processes that wait for the lock.
const LINE: &str = "nestlock_line:";

/// The beginning of the key of a line if the key of its lock has a hash tag of its own.
const TAGGED_LINE: &str = "nestlock_line::";

/// The beginning of the channel of a session's hints. The prefix of the session's fields follows it; on a Cluster, the lock comes
/// in between.
const WAKE: &str = "nestlock_wake:";

const COUNTER: &str = "redisson_lock_token:";

/// Rejects a name that can't work, before anything is sent.
pub(crate) fn check(name: &str, prefix: &str) -> Result<()> {
    let wrong = if name.is_empty() {
        "a lock's name must not be empty; name what it guards, such as `stock:42`".to_owned()
    } else if name.len() > LONGEST {
        format!(
            "the name of lock `{}` has {} bytes, and at most {LONGEST} are allowed; use a shorter one, such as a hash of it",
            shown(name),
            name.len()
        )
    } else if prefix.is_empty() && name.starts_with('}') {
        // `{}…}` is an empty hash tag: on a cluster the channel would be in another slot than the lock.
        format!(
            "the name of lock `{}` begins with `}}`, which breaks the braces of its channel; begin it with another character",
            shown(name)
        )
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, wrong))
}

/// Returns the key that holds the lock.
pub(super) fn key(prefix: &str, name: &str) -> String {
    [prefix, name].concat()
}

/// Returns the channel on which the lock's releases are published: under the prefix, and in the slot of the key.
pub(crate) fn channel(prefix: &str, name: &str) -> String {
    beside(CHANNEL, prefix, name)
}

/// Returns the keys of the locks that may have this channel.
pub(crate) fn keys_of(channel: &str) -> impl Iterator<Item = &str> {
    let names = channel.split_once(CHANNEL).map_or("", |(_, names)| names);
    let braced = names.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    let tagged = names.contains('{').then_some(names);
    braced.filter(|name| !name.contains('{')).into_iter().chain(tagged)
}

/// Returns the key of the lock's fencing counter: under the prefix, and in the slot of the key.
pub(crate) fn counter(prefix: &str, name: &str) -> String {
    beside(COUNTER, prefix, name)
}

/// Returns the prefix of the channels on which processes get their [`Hint`](crate::wire::Hint)s.
pub(crate) fn wakes(prefix: &str) -> String {
    [prefix, WAKE].concat()
}

/// Returns whether a process gets hints on this channel.
pub(crate) fn is_for_hints(channel: &str) -> bool {
    channel.contains(WAKE) && keys_of(channel).next().is_none()
}

/// Returns the release channel of the lock that a channel of sharded hints is about. `wakes` is the prefix of hint channels,
/// `session` that of the session's fields.
pub(crate) fn channel_of_hints(channel: &str, wakes: &str, session: &str) -> Option<String> {
    let names = channel.strip_prefix(wakes)?.strip_suffix(session)?.strip_suffix(':')?;
    Some([wakes.strip_suffix(WAKE)?, CHANNEL, names].concat())
}

/// Returns the part of a key that decides on its slot in a Cluster: the text between the first braces, if there is any.
pub(crate) fn tag(key: &str) -> &str {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    tagged.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Returns the key of the lock's line: under the prefix, in the slot of the lock's key, and shared with no other lock. Redisson
/// gives `x` and `{x}` one channel and one counter, which does no harm. If they shared a line, the lock `x` would be handed to a
/// waiter for `{x}`.
fn line(prefix: &str, name: &str) -> String {
    beside(if has_tag(prefix, name) { TAGGED_LINE } else { LINE }, prefix, name)
}

/// Returns whether the key has a hash tag of its own.
fn has_tag(prefix: &str, name: &str) -> bool {
    prefix.contains('{') || name.contains('{')
}

fn beside(what: &str, prefix: &str, name: &str) -> String {
    if has_tag(prefix, name) {
        [prefix, what, prefix, name].concat()
    } else {
        [prefix, what, "{", prefix, name, "}"].concat()
    }
}

/// What a lock is called: by its users, and on the wire.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) name: Arc<str>,
    pub(crate) key: Arc<str>,
    /// Made when first needed: a lock that is only acquired and renewed needs none.
    pub(super) channel: OnceLock<Arc<str>>,
    pub(super) line: OnceLock<Box<LineKeys>>,
    pub(super) sharded_line: OnceLock<Option<Box<LineKeys>>>,
    pub(crate) slot: Slot,
}

/// The names of a lock's line.
#[derive(Debug)]
pub(crate) struct LineKeys {
    /// The key of the line.
    pub(crate) line: Box<str>,
    /// The prefix of the channels on which waiting processes get their hints.
    pub(crate) wakes: Box<str>,
    args: OnceLock<Box<str>>,
}

impl LineKeys {
    /// Returns the parameters of the line, which the scripts get as one argument. They are the same for all calls of a session.
    pub(super) fn args(&self, line: Line) -> &str {
        self.args.get_or_init(|| {
            let sharded = if line.sharded { "S" } else { "" };
            format!("{sharded}{} {} {}", line.term.millis(), line.stays.millis(), self.wakes).into()
        })
    }
}

/// The slot of the lock's entry in the table, once it is known, so that a handle looks it up by name only once.
#[derive(Debug)]
pub(crate) struct Slot(AtomicUsize);

impl Slot {
    const UNKNOWN: usize = usize::MAX;

    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Sets the slot. Called while the table is locked.
    pub(crate) fn set(&self, slot: usize) {
        self.0.store(slot, Relaxed);
    }
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &str) -> Keys {
        let shown = Arc::from(name);
        let key = if prefix.is_empty() { Arc::clone(&shown) } else { key(prefix, name).into() };
        let (channel, line, sharded_line) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let slot = Slot(AtomicUsize::new(Slot::UNKNOWN));
        Keys { name: shown, key, channel, line, sharded_line, slot }
    }

    /// Returns the channel on which the lock's releases are published.
    pub(crate) fn channel(&self) -> &Arc<str> {
        self.channel.get_or_init(|| channel(self.prefix(), &self.name).into())
    }

    /// Returns the names of the lock's line.
    pub(crate) fn line(&self) -> &LineKeys {
        self.line.get_or_init(|| self.made_line(wakes(self.prefix())).into())
    }

    /// Returns the names of the lock's line on a Cluster, where its messages are sharded. Returns `None` if the line or the lock's
    /// channel would be in another slot than the lock, since no script could use both.
    pub(crate) fn sharded_line(&self) -> Option<&LineKeys> {
        let made = self.sharded_line.get_or_init(|| {
            let made = self.made_line(beside(WAKE, self.prefix(), &self.name) + ":");
            // The channel may be shared by several locks.
            let differs = |key| tag(&made.line) != tag(key);
            (!differs(&*self.key) && !keys_of(self.channel()).any(differs)).then(|| made.into())
        });
        made.as_deref()
    }

    fn made_line(&self, wakes: String) -> LineKeys {
        LineKeys { line: line(self.prefix(), &self.name).into(), wakes: wakes.into(), args: OnceLock::new() }
    }

    fn prefix(&self) -> &str {
        self.key.strip_suffix(&*self.name).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
