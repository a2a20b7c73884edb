//! The subscriber connection, and the task that owns it.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Msg, PushInfo, PushKind};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backend::connection::backoff::Backoff;
use crate::backend::connection::channels::{ChannelRequest, Channels, SubscriptionEvent};
use crate::backend::connection::dial::too_long;
use crate::backend::connection::listener::{self, ChannelKind, Listener, Requester};
use crate::backend::connection::login::LoggedIn;
use crate::backend::connection::{ConnectionSlot, Target, moved, redis_error};
use crate::backend::resp::text;
use crate::backend::tasks::Tasks;
use crate::backend::with_events;
use crate::base::{Events, boxed, gated, telemetry};

/// A connection that is not needed for this long is closed.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// After this long without a message or an answer the server is pinged. A dead connection looks like a quiet one, and no command
/// that could time out is sent over it.
const QUIET: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

const MOVED: &str = "it is replaced after the connection for commands";

/// The handle of the task.
pub(crate) struct Subscriber {
    interests: mpsc::UnboundedSender<Interest>,
    task: AbortHandle,
    /// How many connections were lost or could not be made.
    failures: watch::Receiver<u64>,
}

/// A channel, and what a waiter wants of it.
type Interest = (ChannelRequest, Arc<str>);

impl Subscriber {
    /// Starts the task on the current runtime. It connects when there is something to subscribe to. `commands`: the slot for commands of
    /// the server that it follows, if there is one.
    pub(crate) fn start(
        kind: ChannelKind,
        target: Target,
        address: Arc<str>,
        events: Weak<dyn Events>,
        limit: Duration,
        commands: Option<Arc<ConnectionSlot>>,
    ) -> Subscriber {
        let (sender, interests) = mpsc::unbounded_channel();
        let (failures, failed) = watch::channel(0);
        let channels = Channels::default();
        let task = Task { kind, target, address, events, limit, commands, interests, channels, failures };
        let task = tokio::spawn(gated(Box::pin(task.run()))).abort_handle();
        Subscriber { interests: sender, task, failures: failed }
    }

    /// Returns how many connections were lost or could not be made, for the task that chooses the target.
    pub(crate) fn failures(&self) -> watch::Receiver<u64> {
        self.failures.clone()
    }

    pub(crate) fn subscribe(&self, channel: &str) {
        // Fails once the task has ended, and all subscriptions with it: calls return errors by then.
        let _ = self.interests.send((ChannelRequest::Subscribe, channel.into()));
    }

    pub(crate) fn unsubscribe(&self, channel: &str) {
        let _ = self.interests.send((ChannelRequest::Unsubscribe, channel.into()));
    }

    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

/// Owns the connection and its subscriptions. Handles only send it which channels are wanted.
struct Task {
    kind: ChannelKind,
    target: Target,
    address: Arc<str>,
    events: Weak<dyn Events>,
    limit: Duration,
    commands: Option<Arc<ConnectionSlot>>,
    interests: mpsc::UnboundedReceiver<Interest>,
    channels: Channels,
    failures: watch::Sender<u64>,
}

/// Why a connection is not used any more.
enum End {
    Closed,
    Idle,
    Lost(String),
}

/// The sender of requests, the receiver, and the credentials that it has logged in with, if they change.
type OpenConnection = (Requester, Listener, Option<LoggedIn>);

/// A request or, without one, a ping; and the server's reason if it was refused, or why the connection is lost.
type Done = (Option<Interest>, Result<Option<String>, String>);

impl Task {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        // An outage is reported once, not at each attempt.
        let mut reported = false;
        // The number of the connection for commands that was live when the last attempt failed.
        let mut failed_beside = None;
        loop {
            while self.channels.wanted() == 0 {
                let Some(interest) = self.interests.recv().await else { return };
                self.update(interest);
            }
            let connection = match self.connect(backoff.pause()).await {
                Ok(connection) => connection,
                Err(End::Lost(why)) => {
                    self.failed(&why, &mut backoff);
                    if !std::mem::replace(&mut reported, true) {
                        telemetry::subscriber_lost(&self.address, &why);
                    }
                    if why != MOVED && self.is_unreachable(&mut failed_beside) {
                        self.channels.unreachable();
                    }
                    self.report();
                    continue;
                }
                Err(_) => return,
            };
            failed_beside = None;
            let since = Instant::now();
            let end = self.serve(connection).await;
            backoff.lost(since);
            self.channels.disconnected();
            reported = matches!(end, End::Lost(_));
            match end {
                End::Closed => return,
                End::Idle => {}
                End::Lost(why) => {
                    self.failed(&why, &mut backoff);
                    telemetry::subscriber_lost(&self.address, &why);
                    with_events(&self.events, |events| events.subscriptions_lost());
                }
            }
        }
    }

