use std::collections::HashSet;

use super::*;
use crate::backend::Backend;
use crate::backend::connection::Endpoint;
use crate::backend::server::RedisServer;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::backend::testing::{ALONE, Event, EventRecorder, TestServer, until};
use crate::base::telemetry::testing::Recorder;
use crate::config::Server;

const LONG: Duration = Duration::from_secs(10);

async fn connected(
    server: &TestServer,
    credentials: &str,
    limit: Duration,
) -> (Arc<RedisServer>, EventRecorder) {
    let events = EventRecorder::new();
    let backend =
        RedisServer::connect(&server.url(credentials).into(), ALONE, limit, events.sender()).await.unwrap().0;
    (backend, events)
}

fn subscribed(channel: &str) -> Event {
    Event::Subscribed(channel.into())
}

#[tokio::test]
async fn a_message_after_the_confirmation_is_delivered() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    server.command("PUBLISH c 0").await;
    assert_eq!(events.next().await, Event::Message("c".into()));
}

#[tokio::test]
async fn many_channels_are_each_confirmed() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    let channels: HashSet<String> = (0..2000).map(|at| format!("c{at}")).collect();
    channels.iter().for_each(|channel| backend.subscribe(channel));
    let mut confirmed = HashSet::new();
    while confirmed.len() < channels.len() {
        let Event::Subscribed(channel) = events.next().await else { panic!() };
        assert!(confirmed.insert(channel));
    }
    assert_eq!(confirmed, channels);
    server.command("PUBLISH c1999 0").await;
    assert_eq!(events.next().await, Event::Message("c1999".into()));
}

#[tokio::test]
async fn a_denied_channel_is_reported_and_confirmed_once_it_is_allowed() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~* +@all resetchannels &good").await;
    let (backend, mut events) = connected(&server, "bob:pw@", LONG).await;
    backend.subscribe("good");
    backend.subscribe("bad");
    let both = [events.next().await, events.next().await];
    assert!(
        both.contains(&subscribed("good")) && both.contains(&Event::NotSubscribed("bad".into())),
        "{both:?}"
    );
    server.command("ACL SETUSER bob &bad").await;
    until(async || events.next().await == subscribed("bad")).await;
    server.command("PUBLISH bad 0").await;
    assert_eq!(events.next().await, Event::Message("bad".into()));
}

#[tokio::test]
async fn lost_subscriptions_are_reported_and_restored() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    for _ in 0..3 {
        server.command("CLIENT KILL TYPE pubsub").await;
        assert_eq!(events.next().await, Event::SubscriptionsLost);
        assert_eq!(events.next().await, subscribed("c"));
        server.command("PUBLISH c 0").await;
        assert_eq!(events.next().await, Event::Message("c".into()));
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_logged_once_and_subscribed_to_after_its_restart() {
    let log = Recorder::start();
    let mut server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    server.kill();
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    server.restart().await;
    let mut seen = Vec::new();
    while !(seen.contains(&subscribed("c")) && seen.contains(&Event::Reconnected)) {
        seen.push(events.next().await);
    }
    // Only a subscription that was made before the connection for commands is lost once more: it may be at
    // another server.
    assert!(!seen.contains(&Event::NotSubscribed("c".into())), "{seen:?}");
    // The log reports the loss once as well, whatever the number of attempts. The connections for commands
    // and for messages log different texts.
    let lost = log.count("connection to Redis lost, reconnecting");
    assert!(lost > 0 && log.count("subscriber connection to Redis lost") > 0);
    until(async || log.count("reconnected to Redis") == lost).await;
}

/// Answers like a server that accepts no more clients.
fn full(_: &[&str]) -> Option<String> {
    Some("-ERR max number of clients reached\r\n".to_owned())
}

/// Otherwise all that wait while a server restarts would take themselves for processes that may not subscribe.
#[tokio::test(start_paused = true)]
async fn no_subscription_is_reported_as_failed_while_the_server_is_away() {
    let server = FakeServer::start("a", usual);
    let mut events = EventRecorder::new();
    let backend = RedisServer::connect(&("a", 1).into(), ALONE, LONG, events.sender()).await.unwrap().0;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    server.answers(full);
    server.hang_up();
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    sleep(LONG).await;
    events.expect_none();
    server.answers(usual);
    while match events.next().await {
        Event::Reconnected => false,
        Event::NotSubscribed(_) => panic!("reported"),
        _ => true,
    } {}
    // The pause between attempts does not delay the one that follows the connection for commands.
    let at = Instant::now();
    while events.next().await != subscribed("c") {}
    assert_eq!(at.elapsed(), Duration::ZERO);
}

/// A waiter would sleep without a limit, since it would not know that it gets no messages.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_can_not_be_made_while_commands_are_answered_is_reported_once() {
    let server = FakeServer::start("a", usual);
    let mut events = EventRecorder::new();
    let backend = RedisServer::connect(&("a", 1).into(), ALONE, LONG, events.sender()).await.unwrap().0;
    server.answers(full);
    backend.subscribe("c");
    assert_eq!(events.next().await, Event::NotSubscribed("c".into()));
    sleep(LONG).await;
    events.expect_none();
    assert!(backend.slot().is_up());
    server.answers(usual);
    assert_eq!(events.next().await, subscribed("c"));
}

