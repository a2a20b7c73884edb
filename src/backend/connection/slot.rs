//! One command connection, and the slot that holds the current one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::data_watch::DataWatch;
use crate::backend::connection::login::LoggedIn;
use crate::backend::connection::server_info::ServerInfo;
use crate::backend::connection::{ask_all, redis_error};
use crate::backend::late::{changed_clock, why_late};
use crate::backend::resp::Connection;
use crate::base::{Failure, boxed, telemetry, unless_it_panics};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, CallResult};

pub(crate) const CLOSED: &str = "this `Locks` was closed; connect again";

/// A connection with its number. Cheap to clone. Each caller that waits for an answer holds a clone, so a connection
/// that was replaced still delivers the answers that are in flight.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) id: u64,
    pub(crate) status: Arc<LinkStatus>,
    /// For a connection for acquires: the number of the connection for commands that it is paired with.
    pub(crate) paired_with: Option<u64>,
    /// The `run_id` of the server, if it was queried and the user may read it.
    pub(crate) run_id: Option<Arc<str>>,
    /// The credentials that it has logged in with, if they change.
    pub(crate) logged_in: Option<LoggedIn>,
}

#[derive(Default)]
pub(crate) struct LinkStatus {
    /// Whether the connection has ended.
    pub(crate) ended: AtomicBool,
    pub(crate) data: DataWatch,
}

/// Holds the current connection, for callers and for the task that replaces it.
pub(crate) struct ConnectionSlot {
    pub(crate) state: watch::Sender<State>,
    pub(crate) address: Arc<str>,
    pub(crate) node_timeout: Duration,
    /// Whether a call waits for a connection if there is none.
    pub(crate) waits_for_connection: bool,
    /// What is known about the server, whichever connection it was queried over.
    pub(crate) server_info: Arc<ServerInfo>,
    /// If this is the slot for acquires: the slot for commands. When the connection of one of them ends, so does the other's.
    pub(crate) main: Option<Arc<ConnectionSlot>>,
    /// The number of the last connection to a server whose place another one has, or is about to have. Answers that still arrive over it,
    /// or over an earlier one, do not count: 1. An acquire is on its way to a slow master. 2. A failover begins, and the replica is
    /// promoted without what that master writes from then on. 3. The master runs the acquire, and grants it.
    left: AtomicU64,
    /// The number of the last connection for which the loss of the previous one is reported. The first connection follows none.
    pub(crate) reported: AtomicU64,
}

pub(crate) enum State {
    Up(Link),
    /// No connection. `attempt` is the number of the last attempt, and `failed` its error.
    Down {
        attempt: u64,
        failed: Option<Error>,
    },
    /// The slot has ended for good, for this reason. If the runtime has ended, it keeps the last connection, whose socket is open.
    Ended(&'static str, Option<Link>),
}

impl ConnectionSlot {
    /// Returns a slot that has had no connection yet. `main` is the slot for commands if this one is for acquires.
    pub(crate) fn new(
        address: Arc<str>,
        node_timeout: Duration,
        waits_for_connection: bool,
        main: Option<Arc<ConnectionSlot>>,
    ) -> Arc<ConnectionSlot> {
        let state = watch::Sender::new(State::Down { attempt: 0, failed: None });
        let server_info = main.as_ref().map_or_else(Arc::default, |main| main.server_info.clone());
        let (left, reported) = (0.into(), 1.into());
        Arc::new(Self {
            state,
            address,
            node_timeout,
            waits_for_connection,
            server_info,
            main,
            left,
            reported,
        })
    }

    /// Returns the live connection. If there is none, waits for the outcome of the next attempt to connect. If that takes too long, fails
    /// with the error of the last one.
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        let mut state = self.state.subscribe();
        let seen = match &*state.borrow() {
            State::Down { attempt, .. } => *attempt,
            _ => 0,
        };
        let next = state.wait_for(|state| !matches!(state, State::Down { attempt, .. } if *attempt == seen));
        drop(timeout_at(deadline, next).await);
        self.link_now()
    }

    /// Returns the live connection. If there is none and calls wait for one, waits for the outcome of the next attempt to connect.
    pub(crate) async fn link_for_call(&self, deadline: Instant) -> Result<Link, Failure> {
        match self.link_now() {
            // The rare case is boxed, since otherwise it would make the future of each call larger.
            Err(_) if self.waits_for_connection => boxed(self.link(deadline)).await,
            link => link,
        }
    }

    /// Waits until the first attempt to connect has an outcome. Returns whether there is a connection then.
    pub(crate) async fn first_attempt(&self) -> bool {
        let mut state = self.state.subscribe();
        let tried = state.wait_for(|state| !matches!(state, State::Down { attempt: 0, .. })).await;
        tried.is_ok_and(|state| matches!(*state, State::Up(_)))
    }

    /// Looks at the live connection. The state is locked meanwhile.
    fn up<T>(&self, look: impl FnOnce(&Link) -> T) -> Option<T> {
        match &*self.state.borrow() {
            State::Up(link) => Some(look(link)),
            _ => None,
        }
    }

