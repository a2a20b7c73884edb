use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::backend::testing::{Event, EventRecorder, TestServer, link};

fn endpoint(url: &str) -> Endpoint {
    let to = crate::config::Server::from(format!("{url}?protocol=resp3")).destination().unwrap();
    Endpoint { to, address: url.into(), gate: None, login: None }
}

/// Returns a reconnector whose attempts may take any time.
fn connecting(source: Source, events: &EventRecorder) -> Reconnector {
    let slot = ConnectionSlot::new("host:1".into(), Duration::from_secs(3600), true, None);
    Reconnector::new(slot, source, Purpose::default(), events.sender(), None)
}

/// Returns a slot for commands, with a connection of this number.
async fn command_line(server: &TestServer, id: u64) -> Arc<ConnectionSlot> {
    let slot = ConnectionSlot::new("host:1".into(), Duration::from_secs(9), true, None);
    set_up(&slot, server, id).await;
    slot
}

async fn set_up(slot: &ConnectionSlot, server: &TestServer, id: u64) {
    let connection = Connection::connect(&endpoint(&server.url("")).to, Box::new(drop)).await.unwrap();
    slot.state.send_replace(State::Up(link(connection, id)));
}

#[tokio::test]
async fn an_attempt_ends_when_another_server_becomes_the_master() {
    let (frozen, other) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), TestServer::start(&[]).await);
    let address = format!("redis://{}/", frozen.local_addr().unwrap());
    let (target, targets) = watch::channel(Some(endpoint(&address)));
    let main = command_line(&other, 1).await;
    let mut events = EventRecorder::new();
    let reconnector = connecting(Source::paired(main.clone(), targets), &events);
    // The name of the master may lead to a replica for a while, unlike a fixed address.
    assert!(reconnector.purpose.checks_role);
    let fixed = Source::Fixed(Box::new(endpoint(&address)));
    let fixed = connecting(fixed, &events);
    assert!(!fixed.purpose.checks_role);
    let (slot, mut master_changed) = (reconnector.slot(), reconnector.master_changed.subscribe());
    tokio::spawn(reconnector.run(false));
    // The attempt is in progress and gets no answer.
    let _connection = frozen.accept().await.unwrap();
    let stopped = stopped_clock();
    target.send_replace(Some(endpoint(&other.url(""))));
    set_up(&main, &other, 2).await;
    master_changed.changed().await.unwrap();
    assert_eq!(events.next().await, Event::Reconnected);
    assert_eq!(Instant::now(), stopped, "it paused");
    let link = slot.link(Instant::now()).await.unwrap();
    let port = link.connection.send(redis::cmd("CONFIG").arg("GET").arg("port"), None).await.unwrap();
    assert!(other.url("").contains(&redis::from_redis_value::<Vec<(String, String)>>(port).unwrap()[0].1));
    slot.close();
}

/// Stops the clock, and returns its time. The runtime is kept busy, so that it does not advance the clock by
/// itself.
fn stopped_clock() -> Instant {
    tokio::time::pause();
    let busy = std::time::Instant::now();
    tokio::spawn(async move {
        while busy.elapsed() < Duration::from_secs(20) {
            tokio::task::yield_now().await;
        }
    });
    Instant::now()
}

#[tokio::test]
async fn no_pause_is_waited_for_when_another_server_becomes_the_master() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let other = TestServer::start(&[]).await;
    let (target, targets) = watch::channel(Some(endpoint(&format!("redis://{closed}/"))));
    let main = command_line(&other, 1).await;
    let mut events = EventRecorder::new();
    let reconnector = connecting(Source::paired(main.clone(), targets), &events);
    let slot = reconnector.slot();
    tokio::spawn(reconnector.run(false));
    let mut state = slot.state.subscribe();
    state.wait_for(|state| matches!(state, State::Down { failed: Some(_), .. })).await.unwrap();
    // The attempt is refused, and the reconnector pauses.
    let stopped = stopped_clock();
    target.send_replace(Some(endpoint(&other.url(""))));
    set_up(&main, &other, 2).await;
    assert_eq!(events.next().await, Event::Reconnected);
    assert_eq!(Instant::now(), stopped, "it paused");
    slot.close();
}

