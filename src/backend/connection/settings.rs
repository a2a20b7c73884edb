//! The settings that connections of this crate need.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ProtocolVersion, RedisError};

/// The client with the settings of this crate: no delay for small packets, TCP keepalive, and RESP3, in which the redis crate
/// reports the end of a connection.
pub(crate) fn tuned(client: &redis::Client, node_timeout: Duration) -> Result<redis::Client, RedisError> {
    let info = client.get_connection_info();
    let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    if redis.lib_name().is_none() && !redis.skip_set_lib_name() {
        redis = redis.set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    }
    let tcp = tcp_settings(info.tcp_settings().clone(), node_timeout);
    redis::Client::open(info.clone().set_redis_settings(redis).set_tcp_settings(tcp))
}

/// The client for a subscriber connection. In RESP2 such a connection can only subscribe, and that is all it has to do.
pub(crate) fn for_messages(client: &redis::Client) -> Result<redis::Client, RedisError> {
    let info = client.get_connection_info();
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    redis::Client::open(info.clone().set_redis_settings(redis))
}

fn tcp_settings(given: TcpSettings, node_timeout: Duration) -> TcpSettings {
    let mut settings = given.set_nodelay(true);
    if settings.keepalive().is_none() {
        let probe = Duration::from_secs(5);
        settings = settings.set_keepalive(TcpKeepalive::new().with_time(probe).with_interval(probe));
    }
    // How long the system retransmits commands that were given up: one that arrives after that leaves a ghost for one lease.
    // Longer than a node timeout, so that the connection survives a short outage.
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
