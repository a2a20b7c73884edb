//! Several names at once, one of which is lost: before the last one is granted, or after.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use crate::memory::PendingReply;
use crate::wire::Call;
use crate::{ErrorKind, Locks, Loss, Memory, Mutex, Mutexes, Owner};

const SECOND: Duration = Duration::from_secs(1);

/// How long a request pauses after a loss.
const PAUSE: Duration = Duration::from_secs(3);

async fn several(store: &Memory) -> Mutexes {
    let builder = Locks::builder(store).lease(60 * SECOND).node_timeout(10 * SECOND);
    builder.retry_delay(PAUSE..=PAUSE).connect().await.unwrap().mutexes(["a", "b"])
}

/// Takes the command for the second name off the store, and lets all others run.
async fn but_one(store: &Memory) -> (Call, PendingReply) {
    while store.visit(|store| store.backlog.len() < 2) {
        yield_now().await;
    }
    let on_its_way = store.visit(|store| store.backlog.pop_back()).unwrap();
    sleep(SECOND).await;
    on_its_way
}

/// Runs the command, and delivers its answer.
async fn arrives(store: &Memory, command: (Call, PendingReply)) {
    store.visit(|store| {
        store.backlog.push_back(command);
        store.run_backlog(Instant::now());
    });
    sleep(SECOND / 100).await;
}

fn field(store: &Memory, name: &str) -> Option<Arc<str>> {
    store.visit(|store| {
        let live = store.live(Instant::now());
        live.into_iter().find(|(key, _)| &***key == name).map(|(_, lock)| lock.field.clone())
    })
}

/// Begins the request, and deletes the first name's key after its grant.
async fn asked<T: Send + 'static>(
    store: &Memory,
    ask: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<T>, Arc<str>) {
    store.faults().stall(SECOND / 2);
    let request = tokio::spawn(ask);
    let on_its_way = but_one(store).await;
    let first = field(store, "a").expect("the first name is granted");
    assert!(store.faults().lose("a") && !request.is_finished());
    sleep(SECOND / 10).await;
    arrives(store, on_its_way).await;
    (request, first)
}

/// In this order: 1. The first name is granted. 2. It is lost. 3. The second one is granted, although nobody waited for it.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_lost_before_the_last_one_is_granted_is_asked_for_again_after_a_pause() {
    let store = Memory::new();
    let (request, first) = asked(&store, several(&store).await.lock()).await;
    // The name after the lost one is released during the pause.
    sleep(PAUSE / 2).await;
    assert!(!request.is_finished());
    assert_eq!((field(&store, "a"), field(&store, "b")), (None, None));
    let guards = request.await.unwrap().unwrap();
    assert_eq!((guards.loss(), guards.names().count()), (None, 2));
    assert!(field(&store, "a").is_some_and(|field| field != first));
    guards.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_lost_before_the_last_one_is_granted_ends_a_request_that_makes_one_attempt() {
    let store = Memory::new();
    let (request, _) = asked(&store, several(&store).await.try_lock()).await;
    let error = request.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.loss(), error.lock()), (ErrorKind::Lost, Some(Loss::Gone), Some("a")));
    sleep(SECOND).await;
    assert_eq!((field(&store, "a"), field(&store, "b")), (None, None));
}

/// The work checks at each poll that the run holds both.
#[tokio::test(start_paused = true)]
async fn the_work_of_a_run_is_not_polled_once_a_name_is_lost() {
    let store = Memory::new();
    let locks = Locks::builder(&store).connect().await.unwrap();
    for lost in ["a", "b"] {
        let (polls, both) = (Arc::<AtomicUsize>::default(), ["a", "b"].map(|name| locks.mutex(name)));
        let counted = polls.clone();
        let work = poll_fn(move |_| {
            counted.fetch_add(1, SeqCst);
            assert!(both.iter().all(Mutex::is_held), "it is polled after the loss");
            Poll::<()>::Pending
        });
        let run = tokio::spawn(locks.mutexes(["a", "b"]).run(|_| work));
        sleep(SECOND).await;
        assert!(polls.load(SeqCst) > 0 && store.faults().lose(lost));
        let error = run.await.unwrap().unwrap_err();
        assert_eq!((error.loss(), error.lock()), (Some(Loss::Gone), Some(lost)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_release_of_fenced_guards_reports_a_loss() {
    let store = Memory::new();
    let fenced = several(&store).await.fenced();
    fenced.lock().await.unwrap().release().await.unwrap();
    assert_eq!((field(&store, "a"), field(&store, "b")), (None, None));
    let guards = fenced.lock().await.unwrap();
    store.faults().lose("b");
    assert_eq!(guards.lost().await, Loss::Gone);
    let error = guards.release().await.unwrap_err();
    assert_eq!((error.loss(), error.lock()), (Some(Loss::Gone), Some("b")));
}

/// The request that had begun asked as the owner itself, not as a child of it.
#[tokio::test(start_paused = true)]
async fn a_request_that_becomes_a_run_begins_again() {
    let mut request = several(&Memory::new()).await.lock();
    assert!(poll!(&mut request).is_pending());
    let owner = Owner::current();
    let inside = request.run(async |_| Owner::current()).await.unwrap();
    assert_ne!(inside, owner);
}
