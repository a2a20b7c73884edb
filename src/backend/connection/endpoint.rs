//! The server that a connection is made to.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::backend::BoxFuture;
use crate::backend::connection::dial::{connect_limit, too_long};
use crate::backend::connection::login::{LoggedIn, Login};
use crate::backend::connection::redis_error;
use crate::backend::resp::Connection;
use crate::base::boxed;
use crate::config::Destination;
use crate::error::{Error, ErrorKind, Result};

/// A server to connect to.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) to: Destination,
    pub(crate) address: Arc<str>,
    /// Checks each new command connection before a command is sent over it.
    pub(crate) gate: Option<Gate>,
    /// Where the credentials come from, if not from its URL.
    pub(crate) login: Option<Login>,
}

/// Fails if the connection leads to another server than the intended one.
pub(crate) type Gate = Arc<dyn Fn(Connection) -> BoxFuture<Result<()>> + Send + Sync>;

/// The endpoint of the last command connection. Other connections follow it, so that they are only made to a server that was
/// seen to be the master.
pub(crate) type Target = watch::Receiver<Option<Endpoint>>;

impl Endpoint {
    /// Returns how to make one connection now, and the credentials that it logs in with if a provider is asked for them. It waits for the
    /// provider as long as that takes.
    pub(crate) async fn destination(&self) -> Result<(Destination, Option<LoggedIn>)> {
        let Some(login) = &self.login else { return Ok((self.to.clone(), None)) };
        let logged_in = boxed(login.begin()).await.map_err(|error| error.at(&self.address))?;
        Ok((self.with_credentials(&logged_in), Some(logged_in)))
    }

    /// Returns how to make one connection with the credentials that the provider, if there is one, has returned last. It is not asked.
    pub(crate) fn last_destination(&self) -> Destination {
        let last = self.login.as_ref().and_then(Login::last_issued);
        last.map_or_else(|| self.to.clone(), |logged_in| self.with_credentials(&logged_in))
    }

    fn with_credentials(&self, logged_in: &LoggedIn) -> Destination {
        let (settings, credentials) = (self.to.redis_settings().clone(), logged_in.credentials());
        let settings = settings.set_username(credentials.user()).set_password(credentials.password());
        self.to.with_redis_settings(settings)
    }

    /// Waits for an attempt to connect, until its [limit](connect_limit).
    pub(crate) async fn within<T>(
        &self,
        node_timeout: Duration,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = connect_limit(Some(&self.to), node_timeout);
        match timeout(limit, attempt).await {
            Ok(made) => made,
            Err(_) => Err(redis_error::not_sent(&too_long(limit, &self.to), &self.address).error),
        }
    }

    /// Returns the error of a failed attempt to connect. `accepted` means that the server accepted the provider's credentials before. A
    /// refusal is then no mistake to report at once: the server may have a new password, which the provider is about to return.
    pub(crate) fn unreachable(&self, error: RedisError, accepted: bool) -> Error {
        match self.login {
            Some(_) if redis_error::is_credentials(&error) => {
                let kind = if accepted { ErrorKind::Unavailable } else { ErrorKind::Denied };
                redis_error::provided_wrong(error, kind, &self.address)
            }
            _ => redis_error::unreachable(error, &self.address),
        }
    }
}

/// Waits until the target changes. Never ready if it can't change any more.
pub(crate) async fn moved(target: &mut Target) {
    if target.changed().await.is_err() {
        pending().await
    }
}
