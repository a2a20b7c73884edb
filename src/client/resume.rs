//! Turns a claim into a guard: this process continues the hold of another one.

use std::sync::Arc;

use tokio::task::yield_now;

use crate::base::{Outcome, telemetry};
use crate::client::claim::Claim;
use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::Owner;
use crate::session::{Handle, Sent};
use crate::table::{Grantee, NewLevel};
use crate::wire::Reply;
use crate::wire::keys::{self, Keys};

/// Moves the claimed hold to a field of this process.
pub(super) async fn resume(handle: Handle, keys: Arc<Keys>, claim: &Claim) -> Result<Guard> {
    check(&handle, &keys, claim).map_err(|error| error.on(&keys.name))?;
    // Read in the first poll, as that of a request.
    let owner = Owner::current();
    handle.opening(None).await.map_err(|error| error.on(&keys.name))?;
    let lease = handle.config.lease;
    let pending = handle.visit(&keys, |entry, at| {
        entry.begin_resume(handle.numbers.next(), claim.hold_id().into(), &handle.uuid, lease, at.now)
    });
    // The undo of the command is armed before it is sent.
    let mut sent = Sent::new(&handle, &pending);
    // The stragglers are dropped last, after the entry was updated.
    let (verdict, _stragglers) = handle.ask(&pending).await;
    // Like a request for the lock, this is never ready in its first poll: otherwise branches of a task that begin in one poll
    // would look nested.
    yield_now().await;
    sent.is_armed = false;
    let (answer, error) = match &verdict.result {
        // If the `Locks` was closed in the meantime, nobody will renew the hold, so it is undone.
        Ok(Reply::Done) => (Err(Outcome::Unknown), handle.check_open().err()),
        Ok(reply) => (Ok(reply), Some(Error::claim_is_over())),
        Err(failure) => (Err(failure.outcome), Some(failure.error.clone())),
    };
    if let Some(error) = error {
        sent.conclude(answer, verdict.spread);
        return Err(error.on(&keys.name));
    }
    let granted = handle.visit(&keys, |entry, at| {
        let new = NewLevel::watched(handle.numbers.next(), lease);
        entry.granted(&Grantee::Claimant(&owner), &pending, &new, verdict.spread, at)
    });
    let Ok((granted, _drop_unlocked)) = granted else {
        let message = "resumed, but the answer was read too late, so the hold was ended; take the lock again";
        return Err(Error::new(ErrorKind::Unavailable, message).on(&keys.name));
    };
    let mut guard = Guard::new(handle.clone(), granted);
    if telemetry::has_spans() {
        guard.begin_span();
    }
    Ok(guard)
}

fn check(handle: &Handle, keys: &Keys, claim: &Claim) -> Result<()> {
    keys::check(&keys.name, &handle.config.prefix)?;
    if claim.name() != &*keys.name {
        let message = "the claim is for another lock; resume it with the mutex of `claim.name()`";
        return Err(Error::new(ErrorKind::Misuse, message));
    }
    handle.check_call()
}