/// Meanwhile, the name of the server may lead to another server.
#[tokio::test]
async fn of_a_pair_of_connections_to_two_servers_both_are_replaced() {
    let (server, events) = (TestServer::start(&[]).await, EventRecorder::new());
    let (address, one): (Arc<str>, Option<Arc<str>>) = ("host:1".into(), Some("one".into()));
    for (id, paired_with, run_id, other) in [
        (1, Some(1), Some("two"), true),
        (1, Some(1), Some("one"), false),
        (1, Some(1), None, false),
        (1, None, Some("two"), false),
        // The connection that it is paired with has been replaced.
        (2, Some(1), Some("two"), false),
    ] {
        let main = Source::Fixed(Box::new(endpoint(&server.url(""))));
        assert!(main.known().is_some());
        let main = connecting(main, &events);
        // The subscriber connects there before the first connection for commands is made.
        assert!(main.target().borrow().is_some());
        let paired = main.paired(Purpose::default());
        set_up(&main.slot, &server, id).await;
        main.slot.state.send_modify(|state| {
            if let State::Up(link) = state {
                link.run_id.clone_from(&one);
            }
        });
        let checked = paired.check_same_server(paired_with, &run_id.map(Arc::from), &address);
        assert_eq!(checked.is_err(), other, "{paired_with:?} {run_id:?}");
        assert_eq!(main.slot.is_up(), !other, "{paired_with:?} {run_id:?}");
    }
}

/// If the attempt for commands failed, the first attempt fails at once, and a later one waits for a
/// connection for commands.
#[tokio::test]
async fn a_connection_is_paired_with_one_that_is_live() {
    let server = TestServer::start(&[]).await;
    let main = command_line(&server, 7).await;
    let (_target, targets) = watch::channel(Some(endpoint(&server.url(""))));
    let source = Source::paired(main.clone(), targets);
    assert!(source.endpoint(true, true, || ()).await.is_ok_and(|(_, paired_with)| paired_with == Some(7)));
    let failed = Some(Error::new(ErrorKind::Unavailable, "away"));
    main.state.send_replace(State::Down { attempt: 8, failed });
    assert_eq!(source.endpoint(true, true, || ()).await.err().unwrap().kind(), ErrorKind::Unavailable);
    let waits = timeout(Duration::from_millis(1), source.endpoint(false, false, || ())).await;
    assert!(waits.is_err(), "there is no connection");
    main.close();
    for first in [true, false] {
        let closed = timeout(Duration::from_secs(20), source.endpoint(first, first, || ())).await.unwrap();
        assert_eq!(closed.err().unwrap().kind(), ErrorKind::Closed);
    }
}

/// In this order: 1. The server's certificate is outdated. 2. The certificate is renewed, but the password
/// has changed by then.
#[test]
fn each_warning_of_an_outage_comes_once_and_silences_no_other() {
    let error = |cause: redis::RedisError| Error::new(ErrorKind::Unavailable, "no").because(cause);
    let distrusted = redis::RedisError::from(std::io::Error::other("the certificate has expired"));
    let refused = redis::RedisError::from((redis::ErrorKind::AuthenticationFailed, "no"));
    let other = Error::new(ErrorKind::Unavailable, "no");
    let mut warned = [false; 3];
    for first in [true, false] {
        for (error, is_second_vote) in
            [(&error(distrusted.clone()), false), (&error(refused.clone()), false), (&other, true)]
        {
            assert_eq!(warn(error, is_second_vote, &mut warned), first, "{error}");
        }
        assert!(!warn(&other, false, &mut warned));
    }
}
