//! `Seen`: another process's hold, as the masters reported it.

use tokio::time::Instant;

use crate::base::after;
use crate::holder::Holder;

/// Who had the lock when the masters refused it to this process last.
#[derive(Debug)]
pub(super) struct Seen {
    holder: Box<Holder>,
    /// When its lease ends, if it is not renewed.
    until: Instant,
}

impl Seen {
    /// By the answer to a command that was sent then.
    pub(super) fn new(holder: Box<Holder>, sent: Instant) -> Seen {
        let until = after(sent, holder.remaining_lease());
        Seen { holder, until }
    }

    /// Who has the lock now. `None`: the lease is over, and nobody here knows whether it was renewed.
    pub(super) fn holder(&self, now: Instant) -> Option<Holder> {
        let left = self.until.saturating_duration_since(now);
        (!left.is_zero()).then(|| self.holder.with(self.holder.count(), left))
    }
}
