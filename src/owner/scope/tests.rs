use std::pin::pin;
use std::task::Waker;

use super::*;

/// Records the owner that is current when it is dropped.
struct Last<'a>(&'a std::cell::RefCell<Option<Owner>>);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        *self.0.borrow_mut() = Some(Owner::current());
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn as_owner<R>(owner: &Owner, f: impl FnOnce() -> R) -> R {
    let _inside = inside(owner);
    f()
}

#[test]
fn the_parent_is_read_at_the_first_poll() {
    let here = Owner::new();
    let mut work = pin!(scope(async { Owner::current() }));
    let Poll::Ready(inside) = as_owner(&here, || poll(work.as_mut())) else { panic!("it is ready") };
    assert_eq!(inside.parent(), Some(&here));
    assert_ne!(Owner::current(), inside);
}

#[test]
fn work_runs_as_the_owner_that_its_scope_was_given() {
    let owner = Owner::new();
    assert_eq!(poll(pin!(owner.scope(async { Owner::current() }))), Poll::Ready(owner.clone()));
    let mut work = pin!(scope(async { Owner::current() }));
    work.as_mut().set_owner(owner.clone());
    assert_eq!(poll(work), Poll::Ready(owner));
}

#[test]
fn work_is_dropped_as_its_owner() {
    let owner = Owner::new();
    let last = std::cell::RefCell::new(None);
    {
        let guarded = Last(&last);
        let mut work = pin!(owner.scope(async {
            let _guarded = guarded;
            std::future::pending::<()>().await;
        }));
        assert!(poll(work.as_mut()).is_pending());
    }
    assert_eq!(last.take(), Some(owner.clone()));
    drop(owner.scope(std::future::ready(Last(&last))));
    assert_eq!(last.take(), Some(owner), "even if it was never polled");
}

#[test]
fn a_scope_polled_after_its_end_stays_pending() {
    let mut work = pin!(scope(async {}));
    assert!(poll(work.as_mut()).is_ready());
    assert!(poll(work.as_mut()).is_pending());
}
