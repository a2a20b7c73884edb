//! `Holder` and `WaitingProcess`: who has a lock, and who waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Who has a lock, according to the servers or this process, at the time when they were asked.
///
/// [`Mutex::holder`](crate::Mutex::holder) returns one. An [`Error`](crate::Error) of kind [`Timeout`](crate::ErrorKind::Timeout)
/// has the holder that was in the way. `Display` shows it in one line, for logs.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{Locks, Memory};
/// let locks = Locks::builder(Memory::new()).holder_name("billing@web-7").connect().await?;
/// let stock = locks.mutex("stock:42");
/// let guard = stock.lock().await?;
/// let holder = stock.holder().await?.expect("it is held");
/// assert_eq!(holder.name(), Some("billing@web-7"));
/// assert_eq!(holder.hold_id(), guard.hold_id());
/// assert_eq!(holder.count(), 1);
/// println!("held by {holder}"); // held by billing@web-7 for another 29 s
/// guard.release().await?;
/// assert_eq!(stock.holder().await?, None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    field: Arc<str>,
    count: usize,
    left: Duration,
}

impl Holder {
    pub(crate) fn new(field: impl Into<Arc<str>>, count: usize, left: Duration) -> Holder {
        Holder { field: field.into(), count, left }
    }

    /// Returns this holder with another count and remaining lease.
    pub(crate) fn with(&self, count: usize, left: Duration) -> Holder {
        Holder { field: self.field.clone(), count, left }
    }

    /// Returns the [name](crate::Builder::holder_name) of the `Locks` that has the lock. Returns `None` if it has none, or another
    /// library has the lock.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        name_of(&self.field)
    }

    /// Returns the id of the hold, which is its field in Redis: `<uuid>:<number>`, preceded by the holder's name and a colon if it has
    /// one.
    ///
    /// It equals [`Guard::hold_id`](crate::Guard::hold_id) in the process that has the lock. The number is 0 while
    /// [`at_least`](crate::futures::Request::at_least) keeps a lock after its release. Redisson writes `<uuid>:<thread id>`. Bytes that are
    /// not UTF-8 are replaced.
    #[must_use]
    pub fn hold_id(&self) -> &str {
        &self.field
    }

    /// Returns how many times the holder has the lock, as the server counts it: 1, and one more for each re-entry that the server
    /// granted.
    ///
    /// It is 0 after a release has handed the lock to a waiting process, until that process takes it. A nested level that was
    /// [granted without a command](crate::Builder::confirm_reentry) is not counted there.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns how long the holder keeps the lock if nobody renews its lease, counted from when the servers, or this process, were asked.
    #[must_use]
    pub fn remaining_lease(&self) -> Duration {
        self.left
    }

    /// Returns its name or, if it has none, its field: escaped, and cut if it is long.
    pub(crate) fn shown(&self) -> String {
        shown_field(&self.field)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for another {}", self.shown(), Shown(self.left))
    }
}

/// A process that waits for a lock in the line that the server keeps: an element of [`Mutex::waiters`](crate::Mutex::waiters).
///
/// `Display` shows it in one line, for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingProcess {
    field: Arc<str>,
    waiting_for: Duration,
    here: bool,
}

impl WaitingProcess {
    pub(crate) fn new(field: impl Into<Arc<str>>, waiting_for: Duration) -> WaitingProcess {
        WaitingProcess { field: field.into(), waiting_for, here: false }
    }

    /// Returns this process as seen by the `Locks` whose fields begin with `uuid`.
    pub(crate) fn seen_by(self, uuid: &str) -> WaitingProcess {
        let here = self.field.strip_prefix(uuid).is_some_and(|id| id.starts_with(':'));
        WaitingProcess { here, ..self }
    }

    /// Returns the [name](crate::Builder::holder_name) of the `Locks` that waits. Returns `None` if it has none.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        name_of(&self.field)
    }

    /// Returns the id that the hold has once the lock is granted: see [`Holder::hold_id`].
    #[must_use]
    pub fn hold_id(&self) -> &str {
        &self.field
    }

    /// Returns whether it is the `Locks` that asked: if so, [`Mutex::waiters`](crate::Mutex::waiters) has its own place in the
    /// line.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.here
    }

    /// Returns how long the process has been in the line, in whole seconds by the server's clock.
    ///
    /// A process has one place, however many of its requests wait: its next request keeps that place, or goes to the end.
    #[must_use]
    pub fn waiting_for(&self) -> Duration {
        self.waiting_for
    }
}

impl fmt::Display for WaitingProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} s", shown_field(&self.field), self.waiting_for.as_secs())
    }
}

fn shown_field(field: &str) -> String {
    shown(name_of(field).unwrap_or(field))
}

/// Returns a name as messages show it: escaped, and cut if it is long.
pub(crate) fn shown(name: &str) -> String {
    const LONGEST: usize = 80;
    let mut shown: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Shows a duration in whole seconds or, if it is shorter, in milliseconds.
pub(crate) struct Shown(pub(crate) Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

/// Returns the name in a field of the form `<name>:<uuid>:<id>`, and of no other. Redisson's fields of a write lock have three parts
/// too: `<uuid>:<thread id>:write`.
fn name_of(field: &str) -> Option<&str> {
    let (head, id) = field.rsplit_once(':')?;
    let (name, uuid) = head.rsplit_once(':')?;
    // The id is negative if the process may not subscribe.
    let id = id.strip_prefix('-').unwrap_or(id);
    let is_ours = is_number(id) && is_uuid(uuid) && !name.is_empty() && !name.contains(':');
    is_ours.then_some(name)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_uuid(text: &str) -> bool {
    let parts = text.split('-').map(|part| (part.len(), part.bytes().all(|byte| byte.is_ascii_hexdigit())));
    parts.eq([8, 4, 4, 4, 12].map(|length| (length, true)))
}

#[cfg(test)]
mod tests;
