//! `Guards`: a hold of each of several locks, until they are released or dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::join_all;
use crate::client::answer::{Granted, Releasing, Watching};
use crate::client::guard::Guard;
use crate::client::guard_scope::GuardScope;
use crate::client::kind::{Fenced, Kind, Plain};
use crate::error::{Loss, Result};

/// Holds of several locks. Dropping it releases all of them without waiting; [`release`](Guards::release) releases them and reports the
/// outcome.
///
/// It may be moved and dropped like a [`Guard`](crate::Guard).
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// let guards = locks.mutexes(["account:2", "account:1"]).lock().await?;
/// assert!(guards.names().eq(["account:1", "account:2"])); // sorted
/// assert!(locks.mutex("account:1").is_held());
/// guards.release().await
/// # }
/// ```
#[must_use = "dropping the guards releases the locks"]
pub struct Guards<K: Kind = Plain> {
    /// Sorted by name, and never empty.
    guards: Vec<Guard<K>>,
}

impl Guards {
    pub(super) fn new(guards: impl Iterator<Item = Guard>) -> Guards {
        Guards { guards: guards.collect() }
    }
}

impl<K: Kind> Guards<K> {
    /// Returns the guards as another kind. Fails if that kind is fenced and one of the holds has no token; then all of them are
    /// released.
    pub(in crate::client) fn into_kind<L: Kind>(self) -> Result<Guards<L>> {
        let guards = self.guards.into_iter().map(Guard::into_kind).collect::<Result<_>>()?;
        Ok(Guards { guards })
    }

    /// Returns the distinct names of the locks, without the prefix, sorted by their bytes, not in the order in which they were given.
    ///
    /// See the example of [`Guards`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.guards.iter().map(Guard::name)
    }

    /// Returns the id of the hold of this name, or `None` if the name is not among those that were asked for.
    /// See [`Guard::hold_id`](crate::Guard::hold_id).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// let holder = locks.mutex("account:2").holder().await?.expect("it is held");
    /// assert_eq!(guards.hold_id("account:2"), Some(holder.hold_id()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn hold_id(&self, name: &str) -> Option<&str> {
        self.guards.iter().find(|guard| guard.name() == name).map(Guard::hold_id)
    }

    /// Releases all holds at once, and reports whether all of them were still held.
    ///
    /// Each hold is released, whatever happens to the others.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder(&memory).connect().await?;
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// memory.faults().lose("account:1");
    /// let error = guards.release().await.unwrap_err();
    /// assert_eq!((error.kind(), error.lock()), (ErrorKind::Lost, Some("account:1")));
    /// assert!(!locks.mutex("account:2").is_locked().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the first name whose release failed, as for [`Guard::release`](crate::Guard::release);
    /// [`Error::lock`](crate::Error::lock) is that name.
    ///
    /// # Cancel safety
    ///
    /// All holds count as released from the first poll on. If the future is dropped, the releases go on in the background.
    pub async fn release(self) -> Result<()> {
        all(self.guards.into_iter().map(Guard::release)).await
    }

    /// Waits until the first of the holds is lost, and returns the reason. Pending while all of them are good.
    ///
    /// From then on the work that the holds guard together is not safe. The other holds stay until the guards are released or
    /// dropped, since the work that they guard may go on.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Loss, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder(&memory).connect().await?;
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// memory.faults().lose("account:2");
    /// assert_eq!(guards.lost().await, Loss::Gone);
    /// assert!(guards.is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. Any number of callers may wait at once.
    pub async fn lost(&self) -> Loss {
        self.watching().await
    }

    fn watching(&self) -> Watching {
        let mut watching: Vec<Watching> =
            self.guards.iter().map(|guard| Box::pin(guard.held().watch()) as Watching).collect();
        Box::pin(poll_fn(move |cx| {
            let lost = watching.iter_mut().find_map(|one| match one.as_mut().poll(cx) {
                Poll::Ready(loss) => Some(loss),
                Poll::Pending => None,
            });
            lost.map_or(Poll::Pending, Poll::Ready)
        }))
    }

    /// Returns whether one of the holds is lost, as far as this process knows now. Sends nothing.
    ///
    /// It is true from [`valid_until`](Guards::valid_until) on at the latest.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// Returns why a hold was lost, or `None` while all are good; if several were lost, the reason of the first name. Sends
    /// nothing.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(Guard::loss)
    }

    /// Returns until when all holds are good if nothing renews them: the earliest of their ends.
    ///
    /// See [`Guard::valid_until`](crate::Guard::valid_until). With a fixed lease it is the end of the hold that was granted first.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// // Right before a write that may take a second:
    /// if guards.is_lost() || guards.valid_until() < Instant::now() + Duration::from_secs(1) {
    ///     return Ok(()); // too late to write
    /// }
    /// guards.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or_else(Instant::now)
    }

    /// Makes all holds good for at least `lease` from now, in whole milliseconds.
    ///
    /// Each is extended, whatever happens to the others. See [`Guard::extend`](crate::Guard::extend).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// use std::time::Duration;
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// let before = guards.valid_until(); // 30 s from the send, less drift
    /// guards.extend(Duration::from_secs(120)).await?;
    /// assert!(guards.valid_until() > before + Duration::from_secs(60));
    /// guards.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the first name whose hold could not be extended, as for [`Guard::extend`](crate::Guard::extend). The others may
    /// have been extended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each lease may or may not have been extended.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        all(self.guards.iter().map(|guard| guard.extend(lease))).await
    }

    /// Asks the masters now whether all holds still stand, in commands that are under way at once.
    ///
    /// `Ok` means that each of them stood at some time between the call and its last answer. See
    /// [`Guard::check`](crate::Guard::check) for what a check promises, and what it does not.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Loss, Memory};
    /// let memory = Memory::new();
    /// let locks = Locks::builder(&memory).connect().await?;
    /// let guards = locks.mutexes(["account:1", "account:2"]).lock().await?;
    /// guards.check().await?; // before the transfer
    ///
    /// memory.faults().lose("account:2");
    /// let error = guards.check().await.unwrap_err();
    /// assert_eq!((error.loss(), error.lock()), (Some(Loss::Gone), Some("account:2")));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the first name whose hold is not known to stand, as for [`Guard::check`](crate::Guard::check).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the holds stay, and each lease may or may not have been renewed.
    pub async fn check(&self) -> Result<()> {
        all(self.guards.iter().map(Guard::check)).await
    }

    /// Runs `work` as a child of the holds' owner, wherever the guards were moved to: see [`Guard::scope`](crate::Guard::scope).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The guards stay.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> {
        GuardScope::of(self.guards.first().map(Guard::held), work)
    }

    /// Keeps the locks from everybody else for `at_least` from now.
    pub(super) fn keep(&self, at_least: Duration) {
        self.guards.iter().for_each(|guard| guard.keep(at_least));
    }
}

