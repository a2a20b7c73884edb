//! What callers do: they take locks in all ways, nested and side by side, in futures that are polled at any
//! time.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use futures::{FutureExt, join, poll};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::dice::Dice;
use super::journal::note;
use super::sections::{Held, Place, Sections};
use crate::client::{Guard, Request};
use crate::{Error, ErrorKind, Owner, scope};

const DEEPEST: usize = 3;

/// What all callers share.
pub(super) struct World {
    pub(super) sections: Rc<Sections>,
    /// Guards that outlive their calls, until another caller takes them.
    pub(super) shelf: RefCell<Vec<Held>>,
    /// The longest time for which a caller stays where it is.
    pub(super) longest: Duration,
    pub(super) lease: Duration,
    pub(super) forces: bool,
    /// Whether a forced release has begun or ended since the last look, and may have run.
    pub(super) forced: Cell<bool>,
    over: Cell<bool>,
    ends: Notify,
}

impl World {
    pub(super) fn new(longest: Duration, lease: Duration, forces: bool) -> World {
        let (sections, shelf) = (Rc::default(), RefCell::default());
        let (forced, over) = (Cell::new(false), Cell::new(false));
        World { sections, shelf, longest, lease, forces, forced, over, ends: Notify::new() }
    }

    /// Makes all callers let go of what they have, as soon as they are polled.
    pub(super) fn end(&self) {
        self.over.set(true);
        self.ends.notify_waiters();
    }

    pub(super) fn begin(&self) {
        self.over.set(false);
    }
}

#[derive(Clone)]
pub(super) struct Caller {
    pub(super) world: Rc<World>,
    pub(super) place: Place,
    pub(super) dice: Rc<Dice>,
}

impl Caller {
    /// Takes locks in some ways, one after the other.
    pub(super) async fn program(self) {
        for _ in 0..=self.dice.roll(3) {
            self.stay().await;
            if self.world.over.get() {
                return;
            }
            match self.dice.roll(8) {
                0 => self.branches_of_one_poll().await,
                1 => self.with_a_guard_of_another().await,
                2 if self.world.forces => self.force().await,
                _ => self.act(0).await,
            }
        }
    }

    /// Lets some time pass, or none.
    async fn stay(&self) {
        let ends = pin!(self.world.ends.notified());
        if self.world.over.get() {
            return;
        }
        match self.dice.roll(4) {
            0 => {}
            1 => yield_now().await,
            _ => {
                let time = self.dice.time(self.world.longest);
                tokio::select! {
                    biased;
                    () = ends => {}
                    () = sleep(time) => {}
                }
            }
        }
    }

