//! One command connection, and its place.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Semaphore, watch};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::redis_error;
use crate::backend::connection::server_info::ServerInfo;
use crate::base::{Failure, Outcome, telemetry};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, Reply};

pub(crate) const CLOSED: &str = "this `Locks` was closed; connect anew";

/// How many commands may wait for the connection's driver: all. A connection whose queue can be full sends in a later poll than
/// the first one, and so maybe past the deadline. Each caller waits for its answer, which bounds the queue as well. The
/// second cause of a late send is tokio's budget for a task, which [`unconstrained`] takes off.
pub(crate) const QUEUE: usize = Semaphore::MAX_PERMITS;

/// A connection that stood, under its number. Cheap to clone; whoever waits for an answer holds one, so a connection that
/// was replaced still brings the answers that are under way.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) id: u64,
    pub(crate) signs: Arc<Signs>,
    /// Of one for acquires: the number of the connection for commands that it was made beside.
    pub(crate) beside: Option<u64>,
    /// By what the server is known from others, where it was asked and may tell.
    pub(crate) run: Option<Arc<str>>,
}

/// What was seen of a connection.
#[derive(Default)]
pub(crate) struct Signs {
    /// How many answers came.
    pub(crate) answers: AtomicU64,
    /// It has ended.
    pub(crate) ended: AtomicBool,
}

/// What runs scripts is sent before its deadline or never, and it is sent in the first poll or never:
///
/// 1. A future sends a part of its work: the `EVALSHA` of an acquire, which the server does not know.
/// 2. It is not polled for two node timeouts. The hold is given up, and its end runs.
/// 3. The future is polled again, past its deadline. A timeout around it does not help, since it polls the future first.
/// 4. The future would send the rest, the `EVAL`: a field that nobody ends before its lease.
///
/// What came as an answer is read at any time: where node timeouts are short, a grant would else be given up, undone and asked
/// for again without an end.
impl Link {
    /// Sends a command, but not after that: the error then [says so](redis_error::is_unsent).
    pub(crate) async fn send(&mut self, cmd: &Cmd, deadline: Instant) -> RedisResult<Value> {
        in_time(deadline)?;
        self.send_whenever(cmd).await
    }

    /// Sends a command that changes nothing, at any time.
    pub(crate) async fn send_whenever(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = unconstrained(self.connection.send_packed_command(cmd)).await;
        self.answered(answer.is_ok());
        answer
    }

    /// The same for many commands.
    pub(crate) async fn send_all(
        &mut self,
        pipeline: &redis::Pipeline,
        deadline: Instant,
    ) -> RedisResult<Vec<Value>> {
        in_time(deadline)?;
        let answers = unconstrained(self.connection.send_packed_commands(pipeline, 0, pipeline.len())).await;
        self.answered(answers.is_ok());
        answers
    }

    /// Sends a command for a slot that may only be on its way to this node.
    pub(crate) async fn send_asking(&mut self, cmd: Cmd, deadline: Instant) -> RedisResult<Value> {
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.add_command(redis::cmd("ASKING")).add_command(cmd);
        let mut answers = self.send_all(&pipeline, deadline).await?.into_iter();
        Ok(let_in(answers.next(), answers.next()))
    }

    fn answered(&self, yes: bool) {
        if yes {
            self.signs.answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn answers(&self) -> u64 {
        self.signs.answers.load(Ordering::Relaxed)
    }
}

/// The answer to a command behind `ASKING`, of both answers.
pub(super) fn let_in(asking: Option<Value>, answer: Option<Value>) -> Value {
    match (asking, answer) {
        // The way back is told where it is not let in; why it is not tells more.
        (Some(refused @ Value::ServerError(_)), Some(Value::ServerError(error)))
            if error.kind() == Some(ServerErrorKind::Moved) =>
        {
            refused
        }
        (_, answer) => answer.unwrap_or(Value::Nil),
    }
}

fn in_time(deadline: Instant) -> RedisResult<()> {
    if Instant::now() < deadline { Ok(()) } else { Err(redis_error::unsent()) }
}

/// The place of the one connection, seen by callers and by its keeper.
pub(crate) struct Line {
    pub(crate) state: watch::Sender<State>,
    pub(crate) address: Arc<str>,
    /// Of the server, whichever connection it was asked over.
    pub(crate) vitals: Arc<ServerInfo>,
    /// Of one for acquires: the line of commands. A connection of either ends with the other's.
    pub(crate) main: Option<Arc<Line>>,
}

pub(crate) enum State {
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
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
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

    /// The number of the live connection.
    pub(crate) fn id(&self) -> Option<u64> {
        match &*self.state.borrow() {
            State::Up(link) => Some(link.id),
            _ => None,
        }
    }

    /// Whether this connection is still the one, and so is the one for commands that it was made beside. Otherwise:
    ///
    /// 1. A failover begins, and the connection for commands is dropped.
    /// 2. Acquires go on over the other one, at the old master, and a replica that is not promoted acknowledges them.
    /// 3. They are lost with the old master.
    pub(crate) fn is_together(&self, link: &Link) -> bool {
        self.id() == Some(link.id) && self.main.as_ref().is_none_or(|main| main.id() == link.beside)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up(_))
    }

    /// Whether the last attempt to connect has failed.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(*self.state.borrow(), State::Down { failed: Some(_), .. })
    }