impl Guards<Fenced> {
    /// Returns the fencing token of the hold of this name, or `None` if the name is not among those that were asked for. See
    /// [`Guard::token`](crate::Guard::token).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let guards = locks.mutexes(["account:1", "account:2"]).fenced().lock().await?;
    /// assert_eq!(guards.token("account:1"), locks.mutex("account:1").fenced().token());
    /// assert_eq!(guards.token("account:3"), None);
    /// guards.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self, name: &str) -> Option<u64> {
        self.guards.iter().find(|guard| guard.name() == name).map(Guard::token)
    }

    /// Returns the names, sorted as in [`names`](Guards::names), each with the fencing token of its hold.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// # async fn write(_account: &str, _balance: u32, _token: u64) {}
    /// let guards = locks.mutexes(["account:1", "account:2"]).fenced().lock().await?;
    /// for (account, token) in guards.tokens() {
    ///     write(account, 41, token).await; // the token is checked where it is written
    /// }
    /// guards.release().await
    /// # }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }
}

/// Converts fenced guards for code that treats both kinds alike, and does not need the tokens.
impl From<Guards<Fenced>> for Guards {
    fn from(guards: Guards<Fenced>) -> Guards {
        Guards::new(guards.guards.into_iter().map(Guard::from))
    }
}

impl Granted for Guards {
    fn guards(&self) -> &[Guard] {
        &self.guards
    }

    fn watch(&self) -> Watching {
        self.watching()
    }

    fn release_done(self) -> Releasing {
        Box::pin(all(self.guards.into_iter().map(Guard::release_logged)))
    }
}

/// Awaits all futures at once, and returns the first error in their order.
async fn all(futures: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    join_all(futures).await.into_iter().collect()
}

impl<K: Kind> fmt::Debug for Guards<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
