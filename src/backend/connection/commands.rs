//! A connection for commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::Instant;

use crate::backend::connection::dial;
use crate::backend::resp::{COPIED, OnPush, Pipe, TOO_LATE, unsent};
use crate::config::Destination;
use crate::wire::Call;

/// A connection for commands. Cheap to clone. It is closed when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Commands(Arc<Shared>);

struct Shared {
    pipe: Pipe,
    /// How many answers were received.
    answers: AtomicU64,
    /// One bit for each script, set once its text was sent.
    scripts: AtomicU32,
}

/// How a script is sent: by its hash, or by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Hash,
    Text,
}

/// A script is sent before its deadline or never, and in the first poll or never. Otherwise:
///
/// 1. A future sends a part of its work: the `EVALSHA` of an acquire whose script the server does not know.
/// 2. It is not polled for two node timeouts. The hold is given up, and its end runs.
/// 3. The future is polled again, after its deadline. A timeout around it does not help, since it polls the future first.
/// 4. The future sends the rest, the `EVAL`, which sets a field that is not removed before its lease ends.
///
/// An answer is read at any time. Otherwise, with a short node timeout, a grant could be given up, undone and requested again
/// without end.
impl Commands {
    /// Makes a new connection. `on_push` handles pushes, and the end of the connection.
    pub(crate) async fn connect(to: &Destination, on_push: OnPush) -> RedisResult<Commands> {
        dial::connect(to, on_push).await.map(Commands::over)
    }

    pub(crate) fn over(pipe: Pipe) -> Commands {
        Commands(Arc::new(Shared { pipe, answers: AtomicU64::new(0), scripts: AtomicU32::new(0) }))
    }

    /// Sends a command, but not after the deadline: then it fails with an [unsent](crate::backend::resp::why_unsent) error.
    pub(crate) async fn send(&self, cmd: &Cmd, deadline: Option<Instant>) -> RedisResult<Value> {
        self.check_process()?;
        check(deadline)?;
        let answer = self.0.pipe.send(deadline, |bytes| cmd.write_packed_command(bytes)).await;
        self.0.count(answer)
    }

    /// Returns whether the socket has bytes that were not read.
    pub(super) fn is_unread(&self) -> bool {
        self.0.pipe.is_unread()
    }

    /// Fails in the child of a fork: its parent would take the answer for that to a command of its own. Calls don't check this here,
    /// since their callers do not send them in a child.
    fn check_process(&self) -> RedisResult<()> {
        if self.0.pipe.is_copied() { Err(unsent(COPIED)) } else { Ok(()) }
    }

    /// Like [`send`](Commands::send), for the command of a call.
    pub(super) async fn run(&self, call: &Call, by: By, deadline: Instant) -> RedisResult<Value> {
        check(Some(deadline))?;
        let answer = self.0.pipe.send(Some(deadline), encode(call, by)).await;
        self.0.count(answer)
    }

    /// Sends the command of a call at once, if no other one is under way; the returned future waits for the answer.
    pub(super) fn begin(
        &self,
        call: &Call,
        deadline: Instant,
    ) -> impl Future<Output = RedisResult<Value>> + Send + use<> {
        let by = self.by(call.script_number());
        let (answer, shared) = (self.0.pipe.begin(deadline, &encode(call, by)), self.0.clone());
        async move { shared.count(answer.await) }
    }

    /// Returns whether no command is under way.
    pub(super) fn is_unused(&self) -> bool {
        self.0.pipe.is_unused()
    }

    /// Writes the commands of calls whose answers nobody gets, if the runtime of the connection ends or has ended.
    pub(crate) fn run_last(&self, calls: &[Call]) {
        let encode = |call: &Call, bytes: &mut _| encode(call, self.by(call.script_number()))(bytes);
        self.0.pipe.send_last(|bytes| calls.iter().for_each(|call| encode(call, bytes)));
    }

    /// Like [`send`](Commands::send), for many commands.
    pub(crate) async fn send_all(
        &self,
        pipeline: &Pipeline,
        deadline: Option<Instant>,
    ) -> RedisResult<Vec<Value>> {
        self.check_process()?;
        check(deadline)?;
        let encode = |bytes: &mut Vec<u8>| bytes.extend(pipeline.get_packed_pipeline());
        let answers = self.0.pipe.send_all(deadline, pipeline.len(), encode).await;
        self.0.count(answers)
    }

    /// Returns how to send a script: by its text the first time over a connection, and by its hash from then on. By the hash alone, the
    /// first call would take two round trips, and over a slow network the second one may come too late. If the text was not sent after
    /// all, or the server has forgotten it, the hash is answered as unknown, and the text is sent again.
    pub(super) fn by(&self, script: u32) -> By {
        let (scripts, bit) = (&self.0.scripts, 1 << script);
        let is_sent = |scripts: u32| scripts & bit != 0;
        // A load is usually enough.
        if is_sent(scripts.load(Ordering::Relaxed)) || is_sent(scripts.fetch_or(bit, Ordering::Relaxed)) {
            return By::Hash;
        }
        By::Text
    }

    /// Makes all scripts go by their hash from now on.
    #[cfg(test)]
    pub(crate) fn has_sent_all(&self) {
        self.0.scripts.store(u32::MAX, Ordering::Relaxed);
    }

    /// Returns how many answers were received.
    pub(crate) fn answers(&self) -> u64 {
        self.0.answers.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn count<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if answer.is_ok() {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

fn encode(call: &Call, by: By) -> impl Fn(&mut Vec<u8>) {
    move |bytes| match by {
        By::Hash => call.encode_evalsha(bytes),
        By::Text => call.encode_eval(bytes),
    }
}

fn check(deadline: Option<Instant>) -> RedisResult<()> {
    if deadline.is_none_or(|deadline| Instant::now() < deadline) { Ok(()) } else { Err(unsent(TOO_LATE)) }
}

#[cfg(test)]
mod tests;
