//! Masters that answer, and more slowly than the lease that is asked for.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{ErrorKind, Locks, Master, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// Less than the node timeout.
const LATENCY: Duration = Duration::from_millis(120);

/// Each command runs so much later than it was sent.
async fn delay(store: Memory) {
    let mut way = VecDeque::new();
    store.stall(Duration::MAX);
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
    let builder = Locks::builder().masters(stores.iter().map(Master::memory));
    let locks = builder.connect().await.unwrap();
    stores.into_iter().for_each(|store| drop(tokio::spawn(delay(store))));
    sleep(SECOND).await;
    locks
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_before_its_grant_is_told_is_given_up_in_time() {
    for masters in [1, 3] {
        let stock = slow(masters).await.mutex("stock");
        let brief = Duration::from_millis(100);
        for (limit, longest) in [(Some(SECOND), 2 * SECOND), (None, 12 * SECOND)] {
            let asked = stock.lock().fixed_lease(brief);
            let asked = if let Some(limit) = limit { asked.within(limit) } else { asked };
            let began = Instant::now();
            let error = timeout(60 * SECOND, asked).await.expect("it asks for ever").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("ask for a longer lease"), "{error}");
            assert!(began.elapsed() < longest, "{:?}", began.elapsed());
        }
        let error = stock.try_lock().fixed_lease(brief).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // What was granted too late is ended, and stands in nobody's way.
        stock.lock().await.unwrap().release().await.unwrap();
    }
}
