//! The connection for messages, and the task that keeps it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_core::Stream;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Msg, RedisResult, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backend::connection::backoff::Backoff;
use crate::backend::connection::channels::{ChannelRequest, Channels, SubscriptionEvent};
use crate::backend::connection::dial::too_long;
use crate::backend::connection::settings::for_messages;
use crate::backend::connection::{Target, dial, moved, redis_error};
use crate::base::{Events, telemetry};

/// A connection that is not needed for so long is closed.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// After so long without a word from the server it is asked for one. A dead connection looks just like a quiet one, and
/// there is no command on it whose answer would be missed.
const QUIET: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

const MOVED: &str = "it is to be where commands go, and their connection was made anew";

/// How others reach the task.
pub(crate) struct Subscriber {
    wishes: mpsc::UnboundedSender<Interest>,
    task: AbortHandle,
    seen: SubscriberState,
}

/// What others can see: a number that goes up with each connection that is lost or can't be made, and whether somebody waits
/// for a message.
pub(crate) type SubscriberState = (watch::Receiver<u64>, watch::Receiver<bool>);

enum Interest {
    Want(Arc<str>),
    Leave(Arc<str>),
}

impl Subscriber {
    /// Starts the task on the current runtime. It connects when there is something to subscribe to.
    pub(crate) fn start(
        target: Target,
        address: Arc<str>,
        events: Weak<dyn Events>,
        limit: Duration,
    ) -> Subscriber {
        let (sender, wishes) = mpsc::unbounded_channel();
        let (failures, wanted) = (watch::Sender::new(0), watch::Sender::new(false));
        let seen = (failures.subscribe(), wanted.subscribe());
        let topics = Channels::default();
        let task = Task { target, address, events, limit, wishes, topics, failures, wanted };
        Subscriber { wishes: sender, task: tokio::spawn(task.run()).abort_handle(), seen }
    }

    /// For whoever can name another target.
    pub(crate) fn seen(&self) -> SubscriberState {
        self.seen.clone()
    }

    pub(crate) fn subscribe(&self, channel: &str) {
        // An error says that the task has ended, and with it all subscriptions: calls tell of it.
        let _ = self.wishes.send(Interest::Want(channel.into()));
    }

    pub(crate) fn unsubscribe(&self, channel: &str) {
        let _ = self.wishes.send(Interest::Leave(channel.into()));
    }

    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

/// The one that owns connection and subscriptions. The others only send it what they wish.
struct Task {
    target: Target,
    address: Arc<str>,
    events: Weak<dyn Events>,
    limit: Duration,
    wishes: mpsc::UnboundedReceiver<Interest>,
    topics: Channels,
    /// Connections that were lost or could not be made.
    failures: watch::Sender<u64>,
    /// Whether there is anything to subscribe to.
    wanted: watch::Sender<bool>,
}

/// Why a connection is done with.
enum End {
    Closed,
    Idle,
    Lost(String),
}

/// What became of a request.
enum SubscribeResult {
    Granted,
    Refused(String),
    Dead(String),
}

/// A request that is done, and what it asked for; `None` asked for a sign of life.
type Done = (Option<(ChannelRequest, Arc<str>)>, SubscribeResult);

impl Task {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        // An outage is one event, not one for each attempt.
        let mut reported = false;
        loop {
            while self.topics.wanted() == 0 {
                let Some(wish) = self.wishes.recv().await else { return };
                self.heed(wish);
            }
            let connection = match self.connect(backoff.pause()).await {
                Ok(connection) => connection,
                Err(End::Lost(why)) => {
                    self.failed(&why);
                    if !std::mem::replace(&mut reported, true) {
                        telemetry::subscriber_lost(&self.address, &why);
                    }
                    self.topics.unreachable();
                    self.tell();
                    continue;
                }
                Err(_) => return,
            };
            let since = Instant::now();
            let end = self.serve(connection).await;
            backoff.lost(since);
            self.topics.disconnected();
            reported = matches!(end, End::Lost(_));
            match end {
                End::Closed => return,
                End::Idle => {}
                End::Lost(why) => {
                    self.failed(&why);
                    telemetry::subscriber_lost(&self.address, &why);
                    self.with_events(|events| events.subscriptions_lost());
                }
            }
        }
    }

    fn failed(&self, why: &str) {
        // Who named another target knows.
        if why != MOVED {
            self.failures.send_modify(|failures| *failures = failures.wrapping_add(1));
        }
    }

    /// One attempt, after a pause. Wishes are heeded meanwhile.
    async fn connect(&mut self, pause: Duration) -> Result<PubSub, End> {
        let (site, limit) = (self.target.borrow_and_update().clone(), self.limit);
        let mut attempt = std::pin::pin!(async move {
            sleep(pause).await;
            let Some(site) = site else { return Err(End::Lost("no master is known yet".into())) };
            let unreachable = |error| End::Lost(redis_error::unreachable(error, &site.address).to_string());
            let client = for_messages(&site.client).map_err(unreachable)?;
            match timeout(limit, dial::listen(&client)).await {
                Ok(connection) => connection.map_err(unreachable),
                Err(_) => Err(End::Lost(too_long(limit))),
            }
        });
        loop {
            tokio::select! {
                done = &mut attempt => return done,
                () = moved(&mut self.target) => return Err(End::Lost(MOVED.into())),
                wish = self.wishes.recv() => self.heed(wish.ok_or(End::Closed)?),
            }
            self.tell();
        }
    }

