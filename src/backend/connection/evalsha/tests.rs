//! Futures that are polled late, and commands that are sent in the first poll or never.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt, duplex};
use tokio::task::consume_budget;
use tokio::time::{sleep, sleep_until, timeout};

use super::*;
use crate::backend::Backend;
use crate::backend::resp::{self, TOO_LATE};
use crate::backend::server::RedisServer;
use crate::backend::testing::{ALONE, EventRecorder, TestServer, commands, until};
use crate::base::{Drift, Lease, Outcome, after};
use crate::wire::Action;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// Connects to a server that has forgotten all scripts.
async fn connected(server: &TestServer, node_timeout: Duration) -> (Arc<RedisServer>, EventRecorder) {
    let (backend, events) = connected_again(server, node_timeout).await;
    backend.slot().link_now().unwrap().connection.has_sent_all();
    (backend, events)
}

async fn connected_again(server: &TestServer, node_timeout: Duration) -> (Arc<RedisServer>, EventRecorder) {
    let events = EventRecorder::new();
    let backend =
        RedisServer::connect(&server.url("").into(), ALONE, node_timeout, events.sender()).await.unwrap().0;
    (backend, events)
}

/// Runs a call. If `asking`, it follows an `ASKING`.
async fn ask(connection: &Connection, call: &Call, asking: bool, deadline: Instant) -> RedisResult<Value> {
    if !asking {
        return finish(connection, call, begin(connection, call, deadline), deadline).await;
    }
    let mut answers = [None];
    ask_all(connection, slice::from_ref(call), &[true], false, &mut answers, deadline).await;
    let [answer] = answers;
    answer.unwrap()
}

fn lease() -> Lease {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    Lease::new("lease", Duration::from_secs(24 * 3600), drift).unwrap()
}

fn acquire(key: &str) -> Call {
    Call::of(key, "me:1", Action::Acquire { count: 1, lease: lease() })
}

fn polled<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until everything sent over the connection was answered, and its task has received the answers.
async fn answered(link: &Link) {
    let link = link.clone();
    let answer = timeout(LONG, link.connection.send(&redis::cmd("PING"), None)).await.unwrap();
    assert!(matches!(answer, Ok(Value::SimpleString(_))), "{answer:?}");
}

async fn nothing_ran(server: &TestServer) {
    assert_eq!(server.count("eval").await, 0);
    assert_eq!(server.command("DBSIZE").await, Value::Int(0));
}

#[tokio::test]
async fn a_script_that_turns_out_unknown_after_the_deadline_is_not_sent_by_its_text() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    for asking in [false, true] {
        let link = backend.slot().link_now().unwrap();
        let (seen, deadline) = (link.clone(), after(Instant::now(), SHORT));
        let call = acquire("stock");
        let mut asked = pin!(ask(&link.connection, &call, asking, deadline));
        assert!(polled(asked.as_mut()).is_pending());
        answered(&seen).await;
        sleep_until(deadline).await;
        let Poll::Ready(Err(error)) = polled(asked) else { panic!("it was sent, or its answer not read") };
        assert!(why_unsent(&error).is_some(), "{error}");
        nothing_ran(&server).await;
    }
}

/// Over a slow network there may be no time for a second round trip.
#[tokio::test]
async fn the_first_run_of_a_script_over_a_connection_takes_one_round_trip() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected_again(&server, LONG).await;
    let renewals = |key: &str| {
        let renewal =
            |at| Call { action: Action::Renew { lease: lease() }, ..acquire(&format!("{key}:{at}")) };
        (0..3).map(renewal).collect::<Vec<_>>()
    };
    for (asking, many) in [(false, false), (true, false), (false, true)] {
        server.command("SCRIPT FLUSH").await;
        backend.slot().leave("the test");
        until(async || backend.slot().is_up()).await;
        server.command("CONFIG RESETSTAT").await;
        let link = backend.slot().link_now().unwrap();
        for at in 0..3 {
            let deadline = after(Instant::now(), LONG);
            if many {
                let mut answers = [const { None }; 3];
                let renewals = renewals(&at.to_string());
                ask_all(&link.connection, &renewals, &[], true, &mut answers, deadline).await;
            } else {
                ask(&link.connection, &acquire(&format!("stock:{at}")), asking, deadline).await.unwrap();
            }
        }
        // Renewals of locks that do not exist are sent again one by one.
        let expected = if many { (2, 10) } else { (1, 2) };
        assert_eq!((server.count("eval").await, server.count("evalsha").await), expected, "{asking} {many}");
    }
}

