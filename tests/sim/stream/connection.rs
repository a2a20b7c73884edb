//! One connection: the bytes under way in both directions, and its two ends.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::base::{Events, lock};
use crate::sim::dice::Key;
use crate::sim::master::{Order, Run};
use crate::sim::network::{Network, is_for_hints};
use crate::sim::stream::requests::Requests;
use crate::sim::stream::server::Server;

/// The time after which a server notices that a client that it can't reach is gone.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// The time after which the client's system notices that a server is gone.
const CLIENT_KEEPALIVE: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    network: Arc<Network>,
    server: Arc<Server>,
    process: usize,
    master: usize,
    number: u64,
    key: Key,
    /// The run of the master that it leads to.
    run: Run,
    me: Weak<Connection>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

#[derive(Default)]
struct State {
    requests: Lane,
    answers: Lane,
    /// The bytes that the server has not run yet.
    unread: Requests,
    /// How many requests the server has run.
    run: u64,
    /// The bytes that the client has not read yet.
    inbox: VecDeque<u8>,
    reader: Option<Waker>,
    /// Until when the client's end has no room. The waker below is that of the task that waits for room.
    full_until: Option<Instant>,
    writer: Option<Waker>,
    /// The client reads this after everything in the inbox.
    end: Option<End>,
    /// The client has dropped its end.
    left: bool,
    /// The server has dropped its end.
    gone: bool,
    /// Nothing passes any more, and neither end notices that.
    silent: bool,
    message_end: Option<(u64, Arc<MessageEnd>)>,
    subscribed: BTreeSet<String>,
}

#[derive(Clone, Copy)]
enum End {
    Closed,
    Reset,
}

/// The chunks under way in one direction, in their order.
#[derive(Default)]
struct Lane {
    chunks: VecDeque<Chunk>,
    sent: u64,
    last: Option<Instant>,
}

struct Chunk {
    at: Instant,
    bytes: Vec<u8>,
    /// Its number among all chunks of all processes, in the order in which they were sent.
    order: u64,
    /// Whether the server forgets all scripts before this chunk.
    forgets: bool,
    then: Then,
}

/// What happens to the connection after these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    /// Both ends notice that it is broken.
    Breaks,
    FallsSilent,
    /// The client has closed it.
    Closes,
}

impl State {
    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Answers => &mut self.answers,
        }
    }

    /// Counts a request. Returns its place among the requests of this connection.
    fn runs(&mut self) -> u64 {
        self.run += 1;
        self.run
    }

    fn ends(&mut self, end: End) -> Option<Waker> {
        self.end.get_or_insert(end);
        self.reader.take()
    }
}

impl Connection {
    pub(super) fn new(
        network: &Arc<Network>,
        server: &Arc<Server>,
        (process, master): (usize, usize),
        number: u64,
        key: Key,
    ) -> Arc<Connection> {
        Arc::new_cyclic(|me| Connection {
            network: network.clone(),
            server: server.clone(),
            process,
            master,
            number,
            key,
            run: server.run(),
            me: me.clone(),
            state: Mutex::default(),
        })
    }

    fn note(&self, line: impl FnOnce() -> String) {
        let Connection { process, master, number, .. } = self;
        self.network.history.note(|| format!("p{process}-m{master}.{number}  {}", line()));
    }

