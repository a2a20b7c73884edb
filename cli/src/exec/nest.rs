//! A `nestlock exec` inside of another one: what the outer one leaves in the environment, and how the inner one enters its hold.
//!
//! The inner one asks the masters whether the very field of the outer one still holds the lock. Then it runs its child without an
//! acquire. Two things could go wrong:
//!
//! - The outer hold is released while the inner child runs: one that was started in the background. So the inner one locks a file of
//!   the outer one for as long as its child runs, and the outer one waits for that before it releases ([`Gate`]).
//! - The outer hold is lost. The outer one ends all that it has started. The inner one looks at the masters too ([`Entered`]), and
//!   ends its own child by what it has seen.

use std::time::Duration;

use nestlock::{ErrorKind, Mutex};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// All holds of the commands around, the outermost first.
const HOLDS: &str = "NESTLOCK_HOLDS";

/// For how long masters that don't answer are asked whether a command around this one holds the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks at once.
const PAUSE: Duration = Duration::from_millis(50);

/// What a process finds in its environment.
pub(super) struct Nest(Vec<Outer>);

/// What a command finds of those around it.
pub(super) enum Entry {
    /// None of them holds the lock.
    Free,
    Entered(Entered),
    /// One of them holds it, and this one can't reach it: it runs as another user, or in another container.
    LockedOut,
}

/// A `nestlock exec` around this one.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Outer {
    key: String,
    field: String,
    token: Option<u64>,
    /// What distinguishes all that it has started.
    mark: String,
    /// The file that is locked by those who enter, and its number: in another container the path may be another file's.
    gate: Option<(String, u64)>,
    lease_ms: u64,
    kill_after_ms: u64,
}

