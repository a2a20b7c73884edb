//! Credentials from a provider, which is asked at each new connection, and before those of an open connection expire.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backend::connection::redis_error;
use crate::backend::resp::Connection;
use crate::backend::tasks::Tasks;
use crate::base::{after, telemetry, unless_it_panics};
use crate::config::{Credentials, Provider};
use crate::error::{Error, ErrorKind, Result};

/// How long to wait for the provider.
const LIMIT: Duration = Duration::from_secs(5);

/// The longest pause before the provider is asked again, or refused credentials are sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The provider of one `Locks`, and what it returned last. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Login(Arc<Shared>);

struct Shared {
    provider: Provider,
    /// Locked while the provider is asked.
    last: Mutex<LastRequest>,
    current: watch::Sender<Current>,
}

/// The last request to the provider.
#[derive(Default)]
struct LastRequest {
    outcome: Option<(Instant, Result<Arc<Issued>>)>,
    /// How many requests have failed since one succeeded.
    failures: u32,
}

#[derive(Clone, Default)]
struct Current {
    issued: Option<Arc<Issued>>,
    /// When to ask the provider again, even if no new connection needs it.
    due: Option<Instant>,
}

/// Credentials as the provider returned them. The number grows with each change, so that a connection sees whether it has the newest.
struct Issued {
    number: u64,
    credentials: Credentials,
}

impl Login {
    pub(crate) fn new(provider: Provider) -> Login {
        Login(Arc::new(Shared { provider, last: Mutex::default(), current: watch::Sender::default() }))
    }

    /// Begins the login of a new connection. Asks the provider, unless another caller has asked it since this call began.
    pub(super) async fn begin(&self) -> Result<LoggedIn> {
        let called = Instant::now();
        let mut last = self.0.last.lock().await;
        let issued = match &last.outcome {
            Some((asked, Ok(issued))) if *asked >= called => issued.clone(),
            Some((asked, Err(error))) if *asked >= called => return Err(error.clone()),
            _ => self.ask(&mut last).await?,
        };
        Ok(LoggedIn { login: self.clone(), issued })
    }

    /// Returns what a new connection logs in with if the provider is not asked: what it returned last.
    pub(super) fn last_issued(&self) -> Option<LoggedIn> {
        let issued = self.0.current.borrow().issued.clone()?;
        Some(LoggedIn { login: self.clone(), issued })
    }

    /// Asks the provider if that is still due: another connection may have asked while this one waited for the mutex.
    async fn renew(&self) {
        let mut last = self.0.last.lock().await;
        let due = self.0.current.borrow().due;
        if due.is_some_and(|due| due <= Instant::now()) {
            // `ask` logs an error, and the provider is asked again later.
            let _ = self.ask(&mut last).await;
        }
    }

    async fn ask(&self, last: &mut LastRequest) -> Result<Arc<Issued>> {
        let asked = Instant::now();
        // Runs as a task of its own, which ends with this future: a panic of the provider ends no task of this crate.
        let (mut task, provider) = (Tasks::new(), self.0.provider.clone());
        task.spawn(async move { provider.provide().await });
        let provided = match timeout(LIMIT, task.join_next()).await {
            Ok(Some(Some(Ok(credentials)))) => Ok(credentials),
            Ok(Some(Some(Err(cause)))) => Err(unless_it_panics(|| self.provider_error(cause))
                .unwrap_or_else(|| failure("failed with an error that panics when it is shown; correct it"))),
            Ok(Some(None) | None) => Err(failure("panicked; correct it")),
            Err(_) => Err(failure(&format!("did not return within {LIMIT:?}; check what it waits for"))),
        };
        let outcome = provided.map(|credentials| {
            last.failures = 0;
            self.issue(credentials, asked)
        });
        if let Err(error) = &outcome {
            last.failures += 1;
            if last.failures == 1 {
                telemetry::credentials_missing(error);
            }
            let now = Instant::now();
            let again = after(now, pause(last.failures));
            self.0.current.send_if_modified(|current| match current.due {
                Some(due) if due <= now => {
                    current.due = Some(again);
                    true
                }
                _ => false,
            });
        }
        last.outcome = Some((asked, outcome.clone()));
        outcome
    }

