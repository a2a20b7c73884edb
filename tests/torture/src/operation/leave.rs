//! How a guard goes.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// By its release, or by a drop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leave {
    Release,
    Drop,
    /// The future of the release is polled once, and dropped.
    DropRelease,
}

impl Leave {
    /// Whether a release was awaited, and succeeded.
    pub(super) async fn free<G, F: Future<Output = nestlock::Result<()>>>(
        self,
        held: G,
        release: impl FnOnce(G) -> F,
    ) -> nestlock::Result<bool> {
        match self {
            Leave::Drop => drop(held),
            Leave::DropRelease => {
                let mut release = pin!(release(held));
                poll_fn(|cx| {
                    let _ = release.as_mut().poll(cx);
                    Poll::Ready(())
                })
                .await;
            }
            Leave::Release => return release(held).await.map(|()| true),
        }
        Ok(false)
    }
}
