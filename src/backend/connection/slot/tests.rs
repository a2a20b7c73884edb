use std::pin::pin;
use std::time::Duration;

use tokio::io::{DuplexStream, duplex};
use tokio::time::timeout;

use super::*;
use crate::backend::testing;
use crate::base::Outcome;
use crate::wire::Action;

const LONG: Duration = Duration::from_secs(30);

fn slot(state: State, main: Option<Arc<ConnectionSlot>>) -> Arc<ConnectionSlot> {
    let slot = ConnectionSlot::new("host:1".into(), LONG, true, main);
    slot.state.send_replace(state);
    slot
}

/// Returns a connection without a server, and its other end.
async fn link(id: u64, paired_with: Option<u64>) -> (Link, DuplexStream) {
    let (ours, theirs) = duplex(1024);
    (Link { paired_with, ..testing::link(testing::commands(ours).await, id) }, theirs)
}

fn down(attempt: u64, failed: Option<&str>) -> State {
    State::Down { attempt, failed: failed.map(|why| Error::new(ErrorKind::Unavailable, why.to_owned())) }
}

#[track_caller]
fn failed<T>(result: Result<T, Failure>, kind: ErrorKind, words: &str) {
    let Err(Failure { outcome, error }) = result else { panic!("it did not fail") };
    assert_eq!((outcome, error.kind()), (Outcome::NotRun, kind), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// In this order: 1. The server dies. 2. It comes back empty, and a connection is made. 3. The loss is
/// reported, so that holds are checked.
#[tokio::test]
async fn a_connection_counts_once_the_loss_of_the_one_before_is_reported() {
    let (first, _theirs) = link(1, None).await;
    let slot = slot(State::Up(first), None);
    assert!(slot.is_connected());
    slot.discard(1, "broken");
    assert!(!slot.is_connected());
    let (next, _theirs) = link(2, None).await;
    slot.state.send_replace(State::Up(next));
    assert!(slot.is_up() && !slot.is_connected());
    slot.reported.store(2, Ordering::SeqCst);
    assert!(slot.is_connected());
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_the_next_attempt_is_waited_for() {
    let (link, _theirs) = link(3, None).await;
    let next: [fn(&ConnectionSlot, &Link); 3] = [
        |slot, _| drop(slot.state.send_replace(down(2, Some("second")))),
        |slot, link| drop(slot.state.send_replace(State::Up(link.clone()))),
        |slot, _| slot.close(),
    ];
    for (number, next) in next.into_iter().enumerate() {
        for failed_first in [None, Some("first")] {
            let slot = slot(down(1, failed_first), None);
            let mut waits = pin!(slot.link(Instant::now() + LONG));
            assert!(timeout(LONG / 2, waits.as_mut()).await.is_err(), "{number}");
            next(&slot, &link);
            let found = timeout(Duration::ZERO, waits).await.expect("it still waits");
            match number {
                0 => failed(found, ErrorKind::Unavailable, "second"),
                1 => assert_eq!(found.map(|link| link.id).ok(), Some(3)),
                _ => failed(found, ErrorKind::Closed, CLOSED),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_error_is_reported_where_the_next_attempt_takes_too_long() {
    for (failed_first, words) in [(None, "there is no connection"), (Some("first"), "first")] {
        let slot = slot(down(1, failed_first), None);
        failed(slot.link(Instant::now() + LONG).await, ErrorKind::Unavailable, words);
        failed(slot.link_now(), ErrorKind::Unavailable, words);
        assert_eq!((slot.is_refused(), slot.is_up()), (failed_first.is_some(), false));
    }
}

/// The connection for acquires is useless without the connection for commands that it is paired with.
#[tokio::test]
async fn a_connection_is_current_while_the_one_that_it_is_paired_with_is() {
    let ((first, _a), (second, _b), (acquires, _c)) =
        (link(7, None).await, link(8, None).await, link(3, Some(7)).await);
    let main = slot(State::Up(first.clone()), None);
    let slot = slot(State::Up(acquires.clone()), Some(main.clone()));
    assert!(slot.is_current(&acquires) && main.is_current(&first) && !main.is_current(&second));
    main.state.send_replace(State::Up(second.clone()));
    assert!(!slot.is_current(&acquires));
    main.state.send_replace(down(8, None));
    assert!(!slot.is_current(&acquires));
    main.state.send_replace(State::Up(first.clone()));
    assert!(slot.is_current(&acquires));
    // The other connection ends together with this one, unless this one was already replaced.
    slot.discard(2, "late");
    assert!(slot.is_up() && main.is_up());
    slot.discard(acquires.id, "broken");
    assert!(!slot.is_up() && !main.is_up() && !slot.is_current(&acquires));
    slot.state.send_replace(State::Up(acquires.clone()));
    main.state.send_replace(State::Up(second));
    slot.discard(acquires.id, "broken");
    assert!(!slot.is_up() && main.is_up(), "the one for commands was replaced before");
    main.state.send_replace(State::Up(first));
    main.leave("elsewhere");
    assert_eq!((main.is_up(), main.id()), (false, None));
}

/// An answer that was on its way when the server was left says nothing about the lock at its successor, also if its connection was replaced
/// before. A connection that was replaced for another reason still delivers its answers.
#[tokio::test]
async fn an_answer_over_a_connection_that_was_left_does_not_count() {
    let ((first, _a), (second, _b)) = (link(7, None).await, link(8, None).await);
    let (slot, call) = (slot(State::Up(first.clone()), None), Call::of("stock", "", Action::Look));
    slot.discard(first.id, "no answer");
    slot.decode(&first, &call, Ok(Value::Int(5))).unwrap();
    slot.leave("a failover while there is no connection");
    let voided = |link| {
        let failure = slot.decode(link, &call, Ok(Value::Int(5))).unwrap_err();
        assert_eq!((failure.outcome, failure.error.kind()), (Outcome::Unknown, ErrorKind::Unavailable));
    };
    voided(&first);
    slot.state.send_replace(State::Up(second.clone()));
    slot.decode(&second, &call, Ok(Value::Int(5))).unwrap();
    slot.leave("a failover");
    voided(&first);
    voided(&second);
}

/// In this order: 1. The runtime ends, and with it the task of the connection. 2. A call fails because of
/// that. 3. The remaining ends are written to the socket, which is still open.
#[tokio::test]
async fn a_call_that_fails_since_its_runtime_ends_does_not_end_the_connection() {
    let (link, _theirs) = link(1, None).await;
    let slot = slot(State::Up(link.clone()), None);
    let ended: RedisError = std::io::Error::from(std::io::ErrorKind::BrokenPipe).into();
    slot.decode(&link, &Call::of("stock", "", Action::Look), Err(ended)).unwrap_err();
    slot.end_with_runtime("the runtime has ended", true);
    assert!(slot.last_link().is_some());
}

/// If anything was answered, the server is only slow, and a new connection would lose the calls that wait for
/// their answers.
#[tokio::test]
async fn a_connection_on_which_nothing_was_answered_meanwhile_is_replaced() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (link, mut server) = link(1, None).await;
    let slot = slot(State::Up(link.clone()), None);
    let before = link.connection.answers();
    let ping = redis::cmd("PING");
    let mut asked = pin!(link.connection.send(&ping, None));
    assert!(timeout(Duration::from_millis(1), asked.as_mut()).await.is_err());
    server.read_exact(&mut [0; 14]).await.unwrap();
    server.write_all(b"+PONG\r\n").await.unwrap();
    asked.await.unwrap();
    slot.timed_out(&link, before, Instant::now());
    assert!(slot.is_up(), "it has answered");
    slot.timed_out(&link, link.connection.answers(), Instant::now());
    assert!(!slot.is_up());
}

#[tokio::test]
async fn a_call_that_fails_when_the_line_has_ended_is_closed() {
    let slot = slot(down(1, None), None);
    let call = Call::of("stock", "", Action::Look);
    let failure = || redis_error::unanswered(&call, LONG, None, &slot.address);
    let of = |Failure { outcome, error }: Failure| (outcome, error.kind());
    assert_eq!(of(slot.explain(failure())), (Outcome::Unknown, ErrorKind::Unavailable));
    slot.close();
    assert_eq!(of(slot.explain(failure())), (Outcome::Unknown, ErrorKind::Closed));
}
