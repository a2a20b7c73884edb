//! The simulated connections between one process and one master: one for commands, and one for messages.

mod commands;
mod messages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::backend::{Backend, BoxFuture};
use crate::base::{Events, Failure, Outcome, after, lock};
use crate::sim::dice::Key;
use crate::sim::master::Run;
use crate::sim::network::{Between, Network, is_for_hints};
use crate::sim::wire::messages::MessageEnd;
use crate::wire::keys::Keys;
use crate::wire::{Call, Reply};

/// The first pause before a connection is tried again. Later pauses are longer, up to eight times.
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
    /// The master does not know the script.
    NoScript,
    /// The script failed with an error, which shows this outcome.
    Refused(Outcome),
}

struct State {
    commands: u64,
    messages: u64,
    /// The number of the current connection, and whether it stands.
    connection: u64,
    up: bool,
    closed: bool,
    tries: u32,
    /// The run of the master that it leads to.
    run: Run,
    /// When the last command on this connection arrives: commands on one connection arrive in order.
    sent: Instant,
    answered: Instant,
    message_sent: Instant,
    last_answer: Instant,
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// The wanted channels, each with the number of the last request for it.
    wanted: BTreeMap<Arc<str>, u64>,
    requests: u64,
    inbox: VecDeque<Incoming>,
    /// The master's client number for this process, and its end of the connection for messages.
    client: u64,
    message_end: Arc<MessageEnd>,
    subscribed: BTreeSet<Arc<str>>,
    /// How many subscribe requests wait at a stalled master.
    held: usize,
}

/// What has reached the process but has not been read yet.
enum Incoming {
    Answer { connection: u64, no: u64, answer: Answer },
    Connected { connection: u64, run: Run },
    Broken { connection: u64 },
    Subscribed { connection: u64, request: u64, channel: Arc<str> },
    Refused { connection: u64, request: u64, channel: Arc<str> },
    Message { connection: u64, channel: Arc<str>, text: String },
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
            let message_end = MessageEnd::new(me.clone(), 0, Run::default());
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
                    held: 0,
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

    /// Actions of one connection at the same time keep their order.
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

    /// Runs the task of the process that reads what arrives.
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
            Incoming::Refused { connection, request, channel }
                if connection == current && self.wants(&channel) == Some(request) =>
            {
                events.not_subscribed(&channel);
            }
            Incoming::Message { connection, channel, text }
                if connection == current && self.wants(&channel).is_some() =>
            {
                self.note(|| format!("message of {channel}"));
                events.message(&channel, &text);
            }
            _ => {}
        }
    }

    /// Returns the number of the last request for this channel, if it is wanted.
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

    /// Makes the master notice that a client is gone.
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
        let message_end = MessageEnd::new(self.me.clone(), connection, run);
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

    /// Makes the link work on any runtime from now on. At first it does not, since a table that may be taken
    /// over reads a clock that is not simulated.
    pub(super) fn make_portable(&self) {
        self.portable.store(true, SeqCst);
    }
}

impl Between for Link {
    fn reset(&self) {
        let connection = lock(&self.state).connection;
        let takes = self.key(connection).with(107).time(self.network.latency);
        self.add(Instant::now() + takes, move |link| link.deliver(Incoming::Broken { connection }));
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let (client, gone) = (state.client, std::mem::take(&mut state.pending));
        drop(state);
        drop(gone);
        self.leave(client);
    }

    fn subscriptions(&self) -> usize {
        lock(&self.state).subscribed.iter().filter(|channel| !is_for_hints(channel)).count()
    }
}

impl Backend for Link {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move { self.answer(call).await })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move { self.answer_all(calls).await })
    }

    fn is_unused(&self, _: &Keys) -> bool {
        let state = lock(&self.state);
        state.up && !state.closed && state.pending.is_empty()
    }

    fn begin(self: Arc<Self>, call: &Call) -> Option<BoxFuture<Result<Reply, Failure>>> {
        let mut sent = self.run(call.clone());
        Some(match sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Box::pin(std::future::ready(answer)),
            Poll::Pending => sent,
        })
    }

    fn run_last(&self, calls: Vec<Call>) {
        for (call, me) in calls.iter().zip(std::iter::repeat(self.me.upgrade())) {
            drop(me.and_then(|me| me.begin(call)));
        }
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        lock(&self.state).run.started.is_some_and(|started| Instant::now() < after(started, age))
    }

    fn is_away(&self) -> bool {
        !lock(&self.state).up
    }

    fn is_connected(&self, _: &Keys) -> bool {
        lock(&self.state).up
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
