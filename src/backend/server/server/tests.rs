use redis::Value;

use super::*;
use crate::backend::connection::State;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::backend::testing::{ALONE, Event, EventRecorder, TestServer, until};
use crate::base::{Drift, Lease, Outcome};
use crate::config::Replicas;
use crate::error::ErrorKind;
use crate::wire::{Action, Line, Notice, Reply};

/// Longer than any stall of a busy machine, for tests in which no call should time out.
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

async fn connected(server: &TestServer, node_timeout: Duration) -> (Arc<RedisServer>, EventRecorder) {
    let events = EventRecorder::new();
    let backend = connect(&server.url("").into(), node_timeout, events.sender()).await.unwrap();
    (backend, events)
}

fn look(key: &str) -> Call {
    Call::of(key, "", Action::Look)
}

fn acquire(key: &str) -> Call {
    let lease =
        Lease::new("lease", Duration::from_secs(30), Drift { factor: 0.0, slack: Duration::ZERO }).unwrap();
    Call::of(key, "me:1", Action::Acquire { count: 1, lease })
}

impl RedisServer {
    pub(in crate::backend::server) fn acks(&self) -> &ReplicaAcks {
        self.acks.as_ref().unwrap()
    }
}

/// Returns an error if the server can't be reached.
async fn connect(
    server: &Server,
    node_timeout: Duration,
    events: Weak<dyn Events>,
) -> Result<Arc<RedisServer>> {
    let (backend, away) = RedisServer::connect(server, ALONE, node_timeout, events).await?;
    away.map_or(Ok(backend), Err)
}

#[track_caller]
fn failed(reply: CallResult, outcome: Outcome, kind: ErrorKind) -> Error {
    let failure = reply.unwrap_err();
    assert_eq!((failure.outcome, failure.error.kind()), (outcome, kind), "{}", failure.error);
    failure.error
}

#[tokio::test]
async fn a_call_is_answered_after_a_script_flush() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    assert_eq!(server.count("eval").await, 1);
    server.command("SCRIPT FLUSH").await;
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    assert_eq!((server.count("eval").await, server.count("evalsha").await), (2, 2));
}

/// Otherwise an end that is sent as the process ends would be denied, and the lock would stay for its lease.
#[tokio::test]
async fn an_end_that_is_written_at_once_or_last_leaves_out_a_line_that_was_denied_before() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER locker reset on >secret ~stock &* +@all").await;
    let (events, url) = (EventRecorder::new(), server.url("locker:secret@"));
    for replicas in [None, Some(Replicas { count: 0, wait: Duration::from_millis(1) })] {
        let role = Role { replicas, ..ALONE };
        let backend = RedisServer::connect(&(&url).into(), role, LONG, events.sender()).await.unwrap().0;
        let end = in_line(Call::of("stock", "me:1", Action::END));
        assert_eq!(backend.clone().run(end.clone()).await.unwrap(), Reply::Gone);
        server.command("ACL LOG RESET").await;
        assert_eq!(backend.clone().run(acquire("stock")).await.unwrap(), Reply::Done);
        assert_eq!(backend.clone().begin(&end).unwrap().await.unwrap(), Reply::Ended(Notice::Sent(0)));
        assert_eq!(server.command("ACL LOG").await, Value::Array(Vec::new()));
        assert_eq!(backend.clone().run(acquire("stock")).await.unwrap(), Reply::Done);
        if let Some(slot) = backend.acquire_slot() {
            // The two connections have the same number by chance, which would hide that the wrong one is
            // used.
            let link = slot.link_now().unwrap();
            slot.state.send_replace(State::Up(Link { id: link.id + 1, ..link }));
        }
        backend.run_last(vec![end]);
        until(async || server.command("EXISTS stock").await == Value::Int(0)).await;
    }
}

/// Otherwise the end of a hold would fail once after each new connection, and the lock would be freed only by
/// a retry.
#[tokio::test(start_paused = true)]
async fn an_end_that_is_written_at_once_and_denied_for_its_line_is_sent_once_more_without_it() {
    let server = denying(|| Some(":-2\r\n".to_owned()));
    let backend = connect(&("a", 1).into(), LONG, EventRecorder::new().sender()).await.unwrap();
    let (stock, end) = (Keys::new("", "stock"), in_line(Call::of("stock", "me:1", Action::END)));
    for sent in [2, 3, 4] {
        assert!(backend.is_unused(&stock));
        assert_eq!(backend.clone().begin(&end).unwrap().await.unwrap(), Reply::Gone);
        assert_eq!(server.count("EVAL"), sent, "what was denied for its line is not sent with it again");
    }
}

/// Starts a server that denies each call with a line, and answers the others by `answer`.
fn denying(answer: impl Fn() -> Option<String> + Send + 'static) -> FakeServer {
    FakeServer::start("a", move |words| match words {
        ["EVAL" | "EVALSHA", _, "2", ..] => Some("-NOPERM No permissions to access a key\r\n".to_owned()),
        ["EVAL" | "EVALSHA", ..] => answer(),
        _ => usual(words),
    })
}

