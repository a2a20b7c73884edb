//! Tests of `Locks` over stores and servers. Each module has one topic; this file has what fits none, and
//! what a sleep of the machine does to a hold, by a clock that the test moves.

mod asleep;
mod attempts;
mod branches;
mod depth;
mod doubts;
mod forked;
mod late;
mod limits;
mod logged;
mod polls;
mod refusals;
mod restarts;
mod runs;
mod several;
mod stragglers;
#[cfg(not(shuttle))]
mod threads;
mod tokens;
mod unpolled;
mod waits;

use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::Locks;
use crate::backend::testing::TestServer;
use crate::base::{Mutex, lock};
use crate::client::Guard;
use crate::session::clock::Clock;
use crate::{ErrorKind, Loss};

#[tokio::test]
async fn what_the_machine_slept_through_is_taken_off_a_hold() {
    static SLEPT: AtomicU64 = AtomicU64::new(0);
    let server = TestServer::start(&[]).await;
    let clock = Clock::with(|| SLEPT.load(SeqCst) as i64 * 1_000_000_000);
    let locks = Locks::builder(server.url("")).connect_by(clock).await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let before = guard.valid_until();

    SLEPT.store(10, SeqCst);
    assert!(!guard.is_lost());
    assert_eq!(before - guard.valid_until(), Duration::from_secs(10));

    SLEPT.store(40, SeqCst);
    assert!(guard.valid_until() < Instant::now());
    assert_eq!(guard.loss(), Some(Loss::Suspended));
    assert_eq!(guard.lost().await, Loss::Suspended);
    assert!(!stock.is_held());
    let late = guard.release().await.unwrap_err();
    assert_eq!((late.kind(), late.loss()), (ErrorKind::Lost, Some(Loss::Suspended)));
}

#[tokio::test]
async fn a_release_after_a_long_sleep_is_lost_though_nobody_looked() {
    static SLEPT: AtomicU64 = AtomicU64::new(0);
    let server = TestServer::start(&[]).await;
    let clock = Clock::with(|| SLEPT.load(SeqCst) as i64 * 1_000_000_000);
    let locks = Locks::builder(server.url("")).connect_by(clock).await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    SLEPT.store(40, SeqCst);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Suspended));
    // What was left on the server is still ended, and the lock can be taken again.
    locks.mutex("stock").lock().await.unwrap().release().await.unwrap();
}

/// The answer to the release is lost, and the release is sent again before `close` gives up.
#[tokio::test(start_paused = true)]
async fn close_asks_again_for_a_release_whose_answer_was_lost() {
    let store = crate::Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    store.faults().drop_replies(1);
    drop(guard);
    locks.close().await.unwrap();
}

/// The extension ran, but this process does not know: the longer lease of the key must not outlive the hold.
#[tokio::test(start_paused = true)]
async fn a_fixed_hold_ends_its_key_also_where_an_extension_had_no_answer() {
    let store = crate::Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().fixed_lease(Duration::from_secs(20)).await.unwrap();
    store.faults().drop_replies(1);
    guard.extend(Duration::from_secs(600)).await.unwrap_err();
    assert_eq!(guard.lost().await, Loss::Expired);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }");
    assert!(guard.is_lost());
}

/// One release is certain while another of the same batch still waits for a slow master. That master's answer
/// counts for both.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_release_that_a_slow_master_confirmed_with_others() {
    let stores = [crate::Memory::new(), crate::Memory::new(), crate::Memory::new()];
    let builder = Locks::quorum(stores.iter().map(crate::Master::memory));
    let locks = builder.connect().await.unwrap();
    let (one, two) = (locks.mutex("one").lock().await.unwrap(), locks.mutex("two").lock().await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    stores[2].faults().stall(Duration::from_millis(300));
    // The first two masters do not agree on `two`.
    assert!(stores[1].faults().lose("two"));
    drop((one, two));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(locks.handle.table(|table, _| table.is_empty()), "kept for a lease");
    for store in &stores {
        assert_eq!(format!("{store:?}"), "Memory { locks: {} }");
    }
}

/// The server is full: it can't count the release of the inner level, and the next command has to wait for
/// that.
#[tokio::test]
async fn a_re_entry_in_a_full_server_ends_with_an_error() {
    let server = TestServer::start(&[]).await;
    let builder = Locks::builder(server.url("")).unavailable_after(Duration::from_secs(1));
    let stock = builder.connect().await.unwrap().mutex("stock");
    let hour = Duration::from_secs(3600);
    let outer = stock.lock().fixed_lease(hour).await.unwrap();
    let inner = stock.lock().fixed_lease(hour / 2).await.unwrap();
    server.command("CONFIG SET maxmemory 1").await;
    inner.release().await.unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(20), stock.lock()).await;
    let error = asked.expect("the re-entry waits for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.command("CONFIG SET maxmemory 0").await;
    stock.lock().await.unwrap().release().await.unwrap();
    outer.release().await.unwrap();
}

