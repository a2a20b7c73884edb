use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::*;
use crate::backend::Backend;
use crate::backend::connection::{Endpoint, State};
use crate::backend::server::role::Role;
use crate::backend::server::server::RedisServer;
use crate::backend::testing::{ALONE, EventRecorder, TestServer, until};
use crate::base::{Drift, Lease, Outcome};
use crate::error::ErrorKind;
use crate::wire::Action;

const LONG: Duration = Duration::from_secs(30);

/// Connects to a server that has no replica: each `WAIT` runs into its timeout.
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

fn renew(name: &str) -> Call {
    let call = acquire(name);
    let lease = call.action.lease().unwrap();
    Call { action: Action::Renew { lease }, ..call }
}

/// With several masters, the others may have granted the lock, and it may be released while its acquire is
/// still queued here.
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

/// The acquires are queued after one that replicas do not acknowledge.
#[tokio::test]
async fn of_queued_acquires_the_one_that_is_dropped_is_removed_and_no_other() {
    let server = TestServer::start(&[]).await;
    let backend = waiting_for(&server, ALONE, LONG).await;
    let shared = &backend.acks().shared;
    let queued = || {
        let queue = lock(&shared.queue);
        let waiting = queue.waiting.iter().filter(|queued| !queued.caller.is_closed());
        waiting.map(|queued| queued.call.key().to_string()).collect::<Vec<_>>()
    };
    let one = tokio::spawn(backend.clone().run(acquire("one")));
    until(async || exists(&server, "one").await).await;
    let two = tokio::spawn(backend.clone().run(acquire("two")));
    until(async || queued() == ["two"]).await;
    let three = tokio::spawn(backend.clone().run(acquire("three")));
    until(async || queued() == ["two", "three"]).await;
    assert!(!backend.acks().is_unused());
    two.abort();
    assert!(two.await.unwrap_err().is_cancelled());
    assert_eq!(queued(), ["three"]);
    assert!(!backend.acks().is_unused());
    three.abort();
    assert!(three.await.unwrap_err().is_cancelled());
    assert!(backend.acks().is_unused(), "what nobody waits for is never sent");
    one.abort();
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

/// Returns a sender of acquires whose runtime is not driven, and that runtime.
fn undriven() -> (ReplicaAcks, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let slot = ConnectionSlot::new("host:1".into(), Duration::from_secs(1), true, None);
    let replicas = Replicas { count: 1, wait: Duration::from_secs(1) };
    let entered = runtime.enter();
    let acks = ReplicaAcks::start(slot, replicas, false);
    drop(entered);
    (acks, runtime)
}

/// The runtime of `connect` may be one that only `block_on` drives.
#[test]
fn an_acquire_does_not_wait_for_ever_for_a_runtime_that_is_not_driven() {
    let ((acks, _runtime), call) = (undriven(), acquire("one"));
    let ours =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    ours.block_on(async {
        let asked = acks.ask(call, false, Instant::now() + LONG);
        let failure = timeout(LONG, asked).await.expect("it waits for ever").unwrap_err();
        assert_eq!(failure.outcome, Outcome::Unknown);
        assert!(failure.error.to_string().contains("is not driven"), "{}", failure.error);
        assert!(acks.is_unused(), "it is never sent");
    });
}

#[test]
fn a_close_ends_acquires_on_a_runtime_that_is_not_driven() {
    let (acks, _runtime) = undriven();
    let ours =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    ours.block_on(async {
        let begun = Instant::now();
        let mut before = pin!(acks.ask(acquire("one"), false, begun + LONG));
        assert!(timeout(Duration::ZERO, before.as_mut()).await.is_err());
        acks.close();
        for asked in [before.await, acks.ask(acquire("two"), false, begun + LONG).await] {
            assert_eq!(asked.unwrap_err().error.kind(), ErrorKind::Closed);
        }
        assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
    });
}

/// Returns a role that requires the acknowledgement of zero replicas, so that any number of them is enough.
async fn without_replicas(server: &TestServer, user: &str) -> (Role, Endpoint, EventRecorder) {
    let role = Role {
        replicas: Some(Replicas { count: 0, wait: Duration::from_millis(1) }),
        node_timeout: LONG,
        ..ALONE
    };
    let url = server.url(user);
    let to = crate::config::Server::from(format!("{url}/?protocol=resp3")).destination().unwrap();
    (role, Endpoint { to, address: "host:1".into(), gate: None, login: None }, EventRecorder::new())
}

/// If only one of them followed a failover, another server's replicas would acknowledge the grants.
#[tokio::test]
async fn both_connections_lead_to_the_same_run_of_a_server_and_one_of_them_may_wait() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~* &* +@all -wait").await;
    for user in ["", "bob:pw@"] {
        let (role, endpoint, events) = without_replicas(&server, user).await;
        let runtime = tokio::runtime::Handle::current();
        let node = RedisServer::start_node(endpoint, &role, events.sender(), |_| None, &runtime);
        let acquires = node.acquire_slot().unwrap().link(Instant::now() + LONG).await;
        let fixed = RedisServer::connect(&server.url(user).into(), role, LONG, events.sender()).await;
        if user.is_empty() {
            for backend in [node, fixed.unwrap().0] {
                let slots = [backend.slot(), backend.acquire_slot().unwrap()];
                let [commands, acquires] = slots.map(|slot| slot.link_now().unwrap().run_id);
                assert!(commands.is_some() && commands == acquires);
            }
        } else {
            let error = acquires.err().unwrap().error;
            for error in [error, fixed.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(error.to_string().contains("WAIT"), "{error}");
            }
        }
    }
}

