//! New credentials while locks are held and waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nestlock::{Builder, ErrorKind, Guard, Master, Mutex};
use tokio::task::JoinHandle;

use super::{Answer, Vault, add_user, assert_nothing_is_shown, connections, password, replace_user};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::sentinel::{Group, NAME, Setup};
use crate::support::server::Server;
use crate::support::{HOUR, PATIENCE, SECOND, eventually, locks, log, options, quorum, soon, without_timers};

/// Starts a request that sleeps until a message wakes it.
async fn sleeper(mutex: &Mutex, servers: &[&Server]) -> JoinHandle<nestlock::Result<Guard>> {
    let waiting = tokio::spawn(mutex.lock());
    is_subscribed(servers).await;
    waiting
}

async fn is_subscribed(servers: &[&Server]) {
    eventually("a subscription", async || {
        for server in servers {
            if server.channels().await.is_empty() {
                return false;
            }
        }
        true
    })
    .await;
}

/// Waits until the lease has been renewed twice more.
async fn is_renewed(server: &Server) {
    server.reset_commands_run().await;
    let renewals = async || server.commands_run().await.get("pexpire").copied().unwrap_or_default();
    eventually("renewals", async || renewals().await >= 2).await;
}

fn with(vault: &Vault, builder: Builder) -> Builder {
    without_timers(builder.credentials(vault.provider()).lease(6 * SECOND))
}

#[tokio::test]
async fn a_password_that_changes_loses_no_hold_and_no_wake_up() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::User("bob"));
    let builder = with(&vault, options(server.url()).holder_name("rotated"));
    let mut shown = format!("{builder:?}");
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = sleeper(&theirs.mutex("stock"), &[&server]).await;
    shown += &format!("{ours:?} {guard:?}");
    let before = connections(&server, "bob").await;
    assert_eq!(before.len(), 3);

    // The new password replaces the old one. The connections stay open and log in with it.
    server.reset_commands_run().await;
    let (new, old) = (format!(">{}", password("new")), format!("<{}", password("bob")));
    server.ask::<()>(&["ACL", "SETUSER", "bob", &new, &old]).await;
    vault.set(Answer::Login("bob", password("new")));
    let logins = async || server.commands_run().await.get("auth").copied().unwrap_or_default();
    eventually("three logins", async || logins().await >= 3).await;
    let at = format!("127.0.0.1:{}", server.port());
    let logged = || log::all(|event| event.mentions(&at) && event.message.contains("with new credentials"));
    eventually("three messages", async || logged().len() >= 3).await;
    is_renewed(&server).await;
    assert_eq!(connections(&server, "bob").await, before);
    guard.release().await.unwrap();
    let next = soon("the waiter, by message", waiting).await.unwrap().unwrap();

    // Each new connection uses the new password. The waiter sleeps by now, and in this test a failed attempt
    // would be repeated only after an hour.
    eventually("no subscription", async || server.channels().await.is_empty()).await;
    let waiting = sleeper(&ours.mutex("stock"), &[&server]).await;
    is_renewed(&server).await;
    for kind in ["normal", "pubsub"] {
        server.ask::<u64>(&["CLIENT", "KILL", "TYPE", kind, "USER", "bob"]).await;
    }
    eventually("new connections", async || {
        let now = connections(&server, "bob").await;
        now.len() >= 3 && now.is_disjoint(&before)
    })
    .await;
    is_subscribed(&[&server]).await;
    is_renewed(&server).await;
    assert!(!next.is_lost());
    next.check().await.unwrap();
    next.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_nothing_is_shown(&shown);
}

/// The answers of other commands are not mixed up with those of the logins.
#[tokio::test]
async fn logins_among_many_commands_mix_up_no_answers() {
    let server = Server::start().await;
    for user in ["bob", "eve"] {
        add_user(&server, user).await;
    }
    let vault = Vault::new(Answer::User("bob"));
    let locks = with(&vault, options(server.url())).connect().await.unwrap();
    let before = connections(&server, "bob").await;
    let done = Arc::new(AtomicBool::new(false));
    let work = (0..8).map(|at| {
        let (mutex, done) = (locks.mutex(format!("stock:{at}")), done.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(mutex.holder().await.unwrap().unwrap().hold_id(), guard.hold_id());
                guard.release().await.unwrap();
            }
        })
    });
    let work: Vec<_> = work.collect();
    for user in ["eve", "bob", "eve", "bob", "eve"] {
        vault.set(Answer::User(user));
        eventually("the same connection is that user's", async || {
            connections(&server, user).await == before || work.iter().any(JoinHandle::is_finished)
        })
        .await;
    }
    done.store(true, Ordering::Relaxed);
    for one in work {
        one.await.unwrap();
    }
    assert_eq!(connections(&server, "eve").await, before);
}

