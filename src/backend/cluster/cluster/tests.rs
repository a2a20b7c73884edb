use super::*;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::testing::{ALONE, EventRecorder, TestServer, until};

const LONG: Duration = Duration::from_secs(10);

/// Connects to an address where nobody listens.
async fn nowhere(sharded: bool) -> (Arc<Cluster>, EventRecorder) {
    let events = EventRecorder::new();
    let seeds = Seeds::new([("127.0.0.1", 1)]);
    let cluster = Cluster::new(&seeds, ALONE, sharded, events.sender()).unwrap();
    assert_eq!(cluster.connect().await.unwrap().unwrap().kind(), ErrorKind::Unavailable);
    (cluster, events)
}

#[tokio::test]
async fn a_cluster_that_is_away_is_used_once_it_is_there_and_a_wrong_option_is_an_error() {
    let (cluster, _events) = nowhere(false).await;
    assert!(!cluster.is_portable() && !cluster.is_younger_than(LONG));
    cluster.nodes.moved(0, &NodeAddress { host: "127.0.0.1".into(), port: 2 });
    assert!(cluster.is_younger_than(LONG));
    cluster.close();
    let (server, events) = (TestServer::start(&[]).await, EventRecorder::new());
    let seeds = Seeds::new([server.url("")]);
    let cluster = Cluster::new(&seeds, ALONE, false, events.sender()).unwrap();
    let error = cluster.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn nothing_is_wanted_of_a_cluster_that_is_left() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for (close, sharded) in [(true, false), (false, false), (true, true), (false, true)] {
        let (cluster, _events) = nowhere(sharded).await;
        let wanted = cluster.nodes.wanted.subscribe();
        cluster.subscribe("c");
        until(async || *wanted.borrow()).await;
        cluster.unsubscribe("c");
        until(async || !*wanted.borrow()).await;
        assert!(metrics.num_alive_tasks() > 0);
        let _kept = close.then(|| cluster.clone());
        if close {
            cluster.close();
        }
        drop(cluster);
        until(async || metrics.num_alive_tasks() == 0).await;
    }
}