fn in_line(call: Call) -> Call {
    let time = acquire("stock").action.lease().unwrap();
    Call { line: Some(Line { term: time, stays: time, again: false, polls: false, sharded: false }), ..call }
}

/// In this order: 1. A call is denied for its line. 2. Its future is not polled in time: the call may have
/// been given up, and its hold ended. 3. The future is polled.
#[tokio::test(start_paused = true)]
async fn what_was_denied_for_its_line_is_not_sent_again_after_its_deadline() {
    let server = denying(|| Some(":1\r\n".to_owned()));
    let backend = connect(&("a", 1).into(), SHORT, EventRecorder::new().sender()).await.unwrap();
    let calls = || vec![in_line(acquire("stock"))];
    let asked: [BoxFuture<bool>; 3] = [
        Box::pin({
            let (backend, call) = (backend.clone(), calls().remove(0));
            async move { backend.begin(&call).unwrap().await.is_err() }
        }),
        Box::pin({
            let one = backend.clone().run(calls().remove(0));
            async move { one.await.is_err() }
        }),
        Box::pin({
            let all = backend.clone().run_all(calls());
            async move { all.await.iter().all(Result::is_err) }
        }),
    ];
    for mut asked in asked {
        let before = server.count("EVAL");
        assert!(timeout_at(Instant::now(), &mut asked).await.is_err());
        tokio::time::sleep(2 * SHORT).await;
        assert!(asked.await);
        assert_eq!(server.count("EVAL"), before + 1);
    }
}

/// In this order: 1. Many calls are denied for their lines. 2. The server hangs.
#[tokio::test(start_paused = true)]
async fn many_calls_that_were_denied_for_their_lines_are_sent_again_together() {
    let _server = denying(|| None);
    let backend = connect(&("a", 1).into(), LONG, EventRecorder::new().sender()).await.unwrap();
    let (begun, end) = (Instant::now(), Call::of("stock", "me:1", Action::END));
    let answers = backend.run_all((0..10).map(|_| in_line(end.clone())).collect()).await;
    assert!(answers.len() == 10 && answers.iter().all(Result::is_err));
    assert!(begun.elapsed() < 2 * LONG);
}

#[tokio::test]
async fn wrong_and_missing_passwords_are_denied_at_connect() {
    let server = TestServer::start(&["--requirepass", "right"]).await;
    let wrong = "password is wrong, or the user is disabled";
    for (credentials, why) in [("", "none was given"), (":wrong@", wrong), ("nobody:wrong@", wrong)] {
        let events = EventRecorder::new();
        let error = connect(&server.url(credentials).into(), LONG, events.sender()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        let text = format!("{error} {error:?}");
        assert!(text.contains("127.0.0.1:") && text.contains(why), "{text}");
        assert!(!text.contains("wrong@") && !text.contains("right"), "{text}");
    }
    let events = EventRecorder::new();
    let backend = connect(&server.url(":right@").into(), LONG, events.sender()).await.unwrap();
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable_at_connect() {
    let mut server = TestServer::start(&[]).await;
    server.kill();
    let events = EventRecorder::new();
    // The server is used once it can be reached.
    let (_, away) = RedisServer::connect(&server.url("").into(), ALONE, LONG, events.sender()).await.unwrap();
    assert_eq!(away.unwrap().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_frozen_server_is_unavailable_at_connect() {
    let server = TestServer::start(&[]).await;
    server.signal("STOP");
    let events = EventRecorder::new();
    let error = connect(&server.url("").into(), SHORT, events.sender()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("within 1s"), "{error}");
}

#[tokio::test]
async fn a_database_that_the_server_lacks_is_a_wrong_option() {
    let server = TestServer::start(&[]).await;
    let events = EventRecorder::new();
    let url = format!("{}/99", server.url(""));
    let error = connect(&url.as_str().into(), LONG, events.sender()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn calls_work_again_after_the_server_was_killed_and_restarted() {
    let mut server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, LONG).await;
    server.kill();
    // This call may be sent before the end of the connection is noticed.
    backend.clone().run(look("a")).await.unwrap_err();
    failed(backend.clone().run(look("a")).await, Outcome::NotRun, ErrorKind::Unavailable);
    let replies = backend.clone().run_all(vec![look("a"), look("b")]).await;
    assert_eq!(replies.len(), 2);
    replies.into_iter().for_each(|reply| drop(failed(reply, Outcome::NotRun, ErrorKind::Unavailable)));
    server.restart().await;
    assert_eq!(events.next().await, Event::Reconnected);
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
}

#[tokio::test]
async fn a_connection_that_ends_while_idle_is_replaced_before_the_next_call() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, LONG).await;
    for _ in 0..3 {
        server.command("CLIENT KILL TYPE normal SKIPME yes").await;
        assert_eq!(events.next().await, Event::Reconnected);
        assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    }
}

#[tokio::test]
async fn a_call_to_a_frozen_server_is_unknown_and_its_connection_is_replaced() {
    let server = TestServer::start(&[]).await;
    for many in [false, true] {
        let (backend, mut events) = connected(&server, SHORT).await;
        server.signal("STOP");
        let reply = match many {
            true => backend.clone().run_all(vec![look("a"), look("b")]).await.remove(1),
            false => backend.clone().run(look("a")).await,
        };
        let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable);
        assert!(error.to_string().contains("within the `node_timeout` of 100ms"), "{error}");
        failed(backend.clone().run(look("a")).await, Outcome::NotRun, ErrorKind::Unavailable);
        server.signal("CONT");
        assert_eq!(events.next().await, Event::Reconnected);
        until(async || backend.clone().run(look("a")).await.is_ok()).await;
    }
}

/// In this order: 1. A call is sent, and a task blocks the thread for four node timeouts. 2. The call fails,
/// since the server is frozen.
#[tokio::test]
async fn a_timeout_that_is_noticed_late_is_put_down_to_this_process() {
    let server = TestServer::start(&[]).await;
    for many in [false, true] {
        let (backend, _events) = connected(&server, SHORT).await;
        server.signal("STOP");
        let call = async {
            match many {
                true => backend.clone().run_all(vec![look("a")]).await.remove(0),
                false => backend.clone().run(look("a")).await,
            }
        };
        let (reply, ()) = tokio::join!(call, async { std::thread::sleep(4 * SHORT) });
        let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable).to_string();
        assert!(error.contains("late, so the process had no CPU"), "{error}");
        server.signal("CONT");
    }
}

#[tokio::test]
async fn a_timeout_by_a_paused_clock_is_put_down_to_the_clock() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    server.signal("STOP");
    tokio::time::pause();
    let reply = backend.clone().run(look("a")).await;
    let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable).to_string();
    assert!(error.contains("tokio's clock was paused"), "{error}");
    let error =
        connect(&server.url("").into(), LONG, EventRecorder::new().sender()).await.unwrap_err().to_string();
    assert!(error.contains("reached within 10s; tokio's clock was paused"), "{error}");
}

