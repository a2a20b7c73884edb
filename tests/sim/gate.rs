//! A process: its tasks are polled at once, late, or not at all.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

use crate::base::Task;
use crate::base::lock;
use crate::sim::dice::Key;

/// Far more polls than any run needs: the limit ends a run that polls endlessly.
const MOST_POLLS: u64 = 200_000;

/// More polls are allowed for each second and for each name that is locked. 1. A master lacks a hold that is not repaired, since nobody
/// renews it. 2. A request gets only that master until the lease is over, so it pauses and asks again. That has taken 115 polls a second.
const MOST_POLLS_A_SECOND: u64 = 160;

/// The polls that are allowed at one moment.
const MOST_POLLS_AT_ONCE: u64 = 3_000;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
    static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static WOKE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns for how long the machine of all processes was suspended. Timers do not count that time.
pub(super) fn slept() -> Duration {
    SLEPT.get()
}

/// Returns when the machine last resumed, in the time of its timers.
pub(super) fn woke() -> Option<Instant> {
    WOKE.get()
}

pub(super) fn set_slept(slept: Duration) {
    SLEPT.set(slept);
    WOKE.set((!slept.is_zero()).then(Instant::now));
}

pub(super) struct Process {
    pub(super) id: usize,
    key: Key,
    start: Instant,
    /// How far this process's time of day is ahead.
    skew: Duration,
    /// How many names are locked.
    names: u64,
    state: Mutex<State>,
    /// Notified of a panic, or of endless polls.
    alarm: Arc<Notify>,
}

#[derive(Default)]
struct State {
    frozen: usize,
    dead: bool,
    lateness: Duration,
    tasks: u64,
    polls: u64,
    /// How many polls there were at this time.
    polls_at: Option<(Instant, u64)>,
    chances: u64,
    waiting: Vec<Waker>,
    failed: Option<String>,
    /// The tasks that wait for their turn, by their numbers. `None`: each is polled when the runtime polls it.
    woken: Option<BTreeMap<u64, Waiting>>,
    /// The tasks of the runtime on which this process has connected.
    background: Vec<Weak<Slot>>,
    runtime_ends: bool,
    runtime_ended: bool,
}

/// Holds a task while it is not polled.
type Slot = Mutex<Option<Task>>;

/// A task that waits for a turn.
type Waiting = (Arc<Slot>, Arc<Bell>);

/// Remembers whether a task was woken since its last poll. The runtime does not distinguish a wake from a turn.
struct Bell {
    rung: AtomicBool,
    waker: Mutex<Waker>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, SeqCst);
        lock(&self.waker).wake_by_ref();
    }
}

impl Process {
    pub(super) fn new(
        id: usize,
        key: Key,
        lateness: Duration,
        names: u64,
        alarm: Arc<Notify>,
    ) -> Arc<Process> {
        let state = Mutex::new(State { lateness, ..State::default() });
        let skew = Duration::from_millis(key.with(99).roll(300));
        Arc::new(Process { id, key, start: Instant::now(), skew, names, state, alarm })
    }

    /// From now on, tasks of this process that are woken at the same time are polled in the order in which they were made. Otherwise tasks
    /// that watch one value would be woken in an order that no seed decides.
    pub(super) fn take_turns(&self) {
        lock(&self.state).woken = Some(BTreeMap::new());
    }

    /// Returns this process's time of day, in microseconds.
    fn time_of_day(&self) -> u64 {
        const BEGINNING: u64 = 1_700_000_000_000_000;
        BEGINNING + (self.start.elapsed() + slept() + self.skew).as_micros() as u64
    }

    /// Runs `work` as this process.
    pub(super) fn enter<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(Some(self.clone()));
        let result = work();
        CURRENT.set(before);
        result
    }

    pub(super) fn freeze(&self) {
        lock(&self.state).frozen += 1;
    }

    pub(super) fn thaw(&self) {
        let mut state = lock(&self.state);
        state.frozen = state.frozen.saturating_sub(1);
        let waiting = if state.frozen == 0 { std::mem::take(&mut state.waiting) } else { Vec::new() };
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(super) fn crash(&self) {
        lock(&self.state).dead = true;
    }

    pub(super) fn is_dead(&self) -> bool {
        lock(&self.state).dead
    }

    /// Drops the runtime on which this process has connected, with its tasks. Its callers are on another runtime.
    pub(super) fn end_runtime(self: &Arc<Self>) {
        let tasks = {
            let mut state = lock(&self.state);
            state.runtime_ends = true;
            std::mem::take(&mut state.background)
        };
        for slot in tasks.iter().filter_map(Weak::upgrade) {
            let task = lock(&slot).take();
            self.enter(|| drop(task));
        }
        let mut state = lock(&self.state);
        (state.runtime_ends, state.runtime_ended) = (false, true);
    }

    pub(super) fn has_lost_its_runtime(&self) -> bool {
        lock(&self.state).runtime_ended
    }

    /// Makes each task be polled as soon as it is woken, from now on.
    pub(super) fn hurry(&self) {
        lock(&self.state).lateness = Duration::ZERO;
    }

    /// Returns what went wrong in a task, if anything.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.state).failed.clone()
    }

    /// Polls the task in this slot.
    fn poll(self: &Arc<Self>, slot: &Slot, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut task) = lock(slot).take() else { return Poll::Ready(()) };
        let polled = self.enter(|| catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))));
        match polled {
            Ok(Poll::Ready(())) => {
                self.enter(|| drop(task));
                return Poll::Ready(());
            }
            Ok(Poll::Pending) => {}
            Err(panic) => self.fail(format!("a panic: {}", message_of(&*panic))),
        }
        *lock(slot) = Some(task);
        Poll::Pending
    }

    /// Polls the first of the tasks that wait for a turn.
    fn poll_first(self: &Arc<Self>) {
        loop {
            let first = lock(&self.state).woken.as_mut().and_then(BTreeMap::pop_first);
            let Some((_, (slot, bell))) = first else { return };
            if lock(&slot).is_some() {
                bell.rung.store(false, SeqCst);
                if self.poll(&slot, &mut Context::from_waker(&Waker::from(bell.clone()))).is_ready() {
                    bell.wake();
                }
                return;
            }
        }
    }

    fn fail(&self, why: String) {
        let mut state = lock(&self.state);
        state.dead = true;
        state.failed.get_or_insert(why);
        drop(state);
        self.alarm.notify_one();
    }
}

