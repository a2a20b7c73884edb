//! `Line`: the processes that wait for a lock, in order, as the server keeps them; and the messages that they get.

use std::time::Duration;

use crate::base::Lease;

/// What a script needs to know about a lock's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// For how long the lock is kept for the field that it is handed to.
    pub(crate) term: Lease,
    /// How long the line is kept while no request asks. Only an acquire uses it.
    pub(crate) stays: Lease,
    /// Whether the field has asked before: it may be in the line, and a free lock goes to the first there. Only an acquire uses it.
    pub(crate) again: bool,
    /// Whether no messages reach the process, since it may not subscribe. Then the field that enters has to say so.
    pub(crate) polls: bool,
    /// Whether the messages are sharded, as on a Cluster. If so, a process has a channel for each lock.
    pub(crate) sharded: bool,
}

/// A message to one process. It only makes the process ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint<'a> {
    /// The number in this process's field in the line.
    pub(crate) number: u64,
    /// When to ask. `None` means at once, since the lock was handed to the field. Otherwise the field is first now, and the lock
    /// may have expired after this time.
    pub(crate) wait: Option<Duration>,
    /// The key of the lock.
    pub(crate) key: &'a str,
}

/// The message on a lock's channel when the lock was released.
pub(crate) const RELEASED: &str = "0";

/// The message by which clients that do not know the line learn that they have to ask: the lock is left to them, or was handed to the last
/// waiter in the line. To Redisson it is a release, like any number that is zero.
pub(crate) const LEFT_TO_OTHERS: &str = "00";

impl Hint<'_> {
    /// Parses a message. Returns `None` if it is not one of ours.
    pub(crate) fn read(text: &str) -> Option<Hint<'_>> {
        let (number, rest) = text.split_once(' ')?;
        let (wait, key) = rest.split_once(' ')?;
        let wait = match wait {
            "-" => None,
            millis => Some(Duration::from_millis(millis.parse().ok()?)),
        };
        Some(Hint { number: number.parse().ok()?, wait, key })
    }

    /// Returns the message as the scripts write it.
    pub(crate) fn write(&self) -> String {
        let wait = self.wait.map_or("-".to_owned(), |wait| wait.as_millis().to_string());
        format!("{} {wait} {}", self.number, self.key)
    }
}

#[cfg(test)]
mod tests;