/// The connection is kept, since the server has answered.
#[test]
fn a_timeout_on_another_runtime_is_put_down_to_the_one_of_connect_if_that_is_not_driven() {
    let home = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let other = runtime();
    let (_server, backend, mut events) = home.block_on(async {
        let server = TestServer::start(&[]).await;
        let (backend, events) = connected(&server, Duration::from_secs(2)).await;
        (server, backend, events)
    });
    for reply in [
        other.block_on(backend.clone().run(look("a"))),
        other.block_on(backend.clone().run_all(vec![look("a"), look("b")])).remove(1),
    ] {
        let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable).to_string();
        assert!(error.contains("the runtime that `connect` was awaited on is not driven"), "{error}");
    }
    home.block_on(async {
        assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
        events.expect_none();
    });
}

/// A call to one of several masters fails at once.
#[tokio::test(start_paused = true)]
async fn only_the_only_master_waits_for_a_connection() {
    let _hangs = FakeServer::start("hangs", |_| None);
    for alone in [true, false] {
        let to = Server::from("redis://hangs:1/?protocol=resp3").destination().unwrap();
        let endpoint = Endpoint { to, address: "hangs:1".into(), gate: None, login: None };
        let (role, events) = (Role { alone, ..ALONE }, EventRecorder::new());
        let runtime = tokio::runtime::Handle::current();
        let server = RedisServer::start_node(endpoint, &role, events.sender(), |_| None, &runtime);
        let begun = Instant::now();
        failed(server.clone().run(look("k")).await, Outcome::NotRun, ErrorKind::Unavailable);
        assert_eq!(begun.elapsed() >= LONG, alone);
        assert!(!server.is_portable());
    }
}

#[tokio::test]
async fn one_of_several_is_away_without_a_connection_and_its_clock_was_read() {
    let mut server = TestServer::start(&[]).await;
    for alone in [true, false] {
        let (role, mut events) = (Role { alone, ..ALONE }, EventRecorder::new());
        let (backend, away) =
            RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap();
        assert!(away.is_none() && !backend.is_away());
        assert_eq!(backend.clock().is_some(), !alone);
        server.kill();
        until(async || !backend.slot.is_up()).await;
        assert_eq!(backend.is_away(), !alone);
        server.restart().await;
        assert_eq!(events.next().await, Event::Reconnected);
        assert!(!backend.is_away());
    }
}

#[tokio::test]
async fn a_late_failure_of_an_old_connection_leaves_the_new_one_alone() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, LONG).await;
    let old = backend.slot.link(after(Instant::now(), LONG)).await.unwrap();
    backend.slot.discard(old.id, "for this test");
    assert_eq!(events.next().await, Event::Reconnected);
    backend.slot.discard(old.id, "for this test");
    assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    events.expect_none();
}

#[tokio::test]
async fn of_many_calls_to_a_frozen_server_those_that_were_not_sent_are_reported_as_not_run() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, SHORT).await;
    server.signal("STOP");
    let replies = backend.clone().run_all((0..CHUNK + 1).map(|_| look("a")).collect()).await;
    let outcomes: Vec<_> = replies.into_iter().map(|reply| reply.unwrap_err().outcome).collect();
    assert_eq!(outcomes.len(), CHUNK + 1);
    assert!(outcomes[..CHUNK].iter().all(|outcome| *outcome == Outcome::Unknown));
    assert_eq!(outcomes[CHUNK], Outcome::NotRun);
}

