//! Faults: what the proxy does to which commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::link::{self, End};
use super::{Shared, soon};
use crate::support::resp::Command;

type Matcher = Box<dyn Fn(&Command) -> bool + Send + Sync>;

/// What happens to a matching command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Watch,
    Hold,
    HoldReply,
    /// The command runs, and its reply is lost. The connection ends, or stays open silently.
    DropReply(Option<End>),
    DelayReply(Duration),
    /// The first text in the reply is replaced by the second one.
    ReplaceInReply(&'static str, &'static str),
    /// This text replaces the reply.
    ReplaceReply(&'static str),
    /// The command does not reach the server.
    Lose(End),
}

pub(super) struct Rule {
    matches: Matcher,
    pub(super) deed: Deed,
    /// How many matching commands still pass, and how many are hit after those.
    budget: Mutex<(usize, usize)>,
    ended: AtomicBool,
    seen: mpsc::UnboundedSender<Command>,
    hit: mpsc::UnboundedSender<Command>,
    held: Mutex<Vec<Held>>,
    /// Lets held replies through.
    pub(super) open: watch::Sender<bool>,
}

impl Rule {
    /// Returns whether this command is hit, and counts it.
    pub(super) fn takes(&self, command: &Command) -> bool {
        if self.ended.load(Ordering::SeqCst) || !(self.matches)(command) {
            return false;
        }
        let mut budget = self.budget.lock().unwrap();
        let (skip, times) = &mut *budget;
        if *skip > 0 {
            *skip -= 1;
            return false;
        }
        if *times == 0 {
            return false;
        }
        *times -= 1;
        true
    }

    pub(super) fn saw(&self, command: &Command) {
        let _ = self.seen.send(command.clone());
    }

    /// Gives back a hit: the server didn't know the script, so the command didn't run. The command with the script's body follows, and is
    /// hit instead.
    pub(super) fn give_back(&self) {
        let mut budget = self.budget.lock().unwrap();
        budget.1 = budget.1.saturating_add(1);
    }

    /// Reports that the fault has happened.
    pub(super) fn done(&self, command: &Command) {
        let _ = self.hit.send(command.clone());
    }

    pub(super) fn keep(&self, held: Held) {
        // This is checked under the lock. 1. If this comes first, the code that ends the rule finds the command in the list. 2. If the rule
        // is ended first, the command continues at once. In neither order is the command left behind.
        let mut list = self.held.lock().unwrap();
        if self.ended.load(Ordering::SeqCst) {
            let _ = held.go.send(Go::default());
        } else {
            list.push(held);
        }
    }
}

/// A command that waits in the proxy.
pub(super) struct Held {
    pub(super) frame: Vec<u8>,
    /// What was sent first on its connection: the password, the database.
    pub(super) handshake: Vec<Vec<u8>>,
    pub(super) go: oneshot::Sender<Go>,
}

/// Tells a held command to go on.
#[derive(Default)]
pub(super) struct Go {
    /// Is set before the command is sent.
    pub(super) sent: Arc<AtomicBool>,
    /// Receives the reply.
    pub(super) answer: Option<oneshot::Sender<Vec<u8>>>,
    /// Whether the command is lost instead.
    pub(super) lose: bool,
}

/// A fault that is being set up: which commands it hits, and how many.
#[must_use = "does nothing until one of its methods says what to do"]
pub struct On<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) matches: Matcher,
    pub(super) skip: usize,
    pub(super) times: usize,
}

impl On<'_> {
    /// Limits the fault to this many commands. Without a limit it hits all until it is dropped.
    pub fn times(self, times: usize) -> Self {
        On { times, ..self }
    }

    /// Lets this many matching commands pass first.
    pub fn skip(self, skip: usize) -> Self {
        On { skip, ..self }
    }

    /// Forwards the commands, and reports them through [`Fault::seen`].
    pub fn watch(self) -> Fault {
        self.fault(Deed::Watch)
    }

    /// Holds the commands in the proxy until [`Fault::let_through`], with everything that their connection sends after them. If a
    /// connection ends in the meantime, its held commands still run later, as after a retransmission.
    pub fn hold(self) -> Fault {
        self.fault(Deed::Hold)
    }

    /// Lets the commands run. Their replies, and everything after these, wait until [`Fault::let_through`]. For a `SUBSCRIBE` the reply is
    /// its confirmation.
    pub fn hold_reply(self) -> Fault {
        self.fault(Deed::HoldReply)
    }

    /// Lets the commands run. The connection stays open, but no more data from the server arrives on it. (A single reply can't be missing:
    /// TCP has no gaps, and the next reply would be taken for it.)
    pub fn drop_reply(self) -> Fault {
        self.fault(Deed::DropReply(None))
    }

    /// Lets the commands run. The connection is reset instead of delivering their reply.
    pub fn drop_reply_and_reset(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Reset)))
    }

    /// Lets the commands run. The connection is closed in order instead of delivering their reply.
    pub fn drop_reply_and_close(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Close)))
    }

    /// Delays the replies of the commands by this time.
    pub fn delay_reply(self, by: Duration) -> Fault {
        self.fault(Deed::DelayReply(by))
    }

    /// Replaces the first text in the commands' replies by the second one.
    pub fn replace_in_reply(self, text: &'static str, by: &'static str) -> Fault {
        self.fault(Deed::ReplaceInReply(text, by))
    }

    /// Replaces the commands' replies by this line. The commands still run.
    pub fn replace_reply(self, by: &'static str) -> Fault {
        self.fault(Deed::ReplaceReply(by))
    }

    /// Loses the commands before they reach the server, and resets the connection.
    pub fn lose_and_reset(self) -> Fault {
        self.fault(Deed::Lose(End::Reset))
    }

    fn fault(self, deed: Deed) -> Fault {
        let (seen, seen_rx) = mpsc::unbounded_channel();
        let (hit, hit_rx) = mpsc::unbounded_channel();
        let rule = Arc::new(Rule {
            matches: self.matches,
            deed,
            budget: Mutex::new((self.skip, self.times)),
            ended: AtomicBool::new(false),
            seen,
            hit,
            held: Mutex::default(),
            open: watch::channel(false).0,
        });
        self.shared.rules.lock().unwrap().push(rule.clone());
        Fault { shared: Arc::downgrade(self.shared), rule, seen: seen_rx.into(), hit: hit_rx.into() }
    }
}

