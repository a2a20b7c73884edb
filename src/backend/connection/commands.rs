//! A connection for commands.

use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::Instant;

use crate::backend::connection::dial;
use crate::backend::resp::{COPIED, OnPush, Pipe, TOO_LATE, unsent};
use crate::config::Destination;
use crate::wire::Call;

/// A connection for commands. Cheap to clone. It is closed when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Commands(Pipe);

/// How a script is sent: by its hash, or by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Hash,
    Text,
}

impl Commands {
    /// Makes a new connection. `on_push` handles pushes, and the end of the connection.
    pub(crate) async fn connect(to: &Destination, on_push: OnPush) -> RedisResult<Commands> {
        dial::connect(to, on_push).await.map(Commands)
    }

    #[cfg(test)]
    pub(crate) fn over(pipe: Pipe) -> Commands {
        Commands(pipe)
    }

    /// Sends a command, but not after the deadline: then it fails with an [unsent](crate::backend::resp::why_unsent) error.
    pub(crate) async fn send(&self, cmd: &Cmd, deadline: Option<Instant>) -> RedisResult<Value> {
        self.check_process()?;
        check(deadline)?;
        self.0.send(deadline, |bytes| cmd.write_packed_command(bytes)).await
    }

    /// Returns whether the socket has bytes that were not read.
    pub(super) fn is_unread(&self) -> bool {
        self.0.is_unread()
    }

    /// Fails in the child of a fork: its parent would take the answer for that to a command of its own. Calls don't check this here,
    /// since their callers do not send them in a child.
    fn check_process(&self) -> RedisResult<()> {
        if self.0.is_copied() { Err(unsent(COPIED)) } else { Ok(()) }
    }

    /// Like [`send`](Commands::send), for the command of a call.
    pub(super) async fn run(&self, call: &Call, by: By, deadline: Instant) -> RedisResult<Value> {
        check(Some(deadline))?;
        self.0.send(Some(deadline), encode(call, by)).await
    }

    /// Like [`run`](Commands::run), but sends at once if no other command is under way, not when the returned future is polled.
    pub(super) fn begin(
        &self,
        call: &Call,
        by: By,
        deadline: Instant,
    ) -> impl Future<Output = RedisResult<Value>> + Send + use<> {
        self.0.begin(deadline, &encode(call, by))
    }

    /// Returns whether no command is under way.
    pub(super) fn is_unused(&self) -> bool {
        self.0.is_unused()
    }

    /// Writes the commands of calls whose answers nobody gets, if the runtime of the connection ends or has ended.
    pub(super) fn run_last(&self, calls: &[Call], by: impl Fn(&Call) -> By) {
        self.0.send_last(|bytes| calls.iter().for_each(|call| encode(call, by(call))(bytes)));
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
        self.0.send_all(deadline, pipeline.len(), encode).await
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
