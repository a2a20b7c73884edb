//! Every option, its default, and what it rejects.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::base::meter::Grouping;
use crate::base::{Drift, Lease};
use crate::config::address_map::AddressMap;
use crate::config::credentials::{self, Credentials, Provider};
use crate::config::limits::{self, Replicas};
use crate::config::master::{self, Master, MasterKind};
use crate::error::{Result, rejected};
use crate::memory::Memory;
use crate::table::WarnAfter;
use crate::wire::Line;

/// The shortest time for which the server keeps a lock for the process that was handed it.
const SHORTEST_TERM: Duration = Duration::from_secs(1);
/// The longest time that a line stays on the server while nobody asks.
const LONGEST_STAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The options of a `Locks`.
///
/// [`Locks::builder`](crate::Locks::builder) and [`Locks::quorum`](crate::Locks::quorum) take the masters that keep the locks; every
/// option has a default. [`connect`](Builder::connect) checks all options before it sends anything. It rejects what can't work with an
/// error of kind [`ErrorKind::Config`](crate::ErrorKind::Config) that names the option and its value. Some mistakes show only in a
/// server's answer.
///
/// The options, at their defaults except for `prefix` and `warn_after`:
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use std::time::Duration;
/// use nestlock::{Locks, Memory};
/// let locks = Locks::builder(Memory::new()) // or `Locks::builder("redis://127.0.0.1:6379")`
///     .prefix("app:")
///     .lease(Duration::from_secs(30))
///     .node_timeout(Duration::from_millis(500))
///     .unavailable_after(Duration::from_secs(10))
///     .poll_interval(Duration::from_secs(5))
///     .fair(true)
///     .drift(0.01, Duration::from_millis(2))
///     .retry_delay(Duration::from_millis(50)..=Duration::from_millis(250))
///     .restart_delay(Duration::ZERO) // by default the lease, with several masters
///     .token_ttl(Duration::from_secs(24 * 60 * 60))
///     .replicas(0, Duration::ZERO) // none are waited for
///     .warn_after(Duration::from_secs(30)) // by default after 5 s, then after each lease
///     .local_handoff(Duration::from_millis(10))
///     .bare_reentry(nestlock::BareReentry::Asked)
///     .confirm_reentry(false)
///     .blocked_for(Duration::from_secs(300)) // by default ten leases
///     // .sharded_channels(true), for a `cluster` only
///     // .holder_name("billing@web-7"), none by default
///     // .metric_label(|name| …), none by default
///     // .credentials(|| …), none by default
///     // .address_map(|host, port| …), none by default, for a `cluster` or a `sentinel`
///     .connect()
///     .await?;
/// locks.mutex("stock:42").run(async |_| {}).await?; // its key is `app:stock:42`
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until `connect` is called"]
pub struct Builder {
    /// The options that are used as they are set. For the options below it has the defaults, which [`check`](Builder::check) replaces.
    config: Config,
    lease: Duration,
    restart_delay: Option<Duration>,
    token_ttl: Option<Duration>,
    blocked_for: Option<Duration>,
    sharded_channels: Option<bool>,
    warn_after: Option<Duration>,
}

/// How a bare request, a `lock` or `try_lock` that is awaited for a guard, re-enters a hold of its owner: see
/// [`Builder::bare_reentry`].
///
/// Two bare requests of one owner may be nested calls, which have to enter, or branches of one task, such as those of a `join!`,
/// which have to exclude each other. They look the same unless both are under way at once, or the branches are polled through
/// [wakers of their own](crate::guide::owners#branches-of-one-task), such as those of `for_each_concurrent`.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{BareReentry, ErrorKind, Locks, Memory};
/// let locks = Locks::builder(Memory::new()).bare_reentry(BareReentry::Refused).connect().await?;
/// let stock = locks.mutex("stock");
/// let guard = stock.lock().await?;
/// assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Ambiguous);
/// stock.run(async |_| {}).await?; // an owner of its own, below that of the guard
/// guard.release().await
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BareReentry {
    /// The masters are asked, as for a first level. Two branches are noticed only if the second one asks before the answer to the first
    /// has been read, or if they have wakers of their own. Otherwise the second one is taken for a nested call, and gets in: use
    /// [`run`](crate::Mutex::run) in branches.
    #[default]
    Asked,
    /// The request enters without a command if the hold is certain. Use it only if no two branches of one task take the same lock: this
    /// crate detects such branches only if they ask in the same poll of their task, or through wakers of their own. Otherwise both get
    /// in.
    Local,
    /// If the owner itself has a bare guard of the lock, the request fails with [`Ambiguous`](crate::ErrorKind::Ambiguous). Use it
    /// for code that may have branches, and nest calls by a [`run`](crate::Mutex::run).
    Refused,
}

