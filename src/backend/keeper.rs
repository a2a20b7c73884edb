//! The task that keeps the one command connection: it makes it, and makes it anew whenever it is lost.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisResult};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::connection::{Line, Link, Signs, State};
use super::verdict;
use super::vitals::Vitals;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Events;
use crate::telemetry;

const RUNTIME_ENDED: &str =
    "the tokio runtime that this `Locks` was connected on has ended; connect on one that lives on";

/// Makes the connection, and makes it anew whenever it is lost. Its future lives on the runtime that called `connect`,
/// and so do all connections' drivers: a call may come from any runtime, and one that ends must take nothing with it.
pub(super) struct Keeper {
    line: Arc<Line>,
    client: redis::Client,
    events: Weak<dyn Events>,
    limit: Duration,
    /// Whether the server's age has to be known.
    aging: bool,
}

impl Keeper {
    pub(super) fn new(
        client: redis::Client,
        address: Arc<str>,
        events: Weak<dyn Events>,
        limit: Duration,
        aging: bool,
    ) -> Keeper {
        let state = watch::Sender::new(State::Down { attempt: 0, failed: None });
        let line = Arc::new(Line { state, address, vitals: Vitals::default() });
        Keeper { line, client, events, limit, aging }
    }

    pub(super) fn line(&self) -> Arc<Line> {
        self.line.clone()
    }

    /// Connects for the first time: one attempt. Only what time can't mend is an error; a server that is away is told of.
    pub(super) async fn connect(&self) -> Result<Option<Error>> {
        match self.open(1).await {
            Ok(link) => {
                self.install(link);
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let failed = Some(error.again());
                self.line
                    .replace(State::Down { attempt: 1, failed }, |state| matches!(state, State::Down { .. }));
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Until the line is closed.
    pub(super) async fn run(self) {
        let mut end = self.line.state.subscribe();
        tokio::select! {
            () = self.keep() => {}
            _ = end.wait_for(|state| matches!(state, State::Ended(_))) => {}
        }
    }

    async fn keep(&self) {
        let mut state = self.line.state.subscribe();
        let mut backoff = Backoff::default();
        let mut attempt = 1;
        loop {
            let since = Instant::now();
            if state.wait_for(|state| !matches!(state, State::Up(_))).await.is_err() {
                return;
            }
            backoff.lost(since);
            let link = loop {
                sleep(backoff.pause()).await;
                attempt += 1;
                match self.open(attempt).await {
                    Ok(link) => break link,
                    Err(error) => {
                        let down = State::Down { attempt, failed: Some(error) };
                        self.line.replace(down, |state| matches!(state, State::Down { .. }));
                    }
                }
            };
            self.install(link);
            telemetry::reconnected(&self.line.address);
            if let Some(events) = self.events.upgrade() {
                events.reconnected();
            }
        }
    }

    fn install(&self, link: Link) {
        let (id, signs) = (link.id, link.signs.clone());
        self.line.replace(State::Up(link), |state| matches!(state, State::Down { .. }));
        // 1. The connection is made. 2. It ends: `lost` finds nothing to replace. 3. It is put in place, dead.
        // The mark is set before `lost`, and read after the place was taken, so in every order one of the two sees it.
        if signs.ended.load(Ordering::SeqCst) {
            self.line.lost_id(id, "closed by the server");
        }
    }

    async fn open(&self, id: u64) -> Result<Link> {
        let address = &self.line.address;
        let signs = Arc::new(Signs::default());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(end_of(id, signs.clone(), Arc::downgrade(&self.line)));
        let connect = async {
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            // A server that loads its data takes connections and credentials, and refuses all else.
            let answer = connection.send_packed_command(&redis::cmd("PING")).await?;
            match answer.extract_error() {
                // A user need not have the right to PING; what matters is that commands are served.
                Err(error) if error.code() != Some("NOPERM") => return Err(error),
                _ => {}
            }
            if self.aging {
                self.examine(&mut connection).await?;
            }
            Ok(connection)
        };
        match timeout(self.limit, connect).await {
            Ok(Ok(connection)) => Ok(Link { connection, id, signs }),
            Ok(Err(error)) => Err(verdict::unreachable(error, address)),
            Err(_) => Err(verdict::not_sent(&too_long(self.limit), address).error),
        }
    }
}

impl Keeper {
    /// Reads the server's age, before any of its answers can count as a vote.
    async fn examine(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let answer = connection.send_packed_command(redis::cmd("INFO").arg("server")).await?.extract_error();
        let told = match answer {
            Ok(info) => redis::from_redis_value::<String>(info)?,
            Err(error) if verdict::is_denied(&error) => String::new(),
            Err(error) => return Err(error),
        };
        if !self.line.vitals.learn(&told, Instant::now()) {
            self.line.vitals.forget();
            telemetry::age_unknown(&self.line.address);
        }
        Ok(())
    }
}

/// Dropped before the line was closed: the runtime has ended.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.line.end(RUNTIME_ENDED);
    }
}

pub(super) fn too_long(limit: Duration) -> String {
    format!("the server can't be reached within {limit:?}; check that it runs, its address, and the network")
}

/// Called by the connection's driver. The driver is the only one to see a connection end that is idle; without it the
/// next command would be lost with it, its outcome unknown.
fn end_of(
    id: u64,
    signs: Arc<Signs>,
    line: Weak<Line>,
) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
    move |info| {
        if info.kind == PushKind::Disconnection {
            signs.ended.store(true, Ordering::SeqCst);
            if let Some(line) = line.upgrade() {
                line.lost_id(id, "closed by the server");
            }
        }
        Ok(())
    }
}
