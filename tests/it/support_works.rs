//! Tests of the helpers that the other tests use.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use crate::support::cluster::Cluster;
use crate::support::process::Worker;
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{PATIENCE, eventually, is_running, log, scripts, soon};

async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(2 * PATIENCE));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Starts an `INCR` in its own task.
fn incr(connection: &MultiplexedConnection, key: &str) -> tokio::task::JoinHandle<RedisResult<i64>> {
    let (mut connection, cmd) = (connection.clone(), redis::cmd("INCR").arg(key).clone());
    tokio::spawn(async move { cmd.query_async(&mut connection).await })
}

#[tokio::test]
async fn a_server_ends_with_its_value_also_on_panic_and_when_frozen() {
    let server = Server::start().await;
    let pid = server.pid();
    assert!(is_running(pid));
    drop(server);
    assert!(!is_running(pid));

    let (pid_sender, pid_receiver) = tokio::sync::oneshot::channel();
    let panicking = tokio::spawn(async move {
        let server = Server::start().await;
        server.freeze();
        pid_sender.send(server.pid()).unwrap();
        panic!("as a failing test does");
    });
    let pid = pid_receiver.await.unwrap();
    assert!(panicking.await.unwrap_err().is_panic());
    assert!(!is_running(pid));
}

#[tokio::test]
async fn a_server_ends_when_its_test_is_killed() {
    let mut owner = Worker::start("server_owner", &[]);
    let pid = owner.line().await.parse().unwrap();
    let dir = owner.line().await;
    assert!(is_running(pid) && Path::new(&dir).exists());
    owner.kill();
    eventually("the server's end", async || !is_running(pid)).await;
    eventually("its directory's end", async || !Path::new(&dir).exists()).await;
}

#[tokio::test]
async fn a_restart_keeps_what_the_append_only_file_has() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let port = server.port();
    server.ask::<()>(&["SET", "a", "1"]).await;
    server.kill();
    assert!(connect(&server.url()).await.unwrap_err().is_connection_refusal());
    server.restart().await;
    assert_eq!((server.keys().await, server.port()), (vec!["a".to_owned()], port));
    server.restart_empty().await;
    assert!(server.keys().await.is_empty());

    let forgetful = Server::start().await;
    forgetful.ask::<()>(&["SET", "a", "1"]).await;
    forgetful.restart().await;
    assert!(forgetful.keys().await.is_empty());
}

#[tokio::test]
async fn a_server_reports_clients_channels_and_commands() {
    let server = Server::with(&["--requirepass", "secret"]).await;
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    let mut client = connect(&url).await.unwrap();
    let mut listener = redis::Client::open(&*url).unwrap().get_async_pubsub().await.unwrap();
    listener.subscribe("news").await.unwrap();
    assert_eq!((server.clients().await, server.channels().await), (2, vec!["news".to_owned()]));
    server.reset_commands_run().await;
    redis::cmd("INCR").arg("a").exec_async(&mut client).await.unwrap();
    assert_eq!(server.commands_run().await.get("incr"), Some(&1));
    drop((client, listener));
    eventually("the clients' end", async || server.clients().await == 0).await;
}

#[tokio::test]
async fn a_frozen_server_runs_commands_that_arrived_in_between_later() {
    let server = Server::start().await;
    let client = connect(&server.url()).await.unwrap();
    server.freeze();
    let answer = incr(&client, "a");
    tokio::task::yield_now().await;
    server.thaw();
    assert_eq!(soon("the answer", answer).await.unwrap(), Ok(1));
}

#[tokio::test]
async fn a_server_with_tls_shows_a_certificate_of_its_authority() {
    let server = Server::tls().await;
    let pem = std::fs::read_to_string(server.ca_file()).unwrap();
    assert!(pem.contains("BEGIN CERTIFICATE"));
    #[cfg(feature = "tls-rustls")]
    {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(pem.into_bytes()) };
        let client = redis::Client::build_with_tls(server.tls_url(), certificates).unwrap();
        let mut client = client.get_multiplexed_async_connection().await.unwrap();
        redis::cmd("PING").exec_async(&mut client).await.unwrap();
        assert!(connect(&server.tls_url()).await.is_err(), "no one else knows this authority");
    }
}

#[tokio::test]
async fn a_dropped_reply_is_of_a_command_that_ran() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let fault = proxy.on(|c| c.is("incr") && c.names("a")).skip(1).times(1).drop_reply_and_reset();
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(1));
    let lost = incr(&client, "a").await.unwrap();
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(fault.done().await.args, ["a"]);
    assert_eq!(server.ask::<i64>(&["GET", "a"]).await, 2);
    let client = connect(&proxy.url()).await.unwrap();
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(3));
}

