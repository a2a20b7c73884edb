//! One task that takes a free lock over several masters and releases it: beside the raw commands on all of them at once, and
//! with some masters frozen.

use std::future::Future;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use nestlock::{Fenced, Locks, Mutex};

use crate::floor::{Floor, Key};
use crate::masters::Masters;
use crate::rounds::Ways;
use crate::server::{Result, patience};

pub(crate) struct Pairs {
    floors: Vec<Floor>,
    key: Key,
    lock: Mutex,
    fenced: Mutex<Fenced>,
    _locks: Locks,
}

impl Pairs {
    pub(crate) async fn new(masters: &Masters) -> Result<Pairs> {
        let floors = try_join_all(masters.urls.iter().map(|url| Floor::to(url))).await?;
        let locks = masters.locks().node_timeout(patience()).connect().await?;
        let (lock, fenced) = (locks.mutex("bench:quorum"), locks.mutex("bench:tokens").fenced());
        Ok(Pairs { floors, key: Key::new("bench:raw-quorum"), lock, fenced, _locks: locks })
    }

    /// Makes two round trips to all, each as long as the slowest.
    async fn raw(&mut self) -> Result<()> {
        let key = &self.key;
        try_join_all(self.floors.iter_mut().map(|floor| floor.acquire(key, 1))).await?;
        try_join_all(self.floors.iter_mut().map(|floor| floor.release(key, 0))).await?;
        Ok(())
    }
}

impl Ways for Pairs {
    const NAMES: &'static [&'static str] = &[
        "two raw EVALSHA round trips on each",
        "lock and release",
        "lock and release, with a fencing token",
    ];

    async fn once(&mut self, way: usize) -> Result<Duration> {
        let began = Instant::now();
        match way {
            0 => self.raw().await?,
            1 => self.lock.lock().await?.release().await?,
            _ => self.fenced.lock().await?.release().await?,
        }
        Ok(began.elapsed())
    }
}

/// A lock while all masters answer and while a minority does not; and raw commands, which wait for a majority too.
pub(crate) struct Freezes {
    masters: Masters,
    floors: Vec<Floor>,
    key: Key,
    lock: Mutex,
    _locks: Locks,
}

impl Freezes {
    pub(crate) async fn new(masters: Masters) -> Result<Freezes> {
        let floors = try_join_all(masters.urls.iter().map(|url| Floor::to(url))).await?;
        let (locks, key) = (masters.locks().connect().await?, Key::new("bench:raw-frozen"));
        Ok(Freezes { lock: locks.mutex("bench:frozen"), _locks: locks, floors, key, masters })
    }

    /// Asks the masters that are not frozen, and waits for as many answers as are a majority of all.
    async fn raw(&mut self, frozen: bool) -> Result<()> {
        let (majority, key) = (self.masters.majority(), &self.key);
        let asked = if frozen { majority } else { self.floors.len() };
        let asked = &mut self.floors[..asked];
        first(majority, asked.iter_mut().map(|floor| floor.acquire(key, 1))).await?;
        first(majority, asked.iter_mut().map(|floor| floor.release(key, 0))).await
    }
}

/// Waits for that many of the answers.
async fn first(count: usize, asked: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    asked.collect::<FuturesUnordered<_>>().take(count).try_collect().await
}

impl Ways for Freezes {
    const NAMES: &'static [&'static str] = &[
        "raw, all masters answer",
        "raw, a minority is frozen",
        "lock and release, all masters answer",
        "lock and release, a minority is frozen",
    ];

    async fn once(&mut self, way: usize) -> Result<Duration> {
        let frozen = way % 2 == 1;
        self.masters.freeze(frozen)?;
        let began = Instant::now();
        match way {
            0 | 1 => self.raw(frozen).await?,
            _ => self.lock.lock().await?.release().await?,
        }
        Ok(began.elapsed())
    }
}
