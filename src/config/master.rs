//! What a master may be: whoever has a vote on a lock.

use std::fmt;
use std::sync::Arc;

use crate::base::MasterSet;
use crate::config::seeds::Seeds;
use crate::config::server::Server;
use crate::error::{Result, rejected, shown};
use crate::memory::Memory;

/// Where locks are kept.
#[derive(Clone, Debug)]
pub(crate) enum Master {
    Server(Server),
    Watched(Watched),
    Cluster(Seeds),
    Memory(Memory),
}

/// A master by the name under which sentinels watch it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) sentinels: Box<[Server]>,
    pub(crate) name: Arc<str>,
}

/// The masters. Their addresses are looked at here, so that a mistake is told before anything is sent.
pub(crate) fn checked(masters: Vec<Master>) -> Result<Vec<Master>> {
    if masters.is_empty() {
        return Err(rejected(
            "no server was given; call `server` with the URL of your Redis, or `memory` to do without one",
        ));
    }
    if masters.len() > MasterSet::MOST {
        let (given, most) = (masters.len(), MasterSet::MOST);
        return Err(rejected(format!(
            "{given} masters were given, and at most {most} are possible; 3 or 5 are usual"
        )));
    }
    for (at, master) in masters.iter().enumerate() {
        match master {
            Master::Server(server) => drop(server.client()?),
            Master::Watched(watched) => watched.check()?,
            Master::Cluster(seeds) => seeds.check()?,
            Master::Memory(_) => {}
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
    /// Whether they are seen to be one. Two sets of nodes of one cluster may have none in common.
    fn is(&self, other: &Master) -> bool {
        match (self, other) {
            (Master::Server(one), Master::Server(other)) => one.address() == other.address(),
            (Master::Watched(one), Master::Watched(other)) => one.is(other),
            (Master::Cluster(one), Master::Cluster(other)) => one.meets(other),
            (Master::Cluster(seeds), Master::Server(server))
            | (Master::Server(server), Master::Cluster(seeds)) => seeds.has(server),
            (Master::Memory(one), Master::Memory(other)) => one.is(other),
            _ => false,
        }
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Master::Server(server) => f.write_str(&server.address()),
            Master::Watched(watched) => watched.fmt(f),
            Master::Cluster(seeds) => write!(f, "a node of {seeds}"),
            Master::Memory(_) => f.write_str("an in-memory store"),
        }
    }
}

impl Watched {
    fn check(&self) -> Result<()> {
        if self.sentinels.is_empty() {
            return Err(rejected("sentinel was given no address; give the addresses of the sentinels"));
        }
        if self.name.is_empty() {
            return Err(rejected(
                "sentinel was given an empty name of the master; give the one by which the sentinels monitor it",
            ));
        }
        self.sentinels.iter().try_for_each(|sentinel| sentinel.client().map(drop))
    }

    /// One sentinel in common is enough: the same name is the same master to it.
    fn is(&self, other: &Watched) -> bool {
        let known = |one: &Server| other.sentinels.iter().any(|other| other.address() == one.address());
        self.name == other.name && self.sentinels.iter().any(known)
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "master `{}` of sentinel", shown(&self.name))?;
        for (at, sentinel) in self.sentinels.iter().enumerate() {
            write!(f, "{} {}", if at == 0 { "" } else { "," }, sentinel.address())?;
        }
        Ok(())
    }
}
