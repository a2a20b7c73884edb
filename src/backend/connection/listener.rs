//! The connection of a subscriber: to plain channels over RESP2, or to sharded ones over RESP3. To plain channels it is over RESP3 too
//! where credentials change: over RESP2, a subscribed connection can't log in again.

use std::future::poll_fn;
use std::pin::Pin;

use futures_core::Stream;
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Msg, PushInfo, PushKind, RedisError, RedisResult, Value,
    cmd,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::connection::channels::ChannelRequest;
use crate::backend::connection::dial;
use crate::backend::connection::settings::for_messages;

/// Which channels a subscriber subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    /// Published to all nodes of a cluster.
    Plain,
    /// Published at the node of the channel's slot alone.
    Sharded,
}

/// What a server sends, except the answers that a [`Requester`] returns.
pub(super) enum Received {
    Message(Msg),
    /// A sharded channel is subscribed from here on.
    Subscribed(String),
    /// A sharded channel is subscribed no more: it was asked for, or its slot has moved to another node.
    Unsubscribed(String),
}

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub(super) enum Requester {
    Plain(PubSubSink),
    Resp3(ChannelKind, MultiplexedConnection),
}

/// Receives what the server sends.
pub(super) enum Listener {
    Plain(PubSubStream),
    Resp3(UnboundedReceiver<PushInfo>),
}

/// `logs_in_again`: with other credentials, while it is subscribed.
pub(super) async fn open(
    client: &Client,
    kind: ChannelKind,
    logs_in_again: bool,
) -> RedisResult<(Requester, Listener)> {
    match kind {
        ChannelKind::Plain if !logs_in_again => {
            let connection: PubSub = dial::listen(&for_messages(client)?).await?;
            let (sink, stream) = connection.split();
            Ok((Requester::Plain(sink), Listener::Plain(stream)))
        }
        _ => {
            let (sender, pushes) = unbounded_channel();
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None)
                .set_push_sender(sender);
            let connection = dial::connect(client, &config).await;
            let connection = connection.map_err(|error| dial::without_credentials(error, client))?;
            Ok((Requester::Resp3(kind, connection), Listener::Resp3(pushes)))
        }
    }
}

impl Requester {
    /// For a sharded channel only a refusal counts: that it is subscribed is [received](Received::Subscribed), in order with the end
    /// of its subscription.
    pub(super) async fn request(&mut self, request: ChannelRequest, channel: &str) -> RedisResult<()> {
        let (kind, connection) = match (self, request) {
            (Requester::Plain(sink), ChannelRequest::Subscribe) => return sink.subscribe(channel).await,
            (Requester::Plain(sink), ChannelRequest::Unsubscribe) => return sink.unsubscribe(channel).await,
            (Requester::Resp3(kind, connection), _) => (*kind, connection),
        };
        let (command, expected) = match (kind, request) {
            (ChannelKind::Plain, ChannelRequest::Subscribe) => ("SUBSCRIBE", PushKind::Subscribe),
            (ChannelKind::Plain, ChannelRequest::Unsubscribe) => ("UNSUBSCRIBE", PushKind::Unsubscribe),
            (ChannelKind::Sharded, ChannelRequest::Subscribe) => ("SSUBSCRIBE", PushKind::SSubscribe),
            (ChannelKind::Sharded, ChannelRequest::Unsubscribe) => ("SUNSUBSCRIBE", PushKind::SUnsubscribe),
        };
        match connection.send_packed_command(cmd(command).arg(channel)).await?.extract_error()? {
            Value::Push { kind, data } if kind == expected && text(data.first()) == channel => Ok(()),
            _ => Err(out_of_order()),
        }
    }

    /// Logs in again.
    pub(super) async fn log_in(&mut self, auth: &Cmd) -> RedisResult<Value> {
        match self {
            // Without a provider of credentials.
            Requester::Plain(_) => Ok(Value::Okay),
            Requester::Resp3(_, connection) => connection.send_packed_command(auth).await,
        }
    }

    pub(super) async fn ping(&mut self) -> RedisResult<()> {
        match self {
            Requester::Plain(sink) => sink.ping::<Value>().await.map(drop),
            Requester::Resp3(_, connection) => {
                match connection.send_packed_command(&cmd("PING")).await?.extract_error()? {
                    Value::Push { .. } => Err(out_of_order()),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// First a request is sent. Then the server ends another subscription, since its slot has moved. The redis crate takes that for the
/// answer, and the answer for that to the next request.
fn out_of_order() -> RedisError {
    (ErrorKind::Parse, "a subscription ended while a request was under way").into()
}

impl Listener {
    /// `None`: the connection is lost.
    pub(super) async fn next(&mut self) -> Option<Received> {
        match self {
            Listener::Plain(stream) => {
                poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await.map(Received::Message)
            }
            Listener::Resp3(pushes) => loop {
                let push = pushes.recv().await?;
                match push.kind {
                    PushKind::Disconnection => return None,
                    PushKind::SSubscribe => return Some(Received::Subscribed(text(push.data.first()))),
                    PushKind::SUnsubscribe => return Some(Received::Unsubscribed(text(push.data.first()))),
                    _ => {}
                }
                if let Some(message) = Msg::from_push_info(push) {
                    return Some(Received::Message(message));
                }
            },
        }
    }
}

fn text(value: Option<&Value>) -> String {
    value.and_then(|value| redis::from_redis_value_ref(value).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
