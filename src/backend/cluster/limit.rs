//! The time limits of a call.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::after;

#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) answer_by: Instant,
    /// Earlier than `answer_by`: a command sent later hardly has time for an answer, and an unknown outcome is worse than a
    /// call that did not run.
    pub(super) send_by: Instant,
}

impl Limit {
    pub(super) fn new(node_timeout: Duration) -> Limit {
        let now = Instant::now();
        Limit { answer_by: after(now, node_timeout), send_by: after(now, node_timeout / 4 * 3) }
    }

    /// Returns whether no more commands may be sent.
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.send_by
    }

    /// Returns half of the time that is left.
    pub(super) fn half(self) -> Limit {
        let now = Instant::now();
        let half = |end: Instant| after(now, end.saturating_duration_since(now) / 2);
        Limit { answer_by: half(self.answer_by), send_by: half(self.send_by) }
    }
}
