//! What a master may be: what has one vote on a lock.

use std::fmt;
use std::sync::Arc;

use crate::base::MasterSet;
use crate::config::seeds::Seeds;
use crate::config::server::Server;
use crate::error::{Result, rejected, shown};
use crate::memory::Memory;

/// One master of a quorum: it keeps locks, and has one vote on them.
///
/// For [`Builder::masters`](crate::Builder::masters), which takes masters of different kinds. `Debug` shows no credentials.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{Locks, Master, Memory};
/// let stores = [Memory::new(), Memory::new(), Memory::new()];
/// let locks = Locks::builder().masters(stores.iter().map(Master::memory)).connect().await?;
/// stores[0].stall(std::time::Duration::from_secs(5)); // a minority may fail
/// locks.mutex("stock:42").run(async |_| {}).await
/// # }
/// ```
#[derive(Clone)]
pub struct Master(pub(super) MasterKind);

impl Master {
    /// Creates a master that is one server: see [`Builder::server`](crate::Builder::server).
    pub fn server(server: impl Into<Server>) -> Master {
        Master(MasterKind::Server(server.into()))
    }

    /// Creates the master of this name that these sentinels monitor: see [`Builder::sentinel`](crate::Builder::sentinel).
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<Server>>,
        name: impl Into<String>,
    ) -> Master {
        let sentinels = sentinels.into_iter().map(Into::into).collect();
        let name: String = name.into();
        Master(MasterKind::Sentinel(SentinelMaster { sentinels, name: name.into() }))
    }

    /// Creates a master that is a Redis Cluster, named by some of its nodes: see [`Builder::cluster`](crate::Builder::cluster).
    pub fn cluster(nodes: impl IntoIterator<Item = impl Into<Server>>) -> Master {
        Master(MasterKind::Cluster(Seeds::new(nodes)))
    }

    /// Creates a master that is a store in this process: see [`Builder::memory`](crate::Builder::memory).
    #[must_use]
    pub fn memory(store: &Memory) -> Master {
        Master(MasterKind::Memory(store.clone()))
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Master").field(&format_args!("{}", self.0)).finish()
    }
}

/// Where locks are kept.
#[derive(Clone, Debug)]
pub(crate) enum MasterKind {
    Server(Server),
    Sentinel(SentinelMaster),
    Cluster(Seeds),
    Memory(Memory),
}

/// A master by the name under which sentinels monitor it.
#[derive(Clone, Debug)]
pub(crate) struct SentinelMaster {
    pub(crate) sentinels: Box<[Server]>,
    pub(crate) name: Arc<str>,
}

/// Checks the masters, and their addresses too, so that a mistake is reported before anything is sent.
pub(super) fn checked(masters: Vec<MasterKind>) -> Result<Vec<MasterKind>> {
    if masters.is_empty() {
        return Err(rejected(
            "no master was given; call `server` with the URL of your Redis, or `memory` to use none",
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
            MasterKind::Server(server) => drop(server.destination()?),
            MasterKind::Sentinel(master) => master.check()?,
            MasterKind::Cluster(seeds) => seeds.check()?,
            MasterKind::Memory(_) => {}
        }
        if masters[..at].iter().any(|other| other.is(master)) {
            return Err(rejected(format!(
                "{master} was given more than once: it would have more than one vote; give each master once"
            )));
        }
    }
    Ok(masters)
}

impl MasterKind {
    /// Returns whether both are known to be the same master. Two sets of nodes of one cluster may have none in common.
    fn is(&self, other: &MasterKind) -> bool {
        match (self, other) {
            (MasterKind::Server(one), MasterKind::Server(other)) => one.address() == other.address(),
            (MasterKind::Sentinel(one), MasterKind::Sentinel(other)) => one.is(other),
            (MasterKind::Cluster(one), MasterKind::Cluster(other)) => one.meets(other),
            (MasterKind::Cluster(seeds), MasterKind::Server(server))
            | (MasterKind::Server(server), MasterKind::Cluster(seeds)) => seeds.has(server),
            (MasterKind::Memory(one), MasterKind::Memory(other)) => one.is(other),
            _ => false,
        }
    }
}

impl fmt::Display for MasterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MasterKind::Server(server) => f.write_str(&server.address()),
            MasterKind::Sentinel(master) => master.fmt(f),
            MasterKind::Cluster(seeds) => write!(f, "a node of {seeds}"),
            MasterKind::Memory(_) => f.write_str("an in-memory store"),
        }
    }
}

impl SentinelMaster {
    fn check(&self) -> Result<()> {
        if self.sentinels.is_empty() {
            return Err(rejected("sentinel was given no address; give the addresses of the sentinels"));
        }
        if self.name.is_empty() {
            return Err(rejected(
                "sentinel was given an empty name of the master; give the one by which the sentinels monitor it",
            ));
        }
        self.sentinels.iter().try_for_each(|sentinel| sentinel.destination().map(drop))
    }

    /// Returns whether both are the same master. One sentinel in common is enough: the same name is the same master to it.
    fn is(&self, other: &SentinelMaster) -> bool {
        let known = |one: &Server| other.sentinels.iter().any(|other| other.address() == one.address());
        self.name == other.name && self.sentinels.iter().any(known)
    }
}

impl fmt::Display for SentinelMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "master `{}` of sentinel", shown(&self.name))?;
        for (at, sentinel) in self.sentinels.iter().enumerate() {
            write!(f, "{} {}", if at == 0 { "" } else { "," }, sentinel.address())?;
        }
        Ok(())
    }
}
