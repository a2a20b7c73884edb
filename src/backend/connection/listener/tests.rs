use futures::FutureExt;

use super::*;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::config::Server;

fn push(kind: PushKind, texts: &[&str]) -> PushInfo {
    let data = texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect();
    PushInfo { kind, data }
}

/// Returns whether it is a push of this kind about this channel.
fn is_about(push: Option<PushInfo>, kind: PushKind, channel: &str) -> bool {
    push.is_some_and(|push| push.kind == kind && push.data[0] == Value::BulkString(channel.into()))
}

/// Returns a push in wire format.
fn sent(kind: &str, channel: &str) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n", kind.len(), channel.len())
}

#[tokio::test]
async fn what_aserver_sends_to_a_sharded_subscriber_is_received_in_its_order_until_the_connection_is_lost() {
    let (sender, pushes) = unbounded_channel();
    let mut listener = Listener(pushes);
    let sent = [
        push(PushKind::SSubscribe, &["c"]),
        push(PushKind::SMessage, &["c", "0"]),
        push(PushKind::SUnsubscribe, &["c"]),
    ];
    for info in sent.clone() {
        sender.send(info).unwrap();
    }
    for info in sent {
        assert_eq!(listener.next().await, Some(info));
    }
    assert!(listener.next().now_or_never().is_none());
    sender.send(push(PushKind::Disconnection, &[])).unwrap();
    assert!(matches!(listener.next().now_or_never(), Some(None)));
}

async fn connected(kind: ChannelKind) -> (Requester, Listener) {
    open(&Server::from("redis://a:1/?protocol=resp3").destination().unwrap(), kind).await.unwrap()
}

/// In this order: 1. A request is sent. 2. The slot of another channel moves, and the server ends that
/// subscription. 3. The server answers the request.
#[tokio::test]
async fn the_end_of_another_subscription_is_no_answer() {
    let server = FakeServer::start("a", usual);
    let (requester, mut listener) = connected(ChannelKind::Sharded).await;
    for (request, kind) in
        [(ChannelRequest::Subscribe, "ssubscribe"), (ChannelRequest::Unsubscribe, "sunsubscribe")]
    {
        server.answers(move |_| Some(sent("sunsubscribe", "d") + &sent(kind, "c")));
        requester.request(request, "c").await.unwrap();
        assert!(is_about(listener.next().await, PushKind::SUnsubscribe, "d"));
        assert!(listener.next().now_or_never().is_some());
        server.answers(move |_| Some(sent("sunsubscribe", "d") + "-NOPERM no\r\n"));
        requester.request(request, "c").await.unwrap_err();
        assert!(listener.next().now_or_never().is_some());
    }
    server.answers(|_| Some(sent("sunsubscribe", "c") + "+PONG\r\n"));
    requester.ping().await.unwrap();
    server.answers(|_| Some("-NOPERM no\r\n".to_owned()));
    requester.ping().await.unwrap_err();
    server.answers(|_| Some("+OK\r\n".to_owned()));
    requester.request(ChannelRequest::Subscribe, "c").await.unwrap_err();
}

/// Each answer goes to its own request, however many are in flight.
#[tokio::test]
async fn requests_that_are_sent_together_are_answered_each_by_its_own() {
    let refuses = |words: &[&str]| match words {
        [_, "refused"] => Some("-NOPERM no\r\n".to_owned()),
        words => usual(words),
    };
    let server = FakeServer::start("a", refuses);
    let (requester, mut listener) = connected(ChannelKind::Plain).await;
    let subscribe = |channel| requester.request(ChannelRequest::Subscribe, channel);
    let answers = futures::join!(subscribe("a"), subscribe("refused"), requester.ping(), subscribe("b"));
    assert!(matches!(answers, (Ok(()), Err(_), Ok(()), Ok(()))), "{answers:?}");
    server.publish("b", "0");
    for subscribed in ["a", "b"] {
        assert!(is_about(listener.next().await, PushKind::Subscribe, subscribed));
    }
    assert!(is_about(listener.next().await, PushKind::Message, "b"));
}