/// The server changes the password first, and a connection is lost before the provider has the new one.
#[tokio::test]
async fn requests_wait_while_the_server_has_a_new_password_and_the_provider_has_not() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::Lasting("bob"));
    let builder = options(server.url()).credentials(vault.provider());
    let locks = builder.clone().unavailable_after(PATIENCE).connect().await.unwrap();
    let impatient = builder.unavailable_after(SECOND / 10).connect().await.unwrap();
    let new = format!(">{}", password("new"));
    server.ask::<()>(&["ACL", "SETUSER", "bob", "resetpass", &new]).await;
    let asked = vault.asked();
    server.ask::<u64>(&["CLIENT", "KILL", "USER", "bob"]).await;
    let waiting = tokio::spawn(locks.mutex("stock").lock());

    let error = soon("an error", impatient.mutex("stock").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("that the provider of credentials returned"), "{error}");
    assert_nothing_is_shown(&format!("{error} {error:?}"));
    let at_it = format!("127.0.0.1:{}", server.port());
    log::recorded(|event| event.mentions(&at_it) && event.message.contains("refuses the login")).await;
    eventually("attempts of both", async || vault.asked() >= asked + 4).await;
    assert!(!waiting.is_finished());

    vault.set(Answer::Login("bob", password("new")));
    soon("the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// Some proxies answer that a client is not logged in any more, while Redis would close the connection. The refused call did not run.
#[tokio::test]
async fn a_connection_that_is_not_logged_in_any_more_is_replaced() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    let proxy = Proxy::to(&server).await;
    let vault = Vault::new(Answer::Lasting("bob"));
    let locks = options(proxy.url()).credentials(vault.provider()).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let before = connections(&server, "bob").await;
    let is_renewal = proxy.on(|c| c.is("renew"));
    let refused = is_renewal.times(1).replace_reply("-NOAUTH Authentication required.");
    let error = soon("an error", guard.check()).await.unwrap_err();
    refused.done().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("not logged in any more"), "{error}");
    soon("an answer over another connection", async { while guard.check().await.is_err() {} }).await;
    assert!(connections(&server, "bob").await.is_disjoint(&before));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn both_connections_of_a_pair_log_in_again() {
    let server = Server::with(&["--repl-diskless-sync-delay", "0"]).await;
    let replica = Server::with(&["--replicaof", "127.0.0.1", &server.port().to_string()]).await;
    eventually("the replica", async || {
        server.info("replication").await.get("slave0").is_some_and(|one| one.contains("state=online"))
    })
    .await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::User("bob"));
    let builder = options(server.url()).replicas(1, SECOND).unavailable_after(60 * SECOND);
    let locks = builder.credentials(vault.provider()).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    assert_eq!(connections(&server, "bob").await.len(), 2);
    replace_user(&vault, &[&server], "bob", "eve").await;
    soon("another lock", locks.mutex("other").lock()).await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    drop(replica);
}

#[tokio::test]
async fn a_quorum_logs_in_again_on_all_its_masters() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start().await);
        add_user(&servers[servers.len() - 1], "bob").await;
    }
    let servers: Vec<&Server> = servers.iter().collect();
    let vault = Vault::new(Answer::User("bob"));
    let urls = servers.iter().map(|server| server.url());
    let builder = with(&vault, quorum(urls));
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = sleeper(&theirs.mutex("stock"), &servers).await;
    replace_user(&vault, &servers, "bob", "eve").await;
    is_renewed(servers[0]).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    soon("the waiter, by message", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn connections_that_are_made_together_share_an_answer_and_later_ones_ask_again() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start().await);
        add_user(&servers[servers.len() - 1], "bob").await;
    }
    let vault = Vault::new(Answer::Lasting("bob"));
    let urls = servers.iter().map(Server::url);
    let builder = quorum(urls).credentials(vault.provider());
    let locks = builder.connect().await.unwrap();
    // The provider is asked once for the first connection, and once for those that began in the meantime.
    assert!((1..=2).contains(&vault.asked()), "{} questions", vault.asked());
    let asked = vault.asked();
    servers[0].ask::<u64>(&["CLIENT", "KILL", "USER", "bob"]).await;
    eventually("a new connection", async || !connections(&servers[0], "bob").await.is_empty()).await;
    assert_eq!(vault.asked(), asked + 1);
    drop(locks);
}

