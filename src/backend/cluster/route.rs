//! Sends a call to the node that serves its key, and follows redirections.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::cluster::limit::{CallResult, Limit};
use crate::backend::cluster::nodes::{Node, Nodes};
use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::cluster::split_calls::needs_split;
use crate::backend::connection::redis_error::{self, Redirect};
use crate::base::{Failure, Outcome, after, join_all};
use crate::error::{Error, ErrorKind, shown};
use crate::wire::{Call, Reply};

/// How many redirections are followed without a pause. Two nodes that redirect to each other may both be about to learn of a change.
const HOPS: u32 = 4;

/// The longest pause before a call that certainly did not run is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// A call that failed, and the node that it was sent to.
struct FailedCall {
    failure: Failure,
    at: Option<NodeAddress>,
}

/// How a failed call is retried.
enum Retry {
    /// At once, by this route.
    At(Route),
    /// At once, for each of its keys separately.
    Split,
    /// Later, at the node that serves its slot then.
    Later,
    /// Not at all: it may have run, or would fail again.
    Never,
}

#[derive(Clone, PartialEq)]
enum Route {
    /// To the node that serves the slot.
    Owner,
    /// To a node that the slot is migrating to.
    Asking(NodeAddress),
}

impl Nodes {
    /// Runs a call within the node timeout, and follows redirections. A call that may have run is never repeated.
    pub(super) async fn answer(&self, call: &Call) -> CallResult {
        self.answer_until(call, Limit::new(self.node_timeout)).await
    }

    pub(super) async fn answer_until(&self, call: &Call, limit: Limit) -> CallResult {
        match self.send(call, self.permitted_slot(call)?, Route::Owner, limit).await {
            Ok(reply) => Ok(reply),
            Err(failed) => self.retry_one(call, failed, limit).await,
        }
    }

    /// Returns the node that a call may be sent to, if there is a connection to it.
    pub(super) fn permitted(&self, call: &Call) -> Option<Node> {
        self.permitted_slot(call).ok()?;
        self.standing(&call.keys)
    }

    /// Waits for the answer to a call that was sent to this node, and sends it elsewhere if it certainly did not run.
    pub(super) async fn answer_behind(
        &self,
        call: &Call,
        node: Node,
        answer: impl Future<Output = CallResult>,
    ) -> CallResult {
        let limit = Limit::new(self.node_timeout);
        match answer.await {
            Ok(reply) => Ok(reply),
            Err(failure) => {
                let failed = FailedCall { failure, at: Some(node.node_address) };
                self.retry_one(call, failed, limit).await
            }
        }
    }

    async fn retry_one(&self, call: &Call, failed: FailedCall, limit: Limit) -> CallResult {
        let mut answers = self.retry_all(std::slice::from_ref(call), vec![(0, failed)], limit).await;
        answers.pop().map_or_else(|| Err(unanswered()), |(_, answer)| answer)
    }

    /// Runs many calls in a pipeline to each node, all at once. Returns the answers in the order of the calls.
    pub(super) async fn answer_all(&self, calls: &[Call]) -> Vec<CallResult> {
        let everywhere = (0..calls.len()).map(|at| (at, Route::Owner)).collect();
        let limit = Limit::new(self.node_timeout);
        let parts = self.grouped(calls, everywhere).into_iter().map(|group| async move {
            let (mut done, failed) = self.send_group(calls, group, limit).await;
            // With a new limit, since the pipeline may have been long.
            done.extend(self.retry_all(calls, failed, Limit::new(self.node_timeout)).await);
            done
        });
        let mut answers: Vec<CallResult> = calls.iter().map(|_| Err(unanswered())).collect();
        for (at, answer) in join_all(parts).await.into_iter().flatten() {
            answers[at] = answer;
        }
        answers
    }

    /// Retries failed calls until each is answered, may have run, or is out of time.
    async fn retry_all(
        &self,
        calls: &[Call],
        mut failed: Vec<(usize, FailedCall)>,
        limit: Limit,
    ) -> Vec<(usize, CallResult)> {
        let mut done = Vec::new();
        for hop in 1_u32.. {
            let (mut routes, mut split) = (Vec::new(), Vec::new());
            let hops_used_up = hop.is_multiple_of(HOPS);
            let mut pause = false;
            for (at, failed) in failed {
                let retry = self.retry(&calls[at], &failed);
                let late = matches!(retry, Retry::Later) || hops_used_up;
                if matches!(retry, Retry::Never) || late && !self.waits_for_node || limit.is_over() {
                    done.push((at, Err(final_failure(failed.failure, &calls[at]))));
                    continue;
                }
                if matches!(retry, Retry::Split) {
                    split.push(at);
                    continue;
                }
                pause |= late;
                routes.push((at, if let Retry::At(route) = retry { route } else { Route::Owner }, failed));
            }
            let apart = split.iter().map(|&at| self.answer_apart(&calls[at], limit));
            let apart = join_all(apart).await.into_iter();
            let apart = apart.map(|answer| answer.unwrap_or_else(|| Err(unanswered())));
            done.extend(split.iter().copied().zip(apart));
            if routes.is_empty() {
                break;
            }
            if pause {
                self.pause(limit.send_by).await;
                if limit.is_over() {
                    done.extend(
                        routes
                            .into_iter()
                            .map(|(at, _, failed)| (at, Err(final_failure(failed.failure, &calls[at])))),
                    );
                    break;
                }
            }
            let routes = routes.into_iter().map(|(at, route, _)| (at, route)).collect();
            let sent =
                self.grouped(calls, routes).into_iter().map(|group| self.send_group(calls, group, limit));
            failed = Vec::new();
            for (answered, again) in join_all(sent).await {
                done.extend(answered);
                failed.extend(again);
            }
        }
        done
    }
}

