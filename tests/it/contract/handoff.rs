//! From one process to the other, by messages alone.

use super::{HOUR, Home, Inside, without_timers};
use crate::support::soon;

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
                    stock.run(inside.stay()).await.unwrap();
                }
            });
        }
    }
    soon("all of them", tasks.join_all()).await;
    assert_eq!(inside.ever(), 150);
}
