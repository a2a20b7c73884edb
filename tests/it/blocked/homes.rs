//! A task that computes without an `.await` keeps its own lock and its neighbour's, on each kind of home.

use std::time::Duration;

use nestlock::{Builder, Locks};
use tokio::task::JoinSet;

use super::{Blocked, LEASE, Runtime};
use crate::support::cluster::Cluster;
use crate::support::sentinel::{Group, Setup};
use crate::support::server::Server;
use crate::support::{builder, eventually, options, quorum};

async fn strangers(builder: Builder) -> Locks {
    builder.lease(LEASE).connect().await.unwrap()
}

async fn keeps_all(builder: Builder, kind: Runtime) {
    let strangers = strangers(builder.clone()).await;
    Blocked::begin(builder.lease(LEASE), kind).await.keeps_all(&strangers).await;
}

#[tokio::test]
async fn a_task_that_computes_for_three_leases_keeps_all_locks_of_its_process() {
    let server = Server::start().await;
    let mut kinds = JoinSet::new();
    for kind in [
        Runtime::OneThread,
        Runtime::Workers { all: 1, blocked: 1 },
        Runtime::Workers { all: 2, blocked: 1 },
        Runtime::Workers { all: 2, blocked: 2 },
        Runtime::Workers { all: 8, blocked: 1 },
        Runtime::Workers { all: 8, blocked: 8 },
    ] {
        kinds.spawn(keeps_all(builder(&server.url()).prefix(format!("{kind:?}:")), kind));
    }
    while let Some(ended) = kinds.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_task_that_keeps_the_reader_of_answers_from_running_keeps_all_locks_too() {
    let server = Server::start().await;
    let strangers = strangers(builder(&server.url())).await;
    Blocked::behind_a_reader(builder(&server.url()).lease(LEASE)).await.keeps_all(&strangers).await;
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test]
async fn over_tls_too() {
    let server = Server::tls().await;
    keeps_all(builder(&format!("{}/#insecure", server.tls_url())), Runtime::OneThread).await;
}

#[tokio::test]
async fn of_a_master_that_sentinels_monitor_too() {
    let group = Group::with(Setup { silent: true, ..Setup::default() }).await;
    keeps_all(group.builder(), Runtime::OneThread).await;
}

#[tokio::test]
async fn on_a_cluster_too() {
    let cluster = Cluster::start().await;
    keeps_all(options(nestlock::Master::cluster(cluster.urls())), Runtime::Workers { all: 1, blocked: 1 })
        .await;
}

/// Replicas take over from the masters, and the blocked runtime can't notice that.
#[tokio::test]
async fn on_a_cluster_whose_replicas_take_over_too() {
    let cluster = Cluster::start().await;
    let builder = options(nestlock::Master::cluster(cluster.urls()));
    let strangers = strangers(builder.clone()).await;
    let blocked = Blocked::begin(builder.lease(LEASE), Runtime::OneThread).await;
    let first = blocked.guards[0].valid_until();
    eventually("a renewal", async || blocked.guards[0].valid_until() > first).await;
    for replica in 3..6 {
        cluster.fail_over(replica).await;
    }
    blocked.keeps_all(&strangers).await;
}

#[tokio::test]
async fn of_a_quorum_too_where_one_master_is_away() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    let builder = quorum(servers.each_ref().map(Server::url)).restart_delay(Duration::ZERO);
    let strangers = strangers(builder.clone()).await;
    let blocked = Blocked::begin(builder.lease(LEASE), Runtime::OneThread).await;
    servers[1].kill();
    blocked.keeps_all(&strangers).await;
}
