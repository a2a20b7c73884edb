//! The in-memory store beside the real scripts: random commands, and no difference.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;

use crate::backend::Backend;
use crate::backend::memory::InMemory;
use crate::backend::single::Single;
use crate::backend::testing::{ALONE, TestServer, Told, Watcher};
use crate::deadline::{Drift, Lease};
use crate::memory::Memory;
use crate::names::channel;
use crate::script::{Call, Reply};

/// Leases are so far apart that the time which a test takes can't make one look like another.
const STEP: Duration = Duration::from_secs(600);
const TOLERANCE: Duration = Duration::from_secs(240);
const LONG: Duration = Duration::from_secs(20);

/// One command, on one of two locks, by one of three fields.
#[derive(Clone, Debug)]
struct Op {
    kind: u8,
    lock: u8,
    field: u8,
    count: u32,
    lease: u32,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Mostly acquires by one field, so that there is something to release, renew and settle.
    let kind = prop_oneof![6 => Just(0u8), 12 => 1..4u8, 4 => 4..8u8];
    let field = prop_oneof![4 => Just(0u8), 2 => 1..3u8];
    let op = (kind, 0..2u8, field, 0..4u32, 1..7u32);
    proptest::collection::vec(
        op.prop_map(|(kind, lock, field, count, lease)| Op { kind, lock, field, count, lease }),
        1..40,
    )
}

impl Op {
    fn key(&self, case: usize) -> String {
        format!("{case}:{}", self.lock)
    }

    /// `None`: the key is deleted by hand.
    fn call(&self, case: usize) -> Option<Call> {
        let key = self.key(case);
        let (channel, field) = (channel("", &key).into(), format!("uuid:{}", self.field).into());
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let (key, count) = (key.into(), self.count);
        let lease = Lease::new("lease", STEP * self.lease, drift).unwrap();
        Some(match self.kind {
            0 => Call::Acquire { key, field, count: count.max(1), lease },
            1 => Call::Release { key, channel, field, count },
            2 => Call::Renew { key, field, lease },
            3 => Call::Settle { key, channel, field, count, lease, create: false },
            7 => Call::Settle { key, channel, field, count: count.max(1), lease, create: true },
            4 => Call::Force { key, channel },
            5 => Call::Look { key },
            _ => return None,
        })
    }
}

/// Both masters, and what each has told.
struct Twins {
    server: TestServer,
    admin: MultiplexedConnection,
    real: (std::sync::Arc<Single>, Watcher),
    memory: Memory,
    ours: (std::sync::Arc<InMemory>, Watcher),
}

impl Twins {
    async fn start() -> Twins {
        let server = TestServer::start(&[]).await;
        let (admin, told, memory) = (server.admin().await, Watcher::new(), Memory::new());
        let (single, away) =
            Single::connect(&server.url("").into(), ALONE, LONG, told.events()).await.unwrap();
        assert!(away.is_none());
        let heard = Watcher::new();
        let ours = (InMemory::join(&memory, LONG, heard.events()), heard);
        Twins { server, admin, real: (single, told), memory, ours }
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
                    assert!(alike(&real.unwrap(), &ours.unwrap()), "{call:?}");
                }
                None => {
                    let deleted: bool =
                        redis::cmd("DEL").arg(op.key(case)).query_async(&mut self.admin).await.unwrap();
                    assert_eq!(self.memory.lose(op.key(case)), deleted);
                }
            }
            self.compare(&op.key(case)).await;
        }
        self.compare_messages(case).await;
    }

    /// Both channels of this case, on both masters.
    async fn listen(&mut self, case: usize) {
        for lock in 0..2 {
            let channel = channel("", &format!("{case}:{lock}"));
            self.real.0.subscribe(&channel);
            self.ours.0.subscribe(&channel);
            assert_eq!(self.real.1.next().await, Told::Subscribed(channel.clone()));
            assert_eq!(self.ours.1.next().await, Told::Subscribed(channel));
        }
    }

    /// Field, count and lease of what stands.
    async fn compare(&mut self, key: &str) {
        let fields: Vec<(String, u32)> =
            redis::cmd("HGETALL").arg(key).query_async(&mut self.admin).await.unwrap();
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut self.admin).await.unwrap();
        let now = tokio::time::Instant::now();
        let ours = self.memory.visit(|store| {
            let standing = store.standing(now).into_iter().find(|(standing, _)| ***standing == *key);
            standing.map(|(_, held)| (held.field.to_string(), held.count, held.left(now)))
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

    /// That both have told of the same releases, up to a last one.
    async fn compare_messages(&mut self, case: usize) {
        let last = Op { kind: 0, lock: 1, field: 2, count: 1, lease: 1 };
        let free = Op { kind: 4, ..last.clone() };
        for op in [free.clone(), last, free] {
            let call = op.call(case).unwrap();
            let (real, ours) =
                tokio::join!(self.real.0.clone().run(call.clone()), self.ours.0.clone().run(call));
            assert_eq!(real.unwrap(), ours.unwrap());
        }
        // Ours are all told by now; the server's come in their order.
        let ours: Vec<Told> = std::iter::from_fn(|| self.ours.1.seen()).filter(is_message).collect();
        assert!(!ours.is_empty());
        for message in ours {
            assert_eq!(self.real.1.next().await, message);
        }
        self.real.1.nothing();
    }
}

/// What `lose` tells besides, no server would.
fn is_message(told: &Told) -> bool {
    *told != Told::Reconnected
}

fn alike(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Busy(real), Reply::Busy(ours)) => real.abs_diff(*ours) < TOLERANCE,
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
