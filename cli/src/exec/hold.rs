//! What the child runs under.

use nestlock::{FencedGuard, Guard, Loss, Result};
use tokio::time::Instant;

use crate::exec::nest::Entered;

/// A hold of this command, or of one around it.
pub(super) enum Hold {
    Plain(Guard),
    Fenced(FencedGuard),
    Entered(Entered),
}

/// How a hold ended before its release.
pub(super) struct End {
    /// Whether its time was over, so that TERM is of no use any more. Otherwise it was taken away.
    pub(super) is_due: bool,
    pub(super) why: String,
}

impl Hold {
    fn guard(&self) -> Option<&Guard> {
        match self {
            Hold::Plain(guard) => Some(guard),
            Hold::Fenced(guard) => Some(guard),
            Hold::Entered(_) => None,
        }
    }

    pub(super) fn field(&self) -> &str {
        self.guard().map_or("", Guard::field)
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Hold::Plain(_) => None,
            Hold::Fenced(guard) => Some(guard.token()),
            Hold::Entered(entered) => entered.token(),
        }
    }

    /// Returns when it ends if nothing renews it.
    pub(super) fn valid_until(&self) -> Instant {
        match self {
            Hold::Plain(guard) => guard.valid_until(),
            Hold::Fenced(guard) => guard.valid_until(),
            Hold::Entered(entered) => entered.valid_until(),
        }
    }

    /// Waits until it is lost. Cancel safe.
    pub(super) async fn lost(&self) -> End {
        let loss = match self {
            Hold::Plain(guard) => guard.lost().await,
            Hold::Fenced(guard) => guard.lost().await,
            Hold::Entered(entered) => match entered.lost().await {
                true => Loss::Gone,
                false => Loss::Expired,
            },
        };
        End { is_due: loss != Loss::Gone, why: loss.to_string() }
    }

    /// Releases the hold, unless it is one that this command has entered: its owner releases that.
    pub(super) async fn release(self) -> Result<()> {
        match self {
            Hold::Plain(guard) => guard.release().await,
            Hold::Fenced(guard) => guard.release().await,
            Hold::Entered(_) => Ok(()),
        }
    }
}
