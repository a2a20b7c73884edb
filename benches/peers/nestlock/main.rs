//! The driver of this crate's lock and, with the argument `floor`, the driver of the raw commands beneath it, by the redis crate alone.

#[path = "../driver.rs"]
mod driver;
#[path = "../../shared/floor.rs"]
#[allow(dead_code, reason = "the comparison takes both commands at once")]
mod floor;
mod raw;
#[path = "../../shared/server.rs"]
mod server;

use nestlock::{Guard, Locks, Mutex};

use crate::driver::{About, Lock, Peer, Result, Setting};
use crate::raw::Raw;
use crate::server::patient;

const LOCKED: &str = include_str!("../../../Cargo.lock");

fn main() -> Result<()> {
    let setting = Setting::read()?;
    if std::env::args().nth(1).as_deref() == Some("floor") {
        let about = About { name: "floor", packages: &["redis", "tokio"], locked: LOCKED };
        return setting.serve(about, Raw::connect());
    }
    let lease = setting.lease;
    let about = About { name: "nestlock", packages: &["nestlock", "redis", "tokio"], locked: LOCKED };
    setting.serve(about, async move { Ok(Ours(patient().lease(lease).connect().await?)) })
}

#[derive(Clone)]
struct Ours(Locks);

struct Held {
    mutex: Mutex,
    guards: Vec<Guard>,
}

impl Peer for Ours {
    type Lock = Held;
    type Kept = Guard;
    const NESTS: bool = true;
    const RENEWS: bool = true;
    const SENDS: &'static [&'static str] = &["evalsha", "eval", "subscribe", "unsubscribe", "ping"];

    fn lock(&self, name: &str) -> Held {
        Held { mutex: self.0.mutex(name), guards: Vec::new() }
    }

    async fn keep(&self, name: String) -> Result<Guard> {
        Ok(self.0.mutex(name).lock().await?)
    }

    async fn end(guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

impl Lock for Held {
    async fn acquire(&mut self) -> Result<()> {
        self.guards.push(self.mutex.lock().await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guards.pop().ok_or("it is not held")?;
        Ok(guard.release().await?)
    }
}
