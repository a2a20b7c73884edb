use std::task::{Context, Poll, Waker};

use futures::FutureExt;

use super::*;
use crate::backend::testing::{Event, EventRecorder};
use crate::base::{Lease, Outcome};
use crate::wire::{Action, Fence, Notice, Reply};

mod twins;

const TIMEOUT: Duration = Duration::from_millis(500);
const CHANNEL: &str = "redisson_lock__channel:{k}";

fn joined(memory: &Memory) -> (Arc<InMemory>, EventRecorder) {
    let events = EventRecorder::new();
    (InMemory::join(memory, TIMEOUT, events.sender()), events)
}

fn acquire(field: &str) -> Call {
    Call::of("k", field, Action::Acquire { count: 1, lease: Lease::DEFAULT })
}

fn release(field: &str) -> Call {
    Call::of("k", field, Action::END)
}

fn busy(millis: u64) -> Reply {
    Reply::busy(Duration::from_millis(millis))
}

#[track_caller]
fn unknown(reply: CallResult, words: &str) {
    let Failure { outcome, error } = reply.unwrap_err();
    assert_eq!((outcome, error.kind()), (Outcome::Unknown, ErrorKind::Unavailable));
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn a_call_runs_in_its_first_poll_and_is_answered_later() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    let mut cx = Context::from_waker(Waker::noop());
    let mut asking = client.clone().run(acquire("me:1"));
    assert!(asking.poll_unpin(&mut cx).is_pending());
    drop(asking);
    // The command was sent, so it runs although nobody awaits its answer.
    assert!(matches!(client.clone().run(acquire("you:1")).await.unwrap(), Reply::Busy(..)));
    let mut both = client.clone().run_all(vec![release("me:1"), acquire("you:1")]);
    assert!(both.poll_unpin(&mut cx).is_pending());
    let Poll::Ready(answers) = both.poll_unpin(&mut cx) else { panic!("it is still pending") };
    assert_eq!(
        answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        [Reply::Ended(Notice::Sent(0)), Reply::Done]
    );
}

#[tokio::test(start_paused = true)]
async fn leases_follow_tokios_clock() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    client.clone().run(acquire("me:1")).await.unwrap();
    assert_eq!(client.clone().run(acquire("you:1")).await.unwrap(), busy(30_000));
    tokio::time::advance(Duration::from_secs(30)).await;
    // A key is live up to and including its last millisecond.
    assert_eq!(client.clone().run(acquire("you:1")).await.unwrap(), busy(1));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(client.clone().run(acquire("you:1")).await.unwrap(), Reply::Done);
    assert_eq!(client.clone().run(release("me:1")).await.unwrap(), Reply::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_store_runs_commands_that_arrived_in_the_stall_at_its_end() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    client.clone().run(acquire("me:1")).await.unwrap();
    memory.faults().stall(Duration::from_secs(2));
    let before = Instant::now();
    unknown(
        client.clone().run(release("me:1")).await,
        "no answer to `release` within the `node_timeout` of 500ms",
    );
    assert_eq!(before.elapsed(), TIMEOUT);
    let (late, second) = tokio::join!(client.clone().run(acquire("you:1")), async {
        tokio::time::sleep(Duration::from_millis(1400)).await;
        client.clone().run(acquire("her:1")).await
    });
    unknown(late, "acquire");
    // The commands ran in order at the end of the stall, when the answer to the last one was still awaited.
    assert_eq!(before.elapsed(), Duration::from_secs(2));
    assert_eq!(second.unwrap(), busy(30_000));
    memory.faults().stall(Duration::from_secs(9));
    let (early, ()) = tokio::join!(client.clone().run(release("you:1")), async {
        tokio::task::yield_now().await;
        memory.faults().stall(Duration::ZERO);
    });
    assert_eq!(early.unwrap(), Reply::Ended(Notice::Sent(0)));
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_reply_is_dropped_has_run() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    memory.faults().drop_replies(1);
    unknown(client.clone().run(acquire("me:1")).await, "no answer");
    assert_eq!(client.clone().run(acquire("me:1")).await.unwrap(), Reply::Done);
    assert!(format!("{memory:?}").contains("count: 1"), "{memory:?}");
    memory.faults().drop_replies(1);
    let mut both = client.clone().run_all(vec![release("me:1"), acquire("you:1")]).await.into_iter();
    unknown(both.next().unwrap(), "no answer");
    assert_eq!(both.next().unwrap().unwrap(), Reply::Done);
}

