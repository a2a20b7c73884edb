//! What must hold between nestlock and the other libraries.

use std::time::{Duration, Instant};

use nestlock::{ErrorKind, Locks};

use crate::deployment::Deployment;
use crate::peer::Peer;
use crate::support::soon;

/// Redisson's lease, which its watchdog renews.
const WATCHDOG_MS: &str = "3000";

/// How often each waiter is woken.
const ROUNDS: usize = 7;

/// The median of the time from a release until a waiter of the other library holds the lock is below this.
/// Without a message a waiter sleeps until the end of the lease that it sees, which is seconds away:
/// Redisson's is 3 s long, ours 30 s.
const MOMENTS: Duration = Duration::from_millis(300);

pub(crate) struct Fleet {
    deployment: Deployment,
    ours: Locks,
    java: Option<Peer>,
    go: Option<Peer>,
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
impl Fleet {
    pub(crate) async fn start(deployment: Deployment) -> Fleet {
        let ours = deployment.builder().connect().await.unwrap();
        let env = [("WATCHDOG_MS", WATCHDOG_MS)];
        let java = Peer::start("INTEROP_REDISSON", &deployment.nodes("redis://"), &env).await;
        let go = Peer::start("INTEROP_REDSYNC", &deployment.nodes(""), &[]).await;
        Fleet { deployment, ours, java, go }
    }

    /// Runs all cases that concern Redisson.
    pub(crate) async fn java(&mut self) {
        let Some(mut java) = self.java.take() else {
            eprintln!("left out: Redisson");
            return;
        };
        self.excludes(&mut java).await;
        self.names(&mut java).await;
        self.wakes_java(&mut java).await;
        self.is_woken_by_java(&mut java).await;
        self.nests(&mut java).await;
        self.takes_several(&mut java).await;
        self.forces(&mut java).await;
        self.renews(&mut java).await;
        self.counts_tokens(&mut java).await;
    }

    async fn excludes(&self, java: &mut Peer) {
        let stock = self.ours.mutex("excluded");
        let guard = stock.lock().await.unwrap();
        assert_eq!(java.ask("a", "try", "excluded").await, "false");
        assert_eq!(java.ask("a", "unlock", "excluded").await, "IllegalMonitorStateException");
        guard.release().await.unwrap();
        assert_eq!(java.ask("a", "try", "excluded").await, "true");
        assert!(stock.try_lock().await.unwrap().is_none());
        assert!(stock.is_locked().await.unwrap());
        assert_eq!(java.ask("b", "try", "excluded").await, "false");
        assert_eq!(java.ask("a", "unlock", "excluded").await, "done");
        stock.try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    }

    /// Redisson takes a field with a name for another owner's, and nestlock names Redisson's as the holder.
    async fn names(&self, java: &mut Peer) {
        let labelled = self.deployment.builder().holder_name("billing@web-7").connect().await.unwrap();
        let (stock, other) = (labelled.mutex("named"), self.ours.mutex("named"));
        let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
        assert!(outer.hold_id().starts_with("billing@web-7:"));
        assert_eq!(java.ask("a", "try", "named").await, "false");
        assert_eq!(java.ask("a", "locked", "named").await, "true");
        assert_eq!(java.ask("a", "count", "named").await, "0");
        assert_eq!(java.ask("a", "unlock", "named").await, "IllegalMonitorStateException");
        let waiting = java.send("a", "lock", "named");
        self.deployment.listened("named").await;
        inner.release().await.unwrap();
        outer.release().await.unwrap();
        assert_eq!(java.answer(waiting).await, "done");
        assert_eq!(java.ask("a", "lock", "named").await, "done");
        let server = self.deployment.server_of("named").await;
        let fields: Vec<String> = server.ask(&["HKEYS", "named"]).await;
        for asking in [&stock, &other] {
            let holder = asking.holder().await.unwrap().expect("Redisson holds it");
            assert_eq!((holder.name(), holder.hold_id(), holder.count()), (None, &*fields[0], 2));
            let error = asking.lock().within(Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(&*fields[0]));
        }
        for _ in 0..2 {
            assert_eq!(java.ask("a", "unlock", "named").await, "done");
        }
        // Redisson's forced release frees nestlock's lock too, and wakes a waiter that has a name.
        let guard = other.lock().await.unwrap();
        let waiting = tokio::spawn(stock.lock());
        self.deployment.listened("named").await;
        assert_eq!(java.ask("a", "force", "named").await, "true");
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(other.holder().await.unwrap(), None);
    }

