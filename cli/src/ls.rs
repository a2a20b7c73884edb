//! `nestlock ls`: the locks that are held.

use std::collections::BTreeSet;

use nestlock::{ErrorKind, Holder};
use redis::aio::MultiplexedConnection;

use crate::options::{LsOptions, ServerOptions};
use crate::output::{as_json, line, row};
use crate::servers::{self, Servers};
use crate::status::Failure;

/// How many keys the server looks at for one answer: few enough to hold nobody up.
const PAGE: usize = 500;

pub(crate) async fn run(options: LsOptions, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let servers = Servers::new(servers)?;
    if servers.key_prefix.is_empty() && options.prefix.is_empty() && !options.all {
        return Err(Failure::config(
            "this would list all locks of the server; give --prefix with the beginning of their names, or --all",
        ));
    }
    // Reports mistakes in addresses and credentials, and sets TLS up.
    let locks = servers.builder().connect().await?;
    let mut names = BTreeSet::new();
    for mut connection in servers.all_keys().await? {
        scan(&mut connection, &servers.key_prefix, &options.prefix, &mut names).await?;
    }
    let mut held = Vec::new();
    for name in names {
        match locks.mutex(&name).holder().await {
            Ok(Some(holder)) if is_hold(holder.field()) => held.push((name, holder)),
            Ok(_) => {}
            // Something else under a name that a lock could have.
            Err(error) if matches!(error.kind(), ErrorKind::NotALock | ErrorKind::Config) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if json {
        for (name, holder) in &held {
            if !line(&as_json(name, Some(holder)).to_string())? {
                break;
            }
        }
    } else {
        table(&held)?;
    }
    Ok(0)
}

/// The names of all hashes that begin so. Some of them may be no locks.
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
        // A name of a lock is text.
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        names.extend(keys.filter_map(|key| Some(key.strip_prefix(key_prefix)?.to_owned())));
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// As a pattern that matches this text alone.
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

/// Whether a field of a hash looks like a hold: `<uuid>:<id>`, with or without a label before it.
fn is_hold(field: &str) -> bool {
    let mut parts = field.rsplit(':');
    let (id, uuid) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let lengths = uuid.split('-').map(|part| (part.len(), part.bytes().all(|byte| byte.is_ascii_hexdigit())));
    is_id && lengths.eq([8, 4, 4, 4, 12].map(|length| (length, true)))
}

fn table(held: &[(String, Holder)]) -> Result<(), Failure> {
    let head = ["NAME", "HELD BY", "COUNT", "LEASE"].map(str::to_owned);
    let rows: Vec<_> =
        std::iter::once(head).chain(held.iter().map(|(name, holder)| row(name, holder))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second, third) = (width(0), width(1), width(2));
    for [name, by, count, left] in &rows {
        if !line(&format!("{name:first$}  {by:second$}  {count:>third$}  {left}"))? {
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

    #[test]
    fn a_hold_is_distinguished_from_other_fields() {
        let uuid = "4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";
        for field in [format!("{uuid}:7"), format!("web@host:{uuid}:12")] {
            assert!(is_hold(&field), "{field}");
        }
        for field in ["name", "", ":", "a:7", uuid, &format!("{uuid}:x"), &format!("{uuid}:7:write")] {
            assert!(!is_hold(field), "{field}");
        }
    }
}