async fn on_cluster(sharded: bool) {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        add_user(node, "bob").await;
    }
    let nodes: Vec<&Server> = cluster.nodes().iter().collect();
    let vault = Vault::new(Answer::User("bob"));
    let builder = with(&vault, options(nestlock::Master::cluster(cluster.urls())).sharded_channels(sharded));
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let name = cluster.name_on(0, "rotated").await;
    let others = [cluster.name_on(1, "rotated").await, cluster.name_on(2, "rotated").await];
    let guard = ours.mutex(&name).lock().await.unwrap();
    let held = [ours.mutex(&others[0]).lock().await.unwrap(), ours.mutex(&others[1]).lock().await.unwrap()];
    let waiting = tokio::spawn(theirs.mutex(&name).lock());
    let subscribed = async || {
        for node in &nodes {
            if !node.channels().await.is_empty() {
                return true;
            }
        }
        false
    };
    eventually("a subscription", subscribed).await;
    replace_user(&vault, &nodes, "bob", "eve").await;
    assert!(!guard.is_lost() && held.iter().all(|guard| !guard.is_lost()));
    assert!(subscribed().await, "the subscription is gone");
    guard.release().await.unwrap();
    let next = soon("the waiter, by message", waiting).await.unwrap().unwrap();

    // The connections to the new master, and those that query the topology, have the new credentials.
    cluster.replicated(0, &name).await;
    cluster.fail_over(3).await;
    let waiting = tokio::spawn(ours.mutex(&name).lock());
    eventually("connections to the new master", async || !connections(nodes[3], "eve").await.is_empty())
        .await;
    eventually("a subscription", subscribed).await;
    next.check().await.unwrap();
    next.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    for guard in held {
        guard.release().await.unwrap();
    }
    assert_nothing_is_shown("");
}

#[tokio::test]
async fn the_nodes_of_a_cluster_log_in_again_and_sharded_channels_stay_subscribed() {
    on_cluster(true).await;
}

#[tokio::test]
async fn the_nodes_of_a_cluster_log_in_again_and_plain_channels_stay_subscribed() {
    on_cluster(false).await;
}

/// The sentinels have their own password: the one in their URLs.
#[tokio::test]
async fn the_master_of_sentinels_logs_in_again_and_so_does_the_next_one() {
    let setup = Setup { sentinel_password: Some("of-the-sentinels"), silent: true, ..Setup::default() };
    let group = Group::with(setup).await;
    for server in &group.servers {
        add_user(server, "bob").await;
    }
    let servers: Vec<&Server> = group.servers.iter().collect();
    let vault = Vault::new(Answer::User("bob"));
    let urls = group.urls(":of-the-sentinels@", "");
    let builder = with(&vault, quorum([Master::sentinel(urls, NAME)]));
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = sleeper(&theirs.mutex("stock"), &servers[..1]).await;
    replace_user(&vault, &servers, "bob", "eve").await;
    is_renewed(servers[0]).await;
    assert!(!guard.is_lost());
    for replica in &servers[1..] {
        eventually("the key on the replica", async || replica.keys().await == ["stock"]).await;
    }
    group.fail_over().await;
    let new = group.failed_over(servers[0]).await;
    eventually("connections to the new master", async || connections(new, "eve").await.len() >= 3).await;
    is_subscribed(&[new]).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    soon("the waiter, by message", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_nothing_is_shown("");
}

/// A login is one of the commands of its connection. It waits for the commands before it, and does not cause the connection to be replaced.
#[tokio::test]
async fn a_login_without_an_answer_replaces_no_connection() {
    let server = Server::start().await;
    for user in ["bob", "eve"] {
        add_user(&server, user).await;
    }
    let proxy = Proxy::to(&server).await;
    let vault = Vault::new(Answer::User("bob"));
    let node_timeout = SECOND;
    let builder = with(&vault, options(proxy.url())).lease(HOUR).node_timeout(node_timeout);
    let locks_of_bob = builder.connect().await.unwrap();
    let guard = locks_of_bob.mutex("stock").lock().await.unwrap();
    let before = connections(&server, "bob").await;
    let held = proxy.on(|c| c.is("auth")).times(1).hold_reply();
    vault.set(Answer::User("eve"));
    held.done().await;
    // A command without an answer would be given up after this time.
    tokio::time::sleep(2 * node_timeout).await;
    assert_eq!(connections(&server, "eve").await, before);
    held.let_through().await;
    // The first login was answered, so another one follows.
    vault.set(Answer::User("bob"));
    eventually("it is bob's", async || connections(&server, "bob").await == before).await;
    assert!(locks(&server.url()).await.mutex("stock").try_lock().await.unwrap().is_none());
    drop(guard);
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test]
async fn connections_over_tls_log_in_again() {
    let server = Server::tls().await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::User("bob"));
    let builder = with(&vault, options(format!("{}/#insecure", server.tls_url())));
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiting = sleeper(&theirs.mutex("stock"), &[&server]).await;
    replace_user(&vault, &[&server], "bob", "eve").await;
    guard.release().await.unwrap();
    soon("the waiter, by message", waiting).await.unwrap().unwrap().release().await.unwrap();
}
