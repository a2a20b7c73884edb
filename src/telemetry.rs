//! What the crate tells by `tracing`: the only file that names it.

/// The command connection was lost; the keeper connects anew.
pub(crate) fn connection_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "connection to Redis lost, connecting anew");
}

/// A new command connection stands in place of one that was lost.
pub(crate) fn reconnected(server: &str) {
    tracing::info!(server, "connected to Redis again");
}

/// The subscriber connection was lost, or could not be made.
pub(crate) fn subscriber_lost(server: &str, why: &str) {
    tracing::warn!(server, why, "subscriber connection to Redis lost, waiters poll until it is back");
}

/// A subscription was refused: waiters for that lock poll.
pub(crate) fn subscription_refused(server: &str, channel: &str, why: &str) {
    tracing::warn!(server, channel, why, "subscription refused, waiters for this lock poll");
}
