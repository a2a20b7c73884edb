//! Requests that are dropped at random points.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use nestlock::{Guard, Locks, Mutex, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::{Home, long_lived};
use crate::support::{eventually, soon};

const TASKS: usize = 10;
const DROPS_EACH: usize = 200;

/// Counts how the requests ended.
#[derive(Default)]
struct Seen {
    dropped: AtomicUsize,
    granted: AtomicUsize,
}

#[test]
fn two_thousand_dropped_requests_leave_nothing_on_one_thread() {
    drop_requests(Builder::new_current_thread().enable_all().build().unwrap());
}

#[test]
fn two_thousand_dropped_requests_leave_nothing_on_many_threads() {
    drop_requests(Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap());
}

fn drop_requests(runtime: Runtime) {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    runtime.block_on(async {
        let home = Home::start().await;
        let locks = long_lived(&home).await;
        let seen = Arc::new(Seen::default());
        let tasks: Vec<_> = (0..TASKS)
            .map(|at| {
                tokio::spawn(drops(locks.clone(), StdRng::seed_from_u64(seed ^ at as u64), seen.clone()))
            })
            .collect();
        for task in tasks {
            soon("a task that drops its requests", task).await.unwrap();
        }
        let (dropped, granted) = (seen.dropped.load(SeqCst), seen.granted.load(SeqCst));
        println!("dropped {dropped}, granted {granted}");
        // Otherwise the drops were not spread over the whole call. On a busy machine few requests are granted in time.
        assert!(dropped > 100 && granted > 10, "{dropped} {granted}");

        home.tidy().await;
        for name in ["a", "b"] {
            soon("a lock that is free", locks.mutex(name).lock()).await.unwrap().release().await.unwrap();
        }
        let clients = home.connections().await;
        assert!(clients <= 2, "{clients}: one for commands, one for messages");
        drop(locks);
        home.deserted().await;
        eventually("the last task's end", async || runtime.metrics().num_alive_tasks() == 0).await;
    });
}

/// Sends requests of one task. They may be contended, nested or waiting.
async fn drops(locks: Locks, mut random: StdRng, seen: Arc<Seen>) {
    for _ in 0..DROPS_EACH {
        let mutex = locks.mutex(if random.random() { "a" } else { "b" });
        let outer = match random.random_range(0..4) {
            // The lock is contended, so the outer request may not be granted. Then nothing is nested.
            0 => timeout(Duration::from_millis(5), mutex.lock()).await.ok().map(|guard| guard.unwrap()),
            _ => None,
        };
        let inner = request(&mutex, &mut random).await;
        seen.dropped.fetch_add(usize::from(inner.is_none()), SeqCst);
        seen.granted.fetch_add(usize::from(inner.is_some()), SeqCst);
        if random.random() {
            drop((outer, inner));
        } else {
            drop((inner, outer));
        }
    }
}

/// Sends one request and drops it after some polls or some time, whichever comes first. Sometimes the release is dropped too.
async fn request(mutex: &Mutex, random: &mut StdRng) -> Option<Guard> {
    let polls = random.random_range(1..12);
    // Some requests have enough time: only the number of polls ends them.
    let longest = if random.random_range(0..8) == 0 { 40_000 } else { 4_000 };
    let time = Duration::from_micros(random.random_range(0..longest));
    let guard = match random.random_range(0..3) {
        0 => cut(mutex.try_lock(), polls, time).await?.unwrap(),
        _ => Some(cut(mutex.lock(), polls, time).await?.unwrap()),
    }?;
    if random.random_range(0..3) > 0 {
        return Some(guard);
    }
    let time = Duration::from_micros(random.random_range(0..1_000));
    let _ = cut(guard.release(), random.random_range(1..4), time).await;
    None
}

async fn cut<T>(future: impl Future<Output = Result<T>>, polls: usize, time: Duration) -> Option<Result<T>> {
    timeout(time, Polls { future: Box::pin(future), left: polls }).await.ok().flatten()
}

/// Is ready with `None` once the future has been polled `left` times.
struct Polls<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let polled = self.future.as_mut().poll(cx).map(Some);
        // Wakes itself at once, so that a request that nothing wakes is also dropped half-way.
        if polled.is_pending() && self.left.is_multiple_of(2) {
            cx.waker().wake_by_ref();
        }
        polled
    }
}
