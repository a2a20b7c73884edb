//! What each fault does, and how it is repaired.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::Fault;
use super::Kind::*;
use crate::Result;
use crate::crew::Crew;
use crate::deployment::{Deployment, Servers};
use crate::job::{NAMES, PROCESSES};
use crate::login::{Login, USER};
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::proxy::{Proxy, Which};
use crate::support::sentinel::is_master;
use crate::support::server::Server;

impl Fault {
    /// Makes the fault happen. It has been repaired when this returns.
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
            (Move, Servers::Cluster(cluster)) => self.move_slot(cluster, first, on.login()).await?,
            _ => {
                join_all(servers.iter().map(|server| self.strike_one(on, *server))).await;
            }
        }
        if self.kind == HalfOpen {
            // Otherwise a replica would keep a dead connection for a minute, and would not take over on demand.
            let kill = ["CLIENT", "KILL", "TYPE", "replica"];
            join_all(servers.iter().map(|server| on.all()[*server].try_ask::<()>(&kill))).await;
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
                // On most machines this script takes longer than a node timeout. It ends by itself.
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
            Refuse => self.refuse_logins(server).await,
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
        let command = [&["ACL", "SETUSER", USER], rights[self.variant % rights.len()]].concat();
        let _ = server.try_ask::<()>(&command).await;
        sleep(self.time).await;
        server.ask::<()>(&["ACL", "SETUSER", USER, "+@all", "allchannels"]).await;
    }

    async fn refuse_logins(&self, server: &Server) {
        let _ = server.try_ask::<()>(&["ACL", "SETUSER", USER, "off"]).await;
        let _ = server.try_ask::<()>(&["CLIENT", "KILL", "USER", USER]).await;
        sleep(self.time).await;
        server.ask::<()>(&["ACL", "SETUSER", USER, "on"]).await;
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
                // Mostly less than a node timeout.
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

    /// Moves the slot of a lock to another node while clients work.
    async fn move_slot(&self, cluster: &Cluster, from: usize, login: &Login) -> Result<()> {
        let name = NAMES[self.server % NAMES.len()];
        let mut others = Vec::new();
        for (at, node) in cluster.nodes().iter().enumerate() {
            if at != from && node.info("replication").await["role"] == "master" {
                others.push(at);
            }
        }
        let to = others[self.variant % others.len()];
        let (source, port) = (cluster.node(from), cluster.node(to).port().to_string());
        let (slot, password) = (cluster.slot(name).await.to_string(), login.password());
        cluster.begin_move(name, from, to).await;
        sleep(self.time / 2).await;
        eventually("a slot without keys", async || {
            let keys: Vec<String> = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            for key in &keys {
                // The lock may have ended by now.
                let way = ["MIGRATE", "127.0.0.1", &port, key, "0", "10000", "AUTH", &password];
                let _ = source.try_ask::<String>(&way).await;
            }
            keys.is_empty()
        })
        .await;
        sleep(self.time / 2).await;
        let all: Vec<usize> =
            [to, from].into_iter().chain((0..cluster.nodes().len()).filter(|at| *at != to)).collect();
        for at in all {
            // A replica refuses this, and learns the change from its master.
            if cluster.node(at).info("replication").await["role"] == "master" {
                cluster.end_move(name, to, &[at]).await;
            }
        }
        Ok(())
    }
}

/// Makes this replica take its master's place, with all the master's data. A busy node may give that up after five seconds.
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

/// Returns the other node of a cluster that has the same slots.
fn partner(node: usize) -> usize {
    (node + 3) % 6
}