/// All options, as the builder has checked them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) masters: Vec<MasterKind>,
    pub(crate) lease: Lease,
    pub(crate) drift: Drift,
    pub(crate) prefix: Arc<str>,
    pub(crate) node_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) retry_delay: RangeInclusive<Duration>,
    /// How long after its start a master has no vote on fresh grants, before the drift over that time is added. With `None` it has
    /// a vote at once. No lease may be longer.
    pub(super) restart_delay: Option<Lease>,
    /// How long a fencing counter stays while it is not used. `None` means for ever.
    pub(crate) token_ttl: Option<Lease>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) local_handoff: Duration,
    pub(crate) bare_reentry: BareReentry,
    pub(crate) confirm_reentry: bool,
    /// For how long the backup thread renews while the runtime does not run.
    pub(crate) blocked_for: Duration,
    /// Whether releases are published on sharded channels, on masters that are clusters.
    pub(crate) sharded_channels: bool,
    /// The name that precedes the id of each hold.
    pub(crate) holder_name: Option<Arc<str>>,
    /// `None` if no wait is reported.
    pub(crate) warn_after: Option<WarnAfter>,
    /// Which locks are counted together. `None` means all.
    pub(crate) grouping: Option<Grouping>,
    /// Whether processes wait in a line that the server keeps.
    fair: bool,
    /// The provider that is asked for credentials. `None` if they are in the URLs.
    pub(crate) provider: Option<Provider>,
    pub(crate) address_map: AddressMap,
}

impl Builder {
    /// Returns all defaults, for locks that these masters keep.
    pub(crate) fn over(masters: impl IntoIterator<Item = impl Into<Master>>) -> Builder {
        Builder {
            config: Config::defaults(masters.into_iter().map(|master| master.into().0).collect()),
            lease: Lease::DEFAULT.duration(),
            restart_delay: None,
            token_ttl: None,
            blocked_for: None,
            sharded_channels: None,
            warn_after: None,
        }
    }

