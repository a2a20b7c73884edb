//! The child's life: from a hold to its release.

use std::future::ready;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nestlock::ErrorKind;
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

use crate::duration::shown;
use crate::exec::ended_by;
use crate::exec::hold::{End, Hold};
use crate::exec::nest::{Gate, Nest, Outer, mark};
use crate::exec::signals::{Signals, ends, name};
use crate::exec::start::{JSON, START, TEXT};
use crate::exec::targets::{Reach, Targets};
use crate::exec::terminal::Terminal;
use crate::exec::watchdog::{Watchdog, this_program};
use crate::options::ExecOptions;
use crate::status::{Failure, warn};

/// How often to look at the end of the lease, which moves with each renewal. If the lease is short, it is looked at more often.
const LOOK: Duration = Duration::from_secs(1);

/// How long before the end of the lease the child is killed: the kernel needs a moment to end it, and a busy machine needs one to run the
/// process that kills. If a tenth of the lease is less, it is that.
const MARGIN: Duration = Duration::from_millis(500);

/// How often to check whether what the child has left behind has ended.
const LEFT: Duration = Duration::from_millis(20);

/// How long a signal that has already ended the watchdog may take to arrive.
const SIGNAL: Duration = Duration::from_millis(50);

/// The command to run.
pub(super) struct Work<'a> {
    pub(super) options: &'a ExecOptions,
    pub(super) key_prefix: &'a str,
    pub(super) kill_after: Duration,
    pub(super) lease: Duration,
    pub(super) json: bool,
}

/// A child that runs under a hold.
struct Running {
    child: Child,
    targets: Targets,
    watchdog: Option<Watchdog>,
    /// The gate of a hold of this command.
    gate: Option<Gate>,
    terminal: Option<Terminal>,
    kill_after: Duration,
    json: bool,
    /// The child's status once it has ended.
    status: Option<ExitStatus>,
    /// How the hold ended.
    lost: Option<End>,
    /// How long before the end of the lease the child is killed.
    margin: Duration,
    /// How often to look at the end of the lease.
    look_every: Duration,
    /// The files that another watchdog has to keep open too.
    kept: Vec<OwnedFd>,
    /// Whether TERM was sent, and whether that was before a loss.
    signalled: bool,
    signalled_early: bool,
    /// When to send KILL, if anything is left by then.
    kill_at: Option<Instant>,
}

/// Runs the command, and releases the hold.
pub(super) async fn run(
    work: Work<'_>,
    nest: Nest,
    hold: Hold,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let json = work.json;
    let mut running = match begin(&work, &nest, &hold, signals).await {
        Ok(Ok(running)) => running,
        Ok(Err(signal)) => {
            let _ = hold.release().await;
            warn(json, &format!("ended by {} before the command was started", name(signal)));
            return Ok(ended_by(signal));
        }
        Err(error) => {
            let _ = hold.release().await;
            return Err(Failure::system("the command can't be started", &error));
        }
    };
    running.supervise(&hold, signals).await;
    // The watchdog acts first if this command was suspended for a while, although the hold may still be good.
    if let Some(watchdog) = running.watchdog.take()
        && watchdog.dismiss().await
    {
        running.signalled_early = true;
    }
    let Some(status) = running.status else { return Err(Failure::lost("the command did not end")) };
    let why = match running.lost.take() {
        Some(end) => {
            // A field that may be left on the servers is not a hold any more.
            drop(hold);
            Some(end.why)
        }
        None => match hold.release().await {
            Ok(()) => None,
            Err(error) if error.kind() == ErrorKind::Lost => {
                Some(error.loss().map_or_else(|| error.to_string(), |loss| loss.to_string()))
            }
            Err(error) => {
                warn(json, &format!("{error}; others get the lock when its lease is over"));
                None
            }
        },
    };
    let why = why.or_else(|| running.signalled_early.then(|| "its lease was about to end".to_owned()));
    match why {
        None => Ok(code(status)),
        Some(why) => {
            let end = match status.signal() {
                Some(signal) => format!("was ended by signal {signal}"),
                None => format!("ended with status {}", code(status)),
            };
            let names = work.options.names();
            let names: Vec<_> = names.iter().map(|name| format!("`{}`", name.escape_debug())).collect();
            let which = if names.len() > 1 { "one of the locks" } else { "lock" };
            Err(Failure::lost(format!(
                "{which} {} was lost while the command ran: {why}. The command {end}; look at what it has done, and run it again",
                names.join(", ")
            )))
        }
    }
}