/// In this order: 1. The connection for commands is replaced. 2. An acquire arrives before the connection for
/// acquires is replaced too.
#[tokio::test]
async fn an_acquire_waits_for_a_connection_that_is_paired_with_the_current_one_for_commands() {
    let server = TestServer::start(&[]).await;
    let (role, _, events) = without_replicas(&server, "").await;
    let backend = RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap().0;
    let main = backend.slot().link_now().unwrap();
    let other = main.id + 1;
    let mut asked = pin!(backend.clone().run(acquire("one")));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asked.as_mut().poll(&mut context).is_pending());
    backend.slot().state.send_replace(State::Up(Link { id: other, ..main }));
    assert_eq!(asked.await.unwrap(), Reply::Done);
    assert_eq!(backend.acquire_slot().unwrap().link_now().unwrap().paired_with, Some(other));
}

/// If only one were replaced, the two could lead to different servers.
#[tokio::test]
async fn both_connections_are_replaced_when_either_ends() {
    let server = TestServer::start(&[]).await;
    let (role, _, events) = without_replicas(&server, "").await;
    let backend = RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap().0;
    let links = || [backend.slot(), backend.acquire_slot().unwrap()].map(|slot| slot.link_now().ok());
    let pair = || match links() {
        [Some(main), Some(acquires)] if acquires.paired_with == Some(main.id) => Some([main, acquires]),
        _ => None,
    };
    for ends in [0, 1] {
        let before = pair().unwrap();
        before[ends].connection.send(&redis::cmd("QUIT"), None).await.unwrap();
        until(async || pair().is_some_and(|now| (0..2).all(|at| now[at].id != before[at].id))).await;
        assert_eq!(backend.clone().run(acquire("one")).await.unwrap(), Reply::Done);
    }
}

#[tokio::test]
async fn a_call_waits_for_nothing_where_no_acquire_is_under_way() {
    let server = TestServer::start(&[]).await;
    let backend = connected(&server, ALONE).await;
    backend.answer(&renew("one"), false, Instant::now() + LONG).await.unwrap();
    let begun = Instant::now();
    backend.acks().wait_for_acquires(&[renew("one")]).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "it waits for the whole node timeout");
}

