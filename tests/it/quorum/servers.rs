//! Several real servers, some of which are killed, frozen, or restarted empty.

use nestlock::{Builder, ErrorKind};
use tokio::time::Instant;
use tracing::Level;

use super::{SECOND, locks, stores};
use crate::support::proxy::{Proxy, Which};
use crate::support::server::Server;
use crate::support::{STRANGER, builder, eventually, log, quorum, soon};

pub async fn servers(count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start().await);
    }
    servers
}

/// Returns options over these masters, which are trusted although they have just been started.
pub fn over(servers: &[Server]) -> Builder {
    over_urls(servers.iter().map(Server::url))
}

/// Returns options over masters, some of which are behind a proxy.
pub(super) fn over_urls(urls: impl IntoIterator<Item = String>) -> Builder {
    quorum(urls).node_timeout(20 * SECOND)
}

pub(super) async fn counts(servers: &[Server], key: &str) -> Vec<Vec<String>> {
    let mut counts = Vec::new();
    for server in servers {
        counts.push(server.ask::<Vec<String>>(&["HVALS", key]).await);
    }
    counts
}

pub(super) async fn are_free(servers: &[Server]) -> bool {
    for server in servers {
        if !server.keys().await.is_empty() {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn a_hold_is_the_same_hash_on_each_master() {
    let servers = servers(3).await;
    let stock = over(&servers).connect().await.unwrap().mutex("stock");
    let outer = soon("the lock", stock.lock()).await.unwrap();
    let inner = stock.lock().await.unwrap();
    eventually("all count two", async || counts(&servers, "stock").await == [["2"]; 3]).await;
    for server in &servers {
        assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "stock"]).await, [outer.hold_id()]);
    }
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}

#[tokio::test]
async fn two_of_five_are_killed_and_come_back_empty() {
    let servers = servers(5).await;
    let locks = over(&servers).connect().await.unwrap();
    let (kept, stock) = (locks.mutex("kept"), locks.mutex("stock"));
    let guard = soon("the lock", kept.lock()).await.unwrap();
    for server in &servers[3..] {
        server.kill();
        for _ in 0..10 {
            soon("a run", stock.run(|_| stock.run(async |_| {}))).await.unwrap().unwrap();
        }
    }
    for server in &servers[3..] {
        server.restart_empty().await;
    }
    eventually("they have the hold again", async || counts(&servers, "kept").await == [["1"]; 5]).await;
    assert!(!guard.is_lost());
    servers[0].kill();
    servers[1].kill();
    soon("a run over the three that are left", stock.run(async |_| {})).await.unwrap();
    soon("the release", guard.release()).await.unwrap();
}

#[tokio::test]
async fn a_frozen_minority_delays_nothing_and_is_put_right_later() {
    let servers = servers(3).await;
    let stock = over(&servers).connect().await.unwrap().mutex("stock");
    servers[1].freeze();
    let begun = Instant::now();
    for _ in 0..20 {
        soon("a run", stock.run(async |_| {})).await.unwrap();
    }
    // If the runs waited for the frozen server, each of them would take that long.
    assert!(begun.elapsed() < 20 * SECOND);
    servers[1].thaw();
    eventually("all are free", async || are_free(&servers).await).await;
}

