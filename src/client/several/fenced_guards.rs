//! The guards of several holds with fencing tokens.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::client::fenced_guard;
use crate::client::several::guards::Guards;
use crate::error::Result;

/// The fencing tokens of several holds, one for each name.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// let accounts = locks.mutexes(["account:1", "account:2"]).fenced();
/// let tokens = accounts.run(|tokens| async move { tokens }).await?;
/// assert!(tokens.get("account:1").is_some_and(|token| token > 0));
/// assert_eq!(tokens.get("account:3"), None);
/// assert!(tokens.iter().map(|(name, _)| name).eq(["account:1", "account:2"]));
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens(Arc<[(Arc<str>, u64)]>);

impl Tokens {
    /// Returns the tokens of guards that a fenced request got.
    pub(super) fn of(guards: &Guards) -> Result<Tokens> {
        let tokens = guards.iter().map(|guard| Ok((guard.name().into(), fenced_guard::token(guard)?)));
        tokens.collect::<Result<_>>().map(Tokens)
    }

    /// Returns the token of the hold of this name, or `None` if the name is not among those that were asked for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(at).map(|(_, token)| *token)
    }

    /// Returns the names, in their order, each with its token.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, token)| (&**name, *token))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Holds of several locks with fencing tokens: [`Guards`], and their [`tokens`](FencedGuards::tokens).
///
/// It dereferences to [`Guards`], and a drop releases it like them.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let locks = nestlock::Locks::in_memory();
/// let guards = locks.mutexes(["account:1", "account:2"]).fenced().lock().await?;
/// assert_eq!(guards.token("account:1"), locks.mutex("account:1").fenced().token());
/// assert!(!guards.is_lost()); // what `Guards` have
/// guards.release().await
/// # }
/// ```
#[must_use = "dropping the guards releases the locks"]
pub struct FencedGuards {
    guards: Guards,
    tokens: Tokens,
}

impl FencedGuards {
    pub(super) fn new(guards: Guards) -> Result<FencedGuards> {
        let tokens = Tokens::of(&guards)?;
        Ok(FencedGuards { guards, tokens })
    }

    /// Returns the fencing token of the hold of this name, or `None` if the name is not among those that were asked for. See
    /// [`FencedGuard::token`](crate::FencedGuard::token).
    #[must_use]
    pub fn token(&self, name: &str) -> Option<u64> {
        self.tokens.get(name)
    }

    /// Returns the fencing tokens of all holds. They never change.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Releases all holds at once, and reports whether all of them were still held. See [`Guards::release`].
    ///
    /// # Errors
    ///
    /// Same as [`Guards::release`].
    ///
    /// # Cancel safety
    ///
    /// Same as [`Guards::release`].
    pub async fn release(self) -> Result<()> {
        self.guards.release().await
    }
}

impl Deref for FencedGuards {
    type Target = Guards;

    fn deref(&self) -> &Guards {
        &self.guards
    }
}

impl fmt::Debug for FencedGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedGuards").field("tokens", &self.tokens).field("guards", &self.guards).finish()
    }
}
