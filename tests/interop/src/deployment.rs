//! Where the locks are: one server, or a Cluster.

use nestlock::{Builder, Locks};

use crate::support::cluster::Cluster;
use crate::support::server::Server;
use crate::support::{self, SECOND, eventually};

pub(crate) enum Deployment {
    One(Server),
    Cluster(Cluster),
}

#[allow(clippy::unwrap_used, clippy::expect_used)]
impl Deployment {
    pub(crate) async fn one() -> Deployment {
        Deployment::One(Server::start().await)
    }

    pub(crate) async fn cluster() -> Deployment {
        Deployment::Cluster(Cluster::start().await)
    }

    /// Returns the addresses of its nodes, each with this scheme before it.
    pub(crate) fn nodes(&self, scheme: &str) -> Vec<String> {
        let nodes = match self {
            Deployment::One(server) => std::slice::from_ref(server),
            Deployment::Cluster(cluster) => &cluster.nodes()[..3],
        };
        nodes.iter().map(|node| format!("{scheme}127.0.0.1:{}", node.port())).collect()
    }

    /// Returns options with which no timer wakes a waiter.
    pub(crate) fn builder(&self) -> Builder {
        let builder = match self {
            Deployment::One(server) => Locks::builder(server.url()),
            Deployment::Cluster(cluster) => Locks::builder(nestlock::Master::cluster(cluster.urls())),
        };
        support::without_timers(builder.node_timeout(10 * SECOND).unavailable_after(60 * SECOND))
    }

    /// The server that has this key.
    pub(crate) async fn server_of(&self, key: &str) -> &Server {
        match self {
            Deployment::One(server) => server,
            Deployment::Cluster(cluster) => cluster.node(cluster.owner(key).await),
        }
    }

    /// Waits until somebody listens for the releases of a lock, at the server that has it.
    pub(crate) async fn listened(&self, name: &str) {
        let server = self.server_of(name).await;
        eventually("a subscription", async || {
            server.channels().await.iter().any(|channel| channel.contains(name))
        })
        .await;
    }

    pub(crate) async fn ttl(&self, name: &str) -> i64 {
        self.server_of(name).await.ask(&["PTTL", name]).await
    }

    /// Waits until the TTL of a lock has grown this many times.
    pub(crate) async fn renewed(&self, name: &str, times: usize) {
        let (mut before, mut seen) = (self.ttl(name).await, 0);
        eventually("renewals", async || {
            let now = self.ttl(name).await;
            seen += usize::from(now > before);
            before = now;
            seen >= times
        })
        .await;
    }
}
