//! The parts of tests that run as their own processes, with `support::process`. Each is ignored: without a parent process it tests nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::support;
use crate::support::process;
use crate::support::server::Server;

#[tokio::test]
#[ignore = "a part of other tests"]
async fn echo() {
    if !process::is_worker() {
        return;
    }
    process::report(&format!("hello {}", process::param("whom")));
    while let Some(line) = process::next_command().await {
        if line == "bye" {
            return;
        }
        process::report(&line);
    }
}

#[tokio::test]
#[ignore = "a part of other tests"]
async fn server_owner() {
    if !process::is_worker() {
        return;
    }
    let server = Server::start().await;
    server.freeze();
    process::report(&server.pid().to_string());
    process::report(server.dir().to_str().unwrap());
    process::next_command().await;
}

/// Leaves `main` with a live guard, in one of several ways.
#[test]
#[ignore = "a part of other tests"]
fn ends_with_a_guard() {
    static KEPT: std::sync::Mutex<Option<nestlock::Guard>> = std::sync::Mutex::new(None);
    if !process::is_worker() {
        return;
    }
    let runtime = match &*process::param("runtime") {
        "one thread" => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        _ => tokio::runtime::Runtime::new().unwrap(),
    };
    let how = process::param("how");
    let (locks, guard) = runtime.block_on(async {
        let locks = support::builder(&process::param("url")).lease(Duration::from_secs(600)).connect().await;
        let locks = locks.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        process::report("holding");
        (locks, guard)
    });
    match &*how {
        "in_block_on" => runtime.block_on(async { drop(guard) }),
        "by_an_error" => {
            let failed: Result<(), std::io::Error> = runtime.block_on(async {
                let _guard = guard;
                Err(std::io::Error::other("why it ends"))?;
                Ok(())
            });
            failed.unwrap_err();
        }
        "by_a_panic" => {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                runtime.block_on(async {
                    let _guard = guard;
                    panic!("why it ends")
                })
            }));
            panicked.unwrap_err();
        }
        "by_a_signal" => runtime.block_on(async {
            let _guard = guard;
            let ended = tokio::signal::ctrl_c();
            tokio::pin!(ended);
            // The first poll installs the signal handler.
            assert!(futures::poll!(&mut ended).is_pending());
            process::report("to be ended");
            ended.await.unwrap();
        }),
        "by_close" => runtime.block_on(async {
            drop(guard);
            locks.close().await.unwrap();
        }),
        "outside" => drop(guard),
        "after_the_runtime" => {
            drop(runtime);
            drop(guard);
        }
        "exit_after_the_drop" => {
            drop(guard);
            std::process::exit(0);
        }
        "in_a_static" => *KEPT.lock().unwrap() = Some(guard),
        "forgotten" => std::mem::forget(guard),
        "exit" => std::process::exit(0),
        how => panic!("unknown: {how}"),
    }
    drop(locks);
}

/// The runtime ends while it has locks in several ways, and the process goes on. So what is written reaches the server for certain.
#[test]
#[ignore = "a part of other tests"]
fn outlives_its_runtime() {
    if !process::is_worker() {
        return;
    }
    let runtime = match &*process::param("runtime") {
        "one thread" => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        _ => tokio::runtime::Runtime::new().unwrap(),
    };
    let (url, how) = (process::param("url"), process::param("how"));
    let kept = runtime.block_on(async {
        let locks =
            support::builder(&url).lease(Duration::from_secs(600)).local_handoff(Duration::from_secs(60));
        let locks = locks.connect().await.unwrap();
        let (stock, shelf) = (locks.mutex("stock"), locks.mutex("shelf"));
        let mut kept = Vec::new();
        match &*how {
            "dropped_together" => {
                let _guards = (stock.lock().await.unwrap(), shelf.lock().await.unwrap());
            }
            "in_tasks" => {
                for at in 0..20 {
                    let guard = locks.mutex(format!("stock:{at}")).lock().await.unwrap();
                    tokio::spawn(async move {
                        let _guard = guard;
                        std::future::pending::<()>().await
                    });
                }
            }
            "kept" => kept.push(stock.lock().await.unwrap()),
            "at_least" => drop(shelf.lock().at_least(Duration::from_secs(1)).await.unwrap()),
            "offered" => {
                let guard = stock.lock().await.unwrap();
                let other = stock.clone();
                tokio::spawn(async move {
                    let _guard = other.lock().await;
                    std::future::pending::<()>().await
                });
                support::eventually("a waiter", async || {
                    locks.status().iter().any(|lock| lock.waiting() > 0)
                })
                .await;
                drop(guard);
            }
            "asked_for" => drop(support::enlisted(&stock)),
            how => panic!("unknown: {how}"),
        }
        kept
    });
    drop(runtime);
    drop(kept);
    process::report("the runtime has ended");
    tokio::runtime::Runtime::new().unwrap().block_on(process::next_command());
}

/// Takes a lock over TLS, releases it, and waits for it.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn locks_over_tls() {
    if !process::is_worker() {
        return;
    }
    let locks = support::locks(&process::param("url")).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    process::report("holding");
    assert_eq!(process::next_command().await.as_deref(), Some("release"));
    guard.release().await.unwrap();
    process::report("released");
    assert_eq!(process::next_command().await.as_deref(), Some("wait"));
    let guard = stock.lock().await.unwrap();
    process::report("holding");
    guard.release().await.unwrap();
    locks.close().await.unwrap();
}

