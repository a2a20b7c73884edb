//! Which owners re-enter, and which have to wait.

use futures::FutureExt;
use nestlock::{ErrorKind, Owner, scope};

use super::{Home, Inside};
use crate::support::soon;

#[tokio::test]
async fn ten_bare_requests_at_once_exclude_each_other() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let inside = Inside::default();
    soon(
        "all ten",
        futures::future::join_all((0..10).map(|_| async {
            let guard = stock.lock().await.unwrap();
            assert_eq!(guard.depth(), 1);
            inside.stay().await;
            guard.release().await.unwrap();
        })),
    )
    .await;
    assert_eq!(inside.ever(), 10);
}

#[tokio::test]
async fn a_request_that_may_be_nested_or_a_branch_is_ambiguous() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock");
    let (one, two) = (stock.lock(), stock.lock());
    let mut two = Box::pin(two);
    let first = {
        let mut one = Box::pin(one);
        soon("the first", async {
            tokio::select! { biased; first = &mut one => first.unwrap(), _ = &mut two => panic!("not before the first") }
        })
        .await
    };
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Ambiguous);
    first.release().await.unwrap();
    soon("the second", two).await.unwrap().release().await.unwrap();
    stock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_owner_is_read_at_the_first_poll() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let m = locks.mutex("stock");
    assert_eq!(m.run(|_| m.run(async |_| 1)).await.unwrap().unwrap(), 1);
    assert_eq!(m.run(|_| scope(m.run(async |_| 2))).await.unwrap().unwrap(), 2);
    let stranger = m.clone();
    m.run(async |_| {
        let spawned = tokio::spawn(scope(async move { stranger.try_lock().await.unwrap().is_none() }));
        assert!(soon("a stranger's answer", spawned).await.unwrap());
        let child = m.clone();
        let work = async move { child.run(async |_| 3).await.unwrap() };
        assert_eq!(soon("a child", tokio::spawn(Owner::current().child().scope(work))).await.unwrap(), 3);
    })
    .await
    .unwrap();
    let claim = m.lock().await.unwrap().into_claim().await.unwrap();
    let (owner, mut resumes) = (Owner::new(), Box::pin(m.resume(&claim)));
    owner.scope(async { assert!((&mut resumes).now_or_never().is_none()) }).await;
    let guard = soon("the claim", resumes).await.unwrap();
    assert_eq!(guard.owner(), owner);
    guard.release().await.unwrap();
}
