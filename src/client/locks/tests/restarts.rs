//! A grant that is on its way while the masters restart: the execution that shows why even a majority of
//! young masters has no vote.

use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::{ErrorKind, Guard, Locks, Memory, Mutex, Result};

const SECOND: Duration = Duration::from_secs(1);

async fn stock(stores: &[Memory], trusting: bool) -> Mutex {
    let builder = Locks::quorum(stores);
    let builder = if trusting { builder.restart_delay(Duration::ZERO) } else { builder };
    builder.connect().await.unwrap().mutex("stock")
}

fn is_free(store: &Memory) -> bool {
    format!("{store:?}") == "Memory { locks: {} }"
}

/// Returns the guard of the first holder, the second one's mutex and request, and the masters.
async fn two_restarts(trusting: bool) -> (Guard, Mutex, JoinHandle<Result<Option<Guard>>>, [Memory; 3]) {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let [n1, n2, n3] = &stores;
    // 1. The first client asks. 2., 3. n1 and n2, a majority, grant the lock. The request does not reach n3.
    let unreached = Memory::new();
    unreached.faults().stall(Duration::MAX);
    let ours = stock(&[n1.clone(), n2.clone(), unreached], trusting).await;
    let guard = ours.lock().await.unwrap();
    // 4. The second client asks. 5. n3 grants the lock; the requests to n1 and n2 are on their way.
    let theirs = stock(&stores, trusting).await;
    let asked = [n1, n2].map(|store| {
        store.faults().stall(SECOND / 10);
        store
    });
    let second = tokio::spawn(theirs.try_lock());
    while is_free(n3) {
        yield_now().await;
    }
    let [late, lost] = asked.map(|store| store.visit(|store| std::mem::take(&mut store.backlog)));
    assert_eq!((late.len(), lost.len()), (1, 1));
    // 6., 7. n1 and n2 restart within a lease, and have forgotten the first client.
    n1.faults().restart_empty();
    n2.faults().restart_empty();
    // 8. The request to n1 arrives before the first client can check its hold there. 9. n1 grants the lock.
    n1.visit(|store| {
        store.backlog.extend(late);
        store.run_backlog(Instant::now());
    });
    (guard, theirs, second, stores)
}

/// 10. The second client has the votes of n1 and n3, a majority.
#[tokio::test(start_paused = true)]
async fn without_the_rule_a_grant_that_outlives_two_restarts_lets_a_second_one_in() {
    let (guard, _theirs, second, _stores) = two_restarts(true).await;
    let second = second.await.unwrap().unwrap();
    assert!(
        second.is_some_and(|second| !second.is_lost()) && !guard.is_lost(),
        "this is what the rule is for"
    );
}

/// 10. The vote of n1 does not count, although the two young masters are a majority.
#[tokio::test(start_paused = true)]
async fn with_the_rule_a_grant_that_outlives_two_restarts_is_no_vote() {
    let (guard, theirs, second, stores) = two_restarts(false).await;
    let refused = second.await.unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(2 * SECOND).await;
    assert!(is_free(&stores[2]), "what the second one was granted is ended: {stores:?}");
    // The first client repairs its hold on the masters that forgot it, and keeps everybody else out.
    for _ in 0..100 {
        assert!(!guard.is_lost());
        assert!(matches!(theirs.try_lock().await, Ok(None) | Err(_)));
        sleep(SECOND).await;
    }
    guard.release().await.unwrap();
    let second = timeout(5 * SECOND, theirs.lock()).await.unwrap().unwrap();
    assert!(stores.iter().all(|store| !is_free(store)), "{stores:?}");
    second.release().await.unwrap();
}
