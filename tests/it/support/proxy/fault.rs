//! What is done to which commands.

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
    /// The command runs and its reply is lost. The connection ends, or stays open silently.
    DropReply(Option<End>),
    DelayReply(Duration),
    /// The first text in the reply is replaced by the second one.
    ReplaceInReply(&'static str, &'static str),
    /// This replaces the reply.
    ReplaceReply(&'static str),
    /// The command never reaches the server.
    Lose(End),
}

pub(super) struct Rule {
    matches: Matcher,
    pub(super) deed: Deed,
    /// How many matching commands still pass, and how many are hit after that.
    budget: Mutex<(usize, usize)>,
    ended: AtomicBool,
    seen: mpsc::UnboundedSender<Command>,
    hit: mpsc::UnboundedSender<Command>,
    held: Mutex<Vec<Held>>,
    /// Opens held replies.
    pub(super) open: watch::Sender<bool>,
}

impl Rule {
    /// Takes a command if it is one of those to be hit.
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

    /// Gives back a hit: the server didn't know the script, so the command didn't run. Its body follows, and is what is meant.
    pub(super) fn give_back(&self) {
        let mut budget = self.budget.lock().unwrap();
        budget.1 = budget.1.saturating_add(1);
    }

    /// Reports that the deed is done.
    pub(super) fn done(&self, command: &Command) {
        let _ = self.hit.send(command.clone());
    }

    pub(super) fn keep(&self, held: Held) {
        // Checked under the lock. 1. If this comes first, the code that ends the rule finds the command in the list. 2. If the rule is
        // ended first, the command continues at once. In neither order is it left behind.
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
    /// What its connection began with: passwords, the database.
    pub(super) handshake: Vec<Vec<u8>>,
    pub(super) go: oneshot::Sender<Go>,
}

/// Lets a held command go.
#[derive(Default)]
pub(super) struct Go {
    /// Set before the command is sent.
    pub(super) sent: Arc<AtomicBool>,
    /// Receives the reply.
    pub(super) answer: Option<oneshot::Sender<Vec<u8>>>,
    /// The command is lost instead.
    pub(super) lose: bool,
}

/// A fault that is being set up: which commands, and how many of them.
#[must_use = "does nothing until one of its methods says what to do"]
pub struct On<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) matches: Matcher,
    pub(super) skip: usize,
    pub(super) times: usize,
}

impl On<'_> {
    /// Limits it to this many commands. Otherwise all are hit until the fault is dropped.
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

    /// Holds the commands in the proxy until [`Fault::let_through`], with everything that their connection sends after them. A connection
    /// that ends meanwhile does not drop them: they run later, as after a retransmission.
    pub fn hold(self) -> Fault {
        self.fault(Deed::Hold)
    }

    /// Lets the commands run; their replies, and everything after these, wait until [`Fault::let_through`]. For a `SUBSCRIBE` the reply
    /// is its confirmation.
    pub fn hold_reply(self) -> Fault {
        self.fault(Deed::HoldReply)
    }

    /// Lets the commands run; the connection stays open, but no data of the server arrives on it any more. (A single reply can't be
    /// missing: TCP has no gaps, and the next reply would be taken for it.)
    pub fn drop_reply(self) -> Fault {
        self.fault(Deed::DropReply(None))
    }

    /// Lets the commands run; the connection is reset instead of their reply.
    pub fn drop_reply_and_reset(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Reset)))
    }

    /// Lets the commands run; the connection is closed in order instead of their reply.
    pub fn drop_reply_and_close(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Close)))
    }

    /// Delays their replies by this time.
    pub fn delay_reply(self, by: Duration) -> Fault {
        self.fault(Deed::DelayReply(by))
    }

    /// Replaces the first text in their replies by the second one.
    pub fn replace_in_reply(self, text: &'static str, by: &'static str) -> Fault {
        self.fault(Deed::ReplaceInReply(text, by))
    }

    /// Replaces their replies by this line. They run all the same.
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

/// An active fault. Dropping it ends it: a held command continues if its connection is still open, and is lost otherwise.
#[must_use = "dropping it ends the fault"]
pub struct Fault {
    shared: Weak<Shared>,
    rule: Arc<Rule>,
    seen: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
    hit: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
}

impl Fault {
    /// Waits until the proxy has received a matching command, each time for the next one. A held command has not been sent.
    pub async fn seen(&self) -> Command {
        let next = async { self.seen.lock().await.recv().await };
        soon("a matching command at the proxy", next).await.expect("the rule lives")
    }

    /// Waits until it has happened, each time to the next command: the command ran and its reply is gone, held back or (if delayed) sent
    /// on; or the command is held; or it is lost.
    pub async fn done(&self) -> Command {
        let next = async { self.hit.lock().await.recv().await };
        soon("the fault's deed at the proxy", next).await.expect("the rule lives")
    }

    /// Returns a command that was hit and that [`done`](Fault::done) has not reported yet.
    pub fn done_now(&self) -> Option<Command> {
        self.hit.try_lock().ok()?.try_recv().ok()
    }

    /// Returns a matching command that arrived and that [`seen`](Fault::seen) has not reported yet.
    pub fn seen_now(&self) -> Option<Command> {
        self.seen.try_lock().ok()?.try_recv().ok()
    }

    /// Forwards everything that is held, and ends the fault. Returns once the held commands have run, with their replies as they came
    /// over the wire (`":1\r\n"`). A command whose connection has ended goes to the server on a connection of the proxy's own; what was
    /// queued after it is lost.
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

    /// Loses everything that is held, and ends the fault. The connections are reset.
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
                // It ran or not, but nobody will know: the connection broke after it was sent.
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
