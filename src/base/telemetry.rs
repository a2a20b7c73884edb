//! What the crate tells by `tracing`: the only file that names it. Silent unless somebody subscribes; no credentials.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tracing::Instrument;

use crate::error::{Error, Loss, shown};

/// The command connection was lost; the keeper connects anew.
pub(crate) fn connection_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "connection to Redis lost, connecting anew");
}

/// A new command connection stands in place of one that was lost.
pub(crate) fn reconnected(server: &str) {
    tracing::info!(server, "connected to Redis again");
}

/// The sentinels tell of another master than the one that is connected to, or that this one is about to be replaced.
pub(crate) fn master_moved(master: &str, server: &str, leaves: bool) {
    match leaves {
        true => tracing::info!(master = %shown(master), server, "a failover has begun, leaving the master"),
        false => tracing::info!(master = %shown(master), server, "another server is the master now"),
    }
}

/// A server does not tell its age.
pub(crate) fn age_unknown(server: &str) {
    tracing::warn!(
        server,
        "the server does not tell when it was started, so that it is trusted after a restart in which it may have lost \
         locks; grant the right to INFO"
    );
}

/// One of several masters may remove a lock to make room.
pub(crate) fn evicts(server: &str, policy: &str) {
    tracing::warn!(
        server,
        policy,
        "the server may remove locks when its memory is full, so that two may hold one; set maxmemory-policy to noeviction"
    );
}

/// Two masters' clocks do not agree.
pub(crate) fn clocks_apart(one: &str, other: &str, apart: Duration) {
    tracing::warn!(
        one,
        other,
        ?apart,
        "the clocks of two masters differ by more than a quarter of the lease; set them right"
    );
}

/// An even number of masters.
pub(crate) fn even_masters(masters: usize) {
    tracing::warn!(
        masters,
        "an even number of masters tolerates the loss of no more of them than one fewer would"
    );
}

/// A master is not there from the start.
pub(crate) fn absent(error: &Error) {
    tracing::warn!(%error, "a master can't be reached now; it joins when it comes");
}

/// A server's certificate is not accepted when it is connected to anew: expired, most often.
pub(crate) fn distrusted(error: &Error) {
    tracing::warn!(%error, "a server is away for its certificate alone, and joins when that is put right");
}

/// Nobody tells who serves what in a cluster.
pub(crate) fn cluster_unseen(error: &Error) {
    tracing::warn!(%error, "no master of the cluster tells who serves what; what is known is used, and they are asked again");
}

/// A node of another cluster answers where one of this cluster was.
pub(crate) fn stranger(server: &str) {
    tracing::warn!(
        server,
        "a master of another cluster answers at an address of this cluster, nothing is sent to it"
    );
}

/// A seed that was away before is a node of another cluster.
pub(crate) fn seed_of_another(server: &str) {
    tracing::warn!(
        server,
        "a seed is a master of another cluster than the one that is used; give seeds of one cluster only"
    );
}

/// Most seeds are nodes of another cluster, and none of the old one is left.
pub(crate) fn cluster_replaced(server: &str) {
    tracing::warn!(
        server,
        "no master of the cluster is left, and most seeds are masters of another one, which is used now"
    );
}

/// The subscriber connection was lost, or could not be made.
pub(crate) fn subscriber_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "subscriber connection to Redis lost, waiters poll until it is back");
}

/// A subscription was refused: waiters for that lock poll.
pub(crate) fn subscription_refused(server: &str, channel: &str, why: &str) {
    tracing::warn!(server, channel, why, "subscription refused, waiters for this lock poll");
}

/// A span around everything that a request does.
pub(crate) fn acquiring<F: Future>(name: &str, work: F) -> impl Future<Output = F::Output> + use<F> {
    work.instrument(tracing::debug_span!("lock", name = %shown(name)))
}

/// A lock was acquired, and somebody else had it before.
pub(crate) fn acquired_after_waiting(name: &str, field: &str, waited: Duration) {
    tracing::debug!(name = %shown(name), field, ?waited, "lock acquired after waiting");
}

/// The server did not answer, or refused; the request goes on.
pub(crate) fn attempt_failed(name: &str, error: &Error) {
    tracing::debug!(name = %shown(name), %error, "no answer to an attempt, trying again");
}

/// A hold ended without a release.
pub(crate) fn lost(name: &str, field: &str, loss: Loss) {
    tracing::warn!(name = %shown(name), field, %loss, "lock lost");
}

/// A guard went before one that was taken after it.
pub(crate) fn out_of_order(name: &str, field: &str) {
    let name = shown(name);
    tracing::warn!(
        %name,
        field,
        "lock `{name}`: guards released out of nesting order; branches of one task that take bare guards look like one \
         owner, use `run` or `scope` for each branch"
    );
}

/// A request waits for an owner that it runs in itself.
pub(crate) fn self_wait(name: &str, asks: &dyn Debug, holds: &dyn Debug) {
    let name = shown(name);
    tracing::warn!(
        %name,
        ?asks,
        ?holds,
        "lock `{name}`: a request waits for an owner in whose scope it runs, which is likely to wait for it in turn"
    );
}

/// What a command of unknown outcome left on the server was put right.
pub(crate) fn settled(name: &str, field: &str) {
    tracing::debug!(name = %shown(name), field, "hold settled with the server");
}

/// A hold was renewed at last.
pub(crate) fn renewed_late(name: &str, field: &str, failures: u32) {
    tracing::warn!(name = %shown(name), field, failures, "lease renewed late");
}

/// A command in the background failed; it is tried again.
pub(crate) fn background_failed(name: &str, error: &Error) {
    tracing::debug!(name = %shown(name), %error, "no answer to a command in the background, trying again");
}

/// The work of a `run` ended well, and its hold was no longer there, or could not be confirmed as released.
pub(crate) fn release_unconfirmed(name: &str, error: &Error) {
    tracing::warn!(name = %shown(name), %error, "work done, and its lock could not be released as held");
}