#[tokio::test]
async fn a_dead_connection_without_an_error_is_detected() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", Duration::from_secs(1)).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    server.signal("STOP");
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    server.signal("CONT");
    until(async || events.next().await == subscribed("c")).await;
}

#[tokio::test]
async fn a_lingering_channel_is_confirmed_without_a_request() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    for _ in 0..10 {
        backend.unsubscribe("c");
        backend.subscribe("c");
        assert_eq!(events.next().await, subscribed("c"));
    }
    assert_eq!((server.count("subscribe").await, server.count("unsubscribe").await), (1, 0));
}

#[tokio::test]
async fn a_channel_that_is_not_wanted_is_unsubscribed_and_then_the_connection_closed() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    assert_eq!(server.clients().await, 3);
    backend.unsubscribe("c");
    server.command("PUBLISH c 0").await;
    until(async || server.count("unsubscribe").await == 1).await;
    until(async || server.clients().await == 2).await;
    events.expect_none();
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
}

#[tokio::test]
async fn a_connection_is_pinged_where_it_was_quiet_and_not_more_often() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, "", LONG).await;
    backend.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    server.command("CONFIG RESETSTAT").await;
    let begun = Instant::now();
    for _ in 0..20 {
        server.command("PUBLISH c 0").await;
        assert_eq!(events.next().await, Event::Message("c".into()));
    }
    let most = begun.elapsed().as_secs() / QUIET.as_secs() + 1;
    assert!(server.count("ping").await <= most);
    until(async || server.count("ping").await > 0).await;
}

/// The task that has chosen another server knows of the replacement.
#[tokio::test]
async fn a_connection_that_is_lost_is_counted_and_one_that_is_replaced_is_not() {
    let server = TestServer::start(&[]).await;
    let mut events = EventRecorder::new();
    let to =
        crate::config::Server::from(format!("{}/?protocol=resp3", server.url(""))).destination().unwrap();
    let target = watch::Sender::new(Some(Endpoint { to, address: "host:1".into(), gate: None, login: None }));
    let subscriber = Subscriber::start(
        ChannelKind::Plain,
        target.subscribe(),
        "host:1".into(),
        events.sender(),
        LONG,
        None,
    );
    let failures = subscriber.failures();
    subscriber.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    assert_eq!(*failures.borrow(), 0);
    server.command("CLIENT KILL TYPE pubsub").await;
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    assert_eq!(*failures.borrow(), 1);
    assert_eq!(events.next().await, subscribed("c"));
    target.send_modify(|_| ());
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    assert_eq!(events.next().await, subscribed("c"));
    assert_eq!(*failures.borrow(), 1);
    subscriber.close();
}