/// An active fault. A drop ends it: a held command continues if its connection is still open, and is lost otherwise.
#[must_use = "dropping it ends the fault"]
pub struct Fault {
    shared: Weak<Shared>,
    rule: Arc<Rule>,
    seen: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
    hit: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
}

impl Fault {
    /// Waits until the proxy has received a matching command. Each call waits for the next one. A held command has not been sent.
    pub async fn seen(&self) -> Command {
        let next = async { self.seen.lock().await.recv().await };
        soon("a matching command at the proxy", next).await.expect("the rule lives")
    }

    /// Waits until the fault has happened to a command. Each call waits for the next one. Either the command ran, and its reply is gone,
    /// held back or (if delayed) sent on; or the command is held; or it is lost.
    pub async fn done(&self) -> Command {
        let next = async { self.hit.lock().await.recv().await };
        soon("the fault's deed at the proxy", next).await.expect("the rule lives")
    }

    /// Returns a hit command that [`done`](Fault::done) has not reported yet.
    pub fn done_now(&self) -> Option<Command> {
        self.hit.try_lock().ok()?.try_recv().ok()
    }

    /// Returns a matching command that has arrived and that [`seen`](Fault::seen) has not reported yet.
    pub fn seen_now(&self) -> Option<Command> {
        self.seen.try_lock().ok()?.try_recv().ok()
    }

    /// Forwards everything that is held, and ends the fault. Returns once the held commands have run, with their replies as sent over the
    /// wire (`":1\r\n"`). If a command's connection has ended, the proxy sends the command on a connection of its own, and everything that
    /// was queued after it is lost.
    pub async fn let_through(&self) -> Vec<String> {
        self.end();
        self.rule.open.send_replace(true);
        let held = std::mem::take(&mut *self.rule.held.lock().unwrap());
        let mut replies = Vec::new();
        for held in held {
            let reply = soon("the reply to a held command", self.deliver(held)).await;
            replies.push(String::from_utf8_lossy(&reply).into_owned());
        }
        replies
    }

    /// Drops everything that is held, and ends the fault. The connections are reset.
    pub fn forget(&self) {
        self.end();
        for held in std::mem::take(&mut *self.rule.held.lock().unwrap()) {
            let _ = held.go.send(Go { lose: true, ..Go::default() });
        }
    }

    async fn deliver(&self, held: Held) -> Vec<u8> {
        let Held { frame, handshake, go } = held;
        let (answer, answered) = oneshot::channel();
        let sent = Arc::new(AtomicBool::new(false));
        let way = Go { sent: sent.clone(), answer: Some(answer), lose: false };
        if go.send(way).is_ok() {
            match answered.await {
                Ok(reply) => return reply,
                // Nobody will know whether the command ran: the connection broke after it was sent.
                Err(_) if sent.load(Ordering::SeqCst) => return Vec::new(),
                Err(_) => {}
            }
        }
        let server = *self.shared.upgrade().expect("the proxy lives").server.lock().unwrap();
        let run = link::run_alone(server, handshake, frame);
        run.await.expect("the server takes the held command")
    }

    fn end(&self) {
        self.rule.ended.store(true, Ordering::SeqCst);
        if let Some(shared) = self.shared.upgrade() {
            shared.rules.lock().unwrap().retain(|rule| !Arc::ptr_eq(rule, &self.rule));
        }
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        self.end();
        self.rule.open.send_replace(true);
        for held in std::mem::take(&mut *self.rule.held.lock().unwrap()) {
            let _ = held.go.send(Go::default());
        }
    }
}
