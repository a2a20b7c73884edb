//! A connection for commands, with TLS or without.

use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, Pipeline, RedisResult, Value};
use tokio::sync::Semaphore;
use tokio::task::unconstrained;
use tokio::time::Instant;

use crate::backend::connection::dial;
use crate::backend::resp::{self, COPIED, OnPush, Pipe, TOO_LATE, unsent};
use crate::wire::Call;

/// How many commands may wait for the driver of a connection over TLS: no limit. If the queue could be full, a command would be sent
/// in a later poll than the first one, and so maybe after its deadline. Each caller waits for its answer, which bounds the queue as
/// well. The second cause of a late send is tokio's budget for a task, which [`unconstrained`] lifts.
const QUEUE: usize = Semaphore::MAX_PERMITS;

/// Cheap to clone. With the last one it is closed.
#[derive(Clone)]
pub(crate) enum Commands {
    Plain(Pipe),
    /// By the redis crate, which has the certificates that it was given, and does not return them. The second is which process has opened
    /// it.
    Tls(MultiplexedConnection, u32),
}

/// A script's name, or its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Hash,
    Text,
}

impl Commands {
    /// A new connection. `on_push`: what is done with pushes, and once it has ended.
    pub(crate) async fn connect(client: &Client, on_push: OnPush) -> RedisResult<Commands> {
        let info = client.get_connection_info();
        #[cfg(test)]
        if let Some(stream) = dial::testing::stream(client).await {
            return resp::open_simulated(stream?, info.redis_settings(), on_push).await.map(Commands::Plain);
        }
        let connected = if let ConnectionAddr::TcpTls { .. } = info.addr() {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None)
                .set_pipeline_buffer_size(QUEUE)
                .set_push_sender(move |info| {
                    on_push(info);
                    Ok::<(), SendError>(())
                });
            Box::pin(dial::connect(client, &config))
                .await
                .map(|connection| Commands::Tls(connection, std::process::id()))
        } else {
            resp::open(info, on_push).await.map(Commands::Plain)
        };
        connected.map_err(|error| dial::without_credentials(error, client))
    }

    /// Sends a command, but not after the deadline: then it fails with an [unsent](resp::why_unsent) error.
    pub(crate) async fn send(&self, cmd: &Cmd, deadline: Option<Instant>) -> RedisResult<Value> {
        self.check_process()?;
        check(deadline)?;
        match self {
            Commands::Plain(pipe) => pipe.send(deadline, |bytes| cmd.write_packed_command(bytes)).await,
            Commands::Tls(connection, _) => {
                let mut connection = connection.clone();
                Box::pin(async move { unconstrained(connection.send_packed_command(cmd)).await }).await
            }
        }
    }

    /// In the child of a fork nothing is sent: its parent would take the answer for that to a command of its own. The commands of calls
    /// are not sent there by those who ask.
    fn check_process(&self) -> RedisResult<()> {
        let is_copied = match self {
            Commands::Plain(pipe) => pipe.is_copied(),
            Commands::Tls(_, process) => *process != std::process::id(),
        };
        if is_copied { Err(unsent(COPIED)) } else { Ok(()) }
    }

    /// Like [`send`](Commands::send), for the command of a call.
    pub(super) async fn run(&self, call: &Call, by: By, deadline: Instant) -> RedisResult<Value> {
        let Commands::Plain(pipe) = self else {
            let cmd = if by == By::Hash { call.evalsha() } else { call.eval() };
            return Box::pin(async move { self.send(&cmd, Some(deadline)).await }).await;
        };
        check(Some(deadline))?;
        let encode = |bytes: &mut Vec<u8>| match by {
            By::Hash => call.encode_evalsha(bytes),
            By::Text => call.encode_eval(bytes),
        };
        pipe.send(Some(deadline), encode).await
    }

    /// Like [`send`](Commands::send), for many commands.
    pub(crate) async fn send_all(
        &self,
        pipeline: &Pipeline,
        deadline: Option<Instant>,
    ) -> RedisResult<Vec<Value>> {
        self.check_process()?;
        check(deadline)?;
        match self {
            Commands::Plain(pipe) => {
                let encode = |bytes: &mut Vec<u8>| bytes.extend(pipeline.get_packed_pipeline());
                pipe.send_all(deadline, pipeline.len(), encode).await
            }
            Commands::Tls(connection, _) => {
                let mut connection = connection.clone();
                let sent = async move {
                    unconstrained(connection.send_packed_commands(pipeline, 0, pipeline.len())).await
                };
                Box::pin(sent).await
            }
        }
    }
}

fn check(deadline: Option<Instant>) -> RedisResult<()> {
    if deadline.is_none_or(|deadline| Instant::now() < deadline) { Ok(()) } else { Err(unsent(TOO_LATE)) }
}

#[cfg(test)]
mod tests;
