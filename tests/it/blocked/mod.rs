//! A runtime that does not run, since its tasks compute or wait without an `.await`: a thread renews its locks.

mod homes;
mod limits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use nestlock::{Builder, Guard, Locks};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::support::SECOND;

/// Long enough that a busy machine does not take a third of it.
const LEASE: Duration = Duration::from_secs(6);

/// As long as its tasks may compute here.
const THREE_LEASES: Duration = Duration::from_secs(18);

/// What a runtime is, and how many of its workers are blocked.
#[derive(Clone, Copy, Debug)]
enum Runtime {
    OneThread,
    Workers { all: usize, blocked: usize },
}

/// A part of the process whose runtime is blocked until this lets it go on.
struct Blocked {
    /// The guards of the task that blocks, and of one that does not.
    guards: [Arc<Guard>; 2],
    goes_on: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Blocked {
    /// Takes `stock` and `neighbour`, and blocks.
    async fn begin(builder: Builder, kind: Runtime) -> Blocked {
        Blocked::with(builder, kind, async |locks| {
            [locks.mutex("stock").lock().await.unwrap(), locks.mutex("neighbour").lock().await.unwrap()]
        })
        .await
    }

    /// The task that blocks has made the one that reads answers the next of its worker, which no other one may run.
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
                    // The first is written here, and the second is left to the task.
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
                        // Woken by a timer: its worker has just taken events for all.
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
                    // What it says once all is answered.
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

    /// Ends the block, and waits for the end of the runtime.
    async fn go_on(mut self) -> [Arc<Guard>; 2] {
        self.goes_on.store(true, SeqCst);
        let thread = self.thread.take().unwrap();
        tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
        self.guards.clone()
    }

    /// Nobody else is granted what is held here for three leases.
    async fn keeps_all(self, strangers: &Locks) {
        let over = Instant::now() + THREE_LEASES;
        while Instant::now() < over {
            for name in ["stock", "neighbour"] {
                assert!(strangers.mutex(name).try_lock().await.unwrap().is_none(), "{name} is held");
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
