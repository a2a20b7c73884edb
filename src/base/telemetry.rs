//! Logging. This is the only file that uses `tracing`. No log line has credentials.

use std::fmt::Debug;
use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Level, Span};

use crate::base::unless_it_panics;
use crate::error::{Error, ErrorKind, Loss, shown};
use crate::holder::{Holder, Shown};

// All lines and spans have one target, which stays the same when code moves: programs filter by it.
macro_rules! error { ($($line:tt)*) => { report(|| tracing::error!(target: "nestlock", $($line)*)) } }
macro_rules! warn { ($($line:tt)*) => { report(|| tracing::warn!(target: "nestlock", $($line)*)) } }
macro_rules! info { ($($line:tt)*) => { report(|| tracing::info!(target: "nestlock", $($line)*)) } }
macro_rules! debug { ($($line:tt)*) => { report(|| tracing::debug!(target: "nestlock", $($line)*)) } }
macro_rules! debug_span { ($($span:tt)*) => { tracing::debug_span!(target: "nestlock", $($span)*) } }

/// Calls the program's subscriber, which may panic, for example if it prints to a closed pipe. The code that logs goes on.
/// Otherwise: 1. The connection is replaced, which is logged. 2. The task that connects unwinds, and no command is sent any more.
fn report(line: impl FnOnce()) {
    unless_it_panics(line);
}

/// Where in the program a request was made.
pub(crate) type Place = &'static Location<'static>;

/// The span in which a request waits. Make, clone and drop it while nothing is locked, since that runs the subscriber's code.
#[derive(Debug)]
pub(crate) struct Context(Span);

/// Returns the current span, or `None` if there is none or nobody records it.
pub(crate) fn context() -> Option<Context> {
    let span = Span::current();
    (!span.is_none()).then(|| Context(span))
}

/// The command connection was lost, and is being replaced.
pub(crate) fn connection_lost(server: &str, why: &str) {
    warn!(server, why, "connection to Redis lost, reconnecting");
}

/// A lost command connection was replaced.
pub(crate) fn reconnected(server: &str) {
    info!(server, "reconnected to Redis");
}

/// The sentinels report another master than the connected one, or that the connected one is about to be replaced.
pub(crate) fn master_moved(master: &str, server: &str, being_replaced: bool) {
    match being_replaced {
        true => {
            info!(master = %shown(master), server, "a failover has begun, disconnecting from the master")
        }
        false => info!(master = %shown(master), server, "another server is the master now"),
    }
}

/// A server does not report its uptime.
pub(crate) fn age_unknown(server: &str) {
    warn!(
        server,
        "the server does not report its uptime, so a restart in which it lost locks goes unnoticed; grant the right to INFO"
    );
}

/// A server may evict locks.
pub(crate) fn evicts(server: &str, policy: &str) {
    warn!(
        server,
        policy,
        "the server may evict locks when its memory is full, so that two clients hold one lock; set maxmemory-policy to \
         noeviction"
    );
}

/// A runtime has ended while locks were held on it.
pub(crate) fn runtime_ended(held: usize) {
    warn!(
        held,
        "the tokio runtime has ended while locks were held: those whose guards are not dropped now stand until their leases end"
    );
}

/// The runtime of a `Locks` does not run, and the backup thread renews its holds.
pub(crate) fn blocked(silent: Duration, due: usize, renewed: usize) {
    warn!(
        ?silent,
        due,
        renewed,
        "the tokio runtime does not run, and a thread renews the locks; move work that awaits nothing off its workers"
    );
}

/// The runtime of a `Locks` has not run for longer than the thread renews for it.
pub(crate) fn blocked_for_too_long(silent: Duration, held: usize) {
    error!(
        ?silent,
        held,
        "the tokio runtime has not run for longer than `blocked_for`: its locks are not renewed any more, and are lost; move work \
         that awaits nothing off its workers"
    );
}

/// There is no thread that renews while the runtime does not run.
pub(crate) fn no_backup_thread(error: &dyn std::error::Error) {
    warn!(%error, "no thread can be started: while the tokio runtime does not run, no lock is renewed");
}

/// The clocks of two masters differ.
pub(crate) fn clocks_apart(one: &str, other: &str, apart: Duration) {
    warn!(
        one,
        other,
        ?apart,
        "the clocks of two masters differ by more than a quarter of the lease; synchronize them"
    );
}

/// The number of masters is even.
pub(crate) fn even_masters(masters: usize) {
    warn!(masters, "an even number of masters tolerates no more failed masters than one master fewer");
}

/// A master that could not be reached when the program started is connected to.
pub(crate) fn arrived(server: &str) {
    info!(server, "connected to Redis, which could not be reached before");
}