    /// Returns the number of the live connection.
    pub(crate) fn id(&self) -> Option<u64> {
        self.up(|link| link.id)
    }

    /// Returns whether this connection and the connection for commands that it is paired with are both current. Without this check:
    ///
    /// 1. A failover begins, and the connection for commands is dropped.
    /// 2. Acquires continue over the other one, on the old master, and a replica that is not promoted acknowledges them.
    /// 3. They are lost with the old master.
    pub(crate) fn is_current(&self, link: &Link) -> bool {
        self.id() == Some(link.id) && self.main.as_ref().is_none_or(|main| main.id() == link.paired_with)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.id().is_some()
    }

    /// Returns whether there is a live connection, and the loss of the one before is reported. Otherwise: 1. The server dies, and
    /// its connection ends. 2. It comes back empty, and a new connection is made. 3. For a moment the session does not know that
    /// holds may be gone.
    pub(crate) fn is_connected(&self) -> bool {
        self.id() == Some(self.reported.load(Ordering::SeqCst))
    }

    /// Returns whether the last attempt to connect has failed.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(*self.state.borrow(), State::Down { failed: Some(_), .. })
    }

    /// Returns the live connection, or the error of the last attempt, without a wait: even one with a timeout of zero may take a
    /// millisecond. By then the verdict of several masters is reached without this one, and a task has to wait for its answer each
    /// time.
    pub(crate) fn link_now(&self) -> Result<Link, Failure> {
        let error = match &*self.state.borrow() {
            State::Up(link) => return Ok(link.clone()),
            State::Down { failed: Some(error), .. } => error.clone(),
            State::Down { failed: None, .. } => {
                let why = changed_clock().unwrap_or("check that it runs");
                let why = format!("there is no connection to the server now; {why}");
                return Err(redis_error::not_sent(&why, &self.address));
            }
            State::Ended(why, _) => self.ended_error(why),
        };
        Err(Failure::not_run(error))
    }

    fn ended_error(&self, why: &str) -> Error {
        Error::new(ErrorKind::Closed, why).at(&self.address)
    }

    /// Turns a failure into `Closed` if the slot has ended.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        match &*self.state.borrow() {
            State::Ended(why, _) => Failure { error: self.ended_error(why), ..failure },
            _ => failure,
        }
    }

    /// Drops the current connection, since another server has, or is about to have, the place of this one.
    pub(crate) fn leave(&self, why: &str) {
        let last = match &*self.state.borrow() {
            State::Up(link) => link.id,
            // It may have been replaced a moment ago, with calls under way.
            State::Down { attempt, .. } => *attempt,
            State::Ended(..) => return,
        };
        self.left.fetch_max(last, Ordering::SeqCst);
        self.discard(last, why);
    }

    /// Drops the connection of this number if it is the current one. The reconnect task makes another.
    pub(crate) fn discard(&self, id: u64, why: &str) {
        let down = State::Down { attempt: id, failed: None };
        let replaced = self.replace(down, |state| matches!(state, State::Up(link) if link.id == id));
        let Some(State::Up(Link { paired_with, .. })) = replaced else { return };
        telemetry::connection_lost(&self.address, why);
        // Both are replaced. If only this one were, the two could lead to different servers when the server's name resolves to
        // another address now.
        if let (Some(main), Some(paired_with)) = (&self.main, paired_with) {
            main.discard(paired_with, why);
        }
    }

    /// Returns the reply to a call, or why there is none by the deadline. `before`: how many answers had come when it was sent.
    pub(crate) fn reply(
        &self,
        link: &Link,
        call: &Call,
        before: u64,
        deadline: Instant,
        answer: Result<RedisResult<Value>, Elapsed>,
    ) -> CallResult {
        match answer {
            Ok(answer) => self.decode(link, call, answer),
            Err(_) => Err(self.unanswered(call, self.timed_out(link, before, deadline).as_deref())),
        }
    }

    /// Like [`ask_all`]. Returns the replies, and whether all came by the deadline.
    pub(crate) async fn replies(
        &self,
        link: &Link,
        calls: &[Call],
        asking: &[bool],
        renews_together: bool,
        deadline: Instant,
    ) -> (Vec<CallResult>, bool) {
        let before = link.connection.answers();
        let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
        let asked = ask_all(&link.connection, calls, asking, renews_together, &mut answers, deadline);
        let in_time = timeout_at(deadline, asked).await.is_ok();
        let why = if in_time { None } else { self.timed_out(link, before, deadline) };
        let replies = calls.iter().zip(answers).map(|(call, answer)| match answer {
            Some(answer) => self.decode(link, call, answer),
            None => Err(self.unanswered(call, why.as_deref())),
        });
        (replies.collect(), in_time)
    }

    /// Decodes the answer to a call. Drops the connection if the answer shows that it is not usable.
    fn decode(&self, link: &Link, call: &Call, answer: RedisResult<Value>) -> CallResult {
        let decoded = answer.and_then(|answer| call.decode(answer.extract_error()?));
        if decoded.is_ok() && link.id <= self.left.load(Ordering::SeqCst) {
            return Err(self.explain(redis_error::answer_of_a_former_master(call, &self.address)));
        }
        decoded.map_err(|error| {
            self.discard_after(link, &error);
            self.explain(match link.logged_in {
                Some(_) if redis_error::is_logged_out(&error) => redis_error::logged_out(call, &self.address),
                _ => redis_error::failed(error, call, &self.address),
            })
        })
    }

    /// Returns the failure of a call that was sent and not answered in time. `why` is set if the server and the network are not to blame.
    pub(crate) fn unanswered(&self, call: &Call, why: Option<&str>) -> Failure {
        self.explain(redis_error::unanswered(call, self.node_timeout, why, &self.address))
    }

    /// Returns whether the server has the data that it had when its age was read, by its answer to `INFO replication`. If not, drops the
    /// connection: the next one reads the age again. A server that does not run `INFO` for this user is trusted, as when the age is read.
    ///
    /// Called after a grant of one of several masters, unless [`DataWatch`] shows the answer without it. Redis closes no connection when
    /// this happens:
    ///
    /// 1. A client holds the lock on M and N. M's replica lacks it.
    /// 2. The replica takes M's place, M becomes its replica, and takes its place back.
    /// 3. Another client that was connected to M all the time is granted the lock by M and a third master.
    pub(crate) fn has_same_data(&self, link: &Link, info: Value) -> bool {
        let info = info.extract_error().and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        let is_same = match info {
            Ok(info) => self.server_info.has_same_data(&info),
            Err(error) => redis_error::is_withheld(&error),
        };
        if !is_same {
            self.discard(link.id, "the server was a replica for a while");
        }
        is_same
    }

    /// Drops the connection if it is not usable after this error.
    pub(crate) fn discard_after(&self, link: &Link, error: &RedisError) {
        if redis_error::is_demoted(error) {
            self.discard(link.id, "the server answers as a replica does");
        } else if redis_error::is_logged_out(error) {
            // A proxy may end a login, where Redis would close the connection. The next connection logs in again.
            self.discard(link.id, "it is not logged in any more");
        }
    }

    /// Called when a command was not answered in time, with the number of answers before it. If no other answer arrived since, the
    /// connection may be dead without either side noticing, so it is replaced. Otherwise only the server or this process is slow; if this
    /// process is, returns the reason, if it shows. A connection with unread answers is kept: the task that would replace it runs no
    /// sooner than the one that does not read them.
    pub(crate) fn timed_out(&self, link: &Link, answers_before: u64, deadline: Instant) -> Option<String> {
        let is_unread = link.connection.is_unread();
        if link.connection.answers() == answers_before && !is_unread {
            self.discard(link.id, "no answer within the node timeout");
        }
        why_late(deadline).or_else(|| is_unread.then(|| redis_error::UNREAD.to_owned()))
    }

    pub(crate) fn close(&self) {
        self.replace(State::Ended(CLOSED, None), |state| !matches!(state, State::Ended(..)));
    }

    /// Called when the runtime has ended, and with it the task that makes connections. `keeps`: the last connection is kept for the
    /// ends that are still to be [written](ConnectionSlot::last_link).
    pub(crate) fn end_with_runtime(&self, why: &'static str, keeps: bool) {
        let last = self.link_now().ok().filter(|_| keeps);
        self.replace(State::Ended(why, last), |state| match state {
            State::Ended(_, last) => last.is_some() && !keeps,
            _ => true,
        });
    }

    /// Returns the connection, even if its runtime has ended.
    pub(crate) fn last_link(&self) -> Option<Link> {
        match &*self.state.borrow() {
            State::Up(link) | State::Ended(_, Some(link)) => Some(link.clone()),
            _ => None,
        }
    }

    /// Returns whether there is a connection with unread answers.
    pub(crate) fn is_unread(&self) -> bool {
        self.up(|link| link.connection.is_unread()) == Some(true)
    }

    /// Returns whether there is a connection with no command under way.
    pub(crate) fn is_unused(&self) -> bool {
        self.up(|link| link.connection.is_unused()) == Some(true)
    }

    /// Notes the outcome of an attempt to connect, unless the slot has ended.
    pub(crate) fn end_attempt(&self, outcome: State) {
        self.replace(outcome, |state| matches!(state, State::Down { .. }));
    }

    /// Replaces the state if `when` accepts the old one. Returns the old state, since it has to be dropped outside the lock: it may hold the
    /// last clone of a connection, and with it the connection's task.
    fn replace(&self, new: State, when: impl Fn(&State) -> bool) -> Option<State> {
        let mut new = Some(new);
        let mut old = None;
        // This wakes those who wait for a connection, and wakers are the program's code.
        unless_it_panics(|| {
            self.state.send_if_modified(|state| {
                if when(state) {
                    old = new.take().map(|new| std::mem::replace(state, new));
                }
                old.is_some()
            })
        });
        old
    }
}

#[cfg(test)]
mod tests;
