//! The guard of a hold with a fencing token.

use std::fmt;
use std::ops::Deref;

use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Result};

/// A hold with a fencing token: a [`Guard`], and its [`token`](FencedGuard::token).
///
/// It dereferences to a [`Guard`], and a drop releases it like one.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock").fenced();
/// let guard = stock.lock().await?;
/// let nested = stock.lock().await?;
/// assert_eq!(nested.token(), guard.token()); // one hold
/// assert!(!guard.is_lost()); // what a `Guard` has
/// drop(nested);
/// guard.release().await
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct FencedGuard {
    guard: Guard,
    token: u64,
}

impl FencedGuard {
    /// Wraps a guard that a fenced request got.
    pub(super) fn new(guard: Guard) -> Result<FencedGuard> {
        let token = token(&guard)?;
        Ok(FencedGuard { guard, token })
    }

    /// Returns the fencing token of this hold. It never changes.
    ///
    /// It is greater than that of every earlier hold of the lock. All levels of one hold have the same token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases this hold, and reports whether it was still held. See [`Guard::release`].
    ///
    /// # Errors
    ///
    /// Same as [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// Returns the token of a guard that a fenced request got.
pub(super) fn token(guard: &Guard) -> Result<u64> {
    guard.token().ok_or_else(|| Error::new(ErrorKind::Misuse, UNFENCED).on(&guard.name().into()))
}

pub(super) const UNFENCED: &str = "the hold that this would re-enter has no fencing token: take the outermost hold by a `fenced` handle too";

impl fmt::Debug for FencedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedGuard").field("token", &self.token).field("guard", &self.guard).finish()
    }
}
