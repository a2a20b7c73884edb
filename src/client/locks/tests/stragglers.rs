//! Masters whose answers arrive after the verdict: what they have of a hold that no longer exists is ended
//! there too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Kind, Mutex};
use crate::{Locks, Master, Memory};

async fn locks<'a>(stores: impl IntoIterator<Item = &'a Memory>) -> Locks {
    let builder = Locks::quorum(stores.into_iter().map(Master::memory));
    builder.lease(Duration::from_secs(60)).connect().await.unwrap()
}

fn shown(stores: &[Memory]) -> Vec<bool> {
    stores.iter().map(|store| format!("{store:?}") != "Memory { locks: {} }").collect()
}

/// What one master granted is ended at once. What another master grants later must not be forgotten.
#[tokio::test(start_paused = true)]
async fn a_late_grant_is_ended_also_where_another_was_ended_before() {
    let stores: Vec<_> = (0..5).map(|_| Memory::new()).collect();
    let (ours, theirs) = (locks(&stores).await, locks(&stores[1..4]).await);
    let held = theirs.mutex("stock").lock().await.unwrap();
    stores[4].faults().stall(Duration::from_millis(300));
    assert!(ours.mutex("stock").try_lock().await.unwrap().is_none());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(shown(&stores), [false, true, true, true, false]);
    held.release().await.unwrap();
}

/// Neither a re-entry nor the end of the hold is answered by one master. The missing answer to the end is the
/// one that counts.
#[tokio::test(start_paused = true)]
async fn an_end_that_did_not_reach_a_master_is_sent_again_though_an_earlier_command_was_lost_there_too() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let stock = locks(&stores).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    stores[2].visit(|store| store.loses = Some(Box::new(|| true)));
    let inner = stock.lock().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    sleep(Duration::from_millis(550)).await;
    stores[2].visit(|store| store.loses = None);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(shown(&stores), [false; 3]);
}

/// On the masters that came back empty another client has the key, as if a late command had left it there.
/// Nothing can be repaired.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_put_right_is_tried_again_after_a_pause() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let guard = locks(&stores).await.mutex("stock").lock().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let (mut ghosts, commands) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for store in &stores[..2] {
        let theirs = locks([store]).await;
        store.faults().restart_empty();
        ghosts.push(theirs.mutex("stock").lock().await.unwrap());
        let counted = commands.clone();
        // Without a limit, paused time would not pass here.
        store.visit(|store| store.loses = Some(Box::new(move || counted.fetch_add(1, SeqCst) > 500)));
    }
    sleep(Duration::from_secs(25)).await;
    assert!(!guard.is_lost());
    let commands = commands.load(SeqCst);
    // One settle and one repair on each of two masters, every half second.
    assert!((4..=210).contains(&commands), "{commands} commands");
}

/// In this order: 1. One of three masters grants, and the others do not answer. 2. What it granted is ended,
/// which it publishes. 3. If that woke the request, it would ask again at once, leave the next field, and so
/// on.
#[tokio::test(start_paused = true)]
async fn the_end_of_what_a_failed_attempt_has_left_does_not_wake_its_request() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let builder = Locks::quorum(&stores);
    let pause = Duration::from_millis(990)..=Duration::from_secs(1);
    let locks = builder.retry_delay(pause).connect().await.unwrap();
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = answers.clone();
    let counts = move || {
        counted.fetch_add(1, SeqCst);
        false
    };
    stores[0].visit(|store| store.loses = Some(Box::new(counts)));
    for silent in &stores[1..] {
        silent.visit(|store| store.loses = Some(Box::new(|| true)));
    }
    locks.mutex("stock").lock().await.unwrap_err();
    let answers = answers.load(SeqCst);
    // Within the ten seconds, each attempt takes half a second, and the pause after it a whole one. Without
    // the pause there would be 120 answers.
    assert!((60..=100).contains(&answers), "{answers} answers");
}

/// While a master is away, a busy lock leaves thousands of orphans, and each costs as much to try as any
/// other.
#[tokio::test(start_paused = true)]
async fn what_a_master_may_have_is_tried_less_and_less_often_and_at_once_when_it_is_back() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let guard = locks(&stores).await.mutex("stock").lock().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let commands = Arc::new(AtomicUsize::new(0));
    let counted = commands.clone();
    let loses = move || {
        counted.fetch_add(1, SeqCst);
        true
    };
    stores[2].visit(|store| store.loses = Some(Box::new(loses)));
    stores[2].faults().stall(Duration::from_secs(30));
    guard.release().await.unwrap();
    sleep(Duration::from_secs(29)).await;
    let tried = commands.load(SeqCst);
    assert!((8..20).contains(&tried), "{tried} commands");
    stores[2].visit(|store| store.loses = None);
    assert_eq!(shown(&stores), [false, false, true]);
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(shown(&stores), [false; 3]);
}

