//! What a task does with a lock, drawn from a seed.

mod leave;
mod several;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nestlock::{Mutex, Owner, scope};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::hold::{Hold, User};
use crate::job::{LEASE, NAMES};
use crate::journal::Event;
use crate::register::{Register, Written};
use crate::{Result, claims, clock};
use leave::Leave;

/// The ways to take a lock, and how often each is drawn.
const WAYS: [(Way, u32); 24] = [
    (Way::Lock, 12),
    (Way::TryLock, 8),
    (Way::Within, 6),
    (Way::Nested, 8),
    (Way::Run, 8),
    (Way::TryRun, 4),
    (Way::NestedRun, 6),
    (Way::Branches, 4),
    (Way::Helpers, 4),
    (Way::Scope, 6),
    (Way::Fixed, 12),
    (Way::MaxHold, 4),
    (Way::Fenced, 16),
    (Way::FencedRun, 8),
    (Way::Extend, 6),
    (Way::Dropped, 10),
    (Way::Look, 2),
    (Way::Several, 8),
    (Way::TrySeveral, 5),
    (Way::SeveralRun, 5),
    (Way::SeveralFenced, 4),
    (Way::Check, 6),
    (Way::AtLeast, 5),
    (Way::HandOver, 8),
];

#[derive(Clone, Copy, Debug)]
enum Way {
    Lock,
    TryLock,
    Within,
    Nested,
    Run,
    TryRun,
    NestedRun,
    Branches,
    Helpers,
    Scope,
    Fixed,
    MaxHold,
    Fenced,
    FencedRun,
    Extend,
    /// The request is dropped before it completes, or the hold before its end.
    Dropped,
    /// Asks for the state of the lock.
    Look,
    /// Takes several names at once.
    Several,
    TrySeveral,
    SeveralRun,
    SeveralFenced,
    /// Checks on the servers whether the hold stands.
    Check,
    AtLeast,
    /// Hands the hold over to another process.
    HandOver,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Lock => "lock",
            Way::TryLock => "try_lock",
            Way::Within => "lock within",
            Way::Nested => "nested lock",
            Way::Run => "run",
            Way::TryRun => "try_lock run",
            Way::NestedRun => "nested run",
            Way::Branches => "branches",
            Way::Helpers => "helpers",
            Way::Scope => "scope",
            Way::Fixed => "fixed lease",
            Way::MaxHold => "max_hold",
            Way::Fenced => "fenced lock",
            Way::FencedRun => "fenced run",
            Way::Extend => "extend",
            Way::Dropped => "dropped",
            Way::Look => "look",
            Way::Several => "several",
            Way::TrySeveral => "several, try_lock",
            Way::SeveralRun => "several, run",
            Way::SeveralFenced => "several, fenced run",
            Way::Check => "check",
            Way::AtLeast => "at_least",
            Way::HandOver => "handed over",
        }
    }
}

/// How often a hold is checked.
const CHECK: Duration = Duration::from_millis(5);

/// One operation, as data: nothing is drawn while it runs.
#[derive(Debug)]
pub(crate) struct Operation {
    way: Way,
    name: &'static str,
    /// The names for those ways that take several, in the order in which they are asked for.
    names: Vec<&'static str>,
    /// How long the lock is held.
    stay: Duration,
    /// A limit, a lease or an extension.
    time: Duration,
    depth: usize,
    leave: Leave,
    pause: Duration,
}

