//! Sends a call to the node that serves its key, and follows redirections.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::cluster::limit::Limit;
use crate::backend::cluster::nodes::{Node, Nodes};
use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::cluster::split_calls::needs_split;
use crate::backend::connection::{CHUNK, redis_error};
use crate::base::{Failure, Outcome, after, boxed, join_all};
use crate::error::{Error, ErrorKind, shown};
use crate::wire::{Call, CallResult, Reply};

/// How many redirections of a call or a subscription are followed without a pause. Two nodes that redirect to each other may both be about
/// to learn of a change.
pub(super) const HOPS: u32 = 4;

/// The longest pause before a call that certainly did not run is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// How a call that certainly did not run is sent again.
#[derive(Debug, PartialEq)]
enum Retry {
    /// At once, to the node that serves its slot.
    AtOwner,
    /// At once, to a node that its slot is migrating to.
    Asking(NodeAddress),
    /// At once, for each of its keys separately.
    Split,
    /// Later, to the node that serves its slot then.
    Later,
}

/// The calls that are sent to one node, by their indexes; or why one can't be sent.
type Part = (Result<Node, Failure>, Vec<usize>);

/// A call that failed at this node, if it was sent to any.
struct FailedCall {
    index: usize,
    at: Option<NodeAddress>,
    failure: Failure,
}

impl Nodes {
    /// Returns the limit of a call that begins now.
    pub(super) fn limit(&self) -> Limit {
        Limit::new(self.role.node_timeout)
    }

    /// Runs a call within the limit, and follows redirections. A call that may have run is never repeated.
    pub(super) async fn answer(&self, call: &Call, limit: Limit) -> CallResult {
        match self.send(call, None, limit).await {
            // Boxed, since it is rare.
            (Err(failure), at) => Box::pin(self.send_again(call, at, failure, limit)).await,
            (answer, _) => answer,
        }
    }

    /// Returns the node that a call may be sent to, if there is a connection to it.
    pub(super) fn permitted(&self, call: &Call) -> Option<Node> {
        self.permitted_slot(call).ok()?;
        self.standing(&call.keys)
    }

