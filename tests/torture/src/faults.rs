//! The faults: which there are, which a deployment can have, and what each does.

use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::crew::Crew;
use crate::deployment::{Deployment, Servers};
use crate::options::Shape;
use crate::plan::{NAMES, PROCESSES};
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::proxy::{Proxy, Which};
use crate::support::sentinel::is_master;
use crate::support::server::Server;

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

const OF_SERVERS: [Kind; 16] = [
    Kill,
    Kill,
    Kill,
    Lose,
    Freeze,
    FreezeLong,
    Pause,
    Busy,
    FlushScripts,
    Fill,
    Evict,
    Strip,
    KillClients,
    FailOver,
    Move,
    FreezeSentinel,
];
const OF_NETWORK: [Kind; 7] = [Cut, HalfOpen, Reset, Slow, LoseReplies, LoseCommands, DeliverLate];
const OF_PROCESSES: [Kind; 2] = [KillProcess, FreezeProcess];

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

/// Kinds of faults in random order: each of them comes before any comes again.
struct Deck {
    kinds: Vec<Kind>,
    left: Vec<Kind>,
}

impl Deck {
    fn new(kinds: &[Kind], shape: Shape, only: &str) -> Deck {
        let suit = |kind: &&Kind| kind.suits(shape) && kind.name().contains(only);
        Deck { kinds: kinds.iter().filter(suit).copied().collect(), left: Vec::new() }
    }

    fn next(&mut self, random: &mut StdRng) -> Option<Kind> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            self.left.shuffle(random);
        }
        self.left.pop()
    }
}

/// The faults of a run, as a seed decides them.
pub(crate) struct Plan {
    shape: Shape,
    random: StdRng,
    servers: Deck,
    network: Deck,
    processes: Deck,
}

impl Plan {
    pub(crate) fn new(shape: Shape, seed: u64, only: &str) -> Plan {
        Plan {
            shape,
            random: StdRng::seed_from_u64(seed),
            servers: Deck::new(&OF_SERVERS, shape, only),
            network: Deck::new(&OF_NETWORK, shape, only),
            processes: Deck::new(&OF_PROCESSES, shape, only),
        }
    }

    /// What comes next, and how long nothing comes afterwards.
    pub(crate) fn next(&mut self) -> (Step, Duration) {
        let Plan { shape, random, servers, network, processes } = self;
        let drawn = random.random_range(0..20_u32);
        let mut step = Step { servers: None, network: None, process: None };
        let fault = |deck: &mut Deck, random: &mut StdRng| {
            deck.next(random).map(|kind| Fault::draw(random, kind, *shape))
        };
        if drawn < 12 {
            step.servers = fault(servers, random);
        }
        // What is late or cut off must find its server alive.
        let serves = step.servers.as_ref().is_none_or(|fault| fault.leaves_alive());
        if drawn >= 10 && serves {
            step.network = fault(network, random);
        }
        if drawn.is_multiple_of(3) || (step.servers.is_none() && step.network.is_none()) {
            step.process = fault(processes, random);
        }
        // Now and then long enough to see how long recovery takes.
        let pause = if random.random_ratio(1, 6) { 3_500..5_000 } else { 100..1_500 };
        (step, Duration::from_millis(random.random_range(pause)))
    }
}

impl Fault {
    fn draw(random: &mut StdRng, kind: Kind, shape: Shape) -> Fault {
        let masters = match shape {
            Shape::Masters(count) => count,
            _ => 1,
        };
        // Mostly a minority, but those that lose their data may be most of them.
        let count = match random.random_range(0..10) {
            0..=2 => 1,
            3..=5 if kind != Kill => masters / 2,
            3..=7 => masters / 2 + 1,
            _ => masters,
        };
        // Where others watch the servers, they must not be taken for dead.
        let longest = match (kind, shape) {
            (FreezeProcess, _) => 5_000,
            (Slow, _) => 2_000,
            // Shorter than a lease: who was granted before still holds.
            (Kill, _) => 1_000,
            (_, Shape::Masters(_)) => 4_000,
            _ => 1_000,
        };
        Fault {
            kind,
            server: random.random_range(0..1_000),
            count,
            process: random.random_ratio(1, 2).then(|| random.random_range(0..PROCESSES)),
            time: Duration::from_millis(random.random_range(longest / 20..=longest)),
            variant: random.random_range(0..1_000),
        }
    }

