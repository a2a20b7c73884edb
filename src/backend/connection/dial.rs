//! Makes connections, and keeps credentials out of their errors.

use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};

use crate::backend::connection::redis_error;
use crate::backend::late::changed_clock;
use crate::backend::resp::{self, Connection, OnPush};
use crate::base::boxed;
use crate::config::Destination;

impl Connection {
    /// Makes a connection for commands or for messages. `on_push` handles pushes, and the end of the connection.
    pub(crate) async fn connect(to: &Destination, on_push: OnPush) -> RedisResult<Connection> {
        #[cfg(test)]
        if let Some(stream) = testing::stream(to).await {
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            if testing::is_sealed() {
                return resp::testing::open_sealed(stream?, to.redis_settings(), on_push).await;
            }
            return resp::testing::open_simulated(stream?, to.redis_settings(), on_push).await;
        }
        // A handshake over TLS has a large future.
        boxed(resp::open(to, on_push)).await.map_err(|error| without_credentials(error, to))
    }
}

/// Removes credentials from an error. A server repeats the arguments of a command that it does not know, and those of `HELLO` are the
/// credentials. A proxy may repeat them in any error.
pub(super) fn without_credentials(error: RedisError, to: &Destination) -> RedisError {
    let command = error.detail().and_then(|text| text.split_once(", with args beginning with"));
    if let Some((command, _)) = command {
        return (error.kind(), "the server does not know a command", command.to_owned()).into();
    }
    let password = to.redis_settings().password().filter(|text| !text.is_empty());
    if password.is_some_and(|password| error.to_string().contains(password)) {
        let is_login = redis_error::is_credentials(&error);
        let kind = if is_login { ErrorKind::AuthenticationFailed } else { error.kind() };
        return (kind, "the server's error is not shown, since the password is a part of it").into();
    }
    error
}

/// Returns how long an attempt to connect may take. TLS handshakes add up to two round trips, and their cryptography takes time
/// on a busy machine.
pub(crate) fn connect_limit(to: Option<&Destination>, node_timeout: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_secs(1);
    const SHORTEST_OVER_TLS: Duration = Duration::from_secs(4);
    let is_over_tls = to.is_some_and(|to| to.tls().is_some());
    node_timeout.max(if is_over_tls { SHORTEST_OVER_TLS } else { SHORTEST })
}

/// Returns the error text of an attempt that took longer than its limit. A server that does not speak TLS does not answer a client that
/// does.
pub(crate) fn too_long(limit: Duration, to: &Destination) -> String {
    if let Some(why) = changed_clock() {
        return format!("the server can't be reached within {limit:?}; {why}");
    }
    let tls = if to.tls().is_some() { " that its port is one for TLS," } else { "" };
    format!(
        "the server can't be reached within {limit:?}; check that it runs, its address,{tls} and the network"
    )
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests;
