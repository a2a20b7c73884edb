//! The driver of rslock.

#[path = "../../driver.rs"]
mod driver;

use std::time::Duration;

use rslock::{LockGuard, LockManager};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::driver::{About, Lock, Peer, Result, Setting};

fn main() -> Result<()> {
    let setting = Setting::read()?;
    let lease = setting.lease;
    let packages = &["rslock", "redis", "tokio"];
    let about = About { name: "rslock", packages, locked: include_str!("../Cargo.lock") };
    setting.serve(about, async move {
        let url = std::env::var("REDIS_URL")?;
        Ok(Rslock { manager: LockManager::new(vec![url]), lease })
    })
}

#[derive(Clone)]
struct Rslock {
    manager: LockManager,
    lease: Duration,
}

struct Held {
    rslock: Rslock,
    name: String,
    guards: Vec<LockGuard>,
}

/// Keeps a hold by `using`, which renews while its work runs. The work waits until the hold is to end.
struct Kept {
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Peer for Rslock {
    type Lock = Held;
    type Kept = Kept;
    const NESTS: bool = false;
    const RENEWS: bool = true;
    const SENDS: &'static [&'static str] = &["set", "evalsha", "eval", "script|load"];

    fn lock(&self, name: &str) -> Held {
        Held { rslock: self.clone(), name: name.to_owned(), guards: Vec::new() }
    }

    async fn keep(&self, name: String) -> Result<Kept> {
        let (end, ended) = oneshot::channel();
        let (taken, is_taken) = oneshot::channel();
        let rslock = self.clone();
        let task = tokio::spawn(async move {
            let work = async || {
                // If nobody waits for it any more, it ends at once.
                let _ = taken.send(());
                let _ = ended.await;
            };
            Ok(rslock.manager.using(name.as_bytes(), rslock.lease, work).await?)
        });
        is_taken.await?;
        Ok(Kept { end, task })
    }

    async fn end(kept: Kept) -> Result<()> {
        // A lost hold has ended by itself, and its task reports that.
        let _ = kept.end.send(());
        kept.task.await?
    }
}

impl Lock for Held {
    async fn acquire(&mut self) -> Result<()> {
        self.guards.push(self.rslock.manager.acquire(self.name.as_str(), self.rslock.lease).await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.guards.pop().ok_or("it is not held")?.release().await;
        Ok(())
    }
}
