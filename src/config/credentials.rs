//! Credentials that change: the user's code that provides them, and the checks of that option.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use crate::base::Boxed;
use crate::config::destination::Destination;
use crate::config::master::MasterKind;
use crate::config::server::Server;
use crate::error::{Result, rejected};

/// The shortest time after which a provider is asked again.
const SHORTEST: Duration = Duration::from_millis(100);

/// A user and a password, as a provider returns them to [`Builder::credentials`](crate::Builder::credentials).
///
/// `Debug` shows neither.
///
/// ```
/// use std::time::Duration;
/// use nestlock::Credentials;
/// let credentials = Credentials::new("bob", "s3cret").renew_after(Duration::from_secs(600));
/// assert_eq!(format!("{credentials:?}"), "Credentials { renew_after: Some(600s), .. }");
/// ```
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: String,
    renew_after: Option<Duration>,
}

impl Credentials {
    /// Creates credentials from a user and its password, or a token in place of a password. On a server that has a password and no
    /// users (`requirepass`) the user is `default`.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials { user: user.into(), password: password.into(), renew_after: None }
    }

    /// Sets the time after which the provider is asked for new credentials, with which all standing connections log in again.
    /// Default: never; only a new connection asks.
    ///
    /// It is counted from when the provider was asked. Choose a shorter time than a token is valid, with room for a few tries. The
    /// minimum is 100 ms.
    #[must_use]
    pub fn renew_after(mut self, time: Duration) -> Credentials {
        self.renew_after = Some(time.max(SHORTEST));
        self
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }

    pub(crate) fn renewed_after(&self) -> Option<Duration> {
        self.renew_after
    }

    /// Returns whether a connection that logged in with one need not log in with the other.
    pub(crate) fn is_same_login(&self, other: &Credentials) -> bool {
        (&self.user, &self.password) == (&other.user, &other.password)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("renew_after", &self.renew_after).finish_non_exhaustive()
    }
}

pub(crate) type Provided = Result<Credentials, Box<dyn StdError + Send + Sync>>;

/// The user's code that provides credentials.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> Boxed<'static, Provided> + Send + Sync>);

impl Provider {
    pub(super) fn new<F, Fut, E>(provide: F) -> Provider
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Provider(Arc::new(move || {
            let mut provided = Box::pin(provide());
            Box::pin(poll_fn(move |cx| provided.as_mut().poll(cx).map_err(Into::into)))
        }))
    }

    /// Asks the user's code. It may block, panic, or never be ready.
    pub(crate) fn provide(&self) -> impl Future<Output = Provided> + Send + use<> {
        (self.0)()
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider(..)")
    }
}

/// Rejects a provider if the URL of a server has credentials too, since one of the two would be ignored silently, or if there is
/// no server to use it. The sentinels' own credentials are not checked.
pub(super) fn check(masters: &[MasterKind]) -> Result<()> {
    let servers = masters.iter().flat_map(|master| match master {
        MasterKind::Server(server) => std::slice::from_ref(server),
        MasterKind::Cluster(seeds) => seeds.all(),
        MasterKind::Sentinel(_) | MasterKind::Memory(_) => &[],
    });
    let has_login = |server: &&Server| {
        let settings = server.usable().map(Destination::redis_settings);
        settings.is_some_and(|settings| settings.username().or(settings.password()).is_some())
    };
    if let Some(server) = servers.into_iter().find(has_login) {
        let wrong = "credentials was given a provider, but this server's URL has a user or a password: remove them \
             from the URL, or the provider";
        return Err(rejected(wrong).at(&server.address()));
    }
    if masters.iter().all(|master| matches!(master, MasterKind::Memory(_))) {
        return Err(rejected(
            "credentials needs a server, but every master is a `Memory`; remove the provider, or give a server",
        ));
    }
    Ok(())
}
