//! Bare guards in branches of one task that begin one after the other: branches are recognized only by their wakers. Nested calls are never
//! taken for branches, whichever futures poll them.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures::future::{AbortHandle, Abortable, BoxFuture, FutureExt, Shared, join_all, select};
use futures::stream::{self, FuturesOrdered, FuturesUnordered, StreamExt};
use nestlock::{BareReentry, ErrorKind, Guard, Mutex};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet, block_in_place, unconstrained, yield_now};
use tokio::{join, select, time};

use super::{Home, LONG, long_lived};
use crate::support::soon;

/// Two branches of one task. The second one begins while the first one has the lock, and the first one keeps it until the second one has
/// its answer.
struct Branches<'a> {
    stock: &'a Mutex,
    held: watch::Sender<bool>,
    refused: watch::Sender<Option<bool>>,
}

impl<'a> Branches<'a> {
    fn of(stock: &'a Mutex) -> Branches<'a> {
        Branches { stock, held: watch::Sender::new(false), refused: watch::Sender::new(None) }
    }

    /// Only the first two branches do anything.
    async fn branch(&self, at: usize) {
        if at > 1 {
            return;
        }
        if at == 1 {
            self.held.subscribe().wait_for(|held| *held).await.unwrap();
        }
        let granted = self.stock.lock().await;
        if at == 1 {
            let refused = granted.as_ref().is_err_and(|error| error.kind() == ErrorKind::Ambiguous);
            self.refused.send_replace(Some(refused));
        } else {
            self.held.send_replace(true);
            self.refused.subscribe().wait_for(Option::is_some).await.unwrap();
        }
        if let Ok(guard) = granted {
            guard.release().await.unwrap();
        }
    }

    fn were_found(&self) -> bool {
        self.refused.borrow().unwrap()
    }
}

/// Runs two branches in each way that gives each branch its own waker.
async fn are_found(stock: &Mutex) {
    let branches = Branches::of(stock);
    stream::iter(0..2).for_each_concurrent(2, |at| branches.branch(at)).await;
    assert!(branches.were_found(), "for_each_concurrent");
    let branches = Branches::of(stock);
    stream::iter((0..2).map(|at| branches.branch(at))).buffer_unordered(2).collect::<Vec<()>>().await;
    assert!(branches.were_found(), "buffer_unordered");
    let branches = Branches::of(stock);
    stream::iter((0..2).map(|at| branches.branch(at))).buffered(2).collect::<Vec<()>>().await;
    assert!(branches.were_found(), "buffered");
    let branches = Branches::of(stock);
    (0..2).map(|at| branches.branch(at)).collect::<FuturesUnordered<_>>().collect::<Vec<()>>().await;
    assert!(branches.were_found(), "FuturesUnordered");
    let branches = Branches::of(stock);
    join_all((0..31).map(|at| branches.branch(at))).await;
    assert!(branches.were_found(), "join_all of many");
    let branches = Branches::of(stock);
    stream::iter(0..2).for_each_concurrent(2, |at| branches.branch(at).boxed()).await;
    assert!(branches.were_found(), "boxed ones");
}

#[tokio::test]
async fn branches_that_begin_one_after_the_other_are_refused_where_their_wakers_show_them() {
    let home = Home::start().await;
    let stock = long_lived(&home).await.mutex("stock");
    let all = async {
        are_found(&stock).await;
        let outer = stock.lock().await.unwrap();
        are_found(&stock).await;
        outer.release().await.unwrap();
        nestlock::scope(are_found(&stock)).await;
        // Branches are found in a spawned task too.
        let theirs = stock.clone();
        tokio::spawn(async move { are_found(&theirs).await }).await.unwrap();
    };
    soon("all branches", all).await;
    assert!(!stock.is_held());
}

#[tokio::test]
async fn branches_that_share_a_waker_are_refused_where_bare_guards_do_not_nest() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).bare_reentry(BareReentry::Refused).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let branches = Branches::of(&stock);
    soon("both", async { join!(branches.branch(0), branches.branch(1)) }).await;
    assert!(branches.were_found());
    let branches = Branches::of(&stock);
    soon("both", select(pin!(branches.branch(0)), pin!(branches.branch(1)))).await.factor_first().1.await;
    assert!(branches.were_found());
}

/// Code without branches, which nests three deep and awaits in between.
async fn nested(stock: &Mutex) {
    let guard = stock.lock().await.unwrap();
    yield_now().await;
    let inner = time::timeout(LONG, stock.lock()).await.unwrap().unwrap();
    assert!(stock.try_lock().await.unwrap().is_some());
    yield_now().await;
    inner.release().await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

/// Takes the lock at each depth, inside streams that run below the guard of the depth above. All depths are polled through wakers of one
/// kind.
fn recursive(stock: &Mutex, depth: usize) -> BoxFuture<'_, ()> {
    async move {
        let guard = stock.lock().await.unwrap();
        if depth > 0 {
            stream::iter(0..2).for_each_concurrent(1, |_| recursive(stock, depth - 1)).await;
            stream::iter([recursive(stock, depth - 1)]).buffered(1).collect::<Vec<()>>().await;
            join_all((0..31).map(|at| if at == 0 { recursive(stock, depth - 1) } else { async {}.boxed() }))
                .await;
        }
        guard.release().await.unwrap();
    }
    .boxed()
}