    /// Sets a provider of user and password, for credentials that change: tokens of a cloud, passwords that are rotated. Default:
    /// none; they are in the URLs.
    ///
    /// It is asked at each new connection to a server or a node, and after [`Credentials::renew_after`]. All standing connections log
    /// in again with what it returns, in order with other commands: no connection is replaced, no hold is lost, and waiters stay
    /// subscribed. Connections that are made at the same time share one answer.
    ///
    /// The provider has 5 s for an answer. If it fails, panics or takes longer, the new connection is not made. This is an error of
    /// kind [`Unavailable`](crate::ErrorKind::Unavailable), with the provider's error as its source, so the text of that error must
    /// not contain a password. A request tries again, as it does if a server is away. Standing connections stay open until the server
    /// closes them, and the provider is asked again after 1 s, later every 30 s.
    ///
    /// If a server refuses what the provider returned, [`connect`](Builder::connect) fails with [`Denied`](crate::ErrorKind::Denied).
    /// If the server has accepted a login before, new connections fail with [`Unavailable`](crate::ErrorKind::Unavailable) instead: the
    /// password may have changed before the provider knew it, so requests try again. A standing connection stays logged in as before, and
    /// tries again after the same pauses. All of this is logged as warnings, without credentials.
    ///
    /// The provider's future runs on a task of its own, on the runtime of [`connect`](Builder::connect), and is dropped with the
    /// `Locks` and by [`close`](crate::Locks::close). The provider is for all masters. Sentinels themselves are asked with the
    /// credentials in their URLs, and without any. [The guide](crate::guide::operations#credentials-that-change) has samples for AWS
    /// and Azure.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{Credentials, Locks};
    /// let from_file = || async {
    ///     let password = tokio::fs::read_to_string("/run/secrets/redis").await?; // tokio's feature `fs`
    ///     // A new password is used at most ten seconds after it is in the file.
    ///     Ok::<_, std::io::Error>(Credentials::new("app", password.trim()).renew_after(Duration::from_secs(10)))
    /// };
    /// let locks = Locks::builder("redis://redis.example").credentials(from_file).connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected: a provider together with a user or a password in the URL of a server or a node, and a provider if every master is
    /// [`Memory`](crate::Memory).
    pub fn credentials<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.config.provider = Some(Provider::new(provider));
        self
    }

    /// Maps the addresses that sentinels and the nodes of a cluster report to those to connect to. Default: none; each address is
    /// used as it is reported.
    ///
    /// Use it for servers behind address translation: in containers, behind port forwarding or a tunnel, where they know each other
    /// by addresses that lead nowhere from here. `map` gets host and port as they are reported, and returns those to connect to; it
    /// should return an unknown address unchanged. It is asked for the master that sentinels name, and for everything that a
    /// cluster reports: masters, replicas, and the targets of redirections (`MOVED`, `ASK`). If a node reports no host, `map` gets
    /// the one at which that node was asked. The URLs given to [`Master::sentinel`](crate::Master::sentinel) and
    /// [`Master::cluster`](crate::Master::cluster) are used as they are.
    ///
    /// The same address must lead to the same result, and two servers to different ones. Over TLS, a server's certificate has to be
    /// for the host that `map` returned. Messages name that address too. `map` is called for each report; it must not block, or use a
    /// lock. If it panics, the address is used as it is reported. With several masters it is for all of them.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Master};
    /// // Nodes that know each other as 172.20.0.…:6379, each forwarded to a port of this machine.
    /// let forwarded = |host: &str, port: u16| match host {
    ///     "172.20.0.2" => ("127.0.0.1".to_owned(), 7002),
    ///     "172.20.0.3" => ("127.0.0.1".to_owned(), 7003),
    ///     "172.20.0.4" => ("127.0.0.1".to_owned(), 7004),
    ///     _ => (host.to_owned(), port),
    /// };
    /// let nodes = ["redis://127.0.0.1:7002", "redis://127.0.0.1:7003"];
    /// let locks = Locks::builder(Master::cluster(nodes)).address_map(forwarded).connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected: any map, if no master is a [`Master::sentinel`](crate::Master::sentinel) or a
    /// [`Master::cluster`](crate::Master::cluster).
    pub fn address_map(mut self, map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        self.config.address_map = AddressMap::new(map);
        self
    }

    /// Sets how long Redis keeps a lock that its holder does not renew. Default: 30 s.
    ///
    /// A crashed holder blocks the others for that time. A live holder renews the lease every third of it, so with a lease of a few
    /// node timeouts or less an unanswered renewal can't be repeated in time, and holds are lost that a longer lease would have
    /// kept. It is counted in whole milliseconds.
    ///
    /// Rejected: a lease that is not longer than the drift over it (see [`drift`](Builder::drift)), and one that is longer than
    /// Redis can store.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the prefix of the names of all keys and channels. Default: none.
    ///
    /// Processes share a lock only if both their prefixes and their names are equal. With `app:` and `stock` on one side, and no prefix
    /// and `app:stock` on the other, they exclude each other, but they neither notify each other nor take tokens from one counter.
    ///
    /// Rejected: a prefix that begins with `}`, which would break the hash tag of the channel, and one of more than 1024
    /// bytes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        let prefix: String = prefix.into();
        self.config.prefix = prefix.into();
        self
    }

    /// Sets how long the answer to a command is awaited, on each master. Default: 500 ms.
    ///
    /// It has to be longer than a round trip, and should be longer than two: a server that has forgotten the scripts (`SCRIPT FLUSH`) takes
    /// two. [The guide](crate::guide::leases#when-the-server-does-not-answer) lists how long each call waits for a server that does not
    /// answer.
    ///
    /// An attempt to connect has the same limit, but at least one second, or four over TLS. [`Duration::MAX`] means no limit.
    ///
    /// Rejected: zero.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.config.node_timeout = timeout;
        self
    }

    /// Sets how long a request keeps trying while the server does not answer; with several masters, while no majority that may vote
    /// answers. Default: 10 s.
    ///
    /// Zero means not at all; [`Duration::MAX`] means for ever. A request with [`within`](crate::futures::Request::within) ends when
    /// that time is over, if that is sooner. A `try_lock` without it, a release or a query makes one attempt.
    pub fn unavailable_after(mut self, time: Duration) -> Self {
        self.config.unavailable_after = time;
        self
    }

    /// Sets the longest time that a waiter sleeps without asking the server if no message arrives. Default: 5 s.
    ///
    /// [`Duration::MAX`] means until there is a reason to ask.
    ///
    /// Rejected: zero.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.config.poll_interval = interval;
        self
    }

    /// Sets whether processes get a lock in the order in which they began to wait for it. Default: true.
    ///
    /// With it the server keeps a line of the processes that wait, and a release hands the lock to the first of them: none of them starves,
    /// and a release wakes one process, not all. It works with one master: a server, fixed or named by sentinels, a [`Memory`], or
    /// a Cluster with [`sharded_channels`](Builder::sharded_channels), without [`replicas`](Builder::replicas). On other
    /// deployments the option has no effect. Clients that do not know the line, such as Redisson and processes without this option, get
    /// turns too, if they subscribe to the release channel. [`guide::operations`](crate::guide::operations) lists the rights that it
    /// needs. Without these rights, locks work but are not fair, and the log has a warning. Inside a process a lock may first pass on
    /// for [`local_handoff`](Builder::local_handoff).
    pub fn fair(mut self, fair: bool) -> Self {
        self.config.fair = fair;
        self
    }

    /// Sets the allowed drift between the clocks of client and server per lease: a fraction of it plus a constant. Default: 0.01, and
    /// 2 ms.
    ///
    /// A hold counts as over that much before the server ends it.
    ///
    /// Rejected: a factor that is not a number, is negative, or is 1 or more; and a drift that leaves nothing of the lease.
    pub fn drift(mut self, factor: f64, slack: Duration) -> Self {
        self.config.drift = Drift { factor, slack };
        self
    }

    /// Sets the bounds of the random pause before a request asks again. Default: 50 ms to 250 ms.
    ///
    /// Such a pause follows an attempt without an answer, a split vote of several masters, and each poll if the release messages
    /// can't be subscribed to. Both bounds double from pause to pause: the upper one up to a second or twice its value, whichever is
    /// longer, and the lower one up to half of that. So competing requests do not ask in step, even if the range is one value. A
    /// pause is never shorter than 1 ms. With a range of zero each pause is 1 ms.
    ///
    /// Rejected: a range without a value in it.
    pub fn retry_delay(mut self, range: RangeInclusive<Duration>) -> Self {
        self.config.retry_delay = range;
        self
    }

    /// Sets how long a master that was started has no vote on fresh grants: the longest lease that any client of these masters
    /// uses. Default: the lease with several masters, zero with one.
    ///
    /// Without it two owners may hold a lock: 1. One holds it on masters A and B. 2. B restarts without its data. 3. The other gets
    /// it on B and C. With it, B has no vote until every hold that it may have forgotten is over (the delayed restart of Redlock).
    /// All clients of a set of masters have to agree on it, and a longer `fixed_lease`, `extend` or `at_least` is an error of kind
    /// [`Config`](crate::ErrorKind::Config). [The guide](crate::guide::operations#changes-to-a-running-fleet) shows how to change it.
    ///
    /// Masters that were started together grant nothing for that time: a `lock` whose
    /// [`unavailable_after`](Builder::unavailable_after) ends earlier fails as [`Unavailable`](crate::ErrorKind::Unavailable), and
    /// its message names the reason. Zero gives a master its vote at once: for tests, and for masters that write each change to disk
    /// before they answer (`appendfsync always`). Any other value needs the right to `INFO`.
    ///
    /// Rejected: a time that is shorter than the lease, but not zero.
    pub fn restart_delay(mut self, time: Duration) -> Self {
        self.restart_delay = Some(time);
        self
    }

    /// Sets how long the counter of a lock's fencing tokens stays in Redis while the lock is not used. Default: a day, or the lease
    /// or [`restart_delay`](Builder::restart_delay) if that is longer.
    ///
    /// While the counter exists, tokens grow, whatever the clocks show; after that they begin at the time of day, in microseconds.
    /// [`Duration::MAX`] means for ever. Use that for locks that are shared with Java services: Redisson's `RFencedLock` would
    /// begin again at 1. A counter that was found without a TTL, as Redisson creates them, gets none.
    ///
    /// Choose a time that is longer than every `fixed_lease` and `extend` of a fenced lock. Otherwise the counter may be deleted while
    /// the lock is held, and the next token is greater only if the clock has not been set back.
    ///
    /// Rejected: a time shorter than the lease or [`restart_delay`](Builder::restart_delay), and one that is longer than Redis can
    /// store.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.token_ttl = Some(ttl);
        self
    }

    /// Sets how many replicas of the master have to acknowledge a grant within `wait` before it counts (`WAIT`). Default: 0.
    ///
    /// With fewer, the grant is undone and requested again, within the limits of the request. When these are over, the error is of
    /// kind [`Unavailable`](crate::ErrorKind::Unavailable), and its message has the number of replicas. With several masters each
    /// waits for its own replicas.
    ///
    /// A failover is then less likely to lose a grant: if all replicas had to acknowledge it, the one that takes over has it. And a
    /// master that is cut off from its replicas grants nothing. **It does not make a failover safe**: nothing waits for releases
    /// and renewals to be replicated, so the lease may be shorter on the new master, and a master that is cut off renews the holds
    /// that it has, unless `min-replicas-to-write` of the server ends that. Redis may promote a replica that lags behind the one
    /// that acknowledged. The wait is taken off the lease.
    ///
    /// Each master then has a second connection, for acquires alone: `WAIT` holds up the commands after it. Acquires that are made
    /// while it waits are sent together after it, and share the next one.
    ///
    /// Rejected: a wait of zero, which would last for ever; a wait that is not shorter than the lease; any replicas of
    /// [`Memory`](crate::Memory); and a server that refuses `WAIT`. It needs the right `+wait`, and `+info` to notice an address
    /// that leads to another server.
    pub fn replicas(mut self, count: usize, wait: Duration) -> Self {
        self.config.replicas = (count > 0).then_some(Replicas { count, wait });
        self
    }

    /// Sets how long a released lock may pass from one task of this `Locks` to the next that waits for it, without a command.
    /// Default: 10 ms, counted from the grant by the server.
    ///
    /// When that time is over, the next release is sent to the server, and requests of this `Locks` let other processes that are
    /// known to wait go first. So a hundred tasks that wait for one lock take it at the speed of memory, and each process has it for
    /// about that time in its turn. [The guide](crate::guide::leases) describes what passes on, what does not, and who is known to
    /// wait. Zero means that every release is sent. A sixth of the lease counts, if that is less.
    pub fn local_handoff(mut self, longest: Duration) -> Self {
        self.config.local_handoff = longest;
        self
    }

    /// Sets how a bare request (`lock` or `try_lock`, awaited for a guard) re-enters a lock that its owner or an ancestor holds.
    /// Default: [`BareReentry::Asked`].
    ///
    /// This option does not apply to a [`run`](crate::Mutex::run); see [`confirm_reentry`](Builder::confirm_reentry).
    pub fn bare_reentry(mut self, how: BareReentry) -> Self {
        self.config.bare_reentry = how;
        self
    }

    /// Sets whether the masters are asked for each nested level too. Default: `false`, so a level is granted without a command
    /// while the hold around it is certain.
    ///
    /// A hold is certain when the masters have confirmed it within half a lease, it is good for half a lease more, no command of it
    /// has failed since, and their connection is not known to be lost. Otherwise the masters are asked, whatever this option says.
    /// With `true` a key that was deleted, evicted, or lost in a failover is noticed by the next nested call, as by
    /// [`Guard::check`](crate::Guard::check); with `false` by the next renewal. [The guide](crate::guide::owners) says more.
    pub fn confirm_reentry(mut self, confirm: bool) -> Self {
        self.config.confirm_reentry = confirm;
        self
    }

    /// Sets for how long holds are renewed while the runtime does not run. Default: ten leases.
    ///
    /// Holds are renewed by a task of the runtime. A task that computes or sleeps without an `.await` may keep that task from
    /// running, even if it has nothing to do with locks. So a thread of this process, `nestlock`, checks each sixth of a lease
    /// whether it runs; if not, the thread renews, by a connection of its own. After this time it stops, which is logged as an
    /// error, and the holds are lost at their ends: a deadlock of the runtime does not keep its locks for ever. [`Duration::MAX`]
    /// means for ever, as Redisson's watchdog does; zero means that only the runtime renews.
    ///
    /// The thread only ever makes a hold last longer: waiters, releases, and the notice of a loss wait for the runtime. Work that
    /// takes long still belongs in `spawn_blocking`. [The guide](crate::guide::leases) says more. It needs the right `+info`, and
    /// has no effect on [`Memory`](crate::Memory).
    pub fn blocked_for(mut self, longest: Duration) -> Self {
        self.blocked_for = Some(longest);
        self
    }

    /// Sets whether the releases of locks on a Cluster are published on sharded channels (`SPUBLISH`, `SSUBSCRIBE`). Default: `true`.
    ///
    /// A message then goes to the node that serves the lock's slot, and not to all nodes. Nodes that don't know sharded channels
    /// (before Redis 7), and users who may not use them, get plain ones. All clients of a lock have to use the same channels.
    /// Otherwise they still exclude each other, but a waiter is not notified: it gets the lock by its
    /// [`poll_interval`](Builder::poll_interval).
    ///
    /// In Redisson, `shardedSubscriptionMode` decides: `AUTO`, its default, and `ON` agree with `true`, and `OFF` agrees with
    /// `false`.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// // Java services of the fleet have `shardedSubscriptionMode` at `OFF`.
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2"];
    /// let locks = nestlock::Locks::builder(nestlock::Master::cluster(nodes)).sharded_channels(false).connect().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Rejected: any value if no master is a [`Master::cluster`](crate::Master::cluster), since only a cluster has sharded channels.
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.sharded_channels = Some(sharded);
        self
    }

    /// Sets the name of this process in the holds that it writes, for example `billing@web-7`. Default: none.
    ///
    /// The name stands in the field of each hold, before its id. So other processes see who holds a lock, by
    /// [`Mutex::holder`](crate::Mutex::holder) and [`Error::holder`](crate::Error::holder), and so does an operator, by `HGETALL`. It
    /// needs no further right or command, and decides nothing: two processes with the same name are different owners. Everybody who
    /// may read the locks can read it.
    ///
    /// Redis keeps a field of up to 64 bytes in the compact form of a hash. A name of up to 16 bytes leaves it so.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// # use nestlock::{Locks, Memory};
    /// let locks = Locks::builder(Memory::new()).holder_name("billing@web-7").connect().await?;
    /// let guard = locks.mutex("stock").lock().await?;
    /// assert!(guard.hold_id().starts_with("billing@web-7:"));
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// Rejected: an empty name, one of more than 64 bytes, and one with a `:` or with a character that can't be printed.
    pub fn holder_name(mut self, name: impl Into<String>) -> Self {
        let name: String = name.into();
        self.config.holder_name = Some(name.into());
        self
    }

    /// Sets how long a request waits before a `tracing` warning reports it, and then again each time. Default: 5 s, or the lease if
    /// it is shorter; then again after each lease.
    ///
    /// The warning names the lock, the place in the code that asked, how long it has waited and what may help; and, as far as this
    /// process [knows](crate::Error::holder), who has the lock and for how long. A request begins to wait once it was refused:
    /// because somebody else has the lock, others are before it, or its attempt was not answered. The warning ends nothing, and
    /// needs no further command; [`within`](crate::futures::Request::within) ends a wait. [`Duration::MAX`] means never.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> nestlock::Result<()> {
    /// use std::time::Duration;
    /// use nestlock::{Locks, Memory, Owner};
    /// let minute = Duration::from_secs(60);
    /// let locks = Locks::builder(Memory::new()).warn_after(minute).connect().await?;
    /// let stock = locks.mutex("stock");
    /// let guard = stock.lock().await?;
    /// let late = stock.lock().owner(&Owner::new()).within(3 * minute + minute / 2).await;
    /// // Three warnings: a request waits for a lock: an owner of this process has it … waited=60 s at=src/main.rs:9:18 holder=…
    /// assert!(late.is_err());
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// Rejected: a time shorter than a millisecond.
    pub fn warn_after(mut self, time: Duration) -> Self {
        self.warn_after = Some(time);
        self
    }

    /// Maps the names of locks to a few values of the label `lock`, which all metrics then have. Default: none, and no such label.
    ///
    /// It is for programs that turn on the feature `metrics`; see [what is measured](crate::guide::operations#metrics). Names of
    /// locks often have an id in them, and each value of a label is a time series of its own: return the part that says which kind
    /// of lock it is. `label` is called for each measurement. It must not block, or use a lock. If it panics, the value is empty.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> nestlock::Result<()> {
    /// use nestlock::{Locks, Memory};
    /// let locks = Locks::builder(Memory::new())
    ///     .metric_label(|name| name.split(':').next().unwrap_or_default().into())
    ///     .connect()
    ///     .await?;
    /// locks.mutex("stock:42").run(async |_| {}).await?; // counted with lock="stock"
    /// # Ok(()) }
    /// ```
    pub fn metric_label(mut self, label: impl Fn(&str) -> Cow<'_, str> + Send + Sync + 'static) -> Self {
        self.config.grouping = Some(Grouping::new(label));
        self
    }

    pub(crate) fn check(self) -> Result<Config> {
        let mut config = self.config;
        let (drift, masters) = (config.drift, &config.masters);
        limits::check_drift(drift)?;
        let lease = Lease::new("lease", self.lease, drift)?;
        config.lease = lease;
        master::check(masters)?;
        config.restart_delay = limits::restart_delay(self.restart_delay, masters.len(), lease, drift)?;
        let longest_lease = config.restart_delay.map_or(lease, |delay| delay.max(lease));
        config.token_ttl = limits::token_ttl(self.token_ttl, longest_lease, drift)?;
        if config.provider.is_some() {
            credentials::check(masters)?;
        }
        limits::check_prefix(&config.prefix)?;
        config.holder_name.as_deref().map_or(Ok(()), limits::check_holder_name)?;
        if config.node_timeout.is_zero() {
            return Err(rejected(
                "node_timeout of 0 ns leaves no time for an answer; it must be more than zero",
            ));
        }
        if config.poll_interval.is_zero() {
            return Err(rejected(
                "poll_interval of 0 ns would ask without a pause; it must be more than zero",
            ));
        }
        if config.retry_delay.is_empty() {
            let (start, end) = (config.retry_delay.start(), config.retry_delay.end());
            return Err(rejected(format!(
                "retry_delay of {start:?}..={end:?} holds no value; its start must not be after its end"
            )));
        }
        config.warn_after = limits::warn_after(self.warn_after, self.lease)?;
        config.replicas.map_or(Ok(()), |replicas| limits::check_wait(replicas.wait, lease, masters))?;
        limits::check_address_map(&config.address_map, masters)?;
        config.sharded_channels = limits::sharded_channels(self.sharded_channels, masters)?;
        config.local_handoff = config.local_handoff.min(lease.duration() / 6);
        config.blocked_for = self.blocked_for.unwrap_or_else(|| lease.duration().saturating_mul(10));
        Ok(config)
    }
}

