//! The handle for several locks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::client::call::CallOptions;
use crate::client::hold::Hold;
use crate::client::kind::{Fenced, Kind, Plain};
use crate::client::request::Request;
use crate::client::run::Run;
use crate::client::several::acquire::AskAll;
use crate::client::several::guards::Guards;
use crate::session::Handle;
use crate::wire::keys::Keys;

/// Several locks that are taken together or not at all. [`Locks::mutexes`](crate::Locks::mutexes) creates it. A handle holds
/// nothing by itself.
///
/// Each is the same lock as the [`Mutex`](crate::Mutex) of its name, and re-enters like it.
///
/// **Requests that take several locks in this way do not deadlock**, in whatever order they list the names, in one process or in
/// many: a request never holds a name that sorts (by its bytes) after one that it waits for. Locks that are taken one by one inside
/// a hold are not part of that order: use [`within`](Request::within) there, or list all names at once.
///
/// All names are asked for at once, in one round trip. If somebody else holds one of them, the later ones are released, and are
/// asked for again once it is granted.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// # let (from, to) = ("account:2", "account:1");
/// // The same way from 1 to 2 and back.
/// locks.mutexes([from, to]).run(async |_holds| { /* move the money */ }).await
/// # }
/// ```
#[derive(Clone)]
pub struct Mutexes<K: Kind = Plain> {
    handle: Handle,
    /// Sorted by name, without duplicates.
    keys: Arc<[Arc<Keys>]>,
    kind: PhantomData<K>,
}

impl Mutexes {
    pub(in crate::client) fn new<N: AsRef<str>>(
        handle: Handle,
        names: impl IntoIterator<Item = N>,
    ) -> Mutexes {
        let prefix = &handle.config.prefix;
        let keys = names.into_iter().map(|name| Arc::new(Keys::new(prefix, name.as_ref())));
        let keys: BTreeMap<Arc<str>, Arc<Keys>> = keys.map(|keys| (keys.name.clone(), keys)).collect();
        let keys = keys.into_values().collect();
        Mutexes { handle, keys, kind: PhantomData }
    }

    /// Returns the same locks, with a fencing token for each hold.
    ///
    /// For resources that refuse late writes: see [`Fenced`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// # async fn write(_account: &str, _balance: u32, _token: u64) {}
    /// let accounts = locks.mutexes(["account:1", "account:2"]).fenced();
    /// accounts.run(async |holds| {
    ///     for hold in holds {
    ///         write(hold.name(), 41, hold.token()).await; // the token is checked where it is written
    ///     }
    /// }).await
    /// # }
    /// ```
    #[must_use]
    pub fn fenced(self) -> Mutexes<Fenced> {
        Mutexes { handle: self.handle, keys: self.keys, kind: PhantomData }
    }
}

impl<K: Kind> Mutexes<K> {
    /// Returns the names of the locks, without the prefix: each once, in the order in which they are waited for.
    ///
    /// ```
    /// let locks = nestlock::Locks::in_memory();
    /// let accounts = locks.mutexes(["account:2", "account:1", "account:2"]);
    /// assert!(accounts.names().eq(["account:1", "account:2"]));
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|keys| &*keys.name)
    }

    /// Waits for all of the locks, without a limit while the servers answer, and returns their guards. The holds are renewed until the
    /// guards are released or dropped.
    ///
    /// [`Mutex::lock`](crate::Mutex::lock) describes who owns the holds. See [`Request`] for options, errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// use std::time::Duration;
    /// let accounts = locks.mutexes(["account:1", "account:2"]);
    /// let guards = accounts.lock().within(Duration::from_secs(5)).await?;
    /// // … the work …
    /// guards.release().await
    /// # }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Request<Guards<K>> {
        Request::new(self.request(None))
    }

    /// Tries to take all of the locks: once or, with [`within`](Request::within), for that long. Resolves to `None` if somebody
    /// else holds one of them, and then holds none.
    ///
    /// See [`Request`] for options, errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let Some(guards) = locks.mutexes(["account:1", "account:2"]).try_lock().await? else {
    ///     return Ok(()); // somebody else holds one
    /// };
    /// guards.release().await
    /// # }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> Request<Option<Guards<K>>> {
        Request::new(self.request(Some(Duration::ZERO)))
    }

    /// Waits for all of the locks, runs work while they are held, and releases them.
    ///
    /// `work` is a closure that is called once all locks are held. It gets one [`Hold`] for each distinct name, sorted by name (by its
    /// bytes), not in the order in which the names were given: tell them apart by [`Hold::name`]. Its future runs as a child of the
    /// current owner: calls nested in it re-enter each of the locks, branches beside it wait. If one of the holds is lost, the future
    /// is dropped. This is short for [`lock()`](Mutexes::lock)[`.run(work)`](Request::run).
    ///
    /// See [`Run`] for its result and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let one = locks.mutex("account:1");
    /// let work = async |_holds| one.run(async |_hold| 41 + 1).await; // nested: it re-enters
    /// let left = locks.mutexes(["account:1", "account:2"]).run(work).await??; // the locks' result, then the work's
    /// assert_eq!(left, 42);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<W, F>(&self, work: W) -> Run<Guards<K>, W>
    where
        W: FnOnce(Vec<Hold<K>>) -> F,
        F: Future,
    {
        self.lock().run(work)
    }

    #[track_caller]
    pub(in crate::client) fn request(&self, within: Option<Duration>) -> AskAll {
        AskAll::new(self.handle.clone(), self.keys.clone(), CallOptions::new(within, K::FENCED))
    }
}

impl<K: Kind> fmt::Debug for Mutexes<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("Mutexes").field("names", &names).finish_non_exhaustive()
    }
}
