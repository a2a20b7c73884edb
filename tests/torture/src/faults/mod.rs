//! The faults: which ones exist, which of them a deployment can have, and what each does.

mod plan;
mod strike;

use std::time::Duration;

pub(crate) use plan::Plan;

use crate::options::Shape;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    // Faults of servers.
    /// Kills masters. A single master keeps its data, several lose it. With replicas, one of them takes over.
    Kill,
    /// Kills the only master, which comes back without its data.
    Lose,
    Freeze,
    /// Freezes a server until another one has taken over.
    FreezeLong,
    Pause,
    Busy,
    FlushScripts,
    Fill,
    Evict,
    Strip,
    /// Disables the user: open connections end, and new ones are refused.
    Refuse,
    KillClients,
    FailOver,
    Move,
    FreezeSentinel,
    // Faults of the network.
    Cut,
    HalfOpen,
    Reset,
    Slow,
    LoseReplies,
    LoseCommands,
    DeliverLate,
    // Faults of processes.
    KillProcess,
    FreezeProcess,
}

use Kind::*;

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kill => "server killed",
            Lose => "server killed, its data lost",
            Freeze => "server frozen",
            FreezeLong => "server frozen until replaced",
            Pause => "clients paused",
            Busy => "server busy with a script",
            FlushScripts => "scripts flushed",
            Fill => "memory full",
            Evict => "memory full, keys evicted",
            Strip => "rights withdrawn",
            Refuse => "logins refused",
            KillClients => "connections killed",
            FailOver => "failover on demand",
            Move => "slot moved",
            FreezeSentinel => "sentinel frozen",
            Cut => "network cut",
            HalfOpen => "connections half open",
            Reset => "connections reset",
            Slow => "replies late",
            LoseReplies => "replies lost",
            LoseCommands => "commands lost",
            DeliverLate => "commands late",
            KillProcess => "process killed",
            FreezeProcess => "process frozen",
        }
    }

    fn suits(self, shape: Shape) -> bool {
        match self {
            Lose => shape == Shape::Masters(1),
            FreezeLong => !matches!(shape, Shape::Masters(_)),
            FailOver => !matches!(shape, Shape::Masters(_)),
            FreezeSentinel => shape == Shape::Sentinel,
            Move => shape == Shape::Cluster,
            _ => true,
        }
    }

    /// Returns whether the servers may lose what they have acknowledged, as `docs/promises.md` lists it.
    fn loses(self, shape: Shape) -> bool {
        match self {
            Lose | Evict | FreezeLong => true,
            Kill => !matches!(shape, Shape::Masters(_)),
            // In a cluster, a failover on demand waits for the replica.
            FailOver | HalfOpen => shape == Shape::Sentinel,
            _ => false,
        }
    }
}

/// One fault, as data.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// A number that the deployment turns into a server, and how many of several masters are hit.
    server: usize,
    count: usize,
    /// The process whose connections are hit; `None` means all.
    process: Option<usize>,
    time: Duration,
    variant: usize,
}

/// The faults that happen at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) servers: Option<Fault>,
    pub(crate) network: Option<Fault>,
    pub(crate) process: Option<Fault>,
}

impl Fault {
    pub(crate) fn loses(&self, shape: Shape) -> bool {
        self.kind.loses(shape)
    }

    /// Returns whether a server comes back without its data although no hold is lost by that.
    pub(crate) fn forgets(&self, shape: Shape) -> bool {
        self.kind == Kill && matches!(shape, Shape::Masters(2..))
    }

    /// For a fault that loses holds: returns whether a hold that was over may stand again, and be confirmed. A replica may take over that
    /// has a hold, but not its end. If several masters lose keys, a command that was sent before may restore a hold on one of them.
    pub(crate) fn revives(&self, shape: Shape) -> bool {
        !matches!(
            (self.kind, shape),
            (Lose, _) | (Evict, Shape::Masters(1) | Shape::Sentinel | Shape::Cluster)
        )
    }

    fn leaves_alive(&self) -> bool {
        matches!(self.kind, FlushScripts | Fill | Strip | KillClients)
    }

    /// Returns whether another server takes over by this fault and has all data of the one before.
    pub(crate) fn is_coordinated(&self, shape: Shape) -> bool {
        self.kind == FailOver && shape == Shape::Cluster
    }
}
