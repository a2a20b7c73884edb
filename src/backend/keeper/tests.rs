use super::*;
use crate::backend::testing::{TestServer, Told, Watcher};

fn site(server: &TestServer) -> Site {
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url(""))).unwrap();
    Site { client, address: server.url("").into() }
}

#[tokio::test]
async fn an_attempt_ends_when_its_server_is_no_longer_the_one() {
    let (frozen, other) = (TestServer::start(&[]).await, TestServer::start(&[]).await);
    let (target, targets) = watch::channel(Some(site(&frozen)));
    let (mut told, hour) = (Watcher::new(), Duration::from_secs(3600));
    let keeper = Keeper::new(
        Source::beside(targets, "host".into()),
        "host:1".into(),
        Purpose::default(),
        told.events(),
        hour,
    );
    let (line, mut turned) = (keeper.line(), keeper.turned.subscribe());
    // The kernel takes the connection, and nobody answers.
    frozen.signal("STOP");
    tokio::spawn(keeper.run());
    tokio::task::yield_now().await;
    target.send_replace(Some(site(&other)));
    turned.changed().await.unwrap();
    assert_eq!(told.next().await, Told::Reconnected);
    let mut link = line.link(Instant::now()).await.unwrap();
    let port = link.send(redis::cmd("CONFIG").arg("GET").arg("port")).await.unwrap();
    assert!(other.url("").contains(&redis::from_redis_value::<Vec<(String, String)>>(port).unwrap()[0].1));
    frozen.signal("CONT");
    line.close();
}
