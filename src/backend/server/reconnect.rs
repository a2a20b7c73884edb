//! The task that keeps the one command connection: it makes it, and makes it anew whenever it is lost.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::SendError;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::connection::{
    Backoff, Endpoint, Line, Link, Purpose, QUEUE, ServerInfo, Signs, State, Target, dial, redis_error,
};
use crate::backend::server::source::Source;
use crate::base::{Events, telemetry};
use crate::error::{Error, ErrorKind, Result};

const OTHER: &str = "its address leads to another server than a moment ago";

const TURNED: &str = "another server has become the master while this one was connected to";

const RUNTIME_ENDED: &str =
    "the tokio runtime that this `Locks` was connected on has ended; connect on one that lives on";

/// Makes the connection, and makes it anew whenever it is lost. Its future lives on the runtime that called `connect`,
/// and so do all connections' drivers: a call may come from any runtime, and one that ends must take nothing with it.
pub(crate) struct Reconnector {
    line: Arc<Line>,
    source: Source,
    purpose: Purpose,
    /// Where the last connection went.
    target: watch::Sender<Option<Endpoint>>,
    /// Told when an attempt goes to a server that is no longer the one.
    turned: watch::Sender<()>,
    events: Weak<dyn Events>,
    limit: Duration,
}

impl Reconnector {
    pub(crate) fn new(
        source: Source,
        address: Arc<str>,
        purpose: Purpose,
        events: Weak<dyn Events>,
        limit: Duration,
    ) -> Reconnector {
        let vitals = Arc::default();
        Reconnector::with(source, address, vitals, purpose, events, limit, None)
    }

    /// One that keeps a second connection, for another purpose, to wherever this one's goes.
    pub(crate) fn beside(&self, purpose: Purpose) -> Reconnector {
        let (address, vitals) = (self.line.address.clone(), self.line.vitals.clone());
        let source = Source::beside(self.line.clone(), self.target());
        Reconnector::with(
            source,
            address,
            vitals,
            purpose,
            self.events.clone(),
            self.limit,
            Some(self.line.clone()),
        )
    }

    fn with(
        source: Source,
        address: Arc<str>,
        vitals: Arc<ServerInfo>,
        purpose: Purpose,
        events: Weak<dyn Events>,
        limit: Duration,
        main: Option<Arc<Line>>,
    ) -> Reconnector {
        let state = watch::Sender::new(State::Down { attempt: 0, failed: None });
        let line = Arc::new(Line { state, address, vitals, main });
        let purpose = Purpose { doubts: source.changes(), ..purpose };
        let target = watch::Sender::new(source.known());
        Reconnector { line, source, purpose, target, turned: watch::Sender::new(()), events, limit }
    }

    /// Where its connections go, for whoever has to go there too.
    pub(crate) fn target(&self) -> Target {
        self.target.subscribe()
    }

    pub(crate) fn line(&self) -> Arc<Line> {
        self.line.clone()
    }

