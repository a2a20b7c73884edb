//! `Locks`: the locks of one deployment, and how to connect to it.

use std::fmt;
use std::sync::Arc;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::time::{Instant, timeout_at};

use crate::backend::memory::InMemory;
use crate::base::{Events, after, meter};
use crate::client::connect::{connect_all, connect_all_lazily};
use crate::client::mutex::Mutex;
use crate::client::several::Mutexes;
use crate::config::{Builder, Config, Master};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::{EventRelay, Handle, MasterEvents, Session, Stage, check_runtime};

/// The locks of one deployment: create one per process and deployment. Cheap to clone.
///
/// For each master it owns a connection for commands (for a cluster, one to each node that serves slots; with
/// [`replicas`](Builder::replicas), one more each for grants) and, once somebody has to wait, one for messages; it also has one to
/// each sentinel. It renews what is held and releases what was dropped. When the last handle of it is gone (a `Locks`, a [`Mutex`], a
/// guard, a [`Hold`](crate::Hold) or a request), it finishes what is queued, and its background task and connections end.
///
/// It lives on the tokio runtime that [`connect`](Locks::connect) was awaited on, and may be used from others while that one lives.
/// That runtime needs its time and I/O drivers (`enable_all`), and must keep running. A `current_thread` runtime does nothing between two
/// calls of `block_on`. During such a gap a thread renews the holds, for [a limited time](Builder::blocked_for).
/// [`in_memory`](Locks::in_memory) needs no server and no I/O driver. A call that is awaited outside any tokio runtime, by another
/// executor, fails with [`Misuse`](ErrorKind::Misuse). Only [`Guard::lost`](crate::Guard::lost), and a release that sends nothing, work
/// there.
///
/// ```no_run
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::Locks;
/// let locks = Locks::connect("redis://redis.example").await?;
/// let stock = locks.mutex("stock:42");
/// stock.run(async |_| { /* one at a time, in all processes */ }).await?;
/// locks.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(super) handle: Handle,
}

impl Locks {
    /// Connects to one master, with the defaults of [`Builder`].
    ///
    /// `master` is a URL or another address of a [`Server`](crate::Server), or any other [`Master`]. See the example of [`Locks`].
    ///
    /// # Errors
    ///
    /// Same as [`Builder::connect`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is left behind.
    pub async fn connect(master: impl Into<Master>) -> Result<Locks> {
        Locks::builder(master).connect().await
    }

    /// Creates locks without a server: they are kept in this process, in a [`Memory`] of their own.
    ///
    /// Use it for tests, for development, and for a service that never runs twice at once: two processes do not exclude each other,
    /// and a rolling deployment runs two for a while. It has the defaults of [`Builder`]; `Locks::builder(Memory::new())` takes options.
    /// [`guide::testing`](crate::guide::testing) shows how to test with it.
    ///
    /// It can be created outside a runtime, and so be a `static`. Its background task runs on the runtime that uses it first. If that
    /// runtime ends, or is not driven (a `current_thread` runtime between two calls of `block_on`), the next use from another runtime takes
    /// the task over, after 50 ms if the first one still lives. Until then nothing is renewed or released in the background.
    ///
    /// One `static` serves many `#[tokio::test]`s, which have a runtime each. If a test pauses the clock, give it a `Locks` of its
    /// own, since the clocks of other runtimes go on.
    ///
    /// ```
    /// use std::sync::LazyLock;
    /// use nestlock::Locks;
    ///
    /// static LOCKS: LazyLock<Locks> = LazyLock::new(Locks::in_memory);
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> nestlock::Result<()> {
    /// let stock = LOCKS.mutex("stock:42");
    /// let depth = stock.run(|_| stock.run(async |_| stock.hold_count())).await??;
    /// assert_eq!(depth, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory() -> Locks {
        let (store, relay) = (Memory::new(), Arc::new(EventRelay::default()));
        let config = Config::over(&store);
        let events = MasterEvents::of(relay.clone(), 0);
        let master = InMemory::join(&store, config.node_timeout, Arc::downgrade(&events));
        // Even without randomness these locks are separate, since nobody else has this store.
        let uuid = uuid().unwrap_or_else(|_| "in-memory".to_owned());
        let quorum = Quorum::new(vec![master], config.probation());
        Locks::over(Session::new(config, quorum, uuid, Clock::new(), vec![events]), &relay)
    }

