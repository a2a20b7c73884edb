//! A lock passes from task to task inside a process, and by messages alone from one process to the other.

use std::collections::HashSet;
use std::time::Duration;

use nestlock::{Guard, Locks};

use super::{HOUR, Home, Inside, without_timers};
use crate::support::{eventually, soon};

/// Lets ten tasks of these `Locks` take the lock in turn. Returns how many different fields they had.
async fn fields_of_ten(locks: &Locks) -> usize {
    let inside = std::sync::Arc::new(Inside::default());
    let mut tasks = tokio::task::JoinSet::new();
    let first = locks.mutex("stock").lock().await.unwrap();
    for _ in 0..10 {
        let (waiter, inside) = (crate::support::enlisted(&locks.mutex("stock")), inside.clone());
        tasks.spawn(async move {
            let guard = waiter.await.unwrap();
            inside.stay().await;
            assert_eq!(guard.depth(), 1);
            let field = guard.hold_id().to_owned();
            guard.release().await.unwrap();
            field
        });
    }
    first.release().await.unwrap();
    let fields: HashSet<_> = soon("all ten", tasks.join_all()).await.into_iter().collect();
    assert_eq!(inside.ever(), 10);
    fields.len()
}

#[tokio::test]
async fn a_released_hold_passes_to_the_tasks_of_its_process_that_wait() {
    let home = Home::start().await;
    let builder = || without_timers(&home).lease(HOUR);
    let passes = builder().local_handoff(Duration::MAX).connect().await.unwrap();
    // Usually there is one field, unless this process stood still so long that an offer expired.
    assert!(fields_of_ten(&passes).await < 10);
    eventually("its end", async || home.fields("stock").await.is_empty()).await;
    let sends = builder().local_handoff(Duration::ZERO).connect().await.unwrap();
    assert_eq!(fields_of_ten(&sends).await, 10);
}

/// Returns the hold of a task, which it took over from another task.
async fn passed_on(locks: &Locks) -> Guard {
    let stock = locks.mutex("stock");
    loop {
        let guard = stock.lock().await.unwrap();
        let waiter = tokio::spawn(crate::support::enlisted(&stock));
        let field = guard.hold_id().to_owned();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        // The field differs if this process stood still so long that the offer expired.
        if next.hold_id() == field {
            return next;
        }
        next.release().await.unwrap();
    }
}

/// The next task holds the lock that was passed on, and nobody else does.
#[tokio::test]
async fn a_hold_that_passed_on_keeps_others_out_and_is_lost_like_any_other() {
    let home = Home::start().await;
    let ours = without_timers(&home).lease(HOUR).local_handoff(Duration::MAX).connect().await.unwrap();
    let theirs = home.locks().await;
    let guard = soon("a hold that passes on", passed_on(&ours)).await;
    let field = guard.hold_id().to_owned();
    assert!(!guard.is_lost() && guard.depth() == 1);
    assert_eq!(home.count("stock", &field).await, Some(1));
    assert!(theirs.mutex("stock").try_lock().await.unwrap().is_none());
    assert!(theirs.mutex("stock").force_release().await.unwrap());
    soon("its release", guard.release()).await.unwrap_err();
}

/// The hold is offered to a request that nobody polls.
#[tokio::test]
async fn a_hold_that_the_next_task_does_not_take_is_free_for_other_processes() {
    let home = Home::start().await;
    let ours = without_timers(&home).lease(HOUR).local_handoff(Duration::MAX).connect().await.unwrap();
    let theirs = without_timers(&home).lease(HOUR).connect().await.unwrap();
    let guard = ours.mutex("stock").lock().await.unwrap();
    let unpolled = crate::support::enlisted(&ours.mutex("stock"));
    let other = tokio::spawn(crate::support::enlisted(&theirs.mutex("stock")));
    home.listened().await;
    drop(guard);
    soon("the other process", other).await.unwrap().unwrap().release().await.unwrap();
    drop(unpolled);
}

#[tokio::test]
async fn a_hundred_handoffs_between_two_processes_all_come() {
    let home = Home::start().await;
    let (ours, theirs) = (
        without_timers(&home).lease(HOUR).connect().await.unwrap(),
        without_timers(&home).lease(HOUR).connect().await.unwrap(),
    );
    let inside = Inside::default();
    let side = async |locks: &nestlock::Locks| {
        let stock = locks.mutex("stock");
        for _ in 0..100 {
            let guard = stock.lock().await.unwrap();
            inside.stay().await;
            guard.release().await.unwrap();
        }
    };
    soon("a hundred each", async { tokio::join!(side(&ours), side(&theirs)) }).await;
    assert_eq!(inside.ever(), 200);
}

#[tokio::test]
async fn five_waiters_on_each_of_three_processes_all_get_it() {
    let home = Home::start().await;
    let inside = std::sync::Arc::new(Inside::default());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let locks = without_timers(&home).lease(HOUR).connect().await.unwrap();
        for _ in 0..5 {
            let (stock, inside) = (locks.mutex("stock"), inside.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    stock.run(|_| inside.stay()).await.unwrap();
                }
            });
        }
    }
    soon("all of them", tasks.join_all()).await;
    assert_eq!(inside.ever(), 150);
}
