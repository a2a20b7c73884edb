//! One task that takes a free lock and releases it: alone, as a re-entry, as a `run`, with a fencing token.

use std::time::{Duration, Instant};

use nestlock::{Fenced, Guard, Locks, Mutex};

use crate::floor::{Floor, Key};
use crate::rounds::Ways;
use crate::server::Result;

pub(crate) struct Pairs {
    floor: Floor,
    key: Key,
    free: Mutex,
    held: Mutex,
    fenced: Mutex<Fenced>,
    _outer: Guard,
}

impl Pairs {
    pub(crate) async fn new(locks: &Locks) -> Result<Pairs> {
        let held = locks.mutex("bench:held");
        let outer = held.lock().await?;
        let floor = Floor::connect().await?;
        let (free, fenced) = (locks.mutex("bench:free"), locks.mutex("bench:fenced").fenced());
        Ok(Pairs { floor, key: Key::new("bench:pair"), free, held, fenced, _outer: outer })
    }
}

impl Ways for Pairs {
    const NAMES: &'static [&'static str] = &[
        "two raw EVALSHA round trips",
        "lock and release",
        "nested lock and release",
        "run",
        "lock and release, with a fencing token",
    ];

    async fn once(&mut self, way: usize) -> Result<Duration> {
        let began = Instant::now();
        match way {
            0 => self.floor.pair(&self.key).await?,
            1 => self.free.lock().await?.release().await?,
            2 => self.held.lock().await?.release().await?,
            3 => self.free.run(async |_| {}).await?,
            _ => self.fenced.lock().await?.release().await?,
        }
        Ok(began.elapsed())
    }
}