/// Calls that are sent to one node together.
struct Group {
    node: Result<Node, Failure>,
    asking: bool,
    /// The indexes of the calls.
    at: Vec<usize>,
}

impl Nodes {
    async fn send(&self, call: &Call, slot: u16, route: Route, limit: Limit) -> Result<Reply, FailedCall> {
        let asking = route != Route::Owner;
        let node = self.node_on(route, slot).map_err(|failure| FailedCall { failure, at: None })?;
        let answer = node.server.answer_as_allowed(call, asking, limit.answer_by).await;
        answer.map_err(|failure| FailedCall { failure, at: Some(node.node_address) })
    }

    /// Returns the slot of a call. Fails if the call must not be sent.
    fn permitted_slot(&self, call: &Call) -> Result<u16, Failure> {
        self.identity.permit(call)?;
        self.usage.record();
        slot_of(call)
    }

    fn node_on(&self, route: Route, slot: u16) -> Result<Node, Failure> {
        match route {
            Route::Owner => self.owner(slot),
            Route::Asking(node_address) => self.at(node_address),
        }
    }

    fn grouped(&self, calls: &[Call], routes: Vec<(usize, Route)>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (at, route) in routes {
            let asking = route != Route::Owner;
            let node = self.permitted_slot(&calls[at]).and_then(|slot| self.node_on(route, slot));
            let same = groups.iter_mut().find(|group| match (&group.node, &node) {
                (Ok(one), Ok(other)) => group.asking == asking && one.node_address == other.node_address,
                _ => false,
            });
            match same {
                Some(group) => group.at.push(at),
                None => groups.push(Group { node, asking, at: vec![at] }),
            }
        }
        groups
    }

    /// Sends the calls of a group. Returns the answers, and the calls that failed.
    async fn send_group(
        &self,
        calls: &[Call],
        group: Group,
        limit: Limit,
    ) -> (Vec<(usize, CallResult)>, Vec<(usize, FailedCall)>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let Group { node, asking, at } = group;
        let (answers, node_address) = match node {
            Ok(Node { node_address, server }) => {
                let server = &server;
                let answer = |&at: &usize| server.answer_as_allowed(&calls[at], asking, limit.answer_by);
                let answers = if asking || at.len() == 1 {
                    join_all(at.iter().map(answer)).await
                } else {
                    let calls: Vec<Call> = at.iter().map(|&at| calls[at].clone()).collect();
                    server.answer_all_as_allowed(calls).await
                };
                (answers, Some(node_address))
            }
            Err(failure) => (vec![Err(failure)], None),
        };
        for (at, answer) in at.into_iter().zip(answers) {
            match answer {
                Ok(reply) => {
                    // No waiter is subscribed at a node that a slot migrates to.
                    let ended = matches!(reply, Reply::Done | Reply::Ended(_) | Reply::LeftToOthers(_));
                    if asking && calls[at].sharded && ended {
                        self.publish_at_owner(&calls[at]);
                        done.push((at, Ok(Reply::Done)));
                        continue;
                    }
                    done.push((at, Ok(reply)));
                }
                Err(failure) => failed.push((at, FailedCall { failure, at: node_address.clone() })),
            }
        }
        (done, failed)
    }

    /// Publishes a release at the node that serves the slot: waiters subscribe there until the slot has moved, while the script has
    /// published where it ran, at the node that the slot migrates to. Returns at once. If this fails, the waiters poll.
    fn publish_at_owner(&self, call: &Call) {
        let Ok(owner) = self.owner(slot(call.keys.channel())) else { return };
        let Ok(link) = owner.server.slot().link_now() else { return };
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(&**call.keys.channel()).arg("0");
        let limit = Limit::new(self.node_timeout);
        self.runtime.spawn(async move {
            let _ = timeout_at(limit.answer_by, link.connection.send(&publish, Some(limit.send_by))).await;
        });
    }

    fn retry(&self, call: &Call, failed: &FailedCall) -> Retry {
        let FailedCall { failure, at } = failed;
        if failure.outcome != Outcome::NotRun {
            return Retry::Never;
        }
        let node_address = |text| Some(NodeAddress::of(text, at.as_ref()?)?.mapped(self.address_map()));
        let route = match redis_error::redirect(failure) {
            Some(Redirect::Moved(to)) => node_address(to).zip(slot_of(call).ok()).map(|(owner, slot)| {
                self.moved(slot, &owner);
                Route::Owner
            }),
            Some(Redirect::Ask(to)) => node_address(to).map(Route::Asking),
            None => None,
        };
        match route {
            Some(route) => Retry::At(route),
            None if needs_split(call, failure) => Retry::Split,
            None if redis_error::is_refused_write(failure) => Retry::Never,
            None if failure.error.kind() == ErrorKind::Unavailable => Retry::Later,
            None => Retry::Never,
        }
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
            Err(Failure { outcome: Outcome::NotRun, error: Error::new(ErrorKind::Config, message) })
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

/// Returns the failure of a call without an answer, which does not happen.
fn unanswered() -> Failure {
    Failure {
        outcome: Outcome::Unknown,
        error: Error::new(ErrorKind::Unavailable, "the call was not answered; try again later"),
    }
}

#[cfg(test)]
mod tests;
