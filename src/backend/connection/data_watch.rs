//! Tracks whether a server has replaced its data since its age was read.

use std::sync::Mutex;
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind};
use tokio::time::Instant;

use crate::backend::connection::server_info::field;
use crate::base::lock;

/// How long ago `INFO` may have shown that the data is the same, when an acquire is sent without another `INFO` and when its answer is
/// received. The difference is for the round trip.
const SENT_WITHIN: Duration = Duration::from_millis(50);
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);

/// What is known about a server's data over one connection. Without it, each grant would have to be followed by an `INFO`, and a pair
/// over three masters would take 131,000 instructions of the client instead of 71,000.
///
/// A master that becomes a replica discards its data before it loads the data that it receives. Redis sends an invalidation to each
/// connection that has tracking on when it discards its data, before the answers to all commands that ran on the new data. So an
/// answer counts if there was no invalidation when it was received. With `OPTIN`, and nothing opted in, there are no other
/// invalidations. See "Server-assisted client side caching" in the documentation of Redis.
///
/// If the master's data is a prefix of the other server's, nothing is discarded, and so nothing is reported:
///
/// 1. A replica takes M's place. M follows the replica, and has all of its data.
/// 2. The replica grants the lock, and fails before M has received that grant.
/// 3. M takes its place back. A client that was connected to M all the time is granted the lock there.
///
/// In a cluster, clients follow whichever node is the master, so its nodes are not [watched](can_report). Elsewhere the address has to
/// lead to the replica and back, and all of this has to happen within [`ANSWERED_WITHIN`].
#[derive(Debug, Default)]
pub(crate) struct DataWatch {
    /// When the data was last known to be the same: when the watch began, or when the last `INFO` that showed it was sent. `None` if
    /// the server does not report over this connection, or has reported that its data was replaced.
    known_at: Mutex<Option<Instant>>,
}

impl DataWatch {
    /// Returns whether an acquire may be sent without an `INFO` after it.
    pub(super) fn needs_no_info(&self, now: Instant) -> bool {
        self.is_known(now, SENT_WITHIN)
    }

    /// Returns whether a grant received now counts without an `INFO` after it.
    pub(super) fn grant_counts(&self, now: Instant) -> bool {
        self.is_known(now, ANSWERED_WITHIN)
    }

    fn is_known(&self, now: Instant, within: Duration) -> bool {
        lock(&self.known_at).is_some_and(|known_at| now.saturating_duration_since(known_at) < within)
    }

    /// Records that an `INFO` sent at this time showed the same data.
    pub(crate) fn confirm(&self, sent: Instant) {
        if let Some(known_at) = &mut *lock(&self.known_at) {
            *known_at = sent.max(*known_at);
        }
    }

    /// Begins to watch. Called before [`command`] and `INFO` are sent, so that no report is missed.
    pub(super) fn start(&self) {
        *lock(&self.known_at) = Some(Instant::now());
    }

    /// Stops for good: the connection may have missed a report by now, or gets none.
    pub(super) fn stop(&self) {
        *lock(&self.known_at) = None;
    }

    /// Handles a push. The connection's task calls it in the order in which the server has written.
    pub(crate) fn receive(&self, push: &PushInfo) {
        if push.kind == PushKind::Invalidate {
            self.stop();
        }
    }
}

/// Returns the command that makes the server report.
pub(super) fn command() -> Cmd {
    redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").take()
}

/// Returns whether the server behaves as [`DataWatch`] needs it, by its answer to `INFO`. It has to be Redis itself or a fork of it, not
/// a cluster, and not a proxy, which could connect to another server while this connection lasts. A server that was a replica already
/// when its age was read may be promoted without a report.
pub(super) fn can_report(info: &str) -> bool {
    let is_redis = field(info, "redis_build_id").is_some_and(|id| !id.is_empty());
    let is_program = field(info, "executable").is_some_and(|path| path.starts_with('/'));
    // Valkey uses either name.
    let mode = field(info, "redis_mode").or_else(|| field(info, "server_mode"));
    is_redis && is_program && mode == Some("standalone") && field(info, "role") == Some("master")
}

#[cfg(test)]
mod tests;