    fn issue(&self, credentials: Credentials, asked: Instant) -> Arc<Issued> {
        let due = credentials.renewed_after().map(|time| after(asked, time));
        let before = self.0.current.borrow().issued.clone();
        let issued = match before {
            Some(before) if before.credentials.is_same_login(&credentials) => before,
            before => {
                let number = before.map_or(0, |before| before.number + 1);
                Arc::new(Issued { number, credentials })
            }
        };
        self.0.current.send_replace(Current { issued: Some(issued.clone()), due });
        issued
    }

    /// Returns the error of a provider that failed, without its text if that shows the password that the provider returned last. The
    /// provider may also have failed with a newer password in its text, but that password is not known here.
    fn provider_error(&self, cause: Box<dyn std::error::Error + Send + Sync>) -> Error {
        let text = cause.to_string();
        let known = self.0.current.borrow().issued.clone();
        let shows = |issued: Arc<Issued>| {
            let password = issued.credentials.password();
            let mut causes =
                std::iter::successors(Some(&*cause as &dyn std::error::Error), |cause| cause.source());
            !password.is_empty() && causes.any(|cause| format!("{cause} {cause:?}").contains(password))
        };
        if known.is_some_and(shows) {
            return failure("failed; its error is not shown, since the password is a part of it");
        }
        failure(&format!("failed: {text}; correct what it reports")).because_of(cause)
    }
}

fn failure(what: &str) -> Error {
    let message =
        format!("the provider of credentials {what}. Until it returns, no new connection can log in");
    Error::new(ErrorKind::Unavailable, message)
}

/// Returns the pause after this many failures: one second, then twice as long each time.
fn pause(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(LONGEST_PAUSE)
}

/// The credentials that a connection has logged in with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LoggedIn {
    login: Login,
    issued: Arc<Issued>,
}

impl LoggedIn {
    pub(super) fn credentials(&self) -> &Credentials {
        &self.issued.credentials
    }

    /// Logs the connection in again with each new pair of credentials. Ends with an error once the connection is not usable any more. A
    /// server that refuses new credentials keeps it logged in with the old ones.
    pub(crate) async fn keep(mut self, connection: &Connection, server: &str) -> RedisError {
        // How often the server has refused new credentials since it accepted some.
        let mut refusals = 0_u32;
        loop {
            if refusals > 0 {
                // The server may get a new password later than the provider does, so that the same one may be accepted soon.
                sleep(pause(refusals)).await;
                // Only to ask the provider again. What it returns arrives in `current`; an error is logged.
                let _ = self.login.begin().await;
            }
            let mut current = self.login.0.current.subscribe();
            let issued = loop {
                let Current { issued, due } = current.borrow_and_update().clone();
                if let Some(issued) = issued.filter(|issued| issued.number != self.issued.number) {
                    break issued;
                }
                // The newest credentials are those that this connection is logged in with: refused ones, if any, were withdrawn.
                refusals = 0;
                tokio::select! {
                    _ = current.changed() => {}
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.login.renew().await,
                }
            };
            let (user, password) = (issued.credentials.user(), issued.credentials.password());
            let auth = redis::cmd("AUTH").arg(user).arg(password).take();
            match connection.send(&auth, None).await.and_then(Value::extract_error) {
                Ok(_) => {
                    (self.issued, refusals) = (issued, 0);
                    telemetry::logged_in_again(server);
                }
                Err(error) if redis_error::is_answer(&error) => {
                    refusals = refusals.saturating_add(1);
                    if refusals == 1 {
                        telemetry::login_refused(server, error.code().unwrap_or("ERR"));
                    }
                }
                Err(error) => return error,
            }
        }
    }
}
