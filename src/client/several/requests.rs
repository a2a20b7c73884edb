//! The futures of a request for several locks, which take options until the first poll.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::client::acquire::NotGranted;
use crate::client::request::methods;
use crate::client::several::acquire::RequestAll;
use crate::client::several::fenced_guards::FencedGuards;
use crate::client::several::guards::Guards;
use crate::error::Result;
use crate::owner::Owner;

/// The options that all requests for several locks take.
macro_rules! options {
    ($name:ident, $within:literal) => {
        methods! {
            $name

            #[doc = $within]
            within(limit: Duration) => |options| options.within = Some(limit);

            /// Gives each hold this lease, and never renews it. Default: the builder's lease, renewed while the guards live.
            ///
            /// It counts from the grant of each name. If one had to be waited for, those before it were granted earlier, and end
            /// earlier: [`Guards::valid_until`](crate::Guards::valid_until) returns the earliest end. A hold that ends while another
            /// name is waited for is asked for again, so a fixed lease has to be longer than the wait. See also
            /// [`Lock::fixed_lease`](crate::futures::Lock::fixed_lease).
            fixed_lease(lease: Duration) => |options| options.times.get_mut().fixed_lease = Some(lease);

            /// Ends each hold after this time, even if it would still be renewed. Default: never.
            ///
            /// It counts from the grant of each name, as [`fixed_lease`](Self::fixed_lease) does. See also
            /// [`Lock::max_hold`](crate::futures::Lock::max_hold).
            max_hold(limit: Duration) => |options| options.times.get_mut().max_hold = Some(limit);

            /// Keeps each lock from all others for at least this time after the last grant. Default: zero, not at all.
            ///
            /// It applies only once all are granted: what is given back before that is free at once. See
            /// [`Lock::at_least`](crate::futures::Lock::at_least).
            at_least(time: Duration) => |options| options.times.get_mut().at_least = Some(time);

            /// Asks as this owner. Default: the owner that is current at the first poll.
            ///
            /// See [`Lock::owner`](crate::futures::Lock::owner).
            owner(owner: &Owner) => |options| options.owner = Some(owner.clone());
        }
    };

    (fenced $name:ident, $plain:literal) => {
        methods! {
            $name

            #[doc = concat!("As [`", $plain, "::within`].")]
            within(limit: Duration) => |options| options.within = Some(limit);

            #[doc = concat!("As [`", $plain, "::fixed_lease`].")]
            fixed_lease(lease: Duration) => |options| options.times.get_mut().fixed_lease = Some(lease);

            #[doc = concat!("As [`", $plain, "::max_hold`].")]
            max_hold(limit: Duration) => |options| options.times.get_mut().max_hold = Some(limit);

            #[doc = concat!("As [`", $plain, "::at_least`].")]
            at_least(time: Duration) => |options| options.times.get_mut().at_least = Some(time);

            #[doc = concat!("As [`", $plain, "::owner`].")]
            owner(owner: &Owner) => |options| options.owner = Some(owner.clone());
        }
    };
}

/// The future of [`Mutexes::lock`](crate::Mutexes::lock): takes options until it is polled.
///
/// Setting an option after a poll, or calling [`run`](LockAll::run), drops the request under way, and the next poll begins a new one.
///
/// A hold that is lost before all are granted is asked for again, with all names behind it.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// use std::time::Duration;
/// use nestlock::{ErrorKind, Owner};
/// let guard = locks.mutex("account:2").lock().await?;
///
/// let accounts = locks.mutexes(["account:1", "account:2"]);
/// let error = accounts.lock().within(Duration::from_millis(10)).owner(&Owner::new()).await.unwrap_err();
/// assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some("account:2")));
/// assert!(locks.mutex("account:1").try_lock().await?.is_some()); // all or none
/// guard.release().await
/// # }
/// ```
///
/// # Errors
///
/// Same as [`Lock`](crate::futures::Lock) for one of the names, which [`Error::lock`](crate::Error::lock) returns: then none is held.
/// Also [`Config`](crate::ErrorKind::Config): no name; nothing was sent.
///
/// # Cancel safety
///
/// If the future is dropped, it leaves all lines at once, and what it had is released. Each of its requests is undone as a
/// [`Lock`](crate::futures::Lock) is. While one name is waited for, those before it are held and renewed, whether the future is
/// polled or not.
#[must_use = "futures do nothing unless polled"]
pub struct LockAll(pub(super) RequestAll);