/// The wait does not count against the call's own timeout: the other connection is the slow one.
#[tokio::test]
async fn a_call_that_waits_for_an_acquire_has_its_whole_time_after_it() {
    let server = TestServer::start(&[]).await;
    let (role, _, events) = without_replicas(&server, "").await;
    let backend = RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap().0;
    server.signal("STOP");
    let asked = tokio::spawn(backend.clone().run(acquire("one")));
    let shared = &backend.acks().shared;
    until(async || shared.any_in_flight(&[renew("two"), renew("one")])).await;
    assert!(!shared.any_in_flight(&[renew("two")]) && !shared.any_in_flight(&[]), "it is of another hold");
    assert!(!backend.acks().is_unused(), "it is sent");
    let time = Duration::from_secs(3);
    let renewal = renew("one");
    let mut renewed = pin!(backend.answer(&renewal, false, Instant::now() + time));
    assert!(timeout(time.mul_f64(0.6), renewed.as_mut()).await.is_err());
    server.signal("CONT");
    assert_eq!(asked.await.unwrap().unwrap(), Reply::Done);
    assert!(!shared.any_in_flight(&[renew("one")]));
    assert_eq!(timeout(LONG / 2, renewed).await.expect("the renewal is woken").unwrap(), Reply::Done);
}

/// A refused acquire needs no replica. A grant whose `WAIT` is refused has run.
#[tokio::test]
async fn a_refusal_to_wait_is_of_unknown_outcome_and_a_busy_lock_is_not_waited_for() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~* &* +@all").await;
    let role = Role { replicas: Some(Replicas { count: 1, wait: LONG }), ..ALONE };
    let events = EventRecorder::new();
    let backend =
        RedisServer::connect(&server.url("bob:pw@").into(), role, LONG, events.sender()).await.unwrap().0;
    server.command("HSET busy 0f3c9a44-77e0-4e0c-8d1f-2b6d7c1f5a90:1 1").await;
    server.command("PEXPIRE busy 600000").await;
    let answer = timeout(LONG / 2, backend.clone().run(acquire("busy"))).await.unwrap();
    assert!(!answer.unwrap().is_grant());
    server.command("ACL SETUSER bob -wait").await;
    let failure = backend.clone().run(acquire("free")).await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Unknown, "{}", failure.error);
    assert!(exists(&server, "free").await);
}

/// The node may lack what was granted before it started.
#[tokio::test]
async fn the_age_of_a_node_of_a_cluster_is_read() {
    let server = TestServer::start(&[]).await;
    for needs_age in [true, false] {
        let (role, endpoint, events) = without_replicas(&server, "").await;
        let (role, runtime) = (Role { needs_age, ..role }, tokio::runtime::Handle::current());
        let node = RedisServer::start_node(endpoint, &role, events.sender(), |_| None, &runtime);
        node.acquire_slot().unwrap().link(Instant::now() + LONG).await.unwrap();
        assert_eq!(node.is_younger_than(Duration::from_secs(3600)), needs_age);
    }
}

/// In this order: 1. An acquire is sent. 2. The connection for commands is replaced: another server may be
/// the master. 3. The old server answers that the lock is busy.
#[tokio::test]
async fn what_a_former_master_answers_is_no_answer_though_it_grants_nothing() {
    let server = TestServer::start(&[]).await;
    let (role, _, events) = without_replicas(&server, "").await;
    let backend = RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap().0;
    server.command("HSET busy 0f3c9a44-77e0-4e0c-8d1f-2b6d7c1f5a90:1 1").await;
    server.command("PEXPIRE busy 600000").await;
    let main = backend.slot().link_now().unwrap();
    server.signal("STOP");
    let asked = tokio::spawn(backend.clone().run(acquire("busy")));
    let shared = &backend.acks().shared;
    until(async || shared.any_in_flight(&[renew("busy")])).await;
    backend.slot().state.send_replace(State::Up(Link { id: main.id + 1, ..main }));
    server.signal("CONT");
    let failure = asked.await.unwrap().unwrap_err();
    assert_eq!((failure.outcome, failure.error.kind()), (Outcome::Unknown, ErrorKind::Unavailable));
}
