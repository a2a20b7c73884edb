use std::pin::pin;

use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::*;
use crate::backend::Backend;
use crate::backend::server::server::RedisServer;
use crate::backend::testing::{ALONE, EventRecorder, TestServer, until};
use crate::base::{Drift, Lease};
use crate::wire::Action;

const LONG: Duration = Duration::from_secs(30);

/// The server has no replica: each `WAIT` runs into its timeout.
async fn connected(server: &TestServer, role: Role) -> Arc<RedisServer> {
    waiting_for(server, role, Duration::from_secs(2)).await
}

async fn waiting_for(server: &TestServer, role: Role, wait: Duration) -> Arc<RedisServer> {
    let replicas = Some(Replicas { count: 1, wait });
    let (role, events) = (Role { replicas, ..role }, EventRecorder::new());
    RedisServer::connect(&server.url("").into(), role, Duration::from_secs(10), events.sender())
        .await
        .unwrap()
        .0
}

fn acquire(name: &str) -> Call {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    Call::of(name, &format!("me:{name}"), Action::Acquire { count: 1, lease })
}

fn end(name: &str) -> Call {
    Call::of(name, &format!("me:{name}"), Action::END)
}

async fn exists(server: &TestServer, name: &str) -> bool {
    server.command(&format!("EXISTS {name}")).await == Value::Int(1)
}

/// With several masters the others may have granted the lock, and it may be released while its acquire is queued here.
#[tokio::test]
async fn a_queued_acquire_is_not_sent_after_the_release_of_its_hold() {
    let server = TestServer::start(&[]).await;
    let backend = connected(&server, Role { alone: false, ..ALONE }).await;
    let one = tokio::spawn(backend.clone().run(acquire("one")));
    until(async || exists(&server, "one").await).await;
    let mut two = pin!(backend.clone().run(acquire("two")));
    assert!(timeout(Duration::from_millis(1), two.as_mut()).await.is_err());
    assert_eq!(backend.run(end("two")).await.unwrap(), Reply::Gone);
    assert_eq!(two.await.unwrap_err().outcome, Outcome::NotRun);
    one.await.unwrap().unwrap_err();
    assert!(!exists(&server, "two").await);
}

/// Queued behind one that replicas do not acknowledge.
#[tokio::test]
async fn of_queued_acquires_the_one_that_is_dropped_is_removed_and_no_other() {
    let server = TestServer::start(&[]).await;
    let backend = waiting_for(&server, ALONE, LONG).await;
    let shared = &backend.acks().shared;
    let queued = || {
        let queue = lock(&shared.queue);
        queue.waiting.iter().map(|queued_acquire| queued_acquire.call.key().to_string()).collect::<Vec<_>>()
    };
    let one = tokio::spawn(backend.clone().run(acquire("one")));
    until(async || exists(&server, "one").await).await;
    let two = tokio::spawn(backend.clone().run(acquire("two")));
    until(async || queued() == ["two"]).await;
    let three = tokio::spawn(backend.clone().run(acquire("three")));
    until(async || queued() == ["two", "three"]).await;
    two.abort();
    assert!(two.await.unwrap_err().is_cancelled());
    assert_eq!(queued(), ["three"]);
    one.abort();
    three.abort();
}

#[test]
fn queued_acquires_fail_when_the_runtime_of_the_connection_ends() {
    let (theirs, ours) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (server, backend) = theirs.block_on(async {
        let server = TestServer::start(&[]).await;
        let backend = connected(&server, ALONE).await;
        (server, backend)
    });
    ours.block_on(async {
        let one = tokio::spawn(backend.clone().run(acquire("one")));
        until(async || exists(&server, "one").await).await;
        let two = tokio::spawn(backend.clone().run(acquire("two")));
        until(async || !lock(&backend.acks().shared.queue).waiting.is_empty()).await;
        theirs.shutdown_background();
        for waiting in [one, two, tokio::spawn(backend.clone().run(acquire("three")))] {
            timeout(LONG, waiting).await.expect("it waits for ever").unwrap().unwrap_err();
        }
    });
}