impl Nest {
    pub(super) fn from_env() -> Nest {
        let text = std::env::var(HOLDS).unwrap_or_default();
        Nest(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Fails where the masters don't answer, or refuse to: whether this one is inside of a hold is not known then, and who waits for a
    /// hold around it waits for ever.
    pub(super) async fn enter(&self, mutex: &Mutex, key: &str) -> nestlock::Result<Entry> {
        let Some(outer) = self.0.iter().rev().find(|outer| outer.key == key) else { return Ok(Entry::Free) };
        // Locked before the look: what holds the lock then holds it until the gate is free again.
        let gate = match outer.gate.as_ref().map(Gate::pass) {
            Some(Ok(Some(gate))) => gate,
            Some(Ok(None)) => return Ok(Entry::Free),
            // Most often an environment that has outlived its hold.
            Some(Err(_)) | None => {
                let seen = Seen::ask_again(mutex, &outer.field).await;
                let is_held = matches!(seen, Ok(Seen::Until(_)));
                return Ok(if is_held { Entry::LockedOut } else { Entry::Free });
            }
        };
        Ok(match Seen::look(mutex, &outer.field).await? {
            Seen::Gone => Entry::Free,
            seen => Entry::Entered(Entered::new(mutex.clone(), outer.clone(), gate, seen)),
        })
    }

    /// The environment of a child: for it, and for the commands that it starts.
    pub(super) fn env(&self, new: &Outer, name: &str) -> Vec<(&'static str, Option<String>)> {
        let holds: Vec<_> = self.0.iter().chain([new]).collect();
        vec![
            ("NESTLOCK_NAME", Some(name.to_owned())),
            ("NESTLOCK_HOLD", Some(new.field.clone())),
            // The one of another lock around must not be taken for this one's.
            ("NESTLOCK_TOKEN", new.token.map(|token| token.to_string())),
            (HOLDS, serde_json::to_string(&holds).ok()),
        ]
    }
}

impl Outer {
    pub(super) fn new(
        key: &str,
        field: &str,
        token: Option<u64>,
        gate: Option<&Gate>,
        (lease, kill_after): (Duration, Duration),
    ) -> Outer {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Outer {
            key: key.to_owned(),
            field: field.to_owned(),
            token,
            mark: format!("nestlock-{}-{}", std::process::id(), now.as_nanos()),
            gate: gate.and_then(Gate::place),
            lease_ms: millis(lease),
            kill_after_ms: millis(kill_after),
        }
    }

    /// The same hold, for what an inner command starts.
    pub(super) fn inner(&self) -> Outer {
        let own = Outer::new("", "", None, None, Default::default());
        Outer { mark: own.mark, ..self.clone() }
    }

    pub(super) fn mark(&self) -> &str {
        &self.mark
    }
}

/// A file without a name. Whoever enters a hold locks it shared; the one whose hold it is locks it alone, before it releases.
///
/// Without it (where there is no Linux) nobody enters.
pub(super) struct Gate(OwnedFd);

impl Gate {
    /// Of a new hold.
    #[cfg(target_os = "linux")]
    pub(super) fn new() -> Option<Gate> {
        use rustix::fs::{MemfdFlags, memfd_create};
        memfd_create("nestlock", MemfdFlags::CLOEXEC).ok().map(Gate)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new() -> Option<Gate> {
        None
    }

    fn place(&self) -> Option<(String, u64)> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        Some((path, fstat(&self.0).ok()?.st_ino))
    }

    /// `None`: its hold is about to be released. An error: it can't be reached, or its command has ended.
    fn pass((path, number): &(String, u64)) -> std::io::Result<Option<Gate>> {
        // A pipe that the path leads to by now would block.
        let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        if fstat(&file)?.st_ino != *number {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_ok().then_some(Gate(file)))
    }

    /// Whether nobody is inside. Nobody enters any more then.
    pub(super) fn close(&self) -> bool {
        flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Keeps it locked for as long as any of the two is open.
    pub(super) fn again(&self) -> Option<OwnedFd> {
        self.0.try_clone().ok()
    }
}

/// The hold of an outer command, as an inner one sees it.
pub(super) struct Entered {
    outer: Outer,
    gate: Gate,
    seen: watch::Receiver<Seen>,
    looks: tokio::task::JoinHandle<()>,
}

/// What the masters have answered.
#[derive(Clone, Copy)]
enum Seen {
    /// The field holds the lock until then at least, unless it is taken away.
    Until(Instant),
    Gone,
}

impl Seen {
    /// The first look, again for a while where the masters don't answer.
    async fn look(mutex: &Mutex, field: &str) -> nestlock::Result<Seen> {
        let end = Instant::now() + PATIENCE;
        loop {
            match Seen::ask_again(mutex, field).await {
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < end => {
                    sleep(PAUSE).await;
                }
                Err(error) if error.kind() == ErrorKind::NotALock => return Ok(Seen::Gone),
                seen => return seen,
            }
        }
    }

    /// Twice where the first answer is that it is gone: of several masters no majority may have had the same answer for a moment.
    async fn ask_again(mutex: &Mutex, field: &str) -> nestlock::Result<Seen> {
        let seen = Seen::ask(mutex, field).await;
        if !matches!(seen, Ok(Seen::Gone)) {
            return seen;
        }
        sleep(PAUSE).await;
        Seen::ask(mutex, field).await
    }

    async fn ask(mutex: &Mutex, field: &str) -> nestlock::Result<Seen> {
        let before = Instant::now();
        let holder = mutex.holder().await?;
        Ok(match holder.filter(|holder| holder.field() == field) {
            Some(holder) => {
                let left = holder.remaining_lease();
                // The allowed drift, as of the hold itself.
                let drift = left / 100 + Duration::from_millis(2);
                Seen::Until(before + left.saturating_sub(drift))
            }
            None => Seen::Gone,
        })
    }
}

impl Entered {
    fn new(mutex: Mutex, outer: Outer, gate: Gate, first: Seen) -> Entered {
        let (sender, seen) = watch::channel(first);
        // Twice between two renewals.
        let pause = Duration::from_millis(outer.lease_ms / 6)
            .clamp(Duration::from_millis(20), Duration::from_secs(5));
        let field = outer.field.clone();
        let looks = tokio::spawn(async move {
            loop {
                sleep(pause).await;
                let seen = Seen::ask_again(&mutex, &field).await;
                // Without an answer it ends when it would have ended.
                if let Ok(seen) = seen {
                    sender.send_replace(seen);
                }
            }
        });
        Entered { outer, gate, seen, looks }
    }

    pub(super) fn outer(&self) -> &Outer {
        &self.outer
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.outer.token
    }

    /// How long before the end the child gets TERM, at most.
    pub(super) fn kill_after(&self) -> Duration {
        Duration::from_millis(self.outer.kill_after_ms)
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.outer.lease_ms)
    }

    pub(super) fn valid_until(&self) -> Instant {
        match *self.seen.borrow() {
            Seen::Until(end) => end,
            Seen::Gone => Instant::now(),
        }
    }

    /// Resolves when the lock is no longer held by that field. True: before its end.
    pub(super) async fn lost(&self) -> bool {
        let mut seen = self.seen.clone();
        loop {
            let end = match *seen.borrow_and_update() {
                Seen::Until(end) => end,
                Seen::Gone => return true,
            };
            tokio::select! {
                () = tokio::time::sleep_until(end) => return false,
                changed = seen.changed() => if changed.is_err() { sleep(Duration::from_millis(20)).await },
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.looks.abort();
    }
}
