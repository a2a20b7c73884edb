//! What a master may be: something that has one vote on a lock.

use std::fmt;
use std::sync::Arc;

use redis::ConnectionAddr;

use crate::base::MasterSet;
use crate::config::seeds::Seeds;
use crate::config::server::Server;
use crate::error::{Result, rejected, shown};
use crate::memory::Memory;

/// A master keeps locks: a server, one that sentinels name, a Cluster, or a store in this process.
///
/// [`Locks::builder`](crate::Locks::builder) takes one, and [`Locks::quorum`](crate::Locks::quorum) takes several, which have
/// one vote each, whatever number of servers is behind them. Everything that converts into a [`Server`] converts into a master too, and so
/// do `Memory` and `&Memory`. `Debug` shows no credentials.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{Locks, Master};
/// let master = Master::sentinel(["redis://one:26379", "redis://two:26379", "redis://three:26379"], "mymaster");
/// let locks = Locks::builder(master).prefix("app:").connect().await?;
/// locks.mutex("stock:42").run(async |_| {}).await
/// # }
/// ```
#[derive(Clone)]
pub struct Master(pub(super) MasterKind);

impl Master {
    /// Creates a master that is one server: a URL, or a host and a port. [`Server`] describes the addresses.
    ///
    /// Rejected by [`connect`](crate::Builder::connect): an address that can't be used.
    pub fn server(server: impl Into<Server>) -> Master {
        Master(MasterKind::Server(server.into()))
    }

    /// Creates a master that sentinels monitor, and that is followed through their failovers.
    ///
    /// `name` is the name by which they monitor it (`sentinel monitor NAME …`). Give all sentinels: they are not discovered. Some may be
    /// down. If they disagree, the newest configuration counts and, among equally new ones, the one that most of them report.
    ///
    /// **The master is reached with the user, password, database and TLS (`rediss://`) of the first URL.** Each sentinel is tried with the
    /// credentials in its own URL and, if it refuses them, without any: so `["redis://:secret@one:26379/2", "redis://two:26379"]` is
    /// enough if the sentinels have no password. With [`credentials`](crate::Builder::credentials), those are the master's, and the
    /// ones in the URLs are for the sentinels alone.
    ///
    /// A hold survives a failover if the new master has it. The client asks for it as soon as it is connected; a hold that is gone
    /// is lost, with [`Loss::Gone`](crate::Loss::Gone). [`guide::failover`](crate::guide::failover) describes what a failover may
    /// lose.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Master};
    /// let sentinels = ["redis://one:26379", "redis://two:26379", "redis://three:26379"];
    /// let locks = Locks::builder(Master::sentinel(sentinels, "mymaster")).connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected by [`connect`](crate::Builder::connect): no address or one that can't be used, a Unix socket as the first address, an empty
    /// name, and a name that most sentinels do not know.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<Server>>,
        name: impl Into<String>,
    ) -> Master {
        let sentinels = sentinels.into_iter().map(Into::into).collect();
        let name: String = name.into();
        Master(MasterKind::Sentinel(SentinelMaster { sentinels, name: name.into() }))
    }

    /// Creates a master that is a Redis Cluster, named by some of its nodes.
    ///
    /// One node that answers is enough: it lists the others, at the addresses that the cluster announces. Name several, since some may
    /// be down. A lock is kept by the node that serves the slot of its key. The client follows failovers, and
    /// slots that move. User, password and TLS settings of the named nodes apply to all nodes. A failover may lose writes that the
    /// replica had not received: [`guide::failover`](crate::guide::failover) describes what that means for locks.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Master};
    /// let nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"];
    /// let locks = Locks::builder(Master::cluster(nodes)).connect().await?;
    /// locks.mutex("stock:42").run(async |_| { /* one at a time */ }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected by [`connect`](crate::Builder::connect): no node at all; an address that can't be used, is a socket, or names a
    /// database other than 0; nodes with different credentials or TLS settings; a server that is no node of a cluster, and nodes of
    /// two clusters.
    pub fn cluster(nodes: impl IntoIterator<Item = impl Into<Server>>) -> Master {
        Master(MasterKind::Cluster(Seeds::new(nodes)))
    }

    /// Creates a master that is a store in this process, in place of a server.
    ///
    /// Each `Locks` that is given the same store shares its locks: [`Memory`] has an example. [`connect`](crate::Builder::connect)
    /// then needs no runtime, and can't fail because of a server. If the runtime of the background work ends, another one takes it
    /// over: see [`Locks::in_memory`](crate::Locks::in_memory).
    #[must_use]
    pub fn memory(store: &Memory) -> Master {
        Master(MasterKind::Memory(store.clone()))
    }
}

impl<S: Into<Server>> From<S> for Master {
    fn from(server: S) -> Master {
        Master::server(server)
    }
}

impl From<&Memory> for Master {
    fn from(store: &Memory) -> Master {
        Master::memory(store)
    }
}

impl From<Memory> for Master {
    fn from(store: Memory) -> Master {
        Master(MasterKind::Memory(store))
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Master").field(&format_args!("{}", self.0)).finish()
    }
}

/// The kinds of master.
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
pub(super) fn check(masters: &[MasterKind]) -> Result<()> {
    if masters.is_empty() {
        return Err(rejected(
            "no master was given; give `Locks::quorum` the addresses of your servers, or use `Locks::in_memory`",
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
            MasterKind::Sentinel(sentinels) => sentinels.check()?,
            MasterKind::Cluster(seeds) => seeds.check()?,
            MasterKind::Memory(_) => {}
        }
        if masters[..at].iter().any(|other| other.is_same_master(master)) {
            return Err(rejected(format!(
                "{master} was given more than once: it would have more than one vote; give each master once"
            )));
        }
    }
    Ok(())
}

impl MasterKind {
    /// Returns whether both are known to be the same master. Some duplicates are not found: two lists of nodes of one cluster may have
    /// none in common, a host may have two names, and a server may be one that sentinels name too.
    fn is_same_master(&self, other: &MasterKind) -> bool {
        match (self, other) {
            (MasterKind::Server(one), MasterKind::Server(other)) => one.address() == other.address(),
            (MasterKind::Sentinel(one), MasterKind::Sentinel(other)) => one.is_same_master(other),
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
        if matches!(self.sentinels[0].destination()?.addr(), ConnectionAddr::Unix(_)) {
            // The master's connection would lead to the sentinel itself: a socket has no other host and port.
            return Err(rejected(
                "sentinel was given a Unix socket as its first address; give host and port there: they are replaced by the master's",
            ));
        }
        self.sentinels.iter().try_for_each(|sentinel| sentinel.destination().map(drop))
    }

    /// Returns whether both are the same master. One sentinel in common is enough: the same name is the same master to it.
    fn is_same_master(&self, other: &SentinelMaster) -> bool {
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
