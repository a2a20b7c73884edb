//! The settings that connections of this crate need.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};

use crate::config::Destination;

/// Returns the destination with the settings of this crate: no delay for small packets, TCP keepalive, and a name.
pub(crate) fn tuned(to: &Destination, node_timeout: Duration) -> Destination {
    let mut redis = to.redis_settings().clone();
    if redis.lib_name().is_none() && !redis.skip_set_lib_name() {
        redis = redis.set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    }
    let tcp = tcp_settings(to.tcp_settings().clone(), node_timeout);
    to.with_redis_settings(redis).with_tcp_settings(tcp)
}

fn tcp_settings(given: TcpSettings, node_timeout: Duration) -> TcpSettings {
    let mut settings = given.set_nodelay(true);
    if settings.keepalive().is_none() {
        let probe = Duration::from_secs(5);
        settings = settings.set_keepalive(TcpKeepalive::new().with_time(probe).with_interval(probe));
    }
    // How long the system retransmits commands that were given up: if one still arrives, it leaves a field that nobody owns for
    // one lease. Longer than a node timeout, so that the connection survives a short outage.
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    if settings.user_timeout().is_none() {
        let bounds = (Duration::from_secs(2), Duration::from_secs(60));
        settings = settings.set_user_timeout(node_timeout.saturating_mul(4).clamp(bounds.0, bounds.1));
    }
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _ = node_timeout;
    settings
}

#[cfg(test)]
mod tests;
