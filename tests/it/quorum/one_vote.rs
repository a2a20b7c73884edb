//! One server that several addresses lead to.

use std::time::Duration;

use nestlock::{ErrorKind, Locks, Master};
use tracing::Level;

use super::network::{by, ways};
use super::servers::servers;
use crate::support::cluster::Cluster;
use crate::support::proxy::{Proxy, Which};
use crate::support::sentinel::{Group, NAME};
use crate::support::server::Server;
use crate::support::{SECOND, eventually, log, quorum, soon};

fn addresses(one: u16, other: u16) -> [String; 2] {
    [one, other].map(|port| format!("127.0.0.1:{port}"))
}

/// Duplicate addresses are rejected before anything is sent. Only a connection shows which server is behind an address.
#[tokio::test]
async fn one_server_under_two_names_is_rejected() {
    let servers = servers(2).await;
    let second = Proxy::to(&servers[0]).await;
    let urls = || [servers[0].url(), second.url(), servers[1].url()];
    let several = || Locks::quorum(urls()).node_timeout(20 * SECOND);
    let replicated = several().restart_delay(Duration::ZERO).replicas(0, SECOND);
    for builder in [several(), several().restart_delay(Duration::ZERO), replicated] {
        let error = soon("the end", builder.connect()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        for address in addresses(servers[0].port(), second.port()) {
            assert!(error.to_string().contains(&address), "{error}");
        }
    }
}

#[tokio::test]
async fn one_cluster_under_the_names_of_different_nodes_is_rejected() {
    let (cluster, other) = (Cluster::start().await, Server::start().await);
    let urls = cluster.urls();
    let masters = [Master::cluster([&urls[0]]), Master::cluster([&urls[1]]), Master::server(other.url())];
    let error = soon("the end", quorum(masters).connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("one server"), "{error}");
}

#[tokio::test]
async fn a_master_that_leads_to_the_server_of_another_after_a_reconnect_has_no_vote() {
    let servers = servers(3).await;
    let ways = ways(&servers).await;
    let stock = by(&ways).connect().await.unwrap().mutex("stock");
    soon("a run", stock.run(async |_| {})).await.unwrap();
    ways[1].lead_to(&servers[0]);
    ways[1].reset(Which::All).await;
    let names_both = |event: &log::Event| {
        addresses(ways[0].port(), ways[1].port()).iter().all(|address| event.mentions(address))
    };
    log::recorded(|event| event.level == Level::WARN && event.mentions("has no vote") && names_both(event))
        .await;
    soon("a run, with the votes of two servers", stock.run(async |_| {})).await.unwrap();
    servers[2].kill();
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    ways[1].lead_to(&servers[1]);
    soon("a run, with the votes of two servers", stock.run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn a_failover_that_leads_two_masters_to_one_server_leaves_them_one_vote() {
    let (group, other) = (Group::start().await, Server::start().await);
    let [old, next] = [&group.servers[0], &group.servers[1]];
    group.servers[2].set("replica-priority", 0).await;
    let masters =
        [Master::sentinel(group.urls("", ""), NAME), Master::server(next.url()), Master::server(other.url())];
    let builder = quorum(masters).unavailable_after(60 * SECOND).restart_delay(Duration::ZERO);
    let stock = builder.connect().await.unwrap().mutex("stock");
    soon("a run, with the votes of two masters", stock.run(async |_| {})).await.unwrap();
    // The sentinels have to know the priority, which they read only from time to time.
    let knows = |lines: Vec<std::collections::HashMap<String, String>>| {
        lines.iter().any(|replica| replica["slave-priority"] == "0")
    };
    for sentinel in &group.sentinels {
        eventually("the priority", async || {
            knows(sentinel.try_ask(&["SENTINEL", "REPLICAS", NAME]).await.unwrap_or_default())
        })
        .await;
    }
    group.fail_over().await;
    assert_eq!(group.failed_over(old).await.port(), next.port());
    log::recorded(|event| event.mentions("has no vote") && event.mentions(&next.port().to_string())).await;
    soon("a run, with the votes of two servers", stock.run(async |_| {})).await.unwrap();
    other.kill();
    let error = stock.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
