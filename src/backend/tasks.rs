//! `Tasks`: a set of tasks that are joined in the order in which they return.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::base::{Mutex, boxed, lock};

/// Like a [`JoinSet`], whose code is compiled again for each type of output.
pub(crate) struct Tasks<T> {
    set: JoinSet<()>,
    /// The outputs of the tasks that have returned and were not joined.
    outputs: Arc<Mutex<VecDeque<T>>>,
}

impl<T: Send + 'static> Tasks<T> {
    pub(crate) fn new() -> Tasks<T> {
        Tasks { set: JoinSet::new(), outputs: Arc::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    #[inline(never)]
    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        let outputs = self.outputs.clone();
        self.set.spawn(boxed(async move {
            let output = task.await;
            lock(&outputs).push_back(output);
        }));
    }

    /// Returns `None` if there are no more, and `Some(None)` for one that has panicked.
    pub(crate) async fn join_next(&mut self) -> Option<Option<T>> {
        let joined = self.set.join_next().await?;
        Some(joined.ok().and_then(|()| lock(&self.outputs).pop_front()))
    }
}
