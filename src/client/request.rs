//! The future of a request, which takes options until the first poll.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::base::{Boxed, telemetry};
use crate::client::acquire::{AcquireOptions, NotGranted, Part, acquire, grant_here};
use crate::client::answer::{Answer, Asks, Sealed, polled_again};
use crate::client::call::CallOptions;
use crate::client::guard::Guard;
use crate::client::hold::Hold;
use crate::client::kind::Kind;
use crate::client::run::Run;
use crate::error::Result;
use crate::owner::Owner;
use crate::session::Handle;
use crate::wire::keys::Keys;

/// Makes the request for one lock.
pub struct AskOne {
    options: AcquireOptions,
    /// `None` before the first poll, and once the request is ready.
    asking: Option<Boxed<'static, Result<Guard, NotGranted>>>,
    answered: bool,
}

impl AskOne {
    pub(super) fn new(handle: Handle, keys: Arc<Keys>, call: CallOptions, part: Option<Arc<Part>>) -> AskOne {
        let options = AcquireOptions { handle, keys, call, part };
        AskOne { options, asking: None, answered: false }
    }

    /// Returns whether it is part of a request for several locks and has to wait for other holders.
    pub(super) fn is_waiting(&self) -> bool {
        self.options.part.as_ref().is_some_and(|part| part.is_waiting())
    }
}

#[expect(private_interfaces, reason = "as in `Asks`")]
impl Asks for AskOne {
    type Granted = Guard;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guard, NotGranted>> {
        if self.answered {
            return Poll::Ready(Err(polled_again().on(&self.options.keys.name).into()));
        }
        if self.asking.is_none()
            && let Some(guard) = grant_here(&self.options, cx)
        {
            self.answered = true;
            return Poll::Ready(Ok(guard));
        }
        // The options are copied, since an option that is set later begins a new request with all of them.
        let asking = self.asking.get_or_insert_with(|| Box::pin(acquire(self.options.clone())));
        let mut answer = ready!(asking.as_mut().poll(cx));
        self.asking = None;
        self.answered = true;
        if telemetry::has_spans()
            && let Ok(guard) = &mut answer
        {
            // Begun here and not where the guard is made: the parent of the span is the caller, not the request, which has ended.
            guard.begin_span();
        }
        Poll::Ready(answer)
    }

    #[inline]
    fn options_mut(&mut self) -> &mut CallOptions {
        self.asking = None;
        &mut self.options.call
    }

    fn describe(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        out.field("name", &self.options.keys.name);
    }
}

impl<K: Kind> Sealed for Guard<K> {}

#[expect(private_interfaces, reason = "as in `Asks`")]
impl<K: Kind> Answer for Guard<K> {
    type Hold = Hold<K>;
    type Ran<T> = T;
    type Asks = AskOne;

    fn answer(granted: Result<Guard, NotGranted>) -> Result<Guard<K>> {
        granted.map_err(NotGranted::into_error)?.into_kind()
    }

    fn hold(granted: &Guard) -> Result<Hold<K>> {
        Hold::of(granted.held())
    }

    fn ran<T>(output: Result<T, NotGranted>) -> Result<T> {
        output.map_err(NotGranted::into_error)
    }
}

