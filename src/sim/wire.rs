//! What connects one process with one master: a connection for commands, and one for messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::backend::{Backend, BoxFuture};
use crate::base::{Events, Failure, Outcome, after, lock};
use crate::error::{Error, ErrorKind};
use crate::sim::dice::Key;
use crate::sim::master::{Answered, Run};
use crate::sim::network::{Network, Weather};
use crate::wire::{Action, Call, Reply};

/// The first pause before a connection is tried again. Each one is longer, up to eight times.
const RETRY: Duration = Duration::from_millis(50);

pub(super) struct Link {
    network: Arc<Network>,
    process: usize,
    master: usize,
    events: Weak<dyn Events>,
    me: Weak<Link>,
    portable: AtomicBool,
    state: Mutex<State>,
    arrived: Notify,
}

enum Answer {
    Reply(Reply),
    /// The script is not known there.
    NoScript,
    /// An error out of the script.
    Refused,
}

impl Answer {
    fn into_reply(self) -> Result<Reply, Failure> {
        match self {
            Answer::Reply(reply) => Ok(reply),
            Answer::NoScript => Err(failure(Outcome::NotRun, "the script is unknown")),
            Answer::Refused => Err(failure(Outcome::Unknown, "the server refuses to write")),
        }
    }
}

struct State {
    commands: u64,
    messages: u64,
    /// Which connection it is, and whether it stands.
    connection: u64,
    up: bool,
    closed: bool,
    tries: u32,
    /// The life of the master that it leads to.
    run: Run,
    /// What is sent on one connection arrives in its order.
    sent: Instant,
    answered: Instant,
    message_sent: Instant,
    last_answer: Instant,
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// The channels, and which request for them was the last one.
    wanted: BTreeMap<Arc<str>, u64>,
    requests: u64,
    inbox: VecDeque<Incoming>,
    /// What the master has of this process.
    client: u64,
    message_end: Arc<MessageEnd>,
    subscribed: BTreeSet<Arc<str>>,
}

/// A command on its way.
#[derive(Clone, Copy)]
struct Sent {
    no: u64,
    /// Among the commands of all processes.
    order: u64,
    connection: u64,
    run: u64,
    back: Duration,
    /// Its answer gets lost.
    mute: bool,
    /// Its answer overtakes others.
    overtakes: bool,
}

/// What has reached the process and was not looked at.
enum Incoming {
    Answer { connection: u64, no: u64, answer: Answer },
    Connected { connection: u64, run: Run },
    Broken { connection: u64 },
    Subscribed { connection: u64, request: u64, channel: Arc<str> },
    Message { connection: u64, channel: Arc<str> },
}

/// The master's end of a connection for messages.
struct MessageEnd {
    link: Weak<Link>,
    connection: u64,
    run: Run,
}

impl Events for MessageEnd {
    fn reconnected(&self) {}
    fn subscribed(&self, _: &str) {}
    fn not_subscribed(&self, _: &str) {}
    fn subscriptions_lost(&self) {}

    fn message(&self, channel: &str) {
        if let Some(link) = self.link.upgrade() {
            link.publish(self.connection, self.run, channel.into());
        }
    }
}

impl Link {
    pub(super) fn new(
        network: &Arc<Network>,
        process: usize,
        master: usize,
        events: Weak<dyn Events>,
    ) -> Arc<Link> {
        let now = Instant::now();
        Arc::new_cyclic(|me: &Weak<Link>| {
            let message_end = Arc::new(MessageEnd { link: me.clone(), connection: 0, run: Run::default() });
            let receiver: Weak<dyn Events> = Arc::downgrade(&(message_end.clone() as Arc<dyn Events>));
            let client = network.masters[master].memory.visit(|store| store.join(receiver));
            Link {
                network: network.clone(),
                process,
                master,
                events,
                me: me.clone(),
                portable: AtomicBool::new(false),
                arrived: Notify::new(),
                state: Mutex::new(State {
                    commands: 0,
                    messages: 0,
                    connection: 0,
                    up: true,
                    closed: false,
                    tries: 0,
                    run: network.masters[master].run(),
                    sent: now,
                    answered: now,
                    message_sent: now,
                    last_answer: now,
                    pending: BTreeMap::new(),
                    wanted: BTreeMap::new(),
                    requests: 0,
                    inbox: VecDeque::new(),
                    client,
                    message_end,
                    subscribed: BTreeSet::new(),
                }),
            }
        })
    }

