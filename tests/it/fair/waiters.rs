//! What `waiters()` returns, and the hint to a process whose hold is released by force.

use std::time::Duration;

use nestlock::{Locks, Loss, WaitingProcess};

use super::{LINE, fair, granted, process, stand, waits};
use crate::support::server::Server;
use crate::support::{self, eventually, soon};

#[tokio::test]
async fn a_look_into_the_line_shows_who_waits_in_order_and_for_how_long() {
    let server = Server::start().await;
    let connect =
        async |label| fair(support::builder(&server.url())).holder_name(label).connect().await.unwrap();
    let (holds, one, two): (Locks, Locks, Locks) =
        (connect("holds").await, connect("one").await, connect("two").await);
    let stock = holds.mutex("stock");
    assert_eq!(stock.waiters().await.unwrap(), []);
    let guard = stock.lock().await.unwrap();
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    // This makes the first waiter a minute older.
    let members: Vec<String> = server.ask(&["ZRANGE", LINE, "0", "0"]).await;
    server.ask::<String>(&["ZINCRBY", LINE, &(-60 << 20).to_string(), &members[0]]).await;
    let seen = stock.clone().fenced().waiters().await.unwrap();
    assert_eq!(seen.iter().map(WaitingProcess::name).collect::<Vec<_>>(), [Some("one"), Some("two")]);
    let [longer, shorter] = [&seen[0], &seen[1]].map(WaitingProcess::waiting_for);
    assert!(shorter <= Duration::from_secs(90) && longer >= shorter + Duration::from_secs(60), "{seen:?}");
    assert!(longer <= shorter + Duration::from_secs(150), "{seen:?}");
    guard.release().await.unwrap();
    let guard = granted(first).await;
    assert_eq!(guard.hold_id(), seen[0].hold_id());
    assert_eq!(stock.waiters().await.unwrap().len(), 1);
    guard.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_eq!(stock.waiters().await.unwrap(), []);
}

#[tokio::test]
async fn where_there_is_no_line_nobody_is_in_it() {
    let server = Server::start().await;
    let connect = async || fair(support::builder(&server.url())).fair(false).connect().await.unwrap();
    let (ours, theirs) = (connect().await, connect().await);
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waiter = waits(&theirs);
    eventually("it waits", async || theirs.status().iter().any(|status| status.waiting() == 1)).await;
    assert_eq!(ours.mutex("stock").waiters().await.unwrap(), []);
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// No renewal is due, and nobody is subscribed to the channel of the lock's releases.
#[tokio::test]
async fn a_process_that_has_waited_once_notices_at_once_that_a_hold_of_it_was_forced_away() {
    let server = Server::start().await;
    let (ours, theirs) = (process(&server.url()).await, process(&server.url()).await);
    let guard = theirs.mutex("stock").lock().await.unwrap();
    let waiter = waits(&ours);
    stand(&server, 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let guard = ours.mutex("another").lock().await.unwrap();
    assert!(theirs.mutex("another").force_release().await.unwrap());
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
}
