//! An executor for one task. It polls a future only after that future was woken, at a moment that the test
//! chooses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::dice::Dice;

/// Whether a future was woken since its last poll.
struct Flag {
    woken: AtomicBool,
    any: Arc<Notify>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, SeqCst);
        self.any.notify_one();
    }
}

/// How late a woken future is polled.
#[derive(Clone, Copy)]
pub(super) enum Habit {
    AtOnce,
    Late { longest: Duration },
}

pub(super) struct Driven {
    pub(super) id: u64,
    habit: Habit,
    future: Pin<Box<dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
    /// When the future is to be polled; drawn when its wake is seen.
    due: Option<Instant>,
}

pub(super) struct Executor {
    dice: Dice,
    driven: Vec<Driven>,
    any: Arc<Notify>,
    pub(super) polls: usize,
}

impl Executor {
    pub(super) fn new(dice: Dice) -> Executor {
        Executor { dice, driven: Vec::new(), any: Arc::default(), polls: 0 }
    }

    pub(super) fn add(&mut self, id: u64, habit: Habit, future: impl Future<Output = ()> + 'static) {
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), any: self.any.clone() });
        self.driven.push(Driven { id, habit, future: Box::pin(future), flag, due: None });
    }

    pub(super) fn len(&self) -> usize {
        self.driven.len()
    }

    /// Takes some futures out: they are no longer polled.
    pub(super) fn take(&mut self, mut which: impl FnMut(u64) -> bool) -> Vec<Driven> {
        self.driven.extract_if(.., |driven| which(driven.id)).collect()
    }

    pub(super) fn put_back(&mut self, driven: Vec<Driven>) {
        self.driven.extend(driven);
    }

    /// From now on each future is polled as soon as it is woken.
    pub(super) fn hurry(&mut self) {
        for driven in &mut self.driven {
            (driven.habit, driven.due) = (Habit::AtOnce, None);
        }
    }

    /// Polls one of the futures that were woken and whose time has come. Returns `None` if there is none.
    pub(super) fn poll_one(&mut self) -> Option<u64> {
        let now = Instant::now();
        let Executor { dice, driven, .. } = self;
        let ready: Vec<usize> = (0..driven.len()).filter(|at| driven[*at].is_due(dice, now)).collect();
        if ready.is_empty() {
            return None;
        }
        let at = ready[self.dice.roll(ready.len())];
        let polled = &mut self.driven[at];
        let id = polled.id;
        polled.due = None;
        polled.flag.woken.store(false, SeqCst);
        self.polls += 1;
        let waker = Waker::from(polled.flag.clone());
        if polled.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(self.driven.swap_remove(at));
        }
        Some(id)
    }

    /// Waits until one of the futures is woken.
    pub(super) async fn woken(&self) {
        self.any.notified().await;
    }
}

impl Driven {
    fn is_due(&mut self, dice: &Dice, now: Instant) -> bool {
        if !self.flag.woken.load(SeqCst) {
            return false;
        }
        let due = *self.due.get_or_insert_with(|| match self.habit {
            Habit::Late { longest } if !dice.one_in(3) => now + dice.time(longest),
            _ => now,
        });
        due <= now
    }
}
