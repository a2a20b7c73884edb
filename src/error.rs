//! Errors: what went wrong, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::holder::Holder;
pub(crate) use crate::holder::shown;

/// A [`Result`](std::result::Result) whose error is nestlock's [`Error`] by default.
///
/// ```
/// async fn recount(stock: &nestlock::Mutex) -> nestlock::Result<u32> {
///     stock.run(async |_| 41).await
/// }
/// # #[tokio::main] async fn main() {
/// # assert_eq!(recount(&nestlock::Locks::in_memory().mutex("stock")).await.unwrap(), 41); }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// Opaque: match on [`kind`](Error::kind). The message has the lock's name, the server (never its credentials), what happened, and
/// what to do about it. [`source`](StdError::source) returns the cause if there is one; its type may change in any release.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// use std::time::Duration;
/// use nestlock::{ErrorKind, Owner};
/// let held = stock.lock().owner(&Owner::new()).await?;
/// match stock.lock().within(Duration::from_millis(10)).await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.kind() == ErrorKind::Timeout => assert_eq!(error.lock(), Some("stock")),
///     Err(error) => return Err(error),
/// }
/// held.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    lock: Option<Arc<str>>,
    server: Option<Arc<str>>,
    message: String,
    loss: Option<Loss>,
    holder: Option<Holder>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`]. More may be added.
///
/// See the example of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else held the lock until the time given by `within` ran out.
    Timeout,
    /// The hold is over although nobody released it: [`Error::loss`] has the reason.
    Lost,
    /// The key holds something that is no lock, or the key of its fencing counter holds something that is no counter. Such a key is
    /// never changed, and requests do not wait for it. [Two exceptions](crate::guide::errors) concern a hash with a TTL.
    NotALock,
    /// The request is nested in a hold of its owner, or is a branch beside it: the two look the same. Use
    /// [`run`](crate::Mutex::run), or a [`scope`](crate::owner::scope()) for each branch, around its guards too.
    Ambiguous,
    /// The server refuses this user: the password is wrong, or a right is missing.
    Denied,
    /// The server could not be reached, did not answer in time, or can't work now; of several masters, too few have a vote or answered;
    /// too few replicas have acknowledged the grant; or the provider of credentials failed, or a server now refuses what it returns.
    Unavailable,
    /// An option or an address can't work. No lock was touched.
    Config,
    /// A lock's name or the text of a claim can't be used, or no name was given. Such values may come from outside of the program, for
    /// example from the URL of a request. No lock stays taken.
    InvalidInput,
    /// The program uses the crate in a way that can't work: a future that is polled after it was ready, no tokio runtime, a
    /// `Locks` from before a fork in the child, a fenced re-entry under a hold without a token, a [`Hold`](crate::Hold) that is used
    /// after its run, a claim of another lock, or [`into_claim`](crate::Guard::into_claim) of a nested hold. No lock was changed, except
    /// that a failed `into_claim` or `release` releases its guard in the background, and that `close` outside a runtime has closed the
    /// `Locks`.
    Misuse,
    /// The `Locks` was closed, or the runtime that it was connected on has ended.
    Closed,
}

/// Why a hold ended without a release. More reasons may be added.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{Locks, Loss, Memory};
/// let memory = Memory::new();
/// let guard = Locks::builder(&memory).connect().await?.mutex("stock").lock().await?;
/// memory.faults().lose("stock");
/// assert_eq!(guard.lost().await, Loss::Gone);
/// assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its lease ran out: it could not be renewed in time, or it was fixed and is over.
    Expired,
    /// It is gone from the server: deleted, evicted, released by force, or lost in a restart or a failover. A claim that can't be
    /// resumed has this reason, whatever ended it.
    Gone,
    /// The time that `max_hold` allows is over.
    MaxHold,
    /// The machine slept through the end of the lease.
    Suspended,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "the lease ran out",
            Loss::Gone => {
                "it is gone from the server: deleted, evicted, released by force, or lost in a restart or a failover"
            },
            Loss::MaxHold => "the time that max_hold allows is over",
            Loss::Suspended => "the machine slept through the end of the lease",
        })
    }
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the lock concerned, if there is one.
    #[must_use]
    pub fn lock(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Returns why the hold was lost; `Some` exactly if the kind is [`ErrorKind::Lost`].
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss
    }

    /// Returns who had the lock, if the kind is [`ErrorKind::Timeout`] and it is known. The message names it too.
    ///
    /// This is what this process knew last: from the server, which names the holder in its answer to a waiting request, or from another
    /// of its own owners. `None`: no majority of several masters answered with the same holder; the lock is another program's plain
    /// string; the lock was released a moment ago; or the user lacks [the
    /// right](crate::guide::operations#rights-of-a-least-privilege-user) to read it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{Locks, Memory};
    /// let store = Memory::new();
    /// let other = Locks::builder(&store).holder_name("billing@web-7").connect().await?;
    /// let guard = other.mutex("stock").lock().await?;
    ///
    /// let ours = Locks::builder(&store).connect().await?; // as another process
    /// let error = ours.mutex("stock").lock().within(Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.holder().and_then(|holder| holder.name()), Some("billing@web-7"));
    /// println!("{error}"); // lock `stock`: … held by billing@web-7 for another 29 s; …
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message = in_one_line(message.into());
        Error(Box::new(Inner {
            kind,
            lock: None,
            server: None,
            message,
            loss: None,
            holder: None,
            source: None,
        }))
    }

    pub(crate) fn lost(loss: Loss) -> Error {
        Error::lost_because(
            loss,
            format!("the hold is lost, {loss}; stop the work that it guards, then take the lock again"),
        )
    }

    /// Returns the error for a claim whose hold is over. One cause is a message that is delivered twice, with the claim in it.
    pub(crate) fn claim_is_over() -> Error {
        let message = "the claim is over: it was resumed before, its lease ran out, or the lock was released by force; take the \
                       lock again, unless another worker has the job";
        Error::lost_because(Loss::Gone, message)
    }

    fn lost_because(loss: Loss, message: impl Into<String>) -> Error {
        let mut error = Error::new(ErrorKind::Lost, message);
        error.0.loss = Some(loss);
        error
    }

    /// Adds the holder that was in the way.
    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Error {
        self.0.holder = holder;
        self
    }

    /// Adds the lock that the error is about.
    pub(crate) fn on(mut self, lock: &Arc<str>) -> Error {
        self.0.lock = Some(lock.clone());
        self
    }

    /// Adds the server that reported it, an address without credentials.
    pub(crate) fn at(mut self, server: &Arc<str>) -> Error {
        self.0.server = Some(server.clone());
        self
    }

    /// Adds a cause.
    pub(crate) fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds a cause of any type.
    pub(crate) fn because_of(mut self, source: Box<dyn StdError + Send + Sync>) -> Error {
        self.0.source = Some(Arc::from(source));
        self
    }

    /// Returns a copy without the lock's name, for a log line that has the name in a field of its own.
    pub(crate) fn unnamed(&self) -> Error {
        let mut error = self.clone();
        error.0.lock = None;
        error
    }

    /// Puts in front of the message how many masters failed like this one.
    pub(crate) fn prefixed(mut self, counted: &str) -> Error {
        self.0.message = in_one_line(format!("{counted}: {}", self.0.message));
        self
    }

    /// Makes it one that may pass by itself, since it is that of a minority.
    pub(crate) fn that_passes(mut self) -> Error {
        self.0.kind = ErrorKind::Unavailable;
        self
    }
}

/// Returns the error for an option or an address that can't be used.
pub(crate) fn rejected(wrong: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, wrong)
}

/// Removes line breaks, and cuts the message if it is long: a server's answer may be a page, and is part of messages.
fn in_one_line(message: String) -> String {
    const LONGEST: usize = 1000;
    if message.len() <= LONGEST && !message.contains(char::is_control) {
        return message;
    }
    let mut line = String::with_capacity(message.len().min(LONGEST) + 8);
    for char in message.chars().take(LONGEST) {
        match char.is_control() {
            true => line.extend(char.escape_debug()),
            false => line.push(char),
        }
    }
    if message.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lock) = &self.0.lock {
            write!(f, "lock `{}`: ", shown(lock))?;
        }
        f.write_str(&self.0.message)?;
        if let Some(server) = &self.0.server {
            write!(f, " (server {server})")?;
        }
        Ok(())
    }
}

/// Writes the kind, the message and the causes, in one line. `unwrap` prints it, and so does a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        // The message usually contains the cause's text already.
        let mut last = self.to_string();
        let mut cause = self.source();
        while let Some(next) = cause {
            let text = in_one_line(next.to_string());
            if !last.contains(&text) {
                write!(f, "; caused by: {text}")?;
            }
            (last, cause) = (text, next.source());
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests;
