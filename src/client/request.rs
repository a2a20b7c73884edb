//! The futures of a request, which take options until the first poll.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::base::telemetry;
use crate::client::acquire::{AcquireOptions, NotGranted, acquire, grant_here};
use crate::client::fenced_guard::FencedGuard;
use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::Owner;

/// A request from its first poll on.
type AcquireFuture = Pin<Box<dyn Future<Output = Result<Guard, NotGranted>> + Send>>;

/// The part that all request futures share.
pub(super) struct Request {
    pub(super) options: AcquireOptions,
    /// `None` before the first poll, and once it is ready.
    asking: Option<AcquireFuture>,
    answered: bool,
}

impl Request {
    pub(super) fn new(options: AcquireOptions) -> Request {
        Request { options, asking: None, answered: false }
    }

    /// Sets an option. A request that is under way is dropped, which undoes it.
    pub(super) fn set(&mut self, option: impl FnOnce(&mut AcquireOptions)) {
        self.asking = None;
        option(&mut self.options);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, NotGranted>> {
        if self.answered {
            let message = "the request was answered before, and its future polled again; make a new one";
            return Poll::Ready(Err(Error::new(ErrorKind::Misuse, message).on(self.options.name()).into()));
        }
        if self.asking.is_none()
            && let Some(guard) = grant_here(&self.options, cx)
        {
            self.answered = true;
            return Poll::Ready(Ok(guard));
        }
        // From a copy: an option that is set later begins a new request with all of them.
        let asking = self.asking.get_or_insert_with(|| Box::pin(acquire(self.options.clone())));
        let mut answer = ready!(asking.as_mut().poll(cx));
        self.asking = None;
        self.answered = true;
        if telemetry::has_spans()
            && let Ok(guard) = &mut answer
        {
            // Here, and not where the guard is made: the span's parent is what asked, and not the request, which has ended.
            guard.begin_span();
        }
        Poll::Ready(answer)
    }

    pub(super) fn is_begun(&self) -> bool {
        self.asking.is_some()
    }

    fn describe(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        out.field("name", self.options.name());
    }
}

/// The options that all requests take.
macro_rules! methods {
    ($name:ident $($(#[$doc:meta])* $option:ident($argument:ident: $type:ty) => |$options:ident| $set:expr;)*) => {
        impl $name {
            $(
                $(#[$doc])*
                pub fn $option(mut self, $argument: $type) -> Self {
                    self.0.set(|$options| $set);
                    self
                }
            )*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut out = f.debug_struct(stringify!($name));
                self.0.describe(&mut out);
                out.finish_non_exhaustive()
            }
        }
    };
}

pub(super) use methods;

/// Implements the options of a request. Their docs stand in one place.
macro_rules! options {
    ($name:ident, $within:literal) => {
        methods! {
            $name

            #[doc = $within]
            within(limit: Duration) => |options| options.within = Some(limit);

            /// Gives the hold this lease, and never renews it. Default: the builder's lease, renewed while the guard lives.
            ///
            /// When it is over the hold is lost, and this client ends the key. A nested hold never shortens the hold around it.
            /// Counted in whole milliseconds.
            ///
            /// An impossible lease is an error of kind [`Config`](ErrorKind::Config) when the future is awaited.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
            /// # let stock = nestlock::Locks::in_memory().mutex("stock");
            /// use std::time::Duration;
            /// let guard = stock.lock().fixed_lease(Duration::from_secs(10)).await?;
            /// assert_eq!(guard.lost().await, nestlock::Loss::Expired); // ten seconds later
            /// # Ok(()) }
            /// ```
            fixed_lease(lease: Duration) => |options| options.times.get_mut().fixed_lease = Some(lease);

            /// Ends the hold after this time, even if it would still be renewed. Default: never.
            ///
            /// For a holder that hangs. [`Guard::lost`] then completes, and a `run` drops its work and frees the lock. The lock of a
            /// guard is free when the guard is dropped or when its lease ends, since renewal has stopped.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
            /// # let stock = nestlock::Locks::in_memory().mutex("stock");
            /// use std::time::Duration;
            /// let hung = stock.lock().max_hold(Duration::from_secs(300)).run(std::future::pending::<()>());
            /// assert_eq!(hung.await.unwrap_err().loss(), Some(nestlock::Loss::MaxHold)); // five minutes later
            /// # Ok(()) }
            /// ```
            max_hold(limit: Duration) => |options| options.times.get_mut().max_hold = Some(limit);

            /// Keeps the lock from all others for at least this time after the grant, even if the hold is released earlier. Default:
            /// zero, not at all.
            ///
            /// For a job that each process starts by its own clock, if the job takes less time than these clocks differ: the first
            /// process would be done before the second one asks. A release before that time, also by a drop or the end of a `run`,
            /// ends the hold, but leaves the lock taken, as nobody's, for the rest of the time. The server's TTL ends that, not this
            /// process. Until then everybody is refused or waits, including this task. In a nested hold it counts for the whole hold:
            /// the longest time of all its levels, from the grant of each.
            ///
            /// It is no lease: if the process crashes before its release, the lock stands until its lease ends, whatever is asked for
            /// here. A lock that is lost is not kept. [`force_release`](crate::Mutex::force_release) frees a lock that is kept.
            ///
            /// A time longer than `fixed_lease` or `max_hold`, or one that is not possible as a lease, is an error of kind
            /// [`Config`](ErrorKind::Config) when the future is awaited. Zero means no minimum.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
            /// # let nightly = nestlock::Locks::in_memory().mutex("nightly");
            /// # async fn delete_old_rows() {}
            /// use std::time::Duration;
            /// let minute = Duration::from_secs(60);
            /// let done = nightly.try_lock().at_least(minute).run(delete_old_rows()).await?;
            /// assert!(done.is_some());
            /// assert!(nightly.try_lock().await?.is_none()); // done, and kept for the rest of the minute
            /// tokio::time::sleep(2 * minute).await;
            /// assert!(nightly.try_lock().await?.is_some());
            /// # Ok(()) }
            /// ```
            at_least(time: Duration) => |options| options.times.get_mut().at_least = Some(time);

            /// Asks as this owner. Default: the owner that is current at the first poll.
            ///
            /// Give a hold that outlives its call an owner of its own, so that what the task does next does not re-enter.
            ///
            /// ```
            /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
            /// # let stock = nestlock::Locks::in_memory().mutex("stock");
            /// let guard = stock.lock().owner(&nestlock::Owner::new()).await?;
            /// assert!(!stock.is_held()); // not by this task
            /// assert!(stock.try_lock().await?.is_none());
            /// guard.release().await
            /// # }
            /// ```
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

/// The future of [`Mutex::lock`](crate::Mutex::lock): takes options until it is polled.
///
/// Setting an option after a poll, or calling [`run`](Lock::run), drops the request under way, and the next poll begins a new one.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// use std::time::Duration;
/// use nestlock::{ErrorKind, Owner};
/// let guard = stock.lock().await?;
///
/// let request = stock.lock().within(Duration::from_millis(10)).owner(&Owner::new());
/// assert_eq!(request.await.unwrap_err().kind(), ErrorKind::Timeout);
/// guard.release().await
/// # }
/// ```
///
/// # Errors
///
/// [`Timeout`](ErrorKind::Timeout): somebody else held the lock until `within` was over. [`Unavailable`](ErrorKind::Unavailable): no
/// answer for `unavailable_after`, or until `within` was over; of several masters, no majority that has a vote; too few replicas have
/// acknowledged the grant; the grant was read only after its lease was over. [`Denied`](ErrorKind::Denied): a right is missing.
/// [`NotALock`](ErrorKind::NotALock): the key holds something else. [`Lost`](ErrorKind::Lost): the hold that it would re-enter is
/// lost. [`Ambiguous`](ErrorKind::Ambiguous): the owner was seen to ask from several branches, and has a guard of the lock; use
/// [`run`](crate::Mutex::run), or a [`scope`](crate::scope()) for each branch. [`Config`](ErrorKind::Config): a bad
/// name or option; nothing was sent. [`Misuse`](ErrorKind::Misuse): the future was polled after it was ready, or outside a tokio
/// runtime. [`Closed`](ErrorKind::Closed): the `Locks` was closed, or the runtime that it was connected on has ended.
///
/// # Cancel safety
///
/// If the future is dropped, the request leaves its line at once. If its command was under way, what that may have granted is undone
/// in the background; at worst it lasts for one lease.
#[must_use = "futures do nothing unless polled"]
pub struct Lock(pub(super) Request);

options!(
    Lock,
    "Limits the time of the request. When it is over, the request fails with [`Timeout`](ErrorKind::Timeout) if somebody else held the \
     lock, or with [`Unavailable`](ErrorKind::Unavailable) if the masters have not answered; a command that is still under way is \
     undone in the background. Default: no limit. Zero means one attempt, which takes at most one node timeout (with \
     [`replicas`](crate::Builder::replicas) more, as [`TryLock`] says); [`Duration::MAX`] means for ever.\n\nThe example of [`Lock`] has it."
);

impl Future for Lock {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Guard>> {
        self.0.poll(cx).map_err(NotGranted::into_error)
    }
}

/// The future of [`Mutex::try_lock`](crate::Mutex::try_lock): takes options until it is polled.
///
/// Resolves to `None` if somebody else holds the lock: after one attempt or, with [`within`](TryLock::within), when that time
/// is over.
///
/// Bind the guard to a name: `try_lock().await?;` alone releases it at once, and no lint warns.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// use std::time::Duration;
/// use nestlock::Owner;
/// let guard = stock.try_lock().await?.expect("it is free");
///
/// let request = stock.try_lock().within(Duration::from_millis(10)).owner(&Owner::new());
/// assert!(request.await?.is_none());
/// guard.release().await
/// # }
/// ```
///
/// # Errors
///
/// Same as [`Lock`], except for [`Timeout`](ErrorKind::Timeout), which is `None` here. Without [`within`](TryLock::within),
/// [`Unavailable`](ErrorKind::Unavailable) comes after one attempt, at most one node timeout after the first poll, even if another
/// command of this process for the same lock goes first (with [`replicas`](crate::Builder::replicas), three times as long plus one
/// and a half waits).
///
/// # Cancel safety
///
/// Same as [`Lock`].
#[must_use = "futures do nothing unless polled"]
pub struct TryLock(pub(super) Request);

options!(
    TryLock,
    "Limits the time of the request. When it is over, the request resolves to `None` if somebody else held the lock, or fails with \
     [`Unavailable`](ErrorKind::Unavailable) if the masters have not answered; a command that is still under way is undone in the \
     background. Default: zero, which is one attempt. [`Duration::MAX`] means for ever.\n\nThe example of [`TryLock`] has it."
);

impl Future for TryLock {
    type Output = Result<Option<Guard>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<Guard>>> {
        self.0.poll(cx).map(NotGranted::or_none)
    }
}

/// The future of [`FencedMutex::lock`](crate::FencedMutex::lock): takes options until it is polled.
///
/// Like [`Lock`], for a guard with a token.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
/// use std::time::Duration;
/// let guard = stock.lock().within(Duration::from_secs(5)).await?;
/// println!("write it with {}", guard.token());
/// guard.release().await
/// # }
/// ```
///
/// # Errors
///
/// Same as [`Lock`]. Also [`Misuse`](ErrorKind::Misuse): the hold that it would re-enter was taken by a plain
/// [`Mutex`](crate::Mutex), and has no token. Also [`NotALock`](ErrorKind::NotALock): the key of the counter holds no counter.
///
/// # Cancel safety
///
/// Same as [`Lock`].
#[must_use = "futures do nothing unless polled"]
pub struct FencedLock(pub(super) Request);

options!(fenced FencedLock, "Lock");

impl Future for FencedLock {
    type Output = Result<FencedGuard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<FencedGuard>> {
        let guard = ready!(self.0.poll(cx)).map_err(NotGranted::into_error);
        Poll::Ready(guard.and_then(FencedGuard::new))
    }
}

/// The future of [`FencedMutex::try_lock`](crate::FencedMutex::try_lock): takes options until it is polled.
///
/// Like [`TryLock`], for a guard with a token.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
/// if let Some(guard) = stock.try_lock().await? {
///     println!("write it with {}", guard.token());
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Same as [`FencedLock`], except for [`Timeout`](ErrorKind::Timeout), which is `None` here. Without
/// [`within`](FencedTryLock::within), [`Unavailable`](ErrorKind::Unavailable) comes after one attempt.
///
/// # Cancel safety
///
/// Same as [`Lock`].
#[must_use = "futures do nothing unless polled"]
pub struct FencedTryLock(pub(super) Request);

options!(fenced FencedTryLock, "TryLock");

impl Future for FencedTryLock {
    type Output = Result<Option<FencedGuard>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<FencedGuard>>> {
        let guard = NotGranted::or_none(ready!(self.0.poll(cx)))?;
        Poll::Ready(guard.map(FencedGuard::new).transpose())
    }
}