    pub(crate) fn over(session: Arc<Session>, relay: &EventRelay) -> Locks {
        meter::describe();
        meter::begin(None, session.config.grouping.as_ref());
        let _ = relay.set(Arc::downgrade(&session));
        session.ensure_watchdog();
        Locks { handle: Handle::new(session) }
    }

    /// Returns a [`Builder`] with every option at its default, for locks that this master keeps.
    ///
    /// `master` is a URL or another address of a [`Server`](crate::Server), a [`Master`] that sentinels monitor or that is a
    /// Cluster, or a [`Memory`], by value or by reference. See the example of [`Builder`].
    pub fn builder(master: impl Into<Master>) -> Builder {
        Builder::over([master])
    }

    /// Returns a [`Builder`] with every option at its default, for locks that a majority of these masters keeps (Redlock).
    ///
    /// A process holds a lock if it holds it on a majority of them, so one of three masters may fail, or two of five. They must be
    /// independent, not replicas of each other. A Sentinel deployment and a Cluster have one vote each, however many servers they
    /// consist of. Four masters tolerate no more failures than three: an even number logs a warning.
    /// [`connect`](Builder::connect) needs a majority; a master that is away joins when it is back.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Master};
    /// let locks = Locks::quorum(["redis://one:6379", "redis://two:6379", "redis://three:6379"]).connect().await?;
    /// // Masters that are not all single servers:
    /// let mixed = [
    ///     Master::server("redis://one:6379"),
    ///     Master::sentinel(["redis://two:26379", "redis://three:26379"], "mymaster"),
    ///     Master::cluster(["redis://four:6379", "redis://five:6379"]),
    /// ];
    /// let others = Locks::quorum(mixed).connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected by [`connect`](Builder::connect): no master at all, more than 63, a master that is given twice, even by two names,
    /// and anything that can't be a [`Master`].
    pub fn quorum(masters: impl IntoIterator<Item = impl Into<Master>>) -> Builder {
        Builder::over(masters)
    }

