//! `nestlock show`: who holds a lock.

use crate::options::ServerOptions;
use crate::output::{as_json, as_text, line};
use crate::servers::Servers;
use crate::status::Failure;

/// The exit status if the lock is free.
const FREE: u8 = 1;

pub(crate) async fn run(name: &str, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let locks = Servers::new(servers)?.builder().connect().await?;
    let holder = locks.mutex(name).holder().await?;
    let holder = holder.as_ref();
    line(&if json { as_json(name, holder).to_string() } else { as_text(name, holder) })?;
    Ok(if holder.is_some() { 0 } else { FREE })
}