    pub(crate) fn loses(&self, shape: Shape) -> bool {
        self.kind.loses(shape)
    }

    fn leaves_alive(&self) -> bool {
        matches!(self.kind, FlushScripts | Fill | Strip | KillClients)
    }

    /// Whether another server takes over by this fault, and has all that the one before had.
    pub(crate) fn is_coordinated(&self, shape: Shape) -> bool {
        self.kind == FailOver && shape == Shape::Cluster
    }

    /// The fault comes, and has been repaired when this returns.
    pub(crate) async fn strike(&self, on: &Deployment) -> Result<()> {
        let first = on.serving(self.server).await;
        let count = match on.servers() {
            Servers::Masters(servers) => self.count.min(servers.len()),
            _ => 1,
        };
        let servers: Vec<usize> = (0..count).map(|step| (first + step) % on.all().len()).collect();
        match (self.kind, on.servers()) {
            (Kill, Servers::Sentinel(group)) => {
                let old = &group.servers[first];
                old.kill();
                group.failed_over(old).await;
                old.restart().await;
            }
            (FreezeLong, Servers::Sentinel(group)) => {
                let old = &group.servers[first];
                old.freeze();
                group.failed_over(old).await;
                old.thaw();
            }
            (FailOver, Servers::Sentinel(group)) => group.fail_over().await,
            (FreezeSentinel, Servers::Sentinel(group)) => {
                let sentinel = &group.sentinels[self.variant % group.sentinels.len()];
                sentinel.freeze();
                sleep(self.time).await;
                sentinel.thaw();
            }
            (Kill, Servers::Cluster(cluster)) => {
                let node = cluster.node(first);
                node.kill();
                cluster.promoted(partner(first)).await;
                node.restart().await;
            }
            (FreezeLong, Servers::Cluster(cluster)) => {
                let node = cluster.node(first);
                node.freeze();
                cluster.promoted(partner(first)).await;
                node.thaw();
            }
            (FailOver, Servers::Cluster(cluster)) => hand_over(cluster, partner(first)).await,
            (Move, Servers::Cluster(cluster)) => self.move_slot(cluster, first).await?,
            _ => {
                join_all(servers.iter().map(|server| self.strike_one(on, *server))).await;
            }
        }
        match on.servers() {
            Servers::Masters(_) => {}
            Servers::Sentinel(group) => group.settled().await,
            Servers::Cluster(cluster) => cluster.whole().await,
        }
        Ok(())
    }

    pub(crate) async fn strike_process(&self, crew: &mut Crew) -> Result<()> {
        let process = self.variant % PROCESSES;
        match self.kind {
            KillProcess => crew.kill(process)?,
            _ => crew.freeze(process, self.time).await,
        }
        Ok(())
    }

    async fn strike_one(&self, on: &Deployment, at: usize) {
        let server = &on.all()[at];
        let millis = self.time.as_millis().to_string();
        match self.kind {
            Kill => {
                server.kill();
                sleep(self.time).await;
                server.restart().await;
            }
            Lose => {
                server.kill();
                sleep(self.time).await;
                server.restart_empty().await;
            }
            Freeze => {
                server.freeze();
                sleep(self.time).await;
                server.thaw();
            }
            Pause => {
                let mode = ["ALL", "WRITE"][self.variant % 2];
                let _ = server.try_ask::<()>(&["CLIENT", "PAUSE", &millis, mode]).await;
                sleep(self.time).await;
            }
            Busy => {
                // Longer than a node timeout on most machines, and it ends by itself.
                let script = "local sum = 0 for step = 1, 3e7 do sum = sum + step end return sum";
                let _ = server.try_ask::<()>(&["EVAL", script, "0"]).await;
            }
            FlushScripts => {
                let _ = server.try_ask::<()>(&["SCRIPT", "FLUSH"]).await;
            }
            Fill | Evict => {
                let policy = if self.kind == Evict { "allkeys-lru" } else { "noeviction" };
                server.set("maxmemory-policy", policy).await;
                server.set("maxmemory", 1).await;
                sleep(self.time).await;
                server.set("maxmemory", 0).await;
                server.set("maxmemory-policy", "noeviction").await;
            }
            Strip => self.strip(server).await,
            KillClients => {
                let kind = ["normal", "pubsub"][self.variant % 2];
                let _ = server.try_ask::<()>(&["CLIENT", "KILL", "TYPE", kind]).await;
            }
            _ => {
                let proxies = on.before(at, self.process);
                join_all(proxies.into_iter().map(|proxy| self.disturb(proxy))).await;
            }
        }
    }