/// Two masters have a hold of 20 s. The third has a foreign field of 600 s, and answers before one of the two.
#[tokio::test]
async fn the_remaining_lease_is_that_of_a_majority_in_any_order_of_the_answers() {
    let servers = servers(3).await;
    let mut ways = Vec::new();
    for server in &servers {
        ways.push(Proxy::to(server).await);
    }
    let stock = over_urls(ways.iter().map(Proxy::url)).connect().await.unwrap().mutex("stock");
    servers[2].ask::<i64>(&["HSET", "stock", STRANGER, "1"]).await;
    servers[2].ask::<i64>(&["PEXPIRE", "stock", "600000"]).await;
    let guard = soon("the lock", stock.lock().fixed_lease(20 * SECOND)).await.unwrap();
    for late in 0..3 {
        let slow = ways[late].on(|command| command.is("look")).times(1).hold_reply();
        let others = ways.iter().enumerate().filter(|(node, _)| *node != late);
        let others: Vec<_> = others.map(|(_, way)| way.on(|command| command.is("look")).watch()).collect();
        let asked = tokio::spawn({
            let stock = stock.clone();
            async move { stock.remaining_lease().await }
        });
        for other in &others {
            other.done().await;
        }
        slow.seen().await;
        if late == 2 {
            // The answer of the third master would change nothing, so the request doesn't wait for it.
            assert!(soon("the answer", asked).await.unwrap().unwrap().unwrap() <= 20 * SECOND);
            slow.let_through().await;
        } else {
            slow.let_through().await;
            let left = soon("the answer", asked).await.unwrap().unwrap().unwrap();
            assert!(left <= 20 * SECOND, "{left:?}, and master {late} was late");
        }
        others.iter().for_each(|other| other.forget());
    }
    // Two answers are enough to know whether the lock is held.
    servers[0].freeze();
    assert!(soon("the answer", stock.is_locked()).await.unwrap());
    servers[0].thaw();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_minority_that_freezes_while_the_lock_is_held_is_no_matter_to_renewal_and_release() {
    for masters in [3, 5] {
        let servers = servers(masters).await;
        let builder = over(&servers).lease(9 * SECOND).node_timeout(2 * SECOND);
        let stock = builder.connect().await.unwrap().mutex("stock");
        let guard = soon("the lock", stock.lock()).await.unwrap();
        let minority = &servers[masters / 2 + 1..];
        minority.iter().for_each(Server::freeze);
        // The lease is renewed every three seconds.
        let first = guard.valid_until();
        eventually("two renewals", async || guard.valid_until() > first + 5 * SECOND).await;
        assert!(!guard.is_lost());
        minority.iter().for_each(Server::thaw);
        eventually("all have it", async || counts(&servers, "stock").await == vec![["1"]; masters]).await;
        minority.iter().for_each(Server::freeze);
        soon("the release", guard.release()).await.unwrap();
        soon("a run by the others", stock.run(async |_| {})).await.unwrap();
        minority.iter().for_each(Server::thaw);
        eventually("all are free", async || are_free(&servers).await).await;
    }
}

#[tokio::test]
async fn masters_that_restart_with_their_data_one_after_the_other_keep_the_hold() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).await);
    }
    let (ours, theirs) = (over(&servers).connect().await.unwrap(), over(&servers).connect().await.unwrap());
    let guard = soon("the lock", ours.mutex("stock").lock()).await.unwrap();
    eventually("all have it", async || counts(&servers, "stock").await == [["1"]; 3]).await;
    for server in &servers {
        server.restart().await;
        assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "stock"]).await, [guard.hold_id()]);
        // The restarted master doesn't take part until both clients are connected to it again.
        let back = async || matches!(theirs.mutex("stock").try_lock().await, Ok(None));
        eventually("it is refused", back).await;
        eventually("it has a vote", async || ours.mutex("other").run(async |_| {}).await.is_ok()).await;
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}

