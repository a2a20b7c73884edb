//! A real server, as the home of a test's locks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nestlock::{BareReentry, Builder, Locks};

use tokio::task::AbortHandle;

use crate::support::lone_node::lone_node;
use crate::support::proxy::{Fault, Proxy};
use crate::support::server::Server;
use crate::support::{self, eventually};

/// A server for one test.
pub type Home = Served<false, false, false>;

/// A server whose locks have a line of the waiting processes.
pub type FairHome = Served<false, true, false>;

/// A server for one test that is the only node of a cluster.
pub type ClusterHome = Served<true, false, false>;

/// A server for one test. Bare requests nest without a command too.
pub type NestingHome = Served<false, false, true>;

pub struct Served<const CLUSTERED: bool, const FAIR: bool, const NESTING: bool> {
    server: Arc<Server>,
    proxy: Option<Proxy>,
    fault: Mutex<Option<Fault>>,
    stall: Mutex<Option<AbortHandle>>,
}

impl<const CLUSTERED: bool, const FAIR: bool, const NESTING: bool> Served<CLUSTERED, FAIR, NESTING> {
    /// How deep tests nest holds. Each poll passes through all levels.
    pub const LEVELS: usize = if CLUSTERED { 200 } else { 1000 };

    /// Starts an empty home.
    pub async fn start() -> Self {
        let server = Arc::new(if CLUSTERED { lone_node().await } else { Server::start().await });
        Served { server, proxy: None, fault: Mutex::default(), stall: Mutex::default() }
    }

    /// Starts a home for tests that call [`drop_replies`](Served::drop_replies).
    pub async fn with_faults() -> Self {
        let home = Self::start().await;
        let proxy = Proxy::to(&home.server).await;
        if CLUSTERED {
            // Without this, redirections would bypass the proxy.
            home.server.set("cluster-announce-port", proxy.port()).await;
        }
        Served { proxy: Some(proxy), ..home }
    }

    /// Returns the options that a test starts from.
    pub fn builder(&self) -> Builder {
        let url = self.proxy.as_ref().map_or_else(|| self.server.url(), Proxy::url);
        if CLUSTERED {
            return support::options(nestlock::Master::cluster([url]));
        }
        let bare = if NESTING { BareReentry::Local } else { BareReentry::Asked };
        support::builder(&url).fair(FAIR).bare_reentry(bare)
    }

    /// Returns a new `Locks`, like that of another process.
    pub async fn locks(&self) -> Locks {
        self.builder().connect().await.expect("the test's server takes connections")
    }

    /// Returns whether a lock and its counter need a common hash tag to be in one slot.
    pub fn has_slots(&self) -> bool {
        CLUSTERED
    }

    /// Returns a lock name that no other test uses, for tests that read the log.
    pub fn unique(&self, name: &str) -> String {
        super::unique(name)
    }

    /// Returns the names of the held locks, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let keys = self.server.keys().await;
        keys.into_iter().filter(|key| !key.contains("redisson_lock_token:")).collect()
    }

    /// Returns the fields of a lock with their counts.
    pub async fn fields(&self, name: &str) -> Vec<(String, usize)> {
        self.server.ask(&["HGETALL", name]).await
    }

    /// Returns the count of a field.
    pub async fn count(&self, name: &str, field: &str) -> Option<usize> {
        self.server.ask(&["HGET", name, field]).await
    }

    /// Returns the remaining lease of a lock.
    pub async fn left(&self, name: &str) -> Option<Duration> {
        let left: i64 = self.server.ask(&["PTTL", name]).await;
        u64::try_from(left).ok().map(Duration::from_millis)
    }

    /// Deletes a lock, whichever process holds it.
    pub async fn lose(&self, name: &str) {
        self.server.ask::<()>(&["DEL", name]).await;
    }

    /// Returns how many commands the home has received, as far as that is counted.
    pub async fn asked(&self) -> u64 {
        self.server.scripts_run().await
    }

    /// Waits until a client is subscribed to releases, as far as that is visible.
    pub async fn listened(&self) {
        self.channels(1).await;
    }

    /// Waits until clients are subscribed to the releases of this many locks, as far as that is visible.
    pub async fn channels(&self, count: usize) {
        eventually("subscriptions", async || self.releases().await >= count).await;
    }

    /// Waits until, after `before` other requests to this home, the head of a queue has asked, subscribed and
    /// asked again, as far as that is visible. After that the head sleeps.
    pub async fn asleep(&self, before: u64) {
        self.listened().await;
        eventually("a head that sleeps", async || self.asked().await >= before + 2).await;
    }

    /// Waits until no lock is held and no client is subscribed to one.
    pub async fn tidy(&self) {
        eventually("the last lock's end", async || self.keys().await.is_empty()).await;
        self.silence().await;
    }

    /// Waits until no client is subscribed to releases, as far as that is visible.
    pub async fn silence(&self) {
        eventually("the last channel's end", async || self.releases().await == 0).await;
    }

    /// Returns the number of locks to whose releases a client is subscribed.
    async fn releases(&self) -> usize {
        self.server.channels().await.len()
    }

    /// Returns how many connections there are, as far as that is visible.
    pub async fn connections(&self) -> usize {
        self.server.clients().await
    }

    /// Waits until no client is connected any more.
    pub async fn deserted(&self) {
        eventually("the last connection's end", async || self.connections().await == 0).await;
    }

    /// Answers nothing for this time. Commands that arrive during it run afterwards, in their order. Zero ends the effect of an earlier
    /// call.
    pub async fn stall(&self, time: Duration) {
        self.server.freeze();
        let server = self.server.clone();
        let stall = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            server.thaw();
        });
        if let Some(earlier) = self.stall.lock().unwrap().replace(stall.abort_handle()) {
            earlier.abort();
        }
    }

    /// Lets the next commands run and drops their replies. Zero ends the effect of an earlier call.
    pub async fn drop_replies(&self, count: usize) {
        let proxy = self.proxy.as_ref().expect("start it by Home::with_faults()");
        let fault = proxy.on(|command| command.script.is_some()).times(count).drop_reply();
        *self.fault.lock().unwrap() = Some(fault);
    }

    /// Restarts the home without any lock.
    pub async fn restart_empty(&self) {
        self.server.restart_empty().await;
    }
}
