//! `nestlock show`: who holds a lock, and who waits for it.

use crate::options::ServerOptions;
use crate::output::{as_json, as_text, line, waiter_as_json, waiter_as_text};
use crate::servers::Servers;
use crate::status::Failure;

/// The exit status if the lock is free.
const FREE: u8 = 1;

pub(crate) async fn run(name: &str, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let locks = Servers::new(servers)?.builder().connect().await?;
    let mutex = locks.mutex(name);
    let (holder, waiters) = (mutex.holder().await?, mutex.waiters().await?);
    let holder = holder.as_ref();
    if json {
        let mut state = as_json(name, holder);
        state["waiters"] = waiters.iter().map(waiter_as_json).collect();
        line(&state.to_string())?;
    } else {
        let waiters = waiters.iter().map(|waiter| format!("\n  waits: {}", waiter_as_text(waiter)));
        line(&(as_text(name, holder) + &waiters.collect::<String>()))?;
    }
    Ok(if holder.is_some() { 0 } else { FREE })
}
