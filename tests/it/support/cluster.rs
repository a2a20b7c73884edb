//! A Redis Cluster for one test: three masters, each with a replica.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use redis::Value;
use tokio::sync::OnceCell;

use super::proxy::Proxy;
use super::server::Server;
use super::tls::Certificates;
use super::{eventually, log};

const MASTERS: usize = 3;

/// Six servers. The first three begin as masters, and server `n + 3` as the replica of `n`.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster in which no node is ever marked as failed, even on a busy machine.
    pub async fn start() -> Cluster {
        Cluster::with(Duration::from_secs(60), &[]).await
    }

    /// Starts a cluster in which a replica takes the place of a master that was away for two seconds.
    pub async fn short_lived() -> Cluster {
        Cluster::with(Duration::from_secs(2), &[]).await
    }

    /// Returns one cluster for all tests that do not change it. Each uses its own lock names.
    pub async fn shared() -> &'static Cluster {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_init(Cluster::start).await
    }

    /// Starts a cluster that uses TLS, between the nodes too.
    pub async fn over_tls(certificates: &Certificates, args: &[&str]) -> Cluster {
        let all = ["--tls-cluster", "yes", "--tls-replication", "yes"].iter().chain(args);
        Cluster::among(Duration::from_secs(60), &all.copied().collect::<Vec<_>>(), Some(certificates)).await
    }

    /// Starts a cluster in which a master is marked as failed after this time.
    pub async fn with(timeout: Duration, args: &[&str]) -> Cluster {
        Cluster::among(timeout, args, None).await
    }

    async fn among(timeout: Duration, args: &[&str], certificates: Option<&Certificates>) -> Cluster {
        log::capture();
        let timeout = timeout.as_millis().to_string();
        let starting = (0..2 * MASTERS).map(async |_| {
            let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", "0"];
            all.extend(["--cluster-node-timeout", &timeout, "--cluster-replica-validity-factor", "0"]);
            all.extend(["--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0"]);
            // A node does not report a replica before the replica's master has sent it something.
            all.extend(["--repl-ping-replica-period", "1"]);
            all.extend(args);
            match certificates {
                Some(certificates) => Server::tls_among(certificates, &all).await,
                None => Server::with(&all).await,
            }
        });
        let cluster = Cluster { nodes: join_all(starting).await };
        // Nodes ping each other twice within a timeout, and pings tell them about the other nodes.
        cluster.set("cluster-replica-no-failover", "yes").await;
        cluster.set("cluster-node-timeout", "1000").await;
        cluster.form().await;
        // A node that was late for a second may count as failed. With the long timeout it would for two of those.
        loop {
            cluster.set("cluster-node-timeout", &timeout).await;
            if cluster.none_failed().await {
                break;
            }
            cluster.set("cluster-node-timeout", "1000").await;
            cluster.whole().await;
        }
        cluster.set("cluster-replica-no-failover", "no").await;
        cluster
    }

    /// Returns whether no node takes another one for failed.
    async fn none_failed(&self) -> bool {
        for node in &self.nodes {
            let known: String = node.ask(&["CLUSTER", "NODES"]).await;
            let mut flags =
                known.lines().filter_map(|line| line.split(' ').nth(2)).flat_map(|flags| flags.split(','));
            if flags.any(|flag| flag.starts_with("fail")) {
                return false;
            }
        }
        true
    }

    /// Starts a cluster with a proxy in front of each node. The other nodes and the clients know the node by the proxy's port.
    pub async fn behind_proxies(timeout: Duration, args: &[&str]) -> (Cluster, Vec<Proxy>) {
        let mut cluster = Cluster::with(timeout, args).await;
        let mut proxies = Vec::new();
        for node in &mut cluster.nodes {
            let proxy = Proxy::to(node).await;
            node.announce("cluster-announce-port", proxy.port()).await;
            proxies.push(proxy);
        }
        for node in &cluster.nodes {
            eventually("a node that knows the proxies", async || {
                let known: Vec<u16> =
                    shards(node).await.into_iter().flat_map(|(_, _, ports)| ports).collect();
                proxies.iter().all(|proxy| known.contains(&proxy.port()))
            })
            .await;
        }
        cluster.whole().await;
        (cluster, proxies)
    }

    async fn set(&self, option: &str, value: &str) {
        join_all(self.nodes.iter().map(|node| node.set(option, value))).await;
    }

    async fn form(&self) {
        for (at, master) in self.nodes[..MASTERS].iter().enumerate() {
            let (first, last) = share(at);
            master.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            master.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
        }
        let (first, mut asked) = (&self.nodes[0], None::<Instant>);
        eventually("the first node knows all", async || {
            let known: String = first.ask(&["CLUSTER", "NODES"]).await;
            let all = known.lines().count() == 2 * MASTERS && !known.contains("handshake");
            if !all && asked.is_none_or(|at| at.elapsed() > Duration::from_secs(3)) {
                asked = Some(Instant::now());
                // A handshake that takes more than a second is dropped.
                let unknown = |node: &&Server| !known.contains(&format!(":{}@", node.known_port()));
                for node in self.nodes[1..].iter().filter(unknown) {
                    let port = node.known_port().to_string();
                    first.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port()]).await;
                }
            }
            all
        })
        .await;
        for node in &self.nodes {
            eventually("all nodes know each other", async || {
                let known: String = node.ask(&["CLUSTER", "NODES"]).await;
                known.lines().count() == 2 * MASTERS
                    && !known.contains("handshake")
                    && !known.contains("noaddr")
            })
            .await;
        }
        for at in 0..MASTERS {
            let id = self.id(at).await;
            self.nodes[at + MASTERS].ask::<()>(&["CLUSTER", "REPLICATE", &id]).await;
        }
        self.whole().await;
    }

    /// Waits until all nodes exist and agree, and the replicas have what their masters have.
    pub async fn whole(&self) {
        for node in &self.nodes {
            eventually("a node that knows the whole cluster", async || {
                let shards = shards(node).await;
                let complete = shards.len() >= MASTERS && shards.iter().all(|(_, _, ports)| ports.len() == 2);
                let info: String = node.ask(&["CLUSTER", "INFO"]).await;
                let replication = node.info("replication").await;
                let linked = match replication["role"].as_str() {
                    "slave" => replication["master_link_status"] == "up",
                    _ => replication["connected_slaves"] == "1",
                };
                complete && linked && info.contains("cluster_state:ok")
            })
            .await;
        }
    }

    pub fn node(&self, at: usize) -> &Server {
        &self.nodes[at]
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    async fn id(&self, at: usize) -> String {
        self.nodes[at].ask(&["CLUSTER", "MYID"]).await
    }

    pub async fn slot(&self, key: &str) -> u16 {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// Returns the node that serves this key in the view of the node `witness`.
    pub async fn owner_seen_by(&self, witness: usize, key: &str) -> usize {
        let node = &self.nodes[witness];
        let slot: u16 = node.ask(&["CLUSTER", "KEYSLOT", key]).await;
        let shards = shards(node).await;
        let (_, _, ports) =
            shards.iter().find(|(first, last, _)| (first..=last).contains(&&slot)).expect("it is served");
        // A client without TLS gets the ports without TLS, but the nodes know each other by their other ports.
        self.nodes.iter().position(|node| [node.known_port(), node.port()].contains(&ports[0])).unwrap()
    }

    pub async fn owner(&self, key: &str) -> usize {
        self.owner_seen_by(0, key).await
    }

    /// Returns a lock name whose slot this node serves.
    pub async fn name_on(&self, at: usize, name: &str) -> String {
        for number in 0.. {
            let name = format!("{name}-{number}");
            if self.owner(&name).await == at {
                return name;
            }
        }
        unreachable!()
    }

    /// Returns all keys on these nodes, sorted.
    pub async fn keys_on(&self, nodes: &[usize]) -> Vec<String> {
        let mut keys = BTreeSet::new();
        for at in nodes {
            keys.extend(self.nodes[*at].keys().await);
        }
        keys.into_iter().collect()
    }

    /// Returns the fields of a lock on this node, with their counts.
    pub async fn fields_on(&self, at: usize, key: &str) -> Vec<(String, usize)> {
        let mut admin = self.nodes[at].admin().await;
        redis::pipe()
            .cmd("ASKING")
            .ignore()
            .cmd("HGETALL")
            .arg(key)
            .query_async::<(Vec<(String, usize)>,)>(&mut admin)
            .await
            .unwrap_or_default()
            .0
    }

    /// Waits until the replica of a master has this key too.
    pub async fn replicated(&self, master: usize, key: &str) {
        let replica = &self.nodes[(master + MASTERS) % (2 * MASTERS)];
        eventually("the key on the replica", async || replica.keys().await.iter().any(|one| one == key))
            .await;
    }

    /// Begins to move the slot of this key: from now on, keys that don't exist yet are made on the other node.
    pub async fn begin_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).await.to_string();
        let (source, target) = (self.id(from).await, self.id(to).await);
        self.nodes[to].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
        self.nodes[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    /// Moves one key of a slot that is being moved.
    pub async fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        let done: String = self.nodes[from].ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "60000"]).await;
        assert_eq!(done, "OK", "{key} does not exist");
    }

    /// Notifies these nodes that the slot of this key has moved. Keys that a node still has are moved first: for example, a waiter may have
    /// entered the lock's line a moment ago.
    pub async fn end_move(&self, key: &str, to: usize, notified: &[usize]) {
        let (slot, target) = (self.slot(key).await.to_string(), self.id(to).await);
        for at in (0..MASTERS).filter(|at| *at != to) {
            // After a failover this node may be a replica. Then it has the keys of its master, and moves none.
            if self.nodes[at].info("replication").await["role"] != "master" {
                continue;
            }
            let left: Vec<String> = self.nodes[at].ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            let port = self.nodes[to].port().to_string();
            for key in left {
                // It may be gone by now.
                self.nodes[at].ask::<String>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "60000"]).await;
            }
        }
        for at in notified {
            self.nodes[*at].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
        }
    }

    /// Makes this replica replace its master, which becomes its replica.
    pub async fn fail_over(&self, replica: usize) {
        let (node, mut asked) = (&self.nodes[replica], None::<Instant>);
        eventually("the replica's promotion", async || {
            if node.info("replication").await["role"] == "master" {
                return true;
            }
            // It gives up after five seconds.
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(7)) {
                asked = Some(Instant::now());
                let _ = node.try_ask::<()>(&["CLUSTER", "FAILOVER"]).await;
            }
            false
        })
        .await;
        self.promoted(replica).await;
        let before = &self.nodes[(replica + MASTERS) % (2 * MASTERS)];
        eventually("the old master follows", async || before.info("replication").await["role"] == "slave")
            .await;
    }

    /// Makes the other nodes know this master by this port from now on, which is the port of a proxy in front of it. The master's replica
    /// is killed, since it would follow the master to this port.
    pub async fn announce(&self, at: usize, port: u16) {
        self.nodes[at + MASTERS].kill();
        self.nodes[at].set("cluster-announce-port", port).await;
        for node in &self.nodes[..MASTERS] {
            eventually("a node that knows the port", async || {
                shards(node).await.iter().any(|(_, _, ports)| ports[0] == port)
            })
            .await;
        }
    }

    /// Makes all other nodes forget this master and its replica, and gives its slots to another master. The forgotten master keeps running.
    pub async fn expel(&self, at: usize, heir: usize) {
        let gone = [at, at + MASTERS];
        let left: Vec<&Server> =
            (0..2 * MASTERS).filter(|node| !gone.contains(node)).map(|node| &self.nodes[node]).collect();
        let ids = [self.id(gone[0]).await, self.id(gone[1]).await];
        for node in &left {
            for id in &ids {
                node.ask::<()>(&["CLUSTER", "FORGET", id]).await;
            }
        }
        let (first, last) = share(at);
        self.nodes[heir].ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        for node in left {
            eventually("a cluster without it", async || {
                let info: String = node.ask(&["CLUSTER", "INFO"]).await;
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:4")
            })
            .await;
        }
    }

    /// Makes this master, which has no key, join another cluster and serve the slot of this key there. It is not restarted, so its clients'
    /// connections stay open. Its slots here go to `heir`, and its replica leaves too.
    pub async fn defect(&self, at: usize, heir: usize, to: &Cluster, key: &str) {
        for leaver in [at + MASTERS, at] {
            self.nodes[leaver].ask::<()>(&["CLUSTER", "RESET", "SOFT"]).await;
        }
        self.expel(at, heir).await;
        let (node, slot, id) = (&self.nodes[at], self.slot(key).await.to_string(), self.id(at).await);
        let port = node.port().to_string();
        to.nodes[0].ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port()]).await;
        for master in &to.nodes[..MASTERS] {
            eventually("a node that knows the new one", async || {
                let known: String = master.ask(&["CLUSTER", "NODES"]).await;
                known.contains(&id) && !known.contains("handshake")
            })
            .await;
        }
        eventually("the new node knows its cluster", async || shards(node).await.len() >= MASTERS).await;
        eventually("the new node serves the slot", async || {
            // A ping that the slot's last owner sent before it gave the slot away takes the slot back, if its epoch is the greater one.
            node.ask::<String>(&["CLUSTER", "BUMPEPOCH"]).await;
            for notified in to.nodes[..MASTERS].iter().chain([node]) {
                notified.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
            }
            let works = node.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok");
            works && node.try_ask::<String>(&["TYPE", key]).await.is_ok()
        })
        .await;
    }

    /// Kills this node, and gives its address to an empty node that belongs to another cluster.
    pub async fn lose_address(&self, at: usize, to: &Cluster) {
        let node = &self.nodes[at];
        node.restart_as_new_node().await;
        let port = node.port().to_string();
        to.nodes[0].ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port()]).await;
        eventually("the new node knows its cluster", async || shards(node).await.len() >= MASTERS).await;
    }

    /// Waits until this replica has become a master.
    pub async fn promoted(&self, replica: usize) {
        let node = &self.nodes[replica];
        eventually("the replica's promotion", async || node.info("replication").await["role"] == "master")
            .await;
        eventually("a cluster that works", async || {
            node.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
    }
}

/// Returns the first and the last slot of this master in a new cluster.
fn share(at: usize) -> (String, String) {
    let share = 16_384 / MASTERS;
    let last = if at + 1 == MASTERS { 16_383 } else { (at + 1) * share - 1 };
    ((at * share).to_string(), last.to_string())
}

/// Returns ranges of slots with the ports of the nodes that serve them, the master first.
async fn shards(node: &Server) -> Vec<(u16, u16, Vec<u16>)> {
    let ranges: Vec<Vec<Value>> = node.ask(&["CLUSTER", "SLOTS"]).await;
    let port = |node: Value| redis::from_redis_value::<Vec<Value>>(node).unwrap().swap_remove(1);
    let number = |value: Value| redis::from_redis_value::<u16>(value).unwrap();
    let shard = |range: Vec<Value>| {
        let mut range = range.into_iter();
        let (first, last) = (number(range.next().unwrap()), number(range.next().unwrap()));
        (first, last, range.map(|node| number(port(node))).collect())
    };
    ranges.into_iter().map(shard).collect()
}