    fn act(&self, depth: usize) -> LocalBoxFuture<'_, ()> {
        async move {
            match self.dice.roll(if depth < DEEPEST { 14 } else { 4 }) {
                0 | 1 => self.with(self.lock(), depth).await,
                2 => drop(self.done(self.lock_or_not(depth).run(|_| self.work(depth)).await)),
                3 => drop(self.done(self.lock().run(|_| self.work(depth)).await)),
                4 => drop(self.done(self.place.mutex.run(|_| self.work(depth)).await)),
                5 => {
                    if let Some(guard) = self.done(self.lock_or_not(depth).await).flatten() {
                        let guard = self.held(guard);
                        // The guard may be another owner's: the lock is open only below that owner.
                        guard.guard().scope(self.inside(depth)).await;
                        self.leave(guard).await;
                    }
                }
                6 => scope(self.act(depth + 1)).await,
                7 => drop(join!(self.branch(depth), self.branch(depth))),
                8 => drop(join!(self.branch(depth), self.branch(depth), self.branch(depth))),
                9 => self.handed_up(depth).await,
                10 => self.given_up(depth).await,
                11 => self.polled_and_left(depth).await,
                12 => {
                    let child = Owner::current().child();
                    let guard = self.take(self.lock().owner(&child)).await;
                    let Some(guard) = guard else { return };
                    child.scope(self.inside(depth)).await;
                    self.leave(guard).await;
                }
                _ => self.look().await,
            }
        }
        .boxed_local()
    }

    /// Runs a branch as an owner of its own, so that it excludes those beside it.
    async fn branch(&self, depth: usize) {
        self.stay().await;
        match self.dice.one_in(2) {
            true => scope(self.act(depth + 1)).await,
            false => drop(self.done(self.lock().run(|_| self.work(depth)).await)),
        }
    }

    async fn handed_up(&self, depth: usize) {
        let guard = scope(async {
            let guard = self.take(self.lock()).await;
            if self.dice.one_in(2) {
                self.inside(depth).await;
            }
            guard
        });
        let Some(guard) = guard.await else { return };
        self.inside_of(guard, depth).await;
    }

    /// Makes a request that is dropped before it is granted.
    async fn given_up(&self, depth: usize) {
        let guard = tokio::select! {
            biased;
            guard = self.take(self.lock()) => guard,
            () = self.stay() => None,
        };
        if let Some(guard) = guard {
            self.inside_of(guard, depth).await;
        }
    }

    /// Makes futures that are polled once, and again only after something else has happened.
    async fn polled_and_left(&self, depth: usize) {
        let mut request = pin!(self.take(self.lock()).fuse());
        let first = poll!(&mut request);
        self.stay().await;
        let guard = match first {
            std::task::Poll::Ready(guard) => guard,
            std::task::Poll::Pending => request.await,
        };
        let Some(guard) = guard else { return };
        self.inside(depth).await;
        let mut release = pin!(guard.release());
        let first = poll!(&mut release);
        self.stay().await;
        if first.is_pending() && !self.dice.one_in(4) {
            self.done(release.await);
        }
    }

    /// Makes two or three bare requests of one owner that has nothing yet.
    async fn branches_of_one_poll(&self) {
        let group = self.world.sections.granted();
        let branch = async |number| {
            let mut place = self.place.clone();
            place.branch = Some((group, number));
            let guard = match self.dice.one_in(3) {
                true => self.done(self.place.mutex.try_lock().await).flatten(),
                false => self.done(self.lock().await),
            };
            let Some(guard) = guard else { return };
            let held = self.world.sections.hold(place, guard);
            self.stay().await;
            self.done(held.release().await);
        };
        let branches = async { join!(branch(0), branch(1), branch(2)) };
        Owner::new().scope(branches).await;
    }

    /// Takes a guard that another caller left.
    async fn with_a_guard_of_another(&self) {
        let guard = {
            let mut shelf = self.world.shelf.borrow_mut();
            if shelf.is_empty() {
                None
            } else {
                Some(self.dice.roll(shelf.len())).map(|at| shelf.swap_remove(at))
            }
        };
        let Some(mut guard) = guard else { return };
        guard.pass_to(self.place.caller);
        // The guard may be of another process, and the locks of that process are strangers to those of this
        // one.
        let there = Caller { place: Place { branch: None, ..guard.place().clone() }, ..self.clone() };
        guard.guard().scope(there.inside(0)).await;
        self.leave(guard).await;
    }

    async fn force(&self) {
        note(|| format!("caller {} forces", self.place.caller));
        self.world.forced.set(true);
        self.done(self.place.mutex.force_release().await);
        self.world.forced.set(true);
    }

    async fn look(&self) {
        self.done(self.place.mutex.is_locked().await);
        self.done(self.place.mutex.remaining_lease().await);
    }

    async fn with(&self, request: Request<Guard>, depth: usize) {
        if let Some(guard) = self.take(request).await {
            self.inside_of(guard, depth).await;
        }
    }

    async fn take(&self, request: Request<Guard>) -> Option<Held> {
        self.done(request.await).map(|guard| self.held(guard))
    }

    fn held(&self, guard: Guard) -> Held {
        self.world.sections.hold(self.place.clone(), guard)
    }

    async fn work(&self, depth: usize) {
        let _working = self.world.sections.work(self.place.clone(), Owner::current());
        self.inside(depth).await;
    }

    async fn inside_of(&self, guard: Held, depth: usize) {
        match self.dice.roll(8) {
            0 => guard.guard().scope(self.inside(depth)).await,
            1 => {
                tokio::select! {
                    biased;
                    _ = guard.guard().lost() => {}
                    () = self.inside(depth) => {}
                }
            }
            2 => {
                self.done(guard.guard().extend(self.any_lease()).await);
                self.inside(depth).await;
            }
            _ => self.inside(depth).await,
        }
        self.leave(guard).await;
    }

    /// Draws a lease. Several masters grant none that is longer than `restart_delay`, which is the lease of the `Locks` here.
    fn any_lease(&self) -> Duration {
        (Duration::from_millis(10) + self.dice.time(self.world.lease)).min(self.world.lease)
    }

    async fn inside(&self, depth: usize) {
        for _ in 0..=self.dice.roll(2) {
            self.stay().await;
            if self.world.over.get() {
                return;
            }
            if depth < DEEPEST && !self.dice.one_in(3) {
                self.act(depth + 1).await;
            }
        }
    }

    async fn leave(&self, guard: Held) {
        match self.dice.roll(5) {
            0 | 1 => {
                self.done(guard.release().await);
            }
            2 if !self.world.over.get() => self.world.shelf.borrow_mut().push(guard),
            3 => drop(guard.release().now_or_never()),
            _ => drop(guard),
        }
    }

    fn lock(&self) -> Request<Guard> {
        let request = self.place.mutex.lock();
        let request = match self.dice.roll(4) {
            0 => request.within(self.dice.time(2 * self.world.longest)),
            _ => request,
        };
        let request = match self.dice.roll(5) {
            0 => request.fixed_lease(self.any_lease()),
            _ => request,
        };
        match self.dice.roll(5) {
            0 => request.max_hold(self.dice.time(self.world.longest)),
            _ => request,
        }
    }

    /// Makes a request that may also be a stranger's, unless it is nested.
    fn lock_or_not(&self, depth: usize) -> Request<Option<Guard>> {
        let request = self.place.mutex.try_lock();
        let request = match self.dice.roll(3) {
            0 => request.within(self.dice.time(self.world.longest)),
            _ => request,
        };
        if depth == 0 && self.dice.one_in(3) { request.owner(&Owner::new()) } else { request }
    }

    /// Returns the result. An error has to be one that callers must expect.
    fn done<T>(&self, result: Result<T, Error>) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        note(|| format!("caller {}: {error}", self.place.caller));
        let expected = matches!(
            error.kind(),
            ErrorKind::Timeout
                | ErrorKind::Unavailable
                | ErrorKind::Lost
                | ErrorKind::Ambiguous
                | ErrorKind::Closed
        );
        assert!(expected, "{error}");
        None
    }
}
