//! How a client connects to a cluster, and the errors if it can't.

use nestlock::{ErrorKind, Locks};

use super::{SECOND, builder};
use crate::support::cluster::Cluster;
use crate::support::server::{Server, allow_its_name, free_port};
use crate::support::{eventually, soon};

#[tokio::test]
async fn one_seed_that_answers_is_enough() {
    let cluster = Cluster::shared().await;
    let dead = || format!("redis://127.0.0.1:{}", free_port());
    // A replica knows the topology as well as a master does.
    for at in [0, 4] {
        let seeds = [dead(), dead(), cluster.node(at).url(), dead()];
        let locks = Locks::builder(nestlock::Master::cluster(seeds))
            .node_timeout(10 * SECOND)
            .connect()
            .await
            .unwrap();
        for name in ["a", "b", "c", "d"] {
            soon("the run", locks.mutex(format!("seeded-{name}")).run(async |_| {})).await.unwrap();
        }
    }
}

#[tokio::test]
async fn without_a_seed_that_answers_it_is_unavailable() {
    let seeds = [free_port(), free_port()].map(|port| format!("redis://127.0.0.1:{port}"));
    let error =
        soon("the end", Locks::builder(nestlock::Master::cluster(seeds)).connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_server_that_is_no_node_of_a_cluster_is_a_wrong_option() {
    let server = Server::start().await;
    let error = Locks::builder(nestlock::Master::cluster([server.url()]))
        .node_timeout(10 * SECOND)
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let message = error.to_string();
    assert!(
        message.contains("without `Master::cluster`") && message.contains(&server.port().to_string()),
        "{message}"
    );
}

#[tokio::test]
async fn what_answers_in_place_of_a_node_is_shown_in_one_line() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let page = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n400 Bad Request";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, page.as_bytes()).await;
        }
    });
    for builder in [Locks::builder(nestlock::Master::cluster([&url])), Locks::builder(&url)] {
        let error = soon("the end", builder.connect()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }
}

#[tokio::test]
async fn a_node_that_is_given_as_a_server_is_reported_as_a_node_of_a_cluster() {
    let cluster = Cluster::shared().await;
    let locks = crate::support::locks(&cluster.node(0).url()).await;
    let name = cluster.name_on(1, "elsewhere").await;
    let error = locks.mutex(&name).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("`Master::cluster`"), "{error}");
}

#[tokio::test]
async fn a_node_that_was_never_in_a_cluster_is_unavailable() {
    let server = Server::with(&["--cluster-enabled", "yes", "--cluster-port", "0"]).await;
    let error = Locks::builder(nestlock::Master::cluster([server.url()]))
        .node_timeout(10 * SECOND)
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no slot"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_right_are_denied() {
    let cluster = Cluster::shared().await;
    let user = ["ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-cluster|slots"];
    for node in cluster.nodes() {
        node.ask::<()>(&user).await;
        allow_its_name(node, "locker").await;
    }
    let urls = |login: &str| -> Vec<String> {
        cluster.urls().into_iter().map(|url| url.replace("redis://", &format!("redis://{login}@"))).collect()
    };
    let error = Locks::builder(nestlock::Master::cluster(urls("narrow:wrong")))
        .node_timeout(10 * SECOND)
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong@"), "{error}");
    let error = Locks::builder(nestlock::Master::cluster(urls("narrow:secret")))
        .node_timeout(10 * SECOND)
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+cluster|slots"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    for node in cluster.nodes() {
        node.ask::<()>(&["ACL", "SETUSER", "narrow", "+cluster|slots"]).await;
    }
    let locks = Locks::builder(nestlock::Master::cluster(urls("narrow:secret")))
        .node_timeout(10 * SECOND)
        .connect()
        .await
        .unwrap();
    soon("the run", locks.mutex("narrow").run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_after_close() {
    let cluster = Cluster::start().await;
    let locks = builder(&cluster).connect().await.unwrap();
    let stock = locks.mutex("stock");
    soon("the run", stock.run(async |_| {})).await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Closed);
    let metrics = tokio::runtime::Handle::current().metrics();
    eventually("no task", async || metrics.num_alive_tasks() == 0).await;
    for node in cluster.nodes() {
        eventually("no connection", async || {
            let list: String = node.ask(&["CLIENT", "LIST"]).await;
            let others = |line: &&str| {
                !["nestlock-test-admin", "flags=S ", "flags=M "].iter().any(|known| line.contains(known))
            };
            list.lines().filter(others).count() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn the_rights_that_the_guide_names_are_enough() {
    const MORE: &str = "+cluster|slots +asking +spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";
    let guide = include_str!("../../../docs/operations.md");
    let words = guide.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("A cluster: add `{MORE}`")), "the guide does not name these");
    let line = guide.lines().find(|line| line.starts_with("ACL SETUSER locker ")).unwrap();
    let user: Vec<&str> = line.split(' ').chain(MORE.split(' ')).collect();
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        node.ask::<()>(&user).await;
        allow_its_name(node, "locker").await;
    }
    let urls: Vec<String> =
        cluster.urls().into_iter().map(|url| url.replace("redis://", "redis://locker:secret@")).collect();
    let connect = async || {
        Locks::builder(nestlock::Master::cluster(&urls)).node_timeout(10 * SECOND).connect().await.unwrap()
    };
    let (ours, theirs) = (connect().await, connect().await);
    for at in 0..3 {
        let name = cluster.name_on(at, "stock:lamp").await;
        let guard = soon("the lock", ours.mutex(&name).lock()).await.unwrap();
        let waiting = tokio::spawn(theirs.mutex(&name).lock());
        eventually("it listens", async || !super::channels(&cluster, &name).await.is_empty()).await;
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    // The slot of this lock moves; the lock is made on the node that it moves to.
    let name = cluster.name_on(0, "stock").await.replace("stock-", "stock:");
    let (from, to) = (cluster.owner(&name).await, (cluster.owner(&name).await + 1) % 3);
    cluster.begin_move(&name, from, to).await;
    soon("the run", ours.mutex(&name).run(async |_| {})).await.unwrap();
    for node in cluster.nodes() {
        let log: Vec<redis::Value> = node.ask(&["ACL", "LOG"]).await;
        assert!(log.is_empty(), "something else was tried: {log:?}");
    }
}