options!(
    LockAll,
    "Limits the time of the request for all of them together. When it is over, the request fails with \
     [`Timeout`](crate::ErrorKind::Timeout) if somebody else held one of them, or with \
     [`Unavailable`](crate::ErrorKind::Unavailable) if the masters have not answered. Default: no limit. Zero means one attempt; \
     [`Duration::MAX`] means for ever.\n\nThe example of [`LockAll`] has it."
);

impl Future for LockAll {
    type Output = Result<Guards>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Guards>> {
        self.0.poll(cx).map_err(NotGranted::into_error)
    }
}

/// The future of [`Mutexes::try_lock`](crate::Mutexes::try_lock): takes options until it is polled.
///
/// Resolves to `None` if somebody else holds one of the locks: after one attempt or, with [`within`](TryLockAll::within), when that
/// time is over. Then none of them is held. An attempt asks for all locks at once. If one is refused, it asks once more, one by one,
/// and repeats refused ones for about 15 ms in all, or for as long as the first pass took if that is longer. So if several callers
/// try at the same time, one of them gets all of the locks.
///
/// Bind the guards to a name: `try_lock().await?;` alone releases them at once, and no lint warns.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// use nestlock::Owner;
/// let accounts = locks.mutexes(["account:1", "account:2"]);
/// let guards = accounts.try_lock().await?.expect("they are free");
/// assert!(accounts.try_lock().owner(&Owner::new()).await?.is_none());
/// guards.release().await
/// # }
/// ```
///
/// # Errors
///
/// Same as [`LockAll`], except for [`Timeout`](crate::ErrorKind::Timeout), which is `None` here. Without
/// [`within`](TryLockAll::within), [`Unavailable`](crate::ErrorKind::Unavailable) comes one node timeout after the masters have
/// stopped answering, and [`Lost`](crate::ErrorKind::Lost) if a hold was lost before all were granted.
///
/// # Cancel safety
///
/// Same as [`LockAll`].
#[must_use = "futures do nothing unless polled"]
pub struct TryLockAll(pub(super) RequestAll);

options!(
    TryLockAll,
    "Limits the time of the request for all of them together. When it is over, the request resolves to `None` if somebody else held one \
     of them, or fails with [`Unavailable`](crate::ErrorKind::Unavailable) if the masters have not answered. Default: zero, which is one \
     attempt. \
     [`Duration::MAX`] means for ever."
);

impl Future for TryLockAll {
    type Output = Result<Option<Guards>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<Guards>>> {
        self.0.poll(cx).map(NotGranted::or_none)
    }
}

/// The future of [`FencedMutexes::lock`](crate::FencedMutexes::lock): takes options until it is polled.
///
/// Like [`LockAll`], for guards with a token each.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// use std::time::Duration;
/// let accounts = locks.mutexes(["account:1", "account:2"]).fenced();
/// let guards = accounts.lock().within(Duration::from_secs(5)).await?;
/// for (account, token) in guards.tokens().iter() {
///     println!("write {account} with {token}");
/// }
/// guards.release().await
/// # }
/// ```
///
/// # Errors
///
/// Same as [`LockAll`]. Also those of a [`FencedLock`](crate::futures::FencedLock) for one of the names.
///
/// # Cancel safety
///
/// Same as [`LockAll`].
#[must_use = "futures do nothing unless polled"]
pub struct FencedLockAll(pub(super) RequestAll);

options!(fenced FencedLockAll, "LockAll");

impl Future for FencedLockAll {
    type Output = Result<FencedGuards>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<FencedGuards>> {
        let guards = ready!(self.0.poll(cx)).map_err(NotGranted::into_error);
        Poll::Ready(guards.and_then(FencedGuards::new))
    }
}

/// The future of [`FencedMutexes::try_lock`](crate::FencedMutexes::try_lock): takes options until it is polled.
///
/// Like [`TryLockAll`], for guards with a token each.
///
/// # Errors
///
/// Same as [`FencedLockAll`], except for [`Timeout`](crate::ErrorKind::Timeout), which is `None` here. Without
/// [`within`](FencedTryLockAll::within), [`Unavailable`](crate::ErrorKind::Unavailable) comes after one attempt.
///
/// # Cancel safety
///
/// Same as [`LockAll`].
#[must_use = "futures do nothing unless polled"]
pub struct FencedTryLockAll(pub(super) RequestAll);

options!(fenced FencedTryLockAll, "TryLockAll");

impl Future for FencedTryLockAll {
    type Output = Result<Option<FencedGuards>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<FencedGuards>>> {
        let guards = NotGranted::or_none(ready!(self.0.poll(cx)))?;
        Poll::Ready(guards.map(FencedGuards::new).transpose())
    }
}
