//! A runtime that does not run because its tasks compute or wait without an `.await`: a thread renews its locks.

mod homes;
mod limits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use nestlock::{Builder, ErrorKind, Guard, Locks};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::support::SECOND;

/// So long that even a busy machine does not lose a third of it.
const LEASE: Duration = Duration::from_secs(6);

/// How long the tasks of these tests may compute.
const THREE_LEASES: Duration = Duration::from_secs(18);

/// The kind of a runtime, and how many of its workers are blocked.
#[derive(Clone, Copy, Debug)]
enum Runtime {
    OneThread,
    Workers { all: usize, blocked: usize },
}

/// A runtime on a thread of its own that stays blocked until `go_on`.
struct Blocked {
    /// The guards of `stock` and of `neighbour`.
    guards: [Arc<Guard>; 2],
    goes_on: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Blocked {
    /// Takes `stock` and `neighbour`, and then blocks.
    async fn begin(builder: Builder, kind: Runtime) -> Blocked {
        Blocked::with(builder, kind, async |locks| {
            [locks.mutex("stock").lock().await.unwrap(), locks.mutex("neighbour").lock().await.unwrap()]
        })
        .await
    }

    /// Blocks a worker whose next task reads the answers: no other worker may run that task.
    async fn behind_a_reader(builder: Builder) -> Blocked {
        let goes_on = Arc::<AtomicBool>::default();
        let (taken, guards) = oneshot::channel();
        let signal = goes_on.clone();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                let locks = builder.connect().await.unwrap();
                let guards = [locks.mutex("stock").lock().await, locks.mutex("neighbour").lock().await];
                let guards = guards.map(|guard| Arc::new(guard.unwrap()));
                assert!(taken.send(guards.clone()).is_ok());
                let asks = locks.clone();
                let blocks = tokio::spawn(async move {
                    // The request for `one` is written here; the one for `other` is left to the task that writes.
                    let [one, other] = ["one", "other"].map(|name| asks.mutex(name).lock());
                    let block = async {
                        while !signal.load(SeqCst) {
                            thread::sleep(Duration::from_millis(5));
                        }
                    };
                    let (one, other, ()) = tokio::join!(biased; one, other, block);
                    let _ends = (one.unwrap(), other.unwrap());
                });
                blocks.await.unwrap();
                for guard in guards {
                    let _ = guard.check().await;
                }
                locks.close().await.unwrap();
            });
        });
        Blocked { guards: guards.await.unwrap(), goes_on, thread: Some(thread) }
    }

    async fn with(
        builder: Builder,
        kind: Runtime,
        takes: impl AsyncFnOnce(&Locks) -> [Guard; 2] + Send + 'static,
    ) -> Blocked {
        let goes_on = Arc::<AtomicBool>::default();
        let (taken, guards) = oneshot::channel();
        let signal = goes_on.clone();
        let thread = thread::spawn(move || {
            let (runtime, tasks) = match kind {
                Runtime::OneThread => (runtime::Builder::new_current_thread(), 1),
                Runtime::Workers { all, blocked } => {
                    let mut builder = runtime::Builder::new_multi_thread();
                    builder.worker_threads(all);
                    (builder, blocked)
                }
            };
            let mut runtime = runtime;
            runtime.enable_all().build().unwrap().block_on(async {
                let locks = builder.connect().await.unwrap();
                let guards = takes(&locks).await.map(Arc::new);
                assert!(taken.send(guards.clone()).is_ok());
                let block = |_| {
                    let signal = signal.clone();
                    tokio::spawn(async move {
                        // After a timer this worker has just taken events for all workers.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        while !signal.load(SeqCst) {
                            thread::sleep(Duration::from_millis(5));
                        }
                    })
                };
                for task in (0..tasks).map(block).collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                for guard in guards {
                    // The error, if there is one, doesn't matter: this only waits until everything is answered.
                    let _ = guard.check().await;
                }
                locks.close().await.unwrap();
            });
        });
        Blocked { guards: guards.await.unwrap(), goes_on, thread: Some(thread) }
    }

    fn is_lost(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_lost())
    }

    /// Ends the block, and waits until the runtime has ended.
    async fn go_on(mut self) -> [Arc<Guard>; 2] {
        self.goes_on.store(true, SeqCst);
        let thread = self.thread.take().unwrap();
        tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
        self.guards.clone()
    }

    /// Checks that nobody else is granted these locks for three leases.
    async fn keeps_all(self, strangers: &Locks) {
        let over = Instant::now() + THREE_LEASES;
        while Instant::now() < over {
            for name in ["stock", "neighbour"] {
                match strangers.mutex(name).try_lock().await {
                    Ok(outcome) => assert!(outcome.is_none(), "{name} is held"),
                    // On a busy machine no answer may come in time.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                }
            }
            assert!(!self.is_lost());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for guard in self.go_on().await {
            assert_eq!(guard.loss(), None);
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.goes_on.store(true, SeqCst);
    }
}
