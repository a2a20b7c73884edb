//! What the server counts of the commands that clients send.

use std::collections::BTreeMap;

use redis::InfoDict;
use redis::aio::MultiplexedConnection;

use crate::server::{Result, connection_to, url};

/// The commands that are counted. The server also counts what scripts call, but no script here calls one of these.
const SENT: [&str; 5] = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];

pub(crate) struct Stats(MultiplexedConnection);

impl Stats {
    pub(crate) async fn connect() -> Result<Stats> {
        Stats::of(&url()).await
    }

    pub(crate) async fn of(url: &str) -> Result<Stats> {
        Ok(Stats(connection_to(url).await?))
    }

    pub(crate) async fn reset(&mut self) -> Result<()> {
        Ok(redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut self.0).await?)
    }

    /// Returns how many of each command the server has run since the reset.
    pub(crate) async fn commands(&mut self) -> Result<BTreeMap<String, u64>> {
        let info: InfoDict = redis::cmd("INFO").arg("commandstats").query_async(&mut self.0).await?;
        let seen = SENT.iter().filter_map(|name| calls(&info, name).map(|calls| ((*name).to_owned(), calls)));
        Ok(seen.collect())
    }

    /// Returns how often acquires ran since the reset. On several masters, where a lock has no line, only
    /// they ask for the TTL of a free or busy lock.
    pub(crate) async fn acquires(&mut self) -> Result<u64> {
        let info: InfoDict = redis::cmd("INFO").arg("commandstats").query_async(&mut self.0).await?;
        Ok(calls(&info, "pttl").unwrap_or_default())
    }

    /// Returns a value that the server reports about itself.
    pub(crate) async fn fact(&mut self, section: &str, name: &str) -> Result<Option<String>> {
        let info: InfoDict = redis::cmd("INFO").arg(section).query_async(&mut self.0).await?;
        Ok(info.get(name))
    }
}

fn calls(info: &InfoDict, name: &str) -> Option<u64> {
    let line: String = info.get(&format!("cmdstat_{name}"))?;
    line.strip_prefix("calls=")?.split(',').next()?.parse().ok()
}
