use std::io;
use std::sync::Arc;

use redis::RedisError;

use super::*;
use crate::backend::cluster::testing;
use crate::backend::server::Role;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::backend::testing::{ALONE, EventRecorder};
use crate::config::Seeds;
use crate::wire::Action;

fn nodes() -> (Arc<Nodes>, EventRecorder) {
    nodes_of(true)
}

fn nodes_of(alone: bool) -> (Arc<Nodes>, EventRecorder) {
    let events = EventRecorder::new();
    let role = Role { alone, node_timeout: Duration::from_secs(1), ..ALONE };
    let runtime = tokio::runtime::Handle::current();
    let nodes = Nodes::new(Seeds::new([("127.0.0.1", 1)]), role, events.sender(), None, runtime);
    (nodes, events)
}

fn look() -> Call {
    Call::of("stock", "", Action::Look)
}

fn failed(error: RedisError) -> Failure {
    redis_error::failed(error, &look(), &"asked:1".into())
}

fn refused(wire: &str) -> Failure {
    let value = redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
    failed(value.extract_error().unwrap_err())
}

/// Returns how a call is sent again after the node `asked` has answered with this failure.
fn retry(nodes: &Nodes, failure: &Failure) -> Option<Retry> {
    nodes.retry(&look(), failure, Some(&NodeAddress { host: "asked".into(), port: 1 }))
}

fn node_address(port: u16) -> NodeAddress {
    NodeAddress { host: "127.0.0.1".into(), port }
}

#[tokio::test]
async fn redirections_are_followed_and_the_new_owner_of_a_slot_is_remembered() {
    let (nodes, _events) = nodes();
    assert!(nodes.owner(slot("stock")).is_err());
    assert_eq!(retry(&nodes, &refused("MOVED 7 127.0.0.1:7")), Some(Retry::AtOwner));
    assert_eq!(nodes.owner(slot("stock")).unwrap().node_address, node_address(7));
    assert_eq!(retry(&nodes, &refused("ASK 7 127.0.0.1:8")), Some(Retry::Asking(node_address(8))));
    assert_eq!(nodes.owner(slot("stock")).unwrap().node_address, node_address(7));
    assert_eq!(retry(&nodes, &refused("MOVED 7 :9")), Some(Retry::AtOwner));
    assert_eq!(&*nodes.owner(slot("stock")).unwrap().node_address.host, "asked");
    nodes.close();
}

#[tokio::test]
async fn a_call_that_certainly_did_not_run_is_retried_later() {
    let (nodes, _events) = nodes();
    for wire in [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "BUSY Redis is busy running a script.",
        "MOVED 7 nowhere",
    ] {
        assert_eq!(retry(&nodes, &refused(wire)), Some(Retry::Later), "{wire}");
    }
}

#[tokio::test]
async fn a_call_that_may_have_run_or_would_fail_again_is_not_retried() {
    let (nodes, _events) = nodes();
    for wire in [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "OOM command not allowed when used memory > 'maxmemory'. script: user_script, nothing written",
        "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
        "MOVED 7 127.0.0.1:7 script: f00, on @user_script:1.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOAUTH Authentication required.",
        "WHATEVER it is",
    ] {
        assert_eq!(retry(&nodes, &refused(wire)), None, "{wire}");
    }
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused] {
        assert_eq!(retry(&nodes, &failed(io::Error::from(kind).into())), None, "{kind}");
    }
    let silent = redis_error::unanswered(&look(), Duration::from_secs(1), None, &"asked:1".into());
    assert_eq!(nodes.retry(&look(), &silent, None), None);
}

/// If a node is not the only master, the others may still answer. With a paused clock, a call that waits
/// loops forever.
#[tokio::test(start_paused = true)]
async fn only_the_only_master_waits_for_a_node_that_serves_the_slot() {
    for alone in [true, false] {
        let (nodes, _events) = nodes_of(alone);
        for many in [false, true] {
            let begun = Instant::now();
            let answers = match many {
                true => nodes.answer_all(&[look(), look()]).await,
                false => vec![nodes.answer(&look(), nodes.limit()).await],
            };
            assert_eq!(answers.len(), 1 + usize::from(many));
            for answer in answers {
                let failure = answer.unwrap_err();
                assert_eq!(
                    (failure.outcome, failure.error.kind()),
                    (Outcome::NotRun, ErrorKind::Unavailable)
                );
            }
            assert_eq!(begun.elapsed() >= Duration::from_millis(750), alone);
        }
        nodes.close();
    }
}

#[test]
fn redirections_that_were_followed_in_vain_are_reported_as_such() {
    let of = |wire: &str| final_failure(refused(wire), &look());
    for wire in ["MOVED 7 127.0.0.1:7", "ASK 7 127.0.0.1:7"] {
        let failure = of(wire);
        assert_eq!((failure.outcome, failure.error.kind()), (Outcome::NotRun, ErrorKind::Unavailable));
        assert!(failure.error.to_string().contains("to each other"), "{}", failure.error);
    }
    assert!(!of("LOADING it loads").error.to_string().contains("to each other"));
}

/// With a paused clock, calls that are retried would be retried forever.
#[tokio::test(start_paused = true)]
async fn calls_after_close_are_closed() {
    let (nodes, _events) = nodes();
    retry(&nodes, &refused("MOVED 7 127.0.0.1:7"));
    nodes.close();
    let closed = |answer: CallResult| answer.unwrap_err().error.kind() == ErrorKind::Closed;
    assert!(closed(nodes.answer(&look(), nodes.limit()).await));
    assert!(nodes.answer_all(&[look(), look()]).await.into_iter().all(closed));
}