    /// Runs many calls in a pipeline to each node, all at once. Returns the answers in the order of the calls.
    pub(super) async fn answer_all(&self, calls: &[Call]) -> Vec<CallResult> {
        let parts = self.parts(calls, (0..calls.len()).collect()).into_iter();
        let parts = parts.map(|part| self.answer_part(calls, part));
        let mut answers: Vec<(usize, CallResult)> = join_all(parts).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Sends the calls to one node. Calls that certainly did not run are sent again, in a pipeline to each node that serves them then.
    /// They wait together, since with a timer for each, thousands of holds would wake thousands of timers every few milliseconds while a
    /// node is unreachable.
    async fn answer_part(&self, calls: &[Call], part: Part) -> Vec<(usize, CallResult)> {
        // Each chunk has a node timeout, and so has the wait for acquires before them.
        let longest = self.role.node_timeout.saturating_mul(2 + (part.1.len() / CHUNK) as u32);
        let read_by = after(Instant::now(), longest);
        let (mut done, mut failed) = self.send_part(calls, part).await;
        // With a new limit, since the pipeline may have been long. But nothing is sent again if this future was not polled in time.
        // Otherwise: 1. A hold is repaired, and the command is refused. 2. This future is not polled. The command is given up, and the
        // hold ends. 3. This future is polled, and would send the command again.
        let limit = if Instant::now() < read_by { self.limit() } else { Limit::new(Duration::ZERO) };
        let alone = |failed: Vec<FailedCall>| {
            join_all(failed.into_iter().map(|FailedCall { index, at, failure }| async move {
                (index, self.send_again(&calls[index], at, failure, limit).await)
            }))
        };
        for hop in 1_u32.. {
            let (mut together, mut apart, mut late) = (Vec::new(), Vec::new(), hop.is_multiple_of(HOPS));
            for call in failed {
                match self.retry(&calls[call.index], &call.failure, call.at.as_ref()) {
                    Some(retry @ (Retry::AtOwner | Retry::Later)) => {
                        late |= retry == Retry::Later;
                        together.push(call);
                    }
                    _ => apart.push(call),
                }
            }
            let ends = late && !self.waits_for_node;
            let together = async {
                if late && !ends && !together.is_empty() {
                    self.pause(limit.send_by).await;
                }
                if ends || limit.is_over() {
                    return (alone(together).await, Vec::new());
                }
                let parts = self.parts(calls, together.iter().map(|call| call.index).collect());
                let sent = join_all(parts.into_iter().map(|part| self.send_part(calls, part))).await;
                let (answered, failed): (Vec<_>, Vec<_>) = sent.into_iter().unzip();
                (answered.into_iter().flatten().collect(), failed.into_iter().flatten().collect())
            };
            // Concurrently, since a node that gets split calls may not answer.
            let (apart, (answered, again)) = tokio::join!(alone(apart), together);
            done.extend(apart.into_iter().chain(answered));
            if again.is_empty() {
                break;
            }
            failed = again;
        }
        done
    }

    /// Returns what was answered, and what failed.
    async fn send_part(
        &self,
        calls: &[Call],
        (node, part): Part,
    ) -> (Vec<(usize, CallResult)>, Vec<FailedCall>) {
        let (answers, at) = match node {
            Ok(Node { node_address, server }) => {
                let calls = part.iter().map(|&index| calls[index].clone()).collect();
                (server.answer_all_as_allowed(calls).await, Some(node_address))
            }
            Err(failure) => (vec![Err(failure)], None),
        };
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (index, answer) in part.into_iter().zip(answers) {
            match answer {
                Ok(reply) => done.push((index, Ok(reply))),
                Err(failure) => failed.push(FailedCall { index, at: at.clone(), failure }),
            }
        }
        (done, failed)
    }

    /// Returns the indexes of these calls by node. A call that can't be sent now is a part of its own.
    fn parts(&self, calls: &[Call], indexes: Vec<usize>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for index in indexes {
            let node = self.permitted_slot(&calls[index]).and_then(|slot| self.owner(slot));
            let same = parts.iter_mut().find(|(other, _)| match (other, &node) {
                (Ok(other), Ok(node)) => other.node_address == node.node_address,
                _ => false,
            });
            match same {
                Some((_, part)) => part.push(index),
                None => parts.push((node, vec![index])),
            }
        }
        parts
    }

    /// Sends a call that failed again until it is answered, may have run, or is out of time. `at` is the node that it was sent to.
    pub(super) async fn send_again(
        &self,
        call: &Call,
        mut at: Option<NodeAddress>,
        mut failure: Failure,
        limit: Limit,
    ) -> CallResult {
        for hop in 1_u32.. {
            let Some(retry) = self.retry(call, &failure, at.as_ref()) else { break };
            let late = retry == Retry::Later || hop.is_multiple_of(HOPS);
            if late && !self.waits_for_node || limit.is_over() {
                break;
            }
            let to = match retry {
                // Boxed, since it is rare.
                Retry::Split => return Box::pin(self.answer_apart(call, limit)).await,
                Retry::Asking(to) => Some(to),
                Retry::AtOwner | Retry::Later => None,
            };
            if late {
                self.pause(limit.send_by).await;
                if limit.is_over() {
                    break;
                }
            }
            match self.send(call, to, limit).await {
                (Ok(reply), _) => return Ok(reply),
                (Err(again), node) => (failure, at) = (again, node),
            }
        }
        Err(final_failure(failure, call))
    }

    /// Sends a call to the node that serves its slot, or to the one that its slot is migrating to. Returns the node too.
    async fn send(
        &self,
        call: &Call,
        migrating_to: Option<NodeAddress>,
        limit: Limit,
    ) -> (CallResult, Option<NodeAddress>) {
        let asking = migrating_to.is_some();
        let node = self.permitted_slot(call).and_then(|slot| match migrating_to {
            Some(node_address) => self.at(node_address),
            None => self.owner(slot),
        });
        let Node { node_address, server } = match node {
            Ok(node) => node,
            Err(failure) => return (Err(failure), None),
        };
        let mut answer = server.answer_as_allowed(call.clone(), asking, Some(limit.answer_by)).await;
        // No waiter is subscribed at a node that a slot migrates to.
        let ended = matches!(answer, Ok(Reply::Done | Reply::Ended(_)));
        if asking && call.sharded && ended {
            self.publish_at_owner(call);
            answer = Ok(Reply::Done);
        }
        (answer, Some(node_address))
    }

    /// Returns the slot of a call. Fails if the call must not be sent.
    fn permitted_slot(&self, call: &Call) -> Result<u16, Failure> {
        self.identity.permit(call)?;
        self.called.notify_one();
        slot_of(call)
    }

    /// Publishes a release at the node that serves the slot: waiters subscribe there until the slot has moved, while the script has
    /// published where it ran, at the node that the slot migrates to. Returns at once. If this fails, the waiters poll.
    fn publish_at_owner(&self, call: &Call) {
        let Ok(owner) = self.owner(slot(call.keys.channel())) else { return };
        let Ok(link) = owner.server.slot().link_now() else { return };
        let publish = redis::cmd("SPUBLISH").arg(&**call.keys.channel()).arg("0").take();
        let limit = self.limit();
        self.runtime.spawn(boxed(async move {
            let _ = timeout_at(limit.answer_by, link.connection.send(&publish, Some(limit.send_by))).await;
        }));
    }

    /// Returns how a call is sent again, or `None` if it is not: it may have run, or would fail again.
    fn retry(&self, call: &Call, failure: &Failure, at: Option<&NodeAddress>) -> Option<Retry> {
        if failure.outcome != Outcome::NotRun {
            return None;
        }
        let node_address = |text| Some(NodeAddress::of(text, at?)?.mapped(self.address_map()));
        let redirected = match redis_error::redirect(failure) {
            Some(("ASK", to)) => node_address(to).map(Retry::Asking),
            Some((_, to)) => node_address(to).zip(slot_of(call).ok()).map(|(owner, slot)| {
                self.moved(slot, &owner);
                Retry::AtOwner
            }),
            None => None,
        };
        let is_away =
            failure.error.kind() == ErrorKind::Unavailable && !redis_error::is_refused_write(failure);
        let split = || needs_split(call, failure).then_some(Retry::Split);
        redirected.or_else(split).or_else(|| is_away.then_some(Retry::Later))
    }

    /// Waits for a change, but not for long: no event reports that a slot can be used again.
    async fn pause(&self, end: Instant) {
        let mut changes = self.changes.subscribe();
        self.request_topology();
        let _ = timeout_at(end.min(after(Instant::now(), PAUSE)), changes.changed()).await;
    }
}

/// Returns the slot of a call. All its keys have to be in one slot: no script runs on two nodes.
fn slot_of(call: &Call) -> Result<u16, Failure> {
    let first = slot(call.key());
    let counter = call.fence.as_ref().map(|fence| &*fence.counter);
    match counter.filter(|counter| slot(counter) != first) {
        None => Ok(first),
        Some(counter) => {
            let message = format!(
                "key `{}` and its fencing counter `{}` are in different slots of the cluster, so that no node can serve both; \
                 use a name without an unpaired or empty brace",
                shown(call.key()),
                shown(counter)
            );
            Err(Failure::not_run(Error::new(ErrorKind::InvalidInput, message)))
        }
    }
}

/// Returns the failure of a call that is not retried any more. A redirection is reported as one that led to no answer.
fn final_failure(failure: Failure, call: &Call) -> Failure {
    if redis_error::redirect(&failure).is_none() {
        return failure;
    }
    let (name, key) = (call.name(), shown(call.key()));
    let message = format!(
        "the nodes of the cluster redirect `{name}` on key `{key}` to each other; its slot may be migrating: try again later, or \
         run `redis-cli --cluster check`"
    );
    Failure { error: Error::new(ErrorKind::Unavailable, message).because(failure.error), ..failure }
}

#[cfg(test)]
mod tests;