/// A shared future inside a shared future: each takes the lock.
fn shared(stock: Mutex, depth: usize) -> Shared<BoxFuture<'static, ()>> {
    let work = async move {
        let guard = stock.lock().await.unwrap();
        if depth > 0 {
            shared(stock.clone(), depth - 1).await;
        }
        guard.release().await.unwrap();
    };
    work.boxed().shared()
}

/// Futures like the layers of a service: each boxes the layer below it, and takes the lock itself.
fn layered(stock: &Mutex, depth: usize) -> BoxFuture<'_, ()> {
    async move {
        let guard = stock.lock().await.unwrap();
        if depth > 0 {
            time::timeout(LONG, layered(stock, depth - 1)).await.unwrap();
        }
        guard.release().await.unwrap();
    }
    .boxed()
}

/// Runs nested calls, polled in every way.
async fn nests(stock: &Mutex) {
    nested(stock).await;
    nested(stock).boxed().await;
    select! { () = nested(stock) => {}, () = std::future::pending() => {} }
    join!(nested(stock), yield_now());
    join_all([nested(stock).boxed()]).await;
    nested(stock).then(|()| nested(stock)).await;
    stream::iter(0..3).for_each(|_| nested(stock)).await;
    stream::iter(0..3).then(|_| nested(stock)).collect::<Vec<()>>().await;
    stream::iter(0..3).for_each_concurrent(1, |_| nested(stock)).await;
    stream::iter((0..3).map(|_| nested(stock))).buffered(1).collect::<Vec<()>>().await;
    stream::iter((0..3).map(|_| nested(stock))).buffer_unordered(1).collect::<Vec<()>>().await;
    [nested(stock)].into_iter().collect::<FuturesOrdered<_>>().collect::<Vec<()>>().await;
    join_all((0..31).map(|at| async move {
        if at == 0 {
            nested(stock).await
        }
    }))
    .await;
    Abortable::new(nested(stock), AbortHandle::new_pair().1).await.unwrap();
    AssertUnwindSafe(nested(stock)).catch_unwind().await.unwrap();
    unconstrained(nested(stock)).await;
    nested(stock).boxed().shared().await;
    shared(stock.clone(), 2).await;
    layered(stock, 3).await;
    // Streams inside streams, of one kind or of two kinds.
    recursive(stock, 2).await;
    let inner = || stream::iter(0..2).for_each_concurrent(1, |_| nested(stock));
    stream::iter(0..2).for_each_concurrent(1, |_| inner()).await;
}

async fn nests_locally(stock: &Mutex) {
    nests(stock).await;
    LocalSet::new().run_until(nests(stock)).await;
}

/// Returns a guard that was taken in a future with its own waker, and that outlives this future.
async fn kept(stock: &Mutex) -> Guard {
    let all = join_all(
        (0..31).map(|at| async move { if at == 0 { Some(stock.lock().await.unwrap()) } else { None } }),
    );
    all.await.into_iter().flatten().next().unwrap()
}

#[tokio::test]
async fn nested_calls_are_not_taken_for_branches_through_whatever_they_are_polled() {
    let home = Home::start().await;
    for bare in [BareReentry::Asked, BareReentry::Local] {
        let locks = home.builder().lease(LONG).bare_reentry(bare).connect().await.unwrap();
        let stock = locks.mutex("stock");
        let all = async {
            nests_locally(&stock).await;
            let outer = stock.lock().await.unwrap();
            nests_locally(&stock).await;
            outer.release().await.unwrap();
            let outer = kept(&stock).await;
            nests_locally(&stock).await;
            outer.release().await.unwrap();
            let mut unordered: FuturesUnordered<_> =
                [stock.lock()].into_iter().map(|lock| lock.into_future()).collect();
            let outer = unordered.next().await.unwrap().unwrap();
            nests_locally(&stock).await;
            outer.release().await.unwrap();
        };
        soon("all nested calls", all).await;
    }
}

/// Takes the lock in code that is not async.
fn blocking(stock: &Mutex) -> Guard {
    block_in_place(|| Handle::current().block_on(stock.lock())).unwrap()
}

/// Each thread has its own waker.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nested_calls_that_block_are_not_taken_for_branches_on_whatever_thread_they_run() {
    let home = Home::start().await;
    let locks = long_lived(&home).await;
    let mut tasks = JoinSet::new();
    for at in 0..8 {
        let stock = locks.mutex(format!("stock-{at}"));
        tasks.spawn(async move {
            for _ in 0..4 {
                let outer = blocking(&stock);
                // Another thread took this worker's place when it blocked, so sooner or later the task moves to another thread.
                let thread = std::thread::current().id();
                for _ in 0..200 {
                    if std::thread::current().id() != thread {
                        break;
                    }
                    yield_now().await;
                }
                let inner = blocking(&stock);
                block_in_place(|| Handle::current().block_on(nests(&stock)));
                nests(&stock).await;
                inner.release().await.unwrap();
                outer.release().await.unwrap();
            }
        });
    }
    soon("all tasks", tasks.join_all()).await;
}
