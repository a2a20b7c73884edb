//! Several attempts for several names, all at once: of those that begin together one is granted, and none
//! holds a name after one that is busy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use crate::backend::memory::InMemory;
use crate::backend::{Backend, BoxFuture};
use crate::base::Failure;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::{EventRelay, MasterEvents, Session};
use crate::wire::{Call, Reply};
use crate::{Locks, Memory, Owner};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A store behind a network: each call takes its own time to arrive, and so does each answer.
#[derive(Debug)]
struct Far(Arc<InMemory>, Arc<AtomicU64>);

impl Far {
    async fn way(&self) {
        let dice = self.1.fetch_add(0x9e37_79b9_7f4a_7c15, SeqCst);
        let dice = (dice ^ (dice >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        sleep(Duration::from_micros((dice >> 33) % 2000)).await;
    }
}

impl Backend for Far {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        Box::pin(async move {
            self.way().await;
            let answer = self.0.clone().run(call).await;
            self.way().await;
            answer
        })
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move {
            self.way().await;
            let answers = self.0.clone().run_all(calls).await;
            self.way().await;
            answers
        })
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.0.is_younger_than(age)
    }

    fn subscribe(&self, channel: &str) {
        self.0.subscribe(channel);
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.unsubscribe(channel);
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {
        self.0.close();
    }
}

fn far(memory: &Memory, dice: &Arc<AtomicU64>) -> Locks {
    let config = Locks::builder(memory).check().unwrap();
    let relay = Arc::new(EventRelay::default());
    let events = MasterEvents::of(relay.clone(), 0);
    let store = InMemory::join(memory, config.node_timeout, Arc::downgrade(&events));
    let quorum = Quorum::new(vec![Arc::new(Far(store, dice.clone()))], None);
    let uuid = format!("client-{}", dice.fetch_add(1, SeqCst));
    Locks::over(Session::new(config, quorum, uuid, Clock::new(), vec![events]), &relay)
}

/// Returns how many of these attempts are granted. They begin at once and keep what they are granted.
async fn granted(clients: &[Locks], sets: &[Vec<String>]) -> usize {
    let attempts = sets.iter().enumerate().map(|(at, names)| {
        let all = clients[at % clients.len()].mutexes(names);
        tokio::spawn(all.try_lock().fixed_lease(60 * SECOND).owner(&Owner::new()))
    });
    let attempts: Vec<_> = join_all(attempts.collect::<Vec<_>>()).await;
    let granted: Vec<_> = attempts.into_iter().filter_map(|attempt| attempt.unwrap().unwrap()).collect();
    let names: Vec<_> = granted.iter().flat_map(|guards| guards.names()).collect();
    assert_eq!(
        names.iter().collect::<BTreeSet<_>>().len(),
        names.len(),
        "a name was granted twice: {names:?}"
    );
    for guards in &granted {
        assert!(!guards.is_lost());
    }
    granted.len()
}

#[tokio::test(start_paused = true)]
async fn of_attempts_that_begin_at_once_for_the_same_names_one_is_granted() {
    let (memory, dice) = (Memory::new(), Arc::new(AtomicU64::new(7)));
    let all: Vec<Locks> = (0..10).map(|_| far(&memory, &dice)).collect();
    for (clients, attempts, count) in [(1, 2, 2), (10, 2, 2), (10, 2, 5), (1, 10, 3), (3, 10, 3), (10, 10, 3)]
    {
        for round in 0..50 {
            let run = format!("{clients} clients, {attempts} attempts, {count} names, round {round}");
            let names: Vec<_> = (0..count).map(|name| format!("{run}: {name}")).collect();
            assert_eq!(granted(&all[..clients], &vec![names; attempts]).await, 1, "{run}");
        }
    }
}

/// Each set shares a name with the next one, and the last with the first.
#[tokio::test(start_paused = true)]
async fn of_attempts_in_a_circle_of_names_one_is_granted() {
    let (memory, dice) = (Memory::new(), Arc::new(AtomicU64::new(7)));
    let clients: Vec<Locks> = (0..5).map(|_| far(&memory, &dice)).collect();
    for round in 0..100 {
        let sets: Vec<_> =
            (0..5).map(|at| vec![format!("{round}-{at}"), format!("{round}-{}", (at + 1) % 5)]).collect();
        let granted = granted(&clients, &sets).await;
        assert!((1..=2).contains(&granted), "round {round}: {granted}");
    }
}

/// The first pass holds `c` for a moment. The second one asks for the busy name several times, and `c` is
/// free all that time.
#[tokio::test(start_paused = true)]
async fn a_name_behind_a_busy_one_is_free_while_that_is_asked_for_once_more() {
    let memory = Memory::new();
    let client = async || Locks::builder(&memory).connect().await.unwrap();
    let (ours, theirs) = (client().await, client().await);
    let busy = theirs.mutex("b").lock().await.unwrap();
    let attempt = tokio::spawn(ours.mutexes(["a", "b", "c"]).try_lock());
    sleep(MILLISECOND / 2).await;
    let mut looks = 0;
    while !attempt.is_finished() {
        let behind = theirs.mutex("c").try_lock().owner(&Owner::new()).await.unwrap();
        behind.expect("it is free").release().await.unwrap();
        sleep(MILLISECOND).await;
        looks += 1;
    }
    assert!(looks > 5, "the busy name was not asked for again: {looks}");
    assert!(attempt.await.unwrap().unwrap().is_none());
    busy.release().await.unwrap();
}

/// The holder may be another attempt, in its first pass.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_busy_for_a_moment_is_granted_to_an_attempt() {
    let memory = Memory::new();
    let client = async || Locks::builder(&memory).connect().await.unwrap();
    let (ours, theirs) = (client().await, client().await);
    for name in ["a", "b"] {
        let brief = theirs.mutex(name).lock().await.unwrap();
        let attempt = tokio::spawn(ours.mutexes(["a", "b"]).try_lock());
        sleep(5 * MILLISECOND).await;
        brief.release().await.unwrap();
        attempt.await.unwrap().unwrap().expect("both are free").release().await.unwrap();
    }
}
