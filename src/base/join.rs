//! Awaits several futures at once.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::Poll;

/// Awaits all futures. Returns their outputs in the same order.
///
/// Polls each of them in each poll, however many there are. The join of `futures-util` does not if there are more than 30: 1. The task
/// has used up its budget, which wakes every future that waits for an answer at once. 2. After two of those the join returns. 3. The
/// other calls are not sent in this poll, and the next one may be past their deadline.
pub(crate) fn join_all<F: Future>(work: impl IntoIterator<Item = F>) -> impl Future<Output = Vec<F::Output>> {
    let mut work: Vec<Pin<Box<F>>> = work.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = work.iter().map(|_| None).collect();
    poll_fn(move |cx| {
        for (work, done) in work.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = work.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        if done.iter().any(Option::is_none) {
            return Poll::Pending;
        }
        Poll::Ready(mem::take(&mut done).into_iter().flatten().collect())
    })
}