impl Operation {
    pub(crate) fn draw(random: &mut StdRng) -> Operation {
        let millis =
            |random: &mut StdRng, from: u64, to: u64| Duration::from_millis(random.random_range(from..=to));
        let way = WAYS.choose_weighted(random, |(_, weight)| *weight).map_or(Way::Lock, |(way, _)| *way);
        let stay = match random.random_range(0..100) {
            0 => millis(random, 1_000, 4_500),
            1..=6 => millis(random, 50, 500),
            _ => millis(random, 0, 15),
        };
        let longest = LEASE.as_millis() as u64;
        let time = match way {
            Way::Fixed | Way::MaxHold if random.random_ratio(1, 4) => millis(random, 100, 700),
            Way::Fixed | Way::MaxHold | Way::Extend => millis(random, 300, longest),
            Way::Dropped if random.random() => millis(random, 0, 4),
            Way::AtLeast if random.random_ratio(1, 8) => millis(random, 150, 1_500),
            Way::AtLeast => millis(random, 5, 150),
            Way::HandOver => millis(random, 100, longest),
            _ => millis(random, 0, 400),
        };
        // Some holds with a short lease last until its end.
        let short = matches!(way, Way::Fixed | Way::MaxHold) && time < Duration::from_millis(700);
        let stay = if short && random.random() { 2 * time } else { stay };
        let stay = if matches!(way, Way::Check) { millis(random, 10, 200) } else { stay };
        let leave = match random.random_range(0..8) {
            0..=1 => Leave::Drop,
            2 => Leave::DropRelease,
            _ => Leave::Release,
        };
        let pause = if random.random_ratio(1, 20) { millis(random, 50, 300) } else { millis(random, 0, 15) };
        let (name, depth) = (*NAMES.choose(random).unwrap_or(&NAMES[0]), random.random_range(2..=4));
        let mut names: Vec<&str> = NAMES.iter().copied().filter(|other| *other != name).collect();
        names.shuffle(random);
        names.truncate(depth.min(3) - 1);
        names.insert(random.random_range(0..=names.len()), name);
        Operation { way, name, names, stay, time, depth, leave, pause }
    }