/// Holds a lock until it is killed. The lock is renewed like any other.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn holder() {
    if !process::is_worker() {
        return;
    }
    let lease = Duration::from_millis(process::param("lease").parse().unwrap());
    let locks = support::builder(&process::param("url")).lease(lease).connect().await.unwrap();
    let _guard = locks.mutex("stock").lock().await.unwrap();
    process::report("holding");
    process::next_command().await;
}

/// Adds to a counter that is kept with GET and SET, in eight tasks, until it is stopped. Reports how many sections were completed.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn counter() {
    if !process::is_worker() {
        return;
    }
    let url = process::param("url");
    let locks = support::builder(&url).unavailable_after(Duration::MAX).connect().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|task| tokio::spawn(count(locks.mutex("lock"), Store::new(&url, task), stop.clone())))
        .collect();
    process::report("counting");
    process::next_command().await;
    stop.store(true, SeqCst);
    let mut sections = 0;
    for task in tasks {
        sections += support::soon("a task's end", task).await.unwrap();
    }
    locks.close().await.unwrap();
    process::report(&sections.to_string());
}

async fn count(lock: nestlock::Mutex, mut store: Store, stop: Arc<AtomicBool>) -> u64 {
    let mut sections = 0;
    while !stop.load(SeqCst) {
        let guard = support::soon("the lock", lock.lock()).await.unwrap();
        // The witness supplements the count: two tasks inside at once see each other even if no count is lost.
        store.set_new("witness").await;
        let seen: u64 = store.get("count").await.unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        store.set("count", &(seen + 1).to_string()).await;
        store.remove("witness").await;
        assert!(!guard.is_lost(), "{:?}", guard.loss());
        sections += 1;
        match support::soon("the release", guard.release()).await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), nestlock::ErrorKind::Unavailable, "{error}"),
        }
    }
    sections
}

/// Moves money between accounts while it holds both of their locks, in its own order.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn mover() {
    if !process::is_worker() {
        return;
    }
    const ACCOUNTS: usize = 4;
    let (url, number) = (process::param("url"), process::param("number").parse::<usize>().unwrap());
    let rounds: usize = process::param("rounds").parse().unwrap();
    let (locks, mut store) = (support::locks(&url).await, Store::new(&url, number));
    process::report("ready");
    process::next_command().await;
    for round in 0..rounds {
        let from = (number + round) % ACCOUNTS;
        let to = (from + 1 + (number + round / ACCOUNTS) % (ACCOUNTS - 1)) % ACCOUNTS;
        let [from, to] = [from, to].map(|number| format!("account:{number}"));
        let both = locks.mutexes([format!("lock:{from}"), format!("lock:{to}")]);
        let moved = both.run(async |_| {
            for (account, difference) in [(&from, -1), (&to, 1)] {
                let money: i64 = store.get(account).await.unwrap().parse().unwrap();
                tokio::task::yield_now().await;
                store.set(account, &(money + difference).to_string()).await;
            }
        });
        support::soon("both accounts", moved).await.unwrap();
    }
    locks.close().await.unwrap();
    process::report("done");
}

/// Values on the server. When a write returns, it is known to have run, even if connections break during it.
struct Store {
    client: redis::Client,
    connection: Option<redis::aio::MultiplexedConnection>,
    me: String,
}

impl Store {
    fn new(url: &str, task: usize) -> Store {
        let me = format!("{}:{task}", std::process::id());
        Store { client: redis::Client::open(url).unwrap(), connection: None, me }
    }

    /// Tries once.
    async fn ask(&mut self, command: &[&str]) -> redis::RedisResult<Option<String>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // Only the end of a connection may leave a command's outcome open, since the command then runs before any other or not at
                // all. After a mere timeout it could run later.
                let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
                self.client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        let answer = redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn get(&mut self, key: &str) -> Option<String> {
        loop {
            match self.ask(&["GET", key]).await {
                Ok(value) => return value,
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    async fn set(&mut self, key: &str, value: &str) {
        while self.ask(&["SET", key, value]).await.is_err() && self.get(key).await.as_deref() != Some(value) {
        }
    }

    /// Sets a key that must not exist.
    async fn set_new(&mut self, key: &str) {
        let me = self.me.clone();
        let first = self.ask(&["SET", key, &me, "NX"]).await;
        let mut set = matches!(first, Ok(Some(_)));
        assert!(set || first.is_err(), "two holders at once: {:?} is inside too", self.get(key).await);
        while !set {
            match self.get(key).await {
                None => set = matches!(self.ask(&["SET", key, &me, "NX"]).await, Ok(Some(_))),
                Some(inside) => {
                    assert_eq!(inside, me, "two holders at once");
                    set = true;
                }
            }
        }
    }

    /// Removes the key, whose value must be this store's own.
    async fn remove(&mut self, key: &str) {
        let me = self.me.clone();
        assert_eq!(self.get(key).await.as_ref(), Some(&me), "two holders at once");
        while self.ask(&["DEL", key]).await.is_err() && self.get(key).await.is_some() {}
    }
}

/// Acquires `stock` with a short lease, reports its field, and reports the outcome of the hold on a command.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn lease_holder() {
    if !process::is_worker() {
        return;
    }
    let builder = crate::support::builder(&process::param("url"));
    let stock = builder.lease(std::time::Duration::from_secs(4)).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    process::report(guard.hold_id());
    process::next_command().await;
    process::report(&format!("lost {}", guard.is_lost()));
    process::report(&format!("re-entry {:?}", stock.lock().await.unwrap_err().kind()));
    process::report(&format!("release {:?}", guard.release().await.unwrap_err().kind()));
}