#[tokio::test]
async fn a_master_that_counts_otherwise_is_put_right_and_not_believed() {
    for masters in [3, 5] {
        let servers = servers(masters).await;
        let stock = over(&servers).connect().await.unwrap().mutex("stock");
        let all = |count: &str| vec![vec![count.to_owned()]; masters];
        let guard = soon("the lock", stock.lock()).await.unwrap();
        eventually("all have it", async || counts(&servers, "stock").await == all("1")).await;
        servers[0].ask::<i64>(&["HSET", "stock", guard.hold_id(), "7"]).await;
        servers[1].ask::<i64>(&["DEL", "stock"]).await;
        let inner = soon("a re-entry", stock.lock()).await.unwrap();
        assert_eq!(inner.depth(), 2);
        eventually("the one that lacked it", async || counts(&servers, "stock").await[1] == ["2"]).await;
        inner.release().await.unwrap();
        eventually("the one that had counted more", async || counts(&servers, "stock").await == all("1"))
            .await;
        servers[0].ask::<i64>(&["HSET", "stock", guard.hold_id(), "0"]).await;
        let inner = soon("a re-entry", stock.lock()).await.unwrap();
        eventually("the one that had counted less", async || counts(&servers, "stock").await == all("2"))
            .await;
        drop(inner);
        guard.release().await.unwrap();
        eventually("all are free", async || are_free(&servers).await).await;
    }
}

#[tokio::test]
async fn a_repair_puts_nothing_beside_what_somebody_else_has() {
    let servers = servers(3).await;
    let other = over(&servers[1..2]).connect().await.unwrap().mutex("stock").lock().await.unwrap();
    let stock = over(&servers).connect().await.unwrap().mutex("stock");
    let guard = soon("a majority", stock.lock().owner(&nestlock::Owner::new())).await.unwrap();
    eventually("a repair was tried", async || {
        // The scripts are two acquires, and the repair, which first looks for its own field.
        servers[1].scripts_run().await >= 3
    })
    .await;
    assert_eq!(server_fields(&servers[1]).await, [other.hold_id()]);
    guard.release().await.unwrap();
    other.release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}

async fn server_fields(server: &Server) -> Vec<String> {
    server.ask(&["HKEYS", "stock"]).await
}

/// Each of several processes gets a message of the release from each master, and sends one acquire to each master.
#[tokio::test]
async fn one_release_makes_each_waiting_process_ask_each_master_once() {
    for masters in [3, 5] {
        // Each process sends one acquire to each master. It sends one more if the release had not reached all masters when it asked. On a
        // busy machine that may happen in two of the three rounds.
        let mut least = f64::MAX;
        for _ in 0..3 {
            least = least.min(asked_after_a_release(masters).await);
            if least <= 2.0 * WAITERS as f64 {
                break;
            }
        }
        assert!(least <= 2.0 * WAITERS as f64, "{least} acquires on each of {masters} masters");
    }
}

const WAITERS: usize = 3;

/// Returns how many acquires a release makes each master run, while [`WAITERS`] processes wait.
async fn asked_after_a_release(masters: usize) -> f64 {
    let servers = servers(masters).await;
    let connect =
        async || over(&servers).poll_interval(3600 * SECOND).connect().await.unwrap().mutex("stock");
    let ours = connect().await;
    let guard = soon("ours", ours.lock()).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        waiting.spawn(connect().await.lock());
    }
    for server in &servers {
        let channel = "redisson_lock__channel:{stock}";
        eventually("all listen", async || {
            let subscribers: (String, usize) = server.ask(&["PUBSUB", "NUMSUB", channel]).await;
            subscribers.1 == WAITERS
        })
        .await;
    }
    let asked = async || {
        let mut asked = 0;
        for server in &servers {
            asked += server.commands_run().await.get("pttl").copied().unwrap_or_default();
        }
        asked
    };
    quiet(&asked).await;
    for server in &servers {
        server.reset_commands_run().await;
    }
    guard.release().await.unwrap();
    let next = soon("the next one", waiting.join_next()).await.unwrap().unwrap().unwrap();
    quiet(&asked).await;
    let asked = asked().await as f64 / masters as f64;
    println!("{masters} masters: {asked} acquires by {WAITERS} waiters on each");
    drop((next, waiting));
    asked
}

/// Waits until no process asks any more.
async fn quiet(asked: &impl AsyncFn() -> u64) {
    let mut before = asked().await;
    let mut same = 0;
    eventually("nobody asks any more", async || {
        tokio::time::sleep(SECOND / 20).await;
        let now = asked().await;
        same = if now == before { same + 1 } else { 0 };
        before = now;
        same == 6
    })
    .await;
}

