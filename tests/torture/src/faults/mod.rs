//! The faults: which there are, which a deployment can have, and what each does.

mod plan;
mod strike;

use std::time::Duration;

pub(crate) use plan::Plan;

use crate::options::Shape;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    // To servers.
    /// One master is killed and keeps its data; several lose it. With replicas one of them takes over.
    Kill,
    /// The only master comes back without its data.
    Lose,
    Freeze,
    /// Until another server has taken over.
    FreezeLong,
    Pause,
    Busy,
    FlushScripts,
    Fill,
    Evict,
    Strip,
    /// The user is off: standing connections end, and new ones are refused.
    Refuse,
    KillClients,
    FailOver,
    Move,
    FreezeSentinel,
    // To the network.
    Cut,
    HalfOpen,
    Reset,
    Slow,
    LoseReplies,
    LoseCommands,
    DeliverLate,
    // To processes.
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

    /// Whether the servers may lose what they have acknowledged, as `docs/promises.md` lists it.
    fn loses(self, shape: Shape) -> bool {
        match self {
            Lose | Evict | FreezeLong => true,
            Kill => !matches!(shape, Shape::Masters(_)),
            // That of a cluster waits for the replica.
            FailOver | HalfOpen => shape == Shape::Sentinel,
            _ => false,
        }
    }
}

/// One fault, as data.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// Which server, by a number that the deployment knows how to read, and how many of several masters.
    server: usize,
    count: usize,
    /// Whose connections; all in `None`.
    process: Option<usize>,
    time: Duration,
    variant: usize,
}

/// The faults that come at once.
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

    /// Whether a server comes back without its data, and no hold is lost by that.
    pub(crate) fn forgets(&self, shape: Shape) -> bool {
        self.kind == Kill && matches!(shape, Shape::Masters(2..))
    }

    /// Of one that loses: whether what was over may stand again, and be confirmed. A replica may take over that has a hold and
    /// not its end. Of several masters that lose keys, one may be given a hold back by a command that was sent before.
    pub(crate) fn revives(&self, shape: Shape) -> bool {
        !matches!(
            (self.kind, shape),
            (Lose, _) | (Evict, Shape::Masters(1) | Shape::Sentinel | Shape::Cluster)
        )
    }

    fn leaves_alive(&self) -> bool {
        matches!(self.kind, FlushScripts | Fill | Strip | KillClients)
    }

    /// Whether another server takes over by this fault, and has all that the one before had.
    pub(crate) fn is_coordinated(&self, shape: Shape) -> bool {
        self.kind == FailOver && shape == Shape::Cluster
    }
}