#[tokio::test]
async fn many_calls_are_answered_one_by_one_in_their_order() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let count = 2 * CHUNK + 7;
    server.command("SET string 1 PX 900000").await;
    let keys = ["free", "held", "string"];
    backend.clone().run(acquire("held")).await.unwrap();
    for _ in 0..2 {
        let replies = backend.clone().run_all((0..count).map(|at| look(keys[at % 3])).collect()).await;
        assert_eq!(replies.len(), count);
        for (at, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.unwrap() == Reply::Free, at % 3 == 0);
        }
        server.command("SCRIPT FLUSH").await;
    }
}

#[tokio::test]
async fn of_many_calls_only_those_that_the_server_denies_are_denied() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~free* +eval +evalsha +type +pttl +hlen +exists +hgetall").await;
    let events = EventRecorder::new();
    let backend = connect(&server.url("bob:pw@").into(), LONG, events.sender()).await.unwrap();
    let mut replies = backend
        .clone()
        .run_all(["free1", "other", "free2"].map(look).into_iter().collect())
        .await
        .into_iter();
    assert_eq!(replies.next().unwrap().unwrap(), Reply::Free);
    let error = failed(replies.next().unwrap(), Outcome::NotRun, ErrorKind::Denied);
    assert!(error.to_string().contains("`other`"), "{error}");
    assert_eq!(replies.next().unwrap().unwrap(), Reply::Free);
}

#[tokio::test]
async fn a_right_that_is_missing_is_denied() {
    let server = TestServer::start(&[]).await;
    server.command("ACL SETUSER bob on >pw ~*").await;
    let events = EventRecorder::new();
    let backend = connect(&server.url("bob:pw@").into(), LONG, events.sender()).await.unwrap();
    let error = failed(backend.clone().run(look("a")).await, Outcome::NotRun, ErrorKind::Denied);
    assert!(error.to_string().contains("'eval'"), "{error}");
    server.command("ACL SETUSER bob +eval +evalsha").await;
    let error = failed(backend.clone().run(look("a")).await, Outcome::Unknown, ErrorKind::Denied);
    assert!(!error.to_string().contains("pw"), "{error}");
}

#[tokio::test]
async fn a_full_server_refuses_before_anything_is_written() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, LONG).await;
    server.command("CONFIG SET maxmemory 1").await;
    let error = failed(backend.clone().run(acquire("a")).await, Outcome::NotRun, ErrorKind::Unavailable);
    assert!(error.to_string().contains("OOM"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    events.expect_none();
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_reconnected_to() {
    let server = TestServer::start(&[]).await;
    let (backend, mut events) = connected(&server, LONG).await;
    server.command("REPLICAOF 127.0.0.1 1").await;
    let error = failed(backend.clone().run(acquire("a")).await, Outcome::NotRun, ErrorKind::Unavailable);
    assert!(error.to_string().contains("READONLY"), "{error}");
    assert_eq!(events.next().await, Event::Reconnected);
}

/// A replica loads the data of its new master, or has lost the link to it.
#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_all_commands_as_a_replica_is_reconnected_to() {
    for refusal in ["LOADING Redis is loading the dataset", "MASTERDOWN Link with MASTER is down"] {
        let _server = FakeServer::start("a", move |words| match words {
            ["EVAL" | "EVALSHA", ..] => Some(format!("-{refusal}\r\n")),
            words => usual(words),
        });
        let mut events = EventRecorder::new();
        let backend = connect(&("a", 1).into(), LONG, events.sender()).await.unwrap();
        let error = failed(backend.clone().run(acquire("a")).await, Outcome::NotRun, ErrorKind::Unavailable);
        assert!(error.to_string().contains(refusal), "{error}");
        assert_eq!(events.next().await, Event::Reconnected);
    }
}

/// The right may have been granted in the meantime. Without it no acquire enters the line.
#[tokio::test(start_paused = true)]
async fn a_name_that_was_denied_is_asked_for_again_over_the_next_connection() {
    let server = FakeServer::start("a", |words| match words {
        ["EVAL" | "EVALSHA", .., "whose"] => Some("*1\r\n:5000\r\n".to_owned()),
        ["EVAL" | "EVALSHA", ..] => Some(":5000\r\n".to_owned()),
        words => usual(words),
    });
    let mut events = EventRecorder::new();
    let backend = connect(&("a", 1).into(), LONG, events.sender()).await.unwrap();
    let call = Call { report_holder: true, ..acquire("a") };
    for _ in 0..2 {
        let [first, second] =
            [backend.clone().run(call.clone()).await, backend.clone().run(call.clone()).await];
        assert!(matches!(first, Ok(Reply::Nameless(_))), "{first:?}");
        assert!(matches!(second, Ok(Reply::Busy(_, None))), "{second:?}");
        server.hang_up();
        assert_eq!(events.next().await, Event::Reconnected);
    }
}

/// Otherwise they would do nothing: nobody gets the answer that their script is unknown.
#[tokio::test]
async fn the_last_ends_run_on_a_server_that_has_forgotten_their_script() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let end = |key: &str| Call::of(key, "me:1", Action::END);
    assert_eq!(backend.clone().run(end("a")).await.unwrap(), Reply::Gone);
    for key in ["a", "b", "c"] {
        assert_eq!(backend.clone().run(acquire(key)).await.unwrap(), Reply::Done);
    }
    server.command("SCRIPT FLUSH").await;
    server.command("CONFIG RESETSTAT").await;
    backend.run_last(vec![end("a"), end("b")]);
    backend.run_last(vec![end("c")]);
    until(async || server.command("DBSIZE").await == Value::Int(0)).await;
    // The text is large.
    assert_eq!((server.count("eval").await, server.count("evalsha").await), (1, 2));
}

