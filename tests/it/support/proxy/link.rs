//! One connection through the proxy.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::fault::{Deed, Held, Rule};
use super::front::{Client, Front, Stream};
use super::{Shared, Which};
use crate::support::resp::{self, Command, Kind};

/// How a connection ends for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The connection is reset (RST).
    Reset,
    /// The connection is closed in order (FIN).
    Close,
}

/// The state of a connection that other tasks may read and change.
pub(super) struct Link {
    id: u64,
    subscriber: AtomicBool,
    mute: AtomicBool,
    /// A replica follows its master over this connection: a stream replaces commands and replies.
    replicates: AtomicBool,
    end: watch::Sender<Option<End>>,
    ended: watch::Sender<bool>,
    waiting: Mutex<VecDeque<Waiting>>,
}

/// A command that the server has not answered yet.
struct Waiting {
    command: Command,
    replies: usize,
    rule: Option<Arc<Rule>>,
    answer: Option<oneshot::Sender<Vec<u8>>>,
}

impl Link {
    pub(super) fn new(id: u64) -> Link {
        Link {
            id,
            subscriber: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            replicates: AtomicBool::new(false),
            end: watch::channel(None).0,
            ended: watch::channel(false).0,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn is_subscriber(&self) -> bool {
        self.subscriber.load(Ordering::SeqCst)
    }

    pub(super) fn mute(&self) {
        self.mute.store(true, Ordering::SeqCst);
    }

    fn is_mute(&self) -> bool {
        self.mute.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self, how: End) {
        self.end.send_replace(Some(how));
    }

    pub(super) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Returns the command that this frame from the server answers. One command may be answered several times.
    fn answered(&self, kind: Kind) -> Option<Waiting> {
        let mut waiting = self.waiting.lock().unwrap();
        let first = waiting.front_mut()?;
        let subscribes = first.command.changes_subscriptions();
        match kind {
            Kind::Push => return None,
            Kind::Confirmation if !subscribes => return None,
            // A refusal is the only answer, even if several channels were named.
            Kind::Reply => first.replies = 1,
            Kind::Confirmation => {}
        }
        first.replies -= 1;
        if first.replies == 0 {
            return waiting.pop_front();
        }
        let command = first.command.clone();
        Some(Waiting {
            command,
            replies: first.replies,
            rule: first.rule.take(),
            answer: first.answer.take(),
        })
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, link: Arc<Link>, client: Client) {
    if let Ok(socket) = client.socket() {
        if carry(&shared, &link, client).await == End::Reset {
            // A Unix socket can't be reset, so it is closed.
            let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
        drop(socket);
    }
    shared.links.lock().unwrap().remove(&link.id);
    link.ended.send_replace(true);
}

async fn carry(shared: &Shared, link: &Link, client: Client) -> End {
    let to = *shared.server.lock().unwrap();
    let mut order = link.end.subscribe();
    let order = async {
        let order = order.wait_for(Option::is_some).await;
        order.ok().and_then(|end| *end).unwrap_or(End::Close)
    };
    let carried = async {
        // For the client this looks like a server that closed the connection at once.
        let Ok(server) = TcpStream::connect(to).await else { return End::Reset };
        let _ = server.set_nodelay(true);
        if link.is_mute() && matches!(shared.front, Front::Tls(_)) {
            return std::future::pending().await;
        }
        let Ok(client) = client.open(&shared.front).await else { return End::Close };
        let (from_client, to_client) = tokio::io::split(client);
        let (from_server, to_server) = tokio::io::split(server);
        let (out, outgoing) = mpsc::unbounded_channel();
        tokio::select! {
            end = up(shared, link, from_client, to_server) => end,
            end = down(link, from_server, out) => end,
            end = deliver(link, outgoing, to_client) => end,
        }
    };
    tokio::select! {
        end = order => end,
        end = carried => end,
    }
}

/// Forwards data from the client to the server.
async fn up(
    shared: &Shared,
    link: &Link,
    mut client: ReadHalf<Stream>,
    mut server: WriteHalf<TcpStream>,
) -> End {
    let mut bytes = Vec::new();
    let mut handshake = Vec::new();
    loop {
        match client.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return End::Close,
            Ok(_) => {}
        }
        while let Some(len) = resp::frame_len(&bytes).filter(|_| !link.is_mute()) {
            let frame: Vec<u8> = bytes.drain(..len).collect();
            let command = Command::parse(&frame, link.id);
            if command.is_handshake() {
                handshake.push(frame.clone());
            }
            if command.is("psync") {
                link.replicates.store(true, Ordering::SeqCst);
            }
            if let Err(end) = forward(shared, link, command, frame, &handshake, &mut server).await {
                return end;
            }
        }
        if link.is_mute() {
            bytes.clear();
        }
    }
}

/// Forwards one command.
async fn forward(
    shared: &Shared,
    link: &Link,
    command: Command,
    frame: Vec<u8>,
    handshake: &[Vec<u8>],
    server: &mut WriteHalf<TcpStream>,
) -> Result<(), End> {
    if command.changes_subscriptions() {
        link.subscriber.store(true, Ordering::SeqCst);
    }
    let prelude = command.is_handshake() || command.name == "CLIENT";
    let dead = *shared.half_open.lock().unwrap();
    if dead.is_some_and(|which| which.covers(link.is_subscriber()) && (which == Which::All || !prelude)) {
        link.mute();
        return Ok(());
    }
    let replies = command.replies();
    let mut waiting = Waiting { command, replies, rule: None, answer: None };
    if let Some(rule) = taken(shared, &waiting.command) {
        let command = &waiting.command;
        match rule.deed {
            Deed::Hold => {
                let (go, gone) = oneshot::channel();
                rule.keep(Held { frame: frame.clone(), handshake: handshake.to_vec(), go });
                rule.saw(command);
                rule.done(command);
                let go = gone.await.unwrap_or_default();
                if go.lose {
                    return Err(End::Reset);
                }
                waiting.answer = go.answer;
                go.sent.store(true, Ordering::SeqCst);
            }
            Deed::Lose(end) => {
                rule.saw(command);
                rule.done(command);
                return Err(end);
            }
            _ => {
                rule.saw(command);
                waiting.rule = Some(rule);
            }
        }
    }
    // This comes before the send, since the reply may arrive before the write returns. A replica's reports have no reply.
    if !link.replicates.load(Ordering::SeqCst) {
        link.waiting.lock().unwrap().push_back(waiting);
    }
    server.write_all(&frame).await.map_err(|_| End::Reset)
}

/// Returns the fault that this command meets.
fn taken(shared: &Shared, command: &Command) -> Option<Arc<Rule>> {
    let rules = shared.rules.lock().unwrap().clone();
    let (watching, acting): (Vec<_>, Vec<_>) = rules.into_iter().partition(|rule| rule.deed == Deed::Watch);
    for rule in watching.iter().filter(|rule| rule.takes(command)) {
        rule.saw(command);
        rule.done(command);
    }
    acting.into_iter().find(|rule| rule.takes(command))
}

/// A frame on its way to the client.
struct Outgoing {
    frame: Vec<u8>,
    /// The fault that delays the frame, and the command that the frame answers.
    late: Option<(Arc<Rule>, Command, Instant)>,
    /// How the connection ends instead of delivering the frame.
    end: Option<End>,
}

/// Forwards frames from the server to the queue for the client.
async fn down(link: &Link, mut server: ReadHalf<TcpStream>, out: mpsc::UnboundedSender<Outgoing>) -> End {
    let mut bytes = Vec::new();
    let mut silent = false;
    loop {
        let ended = match server.read_buf(&mut bytes).await {
            Ok(0) => Some(End::Close),
            Ok(_) => None,
            Err(_) => Some(End::Reset),
        };
        if link.replicates.load(Ordering::SeqCst) {
            let _ = out.send(Outgoing { frame: std::mem::take(&mut bytes), late: None, end: None });
        }
        while let Some(len) = resp::frame_len(&bytes) {
            if let Some(next) = meet(link, bytes.drain(..len).collect(), &mut silent) {
                let _ = out.send(next);
            }
        }
        if let Some(end) = ended {
            let _ = out.send(Outgoing { frame: Vec::new(), late: None, end: Some(end) });
            return std::future::pending().await;
        }
    }
}

/// Decides what happens to a frame from the server.
fn meet(link: &Link, frame: Vec<u8>, silent: &mut bool) -> Option<Outgoing> {
    let kind = resp::kind(&frame, link.is_subscriber());
    let mut next = Outgoing { frame, late: None, end: None };
    if let Some(Waiting { command, rule, answer, .. }) = link.answered(kind) {
        if let Some(answer) = answer {
            let _ = answer.send(next.frame.clone());
        }
        match rule.map(|rule| (rule.deed, rule)) {
            Some((_, rule)) if next.frame.starts_with(b"-NOSCRIPT") => rule.give_back(),
            Some((Deed::DropReply(end), rule)) => {
                rule.done(&command);
                *silent = true;
                // An end replaces its reply in order: frames before it still arrive.
                next.end = end;
                return end.map(|_| next);
            }
            Some((Deed::HoldReply, rule)) => {
                rule.done(&command);
                next.late = Some((rule, command, Instant::now()));
            }
            Some((Deed::ReplaceInReply(text, by), rule)) => {
                next.frame = resp::replaced(&next.frame, text, by);
                rule.done(&command);
            }
            Some((Deed::ReplaceReply(by), rule)) => {
                next.frame = format!("{by}\r\n").into_bytes();
                rule.done(&command);
            }
            Some((Deed::DelayReply(by), rule)) => next.late = Some((rule, command, Instant::now() + by)),
            _ => {}
        }
    }
    (!*silent).then_some(next)
}

/// Forwards frames from the queue to the client.
async fn deliver(
    link: &Link,
    mut queue: mpsc::UnboundedReceiver<Outgoing>,
    mut client: WriteHalf<Stream>,
) -> End {
    while let Some(Outgoing { frame, late, end }) = queue.recv().await {
        if let Some((rule, _, until)) = &late {
            tokio::time::sleep_until(*until).await;
            if rule.deed == Deed::HoldReply {
                let _ = rule.open.subscribe().wait_for(|open| *open).await;
            }
        }
        if let Some(end) = end {
            return end;
        }
        // Over TLS, part of a frame may wait for the flush.
        if !link.is_mute() && (client.write_all(&frame).await.is_err() || client.flush().await.is_err()) {
            return End::Close;
        }
        if let Some((rule, command, _)) = late.filter(|(rule, ..)| rule.deed != Deed::HoldReply) {
            rule.done(&command);
        }
    }
    End::Close
}

/// Runs a command whose own connection has ended. Returns the reply.
pub(super) async fn run_alone(
    server: SocketAddr,
    handshake: Vec<Vec<u8>>,
    frame: Vec<u8>,
) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(server).await?;
    let mut bytes = Vec::new();
    let mut reply = Vec::new();
    for frame in handshake.iter().chain([&frame]) {
        server.write_all(frame).await?;
        let len = loop {
            if let Some(len) = resp::frame_len(&bytes) {
                break len;
            }
            if server.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        reply = bytes.drain(..len).collect();
    }
    Ok(reply)
}
