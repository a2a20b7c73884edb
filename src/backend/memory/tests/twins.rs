//! The in-memory store compared with the real scripts, by random commands.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;

use crate::backend::Backend;
use crate::backend::memory::InMemory;
use crate::backend::server::RedisServer;
use crate::backend::testing::{ALONE, Event, EventRecorder, TestServer};
use crate::base::{Drift, Lease};
use crate::memory::Memory;
use crate::wire::keys::{channel, counter};
use crate::wire::{Action, Call, Fence, Limit, Reply};

/// Leases differ by so much that the duration of a test can't make one look like another.
const STEP: Duration = Duration::from_secs(600);
const TOLERANCE: Duration = Duration::from_secs(240);
const LONG: Duration = Duration::from_secs(20);
/// The scripts take nothing else for a hold.
const UUID: &str = "4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";

/// One command, on one of two locks, by one of three fields.
#[derive(Clone, Debug)]
struct Op {
    kind: u8,
    lock: u8,
    field: u8,
    count: u32,
    lease: u32,
    /// The smallest allowed token. `None`: without a token.
    fence: Option<u64>,
    /// How long the counter is kept.
    stays: u32,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Mostly acquires by one field, so that there are holds to release, renew and settle.
    let kind = prop_oneof![6 => Just(0u8), 12 => 1..4u8, 6 => 4..12u8];
    let field = prop_oneof![4 => Just(0u8), 2 => 1..3u8];
    // Tokens near each other, of two lengths, and near the largest value of a counter.
    let fence = prop_oneof![7 => 5..15u64, 1 => Just(i64::MAX as u64 - 1)];
    let op = (kind, 0..2u8, field, 0..4u32, 1..7u32, proptest::option::of(fence), 0..4u32);
    let op = op.prop_map(|(kind, lock, field, count, lease, fence, stays)| Op {
        kind,
        lock,
        field,
        count,
        lease,
        fence,
        stays,
    });
    proptest::collection::vec(op, 1..40)
}

impl Op {
    fn key(&self, case: usize) -> String {
        format!("{case}:{}", self.lock)
    }

    fn counter(&self, case: usize) -> String {
        counter("", &self.key(case))
    }

    fn fence(&self, case: usize) -> Option<Arc<Fence>> {
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let stays = (self.stays > 0).then(|| Lease::new("ttl", 10 * STEP * self.stays, drift).unwrap());
        self.fence
            .map(|least| Arc::new(Fence { counter: self.counter(case).into(), least: Some(least), stays }))
    }

    /// `None`: a key is deleted or set by hand.
    fn call(&self, case: usize) -> Option<Call> {
        let key = self.key(case);
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let lease = Lease::new("lease", STEP * self.lease, drift).unwrap();
        let (fence, count) = (self.fence(case), self.count);
        let action = match self.kind {
            0 => Action::Acquire { count: if fence.is_some() { 1 } else { count.max(1) }, lease },
            1 => Action::Release { count },
            2 => Action::Renew { lease },
            3 => Action::Settle { count, lease },
            7 => Action::Repair { count: count.max(1), lease },
            4 => Action::Force,
            5 => Action::Look,
            9 => Action::Who,
            10 => Action::Keep { lease },
            11 => Action::Move { lease },
            _ => return None,
        };
        let fence = fence.filter(|_| {
            action.lease().is_some() && !action.is_end() && !matches!(action, Action::Move { .. })
        });
        let from = Some(format!("{UUID}:{}", (self.field + 1) % 3 + 1).into())
            .filter(|_| matches!(action, Action::Move { .. }));
        let names = self.stays > 1;
        let limit = Lease::new("limit", STEP * (self.lease + self.stays), drift).ok();
        let limit = limit.filter(|_| self.stays > 0 && matches!(action, Action::Renew { .. }));
        let limit = limit.map(|lease| Arc::new(Limit { lease, ends: Vec::new() }));
        Some(Call {
            fence,
            names,
            from,
            limit,
            ..Call::of(&key, &format!("{UUID}:{}", self.field + 1), action)
        })
    }
}

/// Both masters, and their events.
struct Twins {
    server: TestServer,
    admin: MultiplexedConnection,
    real: (Arc<RedisServer>, EventRecorder),
    memory: Memory,
    ours: (Arc<InMemory>, EventRecorder),
}

impl Twins {
    async fn start() -> Twins {
        let server = TestServer::start(&[]).await;
        let (admin, events, memory) = (server.admin().await, EventRecorder::new(), Memory::new());
        let (backend, away) =
            RedisServer::connect(&server.url("").into(), ALONE, LONG, events.sender()).await.unwrap();
        assert!(away.is_none());
        let recorder = EventRecorder::new();
        let ours = (InMemory::join(&memory, LONG, recorder.sender()), recorder);
        Twins { server, admin, real: (backend, events), memory, ours }
    }

