//! Addresses of a cluster that now belong to a node of another cluster.

use futures::future::join_all;
use nestlock::{Error, ErrorKind, Guard, Locks, Loss, Mutex, Owner};
use tracing::Level;

use super::{SECOND, builder};
use crate::support::cluster::Cluster;
use crate::support::server::Server;
use crate::support::{PATIENCE, eventually, log, soon};

/// Returns what a request of another owner gets: `None` if the lock is held, or if its node is away.
async fn tried(stock: &Mutex) -> Option<Guard> {
    match stock.try_lock().owner(&Owner::new()).await {
        Ok(outcome) => outcome,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            None
        }
    }
}

#[tokio::test]
async fn an_address_that_another_cluster_uses_now_takes_nobody_along() {
    let (ours, theirs) = tokio::join!(Cluster::start(), Cluster::start());
    let name = ours.name_on(0, "address").await;
    let connect =
        || async { builder(&ours).node_timeout(2 * SECOND).lease(600 * SECOND).connect().await.unwrap() };
    let stock = connect().await.mutex(&name);
    let guard = soon("the lock", stock.lock()).await.unwrap();
    ours.replicated(0, &name).await;
    // In one process a waiter comes before a `try_lock`, so the two waiters have processes of their own.
    let mut connected = join_all((0..8).map(|_| connect())).await;
    let waiter = |stock: Mutex| async move { stock.lock().await?.release().await };
    let waiting: Vec<_> =
        connected.drain(..2).map(|locks| tokio::spawn(waiter(locks.mutex(&name)))).collect();
    let others: Vec<Mutex> = connected.iter().map(|locks| locks.mutex(&name)).collect();

    // The frozen nodes can't notice yet that another node answers at this address, and nobody can ask them.
    ours.nodes()[1..].iter().for_each(Server::freeze);
    ours.lose_address(0, &theirs).await;
    let port = ours.node(0).port();
    let nobody_gets_it = async || {
        for outcome in soon("an answer for each", join_all(others.iter().map(tried))).await {
            assert!(outcome.is_none(), "two hold it");
        }
    };
    nobody_gets_it().await;
    log::recorded(|e| {
        e.level == Level::WARN && e.mentions("another cluster") && e.mentions(&port.to_string())
    })
    .await;
    nobody_gets_it().await;
    // The node of the other cluster is killed, because a replica would copy whatever it finds at its master's
    // address.
    ours.node(0).kill();
    ours.nodes()[1..].iter().for_each(Server::thaw);
    ours.node(3).ask::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    ours.promoted(3).await;
    let inner = soon("a re-entry", stock.lock()).await.unwrap();
    assert_eq!(ours.fields_on(3, &name).await, [(guard.hold_id().to_owned(), 2)]);
    inner.release().await.unwrap();
    nobody_gets_it().await;
    assert!(!guard.is_lost() && waiting.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(theirs.keys_on(&[0, 1, 2, 3, 4, 5]).await, [""; 0]);

    guard.release().await.unwrap();
    for waiter in waiting {
        soon("a waiter", waiter).await.unwrap().unwrap();
    }
}

fn is_of_two_clusters(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("different clusters"), "{error}");
}

#[tokio::test]
async fn seeds_of_two_clusters_are_a_wrong_option() {
    let (one, other) = tokio::join!(Cluster::start(), Cluster::start());
    for _ in 0..8 {
        // A seed that is late by more than a second is not waited for.
        eventually("the error", async || {
            let seeds = [one.node(0).url(), one.node(4).url(), other.node(1).url()];
            let outcome = Locks::builder(nestlock::Master::cluster(seeds)).connect().await;
            outcome.is_err_and(|error| {
                is_of_two_clusters(&error);
                true
            })
        })
        .await;
    }
}

