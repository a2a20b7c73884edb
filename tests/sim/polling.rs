//! Futures that one task polls in a drawn order, or does not poll for a while.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::sim::dice::Key;

pub(super) type Doing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Polls all of these futures each time, in an order that is drawn for each poll, until all are ready.
pub(super) async fn together(works: Vec<Doing<'_>>, key: Key) {
    let mut works: Vec<_> = works.into_iter().map(Some).collect();
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        let mut order: Vec<usize> = (0..works.len()).collect();
        order.sort_by_key(|at| key.with(polls).with(*at as u64).bits());
        for at in order {
            if works[at].as_mut().is_some_and(|work| work.as_mut().poll(cx).is_ready()) {
                works[at] = None;
            }
        }
        if works.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Polls the work this many times. If it is not ready by then, it is not polled before `pause` is over, whatever wakes it. After that it is
/// dropped if `dropped`, and otherwise polled until it completes.
pub(super) async fn neglected(
    work: impl Future<Output = ()>,
    polls: u32,
    pause: impl Future<Output = ()>,
    dropped: bool,
) {
    let mut work = pin!(work);
    let mut left = polls;
    let is_ready = poll_fn(|cx| {
        let Some(after) = left.checked_sub(1) else { return Poll::Ready(false) };
        left = after;
        work.as_mut().poll(cx).map(|()| true)
    });
    if is_ready.await {
        return;
    }
    pause.await;
    if !dropped {
        work.await;
    }
}