    async fn play(&mut self, case: usize, ops: &[Op]) {
        self.listen(case).await;
        for op in ops {
            match op.call(case) {
                Some(call) => {
                    let (real, ours) = tokio::join!(
                        self.real.0.clone().run(call.clone()),
                        self.ours.0.clone().run(call.clone())
                    );
                    let (real, ours) = (real.unwrap(), ours.unwrap());
                    assert!(alike(&real, &ours), "{call:?}: {real:?}, {ours:?}");
                }
                None if op.kind == 8 => {
                    let (counter, token) = (op.counter(case), u64::from(op.count) * 7);
                    let set = redis::cmd("SET").arg(&counter).arg(token).to_owned();
                    let () = set.query_async(&mut self.admin).await.unwrap();
                    self.memory.visit(|store| store.counters.set(&counter, token));
                }
                None => {
                    let deleted: bool =
                        redis::cmd("DEL").arg(op.key(case)).query_async(&mut self.admin).await.unwrap();
                    assert_eq!(self.memory.lose(op.key(case)), deleted);
                }
            }
            self.compare(&op.key(case)).await;
            self.compare_counters(&op.counter(case)).await;
        }
        self.compare_messages(case).await;
    }

    /// Both channels of this case, on both masters.
    async fn listen(&mut self, case: usize) {
        for lock in 0..2 {
            let channel = channel("", &format!("{case}:{lock}"));
            self.real.0.subscribe(&channel);
            self.ours.0.subscribe(&channel);
            assert_eq!(self.real.1.next().await, Event::Subscribed(channel.clone()));
            assert_eq!(self.ours.1.next().await, Event::Subscribed(channel));
        }
    }

    /// Field, count and lease of a lock.
    async fn compare(&mut self, key: &str) {
        let fields: Vec<(String, u32)> =
            redis::cmd("HGETALL").arg(key).query_async(&mut self.admin).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut self.admin).await.unwrap();
        let now = tokio::time::Instant::now();
        let ours = self.memory.visit(|store| {
            let lock = store.live(now).into_iter().find(|(live, _)| ***live == *key);
            lock.map(|(_, held)| (held.field.to_string(), held.count, held.left(now)))
        });
        match ours {
            None => assert!(fields.is_empty() && ttl == -2, "{key}: {fields:?}"),
            Some((field, count, left)) => {
                assert_eq!(fields, [(field, count)], "{key}");
                assert!(
                    left.abs_diff(Duration::from_millis(ttl.unsigned_abs())) < TOLERANCE,
                    "{key}: {left:?}, {ttl}"
                );
            }
        }
    }

    async fn compare_counters(&mut self, key: &str) {
        let real: Option<u64> = redis::cmd("GET").arg(key).query_async(&mut self.admin).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut self.admin).await.unwrap();
        let now = tokio::time::Instant::now();
        let ours = self.memory.visit(|store| store.counters.seen(key, now));
        assert_eq!(real, ours.map(|(token, _)| token), "{key}");
        match ours.and_then(|(_, until)| until) {
            None => assert!(ttl < 0, "{key}: {ttl}"),
            Some(until) => {
                let ttl = Duration::from_millis(u64::try_from(ttl).unwrap());
                assert!((until - now).abs_diff(ttl) < TOLERANCE, "{key}: {until:?}, {ttl:?}");
            }
        }
    }

    /// Both have reported the same releases, up to a last one.
    async fn compare_messages(&mut self, case: usize) {
        let last = Op { kind: 0, lock: 1, field: 2, count: 1, lease: 1, fence: None, stays: 0 };
        let free = Op { kind: 4, ..last.clone() };
        for op in [free.clone(), last, free] {
            let call = op.call(case).unwrap();
            let (real, ours) =
                tokio::join!(self.real.0.clone().run(call.clone()), self.ours.0.clone().run(call));
            assert_eq!(real.unwrap(), ours.unwrap());
        }
        // All of ours have been reported by now; those of the server arrive in their order.
        let ours: Vec<Event> = std::iter::from_fn(|| self.ours.1.try_next()).filter(is_message).collect();
        assert!(!ours.is_empty());
        for message in ours {
            assert_eq!(self.real.1.next().await, message);
        }
        self.real.1.expect_none();
    }
}

/// Without the event of `lose`, which no server reports.
fn is_message(events: &Event) -> bool {
    *events != Event::Reconnected
}

fn alike(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Busy(real, theirs), Reply::Busy(left, ours)) => {
            // One and the same holder, by field and count.
            let [theirs, ours] =
                [theirs, ours].map(|holder| holder.as_ref().map(|one| one.with(one.count(), LONG)));
            real.abs_diff(*left) < TOLERANCE && theirs == ours
        }
        (Reply::Longer(real, theirs), Reply::Longer(left, ours)) => {
            real.abs_diff(*left) < TOLERANCE && theirs.is_some() == ours.is_some()
        }
        _ => real == ours,
    }
}

#[test]
fn random_commands_are_answered_as_by_the_scripts_on_a_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (twins, case) = (std::cell::RefCell::new(runtime.block_on(Twins::start())), std::cell::Cell::new(0));
    // Failed cases are printed, not kept in a file.
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let played = TestRunner::new(config).run(&ops(), |ops| {
        case.set(case.get() + 1);
        runtime.block_on(twins.borrow_mut().play(case.get(), &ops));
        Ok(())
    });
    played.unwrap();
    assert!(runtime.block_on(twins.borrow().server.count("evalsha")) > 1000);
}