    async fn wakes_java(&self, java: &mut Peer) {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("java-waits-{round}");
            let guard = self.ours.mutex(&name).lock().await.unwrap();
            let waiting = java.send("a", "lock", &name);
            self.deployment.listened(&name).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            assert_eq!(java.answer(waiting).await, "done");
            times.push(released.elapsed());
            assert_eq!(java.ask("a", "unlock", &name).await, "done");
        }
        assert_moments("Redisson's waiter", times);
    }

    async fn is_woken_by_java(&self, java: &mut Peer) {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("rust-waits-{round}");
            assert_eq!(java.ask("a", "lock", &name).await, "done");
            let waiting = tokio::spawn(self.ours.mutex(&name).lock());
            self.deployment.listened(&name).await;
            let released = Instant::now();
            let unlocked = java.send("a", "unlock", &name);
            let guard = soon("the waiter", waiting).await.unwrap().unwrap();
            times.push(released.elapsed());
            guard.release().await.unwrap();
            assert_eq!(java.answer(unlocked).await, "done");
        }
        assert_moments("nestlock's waiter", times);
    }

    /// Both write the number of holds into the same field of the same hash.
    async fn nests(&self, java: &mut Peer) {
        let server = self.deployment.server_of("nested").await;
        let stock = self.ours.mutex("nested");
        for _ in 0..3 {
            assert_eq!(java.ask("a", "lock", "nested").await, "done");
        }
        assert_eq!(java.ask("a", "count", "nested").await, "3");
        assert_eq!(server.ask::<Vec<u64>>(&["HVALS", "nested"]).await, [3]);
        for _ in 0..3 {
            assert!(stock.try_lock().await.unwrap().is_none());
            assert_eq!(java.ask("a", "unlock", "nested").await, "done");
        }
        let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
        assert_eq!(server.ask::<Vec<u64>>(&["HVALS", "nested"]).await, [2]);
        inner.release().await.unwrap();
        assert_eq!(java.ask("a", "try", "nested").await, "false");
        assert_eq!(java.ask("a", "count", "nested").await, "0");
        outer.release().await.unwrap();
        assert_eq!(java.ask("a", "locked", "nested").await, "false");
    }

    /// Redisson's `RedissonMultiLock` consists of plain locks, as ours does. On a Cluster the names are in
    /// different slots.
    async fn takes_several(&self, java: &mut Peer) {
        let both = self.ours.mutexes(["several-a", "several-b"]);
        let guards = both.lock().await.unwrap();
        for names in ["several-a+several-b", "several-b+several-a", "several-b+several-c"] {
            assert_eq!(java.ask("a", "tryboth", names).await, "false", "{names}");
        }
        assert_eq!(java.ask("a", "locked", "several-c").await, "false", "it was given back");
        guards.release().await.unwrap();
        assert_eq!(java.ask("a", "tryboth", "several-b+several-a").await, "true");
        assert!(both.try_lock().await.unwrap().is_none());
        for name in ["several-a", "several-b"] {
            assert!(self.ours.mutex(name).try_lock().await.unwrap().is_none());
        }
        let waiting = tokio::spawn(both.lock());
        self.deployment.listened("several-a").await;
        assert_eq!(java.ask("a", "unlockboth", "several-b+several-a").await, "done");
        soon("both", waiting).await.unwrap().unwrap().release().await.unwrap();
        for name in ["several-a", "several-b"] {
            assert_eq!(java.ask("a", "locked", name).await, "false");
        }
    }

    async fn forces(&self, java: &mut Peer) {
        let stock = self.ours.mutex("forced");
        let guard = stock.lock().await.unwrap();
        // Another `Locks` waits, so this process receives the message of the forced release.
        let other = self.deployment.builder().connect().await.unwrap();
        let waiting = tokio::spawn(other.mutex("forced").lock());
        self.deployment.listened("forced").await;
        assert_eq!(java.ask("a", "force", "forced").await, "true");
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        next.release().await.unwrap();

        assert_eq!(java.ask("a", "lock", "forced").await, "done");
        let waiting = java.send("b", "lock", "forced");
        self.deployment.listened("forced").await;
        assert!(stock.force_release().await.unwrap());
        assert_eq!(java.answer(waiting).await, "done");
        assert_eq!(java.ask("a", "unlock", "forced").await, "IllegalMonitorStateException");
        assert_eq!(java.ask("b", "unlock", "forced").await, "done");
        assert!(!stock.force_release().await.unwrap());
    }

    /// Each holds a lock for longer than its lease, and neither mistakes the other's watchdog for its own.
    async fn renews(&self, java: &mut Peer) {
        let brief = self.deployment.builder().lease(Duration::from_secs(3)).connect().await.unwrap();
        let guard = brief.mutex("renewed-rust").lock().await.unwrap();
        assert_eq!(java.ask("a", "lock", "renewed-java").await, "done");
        for name in ["renewed-rust", "renewed-java"] {
            self.deployment.renewed(name, 4).await;
        }
        assert!(!guard.is_lost());
        assert_eq!(java.ask("a", "try", "renewed-rust").await, "false");
        assert!(self.ours.mutex("renewed-java").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(java.ask("a", "unlock", "renewed-java").await, "done");
    }

    async fn counts_tokens(&self, java: &mut Peer) {
        // The guide asks for this setting if both libraries are in use.
        let ours = self.deployment.builder().token_ttl(Duration::MAX).connect().await.unwrap();
        let stock = ours.mutex("fenced").fenced();
        let mut last = 0;
        for _ in 0..3 {
            let theirs: u64 = java.ask("a", "token", "fenced").await.parse().unwrap();
            assert!(theirs > last, "{theirs} after {last}");
            assert!(stock.try_lock().await.unwrap().is_none());
            assert_eq!(java.ask("a", "untoken", "fenced").await, "done");
            let guard = stock.lock().await.unwrap();
            assert!(guard.token() > theirs, "{} after {theirs}", guard.token());
            last = guard.token();
            guard.release().await.unwrap();
        }
    }

    /// redsync's locks are strings.
    pub(crate) async fn go(&mut self) {
        let Some(mut go) = self.go.take() else {
            eprintln!("left out: redsync");
            return;
        };
        let stock = self.ours.mutex("go");
        assert_eq!(go.ask("-", "try", "go").await, "true");
        assert!(stock.try_lock().await.unwrap().is_none());
        assert!(stock.is_locked().await.unwrap());
        assert_eq!(stock.holder().await.unwrap_err().kind(), ErrorKind::NotALock);
        assert_eq!(go.ask("-", "unlock", "go").await, "true");
        let guard = stock.try_lock().await.unwrap().expect("it is free");
        assert_eq!(go.ask("-", "try", "go").await, "false");
        assert_eq!(go.ask("-", "unlock", "go").await, "false");
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        assert_eq!(go.ask("-", "try", "go").await, "true");
        assert_eq!(go.ask("-", "unlock", "go").await, "true");
    }

    /// A home-made lock with `SET NX PX`.
    pub(crate) async fn plain_strings(&self) {
        let (stock, server) = (self.ours.mutex("string"), self.deployment.server_of("string").await);
        let set = async || server.ask::<Option<String>>(&["SET", "string", "me", "NX", "PX", "600000"]).await;
        assert!(set().await.is_some());
        assert!(stock.try_lock().await.unwrap().is_none());
        server.ask::<i64>(&["DEL", "string"]).await;
        let guard = stock.lock().await.unwrap();
        assert!(set().await.is_none());
        guard.release().await.unwrap();
    }
}

/// Checks the median, since a busy machine may be late now and then.
#[track_caller]
#[allow(clippy::panic)]
fn assert_moments(who: &str, mut times: Vec<Duration>) {
    times.sort();
    let median = times[times.len() / 2];
    println!("{who} was woken after {median:?} (median), {times:?}");
    assert!(median < MOMENTS, "{who} was woken after {times:?}");
}
