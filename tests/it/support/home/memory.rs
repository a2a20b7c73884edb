//! Stores in this process, as the home of a test's locks.

use std::collections::BTreeSet;
use std::time::Duration;

use nestlock::{Builder, Locks, Master, Memory};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::support::{self, eventually, log};

/// A store for one test.
pub type Home = Kept<false, 1>;

/// A store for tests whose runtime has one thread: its time advances as soon as all tasks are idle.
pub type PausedHome = Kept<true, 1>;

/// Three such stores; a majority decides.
pub type QuorumHome = Kept<true, 3>;

pub struct Kept<const PAUSED: bool, const MASTERS: usize> {
    stores: [Memory; MASTERS],
}

impl<const PAUSED: bool, const MASTERS: usize> Kept<PAUSED, MASTERS> {
    /// How deep tests nest holds. Each poll passes through all levels.
    pub const LEVELS: usize = 200;

    /// Starts an empty home.
    pub async fn start() -> Self {
        log::capture();
        if PAUSED && Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            tokio::time::pause();
        }
        Kept { stores: std::array::from_fn(|_| Memory::new()) }
    }

    /// Starts a home for tests that call [`drop_replies`](Kept::drop_replies).
    pub async fn with_faults() -> Self {
        Self::start().await
    }

    /// Returns the options that a test starts from.
    pub fn builder(&self) -> Builder {
        support::quorum(&self.stores)
    }

    /// Returns a new `Locks`, like that of another process.
    pub async fn locks(&self) -> Locks {
        self.builder().connect().await.expect("there is nothing that could fail")
    }

    /// Returns whether a lock and its counter need a common hash tag to be in one slot.
    pub fn has_slots(&self) -> bool {
        false
    }

    /// Returns a lock name that no other test uses, for tests that read the log.
    pub fn unique(&self, name: &str) -> String {
        super::unique(name)
    }

    /// Returns the names of the held locks, sorted.
    pub async fn keys(&self) -> Vec<String> {
        self.standing().into_iter().map(|(key, _, _)| key).collect()
    }

    /// Returns the fields of a lock with their counts.
    pub async fn fields(&self, name: &str) -> Vec<(String, usize)> {
        let standing = self.standing().into_iter().filter(|(key, _, _)| key == name);
        standing.map(|(_, field, count)| (field, count)).collect()
    }

    /// Returns the count of a field.
    pub async fn count(&self, name: &str, field: &str) -> Option<usize> {
        self.fields(name).await.into_iter().find(|(stands, _)| stands == field).map(|(_, count)| count)
    }

    /// Returns the remaining lease of a lock.
    pub async fn left(&self, name: &str) -> Option<Duration> {
        self.locks().await.mutex(name).remaining_lease().await.unwrap()
    }

    /// Deletes a lock, whichever process holds it.
    pub async fn lose(&self, name: &str) {
        assert!(self.each(|store| store.faults().lose(name)).contains(&true), "nobody held {name}");
    }

    /// Waits until a client is subscribed to releases, as far as that is visible. This home only gives every task time to subscribe.
    pub async fn listened(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until clients are subscribed to the releases of this many locks, as far as that is visible.
    pub async fn channels(&self, _: usize) {
        self.listened().await;
    }

    /// Returns how many commands the home has received, as far as that is counted.
    pub async fn asked(&self) -> u64 {
        0
    }

    /// Waits until, after `before` other requests to this home, the head of a queue has asked, subscribed and
    /// asked again, as far as that is visible. After that the head sleeps.
    pub async fn asleep(&self, _before: u64) {
        self.listened().await;
    }

    /// Waits until no lock is held and no client is subscribed to one.
    pub async fn tidy(&self) {
        eventually("the last lock's end", async || self.keys().await.is_empty()).await;
    }

    /// Waits until no client is subscribed to releases, as far as that is visible.
    pub async fn silence(&self) {}

    /// Returns how many connections there are, as far as that is visible.
    pub async fn connections(&self) -> usize {
        0
    }

    /// Waits until no client is connected any more.
    pub async fn deserted(&self) {}

    /// Answers nothing for this time. Commands that arrive during it run afterwards, in their order. Zero ends the effect of an earlier
    /// call.
    pub async fn stall(&self, time: Duration) {
        self.each(|store| store.faults().stall(time));
    }

    /// Lets the next commands run and drops their replies. Zero ends the effect of an earlier call.
    pub async fn drop_replies(&self, count: usize) {
        self.each(|store| store.faults().drop_replies(count));
    }

    /// Restarts the home without any lock.
    pub async fn restart_empty(&self) {
        self.each(|store| store.faults().restart_empty());
    }

    fn each<T>(&self, deed: impl Fn(&Memory) -> T) -> [T; MASTERS] {
        self.stores.each_ref().map(deed)
    }

    /// Returns key, field and count of each lock on any of the stores, in the order of their keys.
    fn standing(&self) -> Vec<(String, String, usize)> {
        let all: BTreeSet<_> = self.each(Self::shown).into_iter().flatten().collect();
        all.into_iter().collect()
    }

    /// Returns key, field and count of each lock, from the `Debug` text of one store.
    fn shown(store: &Memory) -> Vec<(String, String, usize)> {
        let shown = format!("{store:?}");
        let held = shown.strip_prefix("Memory { locks: {").and_then(|shown| shown.strip_suffix("} }"));
        let held = held.unwrap_or_else(|| panic!("not the locks of a store: {shown}"));
        let locks = held.split_inclusive(" }").filter(|lock| !lock.is_empty());
        locks.map(|lock| parsed(lock).unwrap_or_else(|| panic!("not a lock: {lock}"))).collect()
    }
}

/// Parses a text like `"stock": Holder { field: "<uuid>:1", count: 2, left: 29.9s }`.
fn parsed(lock: &str) -> Option<(String, String, usize)> {
    let (key, held) = lock.rsplit_once(": Holder { field: ")?;
    let (field, rest) = held.split_once(", count: ")?;
    let (count, _) = rest.split_once(", left: ")?;
    Some((unquoted(key.trim_start_matches(", "))?, unquoted(field)?, count.parse().ok()?))
}

/// Returns the string whose `Debug` text is `shown`.
fn unquoted(shown: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = shown.strip_prefix('"')?.strip_suffix('"')?.chars();
    while let Some(next) = rest.next() {
        text.push(match next {
            '\\' => match rest.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                'u' => {
                    let code: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
                }
                escaped => escaped,
            },
            plain => plain,
        });
    }
    Some(text)
}