    /// Returns the lock of that name. Nothing is sent, and nothing can fail yet.
    ///
    /// A name is any UTF-8 text of up to 1 KiB, and is case-sensitive. Put the kind first (`stock:42`), so that one
    /// [pattern of rights](crate::guide::operations#rights-of-a-least-privilege-user) and one group of
    /// [metrics](Builder::metric_label) cover all locks of that kind. The names `x` and `{x}` are two locks, but share a channel and a
    /// fencing counter.
    ///
    /// A bad name (empty, longer than 1 KiB, or beginning with `}` if there is no prefix) is an error at the first use, before
    /// anything is sent.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// locks.mutex("stock:42").run(async |_| {}).await?;
    /// let error = locks.mutex("").lock().await.unwrap_err();
    /// assert_eq!(error.kind(), nestlock::ErrorKind::InvalidInput);
    /// # Ok(()) }
    /// ```
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.handle.clone(), name.as_ref())
    }

    /// Returns several locks that are taken together or not at all, in any order and without a deadlock: see [`Mutexes`].
    ///
    /// A name that is given twice counts once. No name at all, or one that [`mutex`](Locks::mutex) rejects, is an error at the first
    /// use, before anything is sent.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// locks.mutexes(["account:2", "account:1"]).run(async |_| {}).await?;
    /// let error = locks.mutexes(Vec::<String>::new()).lock().await.unwrap_err();
    /// assert_eq!(error.kind(), nestlock::ErrorKind::InvalidInput);
    /// # Ok(()) }
    /// ```
    pub fn mutexes<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Mutexes {
        Mutexes::new(self.handle.clone(), names)
    }

    /// Closes this `Locks` and all its clones: they grant no new holds, and finish queued releases. The background task ends once no guard
    /// is left.
    ///
    /// Before it returns, it undoes the requests that are under way, and waits for masters that have not confirmed a release yet,
    /// even if a majority has. So the process may end once it has returned. It takes at most two node timeouts; with
    /// [`replicas`](Builder::replicas), three times as long plus three waits.
    ///
    /// It may be called more than once. Guards that are still alive are no longer renewed, so they are lost when their leases end;
    /// [`release`](crate::Guard::release) works, and a drop still tries to release. Every other call that needs the server fails with
    /// [`Closed`](ErrorKind::Closed) from then on, and so does every request, even a nested one. What only looks at this process still
    /// works: [`status`](Locks::status), [`is_held`](Mutex::is_held), [`lost`](crate::Guard::lost).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # let locks = nestlock::Locks::in_memory();
    /// let stock = locks.mutex("stock");
    /// drop(stock.lock().await?); // released in the background
    /// locks.close().await?; // which is waited for here
    /// assert_eq!(stock.lock().await.unwrap_err().kind(), nestlock::ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable): some releases were not confirmed within that time, and go on in the background; or
    /// the runtime has ended with some left, and their leases free those locks; or a request for [several names](Locks::mutexes) already
    /// held some of its locks, and nobody polled or dropped its future. [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime; the
    /// `Locks` is closed, and the releases go on in the background.
    ///
    /// # Cancel safety
    ///
    /// The `Locks` is closed from the first poll on, even if the future is dropped.
    pub async fn close(&self) -> Result<()> {
        let session = &self.handle;
        session.advance(Stage::Closing);
        check_runtime()?;
        let limit = after(Instant::now(), session.timing.patience);
        loop {
            session.ensure_watchdog();
            // Made before the table is read, so that progress in between is not missed.
            let progress = session.progress.notified();
            // Looked at first: a request for several names writes the ends of its locks before it no longer counts.
            let gathered = session.has_gathered();
            let (unconfirmed, others, empty) = session.left_to_do();
            if session.stage() == Stage::RuntimeEnded {
                // Connections may have been kept for guards that are dropped later.
                session.quorum.end_with_runtime();
                if unconfirmed {
                    let message = "the tokio runtime that this `Locks` was connected on ended before some releases were confirmed; the leases free those locks";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
            }
            if session.stage() >= Stage::Closed || !(gathered || unconfirmed || others || empty) {
                return Ok(());
            }
            let slice = session.takeover_pause().map(|pause| after(Instant::now(), pause));
            let until = slice.map_or(limit, |slice| slice.min(limit));
            let is_late = timeout_at(until, progress).await.is_err();
            if is_late && slice.is_some() {
                // The runtime of the background may stand still: a visit finds that, and takes the task over.
                session.visit_all(|_, _| {});
            }
            if is_late && limit <= Instant::now() {
                if gathered {
                    let message = "a request for several names still holds some of its locks: poll its future or drop it, and close again";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
                if !unconfirmed {
                    // Only a minority of masters may still have a field left, which keeps nobody waiting.
                    return Ok(());
                }
                let message = "some releases could not be confirmed in time; they go on in the background until their leases are over";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        }
    }
}

impl Builder {
    /// Connects to the masters, on the tokio runtime that awaits this: its tasks live there.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{ErrorKind, Locks, Memory};
    /// let options = Locks::builder(Memory::new()).lease(Duration::from_millis(1));
    /// let error = options.connect().await.unwrap_err(); // that lease is not longer than the drift over it
    /// assert_eq!(error.kind(), ErrorKind::Config);
    /// assert!(error.to_string().contains("lease"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config), naming option and value, before anything is sent: no master, or one given twice; a URL that
    /// can't be read; `rediss://` without a TLS feature; a lease that is not longer than the drift over it, or more than Redis can
    /// store; any other option out of its range. Also `Config`, after the servers' answers: a master that the sentinels do not know,
    /// two masters that are one server, a server that is no node of a cluster or that can't wait for [`replicas`](Builder::replicas).
    /// [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime, unless all masters are stores in [`Memory`](crate::Memory).
    /// [`Denied`](ErrorKind::Denied): a wrong password, or a missing right. [`Unavailable`](ErrorKind::Unavailable): the server can't be
    /// reached, or, of several masters, no majority can.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is left behind.
    pub async fn connect(self) -> Result<Locks> {
        self.connect_by(Clock::new()).await
    }

    async fn connect_by(self, clock: Clock) -> Result<Locks> {
        let config = self.check()?;
        let (relay, events) = events(&config);
        let masters = connect_all(&config, &events).await?;
        let quorum = Quorum::new(masters, config.probation());
        built(config, quorum, clock, events, &relay)
    }

    /// Returns at once, before anything is connected, so that a service can start while its servers are away.
    ///
    /// The connections are made in the background, on the runtime that this is called on. Requests wait for them, and end with
    /// [`Unavailable`](ErrorKind::Unavailable) by their own limits: [`try_lock`](crate::Mutex::try_lock) after a
    /// [`node_timeout`](Builder::node_timeout), a request after [`within`](crate::futures::Request::within) or
    /// [`unavailable_after`](Builder::unavailable_after). A server that can't be reached is logged as a warning, and as an info
    /// once it is connected to.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{ErrorKind, Locks};
    /// # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    /// # let url = format!("redis://{free}");
    /// let locks = Locks::builder(url).connect_lazily()?; // nothing listens there yet
    /// let error = locks.mutex("stock:42").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable); // the service goes on, and the next call may find the server
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config): everything that [`connect`](Builder::connect) rejects before anything is sent.
    /// [`Misuse`](ErrorKind::Misuse): called outside a tokio runtime, unless all masters are stores in [`Memory`](crate::Memory).
    ///
    /// A mistake that only a server's answer reveals is an error of each call, from when it is known until it is corrected:
    /// [`Denied`](ErrorKind::Denied) for a wrong password, [`Config`](ErrorKind::Config) for a master that the sentinels do not
    /// know. If one of several masters has such a mistake, it is logged, and the others go on without it.
    pub fn connect_lazily(self) -> Result<Locks> {
        let config = self.check()?;
        let (relay, events) = events(&config);
        let masters = connect_all_lazily(&config, &events)?;
        let quorum = Quorum::new(masters, config.probation()).opening();
        built(config, quorum, Clock::new(), events, &relay)
    }
}

/// Returns the receivers of the masters' events, and the relay that gets the session later.
fn events(config: &Config) -> (Arc<EventRelay>, Vec<Arc<dyn Events>>) {
    let relay = Arc::new(EventRelay::default());
    let events = (0..config.masters.len()).map(|node| MasterEvents::of(relay.clone(), node));
    (relay.clone(), events.collect())
}

fn built(
    config: Config,
    quorum: Quorum,
    clock: Clock,
    events: Vec<Arc<dyn Events>>,
    relay: &EventRelay,
) -> Result<Locks> {
    // The prefix of the fields of all holds. The id is as unique with a name in front as without one: processes with the same name
    // are different owners.
    let uuid = match &config.holder_name {
        Some(name) => format!("{name}:{}", uuid()?),
        None => uuid()?,
    };
    Ok(Locks::over(Session::new(config, quorum, uuid, clock, events), relay))
}

/// Makes a random UUID, version 4, from the operating system's randomness: a generator in this process would be copied by `fork`, and
/// two processes would be one owner.
fn uuid() -> Result<String> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the operating system has no randomness for an owner's id")
            .because(error)
    })?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("session", &**self.handle).finish()
    }
}

#[cfg(test)]
mod tests;
