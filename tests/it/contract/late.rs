//! A holder that has lost its lock sends further commands: none of them touches the next holder's lock.

use nestlock::{ErrorKind, Loss};

use super::{Home, LONG, SECOND};
use crate::support::{SOON_OVER, eventually, soon};

/// Each command of a holder that doesn't know of its loss yet is sent, one by one.
#[tokio::test]
async fn release_reentry_and_extension_after_an_unnoticed_loss_touch_nobodys_lock() {
    let home = Home::start().await;
    let ours = super::counting(&home).await;
    let theirs = home.locks().await;
    for late in ["release", "re-entry", "extend", "drop"] {
        let stock = ours.mutex("stock");
        let guard = stock.lock().await.unwrap();
        // This side is not subscribed, so no message reports the loss.
        assert!(theirs.mutex("stock").force_release().await.unwrap());
        let other = theirs.mutex("stock").lock().fixed_lease(60 * SECOND).await.unwrap();
        assert!(!guard.is_lost());
        let lost = match late {
            "release" => guard.release().await.unwrap_err(),
            "re-entry" => stock.lock().await.unwrap_err(),
            "extend" => guard.extend(LONG).await.unwrap_err(),
            _ => {
                drop(guard);
                eventually("the release", async || stock.lock().within(SOON_OVER).await.is_err()).await;
                stock.lock().within(SOON_OVER).await.unwrap_err()
            }
        };
        let expected = if late == "drop" { ErrorKind::Timeout } else { ErrorKind::Lost };
        assert_eq!(lost.kind(), expected, "{late}");
        assert_eq!(home.fields("stock").await, [(other.hold_id().to_owned(), 1)], "{late}");
        assert!(home.left("stock").await <= Some(60 * SECOND), "{late}");
        other.release().await.unwrap();
    }
}

#[tokio::test]
async fn release_and_extension_after_a_known_loss_touch_nobodys_lock() {
    let home = Home::start().await;
    let ours = home.builder().lease(LONG).connect().await.unwrap();
    let stock = ours.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    let other = home.locks().await.mutex("stock").lock().fixed_lease(60 * SECOND).await.unwrap();
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(stock.try_lock().await.unwrap().is_none());
    assert_eq!(home.fields("stock").await, [(other.hold_id().to_owned(), 1)]);
    assert!(home.left("stock").await <= Some(60 * SECOND));
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_finds_anothers_hold_leaves_it_alone() {
    let home = Home::start().await;
    let (ours, theirs) =
        (home.builder().lease(6 * SECOND).connect().await.unwrap(), home.locks().await.mutex("stock"));
    let guard = ours.mutex("stock").lock().await.unwrap();
    assert!(theirs.force_release().await.unwrap());
    let other = theirs.lock().fixed_lease(5 * SECOND).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
    // It would be longer if the lost hold had renewed it.
    assert!(home.left("stock").await <= Some(5 * SECOND));
    drop(other);
}

/// A request of another owner in the same process does not wait for the guards of a lost hold.
#[tokio::test]
async fn others_take_the_lock_while_guards_of_a_lost_hold_linger() {
    let home = Home::start().await;
    let locks = home.builder().lease(LONG).connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    soon("the loss", guard.lost()).await;
    let next = soon("another task", tokio::spawn(stock.lock())).await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(home.fields("stock").await, [(next.hold_id().to_owned(), 1)]);
    next.release().await.unwrap();
}
