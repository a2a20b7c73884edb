//! How the client finds the master.

use nestlock::{ErrorKind, Locks, Master};
use tokio::time::Instant;

use super::SECOND;
use super::failover::replicated;
use crate::support::sentinel::{Group, NAME, Setup};
use crate::support::server::{Server, free_port, is_at_least};
use crate::support::{SOON_OVER, log, options, quorum, soon};

#[tokio::test]
async fn a_lock_is_held_on_the_master_and_messages_come_from_it() {
    let group = Group::start().await;
    let (ours, theirs) =
        (group.locks().await, group.builder().poll_interval(3600 * SECOND).connect().await.unwrap());
    let guard = soon("the lock", ours.mutex("stock").lock()).await.unwrap();
    assert_eq!(group.servers[0].ask::<Vec<String>>(&["HKEYS", "stock"]).await, [guard.hold_id()]);
    let waiting = tokio::spawn(theirs.mutex("stock").lock());
    crate::support::eventually("it listens", async || !group.servers[0].channels().await.is_empty()).await;
    guard.release().await.unwrap();
    soon("theirs", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(group.servers[0].keys().await.is_empty());
}

#[tokio::test]
async fn some_sentinels_may_be_dead_or_frozen() {
    let group = Group::start().await;
    group.sentinels[0].freeze();
    let begun = Instant::now();
    let frozen = soon("one frozen", group.builder().node_timeout(20 * SECOND).connect()).await.unwrap();
    // The client does not wait for a sentinel that does not answer.
    assert!(begun.elapsed() < 20 * SECOND);
    soon("a run", frozen.mutex("stock").run(async |_| {})).await.unwrap();
    group.sentinels[0].thaw();
    group.sentinels[0].kill();
    group.sentinels[1].kill();
    let dead = soon("two dead", group.builder().connect()).await.unwrap();
    soon("a run", dead.mutex("stock").run(async |_| {})).await.unwrap();
    group.sentinels[2].freeze();
    let error = soon("an answer", group.builder().connect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no sentinel reports"), "{error}");
    // An existing connection stays.
    soon("a run", dead.mutex("stock").run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn a_master_that_nobody_knows_is_a_mistake() {
    let group = Group::start().await;
    let error =
        options(nestlock::Master::sentinel(group.urls("", ""), "nobody")).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("no master `nobody`"), "{error}");
    let servers = group.servers.iter().map(Server::url);
    let error = options(nestlock::Master::sentinel(servers, NAME)).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("are no sentinels"), "{error}");
}

#[tokio::test]
async fn options_that_cannot_work_are_rejected() {
    let one = || vec!["redis://one"];
    for (builder, text) in [
        (options(nestlock::Master::sentinel(Vec::<String>::new(), NAME)), "no address"),
        (options(nestlock::Master::sentinel(one(), "")), "empty name"),
        (options(nestlock::Master::sentinel(["redis://:hidden@"], NAME)), "address"),
        (options(nestlock::Master::sentinel(["unix:///hidden.sock"], NAME)), "Unix socket"),
        (
            quorum([
                Master::sentinel(one(), NAME),
                Master::sentinel(["redis://two", "redis://ONE:6379"], NAME),
            ]),
            "more than once",
        ),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(text) && !error.to_string().contains("hidden"), "{error}");
    }
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let urls = [free_port(), free_port()].map(|port| format!("redis://127.0.0.1:{port}"));
    let alone = Locks::builder(nestlock::Master::sentinel(urls, NAME));
    // With replicas there is a second connection, for acquires, which follows the connection for commands.
    for builder in [alone.clone(), alone.replicas(1, SECOND / 10)] {
        let error = soon("an answer", builder.connect()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error.to_string().contains(&format!("no sentinel reports where the master `{NAME}` is")),
            "{error}"
        );
    }
}

const SECRET: &str = "h1dden-sent1nel";

#[tokio::test]
async fn credentials_and_database_of_the_first_url_are_the_masters() {
    let setup = Setup { password: Some(SECRET), ..Setup::default() };
    let group = Group::with(setup).await;
    // The sentinels have no password, so the client asks them without one. It is enough if the first URL names the password.
    let mut urls = group.urls("", "");
    urls[0] = group.urls(&format!(":{SECRET}@"), "/2").swap_remove(0);
    let builder = options(nestlock::Master::sentinel(&urls, NAME));
    let mut text = format!("{builder:?}");
    let locks = builder.connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    text += &format!("{locks:?} {guard:?}");
    assert!(group.servers[0].info("keyspace").await.contains_key("db2"));
    guard.release().await.unwrap();
    let error = options(nestlock::Master::sentinel(group.urls("", ""), NAME)).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains(&group.servers[0].port().to_string()), "{error}");
    let error = options(nestlock::Master::sentinel(group.urls(&format!(":{SECRET}-not@"), ""), NAME))
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    text += &format!("{error} {error:?}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(log::all(|event| event.mentions(SECRET)).is_empty());
}

#[tokio::test]
async fn a_user_of_the_sentinels_needs_the_rights_that_the_guide_names() {
    let group = Group::start().await;
    for server in &group.servers {
        let user = ["ACL", "SETUSER", "watcher", "on", ">secret", "~*", "&*", "+@all", "-role", "-info"];
        server.ask::<String>(&user).await;
    }
    for sentinel in &group.sentinels {
        let user = ["ACL", "SETUSER", "watcher", "reset", "on", ">secret"];
        let rights = include_str!("../../../docs/operations.md")
            .lines()
            .find(|line| line.contains("+sentinel|master"));
        let named = is_at_least(7, 2).then_some("+client|setinfo");
        let rights = rights.unwrap().trim().trim_matches(['`', '.']).split(' ').chain(named);
        sentinel.try_ask::<String>(&user.into_iter().chain(rights).collect::<Vec<_>>()).await.unwrap();
    }
    let locks =
        options(nestlock::Master::sentinel(group.urls("watcher:secret@", ""), NAME)).connect().await.unwrap();
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    replicated(&group, &guard).await;
    group.fail_over().await;
    let new = group.failed_over(&group.servers[0]).await;
    assert_eq!(new.ask::<Vec<String>>(&["HKEYS", "stock"]).await, [guard.hold_id()]);
    soon("a release", guard.release()).await.unwrap();
    for sentinel in &group.sentinels {
        let denied: Vec<redis::Value> = sentinel.try_ask(&["ACL", "LOG"]).await.unwrap();
        assert!(denied.is_empty(), "{denied:?}");
    }
}

#[tokio::test]
async fn sentinels_may_have_a_password() {
    let setup = Setup { password: Some(SECRET), sentinel_password: Some(SECRET), ..Setup::default() };
    let group = Group::with(setup).await;
    let locks = options(nestlock::Master::sentinel(group.urls(&format!(":{SECRET}@"), ""), NAME))
        .connect()
        .await
        .unwrap();
    soon("a run", locks.mutex("stock").run(async |_| {})).await.unwrap();
    for credentials in ["", ":wrong@"] {
        let error = options(nestlock::Master::sentinel(group.urls(credentials, ""), NAME))
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            error.to_string().contains(&group.sentinels[0].port().to_string())
                || error.to_string().contains("password")
        );
    }
}

#[tokio::test]
async fn who_holds_a_lock_is_asked_at_the_master_and_named_by_a_timeout() {
    let group = Group::start().await;
    let theirs = group.builder().holder_name("billing@web-7").connect().await.unwrap();
    let stock = group.locks().await.mutex("stock");
    let guard = soon("the lock", theirs.mutex("stock").lock()).await.unwrap();
    let holder = soon("the answer", stock.holder()).await.unwrap().expect("it is held");
    assert_eq!((holder.name(), holder.hold_id()), (Some("billing@web-7"), guard.hold_id()));
    let error = soon("the end", stock.lock().within(SOON_OVER)).await.unwrap_err();
    assert!(error.to_string().contains("held by billing@web-7 for another "), "{error}");
    guard.release().await.unwrap();
    assert_eq!(soon("the answer", stock.holder()).await.unwrap(), None);
}