    fn send(&self, direction: Direction, mut bytes: Vec<u8>) {
        let (network, now) = (&self.network, Instant::now());
        let mut state = lock(&self.state);
        let listens = state.message_end.is_some();
        if state.silent || state.gone {
            return;
        }
        let lane = state.lane(direction);
        lane.sent += 1;
        let key = self.key.with(direction as u64).with(lane.sent);
        let weather = network.weather(self.process, self.master, key);
        let (takes, lost) = match direction {
            Direction::Requests => (weather.to, weather.loses_command),
            Direction::Answers if listens => {
                let (lost, takes) = network.message(self.process, self.master, key);
                (takes, lost)
            }
            Direction::Answers => (weather.back, weather.loses_answer),
        };
        let mut then = Then::GoesOn;
        let mut rest = None;
        if lost {
            then = if key.with(1).one_in(2) { Then::Breaks } else { Then::FallsSilent };
            bytes.truncate(key.with(2).roll(bytes.len() as u64 + 1) as usize);
            self.note(|| format!("{then:?} after {} bytes of {direction:?}", bytes.len()));
        } else if key.with(3).one_in(4) && bytes.len() > 1 {
            rest = Some(bytes.split_off(1 + key.with(4).roll(bytes.len() as u64 - 1) as usize));
        }
        let order = if direction == Direction::Requests { network.history.command() } else { 0 };
        let mut at = (now + takes).max(lane.last.unwrap_or(now));
        lane.chunks.push_back(Chunk { at, bytes, order, forgets: weather.forgets, then });
        self.schedule(direction, at);
        if let Some(bytes) = rest {
            at += key.with(5).time(network.latency);
            lane.chunks.push_back(Chunk { at, bytes, order, forgets: false, then });
            self.schedule(direction, at);
        }
        lane.last = Some(at);
        drop(state);
        if now + 2 * network.latency < at {
            network.history.trouble_until(at);
        }
        if direction == Direction::Requests {
            network.arrives_at(at);
            // The client's end breaks, but what it has sent still arrives.
            if weather.overtakes && key.with(6).one_in(4) {
                self.note(|| "the client's end breaks".to_owned());
                let reader = lock(&self.state).ends(End::Reset);
                reader.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn schedule(&self, direction: Direction, at: Instant) {
        let me = self.me.clone();
        self.network.agenda.add(at, self.key.bits(), move || {
            if let Some(connection) = me.upgrade() {
                connection.arrive(direction);
            }
        });
    }

    /// Delivers what has arrived by now.
    fn arrive(&self, direction: Direction) {
        let network = &self.network;
        loop {
            let cut = network.cut_until(self.process, self.master);
            let stalled = network.stalled_until(self.master).filter(|_| direction == Direction::Requests);
            let mut state = lock(&self.state);
            let lane = state.lane(direction);
            if lane.chunks.front().is_none_or(|chunk| Instant::now() < chunk.at) {
                return;
            }
            if let Some(until) = cut.max(stalled) {
                drop(state);
                network.arrives_at(until);
                return self.schedule(direction, until);
            }
            let Some(chunk) = lane.chunks.pop_front() else { return };
            drop(state);
            self.deliver(direction, chunk);
        }
    }

    fn deliver(&self, direction: Direction, chunk: Chunk) {
        match direction {
            Direction::Requests => {
                if self.server.run() != self.run {
                    return self.breaks();
                }
                if chunk.forgets {
                    self.server.forgets_scripts();
                }
                lock(&self.state).unread.arrive(&chunk.bytes);
                self.run_requests(chunk.order);
            }
            Direction::Answers => {
                let mut state = lock(&self.state);
                state.inbox.extend(chunk.bytes);
                let reader = state.reader.take();
                drop(state);
                reader.into_iter().for_each(Waker::wake);
            }
        }
        match chunk.then {
            Then::GoesOn => {}
            Then::Breaks => self.breaks(),
            Then::FallsSilent => {
                let mut state = lock(&self.state);
                state.silent = true;
                (state.requests.chunks, state.answers.chunks) = Default::default();
                // The close of the client was under way, and does not arrive any more.
                if state.left {
                    self.closes(state);
                } else {
                    drop(state);
                    self.is_found_dead();
                }
            }
            Then::Closes => self.leaves(),
        }
    }

    /// Lets the client's system notice later that the connection is dead.
    fn is_found_dead(&self) {
        let me = self.me.clone();
        self.network.agenda.add(Instant::now() + CLIENT_KEEPALIVE, self.key.bits(), move || {
            let Some(connection) = me.upgrade() else { return };
            let reader = lock(&connection.state).ends(End::Reset);
            reader.into_iter().for_each(Waker::wake);
        });
    }

    /// Runs all requests that have arrived completely, and sends their answers. `sent`: the number of the chunk among those of all
    /// processes. One chunk may contain several requests.
    fn run_requests(&self, sent: u64) {
        let mut answers = String::new();
        loop {
            // Nothing is locked while a request runs, since it may send messages over this connection.
            let Some(words) = lock(&self.state).unread.next() else { break };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match *words {
                ["SUBSCRIBE", channel] => answers += &self.subscribe(channel),
                ["UNSUBSCRIBE", channel] => answers += &self.unsubscribe(channel),
                _ => {
                    let order = Order { sent, place: lock(&self.state).runs() };
                    let (answer, shown) = self.server.answer(&words, order);
                    answers += &answer;
                    if let Some(shown) = shown {
                        self.note(|| shown);
                    }
                }
            }
        }
        if !answers.is_empty() {
            self.send(Direction::Answers, answers.into_bytes());
        }
    }

    fn subscribe(&self, channel: &str) -> String {
        if self.network.polls(self.process) {
            return "-NOPERM no permissions to access a channel\r\n".to_owned();
        }
        let master = self.server.master();
        let known = lock(&self.state).message_end.as_ref().map(|(client, _)| *client);
        let client = known.unwrap_or_else(|| {
            let end = Arc::new(MessageEnd(self.me.clone()));
            let receiver: Weak<dyn Events> = Arc::downgrade(&(end.clone() as Arc<dyn Events>));
            let client = master.memory.visit(|store| store.join(receiver));
            lock(&self.state).message_end = Some((client, end));
            client
        });
        let now = master.now();
        master.memory.visit(|store| {
            store.subscribe(client, channel);
            store.run_backlog(now);
        });
        self.note(|| format!("is subscribed to {channel}"));
        let mut state = lock(&self.state);
        state.subscribed.insert(channel.to_owned());
        confirmed("subscribe", channel, state.subscribed.len())
    }

    fn unsubscribe(&self, channel: &str) -> String {
        let mut state = lock(&self.state);
        state.subscribed.remove(channel);
        let (left, client) = (state.subscribed.len(), state.message_end.as_ref().map(|(client, _)| *client));
        drop(state);
        if let Some(client) = client {
            self.server.master().memory.visit(|store| store.unsubscribe(client, channel));
        }
        self.note(|| format!("is not subscribed to {channel} any more"));
        confirmed("unsubscribe", channel, left)
    }

    /// Resets the connection: both ends notice, and what is under way is lost.
    pub(super) fn breaks(&self) {
        self.leaves();
        let end = if self.key.with(7).one_in(2) { End::Reset } else { End::Closed };
        let mut state = lock(&self.state);
        (state.requests.chunks, state.answers.chunks) = Default::default();
        let reader = state.ends(end);
        drop(state);
        self.note(|| "is broken".to_owned());
        reader.into_iter().for_each(Waker::wake);
    }

    /// Handles a fault of the network: the connection is reset, or what is under way still arrives. A connection to an earlier run of the
    /// master is always reset.
    pub(super) fn is_reset(&self, key: Key) {
        let is_over = lock(&self.state).gone;
        if !is_over && (self.server.run() != self.run || key.with(self.number).one_in(2)) {
            self.breaks();
        }
    }

    /// The server drops its end.
    fn leaves(&self) {
        let mut state = lock(&self.state);
        state.gone = true;
        state.subscribed.clear();
        let message_end = state.message_end.take();
        drop(state);
        if let Some((client, _)) = message_end {
            self.server.master().memory.visit(|store| store.leave(client));
        }
    }

    /// Returns whether the client's end has no room. If so, the task that writes is woken once there is room.
    fn is_full(&self, cx: &Context<'_>) -> bool {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let until = match state.full_until {
            // From now on it accepts all that is written.
            Some(until) if until <= now => {
                state.full_until = None;
                return false;
            }
            Some(until) => until,
            None => {
                let key = self.key.with(8).with(state.requests.sent);
                if !key.with(1).one_in(8) {
                    return false;
                }
                let until = now + Duration::from_micros(100) + key.with(2).time(self.network.latency);
                state.full_until = Some(until);
                let me = self.me.clone();
                self.network.agenda.add(until, self.key.bits(), move || {
                    let writer = me.upgrade().and_then(|me| lock(&me.state).writer.take());
                    writer.into_iter().for_each(Waker::wake);
                });
                until
            }
        };
        state.writer = Some(cx.waker().clone());
        now < until
    }

    /// The client drops its end. What it has sent still arrives.
    pub(super) fn is_left(&self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.left, true) || state.gone {
            return;
        }
        self.closes(state);
    }

    /// Lets the server notice later that the client has closed the connection.
    fn closes(&self, mut state: MutexGuard<'_, State>) {
        let at = Instant::now() + if state.silent { KEEPALIVE } else { self.network.latency };
        let lane = state.lane(Direction::Requests);
        let at = at.max(lane.last.unwrap_or(at));
        lane.last = Some(at);
        let (bytes, order, forgets) = (Vec::new(), 0, false);
        lane.chunks.push_back(Chunk { at, bytes, order, forgets, then: Then::Closes });
        drop(state);
        self.schedule(Direction::Requests, at);
    }

    /// Returns whether neither end uses the connection any more.
    pub(super) fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.left && state.gone
    }

