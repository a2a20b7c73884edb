use futures::FutureExt;

use super::*;
use crate::backend::testing::fakes::{FakeServer, usual};

fn push(kind: PushKind, texts: &[&str]) -> PushInfo {
    let data = texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect();
    PushInfo { kind, data }
}

/// As it is sent.
fn sent(kind: &str, channel: &str) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n", kind.len(), channel.len())
}

#[tokio::test]
async fn what_a_server_sends_to_a_sharded_subscriber_is_received_in_its_order_until_the_connection_is_lost() {
    let (sender, pushes) = unbounded_channel();
    let mut listener = Listener::Resp3(pushes);
    for info in [
        push(PushKind::SSubscribe, &["c"]),
        push(PushKind::Invalidate, &[]),
        push(PushKind::SMessage, &["c", "0"]),
        push(PushKind::SUnsubscribe, &["c"]),
    ] {
        sender.send(info).unwrap();
    }
    assert!(matches!(listener.next().await, Some(Received::Subscribed(channel)) if channel == "c"));
    assert!(
        matches!(listener.next().await, Some(Received::Message(message)) if message.get_channel_name() == "c")
    );
    assert!(matches!(listener.next().await, Some(Received::Unsubscribed(channel)) if channel == "c"));
    assert!(listener.next().now_or_never().is_none());
    sender.send(push(PushKind::Disconnection, &[])).unwrap();
    assert!(matches!(listener.next().now_or_never(), Some(None)));
}

/// In this order: 1. A request is sent. 2. The slot of another channel moves, and the server ends that subscription. 3. It answers.
#[tokio::test]
async fn the_end_of_another_subscription_is_no_answer() {
    let server = FakeServer::start("a", usual);
    let client = Client::open("redis://a:1/?protocol=resp3").unwrap();
    let (mut requester, _listener) = open(&client, ChannelKind::Sharded, false).await.unwrap();
    for (request, kind, channel, is_answer) in [
        (ChannelRequest::Subscribe, "ssubscribe", "c", true),
        (ChannelRequest::Subscribe, "ssubscribe", "d", false),
        (ChannelRequest::Subscribe, "sunsubscribe", "c", false),
        (ChannelRequest::Unsubscribe, "sunsubscribe", "c", true),
        (ChannelRequest::Unsubscribe, "sunsubscribe", "d", false),
    ] {
        server.answers(move |_| Some(sent(kind, channel)));
        let answer = requester.request(request, "c").await;
        assert_eq!(answer.is_ok(), is_answer, "{request:?}: {kind} {channel}: {answer:?}");
    }
    for (answer, is_answer) in [("+PONG\r\n".to_owned(), true), (sent("sunsubscribe", "c"), false)] {
        server.answers(move |_| Some(answer.clone()));
        assert_eq!(requester.ping().await.is_ok(), is_answer);
    }
    server.answers(|_| Some("-NOPERM no\r\n".to_owned()));
    requester.request(ChannelRequest::Subscribe, "c").await.unwrap_err();
    requester.ping().await.unwrap_err();
}