#[tokio::test]
async fn calls_are_denied_after_the_password_was_changed() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    let mut admin = server.admin().await;
    let _: () =
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("new").query_async(&mut admin).await.unwrap();
    let _: () =
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query_async(&mut admin).await.unwrap();
    until(async || {
        let failure = backend.clone().run(look("a")).await.unwrap_err();
        failure.error.kind() == ErrorKind::Denied && failure.outcome == Outcome::NotRun
    })
    .await;
}

#[tokio::test]
async fn calls_after_close_are_closed() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, LONG).await;
    backend.close();
    backend.close();
    let error = failed(backend.clone().run(look("a")).await, Outcome::NotRun, ErrorKind::Closed);
    assert!(error.to_string().contains("was closed"), "{error}");
    failed(backend.clone().run_all(vec![look("a")]).await.remove(0), Outcome::NotRun, ErrorKind::Closed);
}

#[tokio::test]
async fn nothing_is_left_after_close_and_after_the_last_drop() {
    let server = TestServer::start(&[]).await;
    let acknowledged = Some(Replicas { count: 0, wait: SHORT });
    for (close, replicas) in [(true, None), (false, None), (true, acknowledged), (false, acknowledged)] {
        let (role, mut events) = (Role { replicas, ..ALONE }, EventRecorder::new());
        let (backend, _) =
            RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap();
        backend.subscribe("c");
        assert_eq!(events.next().await, Event::Subscribed("c".into()));
        let metrics = tokio::runtime::Handle::current().metrics();
        assert!(metrics.num_alive_tasks() > 0);
        let _kept = close.then(|| backend.clone());
        if close {
            backend.close();
        }
        drop(backend);
        until(async || metrics.num_alive_tasks() == 0).await;
        until(async || server.clients().await == 1).await;
    }
}

#[test]
fn calls_after_the_home_runtime_has_ended_are_closed() {
    let (home, other) = (runtime(), runtime());
    let (server, backend, _events) = home.block_on(async {
        let server = TestServer::start(&[]).await;
        let (backend, events) = connected(&server, LONG).await;
        (server, backend, events)
    });
    drop(home);
    let error = failed(other.block_on(backend.clone().run(look("a"))), Outcome::NotRun, ErrorKind::Closed);
    assert!(error.to_string().contains("runtime"), "{error}");
    backend.subscribe("c");
    drop(server);
}

#[test]
fn the_end_of_a_runtime_that_only_called_does_not_end_the_connection() {
    let (home, other) = (runtime(), runtime());
    let (server, backend, mut events) = home.block_on(async {
        let server = TestServer::start(&[]).await;
        let (backend, events) = connected(&server, LONG).await;
        (server, backend, events)
    });
    home.block_on(async {
        server.command("CLIENT KILL TYPE normal SKIPME yes").await;
    });
    // The call uses the dead connection or waits for the next one, which must not be made on the calling
    // runtime.
    let _ = other.block_on(backend.clone().run(look("a")));
    assert_eq!(home.block_on(events.next()), Event::Reconnected);
    assert_eq!(other.block_on(backend.clone().run(look("a"))).unwrap(), Reply::Free);
    drop(other);
    assert_eq!(home.block_on(backend.clone().run(look("a"))).unwrap(), Reply::Free);
    events.expect_none();
}

