//! Events outside of the processes, in an order that a seed decides.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::base::lock;

type Action = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct Agenda {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The order is by time, then by a number that the seed draws for events of the same time, then by arrival.
    actions: BTreeMap<(Instant, u64, u64), Action>,
    number: u64,
}

impl Agenda {
    pub(super) fn add(&self, at: Instant, tie: u64, action: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.number += 1;
        let number = state.number;
        state.actions.insert((at, tie, number), Box::new(action));
        drop(state);
        self.changed.notify_one();
    }

    /// Runs each action at its time.
    pub(super) async fn run(&self) {
        loop {
            let next = loop {
                let mut state = lock(&self.state);
                match state.actions.first_entry() {
                    Some(first) if first.key().0 <= Instant::now() => {
                        let action = first.remove();
                        drop(state);
                        action();
                    }
                    first => break first.map(|first| first.key().0),
                }
            };
            match next {
                Some(next) => tokio::select! {
                    biased;
                    () = self.changed.notified() => {}
                    () = sleep_until(next) => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}