/// Shows each option once: as `connect` would use it, or else why it would reject the options.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.clone().check()).finish()
    }
}

impl Config {
    /// Checks a lease that a caller sets by the option `what`.
    pub(crate) fn lease(&self, what: &str, asked: Duration) -> Result<Lease> {
        let lease = Lease::new(what, asked, self.drift)?;
        if let Some(delay) = self.restart_delay.filter(|delay| lease > *delay) {
            let delay = delay.duration();
            return Err(rejected(format!(
                "{what} of {asked:?} is more than restart_delay, {delay:?}: a master that restarts would vote before it is over; \
                 raise restart_delay in all clients of these masters"
            )));
        }
        Ok(lease)
    }

    /// Returns how long after its start a master has no vote on fresh grants, or `None` if it has one at once.
    pub(crate) fn probation(&self) -> Option<Duration> {
        let delay = self.restart_delay?.duration();
        Some(delay.saturating_add(self.drift.of(delay)))
    }

    /// Returns how long a single attempt to get a lock may take.
    pub(crate) fn attempt_limit(&self) -> Duration {
        let once = self.node_timeout;
        // An acquire may have to wait behind acquires that already wait for replicas.
        let acknowledged = |wait| once.saturating_mul(2).saturating_add(wait).saturating_mul(3) / 2;
        self.replicas.map_or(once, |replicas| acknowledged(replicas.wait))
    }

