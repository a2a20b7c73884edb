//! What the holder of a lost lock does next touches nobody's lock.

use nestlock::{ErrorKind, Loss};

use super::{LONG, SECOND};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{builder, eventually, locks, soon};
use crate::wire::{fields, ttl};

/// Each command of a holder that does not know yet, one by one.
#[tokio::test]
async fn release_reentry_and_extension_after_an_unnoticed_loss_touch_nobodys_lock() {
    let server = Server::start().await;
    let ours = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let theirs = locks(&server.url()).await;
    for late in ["release", "re-entry", "extend", "drop"] {
        let stock = ours.mutex("stock");
        let guard = stock.lock().await.unwrap();
        server.ask::<()>(&["DEL", "stock"]).await;
        let other = theirs.mutex("stock").lock().fixed_lease(60 * SECOND).await.unwrap();
        assert!(!guard.is_lost());
        let lost = match late {
            "release" => guard.release().await.unwrap_err(),
            "re-entry" => stock.lock().await.unwrap_err(),
            "extend" => guard.extend(LONG).await.unwrap_err(),
            _ => {
                drop(guard);
                eventually("the release", async || stock.lock().within(SECOND / 100).await.is_err()).await;
                stock.lock().within(SECOND / 100).await.unwrap_err()
            }
        };
        let expected = if late == "drop" { ErrorKind::Timeout } else { ErrorKind::Lost };
        assert_eq!(lost.kind(), expected, "{late}");
        assert_eq!(fields(&server, "stock").await, [(other.field().to_owned(), "1".to_owned())], "{late}");
        assert!(ttl(&server, "stock").await <= 60_000, "{late}");
        other.release().await.unwrap();
    }
}

#[tokio::test]
async fn release_and_extension_after_a_known_loss_touch_nobodys_lock() {
    let server = Server::start().await;
    let ours = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = ours.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    let other = locks(&server.url()).await.mutex("stock").lock().fixed_lease(60 * SECOND).await.unwrap();
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(stock.try_lock().await.unwrap().is_none());
    assert_eq!(fields(&server, "stock").await, [(other.field().to_owned(), "1".to_owned())]);
    assert!(ttl(&server, "stock").await <= 60_000);
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_finds_anothers_hold_leaves_it_alone() {
    let server = Server::start().await;
    let ours = builder(&server.url()).lease(2 * SECOND).connect().await.unwrap();
    let guard = ours.mutex("stock").lock().await.unwrap();
    server.ask::<()>(&["DEL", "stock"]).await;
    let other = locks(&server.url()).await.mutex("stock").lock().fixed_lease(SECOND).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    // Renewed by the wrong hold it would stand on.
    assert!(ttl(&server, "stock").await <= 1_000);
    drop(other);
}

#[tokio::test]
async fn a_reentry_after_a_loss_is_refused_until_the_last_guard_is_gone() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    let lost = outer.field().to_owned();
    stock.force_release().await.unwrap();
    soon("the loss", outer.lost()).await;
    assert!(inner.is_lost() && !stock.is_held() && stock.hold_count() == 0);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.run(async {}).await.unwrap_err().kind(), ErrorKind::Lost);
    drop(inner);
    let fresh = soon("a fresh hold", stock.lock()).await.unwrap();
    assert_eq!((fresh.depth(), fresh.is_lost()), (1, false));
    assert_ne!(fresh.field(), lost);
    fresh.release().await.unwrap();
}

/// A stranger of the same process does not wait for the guards of a lost hold.
#[tokio::test]
async fn others_take_the_lock_while_guards_of_a_lost_hold_linger() {
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    soon("the loss", guard.lost()).await;
    let next = soon("another task", tokio::spawn(stock.lock())).await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(fields(&server, "stock").await, [(next.field().to_owned(), "1".to_owned())]);
    next.release().await.unwrap();
}

/// A renewal ran and its answer never came: the hold is lost here, and its key stands for another lease.
#[tokio::test]
async fn the_key_of_a_lost_hold_that_stands_is_ended_when_its_last_guard_goes() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let stock = builder(&proxy.url()).lease(2 * SECOND).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let late = proxy.on(|c| c.is("renew") || c.is("settle")).hold_reply();
    late.done().await;
    server.ask::<()>(&["PEXPIRE", "stock", "120000"]).await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    late.let_through().await;
    let ends = proxy.on(|c| c.is("release")).watch();
    assert_eq!(server.keys().await, ["stock"]);
    let field = guard.field().to_owned();
    drop(guard);
    let end = ends.seen().await;
    assert_eq!(end.argv()[..2], [field, "0".to_owned()]);
    eventually("the key's end", async || server.keys().await.is_empty()).await;
}
