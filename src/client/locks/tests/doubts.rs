//! Whether a master is notified that messages of releases may have been lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::backend::memory::InMemory;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Events, Failure};
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::{EventRelay, MasterEvents, Session};
use crate::wire::{Call, Reply};
use crate::{Builder, Guard, Locks, Memory};

const SECOND: Duration = Duration::from_secs(1);

/// Whether a subscription is confirmed, and whether messages arrive.
#[derive(Clone, Copy, Debug)]
enum Channel {
    Open,
    /// The subscription is at a node that has left the cluster.
    Dead,
    Refused,
}

/// A store whose messages arrive or not, as `channel` says.
#[derive(Debug)]
struct Doubted {
    store: Arc<InMemory>,
    channel: Channel,
    events: DebugEvents,
    doubts: Arc<AtomicUsize>,
}

struct DebugEvents(Arc<dyn Events>);

impl std::fmt::Debug for DebugEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Backend for Doubted {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        self.store.clone().run(call)
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        self.store.clone().run_all(calls)
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.store.is_younger_than(age)
    }

    fn subscribe(&self, channel: &str) {
        let (events, name) = (self.events.0.clone(), channel.to_owned());
        match self.channel {
            Channel::Open => self.store.subscribe(channel),
            Channel::Dead => drop(tokio::spawn(async move { events.subscribed(&name) })),
            Channel::Refused => drop(tokio::spawn(async move { events.not_subscribed(&name) })),
        }
    }

    fn unsubscribe(&self, channel: &str) {
        self.store.unsubscribe(channel);
    }

    fn doubt_messages(&self) {
        self.doubts.fetch_add(1, SeqCst);
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {
        self.store.close();
    }
}

/// Returns how often messages were doubted until a waiter was granted a lock that another process held for a
/// while.
async fn doubts(
    channel: Channel,
    options: fn(Builder) -> Builder,
    end: impl AsyncFnOnce(Locks, Guard),
) -> usize {
    let memory = Memory::new();
    let theirs = Locks::builder(&memory).lease(60 * SECOND).connect().await.unwrap();
    let held = theirs.mutex("stock").lock().await.unwrap();
    let config = options(Locks::builder(&memory)).check().unwrap();
    let (relay, doubts) = (Arc::new(EventRelay::default()), Arc::default());
    let events = MasterEvents::of(relay.clone(), 0);
    let store = InMemory::join(&memory, config.node_timeout, Arc::downgrade(&events));
    let master = Doubted { store, channel, events: DebugEvents(events.clone()), doubts: Arc::clone(&doubts) };
    let quorum = Quorum::new(vec![Arc::new(master)], None);
    let session = Session::new(config, quorum, "ours".to_owned(), Clock::new(), vec![events]);
    let ours = Locks::over(session, &relay).mutex("stock");
    let waiting = tokio::spawn(ours.lock());
    sleep(2 * SECOND).await;
    end(theirs, held).await;
    let guard = timeout(100 * SECOND, waiting).await.expect("it is free").unwrap().unwrap();
    guard.release().await.unwrap();
    doubts.load(SeqCst)
}

async fn released(_theirs: Locks, held: Guard) {
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn messages_are_doubted_where_a_poll_finds_the_lock_free() {
    let polls = |builder: Builder| builder.poll_interval(5 * SECOND);
    assert_eq!(doubts(Channel::Dead, polls, released).await, 1);
}

#[tokio::test(start_paused = true)]
async fn messages_are_not_doubted_where_one_came() {
    let polls = |builder: Builder| builder.poll_interval(5 * SECOND);
    assert_eq!(doubts(Channel::Open, polls, released).await, 0);
}

/// No message reports the end of a lease.
#[tokio::test(start_paused = true)]
async fn messages_are_not_doubted_where_a_lease_has_ended() {
    let waits = |builder: Builder| builder.poll_interval(600 * SECOND);
    let crashes = async |theirs: Locks, held: Guard| {
        theirs.close().await.unwrap();
        std::mem::forget(held);
    };
    assert_eq!(doubts(Channel::Dead, waits, crashes).await, 0);
}

#[tokio::test(start_paused = true)]
async fn messages_are_not_doubted_where_none_was_expected() {
    let polls = |builder: Builder| builder.poll_interval(SECOND).retry_delay(3 * SECOND..=3 * SECOND);
    assert_eq!(doubts(Channel::Refused, polls, released).await, 0);
}