    pub(crate) fn how(&self) -> &'static str {
        self.way.name()
    }

    /// Returns how long the task does nothing after this operation.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    pub(crate) async fn perform(&self, user: &User) -> Result<()> {
        let mutex = user.locks.mutex(self.name);
        match self.way {
            Way::Lock => {
                self.hold(user, true, async || Ok(Some(mutex.lock().await?)), async |_, _| Ok(())).await
            }
            Way::TryLock => {
                self.hold(user, false, async || mutex.try_lock().await, async |_, _| Ok(())).await
            }
            Way::Within => {
                let request = async || mutex.try_lock().within(self.time).await;
                self.hold(user, true, request, async |_, _| Ok(())).await
            }
            Way::Nested => {
                let request = async || Ok(Some(mutex.lock().await?));
                self.hold(user, true, request, async |guard, hold| {
                    self.nest(user, &mutex, guard, hold, 2).await
                })
                .await
            }
            Way::Fixed => {
                let request = async || Ok(Some(mutex.lock().fixed_lease(self.time).await?));
                self.hold(user, true, request, async |_, _| Ok(())).await
            }
            Way::MaxHold => {
                let request = async || Ok(Some(mutex.lock().max_hold(self.time).await?));
                self.hold(user, true, request, async |_, _| Ok(())).await
            }
            Way::Extend => {
                let request = async || Ok(Some(mutex.lock().await?));
                let extend = async |guard: &nestlock::Guard, hold: &mut Hold<'_>| {
                    guard.extend(self.time).await?;
                    hold.look(guard);
                    Ok(())
                };
                self.hold(user, true, request, extend).await
            }
            Way::Scope => {
                let request = async || Ok(Some(scope(async { mutex.lock().await }).await?));
                self.hold(user, true, request, async |guard, hold| {
                    self.nest(user, &mutex, guard, hold, 2).await
                })
                .await
            }
            Way::Branches => {
                let request = async || Ok(Some(mutex.lock().await?));
                self.hold(user, true, request, async |_, _| self.branch(user, &mutex).await).await
            }
            Way::Helpers => self.help(user, &mutex).await,
            Way::Run => {
                let request = user.asks(self.name, self.how(), true);
                Ok(mutex.run(async |_| request.runs(None).work(self.stay).await).await?)
            }
            Way::TryRun => {
                let request = user.asks(self.name, self.how(), false);
                Ok(mutex
                    .try_lock()
                    .run(async |_| request.runs(None).work(self.stay).await)
                    .await
                    .map(drop)?)
            }
            Way::NestedRun => {
                let request = user.asks(self.name, self.how(), true);
                let work = async |_| {
                    let mut hold = request.runs(None);
                    self.nest_runs(&mutex, &mut hold, self.depth).await
                };
                mutex.run(work).await?
            }
            Way::Fenced => self.fenced(user, &mutex).await,
            Way::FencedRun => {
                let request = user.asks(self.name, self.how(), true);
                let work = async |locked: nestlock::Hold<nestlock::Fenced>| {
                    let token = locked.token();
                    let mut hold = request.runs(Some(token));
                    update(user, self.name, token, hold.work(self.stay)).await
                };
                mutex.fenced().run(work).await?
            }
            Way::Dropped => {
                let request = async || Ok(Some(mutex.lock().await?));
                let whole = self.hold(user, true, request, async |_, _| Ok(()));
                timeout(self.time, whole).await.unwrap_or(Ok(()))
            }
            Way::Look => {
                mutex.is_locked().await?;
                Ok(mutex.remaining_lease().await.map(drop)?)
            }
            Way::Several | Way::TrySeveral => self.several(user).await,
            Way::SeveralRun => self.run_several(user).await,
            Way::SeveralFenced => self.run_several_fenced(user).await,
            Way::Check => {
                let request = async || match self.depth {
                    2 => mutex.lock().await.map(Some),
                    _ => mutex.lock().fixed_lease(LEASE).await.map(Some),
                };
                self.hold(user, true, request, async |guard, hold| {
                    hold.stay_and_check(guard, self.stay, CHECK).await;
                    Ok(())
                })
                .await
            }
            Way::AtLeast => {
                let asked = user.asks(self.name, self.how(), true);
                let (guard, before) = clock::before(mutex.lock().at_least(self.time)).await;
                let guard = guard?;
                let mut hold = asked.granted(&guard, None);
                hold.keeps(before + clock::nanos(self.time));
                hold.stay(&guard, self.stay).await;
                self.leave(user, hold, guard).await
            }
            Way::HandOver => {
                let asked = user.asks(self.name, self.how(), true);
                let is_fixed = self.depth == 2;
                let guard = match is_fixed {
                    true => mutex.lock().fixed_lease(self.time).await?,
                    false => mutex.lock().await?,
                };
                let mut hold = asked.granted(&guard, None);
                hold.stay(&guard, self.stay).await;
                claims::hand_over(user, hold, guard, is_fixed).await
            }
        }
    }

    /// Takes the lock, does something under it, stays, and leaves.
    async fn hold(
        &self,
        user: &User,
        waits: bool,
        request: impl AsyncFnOnce() -> nestlock::Result<Option<nestlock::Guard>>,
        inside: impl AsyncFnOnce(&nestlock::Guard, &mut Hold<'_>) -> Result<()>,
    ) -> Result<()> {
        let asked = user.asks(self.name, self.how(), waits);
        let Some(held) = request().await? else { return Ok(()) };
        let mut hold = asked.granted(&held, None);
        inside(&held, &mut hold).await?;
        hold.stay(&held, self.stay).await;
        self.leave(user, hold, held).await
    }

    async fn leave(&self, user: &User, mut hold: Hold<'_>, held: nestlock::Guard) -> Result<()> {
        let was_lost = !hold.look(&held);
        hold.leaves();
        if self.leave.free(held, nestlock::Guard::release).await? {
            if was_lost {
                user.wrong(format!("{}: the release of a lost hold succeeded", self.how()));
            }
            hold.is_released();
        }
        Ok(())
    }

    /// Re-enters with guards, and checks what the crate reports of each level.
    async fn nest(
        &self,
        user: &User,
        mutex: &Mutex,
        outer: &nestlock::Guard,
        hold: &mut Hold<'_>,
        depth: usize,
    ) -> Result<()> {
        let inner = mutex.lock().await?;
        let (field, at, count) = (inner.hold_id() == outer.hold_id(), inner.depth(), mutex.hold_count());
        // A hold that is not lost now was not lost at these looks either.
        let right = field && at == depth && count == depth;
        if !right && !inner.is_lost() {
            let what =
                format!("a level {depth} has depth {at}, the same field {field}, and hold_count is {count}");
            user.wrong(format!("{}: {what}", self.how()));
        }
        hold.look(&inner);
        if depth < self.depth {
            Box::pin(self.nest(user, mutex, outer, hold, depth + 1)).await?;
        }
        match self.leave {
            Leave::Release => inner.release().await?,
            Leave::Drop | Leave::DropRelease => drop(inner),
        }
        Ok(())
    }

    async fn nest_runs(&self, mutex: &Mutex, hold: &mut Hold<'_>, depth: usize) -> Result<()> {
        hold.work(self.stay / self.depth as u32).await;
        match depth {
            0 => Ok(()),
            _ => mutex.run(|_| Box::pin(self.nest_runs(mutex, hold, depth - 1))).await?,
        }
    }

    /// Lets branches of one task re-enter with `run`, one at a time.
    async fn branch(&self, user: &User, mutex: &Mutex) -> Result<()> {
        let inside = AtomicBool::new(false);
        let work = || async {
            if inside.swap(true, Ordering::SeqCst) {
                user.wrong("two branches of one task are inside at once".into());
            }
            let left = scopeguard::guard((), |()| inside.store(false, Ordering::SeqCst));
            sleep(Duration::from_millis(1)).await;
            drop(left);
        };
        let (one, two, three) =
            tokio::join!(mutex.run(|_| work()), mutex.run(|_| work()), mutex.run(|_| work()));
        Ok(one.and(two).and(three)?)
    }

    /// Lets spawned tasks that are children of the holder enter, one at a time.
    async fn help(&self, user: &User, mutex: &Mutex) -> Result<()> {
        let request = user.asks(self.name, self.how(), true);
        let work = async {
            let mut hold = request.runs(None);
            let inside = std::sync::Arc::new(AtomicBool::new(false));
            let mut helpers = JoinSet::new();
            for _ in 0..3 {
                let (child, mutex) = (Owner::current().child(), mutex.clone());
                let (inside, user) = (inside.clone(), user.clone());
                helpers.spawn(child.scope(async move {
                    let work = async {
                        if inside.swap(true, Ordering::SeqCst) {
                            user.wrong("two helpers of one holder are inside at once".into());
                        }
                        let left = scopeguard::guard((), |()| inside.store(false, Ordering::SeqCst));
                        sleep(Duration::from_millis(1)).await;
                        drop(left);
                    };
                    mutex.run(|_| work).await
                }));
            }
            hold.work(self.stay).await;
            while let Some(helper) = helpers.join_next().await {
                helper??;
            }
            Ok(())
        };
        mutex.run(|_| work).await?
    }

    async fn fenced(&self, user: &User, mutex: &Mutex) -> Result<()> {
        let mutex = mutex.clone().fenced();
        let asked = user.asks(self.name, self.how(), true);
        let guard = mutex.lock().await?;
        let token = guard.token();
        let guard = guard.into();
        let mut hold = asked.granted(&guard, Some(token));
        if self.depth == 2 {
            let inner = mutex.lock().await?;
            if inner.token() != token {
                user.wrong(format!("a re-entry has the token {} in a hold of {token}", inner.token()));
            }
            inner.release().await?;
        }
        update(user, self.name, token, hold.stay(&guard, self.stay)).await?;
        self.leave(user, hold, guard).await
    }
}

/// Reads the register, stays, and adds one. It does so even if the hold was lost in between: the register has to refuse that write.
async fn update<T>(user: &User, name: &str, token: u64, stay: impl Future<Output = T>) -> Result<()> {
    let register = Register::of(&user.folder, name);
    let seen = register.read(token).await?;
    stay.await;
    let Some(value) = seen else { return Ok(()) };
    let written = register.write(token, value + 1).await?;
    if written == Written::LostUpdate {
        user.wrong(format!("an update of {} was lost: {token} wrote {}", name, value + 1));
    }
    let taken = written != Written::Refused;
    user.journal.write(Event::Wrote { name: name.to_owned(), token, taken });
    Ok(())
}