#[test]
fn outside_of_a_runtime_connect_is_an_error() {
    let events = EventRecorder::new();
    let server = Server::from("redis://127.0.0.1:1");
    let mut connect = std::pin::pin!(connect(&server, LONG, events.sender()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(result) = connect.as_mut().poll(&mut context) else { panic!() };
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Misuse);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Connects to a real TLS port with a self-signed certificate. The program has installed no provider of cryptography.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test]
async fn a_server_is_reached_over_tls() {
    let server = TestServer::start_tls().await;
    let tls = crate::Tls::new().authorities_file(server.certificate());
    let url = format!("rediss://localhost:{}", server.tls_port());
    let given = Server::from(&url).tls(tls);
    let mut events = EventRecorder::new();
    let backend = connect(&given, LONG, events.sender()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(backend.clone().run(look("a")).await.unwrap(), Reply::Free);
    }
    assert_eq!((server.count("evalsha").await, server.count("eval").await), (1, 1));
    backend.subscribe("c");
    assert_eq!(events.next().await, Event::Subscribed("c".into()));

    // No authority has signed the certificate.
    let error = connect(&url.as_str().into(), LONG, events.sender()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A user for whom the server may report replaced data, and one whose grants are followed by `INFO`.
const WATCHES: &str = "bob:pw@";
const ASKS: &str = "eve:pw@";

async fn one_of_several(options: &[&str]) -> TestServer {
    let server = TestServer::start(options).await;
    server.command("ACL SETUSER bob on >pw ~* &* +@all").await;
    server.command("ACL SETUSER eve on >pw ~* &* +@all -client|tracking").await;
    server
}

/// The server was a replica of one that lacks its data, while its connections stayed up.
#[tokio::test]
async fn a_grant_of_a_master_that_was_a_replica_in_the_meantime_does_not_count() {
    let server = one_of_several(&["--repl-diskless-sync-delay", "0"]).await;
    let between = TestServer::start(&["--repl-diskless-sync-delay", "0"]).await;
    let acknowledged = Some(Replicas { count: 0, wait: SHORT });
    for (user, replicas) in [(WATCHES, None), (ASKS, None), (WATCHES, acknowledged), (ASKS, acknowledged)] {
        let (role, mut events) =
            (Role { alone: false, needs_age: true, replicas, ..ALONE }, EventRecorder::new());
        let (backend, away) =
            RedisServer::connect(&server.url(user).into(), role, LONG, events.sender()).await.unwrap();
        assert!(away.is_none());
        let begun = Instant::now();
        assert_eq!(backend.clone().run(acquire("before")).await.unwrap(), Reply::Done);
        let port = between.url("").rsplit(':').next().unwrap().to_owned();
        server.command(&format!("REPLICAOF 127.0.0.1 {port}")).await;
        until(async || server.command("DBSIZE").await == Value::Int(0)).await;
        server.command("REPLICAOF NO ONE").await;
        assert!(!backend.is_younger_than(begun.elapsed()));
        while events.try_next().is_some() {}
        let reply = backend.clone().run(acquire("after")).await;
        let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable);
        assert!(error.to_string().contains("was a replica for a while"), "{user} {error}");
        while events.next().await != Event::Reconnected {}
        assert!(backend.is_younger_than(begun.elapsed()));
        server.command("FLUSHALL").await;
    }
}

/// As some providers rename the command.
#[tokio::test]
async fn a_grant_counts_on_a_server_that_does_not_know_info() {
    let server = TestServer::start(&["--rename-command", "INFO", ""]).await;
    for replicas in [None, Some(Replicas { count: 0, wait: SHORT })] {
        let (role, events) =
            (Role { alone: false, needs_age: true, replicas, ..ALONE }, EventRecorder::new());
        let (backend, away) =
            RedisServer::connect(&server.url("").into(), role, LONG, events.sender()).await.unwrap();
        assert!(away.is_none());
        for n in 0..3 {
            assert_eq!(backend.clone().run(acquire(&format!("{n}"))).await.unwrap(), Reply::Done);
        }
        server.command("FLUSHALL").await;
    }
}

/// The server reports replaced data over the connection, which costs no command. It is queried only now and then.
#[tokio::test]
async fn a_grant_is_followed_by_info_only_where_nothing_else_shows_that_data_was_replaced() {
    let server = one_of_several(&[]).await;
    for user in [WATCHES, ASKS] {
        let (role, events) =
            (Role { alone: false, needs_age: true, replicas: None, ..ALONE }, EventRecorder::new());
        let (backend, _) =
            RedisServer::connect(&server.url(user).into(), role, LONG, events.sender()).await.unwrap();
        let number = |n: usize| acquire(&format!("{user}{n}"));
        assert_eq!(backend.clone().run(number(0)).await.unwrap(), Reply::Done);
        server.command("CONFIG RESETSTAT").await;
        let began = Instant::now();
        for n in 1..=100 {
            assert_eq!(backend.clone().run(number(n)).await.unwrap(), Reply::Done);
        }
        // At most one per 50 ms of the measured time: far fewer than grants, unless the machine stalls at each of them.
        let due = began.elapsed().as_millis() as u64 / 50 + 2;
        let asked = server.count("info").await;
        let expected = if user == ASKS { asked == 100 } else { asked <= due };
        assert!(expected, "{user} {asked} {due}");
        server.command("CONFIG RESETSTAT").await;
        assert_eq!(backend.clone().run(look("free")).await.unwrap(), Reply::Free);
        assert_eq!(server.count("info").await, 0, "{user}");
        // The data set is still the same, but it is empty now.
        server.command("FLUSHALL").await;
        server.command("CONFIG RESETSTAT").await;
        assert_eq!(backend.clone().run(number(1)).await.unwrap(), Reply::Done, "{user}");
        assert_eq!(server.count("info").await, 1, "{user}");
    }
    let (alone, _events) = connected(&server, LONG).await;
    server.command("CONFIG RESETSTAT").await;
    assert_eq!(alone.run(acquire("alone")).await.unwrap(), Reply::Done);
    assert_eq!(server.count("info").await, 0);
}

/// Nothing is reported if a server followed, for a while, another one that had all of its data.
#[tokio::test]
async fn a_grant_after_a_pause_is_followed_by_info_though_nothing_was_reported() {
    let server = one_of_several(&[]).await;
    let (role, events) =
        (Role { alone: false, needs_age: true, replicas: None, ..ALONE }, EventRecorder::new());
    let (backend, _) =
        RedisServer::connect(&server.url(WATCHES).into(), role, LONG, events.sender()).await.unwrap();
    assert_eq!(backend.clone().run(acquire("first")).await.unwrap(), Reply::Done);
    server.command("REPLICAOF 127.0.0.1 1").await;
    server.command("REPLICAOF NO ONE").await;
    // The pause is longer than a grant may go without an `INFO`.
    tokio::time::sleep(SHORT).await;
    let reply = backend.clone().run(acquire("second")).await;
    let error = failed(reply, Outcome::Unknown, ErrorKind::Unavailable);
    assert!(error.to_string().contains("was a replica for a while"), "{error}");
}

/// Both are sent in one packet, so that the report and the grant arrive together.
#[tokio::test]
async fn what_is_reported_while_a_grant_is_under_way_is_looked_at() {
    let server = one_of_several(&[]).await;
    let (role, events) =
        (Role { alone: false, needs_age: true, replicas: None, ..ALONE }, EventRecorder::new());
    let (backend, _) =
        RedisServer::connect(&server.url(WATCHES).into(), role, LONG, events.sender()).await.unwrap();
    assert_eq!(backend.clone().run(acquire("first")).await.unwrap(), Reply::Done);
    server.command("CONFIG RESETSTAT").await;
    let link = backend.slot.link_now().unwrap();
    let flushall = redis::cmd("FLUSHALL");
    let (flushed, reply) =
        tokio::join!(link.connection.send(&flushall, None), backend.clone().run(acquire("second")));
    assert_eq!((flushed.unwrap(), reply.unwrap()), (Value::Okay, Reply::Done));
    assert_eq!(server.count("info").await, 1);
}

/// In this order: 1. An acquire is granted. 2. The server reports that data was replaced, and the connection
/// is lost. 3. The grant is checked: the command that shows whether it counts can't be sent, but the acquire
/// has run.
#[tokio::test]
async fn a_grant_that_can_not_be_looked_at_has_run() {
    let server = one_of_several(&[]).await;
    let (role, events) =
        (Role { alone: false, needs_age: true, replicas: None, ..ALONE }, EventRecorder::new());
    let (backend, _) =
        RedisServer::connect(&server.url(WATCHES).into(), role, LONG, events.sender()).await.unwrap();
    assert_eq!(backend.clone().run(acquire("first")).await.unwrap(), Reply::Done);
    let link = backend.slot.link_now().unwrap();
    // Otherwise an `INFO` is sent with the acquire if the machine stalls.
    link.status.data.confirm(Instant::now() + LONG);
    let (sent, acquire) = (server.count("evalsha").await, acquire("second"));
    let mut asked = Box::pin(backend.answer(&acquire, false, Instant::now() + LONG));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asked.as_mut().poll(&mut context).is_pending());
    until(async || server.count("evalsha").await > sent).await;
    server.command("FLUSHALL").await;
    server.command("CLIENT KILL USER bob").await;
    until(async || link.status.ended.load(std::sync::atomic::Ordering::SeqCst)).await;
    failed(asked.await, Outcome::Unknown, ErrorKind::Unavailable);
}

fn renew(key: &str) -> Call {
    let call = acquire(key);
    Call { action: Action::Renew { lease: call.action.lease().unwrap() }, ..call }
}

/// Each hold gets its own answer, even if one is gone, is no lock, or is of unknown outcome.
#[tokio::test]
async fn many_holds_are_renewed_by_a_few_commands_and_each_is_answered() {
    let server = TestServer::start(&[]).await;
    let (backend, _events) = connected(&server, Duration::from_secs(10)).await;
    let keys: Vec<String> = (0..250).map(|at| format!("lock:{at}")).collect();
    let acquired = backend.clone().run_all(keys.iter().map(|key| acquire(key)).collect()).await;
    assert!(acquired.into_iter().all(|answer| answer.unwrap().is_grant()));
    backend.slot().link_now().unwrap().connection.has_sent_all();
    server.command("DEL lock:3").await;
    server.command("SET lock:150 other").await;
    server.command("PERSIST lock:7").await;
    for key in &keys[10..] {
        server.command(&format!("PEXPIRE {key} 5000")).await;
        if key == "lock:20" {
            break;
        }
    }
    for unknown in [true, false, true] {
        if unknown {
            server.command("SCRIPT FLUSH").await;
        }
        server.command("CONFIG RESETSTAT").await;
        let calls: Vec<Call> = keys.iter().map(|key| renew(key)).collect();
        let answers = backend.clone().run_all(calls).await;
        for (key, answer) in keys.iter().zip(answers) {
            let expected = if ["lock:3", "lock:150"].contains(&&**key) { Reply::Gone } else { Reply::Done };
            assert_eq!(answer.unwrap(), expected, "{key}");
        }
        // The first three renew all holds, and two more are sent for the holds that these report as gone.
        assert_eq!(server.count("eval").await, if unknown { 5 } else { 0 });
        assert!(server.count("evalsha").await <= 5);
    }
    for key in ["lock:7", "lock:15", "lock:249"] {
        let Value::Int(left) = server.command(&format!("PTTL {key}")).await else { panic!("no number") };
        assert!(left > 20_000, "{key}: {left}");
    }
    assert_eq!(server.command("GET lock:150").await, Value::BulkString(b"other".to_vec()));
}

/// First the user has rights to some keys only. Then the user loses the rights to the commands of the
/// scripts.
#[tokio::test]
async fn of_many_holds_those_for_which_a_right_is_missing_are_denied_and_the_others_renewed() {
    let server = TestServer::start(&[]).await;
    let (all, _events) = connected(&server, Duration::from_secs(10)).await;
    let keys: Vec<String> =
        (0..6).map(|at| format!("{}:{at}", if at == 4 { "theirs" } else { "ours" })).collect();
    all.run_all(keys.iter().map(|key| acquire(key)).collect()).await;
    server.command("ACL SETUSER bob on >pw ~ours:* &* +@all").await;
    let events = EventRecorder::new();
    let url = server.url("bob:pw@");
    let bob =
        RedisServer::connect(&url.into(), ALONE, Duration::from_secs(10), events.sender()).await.unwrap().0;
    let renewed = async || bob.clone().run_all(keys.iter().map(|key| renew(key)).collect()).await;
    for (key, answer) in keys.iter().zip(renewed().await) {
        match key.starts_with("ours") {
            true => assert_eq!(answer.unwrap(), Reply::Done, "{key}"),
            false => drop(failed(answer, Outcome::NotRun, ErrorKind::Denied)),
        }
    }
    // The refusal of a script's only write shows that nothing was written.
    for (right, outcome) in
        [("-hget", Outcome::Unknown), ("-pttl", Outcome::NotRun), ("-pexpire", Outcome::NotRun)]
    {
        server.command(&format!("ACL SETUSER bob ~* +@all {right}")).await;
        for key in &keys {
            server.command(&format!("PEXPIRE {key} 5000")).await;
        }
        for answer in renewed().await {
            failed(answer, outcome, ErrorKind::Denied);
        }
    }
}

/// A proxy in front of several shards looks like one server, and refuses a script with keys of more than one of them.
#[tokio::test(start_paused = true)]
async fn many_holds_are_renewed_one_by_one_where_a_script_may_not_have_their_keys() {
    for refusal in ["CROSSSLOT Keys in request don't hash to the same slot", "ERR multi-key is not supported"]
    {
        let server = FakeServer::start("a", move |words| match words {
            ["EVAL" | "EVALSHA", _, "1", ..] => Some(":-1\r\n".to_owned()),
            ["EVAL" | "EVALSHA", ..] => Some(format!("-{refusal}\r\n")),
            words => usual(words),
        });
        let events = EventRecorder::new();
        let limit = Duration::from_secs(10);
        let backend =
            RedisServer::connect(&"redis://a:1".into(), ALONE, limit, events.sender()).await.unwrap().0;
        let answers = backend.clone().run_all(["one", "two", "three"].map(renew).into()).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap() == Reply::Done), "{refusal}");
        assert_eq!((server.count("EVALSHA"), server.count("EVAL ")), (2, 2));
    }
}