#[tokio::test]
async fn after_a_dropped_reply_a_standing_connection_says_nothing_more() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let fault = proxy.on(|c| c.is("incr")).times(1).drop_reply();
    let first = incr(&client, "a");
    fault.done().await;
    let second = incr(&client, "b");
    eventually("the second command", async || server.keys().await == ["a", "b"]).await;
    assert!(!first.is_finished() && !second.is_finished());
    assert_eq!(proxy.connections(Which::Commands), 1);
    assert_eq!(proxy.reset(Which::All).await, 1);
    assert!(first.await.unwrap().is_err() && second.await.unwrap().is_err());
}

#[tokio::test]
async fn a_held_command_runs_when_it_is_let_through() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let hold = proxy.on(|c| c.is("incr")).times(1).hold();
    let (first, second) = (incr(&client, "a"), incr(&client, "a"));
    assert!(hold.seen().await.is("INCR") && hold.seen_now().is_none());
    assert!(server.keys().await.is_empty());
    assert_eq!(hold.let_through().await, [":1\r\n"]);
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(1), Ok(2)));
}

#[tokio::test]
async fn a_held_command_runs_also_after_its_client_is_gone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let url = format!("{}/3", proxy.url());
    let hold = proxy.on(|c| c.is("incr")).times(1).hold();
    let lost = incr(&connect(&url).await.unwrap(), "a");
    hold.seen().await;
    assert_eq!(proxy.reset(Which::All).await, 1);
    assert!(lost.await.unwrap().is_err());
    eventually("the server has no clients", async || server.clients().await == 0).await;
    let client = connect(&url).await.unwrap();
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(1));
    assert_eq!(hold.let_through().await, [":2\r\n"], "not in the database that its connection had chosen");
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(3));
}

#[tokio::test]
async fn a_held_command_that_is_forgotten_never_runs() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let hold = proxy.on(|c| c.is("incr")).hold();
    let lost = incr(&connect(&proxy.url()).await.unwrap(), "a");
    hold.seen().await;
    hold.forget();
    assert!(lost.await.unwrap().is_err());
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_half_open_connection_stays_open_and_silent() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let mut listener = redis::Client::open(proxy.url()).unwrap().get_async_pubsub().await.unwrap();
    listener.subscribe("news").await.unwrap();
    let mut messages = listener.on_message();
    server.ask::<()>(&["PUBLISH", "news", "1"]).await;
    assert_eq!(soon("a message", messages.next()).await.unwrap().get_payload_bytes(), b"1");

    let half_open = proxy.half_open(Which::Subscribers);
    assert_eq!(server.ask::<i64>(&["PUBLISH", "news", "2"]).await, 1);
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(1));
    let watch = proxy.on(|c| c.is("incr")).watch();
    let all = proxy.half_open(Which::All);
    let lost = incr(&client, "a");
    let other = tokio::spawn({
        let url = proxy.url();
        async move { connect(&url).await }
    });
    eventually("a third connection", async || proxy.connections(Which::All) == 3).await;
    drop((all, half_open));
    let client = connect(&proxy.url()).await.unwrap();
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(2));
    watch.seen().await;
    assert!(watch.seen_now().is_none(), "nothing came through a dead connection");
    assert!(!lost.is_finished() && !other.is_finished());
    assert!(futures::poll!(messages.next()).is_pending());
    proxy.close(Which::All).await;
    assert!(soon("the end of the stream", messages.next()).await.is_none());
    assert!(lost.await.unwrap().is_err() && other.await.unwrap().is_err());
}

#[tokio::test]
async fn a_confirmation_of_a_subscription_waits_and_messages_after_it_too() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let hold = proxy.on(|c| c.is("subscribe") && c.names("b")).hold_reply();
    let mut listener = redis::Client::open(proxy.url()).unwrap().get_async_pubsub().await.unwrap();
    listener.subscribe("a").await.unwrap();
    let (mut sink, mut messages) = listener.split();
    server.ask::<()>(&["PUBLISH", "a", "1"]).await;
    assert_eq!(soon("a message", messages.next()).await.unwrap().get_payload_bytes(), b"1");
    let subscribing = tokio::spawn(async move { sink.subscribe("b").await.map(|()| sink) });
    hold.done().await;
    assert_eq!(server.channels().await, ["a", "b"]);
    assert_eq!(server.ask::<i64>(&["PUBLISH", "a", "2"]).await, 1);
    assert!(!subscribing.is_finished());
    assert!(futures::poll!(messages.next()).is_pending());
    hold.let_through().await;
    let _sink = subscribing.await.unwrap().unwrap();
    assert_eq!(soon("a message", messages.next()).await.unwrap().get_payload_bytes(), b"2");
}

#[tokio::test]
async fn new_connections_are_refused_until_it_is_over() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let refusing = proxy.refuse().await;
    // A process that another test has just forked also has the socket, until it starts its program.
    let refused = async || connect(&proxy.url()).await.is_err_and(|error| error.is_connection_refusal());
    eventually("a refusal", refused).await;
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(1));
    drop(refusing);
    assert_eq!(incr(&connect(&proxy.url()).await.unwrap(), "a").await.unwrap(), Ok(2));
}

