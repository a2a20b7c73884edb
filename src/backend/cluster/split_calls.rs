//! Runs fenced calls while their slot migrates from node to node. The lock and its counter are two keys, and a node that lacks one
//! of them refuses a script over both (`TRYAGAIN`). A free lock has no key at all: both nodes refuse it during the whole migration.
//! So the call is split into calls with one key, which run one after the other, each where its key is. The same goes for a lock and
//! its line, which is left alone in the meantime.

use std::sync::Arc;

use crate::backend::cluster::limit::Limit;
use crate::backend::cluster::nodes::Nodes;
use crate::backend::connection::redis_error;
use crate::base::{Failure, Lease};
use crate::error::{Error, ErrorKind};
use crate::wire::{Action, Call, CallResult, Count, Fence, Reply};

/// Returns whether the call failed because its two keys are on different nodes, and can be split.
pub(super) fn needs_split(call: &Call, failure: &Failure) -> bool {
    let is_split = redis_error::cause(&failure.error).is_some_and(|error| error.code() == Some("TRYAGAIN"));
    is_split && (call.has_line() || call.alone().is_some())
}

impl Nodes {
    /// Runs a call for its lock and its counter separately, without a line.
    pub(super) async fn answer_apart(&self, call: &Call, limit: Limit) -> CallResult {
        let Some((alone, fence)) = call.alone().filter(|_| !call.has_line()) else {
            return self.answer_without_line(call, limit).await;
        };
        match alone.action {
            Action::Acquire { .. } => self.acquire_apart(&alone, fence, limit).await,
            _ => self.raise_apart(&alone, fence, limit).await,
        }
    }

    /// Runs a call without its line. A field that was in the line is reported as still there. Otherwise its request would leave,
    /// but could not remove the field from the line, which can't be used now. The process is notified of releases on the lock's
    /// channel, and enters again if it has to.
    async fn answer_without_line(&self, call: &Call, limit: Limit) -> CallResult {
        let again = call.line.is_some_and(|line| line.again);
        let alone = Call { line: None, ..call.clone() };
        match self.run_one_key(&alone, limit).await? {
            Reply::Busy(left, Some(holder)) if again => Ok(Reply::InLine(left, holder, 1)),
            reply => Ok(reply),
        }
    }

    /// Acquires in three steps: 1. The lock is acquired. 2. Its token is made. 3. The hold is confirmed: it existed all the time, since a
    /// field that is gone never comes back. So each earlier holder's token was made before step 2 and is less, and each later holder's is
    /// made after step 3 and is greater. Without step 3, the lock could be released by force after step 1 and the next holder's token
    /// made before step 2 runs, so that the earlier holder would have the greater token.
    async fn acquire_apart(&self, alone: &Call, fence: Arc<Fence>, limit: Limit) -> CallResult {
        let count = |ask| about_counter(alone, fence.clone(), ask);
        // The counter is checked first: a grant without a token would have to be undone.
        if let wrong @ Reply::NotACounter(_) = self.run_one_key(&count(Count::Look), limit).await? {
            return Ok(wrong);
        }
        let granted = self.run_one_key(alone, limit).await?;
        if granted != Reply::Done {
            return Ok(granted);
        }
        let token = self.run_one_key(&count(Count::Next), limit).await.map_err(of_unknown_outcome)?;
        match (token, self.run_one_key(&confirmation(alone), limit).await.map_err(of_unknown_outcome)?) {
            (token @ Reply::Token(_), Reply::Done | Reply::Longer(..)) => Ok(token),
            (wrong, _) => {
                let message = match wrong {
                    Reply::NotACounter(wrong) => format!("the key of the fencing counter holds {wrong}"),
                    _ => "the lock was lost before its token was made; try again".to_owned(),
                };
                Err(Failure::unknown(Error::new(ErrorKind::Unavailable, message)))
            }
        }
    }

    /// Raises the counter before it checks the hold, like the script over both keys: a token confirmed in this order may be handed out.
    /// Half of the time is left for the hold, which must not be lost because of the counter.
    async fn raise_apart(&self, alone: &Call, fence: Arc<Fence>, limit: Limit) -> CallResult {
        let raised = self.run_one_key(&about_counter(alone, fence, Count::Raise), limit.half()).await;
        let reply = self.run_one_key(alone, limit).await?;
        Ok(match (reply, raised) {
            (Reply::Done | Reply::Longer(..), Ok(Reply::NotACounter(wrong))) => Reply::Deferred(wrong),
            (Reply::Done | Reply::Longer(..), Err(failure)) => Reply::Deferred(failure.error.to_string()),
            (reply, _) => reply,
        })
    }

    /// Runs a part of a call, but not after the limit: if this future is polled that late, its hold may have been given up and ended.
    async fn run_one_key(&self, call: &Call, limit: Limit) -> CallResult {
        if limit.is_over() {
            let message =
                "the slot of the lock is migrating, and no time is left to query both nodes; try again later";
            return Err(Failure::not_run(Error::new(ErrorKind::Unavailable, message)));
        }
        self.answer(call, limit).await
    }
}

/// Makes the outcome of a failure unknown: the lock may be held, even if a later call certainly did not run.
fn of_unknown_outcome(failure: Failure) -> Failure {
    Failure::unknown(failure.error)
}

/// Returns a call about the counter of a call's lock alone.
fn about_counter(alone: &Call, fence: Arc<Fence>, ask: Count) -> Call {
    Call { fence: Some(fence), ..Call::of_lock(&alone.keys, Action::Count(ask)) }
}

fn confirmation(acquire: &Call) -> Call {
    let lease = acquire.action.lease().unwrap_or(Lease::SHORTEST);
    Call { action: Action::Renew { lease }, ..acquire.clone() }
}

#[cfg(test)]
mod tests;