/// A request for a lock, or for several: the future of `lock` and `try_lock`. It takes options until it is polled.
///
/// Its type names its output. [`lock`](crate::Mutex::lock) returns a `Request<Guard>`, which waits for the lock.
/// [`try_lock`](crate::Mutex::try_lock) returns a `Request<Option<Guard>>`, which resolves to `None` if somebody else holds the
/// lock: after one attempt or, with [`within`](Request::within), when that time is over. A request of [`Mutexes`](crate::Mutexes)
/// resolves to [`Guards`](crate::Guards), and one for fenced locks to guards with tokens.
///
/// Bind the guard of a `try_lock` to a name: `try_lock().await?;` alone releases it at once, and no lint warns.
///
/// Setting an option after a poll, or calling [`run`](Request::run), drops the request under way, and the next poll begins a new one.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// use std::time::Duration;
/// use nestlock::{ErrorKind, Owner};
/// let guard = stock.lock().await?;
///
/// let soon = Duration::from_millis(10);
/// let request = stock.lock().within(soon).owner(&Owner::new());
/// assert_eq!(request.await.unwrap_err().kind(), ErrorKind::Timeout);
///
/// let request = stock.try_lock().within(soon).owner(&Owner::new());
/// assert!(request.await?.is_none());
/// guard.release().await
/// # }
/// ```
///
/// # Several locks
///
/// If a hold is lost before all are granted, it is asked for again, and so are all later names. If a `try_lock` resolves to `None`,
/// none of the locks is held. Its attempt asks for all locks at once. If one is refused, it asks once more, one by one, and repeats
/// refused ones for about 15 ms in all, or for as long as the first pass took if that is longer. So if several callers try at the
/// same time, one of them gets all of the locks.
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
/// [`Timeout`](crate::ErrorKind::Timeout): somebody else held the lock until `within` was over (a `try_lock` resolves to `None`
/// instead). [`Unavailable`](crate::ErrorKind::Unavailable): no answer for `unavailable_after`, or until `within` was over; of
/// several masters, no majority that has a vote; too few replicas have acknowledged the grant; the grant was read only after its
/// lease was over. [`Denied`](crate::ErrorKind::Denied): a right is missing. [`NotALock`](crate::ErrorKind::NotALock): the key, or
/// that of the fencing counter, holds something else. [`Lost`](crate::ErrorKind::Lost): the hold that it would re-enter is lost; or
/// a `try_lock` of several locks lost one before all were granted. [`Ambiguous`](crate::ErrorKind::Ambiguous): the owner was seen
/// to ask from several branches, and has a guard of the lock; use [`run`](crate::Mutex::run), or a [`scope`](crate::scope()) for
/// each branch. [`Config`](crate::ErrorKind::Config): a bad option; nothing was sent.
/// [`InvalidInput`](crate::ErrorKind::InvalidInput): a bad name, or none. [`Misuse`](crate::ErrorKind::Misuse): the future was polled
/// after it was ready, or its first poll was outside a tokio runtime (a later poll there, or after the end of the runtime of an
/// earlier one, panics); or a fenced request would re-enter a hold without a token. [`Closed`](crate::ErrorKind::Closed): the `Locks`
/// was closed, or the runtime that it was connected on has ended. If several locks were requested,
/// [`Error::lock`](crate::Error::lock) returns the one concerned, and none is held.
///
/// Without `within`, [`Unavailable`](crate::ErrorKind::Unavailable) comes after one attempt of a `try_lock`, at most one node timeout after the
/// first poll, even if another command of this process for the same lock goes first (with [`replicas`](crate::Builder::replicas), three
/// times as long plus one and a half waits; of several locks, one node timeout after the masters have stopped answering).
///
/// # Cancel safety
///
/// If the future is dropped, the request leaves the queue at once. If its command was under way, a grant that it may cause is
/// undone in the background; at worst it lasts for one lease. A request for several locks also releases those that it had. While
/// one name is waited for, the earlier ones are held and renewed, whether the future is polled or not.
#[must_use = "futures do nothing unless polled"]
pub struct Request<A: Answer> {
    asks: A::Asks,
}

impl<A: Answer> Request<A> {
    pub(super) fn new(asks: A::Asks) -> Request<A> {
        Request { asks }
    }

    /// Sets an option. Drops a request that is under way, which undoes it.
    fn with(mut self, option: impl FnOnce(&mut CallOptions)) -> Self {
        option(self.asks.options_mut());
        self
    }

    /// Limits the time of the request. For several locks, it is the time for all of them together.
    ///
    /// When it is over and somebody else held the lock, a `lock` fails with [`Timeout`](crate::ErrorKind::Timeout), and a
    /// `try_lock` resolves to `None`. If the masters have not answered, both fail with
    /// [`Unavailable`](crate::ErrorKind::Unavailable). A command that is still under way is undone in the background.
    /// [`Duration::MAX`] means for ever, which is the default of a `lock`. Zero means one attempt, which is the default of a
    /// `try_lock`.
    ///
    /// See the example of [`Request`].
    pub fn within(self, limit: Duration) -> Self {
        self.with(|call| call.within = Some(limit))
    }

