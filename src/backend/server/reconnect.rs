//! The task that makes the command connection, and replaces it whenever it is lost.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::PushKind;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backend::connection::{
    Backoff, Connection, ConnectionSlot, Endpoint, Link, LinkStatus, Purpose, State, Target, redis_error,
};
use crate::backend::resp::OnPush;
use crate::backend::server::one_vote::OneVote;
use crate::backend::server::source::Source;
use crate::backend::with_events;
use crate::base::{Events, boxed, meter, telemetry};
use crate::error::{Error, ErrorKind, Result};

const OTHER_SERVER: &str = "its address resolves to another server than a moment ago";

const LEFT: &str = "another server is, or is about to be, the master";

const MASTER_CHANGED: &str = "another server has become the master while this one was connected to";

const LOST_AT_LOGIN: &str = "it was lost before the answer to a login";

pub(super) const RUNTIME_ENDED: &str =
    "the tokio runtime that this `Locks` was connected on has ended; connect on one that outlives it";

/// Makes the connection, and replaces it whenever it is lost. Its future runs on the runtime that called `connect`, and so do
/// the tasks of all connections: a call may be made on any runtime, and a runtime that ends must not end a connection.
pub(super) struct Reconnector {
    slot: Arc<ConnectionSlot>,
    source: Source,
    purpose: Purpose,
    /// The endpoint of the last connection.
    target: watch::Sender<Option<Endpoint>>,
    /// Notified when another server becomes the master, so that an attempt in progress ends.
    master_changed: watch::Sender<()>,
    events: Weak<dyn Events>,
    one_vote: Option<OneVote>,
}

impl Reconnector {
    pub(super) fn new(
        slot: Arc<ConnectionSlot>,
        source: Source,
        purpose: Purpose,
        events: Weak<dyn Events>,
        one_vote: Option<OneVote>,
    ) -> Reconnector {
        one_vote.iter().for_each(|one_vote| one_vote.add(&slot));
        // Another server may become the master, unless the address is fixed.
        let purpose = Purpose { checks_role: !matches!(source, Source::Fixed(_)), ..purpose };
        let (target, master_changed) = (watch::Sender::new(source.known()), watch::Sender::new(()));
        Reconnector { slot, source, purpose, target, master_changed, events, one_vote }
    }

    /// Returns a reconnector for a second connection, for another purpose, to the same server.
    pub(super) fn paired(&self, purpose: Purpose) -> Reconnector {
        let main = &self.slot;
        let slot = ConnectionSlot::new(
            main.address.clone(),
            main.node_timeout,
            main.waits_for_connection,
            Some(main.clone()),
        );
        let source = Source::paired(self.slot.clone(), self.target());
        Reconnector::new(slot, source, purpose, self.events.clone(), None)
    }

    /// Returns the endpoint of its connections, for other connections that follow it.
    pub(super) fn target(&self) -> Target {
        self.target.subscribe()
    }

    pub(super) fn slot(&self) -> Arc<ConnectionSlot> {
        self.slot.clone()
    }

    /// Makes one attempt to connect. Fails only with an error that does not go away by itself; a server that can't be reached is
    /// returned as `Some`.
    pub(super) async fn connect(&self) -> Result<Option<Error>> {
        let opened = boxed(self.open(1, true, false)).await;
        let Err(error) = opened.and_then(|(link, endpoint)| self.install(link, endpoint, true)) else {
            return Ok(None);
        };
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        self.slot.end_attempt(State::Down { attempt: 1, failed: Some(error.clone()) });
        Ok(Some(error))
    }

    /// Runs until the slot is closed. `lazily`: nobody waits for the first attempt, so its outcome is logged.
    pub(super) async fn run(self, lazily: bool) {
        let mut end = self.slot.state.subscribe();
        tokio::select! {
            biased;
            // The state is not locked any more when the other branches are dropped, which calls the program's recorder.
            () = async { drop(end.wait_for(|state| matches!(state, State::Ended(..))).await) } => {}
            () = self.source.watch(|| self.leave_master()) => {}
            () = self.reconnect(lazily) => {}
            () = self.keep_logged_in() => {}
            () = self.measure(), if meter::ON && self.slot.main.is_none() => {}
        }
    }