    fn failed(&self, why: &str, backoff: &mut Backoff) {
        // The task that chose another target knows about it already.
        if why != MOVED {
            self.failures.send_modify(|failures| *failures = failures.wrapping_add(1));
        } else if self.commands.is_some() {
            // The server answers: it has a new connection for commands, and their attempts have pauses of their own.
            *backoff = Backoff::default();
        }
    }

    /// Called when an attempt has failed. Returns whether that is reported to the waiters, as a refusal would be. While the server is away,
    /// nothing is reported: in the line, those that are not subscribed keep polling, so after a restart all would. Therefore the attempt
    /// before has to have failed beside the same live connection for commands: the end of that one may be noticed a moment later.
    fn is_unreachable(&self, failed_beside: &mut Option<u64>) -> bool {
        let Some(commands) = &self.commands else { return true };
        let beside = commands.id();
        std::mem::replace(failed_beside, beside) == beside && beside.is_some()
    }

    /// Makes one attempt, after a pause. Handles changes of the wanted channels in the meantime.
    async fn connect(&mut self, pause: Duration) -> Result<OpenConnection, End> {
        let (site, kind, limit) = (self.target.borrow_and_update().clone(), self.kind, self.limit);
        let mut attempt = pin!(async move {
            sleep(pause).await;
            let Some(site) = site else { return Err(End::Lost("no master is known yet".into())) };
            let (to, logged_in) = site.destination().await.map_err(|error| End::Lost(error.to_string()))?;
            match timeout(limit, listener::open(&to, kind)).await {
                Ok(Ok((requester, listener))) => Ok((requester, listener, logged_in)),
                Ok(Err(error)) => Err(End::Lost(site.unreachable(error, false).to_string())),
                Err(_) => Err(End::Lost(too_long(limit, &to))),
            }
        });
        loop {
            tokio::select! {
                biased;
                done = &mut attempt => return done,
                () = moved(&mut self.target) => return Err(End::Lost(MOVED.into())),
                interest = self.interests.recv() => self.update(interest.ok_or(End::Closed)?),
            }
            self.report();
        }
    }

    /// Keeps the subscriptions equal to the wanted channels, until the connection is lost or no channel is wanted.
    async fn serve(&mut self, (requester, mut listener, logged_in): OpenConnection) -> End {
        let (connection, address) = (requester.connection.clone(), self.address.clone());
        let mut logins = pin!(async move {
            match logged_in {
                Some(logged_in) => boxed(logged_in.keep(&connection, &address)).await,
                None => pending().await,
            }
        });
        let mut requests = Tasks::new();
        let mut received = Instant::now();
        let mut needed = received;
        self.channels.connected();
        loop {
            for request in self.channels.requests.drain(..) {
                requests.spawn(answered(Some(request), requester.clone(), self.limit));
            }
            self.report();
            // Not while a request is in flight, which has its own timeout: no ping is sent then, and the sleep would end at
            // once, again and again.
            let quiet = requests.is_empty().then_some(received + QUIET);
            let wake = [self.channels.due(), quiet, Some(needed + IDLE)];
            let wake = wake.into_iter().flatten().min().unwrap_or(received);
            // Biased, so that a simulation can be repeated. What could arrive without end comes last.
            tokio::select! {
                biased;
                () = moved(&mut self.target) => return End::Lost(MOVED.into()),
                error = &mut logins => return End::Lost(error.to_string()),
                Some(done) = requests.join_next() => {
                    // The task of the request panicked or was cancelled.
                    let Some(done) = done else { return End::Lost("a request was cancelled".into()) };
                    received = Instant::now();
                    if let Some(why) = self.settle(done, received) {
                        return End::Lost(why);
                    }
                }
                interest = self.interests.recv() => match interest {
                    Some(interest) => {
                        needed = Instant::now();
                        self.update(interest);
                    }
                    None => return End::Closed,
                },
                push = listener.next() => {
                    let Some(push) = push else { return End::Lost("closed by the server".into()) };
                    received = Instant::now();
                    self.receive(push, received);
                }
                () = sleep_until(wake) => {}
            }
            let now = Instant::now();
            self.channels.run_due(now);
            if self.channels.wanted() > 0 {
                needed = now;
            } else if now >= needed + IDLE {
                return End::Idle;
            }
            if now >= received + QUIET && requests.is_empty() {
                received = now;
                requests.spawn(answered(None, requester.clone(), self.limit));
            }
        }
    }

