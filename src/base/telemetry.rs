//! What the crate logs. The only file that uses `tracing`. No log line has credentials.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tracing::Instrument;

use crate::error::{Error, Loss, shown};

/// The command connection was lost, and is replaced.
pub(crate) fn connection_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "connection to Redis lost, reconnecting");
}

/// A lost command connection was replaced.
pub(crate) fn reconnected(server: &str) {
    tracing::info!(server, "reconnected to Redis");
}

/// The sentinels report another master than the one that is connected to, or that this one is about to be replaced.
pub(crate) fn master_moved(master: &str, server: &str, being_replaced: bool) {
    match being_replaced {
        true => {
            tracing::info!(master = %shown(master), server, "a failover has begun, disconnecting from the master")
        }
        false => tracing::info!(master = %shown(master), server, "another server is the master now"),
    }
}

/// A server does not report its uptime.
pub(crate) fn age_unknown(server: &str) {
    tracing::warn!(
        server,
        "the server does not report its uptime, so a restart in which it lost locks goes unnoticed; grant the right to INFO"
    );
}

/// One of several masters may evict locks.
pub(crate) fn evicts(server: &str, policy: &str) {
    tracing::warn!(
        server,
        policy,
        "the server may evict locks when its memory is full, so that two clients hold one lock; set maxmemory-policy to \
         noeviction"
    );
}

/// The clocks of two masters differ.
pub(crate) fn clocks_apart(one: &str, other: &str, apart: Duration) {
    tracing::warn!(
        one,
        other,
        ?apart,
        "the clocks of two masters differ by more than a quarter of the lease; synchronize them"
    );
}

/// An even number of masters.
pub(crate) fn even_masters(masters: usize) {
    tracing::warn!(
        masters,
        "an even number of masters tolerates no more failed masters than one master fewer"
    );
}

/// A master can't be reached at the start.
pub(crate) fn absent(error: &Error) {
    tracing::warn!(%error, "a master can't be reached now; it is used once it can");
}

/// A server's certificate is not accepted at a reconnect: expired, most often.
pub(crate) fn distrusted(error: &Error) {
    tracing::warn!(%error, "a server is reachable, but its certificate is not accepted; it is used once the certificate is corrected");
}

/// No node of a cluster answers the query for its topology.
pub(crate) fn cluster_unseen(error: &Error) {
    tracing::warn!(%error, "no node of the cluster reports its topology; the last known one is used, and the query is repeated");
}

/// A node of another cluster answers at an address of this cluster.
pub(crate) fn stranger(server: &str) {
    tracing::warn!(
        server,
        "a node of another cluster answers at an address of this cluster; no command is sent to it"
    );
}

/// A seed that could not be reached before is a node of another cluster.
pub(crate) fn seed_of_another(server: &str) {
    tracing::warn!(
        server,
        "a seed is a node of another cluster than the one that is used; give seeds of one cluster only"
    );
}

/// Most seeds are nodes of another cluster, and no node of the old one is left.
pub(crate) fn cluster_replaced(server: &str) {
    tracing::warn!(
        server,
        "no node of the cluster is left, and most seeds are nodes of another one, which is used now"
    );
}

/// The subscriber connection was lost, or could not be made.
pub(crate) fn subscriber_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "subscriber connection to Redis lost, waiters poll until it is restored");
}

/// A subscription was refused: waiters for that lock poll.
pub(crate) fn subscription_refused(server: &str, channel: &str, why: &str) {
    tracing::warn!(server, channel, why, "subscription refused, waiters for this lock poll");
}

/// A span around all that a request does.
pub(crate) fn acquiring<F: Future>(name: &str, work: F) -> impl Future<Output = F::Output> + use<F> {
    work.instrument(tracing::debug_span!("lock", name = %shown(name)))
}

/// A lock was acquired, and another owner held it before.
pub(crate) fn acquired_after_waiting(name: &str, field: &str, waited: Duration) {
    tracing::debug!(name = %shown(name), field, ?waited, "lock acquired after waiting");
}

/// The server did not answer, or refused. The request is retried.
pub(crate) fn attempt_failed(name: &str, error: &Error) {
    tracing::debug!(name = %shown(name), %error, "attempt failed, retrying");
}

/// A hold ended without a release.
pub(crate) fn lost(name: &str, field: &str, loss: Loss) {
    tracing::warn!(name = %shown(name), field, %loss, "lock lost");
}

/// A guard was released before one that was acquired after it.
pub(crate) fn out_of_order(name: &str, field: &str) {
    let name = shown(name);
    tracing::warn!(
        %name,
        field,
        "lock `{name}`: guards released out of nesting order; branches of one task that take bare guards look like one \
         owner, use `run` or `scope` for each branch"
    );
}

/// A request waits for an owner in whose scope it runs.
pub(crate) fn self_wait(name: &str, asks: &dyn Debug, holds: &dyn Debug) {
    let name = shown(name);
    tracing::warn!(
        %name,
        ?asks,
        ?holds,
        "lock `{name}`: a request waits for an owner in whose scope it runs, which is likely a deadlock"
    );
}

/// What a command of unknown outcome left on the server was corrected.
pub(crate) fn settled(name: &str, field: &str) {
    tracing::debug!(name = %shown(name), field, "hold settled with the server");
}

/// A hold was renewed after failed attempts.
pub(crate) fn renewed_late(name: &str, field: &str, failures: u32) {
    tracing::warn!(name = %shown(name), field, failures, "lease renewed late");
}

/// A command in the background failed, and is retried.
pub(crate) fn background_failed(name: &str, error: &Error) {
    tracing::debug!(name = %shown(name), %error, "a command in the background failed, retrying");
}

/// The work of a `run` succeeded, but its hold was gone, or its release could not be confirmed.
pub(crate) fn release_unconfirmed(name: &str, error: &Error) {
    tracing::warn!(name = %shown(name), %error, "work done, but its lock was gone or its release could not be confirmed");
}
