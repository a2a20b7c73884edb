use tokio::net::TcpListener;

use super::*;
use crate::backend::testing::{TestServer, Told, Watcher};

fn site(url: &str) -> Endpoint {
    let client = redis::Client::open(format!("{url}?protocol=resp3")).unwrap();
    Endpoint { client, address: url.into(), gate: None }
}

/// The line of commands, with a connection of that number.
async fn commands(server: &TestServer, id: u64) -> Arc<Line> {
    let line = Line {
        state: watch::Sender::new(State::Down { attempt: 0, failed: None }),
        address: "host:1".into(),
        vitals: Arc::default(),
        main: None,
    };
    let line = Arc::new(line);
    stands(&line, server, id).await;
    line
}

async fn stands(line: &Line, server: &TestServer, id: u64) {
    let connection = server.admin().await;
    let link = Link { connection, id, signs: Arc::default(), beside: None, run: None };
    line.state.send_replace(State::Up(link));
}

#[tokio::test]
async fn an_attempt_ends_when_its_server_is_no_longer_the_one() {
    let (frozen, other) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), TestServer::start(&[]).await);
    let address = format!("redis://{}/", frozen.local_addr().unwrap());
    let (target, targets) = watch::channel(Some(site(&address)));
    let main = commands(&other, 1).await;
    let (mut told, hour) = (Watcher::new(), Duration::from_secs(3600));
    let keeper = Reconnector::new(
        Source::beside(main.clone(), targets),
        "host:1".into(),
        Purpose::default(),
        told.events(),
        hour,
    );
    let (line, mut turned) = (keeper.line(), keeper.turned.subscribe());
    tokio::spawn(keeper.run());
    // The attempt is under way, and nobody answers.
    let _connection = frozen.accept().await.unwrap();
    target.send_replace(Some(site(&other.url(""))));
    stands(&main, &other, 2).await;
    turned.changed().await.unwrap();
    assert_eq!(told.next().await, Told::Reconnected);
    let mut link = line.link(Instant::now()).await.unwrap();
    let port = link.send_whenever(redis::cmd("CONFIG").arg("GET").arg("port")).await.unwrap();
    assert!(other.url("").contains(&redis::from_redis_value::<Vec<(String, String)>>(port).unwrap()[0].1));
    line.close();
}
