//! The data in Redis, written with plain GET and SET: counts, and how far each order is.
//!
//! Nothing here is atomic beyond a single SET. The caller must hold the lock of the data that it reads and writes, and must expect that an
//! earlier process died between any two commands.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::Result;

/// How long to wait for an answer before the run fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// How far an order is.
pub(crate) enum Progress {
    Open,
    /// A process began it. If a process that holds the order's lock reads this, it finishes the order.
    Begun,
    Done,
}

/// The keys of one run of the shop.
#[derive(Clone)]
pub(crate) struct Journal {
    redis: MultiplexedConnection,
    prefix: String,
}

impl Journal {
    pub(crate) async fn open(url: &str, prefix: &str) -> Result<Journal> {
        // By default, an answer that takes half a second is an error, which a busy machine can cause.
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let redis = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await?;
        Ok(Journal { redis, prefix: prefix.to_owned() })
    }

    async fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.redis.clone().get(format!("{}{key}", self.prefix)).await?)
    }

    async fn set(&self, key: &str, value: &str) -> Result<()> {
        Ok(self.redis.clone().set(format!("{}{key}", self.prefix), value).await?)
    }

    pub(crate) async fn progress(&self, order: &str) -> Result<Progress> {
        let entry = self.get(&format!("order:{order}")).await?;
        Ok(match entry.as_deref().and_then(|entry| entry.split_once(' ')) {
            Some(("done", _)) => Progress::Done,
            Some(_) => Progress::Begun,
            None => Progress::Open,
        })
    }

    /// Returns whether this worker is the one that finished the order.
    pub(crate) async fn done_by(&self, order: &str, worker: &str) -> Result<bool> {
        Ok(self.get(&format!("order:{order}")).await?.as_deref() == Some(&format!("done {worker}")))
    }

    pub(crate) async fn begin(&self, order: &str, worker: &str) -> Result<()> {
        self.set(&format!("order:{order}"), &format!("begun {worker}")).await
    }

    pub(crate) async fn finish(&self, order: &str, worker: &str) -> Result<()> {
        self.set(&format!("order:{order}"), &format!("done {worker}")).await
    }

    /// Returns the count of a thing that was stored before.
    pub(crate) async fn count(&self, key: &str) -> Result<i64> {
        Ok(self.record(key).await?.0)
    }

    pub(crate) async fn store(&self, key: &str, count: i64) -> Result<()> {
        self.set(key, &format!("{count} -")).await
    }

    /// Returns a count, and the step that changed it last.
    async fn record(&self, key: &str) -> Result<(i64, String)> {
        let record = self.get(key).await?.ok_or_else(|| format!("{key} is gone"))?;
        let (count, step) = record.split_once(' ').ok_or_else(|| format!("{key} is no record"))?;
        Ok((count.parse()?, step.to_owned()))
    }

    /// Changes a count by one step of an order, **once**, however often the step is begun. Returns whether it
    /// was done now (true), or before, by a process that died later (false).
    ///
    /// 1. The new count and the step's name are written by one SET, so there is no moment at which the count has changed and the step is
    ///    not known to be done.
    /// 2. Before the next step writes its own name there, the old name is stored under a key of its own. A process that dies between the
    ///    two SETs has only stored something that is true anyway.
    ///
    /// So, wherever a process is killed, the step is either not done at all, or found by its name in one of the two places. No other
    /// process can write between GET and SET: the caller has the lock.
    pub(crate) async fn step(&self, key: &str, step: &str, change: i64) -> Result<bool> {
        let (count, last) = self.record(key).await?;
        if last == step || self.get(&format!("step:{step}")).await?.is_some() {
            return Ok(false);
        }
        self.set(&format!("step:{last}"), "done").await?;
        // A real service would do its work here. Without a lock, others have the time to read the same count, which is what goes wrong in
        // the second half of the demo.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.set(key, &format!("{} {step}", count + change)).await?;
        Ok(true)
    }

    /// Returns all keys of this run that begin with this text.
    pub(crate) async fn keys(&self, beginning: &str) -> Result<Vec<String>> {
        let mut redis = self.redis.clone();
        let mut found = Vec::new();
        let mut keys = redis.scan_match::<_, String>(format!("{}{beginning}*", self.prefix)).await?;
        while let Some(key) = keys.next_item().await {
            found.push(key?);
        }
        Ok(found)
    }

    /// Removes everything that this run wrote.
    pub(crate) async fn clear(&self) -> Result<()> {
        for key in self.keys("").await? {
            let () = self.redis.clone().del(key).await?;
        }
        Ok(())
    }
}
