use std::io;
use std::sync::Arc;

use redis::RedisError;

use super::*;
use crate::backend::server::Role;
use crate::backend::testing::Watcher;
use crate::config::Seeds;

fn nodes() -> (Arc<Nodes>, Watcher) {
    let told = Watcher::new();
    let role = Role { alone: true, ages: false, replicas: None };
    let runtime = tokio::runtime::Handle::current();
    let nodes =
        Nodes::new(Seeds::new([("127.0.0.1", 1)]), role, Duration::from_secs(1), told.events(), runtime);
    (nodes, told)
}

fn look() -> Call {
    Call::Look { key: "stock".into() }
}

fn missed(error: RedisError) -> Missed {
    let at = Some(NodeAddress { host: "asked".into(), port: 1 });
    Missed { failure: redis_error::failed(error, &look(), &"asked:1".into()), at }
}

fn refused(wire: &str) -> Missed {
    let value = redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
    missed(value.extract_error().unwrap_err())
}

fn place(port: u16) -> NodeAddress {
    NodeAddress { host: "127.0.0.1".into(), port }
}

#[tokio::test]
async fn a_redirection_is_followed_and_where_a_slot_has_moved_it_is_remembered() {
    let (nodes, _told) = nodes();
    assert!(nodes.owner(slot("stock")).is_err());
    let turn = nodes.turn(&look(), &refused("MOVED 7 127.0.0.1:7"));
    assert!(matches!(turn, Remedy::To(Way::Owner)));
    assert_eq!(nodes.owner(slot("stock")).unwrap().place, place(7));
    let turn = nodes.turn(&look(), &refused("ASK 7 127.0.0.1:8"));
    assert!(matches!(turn, Remedy::To(Way::Asking(to)) if to == place(8)));
    assert_eq!(nodes.owner(slot("stock")).unwrap().place, place(7));
    let turn = nodes.turn(&look(), &refused("MOVED 7 :9"));
    assert!(matches!(turn, Remedy::To(Way::Owner)));
    assert_eq!(&*nodes.owner(slot("stock")).unwrap().place.host, "asked");
    nodes.close();
}

#[tokio::test]
async fn what_certainly_did_not_run_is_sent_again_later() {
    let (nodes, _told) = nodes();
    for wire in [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "BUSY Redis is busy running a script.",
        "MOVED 7 nowhere",
    ] {
        assert!(matches!(nodes.turn(&look(), &refused(wire)), Remedy::Later), "{wire}");
    }
    let refused = missed(io::Error::from(io::ErrorKind::ConnectionRefused).into());
    assert!(matches!(nodes.turn(&look(), &refused), Remedy::Later));
}

#[tokio::test]
async fn what_may_have_run_and_what_time_cannot_mend_is_not_sent_again() {
    let (nodes, _told) = nodes();
    for wire in [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
        "MOVED 7 127.0.0.1:7 script: f00, on @user_script:1.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOAUTH Authentication required.",
        "WHATEVER it is",
    ] {
        assert!(matches!(nodes.turn(&look(), &refused(wire)), Remedy::Over), "{wire}");
    }
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset] {
        let broken = missed(io::Error::from(kind).into());
        assert!(matches!(nodes.turn(&look(), &broken), Remedy::Over), "{kind}");
    }
    let silent = redis_error::unanswered(&look(), Duration::from_secs(1), &"asked:1".into());
    assert!(matches!(nodes.turn(&look(), &Missed { failure: silent, at: None }), Remedy::Over));
}

#[tokio::test]
async fn calls_after_close_are_closed() {
    let (nodes, _told) = nodes();
    nodes.turn(&look(), &refused("MOVED 7 127.0.0.1:7"));
    nodes.close();
    let closed = |answer: CallResult| answer.unwrap_err().error.kind() == ErrorKind::Closed;
    assert!(closed(nodes.answer(&look()).await));
    assert!(nodes.answer_all(&[look(), look()]).await.into_iter().all(closed));
}
