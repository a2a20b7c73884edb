//! Clients that don't reach the same masters, and masters whose answers are lost.

use nestlock::{Builder, ErrorKind, Loss, Master};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::SECOND;
use super::random::{Holders, compete};
use super::servers::{are_free, counts, servers};
use crate::support::proxy::{HalfOpen, Proxy, Which};
use crate::support::server::Server;
use crate::support::{eventually, quorum, soon};

/// Returns one client's own proxies to the masters. Each of them can be cut.
pub(super) async fn ways(servers: &[Server]) -> Vec<Proxy> {
    let mut ways = Vec::new();
    for server in servers {
        ways.push(Proxy::to(server).await);
    }
    ways
}

/// Returns options with short times, since the tests wait for lost answers and for the ends of leases.
pub(super) fn by(ways: &[Proxy]) -> Builder {
    by_all(ways.iter().map(Proxy::url))
}

/// Returns the same options over any masters.
pub(super) fn by_all(masters: impl IntoIterator<Item = impl Into<Master>>) -> Builder {
    quorum(masters).lease(6 * SECOND).node_timeout(SECOND).unavailable_after(60 * SECOND)
}

/// Lets no data pass until the result is dropped. Neither side is notified.
pub(super) fn cut(ways: &[Proxy]) -> Vec<HalfOpen> {
    ways.iter().map(|way| way.half_open(Which::All)).collect()
}

#[tokio::test]
async fn in_a_divided_network_those_with_the_majority_get_the_lock() {
    let servers = servers(5).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let patient = |ways: &[Proxy]| by(ways).lease(60 * SECOND).node_timeout(3 * SECOND);
    let connect = async |ways: &[Proxy]| patient(ways).connect().await.unwrap().mutex("stock");
    let (ours, theirs) = (connect(&our_ways).await, connect(&their_ways).await);
    let (our_cut, their_cut) = (cut(&our_ways[2..]), cut(&their_ways[..2]));
    // `ours` asks the two masters that it reaches, and both grant.
    assert_eq!(ours.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let guard = soon("the majority's grant", theirs.lock()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(ours.try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(!guard.is_lost());
    drop((our_cut, their_cut));
    eventually("we are refused", async || matches!(ours.try_lock().await, Ok(None))).await;
    assert!(!guard.is_lost());
    let waiting = tokio::spawn(ours.lock());
    guard.release().await.unwrap();
    soon("ours", waiting).await.unwrap().unwrap().release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}

#[tokio::test]
async fn a_holder_cut_off_from_the_majority_is_notified_before_another_gets_the_lock() {
    let servers = servers(5).await;
    let (our_ways, their_ways) = (ways(&servers).await, ways(&servers).await);
    let (ours, theirs) = (by(&our_ways).connect().await.unwrap(), by(&their_ways).connect().await.unwrap());
    for _ in 0..3 {
        let guard = soon("ours", ours.mutex("stock").lock()).await.unwrap();
        let waiting = tokio::spawn(theirs.mutex("stock").lock());
        eventually("they wait", async || !servers[2].channels().await.is_empty()).await;
        let cuts = (cut(&our_ways[2..]), cut(&their_ways[..2]));
        let next = soon("theirs", waiting).await.unwrap().unwrap();
        assert!(guard.is_lost(), "two hold the lock");
        assert!(Instant::now() >= guard.valid_until());
        assert_eq!(guard.loss(), Some(Loss::Expired));
        drop(cuts);
        // On a busy machine no answer may arrive in time: then the background ends the hold.
        let _ = next.release().await;
        drop(guard);
    }
    eventually("all are free", async || are_free(&servers).await).await;
}

#[tokio::test]
async fn a_master_whose_answers_are_lost_lets_nobody_in_and_keeps_nothing() {
    for masters in [3, 5] {
        let servers = servers(masters).await;
        let ways = ways(&servers).await;
        let ours = by(&ways).connect().await.unwrap().mutex("stock");
        let theirs = super::servers::over(&servers).lease(6 * SECOND).connect().await.unwrap().mutex("stock");
        let lost = ways[0].on(|c| c.is("acquire") || c.is("release") || c.is("settle")).drop_reply();
        for _ in 0..4 {
            let guard = soon("ours", ours.lock()).await.unwrap();
            assert!(theirs.try_lock().await.unwrap().is_none());
            let inner = soon("a re-entry", ours.lock()).await.unwrap();
            soon("a release", inner.release()).await.unwrap();
            soon("a release", guard.release()).await.unwrap();
            let guard = soon("theirs", theirs.lock()).await.unwrap();
            assert!(ours.try_lock().await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        drop(lost);
        eventually("all are free", async || are_free(&servers).await).await;
    }
}

/// Each client has its own proxy to each master. The proxies are cut and restored, and answers are lost.
#[tokio::test]
async fn clients_whose_ways_come_and_go_never_hold_at_once() {
    const CLIENTS: usize = 3;
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let servers = servers(3).await;
    let (holders, end) = (Holders::default(), Instant::now() + 12 * SECOND);
    let mut clients = JoinSet::new();
    let mut all_ways = Vec::new();
    for client in 0..CLIENTS as u64 {
        let ways = ways(&servers).await;
        let options = by(&ways).lease(SECOND).node_timeout(3 * SECOND / 10);
        let locks = soon("a connect", async {
            loop {
                if let Ok(locks) = options.clone().connect().await {
                    break locks;
                }
            }
        })
        .await;
        clients.spawn(compete(locks, holders.clone(), end, StdRng::seed_from_u64(seed ^ client), (seed, 10)));
        all_ways.extend(ways);
    }
    let mut cuts = Vec::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(10..300))).await;
        let way = &all_ways[random.random_range(0..all_ways.len())];
        match random.random_range(0..4) {
            0 => {
                let lost = way.on(|c| c.is("acquire")).times(1).drop_reply_and_reset();
                // If no command passes here in the meantime, no reply is lost.
                drop(timeout(SECOND / 5, lost.done()).await);
            }
            1 => drop(way.reset(Which::All).await),
            _ => cuts.push(way.half_open(Which::All)),
        }
        // Each cut lasts for a while, and at most a third of the proxies are cut at once.
        if cuts.len() > all_ways.len() / 3 {
            drop(cuts.remove(random.random_range(0..cuts.len())));
        }
    }
    drop(cuts);
    let grants: usize = soon("the clients' end", clients.join_all()).await.into_iter().sum();
    println!("{grants} grants");
    assert!(grants > 5, "{grants} grants are too few");
    eventually("all are free", async || are_free(&servers).await).await;
}

/// The answers of the majority are unknown, so the next attempt has a new field, and the first attempt's fields are ended.
#[tokio::test]
async fn a_majority_whose_answers_are_lost_leaves_one_field_of_one_hold() {
    let servers = servers(3).await;
    let ways = ways(&servers).await;
    let stock = by(&ways).connect().await.unwrap().mutex("stock");
    let lost: Vec<_> =
        ways[..2].iter().map(|way| way.on(|c| c.is("acquire")).times(1).drop_reply()).collect();
    let guard = soon("the lock", stock.lock()).await.unwrap();
    for lost in &lost {
        lost.done().await;
    }
    eventually("all have it", async || counts(&servers, "stock").await == [["1"]; 3]).await;
    for server in &servers {
        assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "stock"]).await, [guard.hold_id()]);
    }
    guard.release().await.unwrap();
    eventually("all are free", async || are_free(&servers).await).await;
}