    /// Drops the connection, since another server is, or is about to be, the master: no more commands may be sent to the old one. A
    /// connection for acquires is dropped whenever the one for commands is replaced, which may lead to the same master.
    fn leave_master(&self) {
        self.master_changed.send_replace(());
        match (&self.slot.main, self.slot.id()) {
            (None, _) => self.slot.leave(LEFT),
            (Some(_), Some(id)) => self.slot.discard(id, "the connection for commands was replaced"),
            (Some(_), None) => {}
        }
    }

    async fn reconnect(&self, lazily: bool) {
        let mut state = self.slot.state.subscribe();
        let mut master_changed = self.master_changed.subscribe();
        let mut backoff = Backoff::default();
        let mut attempt = 1;
        // If `connect` was not called before, the first connection is made here.
        let mut connected = !matches!(&*self.slot.state.borrow(), State::Down { attempt: 0, .. });
        // Which warnings were logged in this outage. The connection for acquires leaves them to the one for commands.
        let mut warned = [self.purpose.sends_wait; 3];
        // `connect` has returned the error of the first attempt. The first warning is that of a certificate.
        if let State::Down { failed: Some(error), .. } = &*self.slot.state.borrow() {
            warned[0] |= redis_error::is_distrusted(error);
        }
        // Whether a server has accepted the login of one of its connections.
        let mut accepted = self.slot.is_up();
        // Whether the log shows that the first connection can't be made yet.
        let mut is_absent = false;
        loop {
            let since = Instant::now();
            if state.wait_for(|state| !matches!(state, State::Up(_))).await.is_err() {
                return;
            }
            backoff.lost(since);
            loop {
                // A change ends the pause: pauses grow during a failover, and a hold whose lease is nearly over must not be lost in one.
                tokio::select! {
                    biased;
                    _ = master_changed.changed() => backoff = Backoff::default(),
                    () = sleep(backoff.pause()) => {}
                }
                attempt += 1;
                let opened = tokio::select! {
                    biased;
                    _ = master_changed.changed() => {
                        master_changed.mark_changed();
                        Err(redis_error::not_sent(MASTER_CHANGED, &self.slot.address).error)
                    }
                    opened = boxed(self.open(attempt, !connected, accepted)) => opened,
                };
                let (made, is_second_vote) = match opened {
                    Ok((link, endpoint)) => (self.install(link, endpoint, !connected), true),
                    Err(error) => (Err(error), false),
                };
                let Err(error) = made else { break };
                is_absent |= warn(&error, is_second_vote, &mut warned);
                if lazily && !connected && !std::mem::replace(&mut is_absent, true) {
                    telemetry::absent(&error);
                }
                self.slot.end_attempt(State::Down { attempt, failed: Some(error) });
            }
            let is_reconnect = std::mem::replace(&mut connected, true);
            accepted = true;
            warned = [self.purpose.sends_wait; 3];
            if is_reconnect {
                telemetry::reconnected(&self.slot.address);
            } else if lazily && is_absent {
                telemetry::arrived(&self.slot.address);
            }
            with_events(&self.events, |events| events.reconnected());
            self.slot.reported.store(attempt, Ordering::SeqCst);
        }
    }