/// With a paused clock, a task that is woken again and again would stop the time.
#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_pinged_now_and_then_and_one_that_is_not_needed_is_closed() {
    let server = FakeServer::start("a", usual);
    let mut events = EventRecorder::new();
    let to = crate::config::Server::from("redis://a:1/?protocol=resp3").destination().unwrap();
    let (_target, target) =
        watch::channel(Some(Endpoint { to, address: "a:1".into(), gate: None, login: None }));
    let subscriber = Subscriber::start(ChannelKind::Plain, target, "a:1".into(), events.sender(), LONG, None);
    subscriber.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    sleep(QUIET * 21 / 2).await;
    assert_eq!(server.count("PING"), 10);
    subscriber.unsubscribe("c");
    sleep(10 * IDLE).await;
    let pings = server.count("PING");
    assert_eq!(server.count("UNSUBSCRIBE"), 1);
    sleep(10 * QUIET).await;
    assert_eq!(server.count("PING"), pings);
    events.expect_none();
    subscriber.subscribe("c");
    assert_eq!(events.next().await, subscribed("c"));
    assert_eq!(server.count("SUBSCRIBE"), 2);
    subscriber.close();
}

/// The slot of a sharded channel has moved, and its subscription with it. For a plain channel the user may
/// lack the right, so the command is sent again.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_subscription_that_is_refused_is_asked_for_again_except_for_a_sharded_channel() {
    for (kind, command) in [(ChannelKind::Plain, "UNSUBSCRIBE"), (ChannelKind::Sharded, "SUNSUBSCRIBE")] {
        let server = FakeServer::start("a", move |words| match words {
            ["SSUBSCRIBE", channel] => {
                Some(format!(">3\r\n$10\r\nssubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()))
            }
            ["UNSUBSCRIBE" | "SUNSUBSCRIBE", _] => Some("-NOPERM no\r\n".to_owned()),
            words => usual(words),
        });
        let mut events = EventRecorder::new();
        let to = crate::config::Server::from("redis://a:1/?protocol=resp3").destination().unwrap();
        let (_target, target) =
            watch::channel(Some(Endpoint { to, address: "a:1".into(), gate: None, login: None }));
        let subscriber = Subscriber::start(kind, target, "a:1".into(), events.sender(), LONG, None);
        for channel in ["c", "kept"] {
            subscriber.subscribe(channel);
            assert_eq!(events.next().await, subscribed(channel), "{kind:?}");
        }
        subscriber.unsubscribe("c");
        sleep(5 * IDLE).await;
        let asked = server.count(command);
        assert!(if kind == ChannelKind::Plain { asked > 2 } else { asked == 1 }, "{kind:?}: {asked}");
        events.expect_none();
        subscriber.close();
    }
}

/// The answers to many requests may together take longer than the limit. Only silence shows that a connection is dead.
#[tokio::test(start_paused = true)]
async fn a_request_is_given_up_only_if_nothing_is_answered_meanwhile() {
    let server = FakeServer::start("a", usual);
    let to = Server::from("redis://a:1/?protocol=resp3").destination().unwrap();
    let (requester, _listener) = listener::open(&to, ChannelKind::Plain).await.unwrap();
    server.answers(|_| None);
    let limit = Duration::from_secs(1);
    let asks = |channel: &str| {
        let request = (ChannelRequest::Subscribe, channel.into());
        tokio::spawn(answered(Some(request), requester.clone(), limit))
    };
    let (first, second, last) = (asks("c"), asks("d"), asks("e"));
    for (asked, channel) in [(first, "c"), (second, "d")] {
        sleep(limit * 6 / 10).await;
        server.send(&format!(">3\r\n$9\r\nsubscribe\r\n$1\r\n{channel}\r\n:1\r\n"));
        assert_eq!(asked.await.unwrap().1, Ok(None), "{channel}");
    }
    assert_eq!(last.await.unwrap().1, Err("no answer within 1s".to_owned()));
}