    /// Connects for the first time: one attempt. Only what time can't mend is an error; a server that is away is told of.
    pub(crate) async fn connect(&self) -> Result<Option<Error>> {
        match self.open(1).await {
            Ok((link, site)) => {
                self.install(link, site);
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
    pub(crate) async fn run(self) {
        let mut end = self.line.state.subscribe();
        tokio::select! {
            () = self.keep() => {}
            () = self.source.watch(|| self.turn()) => {}
            _ = end.wait_for(|state| matches!(state, State::Ended(_))) => {}
        }
    }

    /// Another server is the master now, as far as is known: nothing may go to the old one any more.
    fn turn(&self) {
        self.turned.send_replace(());
        self.line.lost_any("another server is, or is about to be, the master");
    }

    async fn keep(&self) {
        let mut state = self.line.state.subscribe();
        let mut backoff = Backoff::default();
        let mut attempt = 1;
        // One that nobody waited for begins here.
        let mut connected = !matches!(&*self.line.state.borrow(), State::Down { attempt: 0, .. });
        // Once in an outage. The first connection reports it by its error, and who follows another goes to the
        // same server.
        let mut told = self.purpose.waits
            || matches!(&*self.line.state.borrow(), State::Down { failed: Some(error), .. } if redis_error::is_distrusted(error));
        loop {
            let since = Instant::now();
            if state.wait_for(|state| !matches!(state, State::Up(_))).await.is_err() {
                return;
            }
            backoff.lost(since);
            let (link, site) = loop {
                sleep(backoff.pause()).await;
                attempt += 1;
                let mut turned = self.turned.subscribe();
                let opened = tokio::select! {
                    opened = self.open(attempt) => opened,
                    _ = turned.changed() => Err(redis_error::not_sent(TURNED, &self.line.address).error),
                };
                match opened {
                    Ok(opened) => break opened,
                    Err(error) => {
                        if !told && redis_error::is_distrusted(&error) {
                            telemetry::distrusted(&error);
                            told = true;
                        }
                        let down = State::Down { attempt, failed: Some(error) };
                        self.line.replace(down, |state| matches!(state, State::Down { .. }));
                    }
                }
            };
            let again = std::mem::replace(&mut connected, true);
            told = self.purpose.waits;
            self.install(link, site);
            if again {
                telemetry::reconnected(&self.line.address);
            }
            if let Some(events) = self.events.upgrade() {
                events.reconnected();
            }
        }
    }

    fn install(&self, link: Link, site: Endpoint) {
        // Also where the address is the same, so that the connection for messages is made anew behind each one for commands:
        // 1. A server does not answer for a moment, and its address is given to another one. 2. This connection is replaced, and
        // goes there. 3. The one for messages is quiet, and stands. It stays with the old server, which is alive again.
        self.target.send_replace(Some(site));
        let (id, signs) = (link.id, link.signs.clone());
        self.line.replace(State::Up(link), |state| matches!(state, State::Down { .. }));
        // 1. The connection is made. 2. It ends: `lost` finds nothing to replace. 3. It is put in place, dead.
        // The mark is set before `lost`, and read after the place was taken, so in every order one of the two sees it.
        if signs.ended.load(Ordering::SeqCst) {
            self.line.lost_id(id, "closed by the server");
        }
    }

    async fn open(&self, id: u64) -> Result<(Link, Endpoint)> {
        let site = self.source.site(id == 1).await?;
        let (beside, signs) = (self.source.with(), Arc::new(Signs::default()));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(end_of(id, signs.clone(), Arc::downgrade(&self.line)));
        let connect = async {
            let connection = dial::connect(&site.client, &config).await;
            let mut connection =
                connection.map_err(|error| redis_error::unreachable(error, &site.address))?;
            let run = self.purpose.examine(&mut connection, &self.line, &site.address).await?;
            self.meets(beside, &run, &site.address)?;
            if let Some(gate) = &site.gate {
                gate(connection.clone()).await?;
            }
            Ok(Link { connection, id, signs, beside, run })
        };
        match timeout(self.limit, connect).await {
            Ok(link) => Ok((link?, site)),
            Err(_) => Err(redis_error::not_sent(&dial::too_long(self.limit), &site.address).error),
        }
    }
}

impl Reconnector {
    /// Both connections go to one server: the address may have come to lead to another one in between.
    fn meets(&self, beside: Option<u64>, run: &Option<Arc<str>>, address: &Arc<str>) -> Result<()> {
        let (Some(main), Some(beside), Some(run)) = (&self.line.main, beside, run) else { return Ok(()) };
        let other = |link: &Link| link.id == beside && link.run.as_ref().is_some_and(|other| other != run);
        if main.link_now().is_ok_and(|link| other(&link)) {
            main.lost_id(beside, OTHER);
            return Err(redis_error::not_sent(OTHER, address).error);
        }
        Ok(())
    }
}

/// Dropped before the line was closed: the runtime has ended.
impl Drop for Reconnector {
    fn drop(&mut self) {
        self.line.end(RUNTIME_ENDED);
    }
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

#[cfg(test)]
mod tests;
