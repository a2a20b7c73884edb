//! The queue of strangers in one process.

use std::time::Duration;

use super::{asleep, foreign_guard, scripts_run, without_timers};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{enlisted, eventually, soon};

#[tokio::test]
async fn only_the_head_of_fifty_talks_to_the_server() {
    let server = Server::start().await;
    let builder = without_timers(&server.url()).local_handoff(Duration::ZERO);
    let locks = builder.connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    let stock = locks.mutex("stock");
    let tasks: Vec<_> = (0..50).map(|_| tokio::spawn(enlisted(&stock))).collect();
    asleep(&server, 1).await;
    // These are the script of the foreign guard, the head's first attempt, and its second one after it has subscribed. On a busy machine
    // there are a few more, because messages of releases reached the head late, or because it did not run for long and was passed over. The
    // loop gives more scripts time to appear.
    for _ in 0..20 {
        assert!((3..=8).contains(&scripts_run(&server).await));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.channels().await.len(), 1);
    // Two connections are for commands, one of them the foreign holder's, and one is for messages.
    assert_eq!(server.clients().await, 3);
    let before = scripts_run(&server).await + 1;
    foreign.release().await.unwrap();
    for task in tasks {
        soon("its turn", task).await.unwrap().unwrap().release().await.unwrap();
    }
    // Each hand-off in this process takes one acquire and one release. The message that comes back costs nothing.
    let handed = scripts_run(&server).await - before;
    assert!((100..=110).contains(&handed), "{handed} scripts for fifty hand-offs");
}

#[tokio::test]
async fn twenty_names_share_one_connection_for_messages() {
    let server = Server::start().await;
    let locks = without_timers(&server.url()).connect().await.unwrap();
    let theirs = crate::support::locks(&server.url()).await;
    let mut guards = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..20 {
        let name = format!("stock:{number}");
        guards.push(theirs.mutex(&name).lock().await.unwrap());
        tasks.push(tokio::spawn(locks.mutex(&name).lock()));
    }
    eventually("all subscriptions", async || server.channels().await.len() == 20).await;
    assert_eq!(server.clients().await, 3);
    for guard in guards {
        guard.release().await.unwrap();
    }
    for task in tasks {
        drop(soon("a lock", task).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn the_next_in_line_goes_on_where_a_sleeping_head_is_dropped() {
    let server = Server::start().await;
    let locks = without_timers(&server.url()).connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    let stock = locks.mutex("stock");
    let head = tokio::spawn(enlisted(&stock));
    let (second, third) = (tokio::spawn(enlisted(&stock)), tokio::spawn(enlisted(&stock)));
    asleep(&server, 1).await;
    let before = scripts_run(&server).await;
    head.abort();
    second.abort();
    // A new head first tries to acquire.
    eventually("the third's attempt", async || scripts_run(&server).await > before).await;
    foreign.release().await.unwrap();
    soon("the third", third).await.unwrap().unwrap().release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_next_in_line_goes_on_where_an_asking_head_is_dropped() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let hold = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let head = tokio::spawn(enlisted(&stock));
    let second = tokio::spawn(enlisted(&stock));
    // The lock has been granted, but this process doesn't know that yet.
    hold.done().await;
    assert_eq!(server.keys().await, ["stock"]);
    head.abort();
    assert!(head.await.unwrap_err().is_cancelled());
    hold.let_through().await;
    let guard = soon("the second", second).await.unwrap().unwrap();
    assert_eq!(server.ask::<Vec<String>>(&["HKEYS", "stock"]).await, [guard.hold_id()]);
    guard.release().await.unwrap();
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_local_release_wakes_the_local_head_without_a_message() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = without_timers(&proxy.url()).connect().await.unwrap();
    // No message ever arrives, not even the confirmation of the subscription.
    let hold = proxy.on(|c| c.is("subscribe")).hold_reply();
    let stock = locks.mutex("stock");
    let foreign = foreign_guard(&server, "stock").await;
    let first = tokio::spawn(enlisted(&stock));
    hold.done().await;
    first.abort();
    foreign.release().await.unwrap();
    let mut guard = soon("the lock", stock.lock()).await.unwrap();
    for _ in 0..10 {
        let next = tokio::spawn(enlisted(&stock));
        let free = tokio::task::yield_now();
        free.await;
        guard.release().await.unwrap();
        guard = soon("the next", next).await.unwrap().unwrap();
    }
    let next = tokio::spawn(enlisted(&stock));
    drop(guard);
    drop(soon("the next after a drop", next).await.unwrap().unwrap());
}