/// This holds too if the script is unknown and its text is sent, as it is the first time.
#[tokio::test]
async fn an_end_is_answered_by_how_many_are_subscribed() {
    let server = TestServer::start(&[]).await;
    let mut events = EventRecorder::new();
    let (backend, _) =
        RedisServer::connect(&server.url("").into(), ALONE, LONG, events.sender()).await.unwrap();
    let end = Call { action: Action::END, ..acquire("stock") };
    for (subscribed, expected) in [
        (false, Reply::Ended(Notice::Sent(0))),
        (false, Reply::Ended(Notice::Sent(0))),
        (true, Reply::Ended(Notice::Sent(1))),
    ] {
        backend.clone().run(acquire("stock")).await.unwrap();
        if subscribed {
            backend.subscribe(end.keys.channel());
            while events.next().await != Event::Subscribed(end.keys.channel().to_string()) {}
        }
        assert_eq!(backend.clone().run(end.clone()).await.unwrap(), expected);
    }
    assert_eq!(backend.clone().run(end.clone()).await.unwrap(), Reply::Gone);
    // Only an end is answered with that number, not a settle.
    backend.clone().run(acquire("stock")).await.unwrap();
    backend.unsubscribe(end.keys.channel());
    let settle = Call { action: Action::Settle { count: 0, lease: Lease::DEFAULT }, ..end };
    assert_eq!(backend.clone().run(settle).await.unwrap(), Reply::Done);
}
