//! Fenced calls while their slot is on its way from node to node. The lock and its counter are two keys, and a node that lacks
//! one of them refuses a script over both (`TRYAGAIN`). A free lock has no key at all: both nodes refuse it for the whole move.
//! So both keys are asked for one after the other, each where it is.

use std::pin::Pin;
use std::sync::Arc;

use redis::RedisError;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::route::{CallResult, Limit};
use crate::base::{Failure, Outcome};
use crate::error::{Error, ErrorKind};
use crate::wire::{Call, Count, Fence, Reply};

/// Whether the call can be answered for its two keys apart, and not for both.
pub(super) fn is_torn(call: &Call, failure: &Failure) -> bool {
    let error =
        std::error::Error::source(&failure.error).and_then(|error| error.downcast_ref::<RedisError>());
    call.alone().is_some() && error.is_some_and(|error| error.code() == Some("TRYAGAIN"))
}

impl Nodes {
    /// Runs a call for its lock and its counter apart.
    pub(super) async fn answer_apart(&self, call: &Call, limit: Limit) -> Option<CallResult> {
        let (alone, fence) = call.alone()?;
        Some(match &alone {
            Call::Acquire { .. } => self.acquire_apart(&alone, fence, limit).await,
            _ => self.raise_apart(&alone, fence, limit).await,
        })
    }

    /// The lock is taken (1.), its token is made (2.), and the hold is confirmed (3.): it stood all the time, since a field that
    /// is gone never comes back. So each earlier holder's token was made before 2. and is less, and each later one's is made
    /// after 3. and is greater. Without 3.: the lock is forced away behind 1., the next holder has its token made, and then
    /// 2. runs: the earlier holder would be given the greater one.
    async fn acquire_apart(&self, alone: &Call, fence: Arc<Fence>, limit: Limit) -> CallResult {
        let count = |ask| Call::Count { fence: fence.clone(), ask };
        // A grant without a token would have to be undone.
        if let wrong @ Reply::NotACounter(_) = self.go(&count(Count::Look), limit).await? {
            return Ok(wrong);
        }
        let granted = self.go(alone, limit).await?;
        if granted != Reply::Done {
            return Ok(granted);
        }
        let token = self.go(&count(Count::Next), limit).await.map_err(granted_anyway)?;
        match (token, self.go(&confirmation(alone), limit).await.map_err(granted_anyway)?) {
            (token @ Reply::Token(_), Reply::Done) => Ok(token),
            (wrong, _) => {
                let told = match wrong {
                    Reply::NotACounter(wrong) => format!("the key of the fencing counter holds {wrong}"),
                    _ => "the lock was taken away before its token was made; try again".to_owned(),
                };
                Err(granted_anyway(Failure {
                    outcome: Outcome::Unknown,
                    error: Error::new(ErrorKind::Unavailable, told),
                }))
            }
        }
    }

    /// The counter is raised before the hold is looked at, as by the script over both: a token that is confirmed so may be
    /// handed out. Half of the time is left for the hold, which is not lost for the counter's sake.
    async fn raise_apart(&self, alone: &Call, fence: Arc<Fence>, limit: Limit) -> CallResult {
        let raised = self.go(&Call::Count { fence, ask: Count::Raise }, limit.half()).await;
        let reply = self.go(alone, limit).await?;
        Ok(match (reply, raised) {
            (Reply::Done, Ok(Reply::NotACounter(wrong))) => Reply::Deferred(wrong),
            (Reply::Done, Err(failure)) => Reply::Deferred(failure.error.to_string()),
            (reply, _) => reply,
        })
    }

    /// A call with one key. Not when the time is over: who polls this late may have given up its hold, and ended it.
    fn go<'a>(
        &'a self,
        call: &'a Call,
        limit: Limit,
    ) -> Pin<Box<dyn Future<Output = CallResult> + Send + 'a>> {
        Box::pin(async move {
            if limit.is_over() {
                let told = "the slot of the lock is on its way, and no time is left to ask both nodes; try again later";
                let error = Error::new(ErrorKind::Unavailable, told);
                return Err(Failure { outcome: Outcome::NotRun, error });
            }
            self.answer_until(call, limit).await
        })
    }
}

/// The lock may be held, whatever became of what came after.
fn granted_anyway(failure: Failure) -> Failure {
    Failure { outcome: Outcome::Unknown, ..failure }
}

fn confirmation(acquire: &Call) -> Call {
    match acquire.clone() {
        Call::Acquire { key, field, lease, .. } => Call::Renew { key, field, lease, fence: None },
        other => other,
    }
}
