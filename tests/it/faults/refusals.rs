//! Servers that answer, but refuse commands.

use std::time::Duration;

use nestlock::{Error, ErrorKind, Locks, Master};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{LONG, QUICK, tidy};
use crate::support::cluster::Cluster;
use crate::support::server::Server;
use crate::support::{self, PATIENCE, SECOND, builder, eventually, locks, soon};

/// Returns a `Locks` that soon gives up if it is refused.
async fn impatient(server: &Server) -> Locks {
    let options = builder(&server.url()).lease(LONG).node_timeout(5 * SECOND).unavailable_after(QUICK);
    options.connect().await.unwrap()
}

/// Makes all calls that send a command, and checks that the server refuses each with this error code.
async fn refused(locks: &Locks, word: &str) {
    let other = locks.mutex("other");
    let errors: [Error; 3] = [
        soon("try_lock", other.try_lock()).await.unwrap_err(),
        soon("lock", other.lock()).await.unwrap_err(),
        soon("within", other.lock().within(3 * SECOND)).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some("other")), "{error}");
        assert!(error.to_string().contains(word) && error.to_string().contains("127.0.0.1:"), "{error}");
        // The error is that of the acquire, not that of the release which undoes it.
        assert!(error.to_string().contains("`acquire` on key `other`"), "{error}");
        let cause = std::error::Error::source(&error).expect("the refusal is the cause");
        assert!(cause.to_string().to_lowercase().contains(&word.to_lowercase()), "{cause}");
    }
}

/// Checks that each call that takes a lock is refused, and that the client can close although the server refuses its releases too: nothing
/// was written, so nothing has to be undone.
async fn closes_after_refusals(locks: Locks, word: &str) {
    let refused = |what: &str, error: Option<Error>| {
        let error = error.unwrap_or_else(|| panic!("{what} is granted"));
        assert!(error.to_string().contains(word), "{what}: {error}");
    };
    refused("try_lock", soon("try_lock", locks.mutex("one").try_lock()).await.err());
    refused("lock", soon("lock", locks.mutex("one").lock()).await.err());
    refused("a token", soon("a token", locks.mutex("two").fenced().try_lock()).await.err());
    refused("several", soon("several", locks.mutexes(["three", "four"]).try_lock()).await.err());
    soon("close", locks.close()).await.unwrap_or_else(|error| panic!("{word}: {error}"));
}

#[tokio::test]
async fn nothing_is_left_to_undo_after_a_refused_write() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    let locks = async || {
        let options = support::options(servers[0].url());
        options.unavailable_after(QUICK).connect().await.unwrap()
    };
    let quorum = async || {
        let options = support::quorum(servers.iter().map(|server| Master::server(server.url())));
        options.restart_delay(Duration::ZERO).unavailable_after(QUICK).connect().await.unwrap()
    };
    for (option, word) in [("min-replicas-to-write", "NOREPLICAS"), ("maxmemory", "OOM")] {
        for server in &servers {
            server.set(option, 1).await;
        }
        closes_after_refusals(locks().await, word).await;
        closes_after_refusals(quorum().await, word).await;
        for server in &servers {
            server.set(option, 0).await;
        }
    }
    // In these states the server refuses new connections too, so these connect beforehand.
    let (before, one_attempt) = (locks().await, locks().await);
    cannot_save(&servers[0]).await;
    closes_after_refusals(before, "MISCONF").await;
    servers[0].set("save", "").await;
    servers[0].ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = soon("try_lock", one_attempt.mutex("one").try_lock()).await.unwrap_err();
    assert!(error.to_string().contains("READONLY"), "{error}");
    soon("close", one_attempt.close()).await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_to_undo_after_a_refused_write_of_a_cluster() {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        node.set("min-replicas-to-write", 9).await;
    }
    let options = support::options(nestlock::Master::cluster(cluster.urls())).unavailable_after(QUICK);
    closes_after_refusals(options.connect().await.unwrap(), "NOREPLICAS").await;
}

