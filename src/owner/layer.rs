//! `OwnerLayer`: makes each request of a server an owner of its own.

use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::owner::owner::{Owner, inside};
use crate::owner::scope::Scope;

/// A layer of `tower` that makes each request an [`Owner`] of its own.
///
/// A server runs all HTTP/1 requests of a keep-alive connection in one task, and a task is one owner by default. So a request would
/// re-enter what an earlier one on the same connection still holds. If this layer is the outermost one, no request is taken for
/// another one. Calls nested in a request still re-enter, and a guard that outlives the response still belongs to its request.
///
/// A body that the handler returns is polled after the request, and its calls are the connection's task again. To lock there what
/// the handler holds, poll it in [`Guard::scope`](crate::Guard::scope), or in [`Owner::scope`] with the owner that was
/// [current](Owner::current) in the handler.
///
/// It needs the feature `tower`. [`guide::owners`](crate::guide::owners#servers) has samples with axum and with tonic. With any service:
///
/// ```
/// use std::task::{Context, Poll};
/// use nestlock::futures::Request;
/// use nestlock::{Error, Guard, Locks, Mutex, OwnerLayer};
/// use tower_layer::Layer;
/// use tower_service::Service;
///
/// /// Answers with the lock, if nobody has it.
/// struct Export(Mutex);
///
/// impl Service<()> for Export {
///     type Response = Option<Guard>;
///     type Error = Error;
///     type Future = Request<Option<Guard>>;
///
///     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
///         Poll::Ready(Ok(()))
///     }
///
///     fn call(&mut self, _: ()) -> Request<Option<Guard>> {
///         self.0.try_lock()
///     }
/// }
///
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// let export = Locks::in_memory().mutex("export");
/// let mut service = OwnerLayer::new().layer(Export(export));
/// let kept = service.call(()).await?;
/// assert!(kept.is_some());
/// assert!(service.call(()).await?.is_none()); // the next request of this task does not re-enter
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OwnerLayer(());

impl OwnerLayer {
    /// Creates the layer. It has no options.
    #[must_use]
    pub fn new() -> OwnerLayer {
        OwnerLayer(())
    }
}

impl<S> Layer<S> for OwnerLayer {
    type Service = OwnerService<S>;

    fn layer(&self, inner: S) -> OwnerService<S> {
        OwnerService { inner }
    }
}

/// A service whose requests are owners of their own. [`OwnerLayer`] makes it around another service.
///
/// See the example of [`OwnerLayer`].
#[derive(Clone, Debug)]
pub struct OwnerService<S> {
    inner: S,
}

impl<S: Service<Request>, Request> Service<Request> for OwnerService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Scope<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Scope<S::Future> {
        let owner = Owner::new();
        // The service's work before its future is polled belongs to the request too: it may spawn a task with a child of its owner.
        let inside = inside(&owner);
        let work = self.inner.call(request);
        drop(inside);
        owner.scope(work)
    }
}