    /// Counts whether the server is connected. Never ends.
    async fn measure(&self) {
        let mut state = self.slot.state.subscribe();
        let mut connected = meter::Connected::to(&self.slot.address);
        loop {
            let is_up = matches!(*state.borrow_and_update(), State::Up(_));
            // Called while nothing is locked, since the recorder belongs to the program.
            connected.is(is_up);
            if state.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// Logs the current connection in again with each new pair of credentials. Never ends.
    async fn keep_logged_in(&self) {
        let mut state = self.slot.state.subscribe();
        loop {
            if let Ok(Link { connection, id, logged_in: Some(logged_in), .. }) = self.slot.link_now() {
                tokio::select! {
                    biased;
                    _ = state.wait_for(|state| !matches!(state, State::Up(link) if link.id == id)) => {}
                    _ = boxed(logged_in.keep(&connection, &self.slot.address)) => {
                        self.slot.discard(id, LOST_AT_LOGIN);
                    }
                }
            } else if state.changed().await.is_err() {
                // The link is dropped before this wait, so that this task keeps no connection alive.
                return pending().await;
            }
        }
    }

    /// Makes `link` the current connection. `first`: a server that has the vote of another master is then reported as a wrong
    /// option.
    fn install(&self, link: Link, endpoint: Endpoint, first: bool) -> Result<()> {
        let Some(one_vote) = &self.one_vote else {
            self.replace(link, endpoint);
            return Ok(());
        };
        one_vote.install(&link.clone(), &self.slot.address, first, || self.replace(link, endpoint))
    }

    fn replace(&self, link: Link, endpoint: Endpoint) {
        // Sent even if the address is the same, so that the connection for messages is made again after each one for commands: 1. A
        // server does not answer for a moment, and its address is given to another one. 2. This connection is replaced, and goes
        // there. 3. The one for messages is idle, and stays with the old server, which is alive again.
        self.target.send_replace(Some(endpoint));
        let (id, status) = (link.id, link.status.clone());
        self.slot.end_attempt(State::Up(link));
        // It may have ended by now: 1. The connection is made. 2. It ends, and `discard` does not find it. 3. It is installed, dead.
        // Since `ended` is set before `discard`, and read after the installation, one of the two sees the other in every order.
        if status.ended.load(Ordering::SeqCst) {
            self.slot.discard(id, "closed by the server");
        }
    }

    async fn open(&self, id: u64, first: bool, accepted: bool) -> Result<(Link, Endpoint)> {
        let (endpoint, paired_with) = self.source.endpoint(first, id == 1, || self.slot.leave(LEFT)).await?;
        let status = Arc::new(LinkStatus::default());
        let on_push = on_push(id, status.clone(), Arc::downgrade(&self.slot));
        // Outside the limit: the provider of credentials may take longer than a server, and has a limit of its own.
        let (to, logged_in) = endpoint.destination().await?;
        let connect = async {
            let connection = Connection::connect(&to, on_push).await;
            let connection = connection.map_err(|error| endpoint.unreachable(error, accepted))?;
            let run_id = self.purpose.check(&connection, &self.slot, &status.data, &endpoint.address).await?;
            self.check_same_server(paired_with, &run_id, &endpoint.address)?;
            if let Some(gate) = &endpoint.gate {
                gate(connection.clone()).await?;
            }
            Ok(Link { connection, id, status, paired_with, run_id, logged_in })
        };
        let link = endpoint.within(self.slot.node_timeout, connect).await?;
        Ok((link, endpoint))
    }

    /// Fails if the two connections of the pair lead to different servers: the address may resolve to another one by now.
    fn check_same_server(
        &self,
        paired_with: Option<u64>,
        run_id: &Option<Arc<str>>,
        address: &Arc<str>,
    ) -> Result<()> {
        let (Some(main), Some(paired_with), Some(run_id)) = (&self.slot.main, paired_with, run_id) else {
            return Ok(());
        };
        let is_other =
            |link: &Link| link.id == paired_with && link.run_id.as_ref().is_some_and(|other| other != run_id);
        if main.link_now().is_ok_and(|link| is_other(&link)) {
            main.discard(paired_with, OTHER_SERVER);
            return Err(redis_error::not_sent(OTHER_SERVER, address).error);
        }
        Ok(())
    }
}

/// Logs why an attempt failed if that needs a correction, each reason once in an outage. Returns whether it did.
fn warn(error: &Error, is_second_vote: bool, warned: &mut [bool; 3]) -> bool {
    let reasons = [redis_error::is_distrusted(error), redis_error::is_refused_login(error), is_second_vote];
    let logs: [fn(&Error); 3] = [telemetry::distrusted, telemetry::reconnect_denied, telemetry::second_vote];
    let mut is_logged = false;
    for ((applies, log), warned) in reasons.into_iter().zip(logs).zip(warned) {
        if applies && !std::mem::replace(warned, true) {
            log(error);
            is_logged = true;
        }
    }
    is_logged
}

/// Ends the slot: if it is not closed yet, the runtime has ended.
impl Drop for Reconnector {
    fn drop(&mut self) {
        self.slot.end_with_runtime(RUNTIME_ENDED, true);
    }
}

/// Called by the connection's task, before it delivers the answers after the push. Only the task sees the end of an idle
/// connection. Otherwise the next command would be sent over the dead connection.
fn on_push(id: u64, status: Arc<LinkStatus>, slot: Weak<ConnectionSlot>) -> OnPush {
    Box::new(move |info| {
        status.data.receive(&info);
        if info.kind == PushKind::Disconnection {
            status.ended.store(true, Ordering::SeqCst);
            if let Some(slot) = slot.upgrade() {
                slot.discard(id, "closed by the server");
            }
        }
    })
}

#[cfg(test)]
mod tests;