fn before(time: Instant, span: Duration) -> Instant {
    time.checked_sub(span).unwrap_or(time)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
    u8::try_from(code & 0xff).unwrap_or(255)
}

/// Starts the watchdog, and waits until the terminal can't stop it.
async fn guarded(
    kept: &[OwnedFd],
    by: Instant,
    signals: &mut Signals,
) -> std::io::Result<Result<Watchdog, Signal>> {
    let mut watchdog = Watchdog::start(kept)?;
    let ready = tokio::select! {
        biased;
        signal = signals.end() => return Ok(Err(signal)),
        ready = watchdog.ready(by) => ready,
    };
    // A `^C` that has ended the watchdog arrives here too, in its own time.
    if ready.is_err()
        && let Ok(signal) = timeout(SIGNAL, signals.end()).await
    {
        return Ok(Err(signal));
    }
    ready.map(|()| Ok(watchdog))
}

/// Starts the watchdog and the child, which runs once the watchdog knows it. Returns a signal that arrives before that, since nobody
/// else can receive it.
async fn begin(
    work: &Work<'_>,
    nest: &Nest,
    hold: &Hold,
    signals: &mut Signals,
) -> std::io::Result<Result<Running, Signal>> {
    let mark = mark();
    let (mut kill_after, mut lease) = (work.kill_after, work.options.fixed_lease.unwrap_or(work.lease));
    let (mut outers, mut kept, mut gate) = (Vec::new(), Vec::new(), None);
    for entered in &hold.entered {
        kill_after = kill_after.min(entered.kill_after());
        lease = lease.min(entered.lease());
        kept.push(entered.gate().again()?);
        outers.push(entered.outer().inner(&mark));
    }
    if let Some(own) = &hold.own {
        gate = Gate::new();
        outers.extend(own.holds().map(|(name, field, token)| {
            let key = format!("{}{name}", work.key_prefix);
            Outer::new(&key, field, token, gate.as_ref(), (lease, kill_after), &mark)
        }));
    }
    // In the order of the command line.
    let names = work.options.names();
    outers.sort_by_key(|outer| {
        let name = outer.key().strip_prefix(work.key_prefix);
        names.iter().position(|one| Some(*one) == name)
    });
    let margin = MARGIN.min(lease / 10);
    let look_every = LOOK.min(lease / 6).max(LEFT);
    let mut watchdog = match guarded(&kept, before(hold.valid_until(), margin), signals).await? {
        Ok(watchdog) => watchdog,
        Err(signal) => return Ok(Err(signal)),
    };
    let terminal = Terminal::open();
    let mut command = Command::new(this_program()?);
    command.arg0("nestlock").arg(START).arg(std::process::id().to_string());
    command.arg(if work.json { JSON } else { TEXT }).args(work.options.words());
    for (name, value) in nest.env(&outers, &names) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if !work.options.keep_password {
        command.env_remove("NESTLOCK_PASSWORD");
    }
    if terminal.is_none() {
        command.process_group(0);
    }
    let mut child = command.kill_on_drop(true).spawn()?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    let pid = pid.ok_or_else(|| std::io::Error::other("it has no process id"))?;
    let targets = Targets::new(pid, terminal.is_none(), mark);
    // The child stops itself at once, unless another process has killed it.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
    if let Err(error) = watchdog.guard(&targets, before(hold.valid_until(), margin)).await {
        let _ = child.kill().await;
        return Err(error);
    }
    let _ = kill_process(pid, Signal::CONT);
    Ok(Ok(Running {
        child,
        targets,
        watchdog: Some(watchdog),
        gate,
        terminal,
        kill_after,
        json: work.json,
        status: None,
        lost: None,
        signalled: false,
        signalled_early: false,
        margin,
        look_every,
        kept,
        kill_at: None,
    }))
}

