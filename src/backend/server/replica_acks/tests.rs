use std::pin::pin;

use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::*;
use crate::backend::Backend;
use crate::backend::server::server::{RedisServer, Role};
use crate::backend::testing::{ALONE, TestServer, Watcher, until};
use crate::base::{Drift, Lease};

const LONG: Duration = Duration::from_secs(30);

/// The server has no replica: each `WAIT` lasts.
async fn connected(server: &TestServer, role: Role) -> Arc<RedisServer> {
    let replicas = Some(Replicas { count: 1, wait: Duration::from_secs(2) });
    let (role, told) = (Role { replicas, ..role }, Watcher::new());
    RedisServer::connect(&server.url("").into(), role, Duration::from_secs(10), told.events())
        .await
        .unwrap()
        .0
}

fn acquire(name: &str) -> Call {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    Call::Acquire { key: name.into(), field: format!("me:{name}").into(), count: 1, lease, fence: None }
}

fn end(name: &str) -> Call {
    let field = format!("me:{name}").into();
    Call::Release { key: name.into(), channel: "channel".into(), field, count: 0 }
}

async fn exists(server: &TestServer, name: &str) -> bool {
    server.command(&format!("EXISTS {name}")).await == Value::Int(1)
}

/// Of several masters the others may have granted it: then it is released while it waits here.
#[tokio::test]
async fn an_end_is_not_overtaken_by_its_acquire_that_waits_for_others() {
    let server = TestServer::start(&[]).await;
    let single = connected(&server, Role { alone: false, ..ALONE }).await;
    let one = tokio::spawn(single.clone().run(acquire("one")));
    until(async || exists(&server, "one").await).await;
    let mut two = pin!(single.clone().run(acquire("two")));
    assert!(timeout(Duration::from_millis(1), two.as_mut()).await.is_err());
    assert_eq!(single.run(end("two")).await.unwrap(), Reply::Gone);
    assert_eq!(two.await.unwrap_err().outcome, Outcome::NotRun);
    one.await.unwrap().unwrap_err();
    assert!(!exists(&server, "two").await);
}

#[test]
fn who_waits_is_answered_when_the_runtime_of_the_connection_ends() {
    let (theirs, ours) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (server, single) = theirs.block_on(async {
        let server = TestServer::start(&[]).await;
        let single = connected(&server, ALONE).await;
        (server, single)
    });
    ours.block_on(async {
        let one = tokio::spawn(single.clone().run(acquire("one")));
        until(async || exists(&server, "one").await).await;
        let two = tokio::spawn(single.clone().run(acquire("two")));
        until(async || !lock(&single.grants().desk.counter).waiting.is_empty()).await;
        theirs.shutdown_background();
        for waits in [one, two, tokio::spawn(single.clone().run(acquire("three")))] {
            timeout(LONG, waits).await.expect("it waits for ever").unwrap().unwrap_err();
        }
    });
}
