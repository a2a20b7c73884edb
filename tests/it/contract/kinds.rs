//! Each kind of error, in the situation that causes it.

use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use nestlock::{ErrorKind, Loss, Owner, scope};

use super::Home;
use crate::errors::is;
use crate::support::{SOON_OVER, soon};

#[tokio::test]
async fn a_waiter_whose_time_is_over_fails_with_timeout() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let _held = stock.lock().owner(&Owner::new()).await.unwrap();
    let error = stock.lock().within(SOON_OVER).await.unwrap_err();
    is(
        &error,
        ErrorKind::Timeout,
        Some("stock"),
        &["somebody else held it", &format!("{SOON_OVER:?}"), "`within`", "try again"],
    );
    assert!(stock.try_lock().await.unwrap().is_none());
    assert!(stock.try_lock().within(SOON_OVER).await.unwrap().is_none());
}

#[tokio::test]
async fn all_that_comes_after_a_loss_is_lost() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
    assert!(stock.force_release().await.unwrap());
    assert_eq!(soon("the loss", outer.lost()).await, Loss::Gone);
    let words = ["is lost", "gone from the server", "stop the work", "take the lock again"];
    for error in [
        stock.lock().await.unwrap_err(),
        stock.try_lock().await.unwrap_err(),
        stock.run(async |_| {}).await.unwrap_err(),
        scope(async { stock.lock().await.unwrap_err() }).await,
        outer.extend(Duration::from_secs(60)).await.unwrap_err(),
        inner.release().await.unwrap_err(),
        outer.release().await.unwrap_err(),
    ] {
        is(&error, ErrorKind::Lost, Some("stock"), &words);
        assert_eq!(error.loss(), Some(Loss::Gone));
    }
    assert!(home.keys().await.is_empty());
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_run_whose_work_was_dropped_is_lost() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let running = tokio::spawn(stock.run(|_| std::future::pending::<()>()));
    crate::support::eventually("the hold", async || stock.is_locked().await.unwrap()).await;
    stock.force_release().await.unwrap();
    let error = soon("the end", running).await.unwrap().unwrap_err();
    is(&error, ErrorKind::Lost, Some("stock"), &["is lost"]);
}

#[tokio::test]
async fn the_error_of_an_ambiguous_request_names_what_to_use() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let mut waits = Box::pin(stock.lock());
    let mut first = Box::pin(stock.lock());
    let guard = soon("one of the two", async {
        tokio::select! { guard = &mut first => guard, guard = &mut waits => guard }
    });
    let _guard = guard.await.unwrap();
    let error = stock.lock().await.unwrap_err();
    is(&error, ErrorKind::Ambiguous, Some("stock"), &["branch", "`run`", "`scope`"]);
}

#[test]
fn outside_of_a_runtime_each_call_is_an_error_and_no_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_home, locks, [guard, other], claim) = runtime.block_on(async {
        let home = Home::start().await;
        let locks = home.locks().await;
        let [guard, other, third] = ["stock", "order", "claimed"]
            .map(|name| locks.mutex(name))
            .map(async |mutex| mutex.lock().await.unwrap());
        let claim = third.await.into_claim().await.unwrap();
        (home, locks, [guard.await, other.await], claim)
    });
    let stock = locks.mutex("stock");
    assert_eq!(guard.lost().now_or_never(), None);
    macro_rules! misused {
        ($($call:expr),* $(,)?) => {
            $(
                let error = block_on($call).map(drop).expect_err(stringify!($call));
                assert_eq!(error.kind(), ErrorKind::Misuse, "{}: {error}", stringify!($call));
                assert!(error.to_string().contains("tokio runtime"), "{}: {error}", stringify!($call));
            )*
        };
    }
    misused!(
        stock.lock(),
        stock.try_lock(),
        stock.run(async |_| {}),
        locks.mutex("claimed").resume(&claim),
        stock.is_locked(),
        stock.remaining_lease(),
        stock.holder(),
        stock.waiters(),
        stock.force_release(),
        guard.check(),
        guard.extend(Duration::from_secs(60)),
        other.release(),
        guard.into_claim(),
        locks.close(),
    );
    is(&block_on(stock.lock()).unwrap_err(), ErrorKind::Closed, Some("stock"), &["closed"]);
}