#[tokio::test]
async fn a_reply_can_be_late_and_a_command_can_be_lost() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let client = connect(&proxy.url()).await.unwrap();
    let late = proxy.on(|c| c.is("incr")).times(1).delay_reply(Duration::from_millis(100));
    let begun = Instant::now();
    assert_eq!(incr(&client, "a").await.unwrap(), Ok(1));
    assert!(begun.elapsed() >= Duration::from_millis(100));
    late.done().await;
    let _lost = proxy.on(|c| c.is("incr")).times(1).lose_and_reset();
    assert!(incr(&client, "a").await.unwrap().is_err());
    assert_eq!(server.ask::<i64>(&["GET", "a"]).await, 1);
}

#[tokio::test]
async fn a_script_is_known_by_its_hash_and_by_its_body() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let mut client = connect(&proxy.url()).await.unwrap();
    for script in scripts::all() {
        let watch = proxy.on(|c| c.is(script.name)).watch();
        for (command, text) in [("EVALSHA", &script.sha), ("EVAL", &script.body)] {
            let reply: RedisResult<redis::Value> = redis::cmd(command)
                .arg(text)
                .arg(1)
                .arg("key")
                .arg("argument")
                .query_async(&mut client)
                .await;
            assert!(!reply.is_err_and(|error| error.code() == Some("NOSCRIPT")), "it is loaded");
            let seen = watch.seen().await;
            assert_eq!((seen.script, &*seen.name), (Some(script.name), command));
            assert_eq!((seen.keys(), seen.argv()), (&["key".to_owned()][..], &["argument".to_owned()][..]));
        }
    }
}

#[tokio::test]
async fn a_script_that_is_not_loaded_uses_no_fault_up() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let mut client = connect(&proxy.url()).await.unwrap();
    let fault = proxy.on(|c| c.name.starts_with("EVAL")).times(1).drop_reply_and_reset();
    let script = redis::Script::new("return redis.call('INCR', KEYS[1])");
    let unknown = redis::cmd("EVALSHA").arg(script.get_hash()).arg(1).arg("a").exec_async(&mut client).await;
    assert_eq!(unknown.unwrap_err().code(), Some("NOSCRIPT"));
    server.ask::<()>(&["SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])"]).await;
    let lost = redis::cmd("EVALSHA").arg(script.get_hash()).arg(1).arg("a").exec_async(&mut client).await;
    assert!(lost.is_err());
    fault.done().await;
    assert_eq!(server.ask::<i64>(&["GET", "a"]).await, 1);
}

#[tokio::test]
async fn a_worker_talks_and_ends() {
    let mut worker = Worker::start("echo", &[("whom", "you")]);
    worker.expect("hello you").await;
    worker.freeze();
    worker.say("one");
    worker.thaw();
    worker.expect("one").await;
    worker.say("bye");
    assert!(worker.wait().await.success());

    let mut worker = Worker::start("echo", &[("whom", "you")]);
    worker.line().await;
    worker.freeze();
    assert_eq!(worker.kill().code(), Some(137));
    assert!(!is_running(worker.pid()) && worker.next_line().await.is_none());
}

#[tokio::test]
async fn the_log_has_recorded_events() {
    log::capture();
    let teller = tokio::spawn(async { tracing::warn!(lock = "the-log-has", took = 3, "late") });
    let event = log::recorded(|e| e.mentions("the-log-has")).await;
    assert_eq!((event.level, &*event.message, &*event.fields["took"]), (tracing::Level::WARN, "late", "3"));
    assert_eq!(log::all(|e| e.mentions("the-log-has")).len(), 1);
    assert!(log::find(|e| e.mentions("the-log-has-not")).is_none());
    teller.await.unwrap();
}

/// After a failover the former master has the keys of the new one, and moves none.
#[tokio::test]
async fn a_slot_moves_also_to_a_node_whose_replica_was_a_master() {
    let cluster = Cluster::start().await;
    let (failed_over, name) = (cluster.name_on(0, "stays").await, cluster.name_on(1, "moves").await);
    cluster.fail_over(3).await;
    for witness in [1, 2] {
        let knows = async || cluster.owner_seen_by(witness, &failed_over).await == 3;
        eventually("the others know the new master", knows).await;
    }
    cluster.node(1).ask::<()>(&["SET", &name, "1"]).await;
    cluster.begin_move(&name, 1, 3).await;
    cluster.move_key(&name, 1, 3).await;
    eventually("the key on the replica", async || cluster.node(0).all_keys().await.contains(&name)).await;
    cluster.end_move(&name, 3, &[3, 1, 2]).await;
    assert_eq!(cluster.owner_seen_by(2, &name).await, 3);
}