#[tokio::test]
async fn only_subscribers_are_notified_of_a_release() {
    let memory = Memory::new();
    let ((ours, mut events), (_theirs, mut nothing)) = (joined(&memory), joined(&memory));
    ours.subscribe(CHANNEL);
    events.expect_none();
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    ours.clone().run(acquire("me:1")).await.unwrap();
    ours.clone().run(release("me:1")).await.unwrap();
    assert_eq!(events.next().await, Event::Message(CHANNEL.into()));
    ours.unsubscribe(CHANNEL);
    ours.clone().run(acquire("me:1")).await.unwrap();
    ours.clone().run(release("me:1")).await.unwrap();
    events.expect_none();
    nothing.expect_none();
}

#[tokio::test]
async fn a_restart_drops_all_locks_and_is_reported() {
    let memory = Memory::new();
    let (client, mut events) = joined(&memory);
    client.subscribe(CHANNEL);
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    client.clone().run(acquire("me:1")).await.unwrap();
    memory.faults().stall(Duration::MAX);
    let (broken, ()) = tokio::join!(client.clone().run(release("me:1")), async {
        tokio::task::yield_now().await;
        memory.faults().restart_empty();
    });
    unknown(broken, "connection was lost");
    assert_eq!(events.next().await, Event::SubscriptionsLost);
    assert_eq!(events.next().await, Event::Reconnected);
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    assert_eq!(client.clone().run(release("me:1")).await.unwrap(), Reply::Gone);
}

#[tokio::test]
async fn a_lost_lock_is_gone_and_all_clients_are_made_to_ask() {
    let memory = Memory::new();
    let ((client, mut ours), (_theirs, mut theirs)) = (joined(&memory), joined(&memory));
    assert!(!memory.faults().lose("k"));
    client.clone().run(acquire("me:1")).await.unwrap();
    assert!(memory.faults().lose("k"));
    assert_eq!((ours.next().await, theirs.next().await), (Event::Reconnected, Event::Reconnected));
    ours.expect_none();
    assert_eq!(format!("{memory:?}"), "Memory { locks: {} }");
}

#[tokio::test]
async fn a_closed_client_sends_nothing_more() {
    let memory = Memory::new();
    let (client, mut events) = joined(&memory);
    client.subscribe(CHANNEL);
    client.close();
    let failure = client.clone().run(acquire("me:1")).await.unwrap_err();
    assert_eq!((failure.outcome, failure.error.kind()), (Outcome::NotRun, ErrorKind::Unavailable));
    events.expect_none();
}

#[tokio::test]
async fn expired_locks_are_removed_in_time() {
    tokio::time::pause();
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    for round in 0..10 {
        for number in 0..100 {
            let acquire = Action::Acquire { count: 1, lease: Lease::DEFAULT };
            client.clone().run(Call::of(&format!("{round}:{number}"), "me:1", acquire)).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(31)).await;
    }
    assert!(memory.visit(|store| store.size()) <= 200);
}