/// A waker that drops a guard when it is woken.
struct Goes(Mutex<Option<Guard>>);

impl Wake for Goes {
    fn wake(self: Arc<Self>) {
        let guard = lock(&self.0).take();
        drop(guard);
    }
}

/// In this order: 1. The background ends a fixed lease, and finds nothing else due. 2. A guard is dropped. 3. The background sleeps.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_while_the_background_goes_to_sleep_is_released_at_once() {
    let store = crate::Memory::new();
    let locks = Locks::builder(&store).lease(Duration::from_secs(60)).connect().await.unwrap();
    let _fixed = locks.mutex("order").lock().fixed_lease(Duration::from_secs(5)).await.unwrap();
    let goes = Arc::new(Goes(Mutex::new(Some(locks.mutex("stock").lock().await.unwrap()))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut progress = pin!(locks.handle.progress.notified());
    assert!(progress.as_mut().poll(&mut Context::from_waker(&Waker::from(goes.clone()))).is_pending());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(lock(&goes.0).is_none(), "the background did nothing");
    assert_eq!(format!("{store:?}"), "Memory { locks: {} }");
}

/// In this order: 1. The key is deleted. 2. A re-entry is answered that its hold is gone. 3. The task that
/// waits for the loss drops the guard. 4. The request continues: a grant now would mean that it had silently
/// acquired the lock again.
#[tokio::test(start_paused = true)]
async fn a_re_entry_whose_hold_is_gone_is_an_error_though_the_guard_goes_at_once() {
    let store = crate::Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let mut lost = pin!(guard.held().watch());
    let goes = Arc::new(Goes(Mutex::new(Some(guard))));
    assert!(lost.as_mut().poll(&mut Context::from_waker(&Waker::from(goes.clone()))).is_pending());
    store.visit(|store| store.delete("stock"));
    let error = stock.lock().await.expect_err("it is granted again");
    assert_eq!(error.loss(), Some(Loss::Gone));
    assert!(lock(&goes.0).is_none(), "the guard is still there");
}

#[tokio::test]
async fn a_pause_doubles_from_pause_to_pause_and_is_random_in_the_end() {
    let pauses = async |from, to| {
        let delay = Duration::from_millis(from)..=Duration::from_millis(to);
        let locks = Locks::builder(crate::Memory::new()).retry_delay(delay).connect().await.unwrap();
        [0, 1, 3, 8, u32::MAX].map(|before| locks.handle.pause(before).as_millis())
    };
    let ranges = async |from, to, ranges: [RangeInclusive<u128>; 5]| {
        let drawn = pauses(from, to).await;
        assert!(drawn.iter().zip(&ranges).all(|(pause, range)| range.contains(pause)), "{drawn:?}");
    };
    ranges(10, 10, [10..=10, 10..=20, 40..=80, 500..=1000, 500..=1000]).await;
    ranges(1, 1, [1..=1, 1..=2, 4..=8, 128..=256, 500..=1000]).await;
    ranges(3000, 3000, [3000..=3000, 3000..=6000, 3000..=6000, 3000..=6000, 3000..=6000]).await;
    ranges(20, 30, [20..=30, 30..=60, 120..=240, 500..=1000, 500..=1000]).await;
    assert_eq!(pauses(0, 0).await, [1; 5]);
}

#[test]
fn the_id_of_a_process_is_a_random_uuid() {
    for _ in 0..100 {
        let uuid = super::uuid().unwrap();
        let parts: Vec<_> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
        assert!(uuid[14..].starts_with('4') && uuid[19..].starts_with(['8', '9', 'a', 'b']), "{uuid}");
    }
}

/// The refusal is reported as soon as it arrives, not after the node timeout.
#[tokio::test]
async fn a_release_that_is_denied_is_an_error_at_once() {
    let server = TestServer::start(&[]).await;
    let minute = Duration::from_secs(60);
    let locks = Locks::builder(server.url("")).node_timeout(minute).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.command("ACL SETUSER default -evalsha -eval").await;
    let released = tokio::time::timeout(minute / 2, guard.release()).await;
    assert_eq!(released.expect("it waits").unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn connect_needs_a_majority_of_the_masters() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for (there, away) in [(2, 1), (3, 2), (1, 1), (1, 2), (2, 2), (2, 3), (0, 1)] {
        let stores = (0..there).map(|_| crate::Master::memory(&crate::Memory::new()));
        // Nobody listens at this port.
        let servers = (0..away).map(|db| crate::Master::server(format!("redis://127.0.0.{}:{port}", db + 1)));
        let builder = Locks::quorum(stores.chain(servers)).node_timeout(Duration::from_secs(60));
        match builder.connect().await {
            Ok(locks) => {
                assert!(there > away, "{there} of {}", there + away);
                locks.close().await.unwrap();
            }
            Err(error) => {
                assert!(there <= away, "{there} of {}: {error}", there + away);
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
        }
    }
}