    /// Returns whether the backup thread renews while the runtime does not run. It does not in unit tests: a simulation has one
    /// thread, and a clock of its own.
    pub(crate) fn uses_backup_thread(&self) -> bool {
        let is_there = |master: &MasterKind| !matches!(master, MasterKind::Memory(_));
        !self.blocked_for.is_zero() && !cfg!(any(test, shuttle)) && self.masters.iter().any(is_there)
    }

    /// Returns what scripts need to know about the line, or `None` if there is none.
    pub(crate) fn line(&self) -> Option<Line> {
        let sharded = match &*self.masters {
            [MasterKind::Server(_) | MasterKind::Sentinel(_) | MasterKind::Memory(_)] => false,
            [MasterKind::Cluster(_)] if self.sharded_channels => true,
            _ => return None,
        };
        // A process that crashes before it takes the lock that was handed to it thus costs no more than one that crashes as its holder.
        let term = self.node_timeout.saturating_mul(2).min(self.lease.duration()).max(SHORTEST_TERM);
        let stays = self.poll_interval.saturating_mul(3).min(LONGEST_STAY).saturating_add(term);
        (self.fair && self.replicas.is_none()).then(|| Line {
            term: Lease::rest(term),
            stays: Lease::rest(stays),
            again: false,
            polls: false,
            sharded,
        })
    }

