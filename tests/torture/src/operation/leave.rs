//! The ways in which a guard ends.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// How a guard ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leave {
    Release,
    Drop,
    /// Polls the future of the release once, and drops it.
    DropRelease,
}

impl Leave {
    /// Ends a guard. Returns whether a release was awaited and succeeded.
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
