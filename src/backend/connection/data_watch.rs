//! Whether a server has replaced its data since its age was read.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, PushInfo, PushKind};

use crate::backend::connection::server_info::field;

/// What a server reports, over one connection, of its data.
///
/// A master that becomes a replica discards its data before it loads what it gets, unless its data is the beginning of what the other
/// server has, in which case it loses nothing. Redis sends an invalidation to each connection that has tracking on when it discards its
/// data. It comes before the answers to all commands that ran on the new data. So an answer counts if there was no invalidation when
/// it was received, and `INFO` need not be asked. With `OPTIN`, and nothing opted in, there are no other invalidations.
///
/// See "Server-assisted client side caching" in the documentation of Redis.
#[derive(Debug, Default)]
pub(crate) struct DataWatch(AtomicBool);

impl DataWatch {
    /// Whether the server would have reported over this connection that its data was replaced, and has not.
    pub(super) fn is_unchanged(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Called before [`command`] is sent, so that no report is missed.
    pub(super) fn start(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Permanently, as the connection may have missed a report by now, or gets none.
    pub(super) fn stop(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Called by the connection's driver in the order in which the server has written.
    pub(crate) fn receive(&self, push: &PushInfo) {
        if push.kind == PushKind::Invalidate {
            self.stop();
        }
    }
}

/// Makes the server report.
pub(super) fn command() -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("OPTIN");
    command
}

/// Whether the server behaves as [`DataWatch`] needs it, by its answer to `INFO`: Redis itself or a fork of it, without a proxy that
/// could connect to another server while this connection stands. One that was a replica already when its age was read may be promoted
/// without a report.
pub(super) fn can_report(info: &str) -> bool {
    let is_redis = field(info, "redis_build_id").is_some_and(|id| !id.is_empty());
    let is_program = field(info, "executable").is_some_and(|path| path.starts_with('/'));
    is_redis && is_program && field(info, "role") == Some("master")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "redis_build_id:4d072dc1c62d5672\r\nexecutable:/usr/bin/redis-server\r\n# Replication\r\nrole:master\r\n";

    #[test]
    fn only_a_master_that_is_redis_itself_is_expected_to_report() {
        assert!(can_report(INFO));
        assert!(!can_report(""));
        for (known, other) in [
            ("role:master", "role:slave"),
            ("redis_build_id:4d072dc1c62d5672", "dragonfly_version:df-v1.25"),
            ("redis_build_id:4d072dc1c62d5672", "redis_build_id:"),
            ("executable:/usr/bin/redis-server", "executable:"),
        ] {
            assert!(!can_report(&INFO.replace(known, other)), "{other}");
        }
    }
}
