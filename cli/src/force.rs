//! `nestlock release --force`: frees a lock, whoever holds it.

use serde_json::json;

use crate::options::ServerOptions;
use crate::output::line;
use crate::servers::Servers;
use crate::status::Failure;

/// The status if there was nothing to free.
const WAS_FREE: u8 = 1;

pub(crate) async fn run(name: &str, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let locks = Servers::new(servers)?.builder().connect().await?;
    let mutex = locks.mutex(name);
    // Only for the message, and it may be out of date.
    let holder = mutex.holder().await.ok().flatten();
    let freed = mutex.force_release().await?;
    let shown = name.escape_debug();
    line(&match (json, freed, &holder) {
        (true, _, holder) => {
            let (by, hold) =
                (holder.as_ref().and_then(|one| one.name()), holder.as_ref().map(|one| one.hold_id()));
            json!({ "name": name, "freed": freed, "holder": by, "hold": hold }).to_string()
        }
        (false, true, Some(holder)) => {
            format!(
                "{shown}: freed; it was held by {}",
                holder.name().unwrap_or(holder.hold_id()).escape_debug()
            )
        }
        (false, true, None) => format!("{shown}: freed"),
        (false, false, _) => format!("{shown}: it was free"),
    })?;
    Ok(if freed { 0 } else { WAS_FREE })
}
