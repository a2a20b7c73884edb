//! What the server counts of the commands that clients send.

use std::collections::BTreeMap;

use redis::InfoDict;
use redis::aio::MultiplexedConnection;

use crate::floor::Floor;
use crate::server::Result;

/// The server counts what scripts call too; these only a client sends here.
const SENT: [&str; 5] = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];

pub(crate) struct Stats(MultiplexedConnection);

impl Stats {
    pub(crate) async fn connect() -> Result<Stats> {
        Ok(Stats(Floor::connect().await?.connection))
    }

    pub(crate) async fn reset(&mut self) -> Result<()> {
        Ok(redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut self.0).await?)
    }

    /// How many of each came since the reset.
    pub(crate) async fn commands(&mut self) -> Result<BTreeMap<String, u64>> {
        let told: InfoDict = redis::cmd("INFO").arg("commandstats").query_async(&mut self.0).await?;
        let calls = |name: &str| {
            let line: String = told.get(&format!("cmdstat_{name}"))?;
            line.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        let seen = SENT.iter().filter_map(|name| calls(name).map(|calls| ((*name).to_owned(), calls)));
        Ok(seen.collect())
    }

    /// A fact that the server tells of itself.
    pub(crate) async fn fact(&mut self, section: &str, name: &str) -> Result<Option<String>> {
        let told: InfoDict = redis::cmd("INFO").arg(section).query_async(&mut self.0).await?;
        Ok(told.get(name))
    }
}