#[tokio::test]
async fn a_seed_that_comes_later_and_is_of_another_cluster_ends_grants_unless_most_are_of_this_one() {
    let (one, other) = tokio::join!(Cluster::start(), Cluster::start());
    other.node(0).freeze();
    let connect = |seeds: Vec<String>| {
        Locks::builder(nestlock::Master::cluster(seeds)).node_timeout(10 * SECOND).connect()
    };
    let even = connect(vec![one.node(0).url(), other.node(0).url()]).await.unwrap().mutex("seeds");
    let most = [one.node(0).url(), one.node(1).url(), other.node(0).url()];
    let most = connect(most.to_vec()).await.unwrap().mutex("seeds");
    let guard = soon("the lock", even.lock()).await.unwrap();
    other.node(0).thaw();
    let stranger = async || even.try_lock().owner(&Owner::new()).await;
    eventually("its end", async || stranger().await.is_err()).await;
    is_of_two_clusters(&stranger().await.unwrap_err());
    // The hold is still released.
    assert!(soon("an answer", tried(&most)).await.is_none());
    guard.release().await.unwrap();
    log::recorded(|e| {
        e.level == Level::WARN && e.mentions("seed") && e.mentions(&other.node(0).port().to_string())
    })
    .await;
    soon("the lock", most.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_new_cluster_at_the_old_addresses_is_used_after_a_while() {
    let server = Server::with(&["--cluster-enabled", "yes", "--cluster-port", "0"]).await;
    let build = async || {
        server.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        eventually("a cluster that works", async || {
            server.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
    };
    build().await;
    let connect =
        Locks::builder(nestlock::Master::cluster([server.url()])).lease(3 * SECOND).node_timeout(SECOND);
    let stock = connect.unavailable_after(PATIENCE).connect().await.unwrap().mutex("anew");
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let lost = std::time::Instant::now();
    server.restart_as_new_node().await;
    build().await;
    let again = stock.lock().owner(&Owner::new());
    let again = soon("the lock of the new cluster", again).await.unwrap();
    // The new cluster does not grant the lock before each lease that the old one may have granted is over.
    assert!(lost.elapsed() > 2 * SECOND && guard.is_lost(), "{:?}", lost.elapsed());
    again.release().await.unwrap();
}

/// The node's connections stay open, so only commands sent over them make the client query the topology.
#[tokio::test]
async fn a_node_that_joined_another_cluster_without_a_restart_takes_nobody_along_for_long() {
    let (ours, theirs) = tokio::join!(Cluster::start(), Cluster::start());
    let name = ours.name_on(0, "defector").await;
    let connected = builder(&ours).lease(600 * SECOND).connect().await.unwrap();
    let stock = connected.mutex(&name);
    soon("the lock", stock.lock()).await.unwrap().release().await.unwrap();
    ours.defect(0, 1, &theirs, &name).await;
    let left = [1, 2, 4, 5].map(|at| ours.node(at).url());
    let fresh = Locks::builder(nestlock::Master::cluster(left)).lease(600 * SECOND).node_timeout(10 * SECOND);
    let guard = soon("the lock", fresh.connect().await.unwrap().mutex(&name).lock()).await.unwrap();
    // At the very first moment no client can know that the node has changed clusters.
    if let Some(wrong) = soon("an answer", tried(&stock)).await {
        assert_eq!(soon("the loss of what the other cluster granted", wrong.lost()).await, Loss::Gone);
    }
    for _ in 0..20 {
        assert!(soon("an answer", tried(&stock)).await.is_none(), "two hold it");
    }
    assert!(!guard.is_lost());
    let waiting = tokio::spawn(stock.lock());
    guard.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    assert_eq!(ours.fields_on(1, &name).await, [(guard.hold_id().to_owned(), 1)]);
    guard.release().await.unwrap();
}

/// Starts a node that no cluster knows yet.
async fn lone(args: &[&str]) -> Server {
    let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", "0"];
    all.extend(["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"]);
    all.extend(args);
    Server::with(&all).await
}

async fn meet(one: &Server, other: &Server) {
    let port = other.port().to_string();
    one.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &other.bus_port()]).await;
    let id: String = other.ask(&["CLUSTER", "MYID"]).await;
    let own: String = one.ask(&["CLUSTER", "MYID"]).await;
    eventually("both know each other", async || {
        let known: String = one.ask(&["CLUSTER", "NODES"]).await;
        let back: String = other.ask(&["CLUSTER", "NODES"]).await;
        known.contains(&id) && back.contains(&own) && ![known, back].concat().contains("handshake")
    })
    .await;
}

/// Returns whether this node's view of the cluster contains the node `id`.
async fn shows(node: &Server, id: &str) -> bool {
    format!("{:?}", node.ask::<Vec<redis::Value>>(&["CLUSTER", "SLOTS"]).await).contains(id)
}

#[tokio::test]
async fn a_node_that_was_given_to_another_cluster_is_not_believed_while_it_alone_answers() {
    let theirs = Cluster::start().await;
    let master = lone(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let leaver = lone(&[]).await;
    let replica = &leaver;
    master.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    meet(&master, &leaver).await;
    let id: String = replica.ask(&["CLUSTER", "MYID"]).await;
    replica.ask::<()>(&["CLUSTER", "REPLICATE", &master.ask::<String>(&["CLUSTER", "MYID"]).await]).await;
    // A replica that has no data is not in the topology yet.
    eventually("the replica", async || {
        master.try_ask::<()>(&["SET", "any", "thing"]).await.is_ok() && shows(&master, &id).await
    })
    .await;
    let builder = || {
        let seeds = [master.url(), replica.url()];
        Locks::builder(nestlock::Master::cluster(seeds)).lease(600 * SECOND).node_timeout(2 * SECOND)
    };
    let others = join_all((0..4).map(|_| async { builder().connect().await.unwrap().mutex("pair") })).await;
    let ours = builder().connect().await.unwrap();

    replica.ask::<()>(&["CLUSTER", "RESET", "SOFT"]).await;
    master.ask::<()>(&["CLUSTER", "FORGET", &id]).await;
    meet(theirs.node(0), &leaver).await;
    let heir: String = theirs.node(0).ask(&["CLUSTER", "MYID"]).await;
    eventually("it knows its new master", async || {
        replica.try_ask::<()>(&["CLUSTER", "REPLICATE", &heir]).await.is_ok()
    })
    .await;
    eventually("the replica of another", async || {
        shows(theirs.node(0), &id).await && shows(replica, &id).await
    })
    .await;
    let guard = soon("the lock", ours.mutex("pair").lock()).await.unwrap();

    master.kill();
    for outcome in soon("an answer for each", join_all(others.iter().map(tried))).await {
        assert!(outcome.is_none(), "two hold it");
    }
    log::recorded(|e| {
        e.level == Level::WARN && e.mentions("too few") && e.mentions(&format!(":{}", replica.port()))
    })
    .await;
    master.restart().await;
    eventually("answers of the old master", async || {
        let tries = others.iter().map(|stock| stock.try_lock().owner(&Owner::new()).into_future());
        let outcomes = join_all(tries).await;
        outcomes.into_iter().fold(true, |all, outcome| match outcome {
            Ok(granted) => {
                assert!(granted.is_none(), "two hold it");
                all
            }
            Err(_) => false,
        })
    })
    .await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert_eq!(theirs.keys_on(&[0, 1, 2, 3, 4, 5]).await, [""; 0]);
}

#[tokio::test]
async fn the_few_remaining_nodes_of_a_cluster_are_used_after_a_while() {
    let left = lone(&[]).await;
    let gone = [lone(&[]).await, lone(&[]).await];
    for (node, first, last) in [(&left, 0, 99), (&gone[0], 100, 8_000), (&gone[1], 8_001, 16_383)] {
        let range = [first, last].map(|slot: u16| slot.to_string());
        node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await;
    }
    for node in &gone {
        meet(&left, node).await;
    }
    let seeds = [left.url(), gone[0].url(), gone[1].url()];
    let nodes = [&gone[0], &gone[1], &left];
    let mut ids = Vec::new();
    for node in nodes {
        ids.push(node.ask::<String>(&["CLUSTER", "MYID"]).await);
    }
    // For a client whose first topology lacks the remaining node, that node stays a stranger for good.
    for id in &ids {
        for node in nodes {
            eventually("the whole cluster", async || shows(node, id).await).await;
        }
    }
    let connect = Locks::builder(nestlock::Master::cluster(seeds)).lease(3 * SECOND).node_timeout(SECOND);
    let stock = connect.unavailable_after(PATIENCE).connect().await.unwrap().mutex("shrunk");
    for node in &gone {
        node.kill();
    }
    // All views change in one step. Otherwise two of three nodes, and then one of these two, would each be a majority that is believed at
    // once.
    let mut forget = redis::pipe();
    for id in &ids[..2] {
        forget.atomic().cmd("CLUSTER").arg(&["FORGET", id]).ignore();
    }
    let client = redis::Client::open(left.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let begun = std::time::Instant::now();
    forget.query_async::<()>(&mut connection).await.unwrap();
    left.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "100", "16383"]).await;
    let guard = soon("the lock", stock.lock()).await.unwrap();
    // The node may be part of a split cluster, so the client does not use it before the leases of the others are over.
    assert!(begun.elapsed() > 2 * SECOND, "{:?}", begun.elapsed());
    guard.release().await.unwrap();
}