#[tokio::test]
async fn a_master_that_is_away_at_connect_joins_when_it_comes() {
    let servers = servers(3).await;
    servers[2].kill();
    let locks = over(&servers).connect().await.unwrap();
    let port = servers[2].port().to_string();
    log::recorded(|e| e.level == Level::WARN && e.mentions(&port) && e.mentions("it is used once it can"))
        .await;
    let guard = soon("the lock", locks.mutex("stock").lock()).await.unwrap();
    servers[2].restart().await;
    eventually("it has the hold", async || counts(&servers, "stock").await == [["1"]; 3]).await;
    guard.release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}

#[tokio::test]
async fn a_master_that_is_away_for_long_is_owed_nothing_of_what_it_never_had() {
    let servers = servers(3).await;
    let proxy = Proxy::to(&servers[2]).await;
    let locks = over_urls([servers[0].url(), servers[1].url(), proxy.url()]).connect().await.unwrap();
    let (stock, other) = (locks.mutex("stock"), locks.mutex("other"));
    soon("a run", stock.run(async |_| {})).await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
    let away = proxy.refuse().await;
    proxy.close(Which::All).await;
    for _ in 0..100 {
        soon("a run", stock.run(async |_| {})).await.unwrap();
    }
    drop(away);
    let guard = other.lock().await.unwrap();
    eventually("it is back", async || counts(&servers, "other").await == [["1"]; 3]).await;
    guard.release().await.unwrap();
    drop((stock, other, locks));
    // The background runs until no release or settle is due on any master.
    eventually("the end of its connections", async || servers[2].clients().await == 0).await;
    let ended = servers[2].commands_run().await["hdel"];
    assert!(ended < 20, "{ended} ends of holds that it never had");
}

