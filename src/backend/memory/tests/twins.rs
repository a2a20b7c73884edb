//! Compares the in-memory store with the real scripts by random commands.

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
use crate::wire::keys::{Keys, channel, counter, wakes};
use crate::wire::{Action, Call, Fence, Hint, LEFT_TO_OTHERS, Line, Notice, Reply};

/// The leases differ by so much that a slow test can't make one look like another.
const STEP: Duration = Duration::from_secs(600);
const TOLERANCE: Duration = Duration::from_secs(240);
const LONG: Duration = Duration::from_secs(20);
/// The scripts accept only a UUID as the process of a hold.
const UUID: &str = "4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";

/// The UUID of a process that gets no message.
const GONE: &str = "5be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";

/// One command, on one of two locks, by one of three fields.
#[derive(Clone, Debug)]
struct Op {
    kind: u8,
    lock: u8,
    field: u8,
    count: u32,
    lease: u32,
    /// The smallest allowed token, or `None` for a hold without a token.
    fence: Option<u64>,
    /// How long the counter is kept.
    stays: u32,
    /// Whether the line is left alone, entered, or entered again.
    line: u8,
}

fn field(at: u8) -> String {
    let session = if at == 1 { GONE } else { UUID };
    // The last process polls.
    format!("{session}:{}{}", if at == 2 { "-" } else { "" }, at + 1)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Mostly acquires, and half of all commands by one field, so that there are holds to release, renew and settle.
    let kind = prop_oneof![12 => Just(0u8), 12 => 1..4u8, 6 => 4..13u8];
    let field = prop_oneof![3 => Just(0u8), 3 => 1..3u8];
    // Tokens near each other, of two lengths, and near the largest value of a counter.
    let fence = prop_oneof![7 => 5..15u64, 1 => Just(i64::MAX as u64 - 1)];
    let line = prop_oneof![1 => Just(0u8), 2 => 1..3u8];
    let op = (kind, 0..2u8, field, 0..4u32, 1..7u32, proptest::option::of(fence), 0..4u32, line);
    let op = op.prop_map(|(kind, lock, field, count, lease, fence, stays, line)| Op {
        kind,
        lock,
        field,
        count,
        lease,
        fence,
        stays,
        line,
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

    /// Returns the command, or `None` if a key is to be deleted or set by hand.
    fn call(&self, case: usize) -> Option<Call> {
        let key = self.key(case);
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let lease = Lease::new("lease", STEP * self.lease, drift).unwrap();
        let (fence, count) = (self.fence(case), self.count);
        let action = match self.kind {
            0 => Action::Acquire {
                count: if fence.is_some() || self.line > 0 { 1 } else { count.max(1) },
                lease,
            },
            1 => Action::Release { count: if self.line > 0 { 0 } else { count } },
            2 => Action::Renew { lease },
            3 => Action::Settle { count, lease },
            7 => Action::Repair { count: count.max(1), lease },
            4 => Action::Force,
            5 => Action::Look,
            9 => Action::Who,
            10 => Action::Keep { lease },
            11 => Action::Move { lease },
            12 => Action::Decline,
            _ => return None,
        };
        let fence = fence.filter(|_| {
            action.lease().is_some() && !action.is_end() && !matches!(action, Action::Move { .. })
        });
        let from = Some(field((self.field + 1) % 3).into()).filter(|_| matches!(action, Action::Move { .. }));
        let report_holder = self.stays > 1;
        let stays = Lease::new("line", STEP * (self.stays + 1), drift).unwrap();
        let line = (self.line > 0).then_some(Line {
            term: lease,
            stays,
            again: self.line > 1,
            polls: false,
            sharded: false,
        });
        let line = line.filter(|_| {
            matches!(action, Action::Acquire { count: 1, .. } | Action::Force | Action::END | Action::Decline)
        });
        Some(Call { fence, report_holder, from, line, ..Call::of(&key, &field(self.field), action) })
    }
}

/// The two masters, and their events.
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
        let mut twins = Twins { server, admin, real: (backend, events), memory, ours };
        twins.subscribe(wakes("") + UUID).await;
        twins
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
                    assert_eq!(self.memory.faults().lose(op.key(case)), deleted);
                }
            }
            self.compare(&op.key(case)).await;
            self.compare_counters(&op.counter(case)).await;
            self.compare_lines(&op.key(case)).await;
        }
        self.compare_messages(case).await;
    }

    /// Subscribes to the channels of both locks of this case, on both masters. For the second lock, it does
    /// so as a client that knows of lines.
    async fn listen(&mut self, case: usize) {
        let channels = [0, 1].map(|lock| channel("", &format!("{case}:{lock}")));
        self.subscribe(wakes("") + &channels[1]).await;
        for channel in channels {
            self.subscribe(channel).await;
        }
    }

    async fn subscribe(&mut self, channel: String) {
        self.real.0.subscribe(&channel);
        self.ours.0.subscribe(&channel);
        assert_eq!(self.real.1.next().await, Event::Subscribed(channel.clone()));
        assert_eq!(self.ours.1.next().await, Event::Subscribed(channel));
    }

    /// Compares the field, count and lease of a lock.
    async fn compare(&mut self, key: &str) {
        let fields: Vec<(String, u32)> =
            redis::cmd("HGETALL").arg(key).query_async(&mut self.admin).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut self.admin).await.unwrap();
        let now = tokio::time::Instant::now();
        let ours = self.memory.visit(|store| {
            let lock = store.live(now).into_iter().find(|(live, _)| ***live == *key);
            lock.map(|(_, held)| (held.field.to_string(), held.count, held.holder(now).remaining_lease()))
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

    /// Compares which fields wait for a lock, in order.
    async fn compare_lines(&mut self, key: &str) {
        let keys = Keys::new("", key);
        let (line, wakes) = (&*keys.line().line, &*keys.line().wakes);
        let real: Vec<String> =
            redis::cmd("ZRANGE").arg(line).arg(0).arg(-1).query_async(&mut self.admin).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(line).query_async(&mut self.admin).await.unwrap();
        let now = tokio::time::Instant::now();
        match self.memory.visit(|store| store.lines.seen(line, now)) {
            None => assert!(real.is_empty(), "{line}: {real:?}"),
            Some((fields, until)) => {
                let ours: Vec<String> = fields.iter().map(|field| [wakes, field].concat()).collect();
                assert_eq!(real, ours, "{line}");
                let ttl = Duration::from_millis(u64::try_from(ttl).unwrap());
                assert!((until - now).abs_diff(ttl) < TOLERANCE, "{line}: {until:?}, {ttl:?}");
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

    /// Checks that both have reported the same releases, up to a last one.
    async fn compare_messages(&mut self, case: usize) {
        let last = Op { kind: 0, lock: 1, field: 2, count: 1, lease: 1, fence: None, stays: 0, line: 0 };
        let free = Op { kind: 4, ..last.clone() };
        for op in [free.clone(), last, free] {
            let call = op.call(case).unwrap();
            let (real, ours) =
                tokio::join!(self.real.0.clone().run(call.clone()), self.ours.0.clone().run(call));
            assert_eq!(real.unwrap(), ours.unwrap());
        }
        // By now, the store has reported all of its events; the server's arrive in the same order.
        let ours: Vec<Event> = std::iter::from_fn(|| self.ours.1.try_next()).filter(is_message).collect();
        assert!(!ours.is_empty());
        for message in ours {
            let real = self.real.1.next().await;
            match (&real, &message) {
                (Event::Hint(on, real), Event::Hint(channel, ours)) if ours != LEFT_TO_OTHERS => {
                    let [real, ours] = [real, ours].map(|text| Hint::read(text).unwrap());
                    assert_eq!((on, real.number, real.key), (channel, ours.number, ours.key));
                    let near = |(real, ours): (Duration, Duration)| real.abs_diff(ours) < TOLERANCE;
                    assert_eq!(real.wait.is_some(), ours.wait.is_some(), "{real:?}, {ours:?}");
                    assert!(real.wait.zip(ours.wait).is_none_or(near), "{real:?}, {ours:?}");
                }
                _ => assert_eq!(real, message),
            }
        }
        self.real.1.expect_none();
    }
}

/// Leaves out the event of `lose`, which no server reports.
fn is_message(events: &Event) -> bool {
    *events != Event::Reconnected
}

fn alike(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Busy(real, theirs), Reply::Busy(left, ours)) => {
            // Both name the same holder, by field and count.
            let [theirs, ours] =
                [theirs, ours].map(|holder| holder.as_ref().map(|one| one.with(one.count(), LONG)));
            real.abs_diff(*left) < TOLERANCE && theirs == ours
        }
        (Reply::InLine(_, theirs, long), Reply::InLine(_, ours, length)) if long == length => {
            let [real, ours] =
                [theirs, ours].map(|holder| Reply::Busy(holder.remaining_lease(), Some(holder.clone())));
            alike(&real, &ours)
        }
        // No command here shortens a TTL.
        (Reply::Longer(..), Reply::Done) => true,
        // Now and then the time is longer, for clients that are far away.
        (Reply::Ended(Notice::LeftToOthers(_)), Reply::Ended(Notice::LeftToOthers(_))) => true,
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
    let ran = |command: &str| runtime.block_on(twins.borrow().server.count(command));
    let counts = ["evalsha", "zadd", "zpopmin", "zcard"].map(ran);
    assert!(counts[0] > 1000 && counts[1] > 50 && counts[2] > 20 && counts[3] > 2, "{counts:?}");
}

/// Random commands rarely do this: beside a client that does not know the line, the lock is handed to the
/// last process in it, or the last process leaves it.
#[tokio::test]
async fn messages_about_the_last_of_a_line_are_those_of_the_scripts() {
    const ACQUIRE: u8 = 0;
    const END: u8 = 1;
    let mut twins = Twins::start().await;
    let last_is_served = [(ACQUIRE, 0), (ACQUIRE, 2), (END, 0), (ACQUIRE, 0), (END, 0)];
    let last_leaves = [(ACQUIRE, 1), (ACQUIRE, 0), (ACQUIRE, 2), (END, 1), (END, 2)];
    for (case, steps) in [last_is_served, last_leaves].iter().enumerate() {
        let op =
            |(kind, field)| Op { kind, lock: 0, field, count: 1, lease: 1, fence: None, stays: 0, line: 1 };
        twins.play(case, &steps.map(op)).await;
    }
}
