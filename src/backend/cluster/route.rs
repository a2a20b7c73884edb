//! The way of a call to the node that serves its key.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::cluster::apart::is_torn;
use crate::backend::cluster::nodes::{Node, Nodes};
use crate::backend::cluster::slots::{NodeAddress, slot};
use crate::backend::connection::redis_error::{self, Elsewhere};
use crate::base::{Failure, Outcome, after};
use crate::error::{Error, ErrorKind, shown};
use crate::wire::{Call, Reply};

/// So often a call is sent on at once. Two nodes that each name the other may both be on the way to know better.
const HOPS: u32 = 4;

/// The longest pause before a call that certainly did not run is sent again, where nothing tells that it is worth while.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) type CallResult = Result<Reply, Failure>;

/// A call that failed, and where.
struct Missed {
    failure: Failure,
    at: Option<NodeAddress>,
}

/// What can be done about it.
enum Remedy {
    /// It is sent there.
    To(Way),
    /// For each of its keys.
    Apart,
    /// Later, to whoever serves it then.
    Later,
    /// It may have run, or time can't mend it.
    Over,
}

#[derive(Clone, PartialEq)]
enum Way {
    Owner,
    /// The slot is on its way to that node.
    Asking(NodeAddress),
}

/// Until when.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    answer: Instant,
    /// What is sent later has hardly time for an answer: that it did not run is better to know than nothing.
    send: Instant,
}

impl Limit {
    fn new(node_timeout: Duration) -> Limit {
        let now = Instant::now();
        Limit { answer: after(now, node_timeout), send: after(now, node_timeout / 4 * 3) }
    }

    /// Whether nothing is to be sent any more.
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.send
    }

    /// Until half of what is left is over.
    pub(super) fn half(self) -> Limit {
        let now = Instant::now();
        let half = |end: Instant| after(now, end.saturating_duration_since(now) / 2);
        Limit { answer: half(self.answer), send: half(self.send) }
    }
}

impl Nodes {
    /// Runs a call, within the node timeout, wherever it has to go. What may have run is never repeated.
    pub(super) async fn answer(&self, call: &Call) -> CallResult {
        self.answer_until(call, Limit::new(self.node_timeout)).await
    }

    pub(super) async fn answer_until(&self, call: &Call, limit: Limit) -> CallResult {
        match self.send(call, self.admitted(call)?, Way::Owner, limit).await {
            Ok(reply) => Ok(reply),
            Err(missed) => {
                let mut answers = self.repeat(std::slice::from_ref(call), vec![(0, missed)], limit).await;
                answers.pop().map_or_else(|| Err(nowhere()), |(_, answer)| answer)
            }
        }
    }

    /// Runs many calls in a pipeline to each node, all at once; the answers come in the order of the calls.
    pub(super) async fn answer_all(&self, calls: &[Call]) -> Vec<CallResult> {
        let everywhere = (0..calls.len()).map(|at| (at, Way::Owner)).collect();
        let limit = Limit::new(self.node_timeout);
        let parts = self.grouped(calls, everywhere).into_iter().map(|group| async move {
            let (mut done, missed) = self.send_group(calls, group, limit).await;
            // Counted anew: the pipeline may have been long.
            done.extend(self.repeat(calls, missed, Limit::new(self.node_timeout)).await);
            done
        });
        let mut answers: Vec<CallResult> = calls.iter().map(|_| Err(nowhere())).collect();
        for (at, answer) in all(parts).await.into_iter().flatten() {
            answers[at] = answer;
        }
        answers
    }

    /// Goes on with calls that failed, until each is answered, may have run, or its time is over.
    async fn repeat(
        &self,
        calls: &[Call],
        mut missed: Vec<(usize, Missed)>,
        limit: Limit,
    ) -> Vec<(usize, CallResult)> {
        let mut done = Vec::new();
        for hop in 1_u32.. {
            let (mut ways, mut torn) = (Vec::new(), Vec::new());
            let tired = hop.is_multiple_of(HOPS);
            let mut pause = false;
            for (at, missed) in missed {
                let turn = self.turn(&calls[at], &missed);
                let late = matches!(turn, Remedy::Later) || tired;
                if matches!(turn, Remedy::Over) || late && !self.patient || Instant::now() >= limit.send {
                    done.push((at, Err(told(missed.failure, &calls[at]))));
                    continue;
                }
                if matches!(turn, Remedy::Apart) {
                    torn.push(at);
                    continue;
                }
                pause |= late;
                ways.push((at, if let Remedy::To(way) = turn { way } else { Way::Owner }, missed));
            }
            let apart = torn.iter().map(|&at| self.answer_apart(&calls[at], limit));
            let apart = all(apart).await.into_iter().map(|answer| answer.unwrap_or_else(|| Err(nowhere())));
            done.extend(torn.iter().copied().zip(apart));
            if ways.is_empty() {
                break;
            }
            if pause {
                self.pause(limit.send).await;
                if Instant::now() >= limit.send {
                    done.extend(
                        ways.into_iter().map(|(at, _, missed)| (at, Err(told(missed.failure, &calls[at])))),
                    );
                    break;
                }
            }
            let ways = ways.into_iter().map(|(at, way, _)| (at, way)).collect();
            let sent =
                self.grouped(calls, ways).into_iter().map(|group| self.send_group(calls, group, limit));
            missed = Vec::new();
            for (answered, again) in all(sent).await {
                done.extend(answered);
                missed.extend(again);
            }
        }
        done
    }
}

