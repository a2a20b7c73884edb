//! One command connection, and the task that keeps it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::{Failure, Outcome, verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::events::Events;
use crate::telemetry;

const CLOSED: &str = "this `Locks` was closed; connect anew";
const RUNTIME_ENDED: &str =
    "the tokio runtime that this `Locks` was connected on has ended; connect on one that lives on";

/// A connection that stood, under its number. Cheap to clone; whoever waits for an answer holds one, so a connection that
/// was replaced still brings the answers that are under way.
#[derive(Clone)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    id: u64,
    signs: Arc<Signs>,
}

/// What was seen of a connection.
#[derive(Default)]
struct Signs {
    /// How many answers came.
    answers: AtomicU64,
    /// It has ended.
    ended: AtomicBool,
}

impl Link {
    pub(super) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.send_packed_command(cmd).await;
        self.answered(answer.is_ok());
        answer
    }

    pub(super) async fn send_all(&mut self, pipeline: &redis::Pipeline) -> RedisResult<Vec<Value>> {
        let answers = self.connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
        self.answered(answers.is_ok());
        answers
    }

    fn answered(&self, yes: bool) {
        if yes {
            self.signs.answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn answers(&self) -> u64 {
        self.signs.answers.load(Ordering::Relaxed)
    }
}

/// The place of the one connection, seen by callers and by its keeper.
pub(super) struct Line {
    state: watch::Sender<State>,
    pub(super) address: Arc<str>,
}

enum State {
    Up(Link),
    /// No connection; `attempt` is the number of the last attempt, and `failed` what became of it.
    Down {
        attempt: u64,
        failed: Option<Error>,
    },
    /// For good, and why.
    Ended(&'static str),
}

impl Line {
    /// The live connection. Where there is none, the outcome of the next attempt to connect is awaited.
    pub(super) async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        if let Some(link) = self.now() {
            return link;
        }
        let mut state = self.state.subscribe();
        let seen = match &*state.borrow() {
            State::Down { attempt, .. } => *attempt,
            _ => 0,
        };
        let next = state.wait_for(|state| !matches!(state, State::Down { attempt, .. } if *attempt == seen));
        match timeout_at(deadline, next).await {
            Ok(Ok(state)) => self.outcome(&state),
            // The next attempt did not come in time: what became of the last one is the best that can be told.
            _ => match &*self.state.borrow() {
                down @ State::Down { .. } => self.outcome(down),
                _ => Err(self.no_connection()),
            },
        }
    }

    /// What can be told at once. The state is locked for the moment of a clone.
    fn now(&self) -> Option<Result<Link, Failure>> {
        let state = self.state.borrow();
        (!matches!(*state, State::Down { .. })).then(|| self.outcome(&state))
    }

    fn outcome(&self, state: &State) -> Result<Link, Failure> {
        let error = match state {
            State::Up(link) => return Ok(link.clone()),
            State::Down { failed: Some(error), .. } => error.again(),
            State::Down { failed: None, .. } => return Err(self.no_connection()),
            State::Ended(why) => self.ended_error(why),
        };
        Err(Failure { outcome: Outcome::NotRun, error })
    }

    fn no_connection(&self) -> Failure {
        verdict::not_sent("there is no connection to the server now; check that it runs", &self.address)
    }

    fn ended_error(&self, why: &str) -> Error {
        Error::new(ErrorKind::Closed, why).at(&self.address)
    }

    /// A failure, told as `Closed` where the end of everything is its cause.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        match &*self.state.borrow() {
            State::Ended(why) => Failure { error: self.ended_error(why), ..failure },
            _ => failure,
        }
    }

    /// That connection is of no use any more; the keeper makes another.
    pub(super) fn lost(&self, link: &Link, why: &str) {
        self.lost_id(link.id, why);
    }

    fn lost_id(&self, id: u64, why: &str) {
        let replaced = self.replace(
            State::Down { attempt: id, failed: None },
            |state| matches!(state, State::Up(link) if link.id == id),
        );
        if replaced {
            telemetry::connection_lost(&self.address, why);
        }
    }

    pub(super) fn close(&self) {
        self.end(CLOSED);
    }

    fn end(&self, why: &'static str) {
        self.replace(State::Ended(why), |state| !matches!(state, State::Ended(_)));
    }

    /// The old state is dropped outside of the lock: with it may go the last clone of a connection, and its driver.
    fn replace(&self, new: State, when: impl Fn(&State) -> bool) -> bool {
        let mut new = Some(new);
        let mut old = None;
        self.state.send_if_modified(|state| {
            if when(state) {
                old = new.take().map(|new| std::mem::replace(state, new));
            }
            old.is_some()
        });
        old.is_some()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.address).finish()
    }
}

/// Makes the connection, and makes it anew whenever it is lost. Its future lives on the runtime that called `connect`,
/// and so do all connections' drivers: a call may come from any runtime, and one that ends must take nothing with it.
pub(super) struct Keeper {
    line: Arc<Line>,
    client: redis::Client,
    events: Weak<dyn Events>,
    limit: Duration,
}

impl Keeper {
    /// Connects for the first time: one attempt.
    pub(super) async fn connect(
        client: redis::Client,
        address: Arc<str>,
        events: Weak<dyn Events>,
        limit: Duration,
    ) -> Result<(Arc<Line>, Keeper)> {
        let state = watch::Sender::new(State::Down { attempt: 0, failed: None });
        let line = Arc::new(Line { state, address });
        let keeper = Keeper { line: line.clone(), client, events, limit };
        let link = keeper.open(1).await?;
        keeper.install(link);
        Ok((line, keeper))
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
                Err(error) if error.code() != Some("NOPERM") => Err(error),
                _ => Ok(connection),
            }
        };
        match timeout(self.limit, connect).await {
            Ok(Ok(connection)) => Ok(Link { connection, id, signs }),
            Ok(Err(error)) => Err(verdict::unreachable(error, address)),
            Err(_) => Err(verdict::not_sent(&too_long(self.limit), address).error),
        }
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
