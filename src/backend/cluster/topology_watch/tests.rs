use tokio::time::timeout;

use super::*;
use crate::backend::cluster::testing::{node, nodes, reports, slots};
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::base::telemetry::testing::Recorder;

/// The pause is measured from one query to the next.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_subscribed_to_is_queried_every_few_seconds_and_an_idle_one_is_not() {
    let a = node("a", slots("a", ""));
    let (nodes, _events) = nodes(&["a"]);
    nodes.install(&nodes.query_topology().await.unwrap());
    assert!(nodes.wait_connected().await.unwrap().is_none());
    let watches = tokio::spawn(watch_topology(nodes.clone()));
    let mut changes = nodes.changes.subscribe();
    assert!(timeout(20 * POLL, changes.changed()).await.is_err(), "nobody uses it");
    nodes.wanted.send_replace(true);
    timeout(POLL, changes.changed()).await.expect("it is not queried").unwrap();
    for _ in 0..100 {
        let (before, asked) = (Instant::now(), a.count("CLUSTER SLOTS"));
        timeout(2 * POLL, changes.changed()).await.expect("it is not queried").unwrap();
        let pause = before.elapsed();
        assert!((POLL * 2 / 3..=POLL).contains(&pause), "{pause:?}");
        assert_eq!(a.count("CLUSTER SLOTS"), asked + 1);
    }
    watches.abort();
    nodes.close();
}

#[tokio::test(start_paused = true)]
async fn the_first_call_after_a_while_triggers_a_query_and_the_last_ones_one_more() {
    let a = node("a", slots("a", ""));
    let (nodes, _events) = nodes(&["a"]);
    nodes.install(&nodes.query_topology().await.unwrap());
    assert!(nodes.wait_connected().await.unwrap().is_none());
    let watches = tokio::spawn(watch_topology(nodes.clone()));
    sleep(2 * POLL).await;
    for _ in 0..3 {
        let asked = a.count("CLUSTER SLOTS");
        nodes.called.notify_one();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(a.count("CLUSTER SLOTS"), asked + 1, "the first call");
        for _ in 0..2 {
            nodes.called.notify_one();
            sleep(Duration::from_millis(1)).await;
        }
        sleep(20 * POLL).await;
        assert_eq!(a.count("CLUSTER SLOTS"), asked + 2, "an idle client sends no queries");
    }
    watches.abort();
    nodes.close();
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_cluster_is_logged_once() {
    let log = Recorder::start();
    let a = node("a", slots("a", ""));
    let (nodes, _events) = nodes(&["a"]);
    nodes.install(&nodes.query_topology().await.unwrap());
    assert!(nodes.wait_connected().await.unwrap().is_none());
    nodes.wanted.send_replace(true);
    let watches = tokio::spawn(watch_topology(nodes.clone()));
    let logged = || log.count("no node of the cluster reports its topology");
    for outages in 1..3 {
        let asked = a.count("CLUSTER SLOTS");
        a.answers(|_| None);
        sleep(20 * POLL).await;
        assert!(a.count("CLUSTER SLOTS") > asked + 2, "it is asked again and again");
        assert_eq!(logged(), outages);
        a.answers(reports(slots("a", "")));
        // It never answers the queries that it has left unanswered.
        a.hang_up();
        sleep(20 * POLL).await;
        assert_eq!(logged(), outages);
    }
    watches.abort();
    nodes.close();
}

/// A seed may be gone for good.
#[tokio::test(start_paused = true)]
async fn a_late_seed_that_hangs_is_queried_less_and_less_often_until_it_answers() {
    let _a = node("a", slots("a", ""));
    let late =
        FakeServer::start("late", |words| if words == ["CLUSTER", "SLOTS"] { None } else { usual(words) });
    let (nodes, _events) = nodes(&["a", "late"]);
    nodes.install(&nodes.query_topology().await.unwrap());
    assert!(nodes.wait_connected().await.unwrap().is_none());
    let watches = tokio::spawn(watch_topology(nodes.clone()));
    let asked = async |time| {
        let before = late.count("CLUSTER SLOTS");
        sleep(time).await;
        late.count("CLUSTER SLOTS") - before
    };
    let (minute, hour) = (asked(12 * POLL).await, asked(12 * 60 * POLL).await);
    assert!((4..8).contains(&minute) && (57..95).contains(&hour), "{minute} {hour}");
    late.answers(reports(slots("a", "")));
    late.hang_up();
    sleep(15 * POLL).await;
    assert_eq!((nodes.identity.unconfirmed_seeds(), asked(12 * POLL).await), (Vec::new(), 0));
    watches.abort();
    nodes.close();
}

/// A seed that hangs may do so for years.
#[tokio::test(start_paused = true)]
async fn a_late_seed_that_hangs_delays_no_query_of_the_topology() {
    let a = node("a", slots("a", ""));
    let late =
        FakeServer::start("late", |words| if words == ["CLUSTER", "SLOTS"] { None } else { usual(words) });
    let (nodes, _events) = nodes(&["a", "late"]);
    nodes.install(&nodes.query_topology().await.unwrap());
    assert!(nodes.wait_connected().await.unwrap().is_none());
    let watches = tokio::spawn(watch_topology(nodes.clone()));
    for _ in 0..5 {
        let (asked, late_asked) = (a.count("CLUSTER SLOTS"), late.count("CLUSTER SLOTS"));
        while late.count("CLUSTER SLOTS") == late_asked {
            sleep(Duration::from_millis(10)).await;
        }
        nodes.request_topology();
        sleep(Duration::from_millis(50)).await;
        assert_eq!(a.count("CLUSTER SLOTS"), asked + 1);
    }
    watches.abort();
    nodes.close();
}
