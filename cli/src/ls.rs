//! `nestlock ls`: the locks that are held.

use std::collections::BTreeSet;

use nestlock::{ErrorKind, Holder, WaitingProcess};
use redis::aio::MultiplexedConnection;

use crate::options::{LsOptions, ServerOptions};
use crate::output::{as_json, line, row, waiter_as_json};
use crate::servers::{self, Servers};
use crate::status::Failure;

/// How many keys the server looks at for one answer: so few that other clients do not wait long.
const PAGE: usize = 500;

pub(crate) async fn run(options: LsOptions, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let servers = Servers::new(servers)?;
    if servers.key_prefix.is_empty() && options.prefix.is_empty() && !options.all {
        return Err(Failure::config(
            "this would list all locks of the server; give --prefix with the beginning of their names, or --all",
        ));
    }
    // Reports mistakes in addresses and credentials, and sets up TLS.
    let locks = servers.builder().connect().await?;
    let mut names = BTreeSet::new();
    for mut connection in servers.all_keys().await? {
        scan(&mut connection, &servers.key_prefix, &options.prefix, &mut names).await?;
    }
    let mut held = Vec::new();
    for name in names {
        match locks.mutex(&name).holder().await {
            Ok(Some(holder)) => {
                // Without the right to ask, or without a line, the list is empty.
                let waiters = locks.mutex(&name).waiters().await.unwrap_or_default();
                held.push((name, holder, waiters));
            }
            Ok(None) => {}
            // The key is something else under a name that a lock could have.
            Err(error) if matches!(error.kind(), ErrorKind::NotALock | ErrorKind::InvalidInput) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if json {
        for (name, holder, waiters) in &held {
            let mut state = as_json(name, Some(holder));
            state["waiters"] = waiters.iter().map(waiter_as_json).collect();
            if !line(&state.to_string())? {
                break;
            }
        }
    } else {
        table(&held)?;
    }
    Ok(0)
}

/// Returns the names of all hashes with this prefix. Some of them may not be locks.
async fn scan(
    connection: &mut MultiplexedConnection,
    key_prefix: &str,
    prefix: &str,
    names: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    let pattern = format!("{}{}*", literally(key_prefix), literally(prefix));
    let mut cursor = "0".to_owned();
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("hash");
        let page: Result<(String, Vec<Vec<u8>>), _> = command.query_async(connection).await;
        let (next, keys) = page.map_err(|error| servers::refused("the server", &error))?;
        // A lock's name is text.
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        names.extend(keys.filter_map(|key| Some(key.strip_prefix(key_prefix)?.to_owned())));
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Returns a pattern that matches only this text.
fn literally(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

fn table(held: &[(String, Holder, Vec<WaitingProcess>)]) -> Result<(), Failure> {
    let head = ["NAME", "HELD BY", "COUNT", "LEASE", "WAITERS"].map(str::to_owned);
    let locks = held.iter().map(|(name, holder, waiters)| row(name, holder, waiters.len()));
    let rows: Vec<_> = std::iter::once(head).chain(locks).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second, third, fourth) = (width(0), width(1), width(2), width(3));
    for [name, by, count, left, waiters] in &rows {
        if !line(&format!("{name:first$}  {by:second$}  {count:>third$}  {left:fourth$}  {waiters:>7}"))? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literally("a*b?[c]\\^d:{e}"), "a\\*b\\?\\[c\\]\\\\\\^d:{e}");
    }
}
