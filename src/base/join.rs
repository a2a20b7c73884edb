//! Awaits several futures at once.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::task::JoinSet;

use crate::base::{Mutex, boxed, lock};

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

/// Like a [`JoinSet`], whose code a program has once more for each type of output. Also has one output for each task that has returned and
/// was not joined.
pub(crate) struct Tasks<T>(JoinSet<()>, Arc<Mutex<VecDeque<T>>>);

impl<T: Send + 'static> Tasks<T> {
    pub(crate) fn new() -> Tasks<T> {
        Tasks(JoinSet::new(), Arc::default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline(never)]
    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        let outputs = self.1.clone();
        self.0.spawn(boxed(async move {
            let output = task.await;
            lock(&outputs).push_back(output);
        }));
    }

    /// Returns `None` if there are no more, and `Some(None)` for one that has panicked.
    pub(crate) async fn join_next(&mut self) -> Option<Option<T>> {
        let joined = self.0.join_next().await?;
        Some(joined.ok().and_then(|()| lock(&self.1).pop_front()))
    }
}