#[tokio::test]
async fn a_full_server_grants_nothing_new_and_takes_releases() {
    let server = Server::start().await;
    let locks = impatient(&server).await;
    let stock = locks.mutex("stock");
    let (outer, middle, inner) =
        (stock.lock().await.unwrap(), stock.lock().await.unwrap(), stock.lock().await.unwrap());
    server.set("maxmemory", 1).await;
    refused(&locks, "OOM").await;
    let count = async || server.ask::<String>(&["HGET", "stock", outer.hold_id()]).await;
    // These calls can't write the count now, so the client has to correct it later.
    inner.release().await.unwrap();
    drop(middle);
    outer.extend(2 * LONG).await.unwrap();
    server.set("maxmemory", 0).await;
    eventually("the settled count", async || count().await == "1").await;
    assert!(!outer.is_lost());
    let inner = stock.lock().await.unwrap();
    server.set("maxmemory", 1).await;
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_busy_script_is_waited_for_or_reported() {
    let server = Server::start().await;
    server.set("busy-reply-threshold", 20).await;
    let (locks, patient) = (impatient(&server).await, locks(&server.url()).await);
    let guard = locks.mutex("stock").lock().await.unwrap();
    let mut busy = server.admin().await;
    let busy = tokio::spawn(async move {
        let _ = redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut busy).await;
    });
    eventually("the busy script", async || {
        let answer = server.try_ask::<String>(&["GET", "any"]).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    refused(&locks, "BUSY").await;
    let waits = patient.mutex("third");
    let waits = tokio::spawn(async move { waits.lock().await });
    let error = soon("the release", guard.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // While the script runs, a new connection couldn't even set its name.
    kill_script(&server).await;
    soon("the script's end", busy).await.unwrap();
    soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_for_or_reported() {
    let server = Server::start().await;
    let options =
        builder(&server.url()).lease(LONG).node_timeout(Duration::from_secs(5)).unavailable_after(QUICK);
    let locks = options.connect().await.unwrap();
    let patient = builder(&server.url()).unavailable_after(PATIENCE).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    // This makes the server load for six seconds, during which it answers now and then.
    server.ask::<()>(&["DEBUG", "POPULATE", "6000"]).await;
    server.set("key-load-delay", 1_000).await;
    server.set("loading-process-events-interval-bytes", 1_024).await;
    let mut loading = server.admin().await;
    let loading =
        tokio::spawn(async move { redis::cmd("DEBUG").arg("RELOAD").exec_async(&mut loading).await });
    eventually("the loading", async || {
        let answer = server.try_ask::<Option<String>>(&["GET", "any"]).await;
        answer.is_err_and(|error| error.code() == Some("LOADING"))
    })
    .await;
    let waits = patient.mutex("third");
    let waits = tokio::spawn(async move { waits.lock().await });
    let error = soon("try_lock", locks.mutex("other").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("LOADING"), "{error}");
    soon("the data", loading).await.unwrap().unwrap();
    soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert!(!server.ask::<bool>(&["EXISTS", "stock"]).await);
}

async fn kill_script(server: &Server) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut raw = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    raw.write_all(b"SCRIPT KILL\r\n").await.unwrap();
    let mut answer = [0; 64];
    let read = soon("the answer", raw.read(&mut answer)).await.unwrap();
    assert!(answer[..read].starts_with(b"+OK"));
}

#[tokio::test]
async fn a_replica_refuses_and_is_ridden_over_once_it_is_a_master_again() {
    let server = Server::start().await;
    let locks = impatient(&server).await;
    // The release below takes two node timeouts of `locks` to fail, all of which this one waits.
    let patient = builder(&server.url()).unavailable_after(LONG).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = soon("try_lock", locks.mutex("other").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("READONLY"), "{error}");
    // After this refusal the name of the server is resolved again, so the next request may come between two connections.
    let error = soon("lock", locks.mutex("other").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waits = patient.mutex("third");
    let waits = tokio::spawn(async move { waits.lock().await });
    let error = soon("the release", guard.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    tidy(&server).await;
}

/// Makes the server unable to save, until its option `save` is empty.
async fn cannot_save(server: &Server) {
    // A directory that has the name of the file makes each save fail.
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    std::fs::write(server.dir().join("dump.rdb").join("file"), "").unwrap();
    server.set("save", "3600 1").await;
    server.ask::<()>(&["SET", "a", "1"]).await;
    server.ask::<()>(&["BGSAVE"]).await;
    eventually("the failed save", async || {
        server.info("persistence").await["rdb_last_bgsave_status"] == "err"
    })
    .await;
}

#[tokio::test]
async fn a_server_that_cannot_save_refuses() {
    let server = Server::start().await;
    let locks = impatient(&server).await;
    cannot_save(&server).await;
    refused(&locks, "MISCONF").await;
    server.set("save", "").await;
    soon("the lock", locks.mutex("stock").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn too_few_replicas_refuse() {
    let server = Server::start().await;
    let locks = impatient(&server).await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.set("min-replicas-to-write", 1).await;
    refused(&locks, "NOREPLICAS").await;
    // The first check sends a renewal, which is refused. The second check waits for the settle that follows the renewal.
    for _ in 0..2 {
        let error = soon("a check", guard.check()).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some("stock")), "{error}");
        assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    }
    server.set("min-replicas-to-write", 0).await;
    guard.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_paused_server_is_unavailable_and_what_it_runs_later_is_undone() {
    let server = Server::start().await;
    let options = builder(&server.url()).lease(LONG).node_timeout(QUICK).unavailable_after(QUICK);
    let locks = options.connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.ask::<()>(&["CLIENT", "PAUSE", "8000", "ALL"]).await;
    let error = soon("try_lock", locks.mutex("other").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = soon("lock", locks.mutex("third").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(guard);
    tidy(&server).await;
}

#[tokio::test]
async fn a_server_that_takes_no_more_clients_is_unavailable_at_connect() {
    let server = Server::with(&["--maxclients", "8"]).await;
    let mut crowd = Vec::new();
    // Each connection gets an answer before the next one is made. A connection of the server's start may still take up a place, and then
    // one of the crowd would be turned away.
    eventually("a full house", async || {
        let mut one = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        let mut answer = [0; 5];
        if one.write_all(b"PING\r\n").await.is_ok()
            && one.read_exact(&mut answer).await.is_ok()
            && &answer == b"+PONG"
        {
            crowd.push(one);
        }
        crowd.len() == 8
    })
    .await;
    let error = soon("connect", builder(&server.url()).connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("max number of clients reached") && text.contains("127.0.0.1:"), "{text}");
    drop(crowd);
    eventually("a free place", async || builder(&server.url()).connect().await.is_ok()).await;
}
