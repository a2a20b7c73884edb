//! What a master may be: whoever has a vote on a lock.

use std::fmt;

use crate::error::{Result, rejected};
use crate::memory::Memory;
use crate::nodes::Nodes;
use crate::server::Server;

/// Where locks are kept.
#[derive(Clone, Debug)]
pub(crate) enum Master {
    Server(Server),
    Memory(Memory),
}

/// The masters. Their addresses are looked at here, so that a mistake is told before anything is sent.
pub(crate) fn checked(masters: Vec<Master>) -> Result<Vec<Master>> {
    if masters.is_empty() {
        return Err(rejected(
            "no server was given; call `server` with the URL of your Redis, or `memory` to do without one",
        ));
    }
    if masters.len() > Nodes::MOST {
        let (given, most) = (masters.len(), Nodes::MOST);
        return Err(rejected(format!(
            "{given} masters were given, and at most {most} are possible; 3 or 5 are usual"
        )));
    }
    for (at, master) in masters.iter().enumerate() {
        if let Master::Server(server) = master {
            server.client()?;
        }
        if masters[..at].iter().any(|other| other.is(master)) {
            return Err(rejected(format!(
                "{master} was given as a server more than once: it would have more than one vote; give each master once"
            )));
        }
    }
    Ok(masters)
}

impl Master {
    fn is(&self, other: &Master) -> bool {
        match (self, other) {
            (Master::Server(one), Master::Server(other)) => one.address() == other.address(),
            (Master::Memory(one), Master::Memory(other)) => one.is(other),
            _ => false,
        }
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Master::Server(server) => f.write_str(&server.address()),
            Master::Memory(_) => f.write_str("an in-memory store"),
        }
    }
}
