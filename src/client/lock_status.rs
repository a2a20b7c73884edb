//! `LockStatus`: what this process holds of a lock, and what it waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::locks::Locks;
use crate::error::shown;
use crate::holder::{Holder, Shown};
use crate::table::Usage;

/// What this process holds of one lock, and what it waits for: an element of [`Locks::status`].
///
/// `Display` shows it on one line, for a debug page or a log.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// let locks = nestlock::Locks::in_memory();
/// let stock = locks.mutex("stock:42");
/// let guard = stock.lock().await?;
/// let [status] = &locks.status()[..] else { panic!("one lock") };
/// assert_eq!((status.name(), status.hold_count(), status.waiting()), ("stock:42", 1, 0));
/// println!("{status}"); // stock:42: held for 0 ms, good for another 29 s
/// guard.release().await?;
/// assert!(locks.status().is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LockStatus {
    name: Arc<str>,
    usage: Usage,
}

impl LockStatus {
    /// Returns the lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how many guards and runs of this process hold the lock; 0 if it only waits for it.
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.usage.hold_count
    }

    /// Returns how long ago the server granted the hold, or `None` if this process has none.
    ///
    /// Owners of this process that [pass the hold on](crate::Builder::local_handoff) to each other share this time.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.usage.held_for
    }

    /// Returns how long the hold is good for if it is not renewed, or `None` if this process has none.
    #[must_use]
    pub fn remaining_lease(&self) -> Option<Duration> {
        self.usage.remaining_lease
    }

    /// Returns how many requests of this process are under way: they wait, or have just asked.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.usage.waiting
    }

    /// Returns how long the first of these requests has waited, or `None` if there is none.
    #[must_use]
    pub fn waiting_for(&self) -> Option<Duration> {
        self.usage.waiting_for
    }

    /// Returns which other process these requests wait for, according to the server's answer to the latest request that asked.
    /// `None` if nobody waits, if the lock is this process's, or if it is [not known](crate::Error::holder).
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.usage.holder.as_ref()
    }
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", shown(&self.name))?;
        if let (Some(held_for), Some(left)) = (self.usage.held_for, self.usage.remaining_lease) {
            write!(f, " held for {}, good for another {}", Shown(held_for), Shown(left))?;
            if self.usage.hold_count > 1 {
                write!(f, ", {} levels", self.usage.hold_count)?;
            }
        }
        if let Some(waiting_for) = self.usage.waiting_for {
            let comma = if self.usage.held_for.is_some() { "," } else { "" };
            write!(f, "{comma} {} waiting, the first for {}", self.usage.waiting, Shown(waiting_for))?;
        }
        match &self.usage.holder {
            Some(holder) => write!(f, ", held by {holder}"),
            None => Ok(()),
        }
    }
}

impl Locks {
    /// Returns what this process holds and waits for now, sorted by lock name. Sends nothing.
    ///
    /// Meant for a debug page. It covers this `Locks` and its clones. The list of names is copied first, then each lock is looked
    /// at by itself, so a change in between may or may not be seen. A lost hold is not in the list.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// locks.mutex("stock:42").run(async |_| {
    ///     for status in locks.status() {
    ///         println!("{status}"); // stock:42: held for 0 ms, good for another 29 s
    ///     }
    /// }).await
    /// # }
    /// ```
    #[must_use]
    pub fn status(&self) -> Vec<LockStatus> {
        let session = &self.handle;
        let mut keys = session.table(|table, _| table.keys());
        keys.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let status = keys.into_iter().filter_map(|keys| {
            let usage = session.table(|table, at| table.entry_of(&keys)?.usage(at))?;
            Some(LockStatus { name: keys.name.clone(), usage })
        });
        status.collect()
    }
}

#[cfg(test)]
mod tests;