/// A master can't be reached when the program starts.
pub(crate) fn absent(error: &Error) {
    warn!(%error, "a master can't be reached now; it is used once it can");
}

/// At a reconnect a server's certificate, or the client's, is not accepted, most often because it has expired.
pub(crate) fn distrusted(error: &Error) {
    warn!(%error, "a server is reachable, but a certificate is not accepted; it is used once that is corrected");
}

/// At a reconnect a master leads to the server of another one.
pub(crate) fn second_vote(error: &Error) {
    warn!(%error, "a master leads to the server of another one and has no vote; it is used once it leads elsewhere");
}

/// The provider of credentials has failed.
pub(crate) fn credentials_missing(error: &Error) {
    warn!(
        %error,
        "no new credentials; standing connections stay as they are, and the provider is asked again"
    );
}

/// At a reconnect a server refuses the user or the password.
pub(crate) fn reconnect_denied(error: &Error) {
    warn!(%error, "the server refuses the login of a new connection; it is tried again");
}

/// A server refuses new credentials on a standing connection.
pub(crate) fn login_refused(server: &str, code: &str) {
    warn!(
        server,
        code,
        "the server refuses new credentials; the connection stays logged in as before, and they are sent again"
    );
}

/// A standing connection has logged in with new credentials.
pub(crate) fn logged_in_again(server: &str) {
    debug!(server, "logged in to Redis with new credentials");
}

/// No node of a cluster answers the query for its topology.
pub(crate) fn cluster_unseen(error: &Error) {
    warn!(%error, "no node of the cluster reports its topology; the last known one is used, and the query is repeated");
}

/// A node of another cluster answers at an address of this cluster.
pub(crate) fn stranger(server: &str) {
    warn!(
        server,
        "a node of another cluster answers at an address of this cluster; no command is sent to it"
    );
}

/// A seed that could not be reached before is a node of another cluster.
pub(crate) fn seed_of_another(server: &str) {
    warn!(
        server,
        "a seed is a node of another cluster than the one that is used; give seeds of one cluster only"
    );
}

/// Most seeds are nodes of another cluster, and no node of the old one is left.
pub(crate) fn cluster_replaced(server: &str) {
    warn!(
        server,
        "no node of the cluster is left, and most seeds are nodes of another one, which is used now"
    );
}

/// The subscriber connection was lost, or could not be made.
pub(crate) fn subscriber_lost(server: &str, why: &str) {
    warn!(server, why, "subscriber connection to Redis lost, waiters poll until it is restored");
}

/// A subscription was refused: waiters for that lock poll.
pub(crate) fn subscription_refused(server: &str, channel: &str, why: &str) {
    warn!(server, channel, why, "subscription refused, waiters for this lock poll");
}

/// The user lacks a right that is needed to serve processes in order.
pub(crate) fn lines_denied(server: &str) {
    warn!(
        server,
        "this user may not use the lines of locks, so processes that wait do not take turns, and one may starve; grant the rights that \
         the guide to operations lists, or set fair(false)"
    );
}

const ACQUIRE: &str = "nestlock.acquire";

/// The span around everything that a request does.
pub(crate) struct AcquireSpan(Span);

impl AcquireSpan {
    /// Begins the span below the current one. `system` returns what keeps the locks, and is called only if somebody records the
    /// span.
    pub(crate) fn begin(
        name: &str,
        location: Place,
        system: impl FnOnce() -> Option<&'static str>,
    ) -> AcquireSpan {
        AcquireSpan(debug_span!(
            ACQUIRE,
            nestlock.lock = %shown(name),
            nestlock.field = Empty,
            nestlock.depth = Empty,
            db.system.name = system(),
            code.file.path = location.file(),
            code.line.number = location.line(),
            error.r#type = Empty,
        ))
    }

    pub(crate) fn around<F: Future>(self, work: F) -> impl Future<Output = F::Output> + use<F> {
        work.instrument(self.0)
    }
}

/// Returns whether somebody may record spans. Inlined, so that it costs no call.
#[inline]
pub(crate) fn has_spans() -> bool {
    LevelFilter::current() >= Level::DEBUG
}

/// Returns the span of the request that is being polled, if somebody records it.
fn acquire_span() -> Option<Span> {
    // If this span alone is turned off, the current one is the program's.
    Some(Span::current()).filter(|span| span.metadata().is_some_and(|metadata| metadata.name() == ACQUIRE))
}

/// The request that is being polled was granted.
#[cold]
pub(crate) fn granted(field: &str, depth: u32) {
    if let Some(span) = acquire_span() {
        span.record("nestlock.field", field).record("nestlock.depth", depth);
    }
}

