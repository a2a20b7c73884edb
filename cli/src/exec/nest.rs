//! A `nestlock exec` inside another one: what the outer one leaves in the environment, and how the inner one enters its hold.
//!
//! The inner one asks the masters whether exactly the outer one's field still holds the lock. If so, it runs its child without an
//! acquire. Two things could go wrong:
//!
//! - The outer hold is released while the inner child, started in the background, still runs. So the inner one locks a file of
//!   the outer one for as long as its child runs, and the outer one waits for that before it releases ([`Gate`]).
//! - The outer hold is lost. The outer one ends all that it has started. The inner one looks at the masters too ([`Entered`]), and
//!   ends its own child according to what it has seen.

use std::time::Duration;

use nestlock::{ErrorKind, Loss, Mutex};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The environment variable with the holds of all commands around this one, the outermost first.
const HOLDS: &str = "NESTLOCK_HOLDS";

/// How long to keep asking masters that don't answer whether a command around this one holds the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two looks that follow each other at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The holds of the commands around this one, as found in the environment.
pub(super) struct Nest(Vec<Outer>);

/// How a command relates to the holds of the commands around it.
pub(super) enum Entry {
    /// None of them holds the lock.
    Free,
    Entered(Entered),
    /// One of them holds it, but this one can't reach it: it runs as another user, or in another container.
    LockedOut,
}

/// A `nestlock exec` around this one.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Outer {
    key: String,
    field: String,
    token: Option<u64>,
    /// A text that is only in the environment of what that command has started.
    mark: String,
    /// The file that those who enter lock, and its number: in another container the path may lead to another file.
    gate: Option<(String, u64)>,
    lease_ms: u64,
    kill_after_ms: u64,
}

impl Nest {
    pub(super) fn from_env() -> Nest {
        let text = std::env::var(HOLDS).unwrap_or_default();
        Nest(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Fails if the masters don't answer, or refuse to: it is then unknown whether this command is inside a hold, and a command that
    /// waits for a hold around it would wait forever.
    pub(super) async fn enter(&self, mutex: &Mutex, key: &str) -> nestlock::Result<Entry> {
        let Some(outer) = self.0.iter().rev().find(|outer| outer.key == key) else { return Ok(Entry::Free) };
        // The gate is locked before the look, so a hold that the look finds is kept until the gate is free again.
        let gate = match outer.gate.as_ref().map(Gate::pass) {
            Some(Ok(Some(gate))) => gate,
            Some(Ok(None)) => return Ok(Entry::Free),
            // Usually this is an environment that has outlived its hold.
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

    /// Returns the environment of a child, for it and for the commands that it starts.
    pub(super) fn env(&self, new: &[Outer], names: &[&str]) -> Vec<(&'static str, Option<String>)> {
        let holds: Vec<_> = self.0.iter().chain(new).collect();
        let fields: Vec<_> = new.iter().map(|outer| &*outer.field).collect();
        let tokens: Option<Vec<_>> = new.iter().map(|outer| Some(outer.token?.to_string())).collect();
        vec![
            ("NESTLOCK_NAME", Some(names.join("\n"))),
            ("NESTLOCK_HOLD", Some(fields.join("\n"))),
            // The token of another lock around this one must not be taken for this lock's.
            ("NESTLOCK_TOKEN", tokens.map(|tokens| tokens.join("\n"))),
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
        mark: &str,
    ) -> Outer {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Outer {
            key: key.to_owned(),
            field: field.to_owned(),
            token,
            mark: mark.to_owned(),
            gate: gate.and_then(Gate::place),
            lease_ms: millis(lease),
            kill_after_ms: millis(kill_after),
        }
    }

    /// Returns the same hold, with the mark of what an inner command starts.
    pub(super) fn inner(&self, mark: &str) -> Outer {
        Outer { mark: mark.to_owned(), ..self.clone() }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

/// Returns a new mark for what this command starts.
pub(super) fn mark() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("nestlock-{}-{}", std::process::id(), now.as_nanos())
}

/// A file without a name. A command that enters a hold locks it shared; the command that owns the hold locks it exclusively before it
/// releases.
///
/// Without the file (on other systems than Linux) no command enters.
pub(super) struct Gate(OwnedFd);

impl Gate {
    /// Returns the gate of a new hold.
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

    /// Locks the gate of another command. Returns `None` if its hold is about to be released, and an error if the gate can't be reached
    /// or its command has ended.
    fn pass((path, number): &(String, u64)) -> std::io::Result<Option<Gate>> {
        // If the path leads to a pipe by now, opening it would block.
        let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        if fstat(&file)?.st_ino != *number {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_ok().then_some(Gate(file)))
    }

    /// Closes the gate if nobody is inside, so that nobody can enter any more. Returns whether it did.
    pub(super) fn close(&self) -> bool {
        flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Returns a copy that keeps it locked for as long as one of the two is open.
    pub(super) fn again(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
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
    /// The field holds the lock at least until then, unless it is taken away.
    Until(Instant),
    Gone,
}

impl Seen {
    /// Makes the first look, and repeats it for a while if the masters don't answer.
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

    /// Asks a second time if the first answer is that it is gone: for a moment, no majority of several masters may have agreed.
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
        Ok(match holder.filter(|holder| holder.hold_id() == field) {
            Some(holder) => {
                let left = holder.remaining_lease();
                // The allowed drift, as for the hold itself.
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
        // Look twice between two renewals.
        let pause = Duration::from_millis(outer.lease_ms / 6)
            .clamp(Duration::from_millis(20), Duration::from_secs(5));
        let field = outer.field.clone();
        let looks = tokio::spawn(async move {
            loop {
                sleep(pause).await;
                let seen = Seen::ask_again(&mutex, &field).await;
                // Without an answer the hold ends when it would have ended anyway.
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

    /// Returns how long before the end of the lease the child gets TERM, at most.
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

    /// Waits until that field no longer holds the lock.
    pub(super) async fn lost(&self) -> Loss {
        let mut seen = self.seen.clone();
        loop {
            let end = match *seen.borrow_and_update() {
                Seen::Until(end) => end,
                Seen::Gone => return Loss::Gone,
            };
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Loss::Expired,
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
