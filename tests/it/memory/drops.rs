//! Futures that are dropped at each of their polls.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use nestlock::{Mutex, Owner};
use tokio::time::sleep;

use super::{MILLISECOND, SECOND, locks, rest, stock};
use crate::support::home::memory::Home;

/// Polls a future this many times, each time when everything else is idle, and then drops it. Returns its output if it completed.
async fn cut<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            return Some(done);
        }
        sleep(MILLISECOND).await;
    }
    None
}

/// Runs a future that is dropped after its first poll, then one that is dropped after its second, and so on until one completes. After each
/// run the lock must be free at once, and no field may be left.
async fn cut_everywhere<T>(
    what: &str,
    home: &Home,
    ends: bool,
    mut begin: impl AsyncFnMut(usize) -> Option<T>,
) {
    let other = stock(home).await;
    for polls in 0..100 {
        let done = begin(polls).await.is_some();
        rest().await;
        assert!(home.keys().await.is_empty(), "{what} after {polls} polls: {:?}", home.fields("stock").await);
        other.try_lock().await.unwrap().expect("nobody has it").release().await.unwrap();
        if done || (!ends && polls == 20) {
            assert!(polls > 1, "{what} completed in its first poll");
            return;
        }
    }
    panic!("{what} does not complete");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_free_lock_leaves_nothing_wherever_it_is_dropped() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    cut_everywhere("lock", &home, true, async |polls| cut(stock.lock(), polls).await.map(drop)).await;
    cut_everywhere("try_lock", &home, true, async |polls| cut(stock.try_lock(), polls).await.map(drop)).await;
    cut_everywhere("run", &home, true, async |polls| cut(stock.run(|_| rest()), polls).await).await;
    cut_everywhere("nested", &home, true, async |polls| {
        cut(stock.run(|_| stock.run(|_| rest())), polls).await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_leaves_nothing_wherever_it_is_dropped() {
    let home = Home::start().await;
    let (ours, theirs) = (stock(&home).await, stock(&home).await);
    cut_everywhere("a wait for another process", &home, false, async |polls| {
        let held = theirs.lock().await.unwrap();
        let waited = cut(ours.lock(), polls).await;
        held.release().await.unwrap();
        waited
    })
    .await;
    cut_everywhere("a wait for another task", &home, false, async |polls| {
        let held = ours.lock().owner(&Owner::new()).await.unwrap();
        let waited = cut(ours.lock(), polls).await;
        drop(held);
        waited
    })
    .await;
    // `released`: the poll of the waiter at which the holder releases.
    for released in 0..10 {
        cut_everywhere("a wait that ends", &home, true, async |polls| {
            let mut held = Some(theirs.lock().await.unwrap());
            let mut polled = 0;
            let mut request = ours.lock();
            let waits = poll_fn(|cx| {
                if polled == released {
                    held.take();
                }
                polled += 1;
                std::pin::Pin::new(&mut request).poll(cx)
            });
            cut(waits, polls).await.map(drop)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_several_names_leaves_nothing_wherever_it_is_dropped() {
    let home = Home::start().await;
    let (ours, theirs) = (locks(&home).await, locks(&home).await);
    let several = ours.mutexes(["order", "stock", "till"]);
    cut_everywhere("lock", &home, true, async |polls| cut(several.lock(), polls).await.map(drop)).await;
    cut_everywhere("try_lock", &home, true, async |polls| cut(several.try_lock(), polls).await.map(drop))
        .await;
    cut_everywhere("run", &home, true, async |polls| cut(several.run(|_| rest()), polls).await).await;
    cut_everywhere("nested", &home, true, async |polls| {
        cut(several.run(|_| several.run(|_| rest())), polls).await
    })
    .await;
    cut_everywhere("release", &home, true, async |polls| {
        let guards = several.lock().await.unwrap();
        cut(guards.release(), polls).await
    })
    .await;
    for name in ["order", "stock", "till"] {
        cut_everywhere("a wait", &home, false, async |polls| {
            let held = theirs.mutex(name).lock().await.unwrap();
            let waited = cut(several.lock(), polls).await;
            held.release().await.unwrap();
            waited
        })
        .await;
        // `released`: the poll of the waiter at which the holder releases.
        for released in 0..10 {
            cut_everywhere("a wait that ends", &home, true, async |polls| {
                let mut held = Some(theirs.mutex(name).lock().await.unwrap());
                let mut polled = 0;
                let mut request = several.lock();
                let waits = poll_fn(|cx| {
                    if polled == released {
                        held.take();
                    }
                    polled += 1;
                    std::pin::Pin::new(&mut request).poll(cx)
                });
                cut(waits, polls).await.map(drop)
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reentry_leaves_its_outer_hold_as_it_was_wherever_it_is_dropped() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    for polls in 0..20 {
        let outer = stock.lock().await.unwrap();
        let done = cut(stock.lock(), polls).await.is_some();
        rest().await;
        assert_eq!(
            (stock.hold_count(), home.count("stock", outer.hold_id()).await),
            (1, Some(1)),
            "{polls} polls"
        );
        assert_eq!(stock.lock().await.unwrap().depth(), 2);
        outer.release().await.unwrap();
        rest().await;
        assert!(home.keys().await.is_empty());
        if done {
            return;
        }
    }
    panic!("it does not complete");
}

#[tokio::test(start_paused = true)]
async fn a_release_and_an_extension_do_their_work_wherever_they_are_dropped() {
    let home = Home::start().await;
    let stock = stock(&home).await;
    cut_everywhere("release", &home, true, async |polls| {
        let guard = stock.lock().await.unwrap();
        cut(guard.release(), polls).await
    })
    .await;
    cut_everywhere("a nested release", &home, true, async |polls| {
        let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
        let done = cut(inner.release(), polls).await;
        rest().await;
        assert_eq!((stock.hold_count(), home.count("stock", outer.hold_id()).await), (1, Some(1)));
        outer.release().await.unwrap();
        done
    })
    .await;
    cut_everywhere("extend", &home, true, async |polls| {
        let guard = stock.lock().await.unwrap();
        let done = cut(guard.extend(600 * SECOND), polls).await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        done
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_is_a_close() {
    let home = Home::start().await;
    for polls in 1..5 {
        let locks = locks(&home).await;
        let stock: Mutex = locks.mutex("stock");
        drop(stock.lock().await.unwrap());
        let _ = cut(locks.close(), polls).await;
        rest().await;
        assert!(home.keys().await.is_empty());
        assert_eq!(stock.lock().await.unwrap_err().kind(), nestlock::ErrorKind::Closed);
    }
}