/// All are due at the same moments. If they delayed each other, the answer to a renewal would be as late as
/// those about the remains of another lock.
#[tokio::test(start_paused = true)]
async fn what_is_left_on_a_minority_delays_no_renewal() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let builder = Locks::quorum(&stores);
    let locks = builder.lease(Duration::from_millis(600)).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    stores[2].faults().stall(Duration::from_secs(10));
    let end = Instant::now() + Duration::from_secs(9);
    while Instant::now() < end {
        drop(locks.mutex("order").lock().await.unwrap());
        sleep(Duration::from_millis(7)).await;
    }
    assert!(!guard.is_lost());
}

async fn client(locks: Locks, end: Instant, mut random: StdRng) {
    while Instant::now() < end {
        let stock = locks.mutex("stock");
        match random.random() {
            true => call(stock.fenced(), &mut random).await,
            false => call(stock, &mut random).await,
        }
    }
}

async fn call<K: Kind>(stock: Mutex<K>, random: &mut StdRng) {
    let patience = Duration::from_millis(random.random_range(1..3_000));
    let work = Duration::from_millis(random.random_range(0..300));
    match random.random_range(0..3) {
        0 => drop(timeout(patience, stock.try_lock()).await),
        1 => {
            let nested = async |_| {
                let inner = timeout(patience, stock.lock()).await;
                sleep(work).await;
                drop(inner);
            };
            drop(timeout(10 * patience, stock.run(nested)).await);
        }
        _ => {
            let Ok(Ok(guard)) = timeout(patience, stock.lock()).await else { return };
            sleep(work).await;
            drop(timeout(patience, guard.extend(Duration::from_secs(50))).await);
            if random.random() {
                drop(timeout(patience, guard.release()).await);
            }
        }
    }
}

async fn trouble(stores: &[Memory], end: Instant, random: &mut StdRng) {
    for store in stores {
        let mut random = StdRng::seed_from_u64(random.random());
        let share = random.random_range(0.0..0.4);
        store.visit(|store| store.loses = Some(Box::new(move || random.random_bool(share))));
    }
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(0..400))).await;
        let store = &stores[random.random_range(0..stores.len())];
        match random.random_range(0..10) {
            0..6 => store.faults().stall(Duration::from_millis(random.random_range(0..1_500))),
            _ => store.faults().drop_replies(random.random_range(1..4)),
        }
    }
    for store in stores {
        store.visit(|store| store.loses = None);
        store.faults().drop_replies(0);
        store.faults().stall(Duration::ZERO);
    }
}

/// Makes trouble for a minute, and rests for a few seconds: far less than a lease.
async fn leaves_nothing(seed: u64) {
    let stores: Vec<_> = (0..if seed.is_multiple_of(2) { 3 } else { 5 }).map(|_| Memory::new()).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let (all, mut clients) = ([locks(&stores).await, locks(&stores).await], JoinSet::new());
    let end = Instant::now() + Duration::from_secs(60);
    for locks in all.iter().flat_map(|locks| [locks, locks]) {
        clients.spawn(client(locks.clone(), end, StdRng::seed_from_u64(random.random())));
    }
    trouble(&stores, end, &mut random).await;
    clients.join_all().await;
    sleep(Duration::from_secs(5)).await;
    assert!(!shown(&stores).contains(&true), "seed {seed}: {stores:?}");
    for locks in all {
        assert!(locks.handle.table(|table, _| table.is_empty()), "seed {seed}");
        locks.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_on_any_master_once_commands_arrive_and_are_answered_again() {
    for seed in 0..5 {
        leaves_nothing(seed).await;
    }
}

/// A master's answer that it does not know the script is slow, and the verdict of the others comes first.
#[tokio::test]
async fn a_forced_release_reaches_a_slow_master_that_does_not_know_its_script() {
    use crate::backend::testing::TestServer;
    let servers = [TestServer::start(&[]).await, TestServer::start(&[]).await, TestServer::start(&[]).await];
    let builder = || {
        let builder = Locks::quorum(servers.iter().map(|server| server.url("")));
        builder.restart_delay(Duration::ZERO).lease(Duration::from_secs(600))
    };
    let held = builder().connect().await.unwrap().mutex("stock").lock().await.unwrap();
    let theirs = builder().connect().await.unwrap();
    let has = async |server: &TestServer| server.command("EXISTS stock").await == redis::Value::Int(1);
    while !has(&servers[2]).await {
        sleep(Duration::from_millis(5)).await;
    }
    servers[2].signal("STOP");
    assert!(theirs.mutex("stock").force_release().await.unwrap());
    servers[2].signal("CONT");
    // The holder would also end what is left, but does not look meanwhile.
    let end = async {
        while has(&servers[2]).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), end).await.expect("the key stays for a lease");
    drop(held);
}