#[tokio::test]
async fn of_many_those_whose_scripts_are_unknown_after_the_deadline_are_not_sent_again() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let look = Call::of("stock", "", Action::Look);
    backend.clone().run(look.clone()).await.unwrap();
    server.command("CONFIG RESETSTAT").await;
    let link = backend.slot().link_now().unwrap();
    let (seen, deadline) = (link.clone(), after(Instant::now(), SHORT));
    let calls = [look, acquire("stock")];
    let mut answers = [None, None];
    let mut asked = Box::pin(ask_all(&link.connection, &calls, &[], false, &mut answers, deadline));
    assert!(polled(asked.as_mut()).is_pending());
    answered(&seen).await;
    sleep_until(deadline).await;
    assert!(polled(asked.as_mut()).is_ready());
    drop(asked);
    let [Some(Ok(Value::Int(_))), Some(Err(unsent))] = answers else { panic!("{answers:?}") };
    assert!(why_unsent(&unsent).is_some(), "{unsent}");
    nothing_ran(&server).await;
}

/// In this order: 1. The server does not know a script. 2. Its text is sent. 3. The time for the answer is
/// over. The script may have run.
#[tokio::test]
async fn what_was_sent_again_by_its_text_has_no_answer_until_that_is_answered() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let link = backend.slot().link_now().unwrap();
    let (seen, deadline) = (link.clone(), after(Instant::now(), LONG));
    let (calls, mut answers) = ([acquire("stock")], [None]);
    let mut asked = Box::pin(ask_all(&link.connection, &calls, &[], false, &mut answers, deadline));
    assert!(polled(asked.as_mut()).is_pending());
    answered(&seen).await;
    assert!(polled(asked.as_mut()).is_pending());
    answered(&seen).await;
    drop(asked);
    assert_eq!(server.count("eval").await, 1);
    assert!(answers[0].is_none(), "{answers:?}");
}

#[tokio::test]
async fn an_answer_that_is_there_is_read_after_the_deadline() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, SHORT).await;
    server.command("SET known 1").await;
    let look = || backend.clone().run(Call::of("known", "", Action::Look));
    look().await.unwrap();
    let mut looked = look();
    assert!(polled(looked.as_mut()).is_pending());
    answered(&backend.slot().link_now().unwrap()).await;
    sleep_until(after(Instant::now(), SHORT)).await;
    assert!(matches!(polled(looked.as_mut()), Poll::Ready(Ok(_))));
}

#[tokio::test]
async fn a_call_whose_deadline_is_over_before_its_first_poll_did_not_run() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let call = acquire("stock");
    let failure = backend.answer(&call, false, Instant::now()).await.unwrap_err();
    assert_eq!(failure.outcome, Outcome::NotRun, "{}", failure.error);
    assert!(failure.error.to_string().contains("was not sent"), "{}", failure.error);
    assert_eq!(server.count("evalsha").await, 0);
}

#[tokio::test]
async fn of_many_calls_those_after_answers_that_are_read_too_late_are_not_sent() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, SHORT).await;
    let look = Call::of("stock", "", Action::Look);
    backend.clone().run(look.clone()).await.unwrap();
    server.command("CONFIG RESETSTAT").await;
    // More calls than one pipeline holds.
    let calls = (0..600).map(|_| look.clone()).chain([acquire("stock")]).collect();
    let mut asked = backend.clone().run_all(calls);
    assert!(polled(asked.as_mut()).is_pending());
    answered(&backend.slot().link_now().unwrap()).await;
    sleep_until(after(Instant::now(), SHORT)).await;
    let Poll::Ready(replies) = polled(asked.as_mut()) else { panic!("the rest was sent") };
    replies[0].as_ref().unwrap();
    assert_eq!(replies[600].as_ref().unwrap_err().outcome, Outcome::NotRun);
    assert_eq!(server.count("evalsha").await, 500);
    nothing_ran(&server).await;
}

#[tokio::test]
async fn a_call_that_is_polled_once_is_sent_even_if_a_thousand_others_wait() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    // The task of the connection does not run meanwhile.
    let mut asked: Vec<_> =
        (0..1000).map(|at| backend.clone().run(acquire(&format!("stock:{at}")))).collect();
    asked.iter_mut().for_each(|asked| assert!(polled(asked.as_mut()).is_pending()));
    until(async || server.count("evalsha").await == 1000).await;
}