/// The request that is being polled ends with an error.
pub(crate) fn not_granted(kind: ErrorKind) {
    if let Some(span) = acquire_span() {
        span.record("error.type", tracing::field::debug(kind));
    }
}

/// The span from the grant of a hold until its guard is dropped or released.
#[derive(Debug)]
pub(crate) struct HeldSpan(Span);

impl HeldSpan {
    /// Begins the span below the current one. Returns `None` if nobody records it.
    pub(crate) fn begin(
        name: &str,
        field: &str,
        system: impl FnOnce() -> Option<&'static str>,
    ) -> Option<HeldSpan> {
        let span = debug_span!(
            "nestlock.held",
            nestlock.lock = %shown(name),
            nestlock.field = field,
            nestlock.loss = Empty,
            db.system.name = system(),
        );
        (!span.is_disabled()).then(|| HeldSpan(span))
    }

    /// Enters the span until the returned value is dropped.
    pub(crate) fn enter(&self) -> impl Sized + use<'_> {
        self.0.enter()
    }

    /// The hold was lost.
    pub(crate) fn lost(&self, loss: Loss) {
        self.0.record("nestlock.loss", tracing::field::debug(loss));
    }
}

/// A lock was acquired that another owner had held before.
pub(crate) fn acquired_after_waiting(name: &str, field: &str, waited: Duration) {
    debug!(name = %shown(name), field, ?waited, "lock acquired after waiting");
}

/// A request has waited for long. `by`: who has the lock, whether that is an owner of this process, and for how long it has had the
/// lock; `None` if unknown. `waiting`: how many requests of this process wait.
pub(crate) fn still_waiting(
    name: &str,
    (waited, location): (Duration, Place),
    by: Option<(&Holder, bool, Duration)>,
    waiting: usize,
    context: Option<&Context>,
) {
    let (holder, held, advice) = match by {
        Some((holder, true, held)) => (
            format!("another owner of this process, {holder}"),
            format!("for {}", Shown(held)),
            "an owner of this process has it; if it awaits the task that makes this request, both wait for ever: run that task's work in the \
             scope of a child of that owner, `Owner::current().child().scope(…)`; if both are guards in one `join!`, use `run` there",
        ),
        Some((holder, false, held)) => (
            holder.to_string(),
            format!("for {} or longer", Shown(held)),
            "another process has it, and works or hangs; `max_hold` there limits a holder, `within` here limits the wait",
        ),
        None => (
            "unknown".to_owned(),
            "unknown".to_owned(),
            "the holder is not known here; `Mutex::holder` asks, and its error says why it is unknown",
        ),
    };
    let warn = || {
        warn!(
            name = %shown(name),
            waited = %Shown(waited),
            at = %location,
            %holder,
            %held,
            waiting,
            "a request waits for a lock: {advice}"
        );
    };
    match context {
        Some(Context(span)) => span.in_scope(warn),
        None => warn(),
    }
}

/// The server did not answer, or refused. The request is retried.
pub(crate) fn attempt_failed(name: &str, error: &Error) {
    debug!(name = %shown(name), %error, "attempt failed, retrying");
}

/// A hold ended without a release.
pub(crate) fn lost(name: &str, field: &str, loss: Loss) {
    warn!(name = %shown(name), field, %loss, "lock lost");
}

/// A guard was released before one that was acquired after it.
pub(crate) fn out_of_order(name: &str, field: &str) {
    warn!(
        name = %shown(name),
        field,
        "guards released out of nesting order; branches of one task that take guards by `lock` look like one owner; use `run`, or a `scope` for \
         each branch"
    );
}

/// A request waits for an owner in whose scope it runs itself.
pub(crate) fn self_wait(name: &str, asks: &dyn Debug, holds: &dyn Debug) {
    warn!(
        name = %shown(name),
        ?asks,
        ?holds,
        "a request waits for an owner in whose scope it runs, which is likely a deadlock"
    );
}

/// The effect of a command with unknown outcome was corrected on the server.
pub(crate) fn settled(name: &str, field: &str) {
    debug!(name = %shown(name), field, "hold settled with the server");
}

/// A hold was renewed after failed attempts.
pub(crate) fn renewed_late(name: &str, field: &str, failures: u32) {
    warn!(name = %shown(name), field, failures, "lease renewed late");
}

/// A command in the background failed, and is retried.
pub(crate) fn background_failed(name: &str, error: &Error) {
    debug!(name = %shown(name), %error, "a command in the background failed, retrying");
}

/// The work of a `run` succeeded, but its hold was gone or its release could not be confirmed.
pub(crate) fn release_unconfirmed(name: &str, error: &Error) {
    warn!(name = %shown(name), error = %error.unnamed(), "work done, but its lock was gone or its release could not be confirmed");
}

#[cfg(test)]
pub(crate) mod testing;