    pub(super) fn subscriptions(&self) -> usize {
        lock(&self.state).subscribed.iter().filter(|channel| !is_for_hints(channel)).count()
    }
}

/// Returns the confirmation of a change of subscriptions, as a push of RESP3.
fn confirmed(what: &str, channel: &str, count: usize) -> String {
    format!(">3\r\n${}\r\n{what}\r\n${}\r\n{channel}\r\n:{count}\r\n", what.len(), channel.len())
}

/// Writes what the master publishes to the connection.
struct MessageEnd(Weak<Connection>);

impl Events for MessageEnd {
    fn reconnected(&self) {}
    fn subscribed(&self, _: &str) {}
    fn not_subscribed(&self, _: &str) {}
    fn subscriptions_lost(&self) {}

    fn message(&self, channel: &str, text: &str) {
        let Some(connection) = self.0.upgrade() else { return };
        let (channel_len, text_len) = (channel.len(), text.len());
        let message =
            format!(">3\r\n$7\r\nmessage\r\n${channel_len}\r\n{channel}\r\n${text_len}\r\n{text}\r\n");
        let (agenda, tie, channel) = (&connection.network.agenda, connection.key.bits(), channel.to_owned());
        let me = self.0.clone();
        // The store notifies its clients in an order that no seed decides, so the agenda orders the messages.
        agenda.add(Instant::now(), tie, move || {
            let Some(connection) = me.upgrade() else { return };
            connection.note(|| format!("message of {channel}"));
            connection.send(Direction::Answers, message.into_bytes());
        });
    }
}

/// The client's end, used like a socket.
pub(super) struct Socket {
    pub(super) connection: Arc<Connection>,
    /// Whether it sometimes has no room for a moment.
    pub(super) may_be_full: bool,
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.connection.state);
        if !state.inbox.is_empty() {
            let count = buf.remaining().min(state.inbox.len());
            let bytes: Vec<u8> = state.inbox.drain(..count).collect();
            buf.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        match state.end {
            Some(End::Closed) => Poll::Ready(Ok(())),
            Some(End::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if lock(&self.connection.state).end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.may_be_full && self.connection.is_full(cx) {
            return Poll::Pending;
        }
        self.connection.send(Direction::Requests, bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.is_left();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.connection.is_left();
    }
}