#[tokio::test]
async fn a_call_that_is_polled_once_is_sent_even_by_a_task_whose_budget_is_used_up() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let asking = tokio::spawn(async move {
        let mut asked = backend.clone().run(acquire("stock"));
        poll_fn(|cx| {
            while pin!(consume_budget()).poll(cx).is_ready() {}
            assert!(asked.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        (backend, asked)
    });
    let _kept = asking.await.unwrap();
    until(async || server.count("evalsha").await == 1).await;
}

/// Runs on several threads, since the task sends commands independently of their futures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_polled_again_after_their_deadline_do_not_run() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, SHORT).await;
    let mut asked: Vec<_> = (0..300).map(|at| backend.clone().run(acquire(&format!("stock:{at}")))).collect();
    // Otherwise some would have their answer in the first poll, and continue in time.
    server.signal("STOP");
    asked.iter_mut().for_each(|asked| assert!(polled(asked.as_mut()).is_pending()));
    server.signal("CONT");
    answered(&backend.slot().link_now().unwrap()).await;
    sleep_until(after(Instant::now(), SHORT)).await;
    for asked in &mut asked {
        let Poll::Ready(Err(failure)) = polled(asked.as_mut()) else {
            panic!("it is pending, or was granted")
        };
        assert_eq!(failure.outcome, Outcome::NotRun, "{}", failure.error);
    }
    answered(&backend.slot().link_now().unwrap()).await;
    nothing_ran(&server).await;
}

#[test]
fn why_asking_was_refused_is_reported_in_place_of_the_redirection_that_follows() {
    let answer = |wire: &str| redis::parse_redis_value(format!("{wire}\r\n").as_bytes()).unwrap();
    let (denied, moved, full) = (answer("-NOPERM no"), answer("-MOVED 1 host:1"), answer("-OOM full"));
    let after = |asking: &Value, answer: &Value| after_asking(Some(asking.clone()), Some(answer.clone()));
    assert_eq!(after(&denied, &moved), denied);
    assert_eq!(after(&denied, &full), full);
    assert_eq!(after(&Value::Okay, &moved), moved);
    assert_eq!(after(&denied, &Value::Int(1)), Value::Int(1));
    assert_eq!(after_asking(None, Some(moved.clone())), moved);
    assert_eq!(after_asking(None, None), Value::Nil);
}

/// In this order: 1. The socket is full. 2. Deadlines pass. 3. The server reads again.
#[tokio::test(start_paused = true)]
async fn nothing_that_waits_for_room_is_sent_after_its_deadline() {
    let (ours, mut server) = duplex(4);
    let commands = &commands(ours).await;
    let ping = &redis::cmd("PING");
    let mut first = Box::pin(commands.send(ping, None));
    assert!(timeout(Duration::ZERO, first.as_mut()).await.is_err());
    let deadline = Instant::now() + Duration::from_secs(1);
    let call = &Call::of("stock", "", Action::Look);
    type Late<'a> = Pin<Box<dyn Future<Output = Option<RedisError>> + 'a>>;
    let late: [Late; 4] = [
        Box::pin(async { commands.send(ping, Some(deadline)).await.err() }),
        Box::pin(async { ask(commands, call, false, deadline).await.err() }),
        Box::pin(async { ask(commands, call, true, deadline).await.err() }),
        Box::pin(async { commands.send_all(std::slice::from_ref(ping), Some(deadline)).await.err() }),
    ];
    let mut waiting = Vec::new();
    for mut call in late {
        assert!(timeout(Duration::ZERO, call.as_mut()).await.is_err());
        waiting.push(call);
    }
    sleep(Duration::from_secs(2)).await;
    let sent = "*1\r\n$4\r\nPING\r\n".len();
    server.read_exact(&mut vec![0; sent]).await.unwrap();
    for call in waiting {
        let error = timeout(Duration::from_secs(9), call).await.unwrap().unwrap();
        assert_eq!(why_unsent(&error), Some(TOO_LATE));
    }
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err(), "no more was sent");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_that_is_called_at_its_deadline() {
    let (ours, mut server) = duplex(1024);
    let commands = commands(ours).await;
    let (now, call) = (Instant::now(), Call::of("stock", "", Action::Look));
    for error in [
        commands.send(&redis::cmd("PING"), Some(now)).await.unwrap_err(),
        ask(&commands, &call, false, now).await.unwrap_err(),
        ask(&commands, &call, true, now).await.unwrap_err(),
        commands.send_all(&[redis::cmd("PING")], Some(now)).await.unwrap_err(),
    ] {
        assert_eq!(why_unsent(&error), Some(TOO_LATE));
    }
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err());
}

/// The parent would take the answer to that command for the answer to one of its own.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_over_the_connection_of_a_parent_process() {
    let (ours, mut server) = duplex(1024);
    let commands = resp::testing::open_copied(ours);
    let (ping, soon) = (redis::cmd("PING"), Duration::from_secs(9));
    let one = timeout(soon, commands.send(&ping, None)).await.unwrap().unwrap_err();
    let many = timeout(soon, commands.send_all(&[redis::cmd("PING")], None)).await.unwrap().unwrap_err();
    for error in [one, many] {
        assert!(why_unsent(&error).is_some_and(|why| why.contains("forked")), "{error}");
    }
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err(), "nothing was sent");
}