#[tokio::test(start_paused = true)]
async fn half_of_the_time_is_half_of_what_is_left() {
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let limit = Limit::new(8 * second);
    assert_eq!((limit.send_by, limit.answer_by), (begun + 6 * second, begun + 8 * second));
    tokio::time::advance(2 * second).await;
    let half = limit.half();
    assert_eq!((half.send_by, half.answer_by), (begun + 4 * second, begun + 5 * second));
    assert!(!half.is_over());
    tokio::time::advance(2 * second).await;
    assert!(half.is_over() && !limit.is_over());
    tokio::time::advance(2 * second).await;
    assert!(limit.is_over());
}

#[tokio::test]
async fn calls_to_one_node_are_sent_together_and_those_without_one_by_themselves() {
    let (nodes, _events) = nodes();
    let calls = ["a", "b", "c", "d", "e", "f"].map(|key| Call::of(key, "", Action::Look));
    for (call, port) in calls.iter().zip([7, 8, 7, 8]) {
        nodes.moved(slot(call.key()), &node_address(port));
    }
    let parts = nodes.parts(&calls, (0..calls.len()).collect()).into_iter();
    let parts = parts.map(|(node, part)| (node.ok().map(|node| node.node_address.port), part));
    let expected = [(Some(7), vec![0, 2]), (Some(8), vec![1, 3]), (None, vec![4]), (None, vec![5])];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
    nodes.close();
}

const SECOND: Duration = Duration::from_secs(1);

/// Starts a node that serves the slot and answers calls by `answer`.
fn owner(mut answer: impl FnMut() -> Option<String> + Send + 'static) -> FakeServer {
    FakeServer::start("a", move |words| match words {
        ["CLUSTER", "SLOTS"] => Some(testing::slots("a b", "")),
        ["EVAL" | "EVALSHA", ..] => answer(),
        _ => usual(words),
    })
}

async fn connected() -> (Arc<Nodes>, EventRecorder) {
    let (nodes, events) = testing::nodes(&["a"]);
    nodes.install(&testing::topology("a b", ""));
    assert!(nodes.wait_connected().await.unwrap().is_none());
    (nodes, events)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_put_off_is_sent_again_after_a_pause() {
    let a = owner(|| Some("-CLUSTERDOWN The cluster is down\r\n".to_owned()));
    let (nodes, _events) = connected().await;
    assert_eq!(nodes.answer(&look(), nodes.limit()).await.unwrap_err().outcome, Outcome::NotRun);
    // The call is retried until three quarters of the second are over.
    assert!((10..=16).contains(&a.count("EVAL")), "{}", a.count("EVAL"));
    nodes.close();
}

/// The calls may have been given up, and their holds may have ended.
#[tokio::test(start_paused = true)]
async fn calls_whose_refusal_is_read_too_late_are_not_sent_again() {
    let a = owner(|| Some("-CLUSTERDOWN The cluster is down\r\n".to_owned()));
    let (nodes, _events) = connected().await;
    let calls = [look()];
    let mut answers = Box::pin(nodes.answer_all(&calls));
    assert!(timeout_at(Instant::now(), &mut answers).await.is_err());
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(answers.await.remove(0).unwrap_err().outcome, Outcome::NotRun);
    assert_eq!(a.count("EVAL"), 1);
    nodes.close();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_sent_again_has_the_time_that_is_left() {
    let a = owner(|| None);
    let (nodes, _events) = connected().await;
    tokio::spawn(async move {
        tokio::time::sleep(SECOND / 2).await;
        a.send("-CLUSTERDOWN The cluster is down\r\n");
    });
    let begun = Instant::now();
    assert_eq!(nodes.answer(&look(), nodes.limit()).await.unwrap_err().outcome, Outcome::Unknown);
    assert!((SECOND * 9 / 10..SECOND * 5 / 4).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    nodes.close();
}

/// In all other cases the script has published the release to the node that waiters are subscribed at.
#[tokio::test(start_paused = true)]
async fn a_release_that_the_next_owner_of_its_slot_ran_is_published_at_this_one() {
    for bits in 0..8 {
        let [asking, sharded, released] = [1, 2, 4].map(|bit| bits & bit != 0);
        let a = owner(|| None);
        let reply = if released { Reply::Done } else { Reply::Gone };
        let b = FakeServer::start("b", move |words| match words {
            ["CLUSTER", "SLOTS"] => Some(testing::slots("a b", "")),
            ["EVAL" | "EVALSHA", ..] => Some(reply.write()),
            _ => usual(words),
        });
        let (nodes, _events) = connected().await;
        let call = Call { sharded, ..Call::of("stock", "me:1", Action::END) };
        let migrating_to = asking.then(|| testing::at("b"));
        if !asking {
            nodes.moved(slot("stock"), &testing::at("b"));
        }
        let (answer, node) = nodes.send(&call, migrating_to, nodes.limit()).await;
        assert_eq!((answer.is_ok(), node), (true, Some(testing::at("b"))));
        tokio::time::sleep(SECOND).await;
        let published = usize::from(asking && sharded && released);
        assert_eq!((a.count("SPUBLISH"), b.count("SPUBLISH")), (published, 0), "{bits}");
        nodes.close();
    }
}
