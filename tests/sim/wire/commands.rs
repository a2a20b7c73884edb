//! The connection for commands: commands are sent, run, and answered.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::base::{Failure, Outcome, after, lock};
use crate::error::{Error, ErrorKind};
use crate::sim::master::{Answered, Order};
use crate::sim::network::Weather;
use crate::sim::wire::{Answer, Incoming, Link};
use crate::wire::{Action, Call, Reply};

impl Answer {
    fn into_reply(self) -> Result<Reply, Failure> {
        match self {
            Answer::Reply(reply) => Ok(reply),
            Answer::NoScript => Err(failure(Outcome::NotRun, "the script is unknown")),
            Answer::Refused(outcome) => Err(failure(outcome, "the server refuses to write")),
        }
    }
}

/// A command under way.
#[derive(Clone, Copy)]
struct Sent {
    no: u64,
    /// Its order among the commands of all processes.
    order: Order,
    connection: u64,
    run: u64,
    back: Duration,
    /// Whether its answer is lost.
    mute: bool,
    /// Whether its answer overtakes others.
    overtakes: bool,
}

impl Link {
    /// Sends a command, or only the hash of its script.
    fn send(&self, call: Option<&Call>, shown: &Call) -> Result<(u64, oneshot::Receiver<Answer>), Failure> {
        let (network, now) = (&self.network, Instant::now());
        let mut state = lock(&self.state);
        if state.closed || !state.up {
            return Err(failure(Outcome::NotRun, "there is no connection"));
        }
        state.commands += 1;
        let no = state.commands;
        let key = self.key(no);
        let weather = network.weather(self.process, self.master, key);
        let (answer, waiting) = oneshot::channel();
        state.pending.insert(no, answer);
        let at = if weather.overtakes { now + weather.to } else { (now + weather.to).max(state.sent) };
        state.sent = at.max(state.sent);
        let (connection, run) = (state.connection, state.run.number);
        drop(state);
        let order = Order { sent: network.history.command(), place: 0 };
        let lost = weather.loses_command || network.is_cut(self.process, self.master);
        self.note(|| {
            let takes = (at - now).as_millis();
            let end = if lost { "is lost".to_owned() } else { format!("takes {takes} ms") };
            format!("#{no} {} {end}", described(shown, call.is_none()))
        });
        let Weather { back, overtakes, loses_answer: mute, .. } = weather;
        let sent = Sent { no, order, connection, run, back, mute, overtakes };
        if !lost {
            self.arrives_at(at);
            let call = call.cloned();
            self.add(at, move |link| link.arrives(sent, call));
        }
        if let (Some(later), Some(call)) = (weather.again, call.cloned()) {
            let at = at + later;
            self.arrives_at(at);
            self.note(|| format!("#{no} arrives once more, {} ms later", later.as_millis()));
            self.add(at, move |link| link.arrives(Sent { mute: true, ..sent }, Some(call)));
        }
        Ok((no, waiting))
    }

    fn arrives_at(&self, at: Instant) {
        self.network.arrives_at(at);
        self.is_late(at);
    }

    /// Notes that something arrives at this time, if that is later than in a good network.
    pub(super) fn is_late(&self, at: Instant) {
        if Instant::now() + self.network.latency < at {
            self.network.history.trouble_until(at);
        }
    }

    fn arrives(&self, sent: Sent, call: Option<Call>) {
        let Sent { no, connection, run, .. } = sent;
        let master = &self.network.masters[self.master];
        if master.run().number != run {
            return;
        }
        if let Some(until) = self.network.stalled_until(self.master) {
            self.arrives_at(until);
            return self.add(until, move |link| link.arrives(sent, call));
        }
        let answer = match call {
            None => Answer::NoScript,
            Some(call) => {
                if call.action == Action::Force
                    && let Some(field) = master.held_by(&call.keys.key)
                {
                    self.network.history.forced(&field);
                }
                if master.overtaken(&call.field, sent.order) {
                    self.note(|| format!("#{no} runs after what was sent after it"));
                }
                match master.answer(call, self.network.is_full(self.master)) {
                    None => return,
                    Some(Answered::Refused(outcome)) => {
                        self.note(|| format!("#{no} is refused"));
                        Answer::Refused(outcome)
                    }
                    Some(Answered::Reply(reply)) => {
                        self.note(|| format!("#{no} runs: {reply:?}"));
                        Answer::Reply(reply)
                    }
                }
            }
        };
        if sent.mute || self.network.is_cut(self.process, self.master) {
            return self.note(|| format!("#{no}: the answer is lost"));
        }
        let mut state = lock(&self.state);
        if state.connection != connection {
            return;
        }
        let at = Instant::now() + sent.back;
        let at = if sent.overtakes { at } else { at.max(state.answered) };
        state.answered = at.max(state.answered);
        drop(state);
        self.is_late(at);
        self.add(at, move |link| {
            let reset = link.network.masters[link.master].run().number != run;
            if !reset && !link.network.is_cut(link.process, link.master) {
                link.deliver(Incoming::Answer { connection, no, answer });
            }
        });
    }