/// Calls that go to one node together.
struct Group {
    node: Result<Node, Failure>,
    asking: bool,
    /// Their places among all.
    at: Vec<usize>,
}

impl Nodes {
    async fn send(&self, call: &Call, slot: u16, way: Way, limit: Limit) -> Result<Reply, Missed> {
        let asking = way != Way::Owner;
        let node = self.node_on(way, slot).map_err(|failure| Missed { failure, at: None })?;
        let answer = node.single.answer(call, asking, limit.answer).await;
        answer.map_err(|failure| Missed { failure, at: Some(node.place) })
    }

    /// The slot of a call that may be sent.
    fn admitted(&self, call: &Call) -> Result<u16, Failure> {
        self.identity.permits(call)?;
        self.usage.used();
        slot_of(call)
    }

    fn node_on(&self, way: Way, slot: u16) -> Result<Node, Failure> {
        match way {
            Way::Owner => self.owner(slot),
            Way::Asking(place) => self.at(place),
        }
    }

    fn grouped(&self, calls: &[Call], ways: Vec<(usize, Way)>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (at, way) in ways {
            let asking = way != Way::Owner;
            let node = self.admitted(&calls[at]).and_then(|slot| self.node_on(way, slot));
            let same = groups.iter_mut().find(|group| match (&group.node, &node) {
                (Ok(one), Ok(other)) => group.asking == asking && one.place == other.place,
                _ => false,
            });
            match same {
                Some(group) => group.at.push(at),
                None => groups.push(Group { node, asking, at: vec![at] }),
            }
        }
        groups
    }

    /// The answers, and what failed.
    async fn send_group(
        &self,
        calls: &[Call],
        group: Group,
        limit: Limit,
    ) -> (Vec<(usize, CallResult)>, Vec<(usize, Missed)>) {
        let (mut done, mut missed) = (Vec::new(), Vec::new());
        let Group { node, asking, at } = group;
        let (answers, place) = match node {
            Ok(Node { place, single }) => {
                let single = &single;
                let answers = if asking || at.len() == 1 {
                    all(at.iter().map(|&at| single.answer(&calls[at], asking, limit.answer))).await
                } else {
                    let calls: Vec<Call> = at.iter().map(|&at| calls[at].clone()).collect();
                    single.answer_all(&calls).await
                };
                (answers, Some(place))
            }
            Err(failure) => (vec![Err(failure)], None),
        };
        for (at, answer) in at.into_iter().zip(answers) {
            match answer {
                Ok(reply) => done.push((at, Ok(reply))),
                Err(failure) => missed.push((at, Missed { failure, at: place.clone() })),
            }
        }
        (done, missed)
    }

    fn turn(&self, call: &Call, missed: &Missed) -> Remedy {
        let Missed { failure, at } = missed;
        if failure.outcome != Outcome::NotRun {
            return Remedy::Over;
        }
        let place = |address| NodeAddress::of(address, at.as_ref()?);
        let to = match redis_error::elsewhere(failure) {
            Some(Elsewhere::Moved(address)) => place(address).zip(slot_of(call).ok()).map(|(place, slot)| {
                self.moved(slot, &place);
                Way::Owner
            }),
            Some(Elsewhere::Ask(address)) => place(address).map(Way::Asking),
            None => None,
        };
        match to {
            Some(way) => Remedy::To(way),
            None if is_torn(call, failure) => Remedy::Apart,
            None if failure.error.kind() == ErrorKind::Unavailable => Remedy::Later,
            None => Remedy::Over,
        }
    }

    /// Until something is new, but not for long: a slot may be free to be used without anybody telling it.
    async fn pause(&self, end: Instant) {
        let mut news = self.news.subscribe();
        self.stir();
        let _ = timeout_at(end.min(after(Instant::now(), PAUSE)), news.changed()).await;
    }
}

/// The slot of a call. All its keys have to be in one: no script runs on two nodes.
fn slot_of(call: &Call) -> Result<u16, Failure> {
    let first = slot(call.key());
    let counter = call.fence().map(|fence| &*fence.counter);
    match counter.filter(|counter| slot(counter) != first) {
        None => Ok(first),
        Some(counter) => {
            let told = format!(
                "key `{}` and its fencing counter `{}` lie in different slots of the cluster, so that no node can serve both; \
                 use a name without an unpaired or empty brace",
                shown(call.key()),
                shown(counter)
            );
            Err(Failure { outcome: Outcome::NotRun, error: Error::new(ErrorKind::Config, told) })
        }
    }
}

/// A redirection that was followed to no end, told as what it is.
fn told(failure: Failure, call: &Call) -> Failure {
    if redis_error::elsewhere(&failure).is_none() {
        return failure;
    }
    let (name, key) = (call.name(), shown(call.key()));
    let message = format!(
        "the nodes of the cluster send `{name}` on key `{key}` from one to the other; its slots may be moving: try again later, or \
         look at it by `redis-cli --cluster check`"
    );
    Failure { error: Error::new(ErrorKind::Unavailable, message).because(failure.error), ..failure }
}

/// What became of a call that got lost in here, which none does.
fn nowhere() -> Failure {
    Failure {
        outcome: Outcome::Unknown,
        error: Error::new(ErrorKind::Unavailable, "the call was not answered; try again later"),
    }
}

/// The outcomes of all, in their order.
async fn all<F: Future>(work: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut work: Vec<Pin<Box<F>>> = work.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = work.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (work, done) in work.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = work.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
