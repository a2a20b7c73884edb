//! No request is answered in its first poll, just as with a server: so branches of one task meet here as they do there.

use futures::poll;
use nestlock::{ErrorKind, Locks, Owner, scope};

use super::SECOND;

#[tokio::test]
async fn no_call_is_answered_at_its_first_poll() {
    let stock = Locks::in_memory().mutex("stock");
    macro_rules! not_at_once {
        ($call:expr) => {{
            let mut call = Box::pin($call);
            assert!(poll!(&mut call).is_pending(), "{}", stringify!($call));
            call.await.unwrap()
        }};
    }
    let guard = not_at_once!(stock.lock());
    drop(not_at_once!(stock.lock()));
    drop(not_at_once!(stock.try_lock()));
    not_at_once!(stock.run(async |_| {}));
    not_at_once!(stock.try_lock().owner(&Owner::new()));
    not_at_once!(stock.is_locked());
    not_at_once!(stock.remaining_lease());
    not_at_once!(guard.extend(60 * SECOND));
    not_at_once!(guard.release());
    not_at_once!(stock.force_release());
}

#[tokio::test]
async fn branches_of_one_task_are_seen_as_branches() {
    let stock = Locks::in_memory().mutex("stock");
    let branch = async || {
        let guard = stock.lock().await?;
        // While this branch holds the lock and the other one waits, another request is ambiguous.
        let third = stock.lock().await.map(drop);
        guard.release().await?;
        third
    };
    let (one, two) = tokio::join!(branch(), branch());
    assert_eq!([one, two].map(|branch| branch.map_err(|error| error.kind())), [Err(ErrorKind::Ambiguous); 2]);
}

#[tokio::test]
async fn branches_that_say_so_exclude_each_other() {
    let stock = Locks::in_memory().mutex("stock");
    let inside = std::cell::Cell::new(0);
    let work = async || {
        inside.set(inside.get() + 1);
        assert_eq!(inside.get(), 1);
        tokio::task::yield_now().await;
        inside.set(inside.get() - 1);
    };
    let scoped = async || {
        let _guard = stock.lock().await.unwrap();
        work().await;
    };
    let (one, two, (), ()) =
        tokio::join!(stock.run(|_| work()), stock.run(|_| work()), scope(scoped()), scope(scoped()));
    one.and(two).unwrap();
}