    async fn wait_for(
        &self,
        (no, waiting): (u64, oneshot::Receiver<Answer>),
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let sent = deadline - self.network.node_timeout;
        match timeout_at(deadline, waiting).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(failure(Outcome::Unknown, "the connection was lost")),
            Err(_) => {
                let mut state = lock(&self.state);
                let stuck = state.pending.remove(&no).is_some() && state.up && state.last_answer <= sent;
                drop(state);
                self.note(|| format!("#{no} has no answer in time"));
                if stuck {
                    self.reconnect();
                }
                Err(failure(Outcome::Unknown, "no answer in time"))
            }
        }
    }

    fn forgets(&self) -> bool {
        let no = lock(&self.state).commands + 1;
        self.network.weather(self.process, self.master, self.key(no)).forgets
    }

    pub(super) async fn answer(&self, call: Call) -> Result<Reply, Failure> {
        let deadline = after(Instant::now(), self.network.node_timeout);
        if self.forgets() {
            // The hash is sent first, and the text only after the answer to the hash: others may overtake the text.
            let answer = self.wait_for(self.send(None, &call)?, deadline).await?;
            if !matches!(answer, Answer::NoScript) {
                return answer.into_reply();
            }
            if deadline <= Instant::now() {
                return Err(failure(Outcome::NotRun, "not sent"));
            }
        }
        let sent = self.send(Some(&call), &call)?;
        self.wait_for(sent, deadline).await?.into_reply()
    }

    pub(super) async fn answer_all(&self, calls: Vec<Call>) -> Vec<Result<Reply, Failure>> {
        let deadline = after(Instant::now(), self.network.node_timeout);
        let sent: Vec<_> = calls.iter().map(|call| self.send(Some(call), call)).collect();
        let mut replies = Vec::with_capacity(sent.len());
        for sent in sent {
            replies.push(match sent {
                Ok(sent) => self.wait_for(sent, deadline).await.and_then(Answer::into_reply),
                Err(failure) => Err(failure),
            });
        }
        replies
    }
}

fn failure(outcome: Outcome, why: &str) -> Failure {
    Failure { outcome, error: Error::new(ErrorKind::Unavailable, why) }
}

fn described(call: &Call, name_only: bool) -> String {
    let (key, field) = (&call.keys.key, &call.field);
    let what = match call.action {
        Action::Acquire { count, lease } => format!("acquire {key} {field} {count} {:?}", lease.duration()),
        Action::Release { count } => format!("release {key} {field} {count}"),
        Action::Decline => format!("decline {key} {field}"),
        Action::Move { lease } => format!("move {key} {field} {:?}", lease.duration()),
        Action::Keep { lease } => format!("keep {key} {field} {:?}", lease.duration()),
        Action::Renew { lease } => format!("renew {key} {field} {:?}", lease.duration()),
        Action::Shorten { lease } => format!("shorten {key} {field} {:?}", lease.duration()),
        Action::Settle { count, .. } => format!("settle {key} {field} {count}"),
        Action::Repair { count, .. } => format!("repair {key} {field} {count}"),
        Action::Force => format!("force {key}"),
        Action::Look => format!("look {key}"),
        Action::Who => format!("who {key}"),
        Action::Waiters => format!("waiters {key}"),
        Action::Count(_) => "count".to_owned(),
    };
    if name_only { format!("(by name) {what}") } else { what }
}
