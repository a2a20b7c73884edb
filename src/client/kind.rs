//! The two kinds of locks: with fencing tokens, and without.

use std::fmt::Debug;

/// The kind of a lock and of its holds: [`Plain`] or [`Fenced`].
///
/// It lets one function serve both kinds: `fn audit<K: Kind>(guard: &Guard<K>)`. No other type implements it.
pub trait Kind: Sealed + Copy + Debug + Send + Sync + Unpin + 'static {}

/// Keeps others from implementing [`Kind`], since its module is private.
pub trait Sealed {
    /// Whether each hold has a fencing token.
    const FENCED: bool;
}

/// The kind of a lock whose holds have no fencing token: [`Locks::mutex`](crate::Locks::mutex) creates it.
#[derive(Clone, Copy, Debug)]
pub enum Plain {}

/// The kind of a lock whose holds have a fencing token each. [`Mutex::fenced`](crate::Mutex::fenced) returns such a lock.
///
/// A token is a number that is greater than that of every earlier hold of this lock, no matter who had it, as long as the server
/// keeps its counter. A resource that remembers the
/// highest one that it has seen, and refuses a write with a lower one, is safe from a holder that went on after its lease was over,
/// because it was paused or cut off. [`guide::fencing`](crate::guide::fencing) describes when a token is needed and how it is
/// checked.
///
/// It is the same lock as the plain one of this name, and re-enters like it. A re-entry has the token of its hold. If the hold was
/// taken by a plain [`Mutex`](crate::Mutex) it has no token, and the re-entry is an error of kind
/// [`Misuse`](crate::ErrorKind::Misuse): everybody who takes the lock of such a resource has to take it fenced.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// use nestlock::{Fenced, Guard, Mutex};
/// let stock: Mutex<Fenced> = locks.mutex("stock:42").fenced();
/// // The token goes along with each write, and is checked where it is written.
/// let first = stock.run(async |hold| hold.token()).await?;
///
/// let guard: Guard<Fenced> = stock.lock().await?;
/// assert!(guard.token() > first);
/// assert_eq!(stock.run(async |hold| hold.token()).await?, guard.token()); // the same hold
/// guard.release().await
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

impl Kind for Plain {}
impl Kind for Fenced {}

impl Sealed for Plain {
    const FENCED: bool = false;
}

impl Sealed for Fenced {
    const FENCED: bool = true;
}

pub(super) const UNFENCED: &str = "the hold that this would re-enter has no fencing token: take the outermost hold with a `fenced` mutex too";
