//! Two copies of the service as processes, over one Redis server: they exclude each other, and a copy that
//! gets `SIGTERM` answers the requests under way and frees its locks. The test starts a server of its own, so
//! it needs `redis-server`.

// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../src/visitor.rs"]
#[allow(dead_code)]
mod visitor;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nestlock::{Locks, Owner};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::visitor::Visitor;

/// Far longer than anything here takes, and shorter than a lease.
const TOO_LONG: Duration = Duration::from_secs(20);

/// A process that ends with its test.
struct Started(Child);

impl Started {
    fn start(command: &mut Command) -> Started {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true).spawn();
        Started(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Asks the process to stop, like a service manager.
    async fn terminate(&self) {
        let id = self.0.id().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    }

    async fn ends_well(mut self) {
        let status = timeout(TOO_LONG, self.0.wait()).await.expect("it stops").unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Starts a Redis server, and returns its address.
async fn redis() -> (Started, SocketAddr) {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let server = Started::start(Command::new(program).args(arguments));
    let begun = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        assert!(begun.elapsed() < TOO_LONG, "redis-server does not start");
        sleep(Duration::from_millis(10)).await;
    }
    (server, address)
}

/// Waits until a process waits for a lock: it is then subscribed to the lock's releases.
async fn somebody_waits(redis: SocketAddr) {
    listeners(redis, true).await;
}

async fn nobody_waits(redis: SocketAddr) {
    listeners(redis, false).await;
}

async fn listeners(redis: SocketAddr, any: bool) {
    let begun = Instant::now();
    loop {
        let mut stream = BufReader::new(TcpStream::connect(redis).await.unwrap());
        stream.write_all(b"PUBSUB CHANNELS redisson_lock__channel:*\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        if (answer.trim() != "*0") == any {
            return;
        }
        assert!(begun.elapsed() < TOO_LONG, "subscriptions: {answer}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Starts a copy of the service, and returns its address.
async fn copy(redis: SocketAddr) -> (Started, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axum_service"));
    let mut copy = Started::start(command.arg("serve").env("REDIS_URL", format!("redis://{redis}")));
    let mut lines = BufReader::new(copy.0.stdout.take().expect("it is piped")).lines();
    let line = timeout(TOO_LONG, lines.next_line()).await.expect("it starts").unwrap().expect("it starts");
    let address = line.strip_prefix("serving on http://").expect("its address").parse().unwrap();
    // The rest of its output has to be read, or it would block.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (copy, address)
}

#[tokio::test]
async fn a_copy_that_is_stopped_answers_its_requests_and_frees_its_locks() {
    let (_server, redis) = redis().await;
    let ((one, first), (two, second)) = (copy(redis).await, copy(redis).await);
    let (mut at_one, mut at_two) =
        (Visitor::connect(first).await.unwrap(), Visitor::connect(second).await.unwrap());
    at_two.expect("PUT", "/lamp", "2", 200).await.unwrap();

    // One copy has locked the item. A request to the other copy waits, and is asked to come back later.
    at_two.expect("POST", "/lamp/stocktaking", "", 201).await.unwrap();
    at_one.expect("POST", "/lamp/sell", "", 423).await.unwrap();
    at_one.expect("POST", "/chair/stocktaking", "", 201).await.unwrap();

    // The first copy gets `SIGTERM` while one of its requests waits, which is answered all the same.
    let mut waiting = Visitor::connect(first).await.unwrap();
    nobody_waits(redis).await;
    waiting.send("POST", "/lamp/sell", "").await.unwrap();
    somebody_waits(redis).await;
    one.terminate().await;
    assert_eq!(waiting.receive().await.unwrap().0, 423);
    one.ends_well().await;

    // Its locks are free at once, not a lease later.
    let begun = Instant::now();
    at_two.expect("PUT", "/chair", "1", 200).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    // The second one has a stocktaking under way when it stops.
    two.terminate().await;
    two.ends_well().await;
    let locks = Locks::connect(format!("redis://{redis}")).await.unwrap();
    let free = locks.mutex("lamp").try_lock().owner(&Owner::new()).await.unwrap();
    assert!(free.is_some(), "it is still locked");
}
