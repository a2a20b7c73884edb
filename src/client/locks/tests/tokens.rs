//! Fencing tokens over several masters whose counters differ: each holder's token is greater than all before
//! it.
//!
//! The counters are greater than any clock's time, so that the order depends on them alone.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::wire::keys::counter;
use crate::{Locks, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// More than any clock's time in microseconds, and more than a Lua number can count exactly.
const ABOVE: u64 = 1 << 60;

/// Makes masters whose counters of this lock are this far above [`ABOVE`].
fn masters(name: &str, counters: &[u64]) -> Vec<Memory> {
    let stores: Vec<_> = counters.iter().map(|_| Memory::new()).collect();
    count_from(&stores, name, counters);
    stores
}

fn count_from(stores: &[Memory], name: &str, counters: &[u64]) {
    for (store, above) in stores.iter().zip(counters) {
        store.visit(|store| store.counters.set(&counter("", name), ABOVE + above));
    }
}

fn counted(stores: &[Memory], name: &str) -> Vec<u64> {
    let now = Instant::now();
    let counted = |store: &Memory| store.visit(|store| store.counters.stands(&counter("", name), now));
    stores.iter().map(|store| counted(store).map_or(0, |token| token - ABOVE)).collect()
}

async fn locks(stores: &[Memory]) -> Locks {
    let builder = Locks::quorum(stores);
    builder.lease(10 * SECOND).connect().await.unwrap()
}

fn loses(store: &Memory, loses: impl FnMut() -> bool + Send + 'static) {
    store.visit(|store| store.loses = Some(Box::new(loses)));
}

fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn a_fenced_handle_shows_the_same_lock_as_a_plain_one() {
    let plain = Locks::in_memory().mutex("stock");
    let fenced = plain.clone().fenced();
    assert_eq!((plain.name(), fenced.name()), ("stock", "stock"));
    let looks = async || {
        let (locked, left) = (fenced.is_locked().await.unwrap(), fenced.remaining_lease().await.unwrap());
        (fenced.is_held(), fenced.hold_count(), locked, left)
    };
    assert_eq!(looks().await, (false, 0, false, None));
    let _outer = fenced.lock().await.unwrap();
    let _inner = plain.lock().await.unwrap();
    assert_eq!(looks().await, (true, 2, true, Some(30 * SECOND)));
    assert!(fenced.force_release().await.unwrap());
    assert!(!plain.is_locked().await.unwrap());
    assert!(!fenced.force_release().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_token_is_known_to_a_majority_before_it_is_handed_out() {
    let stores = masters("stock", &[100, 50, 0]);
    let (ours, theirs) = (locks(&stores).await, locks(&stores).await);
    // The third master does not learn of this grant, and the second did not learn of the hundredth.
    stores[2].faults().stall(5 * SECOND);
    let guard = ours.mutex("stock").fenced().lock().await.unwrap();
    let token = guard.token();
    assert_eq!(token, ABOVE + 101);
    assert_eq!(counted(&stores, "stock")[..2], [101, 101]);
    guard.release().await.unwrap();

    // The next request is granted by the other two.
    stores[2].faults().stall(Duration::ZERO);
    stores[0].faults().stall(5 * SECOND);
    let next = theirs.mutex("stock").fenced().lock().await.unwrap();
    assert!(next.token() > token, "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_a_majority_may_not_have_is_not_handed_out() {
    let stores = masters("stock", &[100, 50, 0]);
    let (ours, theirs) = (locks(&stores).await, locks(&stores).await);
    stores[2].faults().stall(5 * SECOND);
    let stock = ours.mutex("stock").fenced();
    let mut asking = Box::pin(stock.try_lock());
    assert!(poll(asking.as_mut()).is_pending());
    // Both have granted it. Commands that are sent to the second from now on are lost.
    loses(&stores[1], || true);
    let mut handed_out = None;
    if let Ok(Ok(Some(guard))) = timeout(3 * SECOND, asking).await {
        handed_out = Some(guard.token());
        guard.release().await.unwrap();
    }
    stores[1].visit(|store| store.loses = None);
    stores[2].faults().stall(Duration::ZERO);
    stores[0].faults().stall(60 * SECOND);
    let next = theirs.mutex("stock").fenced().lock().await.unwrap();
    assert!(Some(next.token()) > handed_out, "{handed_out:?}, then {:?}", next.token());
    assert_eq!(handed_out, None, "the second answer of the second master never came");
}

#[tokio::test(start_paused = true)]
async fn counters_that_agree_cost_one_round_trip() {
    let stores = masters("stock", &[7, 7, 7]);
    let stock = locks(&stores).await.mutex("stock").fenced();
    let mut asking = pin!(stock.lock());
    assert!(poll(asking.as_mut()).is_pending());
    // All have granted it; commands that are sent from now on never arrive.
    stores.iter().for_each(|store| loses(store, || true));
    let Poll::Ready(Ok(guard)) = poll(asking.as_mut()) else { panic!("it waits for more") };
    assert_eq!(guard.token(), ABOVE + 8);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_and_a_repair_make_a_token_known_to_those_that_missed_it() {
    let stores = masters("stock", &[100, 50, 0]);
    let ours = locks(&stores).await;
    stores[2].faults().stall(SECOND);
    let guard = ours.mutex("stock").fenced().lock().await.unwrap();
    assert_eq!(guard.token(), ABOVE + 101);
    let missed = stores[2].clone();
    sleep(20 * SECOND).await;
    assert_eq!(counted(&[missed], "stock"), [101]);
    // A master that comes back without its counters is given this counter, with the hold.
    stores[1].faults().restart_empty();
    sleep(20 * SECOND).await;
    assert_eq!(counted(&stores, "stock"), [101, 101, 101]);
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_has_the_token_of_its_hold() {
    let stores = masters("stock", &[3, 2, 1]);
    let stock = locks(&stores).await.mutex("stock").fenced();
    let outer = stock.lock().await.unwrap();
    let inner = stock.lock().await.unwrap();
    assert_eq!((inner.depth(), inner.token()), (2, outer.token()));
}

/// The tokens that were handed out for each lock, in order.
type HandedOut = Arc<Mutex<Vec<Vec<u64>>>>;

const NAMES: usize = 2;

fn name(at: usize) -> String {
    format!("stock:{at}")
}

async fn hold(locks: Locks, handed_out: HandedOut, end: Instant, mut random: StdRng) {
    while Instant::now() < end {
        let at = random.random_range(0..NAMES);
        let lock = locks.mutex(name(at)).fenced();
        let Ok(Ok(guard)) = timeout(20 * SECOND, lock.lock()).await else { continue };
        handed_out.lock().unwrap()[at].push(guard.token());
        sleep(Duration::from_millis(random.random_range(0..500))).await;
        if random.random() { drop(guard) } else { drop(guard.release().await) }
    }
}

async fn trouble(stores: Vec<Memory>, end: Instant, restarts: bool, mut random: StdRng) {
    for store in &stores {
        let mut random = StdRng::seed_from_u64(random.random());
        let share = if restarts { 0.05 } else { 0.3 };
        loses(store, move || random.random_bool(share));
    }
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(0..400))).await;
        let store = &stores[random.random_range(0..stores.len())];
        match random.random_range(0..12) {
            0 if restarts => store.faults().restart_empty(),
            // The counter is raised as by an attempt that only this master granted.
            0..9 if !restarts => store.visit(|store| {
                let counter = counter("", &name(random.random_range(0..NAMES)));
                let stands = store.counters.stands(&counter, Instant::now()).unwrap_or(ABOVE);
                store.counters.set(&counter, stands + random.random_range(1..1_000));
            }),
            // Longer than the node timeout: commands that were given up still run.
            0..11 => store.faults().stall(Duration::from_millis(random.random_range(0..2_000))),
            _ => store.faults().drop_replies(random.random_range(1..4)),
        }
    }
}

/// Makes trouble for five minutes, and returns the number of grants.
async fn run(seed: u64, restarts: bool) -> usize {
    let stores: Vec<_> = (0..if seed.is_multiple_of(3) { 5 } else { 3 }).map(|_| Memory::new()).collect();
    let mut random = StdRng::seed_from_u64(seed);
    if !restarts {
        // If counters are lost, the order depends on the clock, so they must not be above it.
        for at in 0..NAMES {
            let counters: Vec<u64> = stores.iter().map(|_| random.random_range(0..1_000)).collect();
            count_from(&stores, &name(at), &counters);
        }
    }
    let (end, handed_out) = (Instant::now() + 300 * SECOND, HandedOut::default());
    handed_out.lock().unwrap().resize(NAMES, Vec::new());
    let mut tasks = JoinSet::new();
    for client in 0..4 {
        let random = StdRng::seed_from_u64(seed * 100 + client);
        tasks.spawn(hold(locks(&stores).await, handed_out.clone(), end, random));
    }
    tasks.spawn(trouble(stores, end, restarts, random));
    tasks.join_all().await;
    let handed_out = handed_out.lock().unwrap();
    for (at, tokens) in handed_out.iter().enumerate() {
        assert!(tokens.is_sorted_by(|one, next| one < next), "seed {seed}, lock {at}: {tokens:?}");
    }
    handed_out.iter().map(Vec::len).sum()
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_through_partitions_lost_answers_and_late_commands() {
    let mut grants = 0;
    for seed in 0..2 {
        grants += run(seed, false).await;
    }
    assert!(grants > 150, "{grants} grants show nothing");
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_by_the_clock_where_counters_are_lost() {
    let mut grants = 0;
    for seed in 100..102 {
        grants += run(seed, true).await;
    }
    assert!(grants > 40, "{grants} grants show nothing");
}
