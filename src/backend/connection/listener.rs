//! What goes over the connection of a subscriber: requests (`Requester`) and pushes (`Listener`).

use redis::{ErrorKind, PushInfo, PushKind, RedisResult, Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::connection::channels::ChannelRequest;
use crate::backend::resp::Connection;
use crate::config::Destination;

/// Which kind of channels a subscriber subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    /// Plain channels, published to all nodes of a cluster.
    Plain,
    /// Sharded channels, published only at the node of the channel's slot.
    Sharded,
}

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Requester {
    kind: ChannelKind,
    pub(super) connection: Connection,
}

/// Receives what the server sends, except the answers that a [`Requester`] returns.
pub(crate) struct Listener(UnboundedReceiver<PushInfo>);

pub(crate) async fn open(to: &Destination, kind: ChannelKind) -> RedisResult<(Requester, Listener)> {
    let (sender, pushes) = unbounded_channel();
    let on_push = move |info| {
        let _ = sender.send(info);
    };
    let connection = Connection::connect(to, Box::new(on_push)).await?;
    Ok((Requester { kind, connection }, Listener(pushes)))
}

impl Requester {
    /// Sends a request and waits for its answer, for as long as the caller does. Fails if the server refuses it, or the connection is
    /// lost. `Ok` is not yet the confirmation, which a [`Listener`] receives in order with messages and with the end of the subscription.
    pub(crate) async fn request(&self, request: ChannelRequest, channel: &str) -> RedisResult<()> {
        let (command, confirmation) = match (self.kind, request) {
            (ChannelKind::Plain, ChannelRequest::Subscribe) => ("SUBSCRIBE", PushKind::Subscribe),
            (ChannelKind::Plain, ChannelRequest::Unsubscribe) => ("UNSUBSCRIBE", PushKind::Unsubscribe),
            (ChannelKind::Sharded, ChannelRequest::Subscribe) => ("SSUBSCRIBE", PushKind::SSubscribe),
            (ChannelKind::Sharded, ChannelRequest::Unsubscribe) => ("SUNSUBSCRIBE", PushKind::SUnsubscribe),
        };
        let request = cmd(command).arg(channel).take();
        let encode = |bytes: &mut Vec<u8>| request.write_packed_command(bytes);
        let (no_deadline, answers) = (None, 1);
        let answer = self.connection.call(no_deadline, answers, &encode, Some((confirmation, channel)))?;
        match answer.one().await?.extract_error()? {
            Value::Push { .. } => Ok(()),
            _ => Err((ErrorKind::Parse, "a subscription was answered with something else").into()),
        }
    }

    pub(crate) async fn ping(&self) -> RedisResult<()> {
        self.connection.send(&cmd("PING"), None).await?.extract_error().map(drop)
    }
}

impl Listener {
    /// Returns what the server sends next, or `None` if the connection is lost.
    pub(crate) async fn next(&mut self) -> Option<PushInfo> {
        self.0.recv().await.filter(|push| push.kind != PushKind::Disconnection)
    }
}

#[cfg(test)]
mod tests;