    /// Returns all defaults, with this store as the master: nothing in it can be rejected.
    pub(crate) fn over(store: &Memory) -> Config {
        Config::defaults(vec![MasterKind::Memory(store.clone())])
    }

    fn defaults(masters: Vec<MasterKind>) -> Config {
        Config {
            masters,
            replicas: None,
            sharded_channels: true,
            holder_name: None,
            warn_after: Some(WarnAfter { first: Duration::from_secs(5), again: Lease::DEFAULT.duration() }),
            grouping: None,
            fair: true,
            provider: None,
            address_map: AddressMap::NONE,
            restart_delay: None,
            token_ttl: Some(Lease::DAY),
            lease: Lease::DEFAULT,
            drift: Drift { factor: 0.01, slack: Duration::from_millis(2) },
            prefix: "".into(),
            node_timeout: Duration::from_millis(500),
            unavailable_after: Duration::from_secs(10),
            poll_interval: Duration::from_secs(5),
            retry_delay: Duration::from_millis(50)..=Duration::from_millis(250),
            local_handoff: Duration::from_millis(10),
            bare_reentry: BareReentry::Asked,
            confirm_reentry: false,
            blocked_for: Lease::DEFAULT.duration() * 10,
        }
    }
}

#[cfg(test)]
mod tests;
