//! How long a request waits for another process's lock where no message is to wake it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Locks, Master, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// Those who compete, and each have a minority, publish when they give it up. Woken by that they would ask in step, and so for ever.
#[tokio::test(start_paused = true)]
async fn no_message_ends_the_pause_after_a_split_vote() {
    let stores: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let locks = async |stores: &[Memory]| {
        let builder = Locks::builder().masters(stores.iter().map(Master::memory)).lease(60 * SECOND);
        builder.retry_delay(SECOND..=SECOND).connect().await.unwrap()
    };
    let first = locks(&stores[..1]).await.mutex("stock").lock().await.unwrap();
    let second = locks(&stores[1..2]).await.mutex("stock").lock().await.unwrap();
    let begun = Instant::now();
    let waiting = tokio::spawn(locks(&stores).await.mutex("stock").lock());
    sleep(SECOND / 2).await;
    first.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(begun.elapsed() >= SECOND, "{:?}", begun.elapsed());
    guard.release().await.unwrap();
    second.release().await.unwrap();
}