impl Running {
    /// Runs until the child has ended, and with it what must not run without the lock.
    async fn supervise(&mut self, hold: &Hold, signals: &mut Signals) {
        let lost = hold.lost();
        tokio::pin!(lost);
        loop {
            if self.lost.is_none() {
                // Checked first: to `look`, a hold that was taken away looks like one whose time is over.
                tokio::select! {
                    biased;
                    end = &mut lost => self.lose(end),
                    () = ready(()) => {}
                }
            }
            self.look(before(hold.valid_until(), self.margin)).await;
            if self.status.is_some() && !self.is_left() {
                return;
            }
            let next = self.next_look(before(hold.valid_until(), self.margin));
            tokio::select! {
                // All branches are cancel safe: one that is not ready is polled again in the next turn.
                status = self.child.wait(), if self.status.is_none() => {
                    // The process id was still that of this command's child. A status that can't be read counts as a failure.
                    self.status = Some(status.unwrap_or_else(|_| ExitStatus::from_raw(255 << 8)));
                }
                end = &mut lost, if self.lost.is_none() => self.lose(end),
                signal = signals.next() => self.pass_on(signal),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Does what is due. `until` is when the child has to be killed if the lease is not renewed.
    async fn look(&mut self, until: Instant) {
        let now = Instant::now();
        if self.lost.is_none() && !self.signalled && self.status.is_none() && until <= now + self.kill_after {
            // Sent before the message, which waits if standard error is full and nobody reads it.
            self.end_all(Signal::TERM);
            self.signalled_early = true;
            let left = until.saturating_duration_since(now);
            if !left.is_zero() {
                let left = shown(left);
                warn(
                    self.json,
                    &format!("the lease is not renewed; the command gets TERM, and KILL in {left}"),
                );
            }
        }
        if self.lost.is_none() && self.status.is_none() && until <= now {
            self.end_all(Signal::KILL);
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.end_all(Signal::KILL);
            self.kill_at = Some(now + LEFT);
        }
        let end = if self.lost.is_some() { self.kill_at.unwrap_or(now) } else { until };
        self.tell_watchdog(end).await;
    }

    /// Tells the watchdog what to guard, and starts another one if the first was killed.
    async fn tell_watchdog(&mut self, end: Instant) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if watchdog.guard(&self.targets, end).await.is_ok() || !watchdog.has_ended() {
            return;
        }
        // Not awaited until it is ready: in the meantime this command could not do what is due.
        if let Ok(mut another) = Watchdog::start(&self.kept)
            && another.guard(&self.targets, end).await.is_ok()
        {
            self.watchdog = Some(another);
        }
    }

    /// Returns when there may be something to do even if nothing happens.
    fn next_look(&self, until: Instant) -> Instant {
        let now = Instant::now();
        if self.status.is_some() {
            return now + LEFT;
        }
        let mut next = now + self.look_every;
        if self.lost.is_none() && !self.signalled {
            next = next.min(before(until, self.kill_after).max(now));
        }
        if self.lost.is_none() {
            next = next.min(until.max(now + LEFT));
        }
        self.kill_at.map_or(next, |at| next.min(at))
    }

    /// Handles the end of the hold. Everything that the child has started ends with it.
    fn lose(&mut self, end: End) {
        let is_due = end.is_due;
        self.lost = Some(end);
        if is_due {
            self.end_all(Signal::KILL);
            self.kill_at = Some(Instant::now() + LEFT);
        } else {
            self.end_all(Signal::TERM);
            self.kill_at = Some(Instant::now() + self.kill_after);
        }
    }

    fn end_all(&mut self, signal: Signal) {
        self.signalled = true;
        let reach = if self.lost.is_some() || self.status.is_none() { Reach::All } else { Reach::Group };
        self.targets.signal(signal, self.status.is_none(), reach);
    }

    fn pass_on(&mut self, signal: Signal) {
        let by_terminal = matches!(signal, Signal::INT | Signal::QUIT);
        if by_terminal && self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            return;
        }
        if self.status.is_none() {
            if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
                let _ = kill_process(pid, signal);
            }
        } else if ends(signal) {
            // The remaining processes are commands that have entered this one's hold.
            self.targets.signal(signal, false, Reach::All);
        }
    }

    /// Returns whether a child that has ended has left something behind that must not run without the lock.
    fn is_left(&mut self) -> bool {
        let reach = if self.lost.is_some() { Reach::All } else { Reach::Group };
        if self.targets.are_left(reach) {
            // The child's process group ends with it.
            if self.kill_at.is_none() {
                self.end_all(Signal::TERM);
                self.kill_at = Some(Instant::now() + self.kill_after);
            }
            return true;
        }
        // The child's process id may soon be that of another group.
        self.targets.forget_child();
        self.kill_at = None;
        if self.lost.is_some() {
            return false;
        }
        self.gate.as_ref().is_some_and(|gate| !gate.close())
    }
}
