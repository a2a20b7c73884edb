//! What is logged about holds and requests, and when.

use std::time::Duration;

use tokio::time::sleep;

use crate::base::telemetry::testing::Recorder;
use crate::{Locks, Loss, Memory, Mutex};

const SECOND: Duration = Duration::from_secs(1);

async fn stock(store: &Memory) -> Mutex {
    Locks::builder(store).lease(30 * SECOND).connect().await.unwrap().mutex("stock")
}

/// Counts the log events of disturbances: a hold that nothing disturbs logs none of these.
fn counts(log: &Recorder) -> [usize; 5] {
    [
        "lock lost",
        "attempt failed, retrying",
        "a command in the background failed, retrying",
        "hold settled with the server",
        "lease renewed late",
    ]
    .map(|message| log.count(message))
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_logged_once_and_a_release_is_none() {
    let (log, store) = (Recorder::start(), Memory::new());
    let stock = stock(&store).await;
    let guard = stock.lock().await.unwrap();
    sleep(100 * SECOND).await;
    guard.release().await.unwrap();
    assert_eq!(counts(&log), [0; 5]);
    let guard = stock.lock().await.unwrap();
    store.faults().lose("stock");
    assert_eq!(guard.lost().await, Loss::Gone);
    assert_eq!(log.count(&format!("name=stock field=\"{}\"", guard.hold_id())), 1);
    guard.release().await.unwrap_err();
    sleep(100 * SECOND).await;
    assert_eq!(counts(&log), [1, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_is_logged_with_what_repairs_it() {
    let (log, store) = (Recorder::start(), Memory::new());
    let guard = stock(&store).await.lock().await.unwrap();
    for times in 1..4 {
        store.faults().drop_replies(1);
        sleep(30 * SECOND).await;
        assert_eq!(counts(&log), [0, 0, times, times, times]);
    }
    guard.release().await.unwrap();
    assert_eq!(counts(&log), [0, 0, 3, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_logged() {
    let (log, store) = (Recorder::start(), Memory::new());
    let stock = stock(&store).await;
    store.faults().drop_replies(1);
    let guard = stock.lock().await.unwrap();
    assert_eq!(counts(&log)[..2], [0, 1]);
    guard.release().await.unwrap();
}