#[tokio::test]
async fn connect_needs_a_majority_and_right_passwords() {
    let servers = servers(3).await;
    servers[1].kill();
    servers[2].kill();
    assert_eq!(over(&servers).connect().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let closed = Server::with(&["--requirepass", "secret"]).await;
    let denied = over_urls([servers[0].url(), closed.url(), closed.url().replace("127.0.0.1", "localhost")]);
    let error = denied.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_server_that_was_just_started_has_no_vote() {
    let servers = servers(3).await;
    // Longer than starting the servers takes.
    let builder =
        || over(&servers).restart_delay(9 * SECOND).lease(9 * SECOND).unavailable_after(60 * SECOND);
    let locks = builder().connect().await.unwrap();
    let stock = locks.mutex("stock");
    let error = stock.try_lock().await.unwrap_err();
    assert!(error.to_string().contains("restart_delay"), "{error}");
    let guard = soon("the lock, once they are old enough", stock.lock()).await.unwrap();
    // The master restarts without its data. The hold is repaired there, and until then the master grants no other hold.
    servers[1].restart_empty().await;
    eventually("it has the hold", async || counts(&servers, "stock").await[1] == ["1"]).await;
    let theirs = builder().connect().await.unwrap().mutex("stock");
    // A new client uses the servers' uptime in whole seconds, less one.
    eventually("they have a vote for it too", async || matches!(theirs.try_lock().await, Ok(None))).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    soon("the next one", theirs.lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_report_its_age_is_trusted_with_a_warning() {
    let servers = servers(3).await;
    for server in &servers {
        server.ask::<String>(&["ACL", "SETUSER", "default", "-info"]).await;
    }
    let stock = over(&servers).restart_delay(30 * SECOND).connect().await.unwrap().mutex("stock");
    let port = servers[0].port().to_string();
    log::recorded(|e| e.level == Level::WARN && e.mentions(&port) && e.mentions("grant the right to INFO"))
        .await;
    soon("a run", stock.run(async |_| {})).await.unwrap();
}

#[tokio::test]
async fn a_waiter_of_another_process_is_woken_by_the_release() {
    let servers = servers(3).await;
    let connect =
        async || over(&servers).poll_interval(3600 * SECOND).connect().await.unwrap().mutex("stock");
    let (ours, theirs) = (connect().await, connect().await);
    for _ in 0..10 {
        let guard = soon("ours", ours.lock()).await.unwrap();
        let waiting = tokio::spawn(theirs.lock());
        eventually("it listens", async || !servers[2].channels().await.is_empty()).await;
        guard.release().await.unwrap();
        soon("theirs", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_master_that_may_evict_locks_is_warned_of() {
    let servers = servers(3).await;
    servers[1].set("maxmemory-policy", "allkeys-lru").await;
    servers[2].ask::<String>(&["ACL", "SETUSER", "default", "-info"]).await;
    over(&servers).connect().await.unwrap();
    // Each server can also be used alone.
    for server in &servers {
        builder(&server.url()).connect().await.unwrap();
    }
    let evicts = |server: &Server| {
        let port = server.port().to_string();
        log::all(|e| e.level == Level::WARN && e.mentions(&port) && e.mentions("maxmemory-policy")).len()
    };
    assert_eq!(servers.iter().map(evicts).collect::<Vec<_>>(), [0, 2, 0]);
}

#[tokio::test]
async fn an_even_number_of_masters_is_warned_of() {
    log::capture();
    // No other test has this many masters.
    for masters in [13, 14] {
        locks(&stores(masters)).await.close().await.unwrap();
    }
    let warned = |masters: &str| {
        log::all(|e| {
            e.mentions("an even number of masters") && e.fields.get("masters").is_some_and(|m| m == masters)
        })
        .len()
    };
    assert_eq!(["13", "14"].map(warned), [0, 1]);
}

/// The holder is gone. If the command were sent again later, it would end the hold of the next holder.
#[tokio::test]
async fn a_master_that_is_away_while_a_lock_is_forced_free_keeps_the_field_and_is_not_asked_again() {
    let servers = servers(3).await;
    let proxy = Proxy::to(&servers[2]).await;
    let ours = over_urls([servers[0].url(), servers[1].url(), proxy.url()]).connect().await.unwrap();
    let hour = 3600 * SECOND;
    let dead = over(&servers).connect().await.unwrap();
    let dead = soon("the lock", dead.mutex("stock").lock().fixed_lease(hour)).await.unwrap();
    eventually("all have it", async || counts(&servers, "stock").await == [["1"]; 3]).await;
    let fields = async |server: &Server| server.ask::<Vec<String>>(&["HKEYS", "stock"]).await;

    let forced = proxy.on(|command| command.is("force")).watch();
    let away = proxy.refuse().await;
    proxy.close(Which::All).await;
    let stock = ours.mutex("stock");
    assert!(soon("it is freed", stock.force_release()).await.unwrap());
    assert!(!soon("a look", stock.is_locked()).await.unwrap());
    drop(away);
    let other = soon("another lock", ours.mutex("other").lock()).await.unwrap();
    eventually("it is back", async || counts(&servers, "other").await == [["1"]; 3]).await;

    for _ in 0..10 {
        let guard = soon("the lock, by the two others", stock.lock()).await.unwrap();
        for server in &servers[..2] {
            assert_eq!(fields(server).await, [guard.hold_id()]);
        }
        assert_eq!(fields(&servers[2]).await, [dead.hold_id()]);
        guard.release().await.unwrap();
    }
    assert!(forced.seen_now().is_none());
    other.release().await.unwrap();
    // The holder is alive after all, and its release reports the loss.
    assert_eq!(dead.release().await.unwrap_err().kind(), ErrorKind::Lost);
    eventually("all are free", async || are_free(&servers).await).await;
}