    fn update(&mut self, (request, channel): Interest) {
        match request {
            ChannelRequest::Subscribe => self.channels.want(&channel),
            ChannelRequest::Unsubscribe => self.channels.leave(&channel, Instant::now()),
        }
    }

    /// Handles a completed request. Returns the reason if the connection is lost.
    fn settle(&mut self, (request, answer): Done, now: Instant) -> Option<String> {
        let refused = match answer {
            // A confirmation counts when it is received, in order with the end of a subscription.
            Ok(None) => return None,
            Ok(Some(refused)) => refused,
            Err(lost) => return Some(lost),
        };
        let (request, channel) = request?;
        if request == ChannelRequest::Subscribe {
            let events = self.events.upgrade();
            let elsewhere = events.is_some_and(|events| events.refused(&channel, &refused));
            if !elsewhere && !self.channels.reported_failed(&channel) {
                telemetry::subscription_refused(&self.address, &channel, &refused);
            }
        }
        // The slot of a sharded channel has moved: the server had ended the subscription before.
        let has_ended = self.kind == ChannelKind::Sharded && request == ChannelRequest::Unsubscribe;
        self.channels.answered(request, &channel, has_ended, now);
        None
    }

    fn receive(&mut self, push: PushInfo, now: Instant) {
        let channel = || push.data.first().and_then(text).unwrap_or_default().into();
        match push.kind {
            PushKind::Subscribe | PushKind::SSubscribe => {
                self.channels.answered(ChannelRequest::Subscribe, &channel(), true, now);
            }
            // That was requested, or the slot of a sharded channel has moved to another node.
            PushKind::Unsubscribe | PushKind::SUnsubscribe => self.channels.ended(&channel(), now),
            _ => {
                let Some(message) = Msg::from_push_info(push) else { return };
                let channel = message.get_channel_name();
                if self.channels.wants(channel) {
                    let text = String::from_utf8_lossy(message.get_payload_bytes());
                    with_events(&self.events, |events| events.message(channel, &text));
                }
            }
        }
    }

    fn report(&mut self) {
        let reports = std::mem::take(&mut self.channels.events);
        if reports.is_empty() {
            return;
        }
        with_events(&self.events, |events| {
            for (report, channel) in &reports {
                match report {
                    SubscriptionEvent::Subscribed => events.subscribed(channel),
                    SubscriptionEvent::NotSubscribed => events.not_subscribed(channel),
                }
            }
        });
    }
}

/// Sends a request for one channel, so that a refusal concerns that channel only, or a ping. Requests are sent at once and answered in
/// their order, so many of them take one round trip.
async fn answered(request: Option<Interest>, requester: Requester, limit: Duration) -> Done {
    let mut asked = pin!(async {
        match &request {
            Some((kind, channel)) => requester.request(*kind, channel).await,
            None => requester.ping().await,
        }
    });
    let answer = loop {
        let before = requester.connection.answers();
        break match timeout(limit, &mut asked).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(error)) => redis_error::answer(&error).map(Some).ok_or_else(|| error.to_string()),
            // The answers to earlier requests are still arriving. Otherwise: 1. A process subscribes to thousands of channels at once, over
            // a slow connection. 2. The last answers take longer than the limit. 3. It connects again, and so on without end.
            Err(_) if requester.connection.answers() != before => continue,
            Err(_) => Err(format!("no answer within {limit:?}")),
        };
    };
    (request.clone(), answer)
}

#[cfg(test)]
mod tests;
