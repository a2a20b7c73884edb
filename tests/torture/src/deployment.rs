//! The servers of a run, each behind proxies.

use std::time::Duration;

use crate::job::{AHEAD, NAMES, PROCESSES, Target};
use crate::login::Login;
use crate::options::Shape;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::sentinel::{self, Group, Setup};
use crate::support::server::Server;

/// The prefix of the keys of fencing counters.
const COUNTERS: &str = "redisson_lock_token:";

/// The time after which a node of a cluster is taken for failed.
const FAILED_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Deployment {
    servers: Servers,
    /// For each server: one proxy for each process, or a single one if the servers themselves name it to clients.
    proxies: Vec<Vec<Proxy>>,
    login: Login,
}

pub(crate) enum Servers {
    Masters(Vec<Server>),
    Sentinel(Group),
    Cluster(Cluster),
}

impl Deployment {
    pub(crate) async fn start(shape: Shape, login: Login) -> Deployment {
        let (password, rule) = (login.password(), login.rule());
        let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
        let mut args = vec!["--requirepass", &password, "--masterauth", &password, "--user"];
        args.extend(&rule);
        match shape {
            Shape::Masters(count) => {
                let (mut servers, mut proxies) = (Vec::new(), Vec::new());
                for _ in 0..count {
                    // A single master must keep what it has acknowledged when it is killed. Several masters need not.
                    let kept = ["--appendonly", "yes", "--appendfsync", "always"];
                    let kept: &[&str] = if count == 1 { &kept } else { &[] };
                    let server = Server::with(&[&args, kept].concat()).await;
                    let mut before = Vec::new();
                    for _ in 0..PROCESSES {
                        before.push(Proxy::to(&server).await);
                    }
                    servers.push(server);
                    proxies.push(before);
                }
                Deployment { servers: Servers::Masters(servers), proxies, login }
            }
            Shape::Sentinel => {
                let setup = Setup {
                    password: Some(&password),
                    sentinel_password: Some(&password),
                    user: &rule,
                    ..Setup::default()
                };
                let (group, proxies) = Group::behind_proxies(setup).await;
                let proxies = proxies.into_iter().map(|proxy| vec![proxy]).collect();
                Deployment { servers: Servers::Sentinel(group), proxies, login }
            }
            Shape::Cluster => {
                let (cluster, proxies) = Cluster::behind_proxies(FAILED_AFTER, &args).await;
                let proxies = proxies.into_iter().map(|proxy| vec![proxy]).collect();
                Deployment { servers: Servers::Cluster(cluster), proxies, login }
            }
        }
    }

    /// Returns what a process connects to.
    pub(crate) fn target(&self, process: usize) -> Target {
        let local = |port: u16| format!("127.0.0.1:{port}");
        let addresses =
            || self.proxies.iter().map(|before| local(before[process % before.len()].port())).collect();
        match &self.servers {
            Servers::Masters(_) => Target::Servers(addresses()),
            Servers::Sentinel(group) => {
                let sentinels = group.sentinels.iter().map(|sentinel| local(sentinel.port())).collect();
                Target::Sentinel { sentinels, name: sentinel::NAME.to_owned() }
            }
            Servers::Cluster(_) => Target::Cluster(addresses()),
        }
    }

    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(crate) fn all(&self) -> &[Server] {
        match &self.servers {
            Servers::Masters(servers) => servers,
            Servers::Sentinel(group) => &group.servers,
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns the proxies in front of a server: those of one process, or all.
    pub(crate) fn before(&self, server: usize, process: Option<usize>) -> Vec<&Proxy> {
        let all = &self.proxies[server];
        match process {
            Some(process) => vec![&all[process % all.len()]],
            None => all.iter().collect(),
        }
    }

    /// With several masters, sets the counters as [`AHEAD`] describes.
    pub(crate) async fn set_counters_apart(&self) {
        let Servers::Masters(servers) = &self.servers else { return };
        for (at, server) in servers.iter().enumerate().skip(1) {
            let (seconds, micros) = server.ask::<(u64, u64)>(&["TIME"]).await;
            // The counters are days apart.
            let counter = (seconds * 1_000_000 + micros + at as u64 * 1_000_000_000_000).to_string();
            let day = "86400000";
            server.ask::<()>(&["SET", &format!("{COUNTERS}{{{AHEAD}}}"), &counter, "PX", day]).await;
        }
    }

    /// Returns a server that serves locks now, chosen by a drawn number.
    pub(crate) async fn serving(&self, drawn: usize) -> usize {
        match &self.servers {
            Servers::Masters(servers) => drawn % servers.len(),
            Servers::Sentinel(group) => {
                let master = group.master().await.port();
                self.all().iter().position(|server| server.port() == master).unwrap_or_default()
            }
            Servers::Cluster(cluster) => cluster.owner(NAMES[drawn % NAMES.len()]).await,
        }
    }

    /// Returns what should not be on the servers any more when nothing is held and all leases are over.
    pub(crate) async fn remains(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, server) in self.all().iter().enumerate() {
            let keys = server.keys().await.into_iter().filter(|key| !key.starts_with(COUNTERS));
            found.extend(keys.map(|key| format!("the key {key} on server {at}")));
            let channels =
                server.channels().await.into_iter().filter(|channel| channel != "__sentinel__:hello");
            found.extend(channels.map(|channel| format!("a subscription of {channel} on server {at}")));
        }
        found
    }
}
