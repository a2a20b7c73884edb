//! Deeply nested holds on stacks of tokio's default size, which must have room for a thousand levels.
//!
//! Each level takes the caller's own frame and the frame of `run` from the stack. The callers here are small, since in a debug build each
//! `await` in a frame makes it larger.

use std::future::Future;
use std::pin::Pin;

use futures::FutureExt;
use nestlock::{Guard, Locks, Mutex};
use tokio::time::timeout;

use super::{Home, long_lived};
use crate::support::PATIENCE;

/// The default size of a tokio worker's stack, and how much of it these tests and the deepest call may take.
const STACK: usize = 2 << 20;
const REST: usize = 256 << 10;

type Nested = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Returns the approximate address of the top of the stack.
fn stack() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here) as usize
}

fn taken(stock: &Mutex, depth: usize) -> Pin<Box<dyn Future<Output = Box<Guard>> + Send>> {
    let stock = stock.clone();
    Box::pin(async move {
        let guard = stock.lock().await.unwrap();
        assert_eq!((guard.depth(), stock.hold_count()), (depth, depth));
        Box::new(guard)
    })
}

/// The innermost level. It is polled twice, so that the whole chain is polled again from its top.
async fn last(stock: Mutex, depth: usize) -> usize {
    assert_eq!(stock.hold_count(), depth);
    tokio::task::yield_now().await;
    stack()
}

fn guards(stock: Mutex, depth: usize) -> Nested {
    if depth > Home::LEVELS {
        return Box::pin(last(stock, Home::LEVELS));
    }
    Box::pin(async move {
        let guard = taken(&stock, depth).await;
        let used = guards(stock, depth + 1).await;
        guard.release().boxed().await.unwrap();
        used
    })
}

fn runs(stock: Mutex, depth: usize) -> Nested {
    match depth {
        Home::LEVELS => Box::pin(stock.clone().run(move |_| last(stock, depth)).map(Result::unwrap)),
        _ => Box::pin(stock.clone().run(move |_| runs(stock, depth + 1)).map(Result::unwrap)),
    }
}

async fn deep(locks: &Locks, nest: fn(Mutex, usize) -> Nested, what: &str) {
    // The work has a task of its own, since a test's root future may run on a stack of another size.
    let (stock, nested) = (locks.mutex("stock"), nest(locks.mutex("stock"), 1));
    let task = tokio::spawn(async move {
        let top = stack();
        top.abs_diff(nested.await)
    });
    // This takes seconds in a debug build, and much longer on a busy machine.
    let used = timeout(10 * PATIENCE, task).await.expect("the way down and up").unwrap();
    let each = used / Home::LEVELS;
    println!("{what}: {used} bytes of stack for {} levels, {each} for each", Home::LEVELS);
    assert!(1000 * each < STACK - REST, "{each} bytes a level");
    assert!(!stock.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stack_has_room_for_a_thousand_guards_on_a_worker_thread() {
    let home = Home::start().await;
    deep(&long_lived(&home).await, guards, "guards").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stack_has_room_for_a_thousand_runs_on_a_worker_thread() {
    let home = Home::start().await;
    deep(&long_lived(&home).await, runs, "runs").await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_stack_has_room_for_a_thousand_guards_on_the_current_thread() {
    let home = Home::start().await;
    deep(&long_lived(&home).await, guards, "guards").await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_stack_has_room_for_a_thousand_runs_on_the_current_thread() {
    let home = Home::start().await;
    deep(&long_lived(&home).await, runs, "runs").await;
}
