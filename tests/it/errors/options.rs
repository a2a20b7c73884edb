//! Options at their limits: nothing panics, and an option that can't work is reported before a command is sent.

use std::time::Duration;

use nestlock::{ErrorKind, Locks};

use super::is;
use crate::support::server::Server;
use crate::support::{builder, locks};

#[tokio::test]
async fn options_that_cannot_work_are_rejected_at_connect_and_nothing_is_sent() {
    let server = Server::start().await;
    let rejected = [
        ("lease", builder(&server.url()).lease(Duration::ZERO)),
        ("lease", builder(&server.url()).lease(Duration::from_millis(1))),
        ("lease", builder(&server.url()).lease(Duration::MAX)),
        ("lease", builder(&server.url()).drift(0.1, Duration::MAX)),
        ("drift", builder(&server.url()).drift(f64::NAN, Duration::ZERO)),
        ("drift", builder(&server.url()).drift(1.0, Duration::ZERO)),
        ("node_timeout", builder(&server.url()).node_timeout(Duration::ZERO)),
        ("poll_interval", builder(&server.url()).poll_interval(Duration::ZERO)),
        #[allow(clippy::reversed_empty_ranges)]
        ("retry_delay", builder(&server.url()).retry_delay(Duration::MAX..=Duration::ZERO)),
        ("prefix", builder(&server.url()).prefix("x".repeat(1_025))),
        ("prefix", builder(&server.url()).prefix("}")),
        ("more than once", Locks::quorum([server.url(), server.url()])),
        ("no master", Locks::quorum([] as [&str; 0])),
    ];
    for (option, rejected) in rejected {
        is(&rejected.connect().await.unwrap_err(), ErrorKind::Config, None, &[option]);
    }
    let info = server.info("stats").await;
    assert!(info["total_connections_received"].parse::<u64>().unwrap() < 10, "not only the test's own");
}

#[tokio::test]
async fn addresses_that_cannot_be_used_are_rejected() {
    for url in
        ["", "localhost", "http://localhost", "redis://", "redis://localhost:port", "redis://localhost/db"]
    {
        is(
            &Locks::connect(url).await.unwrap_err(),
            ErrorKind::Config,
            None,
            &["redis://user:password@host:port"],
        );
    }
    for (url, words) in [
        ("localhost:6379", "does not begin with redis://"),
        ("http://localhost", "does not begin with redis://"),
        ("redis-sentinel://localhost/mymaster", "`Master::sentinel`"),
        ("redis://localhost:99999", "port is not a number up to 65535"),
        ("redis://user:pass/word@localhost", "`%2F` for a `/`"),
    ] {
        is(&Locks::connect(url).await.unwrap_err(), ErrorKind::Config, None, &[words]);
    }
    for host in ["", "redis://localhost", "a b"] {
        assert_eq!(Locks::connect((host, 6379)).await.unwrap_err().kind(), ErrorKind::Config);
    }
    assert_eq!(Locks::connect(("localhost", 0)).await.unwrap_err().kind(), ErrorKind::Config);
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
#[tokio::test]
async fn tls_without_its_feature_names_the_features() {
    let error = Locks::connect("rediss://user:hidden@localhost").await.unwrap_err();
    is(&error, ErrorKind::Config, None, &["TLS", "`tls-rustls`", "`tls-native-tls`"]);
    assert!(!super::everything(&error).contains("hidden"));
}

#[tokio::test]
async fn leases_that_cannot_work_are_rejected_and_harm_nothing() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let until = guard.valid_until();
    server.reset_commands_run().await;
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(2), Duration::MAX] {
        let text = format!("{lease:?}");
        let other = locks.mutex("other");
        for error in [
            other.lock().fixed_lease(lease).await.unwrap_err(),
            other.try_lock().fixed_lease(lease).await.unwrap_err(),
            other.lock().fixed_lease(lease).run(async |_| {}).await.unwrap_err(),
        ] {
            is(&error, ErrorKind::Config, Some("other"), &["fixed_lease", &text]);
        }
        let error = guard.extend(lease).await.unwrap_err();
        is(&error, ErrorKind::Config, Some("stock"), &["extend", &text]);
    }
    let run = server.commands_run().await;
    assert!(!run.keys().any(|command| command.starts_with("eval")), "{run:?}");
    assert!(guard.valid_until() >= until && !guard.is_lost());
    guard.release().await.unwrap();
}

#[cfg(feature = "redis-1")]
#[tokio::test]
async fn a_client_of_the_redis_crate_is_a_server() {
    let server = Server::with(&["--requirepass", "hidden"]).await;
    let client = redis::Client::open(format!("redis://:hidden@127.0.0.1:{}/2", server.port())).unwrap();
    let info = client.get_connection_info().clone();
    for locks in [
        Locks::connect(&client).await.unwrap(),
        Locks::connect(client.clone()).await.unwrap(),
        Locks::connect(&info).await.unwrap(),
        Locks::connect(info.clone()).await.unwrap(),
    ] {
        assert!(!format!("{locks:?}").contains("hidden"));
        let guard = locks.mutex("stock").lock().await.unwrap();
        let databases = server.info("keyspace").await;
        assert!(databases.contains_key("db2"), "{databases:?}");
        guard.release().await.unwrap();
    }
}