    async fn strip(&self, server: &Server) {
        let rights: [&[&str]; 5] =
            [&["-publish"], &["-eval", "-evalsha"], &["-subscribe"], &["-pexpire"], &["resetchannels"]];
        let command = [&["ACL", "SETUSER", "default"], rights[self.variant % rights.len()]].concat();
        let _ = server.try_ask::<()>(&command).await;
        sleep(self.time).await;
        server.ask::<()>(&["ACL", "SETUSER", "default", "+@all", "allchannels"]).await;
    }

    async fn disturb(&self, proxy: &Proxy) {
        let script = ["acquire", "release", "renew", "settle", "subscribe", "evalsha"][self.variant % 6];
        let which = [Which::All, Which::Commands, Which::Subscribers][self.variant % 3];
        let on = || proxy.on(move |command| command.is(script)).times(1 + self.variant % 20);
        match self.kind {
            Cut => {
                let refusing = proxy.refuse().await;
                proxy.reset(Which::All).await;
                sleep(self.time).await;
                drop(refusing);
            }
            HalfOpen => {
                let dead = proxy.half_open(which);
                sleep(self.time).await;
                drop(dead);
            }
            Reset if self.variant.is_multiple_of(2) => {
                proxy.reset(which).await;
            }
            Reset => {
                proxy.close(which).await;
            }
            Slow => {
                // Less than a node timeout, mostly.
                let by = Duration::from_millis(30 + (self.variant as u64 * 7) % 500);
                let slow = proxy.on(move |command| command.is(script)).delay_reply(by);
                sleep(self.time).await;
                drop(slow);
            }
            LoseReplies => {
                let lost = match self.variant % 5 {
                    0 | 1 => on().drop_reply_and_reset(),
                    2 | 3 => on().drop_reply(),
                    _ => on().drop_reply_and_close(),
                };
                sleep(self.time).await;
                drop(lost);
            }
            LoseCommands => {
                let lost = on().lose_and_reset();
                sleep(self.time).await;
                drop(lost);
            }
            _ => {
                let held = on().hold();
                sleep(self.time).await;
                held.let_through().await;
            }
        }
    }

    /// The slot of a lock goes to another node, with clients at work all the while.
    async fn move_slot(&self, cluster: &Cluster, from: usize) -> Result<()> {
        let name = NAMES[self.server % NAMES.len()];
        let mut others = Vec::new();
        for (at, node) in cluster.nodes().iter().enumerate() {
            if at != from && node.info("replication").await["role"] == "master" {
                others.push(at);
            }
        }
        let to = others[self.variant % others.len()];
        let (source, port) = (cluster.node(from), cluster.node(to).port().to_string());
        let slot = cluster.slot(name).await.to_string();
        cluster.begin_move(name, from, to).await;
        sleep(self.time / 2).await;
        eventually("a slot without keys", async || {
            let keys: Vec<String> = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            for key in &keys {
                // It may have ended by now.
                let _ = source.try_ask::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]).await;
            }
            keys.is_empty()
        })
        .await;
        sleep(self.time / 2).await;
        let all: Vec<usize> =
            [to, from].into_iter().chain((0..cluster.nodes().len()).filter(|at| *at != to)).collect();
        for at in all {
            // A replica does not take it, and learns it from its master.
            if cluster.node(at).info("replication").await["role"] == "master" {
                cluster.end_move(name, to, &[at]).await;
            }
        }
        Ok(())
    }
}

/// This replica takes its master's place, with all that it had. A busy node may give that up after five seconds.
async fn hand_over(cluster: &Cluster, replica: usize) {
    let node = cluster.node(replica);
    let mut asked: Option<Instant> = None;
    eventually("a failover on demand", async || {
        if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
            let _ = node.try_ask::<()>(&["CLUSTER", "FAILOVER"]).await;
            asked = Some(Instant::now());
        }
        is_master(node).await
    })
    .await;
}

/// The node of a cluster that has the same slots.
fn partner(node: usize) -> usize {
    (node + 3) % 6
}
