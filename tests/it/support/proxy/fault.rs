//! What is done to which commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::link::{self, End};
use super::{Shared, soon};
use crate::support::resp::Command;

type Matcher = Box<dyn Fn(&Command) -> bool + Send + Sync>;

/// What happens to a command that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Watch,
    Hold,
    HoldReply,
    /// The command runs, its reply is lost, and the connection ends or stays open silently.
    DropReply(Option<End>),
    DelayReply(Duration),
    /// The first text in the reply is replaced by the second one.
    ReplaceInReply(&'static str, &'static str),
    /// The reply is this one.
    ReplaceReply(&'static str),
    /// It never gets to the server.
    Lose(End),
}

pub(super) struct Rule {
    matches: Matcher,
    pub(super) deed: Deed,
    /// How many matching commands pass first, and how many are hit then.
    budget: Mutex<(usize, usize)>,
    ended: AtomicBool,
    seen: mpsc::UnboundedSender<Command>,
    hit: mpsc::UnboundedSender<Command>,
    held: Mutex<Vec<Held>>,
    /// Opens held replies.
    pub(super) open: watch::Sender<bool>,
}

impl Rule {
    /// Takes a command, if it is one of those that are to be hit.
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

    /// The server did not know the script, so the command did not run: its body follows, and is meant.
    pub(super) fn give_back(&self) {
        let mut budget = self.budget.lock().unwrap();
        budget.1 = budget.1.saturating_add(1);
    }

    /// The deed is done.
    pub(super) fn done(&self, command: &Command) {
        let _ = self.hit.send(command.clone());
    }

    pub(super) fn keep(&self, held: Held) {
        // Looked at under the lock: 1. here first, and the one who ends the rule finds it in the list; 2. ended first, and
        // it continues at once. In no order does it stay behind.
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

/// The way is free.
#[derive(Default)]
pub(super) struct Go {
    /// Set before the command goes out.
    pub(super) sent: Arc<AtomicBool>,
    /// Gets the reply.
    pub(super) answer: Option<oneshot::Sender<Vec<u8>>>,
    /// Instead of going on it is lost.
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
    /// Only that many commands are hit. Without it, all are until the fault is dropped.
    pub fn times(self, times: usize) -> Self {
        On { times, ..self }
    }

    /// That many matching commands pass first.
    pub fn skip(self, skip: usize) -> Self {
        On { skip, ..self }
    }

    /// They are forwarded, and [`Fault::seen`] reports them.
    pub fn watch(self) -> Fault {
        self.fault(Deed::Watch)
    }

    /// They wait in the proxy, with all that their connection sends after them, until [`Fault::let_through`]. A
    /// connection that ends in the meantime does not drop them: they run later, as a retransmission would let them.
    pub fn hold(self) -> Fault {
        self.fault(Deed::Hold)
    }

    /// They run; their replies, and all that comes after these, wait until [`Fault::let_through`]. For a `SUBSCRIBE` the
    /// reply is its confirmation.
    pub fn hold_reply(self) -> Fault {
        self.fault(Deed::HoldReply)
    }

    /// They run; the connection stays open, but no data of the server arrives on it any more. (A reply alone can't
    /// be missing: TCP has no gaps, and the next reply would be taken for it.)
    pub fn drop_reply(self) -> Fault {
        self.fault(Deed::DropReply(None))
    }

    /// They run; instead of their reply the connection is reset.
    pub fn drop_reply_and_reset(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Reset)))
    }

    /// They run; instead of their reply the connection is closed in order.
    pub fn drop_reply_and_close(self) -> Fault {
        self.fault(Deed::DropReply(Some(End::Close)))
    }

    /// Their replies come later by so much.
    pub fn delay_reply(self, by: Duration) -> Fault {
        self.fault(Deed::DelayReply(by))
    }

    /// Their replies have the second text in place of the first one.
    pub fn replace_in_reply(self, text: &'static str, by: &'static str) -> Fault {
        self.fault(Deed::ReplaceInReply(text, by))
    }

    /// Their replies are this line, though they run.
    pub fn replace_reply(self, by: &'static str) -> Fault {
        self.fault(Deed::ReplaceReply(by))
    }

    /// They never get to the server; the connection is reset.
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

/// A fault that is on. Dropping it ends it: what is held continues if its connection is still open, and is lost where
/// it does not.
#[must_use = "dropping it ends the fault"]
pub struct Fault {
    shared: Weak<Shared>,
    rule: Arc<Rule>,
    seen: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
    hit: tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>,
}

impl Fault {
    /// Waits until the proxy has got a matching command, each time for the next one. A held one has not been sent.
    pub async fn seen(&self) -> Command {
        let next = async { self.seen.lock().await.recv().await };
        soon("a matching command at the proxy", next).await.expect("the rule lives")
    }

    /// Waits until it is done, each time for the next command: it has run and its reply is gone, held back, or (for a
    /// delayed one) sent on; it is held; it is lost.
    pub async fn done(&self) -> Command {
        let next = async { self.hit.lock().await.recv().await };
        soon("the fault's deed at the proxy", next).await.expect("the rule lives")
    }

    /// Whether it is done to a command that [`done`](Fault::done) has not reported yet.
    pub fn done_now(&self) -> Option<Command> {
        self.hit.try_lock().ok()?.try_recv().ok()
    }

    /// Whether a matching command arrived that [`seen`](Fault::seen) has not reported yet.
    pub fn seen_now(&self) -> Option<Command> {
        self.seen.try_lock().ok()?.try_recv().ok()
    }

    /// Forwards all that is held, and ends the fault. It returns once the held commands have run, with their replies
    /// as they came over the wire (`":1\r\n"`). A command whose connection has ended goes to the server on a
    /// connection of the proxy's own; what was queued behind it is lost.
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

    /// Loses all that is held, and ends the fault. The connections are reset.
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
                // It ran or not, but no one will know: the connection broke behind it.
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
