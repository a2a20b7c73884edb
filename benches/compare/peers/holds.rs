//! The cost of keeping many locks while nothing else is done.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::peers::driver::Driver;
use crate::peers::fleet::Candidate;
use crate::peers::server::Server;
use crate::server::Result;

const PATIENCE: Duration = Duration::from_secs(600);

/// The figures of one library in one round.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) holds: u64,
    /// The client's memory for each hold, as the system counts it. It is less if the process has freed memory before.
    pub(crate) resident: Option<f64>,
    /// The client's memory for each hold, as the library's runtime counts it after a collection.
    pub(crate) live: Option<f64>,
    pub(crate) server_memory: f64,
    /// The cost of the renewals, if the holds are renewed.
    pub(crate) kept: Option<Kept>,
    /// How many holds were over at the end.
    pub(crate) lost: u64,
}

/// The cost of renewals. Shares are of one core.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) client: Option<f64>,
    pub(crate) server: f64,
    /// Commands for each hold and lease.
    pub(crate) commands: f64,
}

#[derive(Deserialize)]
struct Taken {
    live: Option<i64>,
}

#[derive(Deserialize)]
struct Left {
    errors: u64,
}

pub(crate) async fn round(
    holds: u64,
    driver: &mut Driver,
    of: &Candidate,
    server: &mut Server,
    lease: Duration,
) -> Result<Rest> {
    let before = (driver.resident(), server.memory().await?);
    let taken: Taken = driver.ask(&format!("take {holds}"), PATIENCE).await?;
    let each = |bytes: f64| bytes / holds as f64;
    let resident = before.0.zip(driver.resident()).map(|(before, after)| each(after as f64 - before as f64));
    let server_memory = each(server.memory().await? as f64 - before.1 as f64);
    let kept = match of.about.renews {
        true => Some(at_rest(holds, driver, &of.about.sends, server, lease).await?),
        false => None,
    };
    let left: Left = driver.ask("leave", PATIENCE).await?;
    let live = taken.live.map(|bytes| each(bytes as f64));
    Ok(Rest { holds, resident, live, server_memory, kept, lost: left.errors })
}

async fn at_rest(
    holds: u64,
    driver: &mut Driver,
    sends: &[String],
    server: &mut Server,
    lease: Duration,
) -> Result<Kept> {
    server.reset().await?;
    let before = (driver.cpu(), server.cpu().await?);
    tokio::time::sleep(lease).await;
    let share = |spent: Duration| spent.as_secs_f64() / lease.as_secs_f64();
    let client = before.0.zip(driver.cpu()).map(|(before, after)| share(after.saturating_sub(before)));
    let server_share = share(server.cpu().await?.saturating_sub(before.1));
    let commands = server.commands(sends).await? as f64 / holds as f64;
    Ok(Kept { client, server: server_share, commands })
}

/// Starts a process with as little preparation as possible, since memory that it has freed before would not be counted.
pub(crate) async fn ready(driver: &mut Driver) -> Result<()> {
    let _: Value = driver.ask("pair 100", PATIENCE).await?;
    Ok(())
}