    /// Keeps the subscriptions of a connection as they are wanted, until it is lost or nobody wants anything.
    async fn serve(&mut self, connection: PubSub) -> End {
        let (sink, mut stream) = connection.split();
        let mut requests = JoinSet::new();
        let mut heard = Instant::now();
        let mut needed = heard;
        self.topics.connected();
        loop {
            for (ask, channel) in self.topics.asks.drain(..) {
                requests.spawn(request(sink.clone(), ask, channel, self.limit));
            }
            self.tell();
            let wake = [self.topics.due(), Some(heard + QUIET), Some(needed + IDLE)];
            let wake = wake.into_iter().flatten().min().unwrap_or(heard);
            tokio::select! {
                message = next(&mut stream) => {
                    let Some(message) = message else { return End::Lost("closed by the server".into()) };
                    heard = Instant::now();
                    self.deliver(&message);
                }
                Some(done) = requests.join_next() => {
                    // A request that panicked or was cancelled has no answer any more.
                    let Ok(done) = done else { return End::Lost("a request got lost".into()) };
                    heard = Instant::now();
                    if let Some(why) = self.settle(done, heard) {
                        return End::Lost(why);
                    }
                }
                wish = self.wishes.recv() => match wish {
                    Some(wish) => {
                        needed = Instant::now();
                        self.heed(wish);
                    }
                    None => return End::Closed,
                },
                () = moved(&mut self.target) => return End::Lost(MOVED.into()),
                () = sleep_until(wake) => {}
            }
            let now = Instant::now();
            self.topics.pass(now);
            if self.topics.wanted() > 0 {
                needed = now;
            } else if now >= needed + IDLE {
                return End::Idle;
            }
            if now >= heard + QUIET && requests.is_empty() {
                heard = now;
                requests.spawn(sign_of_life(sink.clone(), self.limit));
            }
        }
    }

    fn heed(&mut self, wish: Interest) {
        match wish {
            Interest::Want(channel) => self.topics.want(&channel),
            Interest::Leave(channel) => self.topics.leave(&channel, Instant::now()),
        }
        let wanted = self.topics.wanted() > 0;
        self.wanted.send_if_modified(|known| std::mem::replace(known, wanted) != wanted);
    }

    /// What an answer means; says why, if it means the end of the connection.
    fn settle(&mut self, (asked, answer): Done, now: Instant) -> Option<String> {
        let granted = match answer {
            SubscribeResult::Dead(why) => return Some(why),
            SubscribeResult::Granted => true,
            SubscribeResult::Refused(why) => {
                if let Some((ChannelRequest::Subscribe, channel)) = &asked
                    && !self.topics.told_not(channel)
                {
                    telemetry::subscription_refused(&self.address, channel, &why);
                }
                false
            }
        };
        if let Some((ask, channel)) = asked {
            self.topics.answered(ask, &channel, granted, now);
        }
        None
    }

    fn deliver(&self, message: &Msg) {
        let channel = message.get_channel_name();
        if self.topics.wants(channel) {
            self.with_events(|events| events.message(channel));
        }
    }

    fn tell(&mut self) {
        let tells = std::mem::take(&mut self.topics.tells);
        if tells.is_empty() {
            return;
        }
        self.with_events(|events| {
            for (tell, channel) in &tells {
                match tell {
                    SubscriptionEvent::Subscribed => events.subscribed(channel),
                    SubscriptionEvent::NotSubscribed => events.not_subscribed(channel),
                }
            }
        });
    }

    fn with_events(&self, tell: impl FnOnce(&dyn Events)) {
        if let Some(events) = self.events.upgrade() {
            tell(&*events);
        }
    }
}

/// One channel per request, so that a refusal is that channel's own. They go out at once and are answered in their order,
/// so many of them take one round trip.
async fn request(mut sink: PubSubSink, ask: ChannelRequest, channel: Arc<str>, limit: Duration) -> Done {
    let answer = match ask {
        ChannelRequest::Subscribe => timeout(limit, sink.subscribe(&*channel)).await,
        ChannelRequest::Unsubscribe => timeout(limit, sink.unsubscribe(&*channel)).await,
    };
    (Some((ask, channel)), judged(answer, limit))
}

async fn sign_of_life(mut sink: PubSubSink, limit: Duration) -> Done {
    let answer = timeout(limit, sink.ping::<Value>()).await;
    (None, judged(answer.map(|answer| answer.map(drop)), limit))
}

fn judged(answer: Result<RedisResult<()>, Elapsed>, limit: Duration) -> SubscribeResult {
    match answer {
        Ok(Ok(())) => SubscribeResult::Granted,
        Ok(Err(error)) => match redis_error::answer(&error) {
            Some(text) => SubscribeResult::Refused(text),
            None => SubscribeResult::Dead(error.to_string()),
        },
        Err(_) => SubscribeResult::Dead(format!("no answer within {limit:?}")),
    }
}

fn next(stream: &mut PubSubStream) -> impl Future<Output = Option<Msg>> {
    poll_fn(move |context| Pin::new(&mut *stream).poll_next(context))
}

#[cfg(test)]
mod tests;
