//! Masters that answer, but take longer than the requested lease.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::{ErrorKind, Locks, Memory, Owner};

const SECOND: Duration = Duration::from_secs(1);

/// Less than the node timeout.
const LATENCY: Duration = Duration::from_millis(120);

/// Runs each command [`LATENCY`] after it was sent.
async fn delay(store: Memory) {
    let mut way = VecDeque::new();
    store.faults().stall(Duration::MAX);
    loop {
        let now = Instant::now();
        store.visit(|store| {
            way.extend(store.backlog.drain(..).map(|sent| (now + LATENCY, sent)));
            let stalled = store.stalled_until.take();
            while way.front().is_some_and(|(at, _)| *at <= now) {
                store.backlog.extend(way.pop_front().map(|(_, sent)| sent));
            }
            store.run_backlog(now);
            store.stalled_until = stalled;
        });
        sleep(Duration::from_millis(1)).await;
    }
}

async fn slow(masters: usize) -> Locks {
    let stores: Vec<_> = (0..masters).map(|_| Memory::new()).collect();
    let builder = Locks::quorum(&stores);
    let locks = builder.connect().await.unwrap();
    stores.into_iter().for_each(|store| drop(tokio::spawn(delay(store))));
    sleep(SECOND).await;
    locks
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_before_its_grant_is_reported_is_given_up_in_time() {
    for masters in [1, 3] {
        let stock = slow(masters).await.mutex("stock");
        let brief = Duration::from_millis(100);
        for (limit, longest) in [(Some(SECOND), 2 * SECOND), (None, 12 * SECOND)] {
            let asked = stock.lock().fixed_lease(brief);
            let asked = if let Some(limit) = limit { asked.within(limit) } else { asked };
            let began = Instant::now();
            let error = timeout(60 * SECOND, asked).await.expect("the request asks for ever").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("ask for a longer lease"), "{error}");
            assert!(began.elapsed() < longest, "{:?}", began.elapsed());
        }
        let error = stock.try_lock().fixed_lease(brief).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // What was granted too late is ended, and keeps nobody out.
        stock.lock().await.unwrap().release().await.unwrap();
    }
}

/// The request is polled whenever it is woken. The master is slow, and would be as slow for the next request
/// in the queue.
#[tokio::test(start_paused = true)]
async fn a_request_keeps_its_turn_for_as_long_as_a_slow_master_may_take() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    store.faults().stall(2 * SECOND / 5);
    let requests = [(); 2].map(|()| {
        let stock = stock.clone();
        tokio::spawn(async move { stock.lock().owner(&Owner::new()).await?.release().await })
    });
    sleep(3 * SECOND / 10).await;
    assert_eq!(store.visit(|store| store.backlog.len()), 1, "the next in the queue asked too");
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

/// In this order: 1. The connection breaks while a release is under way. 2. The background sends the release
/// again, and is answered.
#[tokio::test(start_paused = true)]
async fn a_release_whose_connection_breaks_is_confirmed_over_the_next_one() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    store.faults().stall(Duration::MAX);
    let releasing = tokio::spawn(guard.release());
    while store.visit(|store| store.backlog.is_empty()) {
        yield_now().await;
    }
    store.visit(|store| {
        let (_, reply) = store.backlog.pop_front().unwrap();
        reply.set(None).unwrap();
        store.progressed = true;
    });
    store.faults().stall(Duration::ZERO);
    releasing.await.unwrap().unwrap();
}

/// The release waits for an extension, which is answered before the node timeout.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_command_that_a_slow_master_answers_in_time_is_confirmed() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    store.faults().stall(2 * SECOND / 5);
    let extending = tokio::spawn(async move { outer.extend(60 * SECOND).await });
    while store.visit(|store| store.backlog.is_empty()) {
        yield_now().await;
    }
    inner.release().await.unwrap();
    extending.await.unwrap().unwrap();
}

/// Each answer wakes both. The branch that has asked must not ask again before the other one.
#[tokio::test(start_paused = true)]
async fn branches_that_check_again_and_again_have_turns() {
    let stock = slow(1).await.mutex("stock");
    let (checks, nests) = (Cell::new(0), Cell::new(0));
    stock
        .run(async |hold| {
            let checking = async || {
                while checks.get() < 60 {
                    hold.check().await.unwrap();
                    checks.set(checks.get() + 1);
                }
            };
            let nesting = async || {
                while checks.get() < 60 {
                    let guard = stock.lock().await.unwrap();
                    guard.release().await.unwrap();
                    nests.set(nests.get() + 1);
                }
            };
            tokio::join!(checking(), checking(), nesting(), checking());
        })
        .await
        .unwrap();
    assert!(nests.get() >= 5, "{nests:?}");
}
