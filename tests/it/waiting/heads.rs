//! Heads that are not polled, and queues that change while requests wait in them.

use std::time::Duration;

use nestlock::{Owner, scope};

use super::{asleep, foreign_guard, scripts_run, without_timers};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{STRANGER, builder, enlisted, eventually, parked, soon};

#[tokio::test]
async fn a_waiter_that_replaced_a_head_asks_again_when_the_head_is_back_and_gone() {
    let server = Server::start().await;
    // The head asks again after the poll interval, so the two requests take turns as the head.
    let cap = Duration::from_millis(150);
    let locks = builder(&server.url()).poll_interval(cap).connect().await.unwrap();
    let stock = locks.mutex("stock");
    server.ask::<()>(&["HSET", "stock", STRANGER, "1"]).await;
    server.ask::<()>(&["PEXPIRE", "stock", "3600000"]).await;
    let mut head = enlisted(&stock);
    parked(&mut head, asleep(&server, 0)).await;
    let before = scripts_run(&server).await;
    let second = tokio::spawn(enlisted(&stock));
    // The head is passed over, and the second request asks in its place.
    eventually("the second's attempt", async || scripts_run(&server).await > before).await;
    // The first request is polled again for some intervals of the second one's timer, and is then dropped.
    let again = scripts_run(&server).await;
    tokio::select! {
        _ = &mut head => panic!("somebody else holds it"),
        () = eventually("some attempts", async || scripts_run(&server).await > again + 4) => {}
    }
    drop(head);
    // The holder disappears without a message, as after a crash.
    server.ask::<()>(&["DEL", "stock"]).await;
    drop(soon("the second", second).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_child_that_waits_as_a_stranger_enters_what_its_parent_gets() {
    let server = Server::start().await;
    let locks = without_timers(&server.url()).connect().await.unwrap();
    let foreign = foreign_guard(&server, "stock").await;
    let stock = locks.mutex("stock");
    // 1. A stranger waits, and after it a child of this task.
    let stranger = tokio::spawn(enlisted(&stock));
    asleep(&server, 1).await;
    let child = tokio::spawn(Owner::current().child().scope(stock.lock()));
    tokio::task::yield_now().await;
    // 2. The lock becomes free without a message, and this task gets it with one attempt.
    server.ask::<()>(&["DEL", "stock"]).await;
    let guard = stock.try_lock().await.unwrap().expect("it is free");
    // 3. This task awaits its child, which is the head now.
    let nested = soon("the child", child).await.unwrap().unwrap();
    assert_eq!(nested.depth(), 2);
    assert!(!stranger.is_finished());
    drop((nested, guard));
    drop(soon("the stranger", stranger).await.unwrap().unwrap());
    drop(foreign);
}

#[tokio::test]
async fn a_child_that_sleeps_at_the_head_enters_what_its_parent_gets() {
    let server = Server::start().await;
    let locks = without_timers(&server.url()).connect().await.unwrap();
    let _foreign = foreign_guard(&server, "stock").await;
    let stock = locks.mutex("stock");
    let child = tokio::spawn(Owner::current().child().scope(stock.lock()));
    asleep(&server, 1).await;
    server.ask::<()>(&["DEL", "stock"]).await;
    let guard = stock.try_lock().await.unwrap().expect("it is free");
    let nested = soon("the child", child).await.unwrap().unwrap();
    assert_eq!(nested.depth(), 2);
    drop((nested, guard));
}

#[tokio::test]
async fn a_sibling_that_sleeps_at_the_head_enters_what_is_handed_up() {
    let server = Server::start().await;
    let locks = without_timers(&server.url()).connect().await.unwrap();
    let _foreign = foreign_guard(&server, "stock").await;
    let stock = locks.mutex("stock");
    let sibling = tokio::spawn(Owner::current().child().scope(stock.lock()));
    asleep(&server, 1).await;
    server.ask::<()>(&["DEL", "stock"]).await;
    // While the first child holds the lock, the second one is a stranger. Later both are children of the holder.
    let guard = scope(stock.try_lock()).await.unwrap().expect("it is free");
    assert_eq!(guard.owner(), Owner::current());
    assert_eq!(soon("the sibling", sibling).await.unwrap().unwrap().depth(), 2);
}

#[tokio::test]
async fn a_guard_that_goes_while_a_nested_request_is_under_way_is_released_after_it() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = without_timers(&proxy.url()).connect().await.unwrap().mutex("stock");
    let outer = stock.lock().await.unwrap();
    let hold = proxy.on(|c| c.is("acquire")).times(1).hold_reply();
    let (mut nested, field) = (stock.lock(), outer.hold_id().to_owned());
    assert!(futures::poll!(&mut nested).is_pending());
    hold.done().await;
    let release = async {
        let (release, _) = tokio::join!(outer.release(), hold.let_through());
        release
    };
    let (nested, released) = soon("both", async { tokio::join!(nested, release) }).await;
    released.unwrap();
    assert_eq!(server.ask::<String>(&["HGET", "stock", &field]).await, "1");
    nested.unwrap().release().await.unwrap();
    assert!(server.keys().await.is_empty());
}
