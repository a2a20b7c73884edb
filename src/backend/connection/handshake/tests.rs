use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::backend::testing::commands;
use crate::base::telemetry::testing::Recorder;

const INFO: &str = "$55\r\nrun_id:one\r\nmaster_replid:two\r\nuptime_in_seconds:3600\r\n\r\n";
const DENIED: &str = "-NOPERM no\r\n";
const UNKNOWN: &str = "-ERR unknown command 'INFO', with args beginning with: 'server' \r\n";
const LOADING: &str = "-LOADING it loads\r\n";
const OK: &str = "+OK\r\n";

/// Checks a server that gives these answers to one write. Also returns whether the server then counts as
/// older than a minute.
async fn checked(purpose: Purpose, answers: &[&str]) -> (Result<Option<Arc<str>>>, bool) {
    let (ours, mut server) = duplex(1024);
    let connection = commands(ours).await;
    let address: Arc<str> = "host:1".into();
    let slot = ConnectionSlot::new(address.clone(), Duration::from_secs(9), true, None);
    let data = DataWatch::default();
    let check = async {
        let checked = purpose.check(&connection, &slot, &data, &address).await;
        drop(connection);
        checked
    };
    let answer = async move {
        let mut bytes = [0; 1024];
        let read = server.read(&mut bytes).await.unwrap();
        server.write_all(answers.concat().as_bytes()).await.unwrap();
        bytes[..read].iter().filter(|byte| **byte == b'*').count()
    };
    let (checked, commands) = tokio::join!(check, answer);
    assert_eq!(commands, answers.len(), "a command took a round trip of its own");
    let is_old = !slot.server_info.is_younger_than(Duration::from_secs(60), Instant::now());
    (checked, is_old)
}

const WAS_REPLICA: &str =
    "$74\r\nrun_id:one\r\nmaster_replid:two\r\nuptime_in_seconds:3600\r\nmaster_replid2:on\r\n\r\n";

/// Otherwise, making a connection over a slow network would take longer than its limit.
#[tokio::test]
async fn all_that_a_connection_is_checked_for_takes_one_round_trip() {
    let purpose = Purpose {
        one_of_several: true,
        reads_policy: true,
        needs_age: true,
        checks_role: true,
        sends_wait: true,
        needs_run_id: true,
    };
    let (checked, is_old) = checked(purpose, &[OK, "*0\r\n", OK, INFO, INFO, INFO, ":0\r\n"]).await;
    assert_eq!((checked.unwrap().as_deref(), is_old), (Some("one"), true));
}

/// A lone server needs no age. With sentinels and in clusters, replicas take over as a matter of course.
#[tokio::test]
async fn one_of_several_servers_that_was_a_replica_is_young_and_a_master_that_sentinels_name_is_not() {
    for (one_of_several, checks_role, info, old) in [
        (true, false, WAS_REPLICA, false),
        (true, false, INFO, true),
        (true, true, WAS_REPLICA, true),
        (false, false, WAS_REPLICA, true),
    ] {
        let purpose = Purpose { needs_age: true, one_of_several, checks_role, ..Purpose::default() };
        let hello = checks_role.then_some("*0\r\n");
        let answers = [OK].into_iter().chain(hello).chain([OK, info, info]).collect::<Vec<_>>();
        let (checked, is_old) = checked(purpose, &answers).await;
        assert_eq!((checked.is_ok(), is_old), (true, old), "{one_of_several} {checks_role} {info}");
    }
}

/// `INFO` is not required: the user may lack the right, and a provider may have renamed it. Any other error may hide that the server is young.
#[tokio::test]
async fn a_server_whose_age_cannot_be_read_is_used_only_where_it_never_can_be() {
    let purpose = Purpose { needs_age: true, ..Purpose::default() };
    for (answers, works) in [
        ([OK, OK, INFO, INFO], true),
        ([OK, DENIED, INFO, INFO], true),
        ([OK, OK, DENIED, DENIED], true),
        ([OK, OK, UNKNOWN, UNKNOWN], true),
        ([UNKNOWN, OK, INFO, INFO], true),
        ([OK, OK, LOADING, LOADING], false),
        ([OK, OK, INFO, LOADING], false),
        ([DENIED, OK, INFO, INFO], true),
        ([LOADING, OK, INFO, INFO], false),
    ] {
        let log = Recorder::start();
        let (checked, is_old) = checked(purpose, &answers).await;
        let is_known = !works || answers[2] == INFO;
        assert_eq!(log.count("does not report its uptime"), usize::from(!is_known), "{answers:?}");
        assert_eq!(checked.map(|run| run.is_none()).ok(), works.then_some(true), "{answers:?}");
        assert!(is_old, "{answers:?}");
    }
}

#[tokio::test]
async fn only_a_pair_needs_the_run_of_its_server() {
    for (paired, answers) in
        [(false, &[OK][..]), (true, &[OK, INFO]), (true, &[OK, DENIED]), (true, &[OK, UNKNOWN])]
    {
        let purpose = Purpose { needs_run_id: paired, ..Purpose::default() };
        let run = checked(purpose, answers).await.0.unwrap();
        assert_eq!(run.as_deref(), answers.contains(&INFO).then_some("one"));
    }
}

#[tokio::test]
async fn a_replica_is_refused_where_the_master_may_change() {
    let [master, replica] =
        ["master", "slave"].map(|role| format!("%2\r\n+mode\r\n+x\r\n+role\r\n+{role}\r\n"));
    for (answer, checks_role, works) in
        [(&master, true, true), (&replica, true, false), (&replica, false, true)]
    {
        let purpose = Purpose { checks_role, ..Purpose::default() };
        let answers = [OK].into_iter().chain(checks_role.then_some(&**answer)).collect::<Vec<_>>();
        assert_eq!(checked(purpose, &answers).await.0.is_ok(), works, "{answer}");
    }
}
