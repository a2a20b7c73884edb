//! `OwnerLayer`: each request has its own owner.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use nestlock::{Guard, Locks, Mutex, Owner, OwnerLayer};
use tower_layer::Layer;
use tower_service::Service;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Infallible>> + Send>>;

/// A service that takes the lock twice, nested, and returns the outer guard.
#[derive(Clone)]
struct Keeping(Mutex);

impl Service<()> for Keeping {
    type Response = Option<(Guard, Owner)>;
    type Error = Infallible;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let (mutex, called_by) = (self.0.clone(), Owner::current());
        Box::pin(async move {
            assert_eq!(Owner::current(), called_by, "the call and its future are one request");
            let Some(guard) = mutex.try_lock().await.unwrap() else { return Ok(None) };
            assert_eq!(mutex.run(async |_| mutex.hold_count()).await.unwrap(), 2, "what it nests re-enters");
            Ok(Some((guard, called_by)))
        })
    }
}

#[tokio::test]
async fn the_next_request_of_a_task_does_not_re_enter_what_an_earlier_one_keeps() {
    let stock = Locks::in_memory().mutex("stock");
    let mut service = OwnerLayer::new().layer(Keeping(stock.clone()));
    let (kept, owner) = service.call(()).await.unwrap().expect("it is free");
    assert!(owner != Owner::current() && kept.owner() == owner);
    assert!(service.call(()).await.unwrap().is_none());
    assert!(service.clone().call(()).await.unwrap().is_none());
    assert!(!stock.is_held() && stock.try_lock().await.unwrap().is_none());
    kept.release().await.unwrap();
    let (again, other) = service.call(()).await.unwrap().expect("it is free again");
    assert_ne!(owner, other);
    drop(again);
}

#[tokio::test]
async fn without_the_layer_it_does() {
    let mut service = Keeping(Locks::in_memory().mutex("stock"));
    let _kept = service.call(()).await.unwrap().expect("it is free");
    let entered = service.0.lock().await.unwrap();
    assert_eq!(entered.depth(), 2);
}

/// A server may run requests of several connections in one task, as here.
#[tokio::test]
async fn requests_at_once_in_one_task_exclude_each_other() {
    let stock = Locks::in_memory().mutex("stock");
    let mut service = OwnerLayer::new().layer(Keeping(stock));
    let requests = (service.call(()), service.call(()), service.call(()));
    let (one, two, three) = tokio::join!(requests.0, requests.1, requests.2);
    let granted = [one, two, three].into_iter().filter(|answer| matches!(answer, Ok(Some(_))));
    assert_eq!(granted.count(), 1);
}

/// Is ready at the second `poll_ready`, and is closed from the third on.
struct Warming(u32);

impl Service<()> for Warming {
    type Response = ();
    type Error = &'static str;
    type Future = Ready<Result<(), &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.0 += 1;
        match self.0 {
            1 => Poll::Pending,
            2 => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err("it is closed")),
        }
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

/// Layers that limit or shed load, and that `OwnerLayer` wraps, depend on this.
#[test]
fn the_service_is_ready_when_the_one_inside_is() {
    let mut service = OwnerLayer::new().layer(Warming(0));
    let mut context = Context::from_waker(Waker::noop());
    for expected in [Poll::Pending, Poll::Ready(Ok(())), Poll::Ready(Err("it is closed"))] {
        assert_eq!(service.poll_ready(&mut context), expected);
    }
}