    /// The live connection, or what is known of why there is none. Not by a wait of no time: that may take a millisecond, by
    /// which the verdict of several masters is made without this one, and it is heard out on a task of its own each time.
    pub(crate) fn link_now(&self) -> Result<Link, Failure> {
        self.outcome(&self.state.borrow())
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
        redis_error::not_sent("there is no connection to the server now; check that it runs", &self.address)
    }

    fn ended_error(&self, why: &str) -> Error {
        Error::new(ErrorKind::Closed, why).at(&self.address)
    }

    /// A failure, told as `Closed` where the end of everything is its cause.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        match &*self.state.borrow() {
            State::Ended(why) => Failure { error: self.ended_error(why), ..failure },
            _ => failure,
        }
    }

    /// That connection is of no use any more; the keeper makes another.
    pub(crate) fn lost(&self, link: &Link, why: &str) {
        self.lost_id(link.id, why);
    }

    /// Whichever it is.
    pub(crate) fn lost_any(&self, why: &str) {
        if let Some(id) = self.id() {
            self.lost_id(id, why);
        }
    }

    pub(crate) fn lost_id(&self, id: u64, why: &str) {
        let beside = match &*self.state.borrow() {
            State::Up(link) if link.id == id => link.beside,
            _ => return,
        };
        let replaced = self.replace(
            State::Down { attempt: id, failed: None },
            |state| matches!(state, State::Up(link) if link.id == id),
        );
        if replaced {
            telemetry::connection_lost(&self.address, why);
            // Made anew alone, it may come to another server than the one for commands, where the address leads elsewhere now.
            if let (Some(main), Some(beside)) = (&self.main, beside) {
                main.lost_id(beside, why);
            }
        }
    }

    /// What a call was answered, which may tell that the connection is of no use any more.
    pub(crate) fn decoded(
        &self,
        link: &Link,
        call: &Call,
        answer: RedisResult<Value>,
    ) -> Result<Reply, Failure> {
        let decoded = answer.and_then(Value::extract_error).and_then(|value| call.decode(value));
        decoded.map_err(|error| {
            self.look_at(link, &error);
            self.explain(redis_error::failed(error, call, &self.address))
        })
    }

    /// Whether the connection is of use after this error.
    pub(crate) fn look_at(&self, link: &Link, error: &RedisError) {
        if redis_error::is_demoted(error) {
            self.lost(link, "the server has become a replica");
        } else if error.is_io_error() {
            self.lost(link, "broken");
        }
    }

    /// A command was not answered in time. Where nothing else was answered meanwhile the connection may be dead without
    /// either side knowing it, which a new one would show; where something was, the server is only slow.
    pub(crate) fn silent(&self, link: &Link, before: u64) {
        if link.answers() == before {
            self.lost(link, "no answer within the node timeout");
        }
    }

    pub(crate) fn close(&self) {
        self.end(CLOSED);
    }

    pub(crate) fn end(&self, why: &'static str) {
        self.replace(State::Ended(why), |state| !matches!(state, State::Ended(_)));
    }

    /// The old state is dropped outside of the lock: with it may go the last clone of a connection, and its driver.
    pub(crate) fn replace(&self, new: State, when: impl Fn(&State) -> bool) -> bool {
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
