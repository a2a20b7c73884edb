use std::collections::HashSet;

use super::*;
use crate::backend::Backend;
use crate::backend::server::RedisServer;
use crate::backend::testing::{ALONE, TestServer, Told, Watcher, until};

const LONG: Duration = Duration::from_secs(10);

async fn connected(server: &TestServer, credentials: &str, limit: Duration) -> (Arc<RedisServer>, Watcher) {
    let told = Watcher::new();
    let single =
        RedisServer::connect(&server.url(credentials).into(), ALONE, limit, told.events()).await.unwrap().0;
    (single, told)
}

fn subscribed(channel: &str) -> Told {
    Told::Subscribed(channel.into())
}

#[tokio::test]
async fn a_message_after_the_confirmation_is_delivered() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    server.command("PUBLISH c 0").await;
    assert_eq!(told.next().await, Told::Message("c".into()));
}

#[tokio::test]
async fn many_channels_are_each_confirmed() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    let channels: HashSet<String> = (0..2000).map(|at| format!("c{at}")).collect();
    channels.iter().for_each(|channel| single.subscribe(channel));
    let mut confirmed = HashSet::new();
    while confirmed.len() < channels.len() {
        let Told::Subscribed(channel) = told.next().await else { panic!() };
        assert!(confirmed.insert(channel));
    }
    assert_eq!(confirmed, channels);
    server.command("PUBLISH c1999 0").await;
    assert_eq!(told.next().await, Told::Message("c1999".into()));
}

#[tokio::test]
async fn a_denied_channel_is_told_and_confirmed_once_it_is_allowed() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~* +@all resetchannels &good").await;
    let (single, mut told) = connected(&server, "bob:pw@", LONG).await;
    single.subscribe("good");
    single.subscribe("bad");
    let both = [told.next().await, told.next().await];
    assert!(
        both.contains(&subscribed("good")) && both.contains(&Told::NotSubscribed("bad".into())),
        "{both:?}"
    );
    server.command("ACL SETUSER bob &bad").await;
    until(async || told.next().await == subscribed("bad")).await;
    server.command("PUBLISH bad 0").await;
    assert_eq!(told.next().await, Told::Message("bad".into()));
}

#[tokio::test]
async fn lost_subscriptions_are_told_and_made_again() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    for _ in 0..3 {
        server.command("CLIENT KILL TYPE pubsub").await;
        assert_eq!(told.next().await, Told::SubscriptionsLost);
        assert_eq!(told.next().await, subscribed("c"));
        server.command("PUBLISH c 0").await;
        assert_eq!(told.next().await, Told::Message("c".into()));
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_told_once_and_subscribed_to_when_it_is_back() {
    let mut server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    server.kill();
    assert_eq!(told.next().await, Told::SubscriptionsLost);
    assert_eq!(told.next().await, Told::NotSubscribed("c".into()));
    server.restart().await;
    let both = [told.next().await, told.next().await];
    assert!(both.contains(&subscribed("c")) && both.contains(&Told::Reconnected), "{both:?}");
}

#[tokio::test]
async fn a_connection_that_is_dead_without_a_word_is_found_out() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", Duration::from_secs(1)).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    server.signal("STOP");
    assert_eq!(told.next().await, Told::SubscriptionsLost);
    server.signal("CONT");
    until(async || told.next().await == subscribed("c")).await;
}

#[tokio::test]
async fn a_channel_that_lingers_is_confirmed_without_the_server() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    for _ in 0..10 {
        single.unsubscribe("c");
        single.subscribe("c");
        assert_eq!(told.next().await, subscribed("c"));
    }
    assert_eq!((server.count("subscribe").await, server.count("unsubscribe").await), (1, 0));
}

#[tokio::test]
async fn a_channel_that_nobody_wants_is_unsubscribed_and_then_the_connection_closed() {
    let server = TestServer::start(&[]).await;
    let (single, mut told) = connected(&server, "", LONG).await;
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
    assert_eq!(server.clients().await, 3);
    single.unsubscribe("c");
    server.command("PUBLISH c 0").await;
    until(async || server.count("unsubscribe").await == 1).await;
    until(async || server.clients().await == 2).await;
    told.nothing();
    single.subscribe("c");
    assert_eq!(told.next().await, subscribed("c"));
}