    /// Gives the hold this lease, and never renews it. Default: the builder's lease, renewed while the guard lives.
    ///
    /// When it is over, the hold is lost, and this client ends it on the server too. A nested hold never shortens the hold around
    /// it. The lease is counted in whole milliseconds.
    ///
    /// An impossible lease is an error of kind [`Config`](crate::ErrorKind::Config) when the future is awaited. So is one that is longer
    /// than [`restart_delay`](crate::Builder::restart_delay): with several masters that is the builder's lease by default.
    ///
    /// If there are several locks, the lease of each begins with its own grant: a lock that was granted while another name was waited for ends
    /// earlier. [`Guards::valid_until`](crate::Guards::valid_until) returns the earliest end. A hold that ends while another name is waited
    /// for is asked for again, so a fixed lease has to be longer than the wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let guard = stock.lock().fixed_lease(Duration::from_secs(10)).await?;
    /// assert_eq!(guard.lost().await, nestlock::Loss::Expired); // ten seconds later
    /// # Ok(()) }
    /// ```
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.with(|call| call.times.get_or_insert_default().fixed_lease = Some(lease))
    }

    /// Ends the hold after this time, even if it would still be renewed. Default: never.
    ///
    /// Use it against a holder that hangs. [`Guard::lost`] then completes, and a `run` drops its work and frees the lock. The lock
    /// of a guard is free when the guard is dropped or when its lease ends, since renewal has stopped.
    ///
    /// If there are several locks, the time of each begins with its own grant.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let hung = stock.lock().max_hold(Duration::from_secs(300)).run(|_| std::future::pending::<()>());
    /// assert_eq!(hung.await.unwrap_err().loss(), Some(nestlock::Loss::MaxHold)); // five minutes later
    /// # Ok(()) }
    /// ```
    pub fn max_hold(self, limit: Duration) -> Self {
        self.with(|call| call.times.get_or_insert_default().max_hold = Some(limit))
    }

    /// Keeps the lock from all others for at least this time after the grant, even if the hold is released earlier. Default: zero,
    /// which means no minimum.
    ///
    /// Use it for a job that each process starts by its own clock, if the job takes less time than these clocks differ: the first
    /// process would be done before the second one asks. A release before that time, also by a drop or the end of a `run`, ends the
    /// hold, but the server keeps the lock taken for the rest of the time, by its TTL: this process may end. Until then everybody is
    /// refused or waits, including this task, and [`Mutex::holder`](crate::Mutex::holder) still returns this process. In a nested hold it
    /// counts for the whole hold: the longest time of all its levels, from the grant of each.
    ///
    /// It is no lease: if the process crashes before its release, the lock stands until its lease ends, whatever is set here. A
    /// lock that is lost is not kept. [`force_release`](crate::Mutex::force_release) frees a lock that is kept.
    ///
    /// A time longer than `fixed_lease` or `max_hold`, or one that is not possible as a lease, is an error of kind
    /// [`Config`](crate::ErrorKind::Config) when the future is awaited. So is one that is longer than
    /// [`restart_delay`](crate::Builder::restart_delay): with several masters that is the builder's lease by default.
    ///
    /// If there are several locks, the time begins with the last grant: a lock that is released before all are granted is free at
    /// once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// # let nightly = nestlock::Locks::in_memory().mutex("nightly");
    /// # async fn delete_old_rows() {}
    /// use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let done = nightly.try_lock().at_least(minute).run(|_| delete_old_rows()).await?;
    /// assert!(done.is_some());
    /// assert!(nightly.try_lock().await?.is_none()); // done, and kept for the rest of the minute
    /// tokio::time::sleep(2 * minute).await;
    /// assert!(nightly.try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "lockAtLeastFor")]
    pub fn at_least(self, time: Duration) -> Self {
        self.with(|call| call.times.get_or_insert_default().at_least = Some(time))
    }

    /// Makes the request as this owner. Default: the owner that is current at the first poll.
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
    pub fn owner(self, owner: &Owner) -> Self {
        self.with(|call| call.owner = Some(owner.clone()))
    }

    /// Runs work while the lock is held: [`Mutex::run`](crate::Mutex::run), with this request's options.
    ///
    /// The run of a `try_lock` resolves to `None` if somebody else holds the lock, and the work never starts. See [`Run`] for its
    /// result and cancel safety.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let stock = nestlock::Locks::in_memory().mutex("stock");
    /// use std::time::Duration;
    /// let left = stock.lock().within(Duration::from_secs(5)).run(async |_hold| 41).await?;
    /// assert_eq!(left, 41);
    ///
    /// let guard = stock.lock().owner(&nestlock::Owner::new()).await?;
    /// assert_eq!(stock.try_lock().run(async |_hold| 41).await?, None);
    /// guard.release().await
    /// # }
    /// ```
    pub fn run<W, F>(self, work: W) -> Run<A, W>
    where
        W: FnOnce(A::Hold) -> F,
        F: Future,
    {
        Run::new(self.asks, work)
    }
}

impl<A: Answer> Future for Request<A> {
    type Output = Result<A>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<A>> {
        self.asks.poll(cx).map(A::answer)
    }
}

impl<A: Answer> fmt::Debug for Request<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Request");
        self.asks.describe(&mut out);
        out.finish_non_exhaustive()
    }
}