#[tokio::test(start_paused = true)]
async fn counters_are_gone_once_they_have_expired_or_their_store_has_restarted() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    let stands = || memory.visit(|store| store.counters.stands("0", Instant::now()));
    for round in 0..10 {
        for number in 0..100 {
            let counter = if number == 0 { "0".into() } else { format!("{round}:{number}").into() };
            let fence = Fence { counter, least: Some(7), stays: Some(Lease::DEFAULT) };
            client.clone().run(Call { fence: Some(Arc::new(fence)), ..acquire("me:1") }).await.unwrap();
            client.clone().run(release("me:1")).await.unwrap();
        }
        // A key is live up to and including its last millisecond.
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(stands(), Some(7));
        if round < 9 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(stands(), None);
        }
    }
    assert!(memory.visit(|store| store.counters.size()) <= 200);
    memory.faults().restart_empty();
    assert_eq!(stands(), None);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gave_up_an_answer_reconnects_once_the_store_answers() {
    let memory = Memory::new();
    let (client, mut events) = joined(&memory);
    memory.faults().drop_replies(1);
    unknown(client.clone().run(acquire("me:1")).await, "no answer");
    assert_eq!(events.next().await, Event::Reconnected);
    memory.faults().stall(Duration::from_secs(2));
    let before = Instant::now();
    unknown(client.clone().run(release("me:1")).await, "no answer");
    events.expect_none();
    assert_eq!(events.next().await, Event::Reconnected);
    assert_eq!(before.elapsed(), Duration::from_secs(2));
}

#[tokio::test]
async fn a_re_entry_whose_hold_is_gone_does_not_acquire_the_lock() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    let again = |field| Call::of("k", field, Action::Acquire { count: 2, lease: Lease::DEFAULT });
    assert_eq!(client.clone().run(again("me:1")).await.unwrap(), Reply::Gone);
    client.clone().run(acquire("you:1")).await.unwrap();
    assert_eq!(client.clone().run(again("me:1")).await.unwrap(), Reply::Gone);
    assert_eq!(client.clone().run(again("you:1")).await.unwrap(), Reply::Done);
}

/// Only the subscription that ends is left out: the others are confirmed.
#[tokio::test]
async fn a_subscription_that_ends_before_it_is_confirmed_is_not_confirmed() {
    let memory = Memory::new();
    let ((ours, mut events), (theirs, mut others)) = (joined(&memory), joined(&memory));
    ours.subscribe("one");
    ours.subscribe("two");
    theirs.subscribe("one");
    ours.unsubscribe("one");
    assert_eq!(events.next().await, Event::Subscribed("two".into()));
    events.expect_none();
    assert_eq!(others.next().await, Event::Subscribed("one".into()));
}

#[tokio::test(start_paused = true)]
async fn a_store_is_young_after_a_restart_and_as_old_as_any_before() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    let age = Duration::from_secs(1);
    assert!(!client.is_younger_than(age));
    memory.faults().restart_empty();
    for (passed, is_young) in [(Duration::ZERO, true), (age / 2, true), (age / 2, false), (age, false)] {
        tokio::time::advance(passed).await;
        assert_eq!(client.is_younger_than(age), is_young);
    }
}

/// The client's connection belongs to no runtime, and ends when the client is dropped.
#[tokio::test]
async fn a_client_is_portable_and_leaves_the_store_when_it_is_dropped() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    assert!(client.is_portable());
    let number = client.client;
    let is_joined = || memory.visit(|store| store.is_joined(number));
    assert!(is_joined());
    drop(client);
    assert!(!is_joined());
}

#[tokio::test]
async fn an_end_is_answered_by_how_many_are_subscribed() {
    let memory = Memory::new();
    let (client, _events) = joined(&memory);
    let (other, mut events) = joined(&memory);
    for (subscribed, expected) in
        [(false, Reply::Ended(Notice::Sent(0))), (true, Reply::Ended(Notice::Sent(1)))]
    {
        client.clone().run(acquire("me:1")).await.unwrap();
        if subscribed {
            let channel = release("me:1").keys.channel().clone();
            other.subscribe(&channel);
            while events.next().await != Event::Subscribed(channel.to_string()) {}
        }
        assert_eq!(client.clone().run(release("me:1")).await.unwrap(), expected);
    }
}