    fn key(&self, number: u64) -> Key {
        self.network.key.with(self.process as u64).with(self.master as u64).with(number)
    }

    fn note(&self, line: impl FnOnce() -> String) {
        let (process, master) = (self.process, self.master);
        self.network.history.note(|| format!("p{process}-m{master}  {}", line()));
    }

    /// Those of one connection and one time keep their order.
    fn add(&self, at: Instant, action: impl FnOnce(&Link) + Send + 'static) {
        let me = self.me.clone();
        let passed = (at - self.network.start).as_millis() as u64;
        self.network.agenda.add(at, self.key(passed).with(104).bits(), move || {
            if let Some(link) = me.upgrade() {
                action(&link);
            }
        });
    }

    fn deliver(&self, incoming: Incoming) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        state.inbox.push_back(incoming);
        drop(state);
        self.arrived.notify_one();
    }

    /// The task of the process that reads what arrives.
    pub(super) async fn read(self: Arc<Self>) {
        loop {
            let next = lock(&self.state).inbox.pop_front();
            match next {
                Some(incoming) => self.look_at(incoming),
                None => self.arrived.notified().await,
            }
        }
    }

    fn look_at(&self, incoming: Incoming) {
        let Some(events) = self.events.upgrade() else { return };
        let current = lock(&self.state).connection;
        match incoming {
            Incoming::Answer { connection, no, answer } if connection == current => {
                let mut state = lock(&self.state);
                state.last_answer = Instant::now();
                let waiting = state.pending.remove(&no);
                drop(state);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(answer);
                }
            }
            Incoming::Broken { connection } if connection == current => self.reconnect(),
            Incoming::Connected { connection, run } if connection == current => {
                let mut state = lock(&self.state);
                (state.up, state.run, state.tries) = (true, run, 0);
                (state.sent, state.answered, state.message_sent) =
                    (Instant::now(), Instant::now(), Instant::now());
                let wanted: Vec<_> = state.wanted.iter().map(|(name, no)| (name.clone(), *no)).collect();
                drop(state);
                self.note(|| "connected again".to_owned());
                for (channel, request) in wanted {
                    self.send_subscribe(channel, request);
                }
                events.reconnected();
            }
            Incoming::Subscribed { connection, request, channel }
                if connection == current && self.wants(&channel) == Some(request) =>
            {
                events.subscribed(&channel);
            }
            Incoming::Message { connection, channel }
                if connection == current && self.wants(&channel).is_some() =>
            {
                self.note(|| format!("message of {channel}"));
                events.message(&channel);
            }
            _ => {}
        }
    }

    /// The last request for a channel that is wanted.
    fn wants(&self, channel: &str) -> Option<u64> {
        lock(&self.state).wanted.get(channel).copied()
    }

    /// Drops the connection, and makes another one.
    fn reconnect(&self) {
        let mut state = lock(&self.state);
        state.connection += 1;
        state.up = false;
        let connection = state.connection;
        let gone = std::mem::take(&mut state.pending);
        let stale = state.client;
        drop(state);
        self.note(|| "the connection is lost".to_owned());
        drop(gone);
        self.leave(stale);
        self.dial(connection);
        if let Some(events) = self.events.upgrade() {
            events.subscriptions_lost();
        }
    }

    /// The master notices that a client is gone.
    fn leave(&self, client: u64) {
        self.network.masters[self.master].memory.visit(|store| store.leave(client));
        lock(&self.state).subscribed.clear();
    }

    fn dial(&self, connection: u64) {
        let mut state = lock(&self.state);
        if state.closed || state.connection != connection {
            return;
        }
        state.tries += 1;
        let tries = state.tries;
        drop(state);
        let pause = self.key(u64::from(tries)).with(105).time(self.network.latency);
        let pause = if tries == 1 { pause } else { pause + RETRY * (1 << (tries - 2).min(3)) };
        self.add(Instant::now() + pause, move |link| link.shake_hands(connection));
    }

    fn shake_hands(&self, connection: u64) {
        let network = &self.network;
        if network.is_cut(self.process, self.master) || network.stalled_until(self.master).is_some() {
            return self.dial(connection);
        }
        let master = &network.masters[self.master];
        let run = master.run();
        let message_end = Arc::new(MessageEnd { link: self.me.clone(), connection, run });
        let receiver: Weak<dyn Events> = Arc::downgrade(&(message_end.clone() as Arc<dyn Events>));
        let mut state = lock(&self.state);
        if state.closed || state.connection != connection {
            return;
        }
        (state.client, state.message_end) = (master.memory.visit(|store| store.join(receiver)), message_end);
        drop(state);
        let back = self.key(connection).with(106).time(network.latency);
        self.add(Instant::now() + back, move |link| link.deliver(Incoming::Connected { connection, run }));
    }

    /// The connection is reset, from outside of the process.
    pub(super) fn reset(&self) {
        let connection = lock(&self.state).connection;
        let takes = self.key(connection).with(107).time(self.network.latency);
        self.add(Instant::now() + takes, move |link| link.deliver(Incoming::Broken { connection }));
    }

    /// From now on it works on any runtime. Not from the beginning: a table that may be taken over looks at a clock that nobody
    /// simulates.
    pub(super) fn make_portable(&self) {
        self.portable.store(true, SeqCst);
    }

    /// The process, or the runtime of its connections, is gone: nothing more is sent.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let (client, gone) = (state.client, std::mem::take(&mut state.pending));
        drop(state);
        drop(gone);
        self.leave(client);
    }

    /// The channels that the master has this process subscribed to.
    pub(super) fn subscriptions(&self) -> usize {
        lock(&self.state).subscribed.len()
    }

    /// Sends a command, or only its name.
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
        let order = network.history.command();
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

    /// Something arrives then: later than in a good network, maybe.
    fn is_late(&self, at: Instant) {
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
                    && let Some((field, _)) = master.holder(&call.keys.key)
                {
                    self.network.history.forced(&field);
                }
                if master.overtaken(&call.field, sent.order) {
                    self.note(|| format!("#{no} runs behind what was sent after it"));
                }
                match master.answer(call, self.network.is_full(self.master)) {
                    None => return,
                    Some(Answered::Refused) => {
                        self.note(|| format!("#{no} is refused"));
                        Answer::Refused
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

    async fn answer(&self, call: Call) -> Result<Reply, Failure> {
        let deadline = after(Instant::now(), self.network.node_timeout);
        if self.forgets() {
            // Its name is sent first, and its text behind the answer to that: others may overtake it.
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

    async fn answer_all(&self, calls: Vec<Call>) -> Vec<Result<Reply, Failure>> {
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

    /// When what is sent now on the connection for messages is there.
    fn message_arrives_at(&self, state: &mut State, takes: Duration) -> Instant {
        let at = (Instant::now() + takes).max(state.message_sent);
        state.message_sent = at;
        at
    }

    fn send_subscribe(&self, channel: Arc<str>, request: u64) {
        let mut state = lock(&self.state);
        let (connection, run) = (state.connection, state.run.number);
        let takes = self.key(request).with(108).time(self.network.latency);
        let at = self.message_arrives_at(&mut state, takes);
        drop(state);
        self.add(at, move |link| link.subscribe_there((connection, run), channel, request));
    }

    fn subscribe_there(&self, (connection, run): (u64, u64), channel: Arc<str>, request: u64) {
        let network = &self.network;
        let master = &network.masters[self.master];
        if master.run().number != run || network.is_cut(self.process, self.master) {
            return;
        }
        if let Some(until) = network.stalled_until(self.master) {
            return self.add(until, move |link| link.subscribe_there((connection, run), channel, request));
        }
        let mut state = lock(&self.state);
        if state.connection != connection || state.closed {
            return;
        }
        let client = state.client;
        state.subscribed.insert(channel.clone());
        let at = self.message_arrives_at(&mut state, self.key(request).with(109).time(network.latency));
        drop(state);
        let now = master.now();
        master.memory.visit(|store| {
            store.subscribe(client, &channel);
            store.run_backlog(now);
        });
        self.add(at, move |link| {
            if !link.network.is_cut(link.process, link.master) {
                link.deliver(Incoming::Subscribed { connection, request, channel });
            }
        });
    }

    fn unsubscribe_there(&self, connection: u64, client: u64, channel: Arc<str>) {
        if let Some(until) = self.network.stalled_until(self.master) {
            // Behind a request to subscribe that waits there too.
            return self.add(until, move |link| link.unsubscribe_there(connection, client, channel));
        }
        let mut state = lock(&self.state);
        // A client sends one request after the other: what is wanted again by now stays.
        if state.connection == connection && !state.wanted.contains_key(&channel) {
            state.subscribed.remove(&channel);
            drop(state);
            self.network.masters[self.master].memory.visit(|store| store.unsubscribe(client, &channel));
        }
    }

    /// The master sends a message.
    fn publish(&self, connection: u64, run: Run, channel: Arc<str>) {
        let mut state = lock(&self.state);
        if state.connection != connection || self.network.masters[self.master].run() != run {
            return;
        }
        state.messages += 1;
        let key = self.key(state.messages).with(110);
        let (lost, takes) = self.network.message(self.process, self.master, key);
        let at = self.message_arrives_at(&mut state, takes);
        drop(state);
        if lost {
            return self.note(|| format!("the message of {channel} is lost"));
        }
        self.is_late(at);
        self.add(at, move |link| {
            if !link.network.is_cut(link.process, link.master) {
                link.deliver(Incoming::Message { connection, channel });
            }
        });
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
        Action::Renew { lease } => format!("renew {key} {field} {:?}", lease.duration()),
        Action::Settle { count, .. } => format!("settle {key} {field} {count}"),
        Action::Repair { count, .. } => format!("repair {key} {field} {count}"),
        Action::Force => format!("force {key}"),
        Action::Look => format!("look {key}"),
        Action::Count(_) => "count".to_owned(),
    };
    if name_only { format!("(by name) {what}") } else { what }
}

impl Backend for Link {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move { self.answer(call).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move { self.answer_all(calls).await })
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        lock(&self.state).run.started.is_some_and(|started| Instant::now() < after(started, age))
    }

    fn is_away(&self) -> bool {
        !lock(&self.state).up
    }

    fn subscribe(&self, channel: &str) {
        let mut state = lock(&self.state);
        state.requests += 1;
        let (request, up, channel) = (state.requests, state.up, Arc::<str>::from(channel));
        state.wanted.insert(channel.clone(), request);
        drop(state);
        if up {
            self.send_subscribe(channel, request);
        }
    }

    fn unsubscribe(&self, channel: &str) {
        let mut state = lock(&self.state);
        state.wanted.remove(channel);
        let (connection, client) = (state.connection, state.client);
        let takes = self.key(state.requests).with(111).time(self.network.latency);
        let at = self.message_arrives_at(&mut state, takes);
        drop(state);
        let channel: Arc<str> = channel.into();
        self.add(at, move |link| link.unsubscribe_there(connection, client, channel));
    }

    fn is_portable(&self) -> bool {
        self.portable.load(SeqCst)
    }

    fn close(&self) {
        self.note(|| "closed".to_owned());
        self.end();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("process", &self.process).field("master", &self.master).finish()
    }
}