/// Returns the process whose task is being polled.
pub(super) fn current() -> Option<Arc<Process>> {
    CURRENT.with_borrow(Clone::clone)
}

pub(super) fn time_of_day() -> u64 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |process| process.time_of_day()))
}

/// Returns a drawn number, which the crate uses instead of a random one.
pub(super) fn chance() -> u64 {
    CURRENT.with_borrow(|current| {
        let Some(process) = current else { return 0 };
        let mut state = lock(&process.state);
        state.chances += 1;
        process.key.with(98).with(state.chances).bits()
    })
}

/// Puts a task of the current process behind the gate of that process.
pub(super) fn gate(task: Task) -> Task {
    let Some(process) = CURRENT.with_borrow(Clone::clone) else { return task };
    Box::pin(Gated::new(process, task))
}

/// Puts a task that a session spawns behind the gate of the current process.
pub(super) fn gate_background(task: Task) -> Task {
    let Some(process) = CURRENT.with_borrow(Clone::clone) else { return task };
    let gated = Gated::new(process.clone(), task);
    let mut state = lock(&process.state);
    if state.runtime_ends {
        drop(state);
        let task = lock(&gated.task).take();
        process.enter(|| drop(task));
    } else if !state.runtime_ended {
        state.background.retain(|slot| slot.strong_count() > 0);
        state.background.push(Arc::downgrade(&gated.task));
    }
    Box::pin(gated)
}

struct Gated {
    process: Arc<Process>,
    number: u64,
    /// Whether it has asked for a turn that it has not used yet.
    waits: bool,
    bell: Arc<Bell>,
    key: Key,
    polls: u64,
    nap: Option<Pin<Box<Sleep>>>,
    task: Arc<Slot>,
}

impl Gated {
    fn new(process: Arc<Process>, task: Task) -> Gated {
        let mut state = lock(&process.state);
        state.tasks += 1;
        let (number, key) = (state.tasks, process.key.with(state.tasks));
        drop(state);
        let task = Arc::new(Mutex::new(Some(task)));
        let bell = Arc::new(Bell { rung: AtomicBool::new(true), waker: Mutex::new(Waker::noop().clone()) });
        Gated { process, number, waits: false, bell, key, polls: 0, nap: None, task }
    }

    /// Uses the turn that it has asked for: polls the first task that waits for one. Then asks for a turn if its own task was woken. There
    /// are as many turns as tasks that wait.
    fn turn(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.waits, false) {
            self.process.poll_first();
        }
        let mut state = lock(&self.process.state);
        let woken = state.woken.get_or_insert_default();
        if self.bell.rung.load(SeqCst) && !woken.contains_key(&self.number) && lock(&self.task).is_some() {
            self.waits = true;
            *lock(&self.bell.waker) = cx.waker().clone();
            woken.insert(self.number, (self.task.clone(), self.bell.clone()));
            drop(state);
            cx.waker().wake_by_ref();
        }
    }
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let (lateness, in_turns) = {
            let mut state = lock(&this.process.state);
            if state.dead {
                return Poll::Pending;
            }
            if state.frozen > 0 {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            state.polls += 1;
            let now = Instant::now();
            let before = state.polls_at.filter(|(at, _)| *at == now).map_or(0, |(_, polls)| polls);
            state.polls_at = Some((now, before + 1));
            let seconds = (now - this.process.start).as_secs();
            let without_end = state.polls > MOST_POLLS + MOST_POLLS_A_SECOND * this.process.names * seconds;
            if without_end || before > MOST_POLLS_AT_ONCE {
                drop(state);
                this.process.fail("polled without end".to_owned());
                return Poll::Pending;
            }
            (state.lateness, state.woken.is_some())
        };
        if this.nap.is_none() && !this.waits {
            this.polls += 1;
            let key = this.key.with(this.polls);
            if !lateness.is_zero() && key.one_in(3) {
                this.nap = Some(Box::pin(sleep(key.with(1).time(lateness))));
            }
        }
        if let Some(nap) = &mut this.nap {
            if nap.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.nap = None;
        }
        if !in_turns {
            return this.process.poll(&this.task, cx);
        }
        this.turn(cx);
        if lock(&this.task).is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        if self.waits {
            // Its turn is lost, although another task may be waiting for that turn.
            let first = lock(&self.process.state).woken.as_ref().and_then(|all| {
                all.values().find(|(slot, _)| !Arc::ptr_eq(slot, &self.task)).map(|(_, bell)| bell.clone())
            });
            first.into_iter().for_each(Wake::wake);
        }
        let task = lock(&self.task).take();
        self.process.clone().enter(|| drop(task));
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
