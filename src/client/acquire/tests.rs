use std::pin::Pin;

use tokio::time::{advance, timeout};

use super::*;
use crate::client::answer::Asks;
use crate::{Locks, Memory};

/// Otherwise requests that compete for slow masters would pause for the shortest time every time.
#[tokio::test(start_paused = true)]
async fn a_pause_is_long_ago_by_when_the_attempt_after_it_was_sent() {
    let locks = Locks::in_memory();
    let (mut attempted, second) = (Attempts::default(), Duration::from_secs(1));
    for pauses in 0..10 {
        let asked = Instant::now();
        // The attempt takes longer than any pause.
        advance(2 * second).await;
        let pause = attempted.next_pause(asked, &locks.handle);
        assert_eq!(attempted.pauses, pauses);
        attempted.note_pause(after(Instant::now(), pause));
        advance(pause).await;
    }
    advance(2 * second).await;
    attempted.next_pause(Instant::now(), &locks.handle);
    assert_eq!(attempted.pauses, 0);
}

/// A loop of nested runs has to let other tasks run.
#[tokio::test]
async fn each_nested_level_that_is_granted_at_once_takes_a_part_of_the_budget() {
    let stock = Locks::in_memory().mutex("stock");
    let _held = stock.lock().await.unwrap();
    let child = || {
        let mut request = stock.request(None);
        let call = request.options_mut();
        (call.bare, call.owner) = (false, Some(Owner::current().child()));
        request
    };
    let granted = poll_fn(|cx| {
        let at_once = (0..1000).take_while(|_| child().poll(cx).is_ready()).count();
        Poll::Ready(at_once)
    });
    let granted = granted.await;
    assert!((1..1000).contains(&granted), "{granted}");
}

/// 1. An attempt of the request has no answer. 2. Its task is busy, so another task of the process gets the lock before it. 3. Its time is
/// over. The master has answered since then, so the request was refused.
#[tokio::test(start_paused = true)]
async fn a_request_that_ends_while_a_task_of_its_process_holds_the_lock_was_refused() {
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    store.faults().drop_replies(1);
    let mut request = pin!(stock.lock().within(Duration::from_millis(600)));
    timeout(Duration::from_millis(501), &mut request).await.unwrap_err();
    let other = stock.clone();
    let _held = tokio::spawn(async move { other.lock().await }).await.unwrap().unwrap();
    let error = request.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.holder().is_some());
}

/// A loop of `try_lock` that another request of its process refuses lets that one go on. While it does, nothing is in the queue to which
/// a hold could be offered.
#[tokio::test(start_paused = true)]
async fn each_refusal_without_a_wait_takes_a_part_of_the_budget() {
    let store = Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    let stock = locks.mutex("stock");
    store.faults().stall(Duration::from_millis(400));
    let (asks, stranger) = (tokio::spawn(stock.lock().run(async |_| {})), Owner::new());
    tokio::task::yield_now().await;
    let mut request = stock.try_lock().owner(&stranger);
    let mut refused = 0;
    poll_fn(|cx| {
        while refused < 1000 && Pin::new(&mut request).poll(cx).is_ready() {
            refused += 1;
            request = stock.try_lock().owner(&stranger);
        }
        Poll::Ready(())
    })
    .await;
    assert!((1..1000).contains(&refused), "{refused}");
    assert_eq!(locks.status()[0].waiting(), 1);
    assert!(request.await.unwrap().is_none());
    asks.await.unwrap().unwrap();
}

/// A task that asks again after each error, also once its runtime ends: 1. `main` returns. 2. The runtime ends, and each request fails at
/// once. 3. The runtime waits for the task to yield.
#[test]
fn a_loop_of_requests_does_not_keep_its_runtime_from_ending() {
    for _ in 0..5 {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = Locks::builder(Memory::new()).connect().await.unwrap();
            let (stock, both) = (locks.mutex("stock"), locks.mutexes(["stock", "price"]));
            locks.close().await.unwrap();
            tokio::spawn(async move { while stock.lock().await.is_err() {} });
            tokio::spawn(async move { while both.lock().await.is_err() {} });
        });
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            ended.send(()).unwrap();
        });
        ends.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
    }
}
