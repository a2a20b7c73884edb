//! A reentrant mutex on Redis for async Rust on tokio, shared by all processes that use the same server.
//!
//! Code that holds a lock may call code that takes the same lock. A lock has a lease that is renewed while it is held, so a
//! crashed process blocks the others for one lease and no longer. Keys and channels are those of Redisson's `RLock`, so
//! Java and Rust services can share locks. A lock is kept by one server, by a master that sentinels watch, by a Cluster, or by a
//! majority of several independent masters (Redlock). The same lock runs [in memory](Locks::in_memory), for tests without a
//! server.
//!
//! ```
//! use std::time::Duration;
//! use nestlock::{Locks, Mutex, Result};
//!
//! /// The lower layer locks what it changes, whoever calls it.
//! async fn take(stock: &Mutex) -> Result<u32> {
//!     stock.run(async { 41 }).await
//! }
//!
//! # #[tokio::main] async fn main() -> Result<()> {
//! let locks = Locks::in_memory(); // or `Locks::connect(url).await?`: one for the process
//! let stock = locks.mutex("stock:42");
//!
//! // Held while the work runs. Calls in it that take the same lock re-enter.
//! let left = stock.run(async { take(&stock).await }).await??;
//! assert_eq!(left, 41);
//!
//! // A guard, where the hold is not one piece of work.
//! let guard = stock.lock().within(Duration::from_secs(5)).await?;
//! tokio::select! {
//!     () = recount() => {}
//!     loss = guard.lost() => println!("stopped: {loss}"),
//! }
//! guard.release().await?; // reports; a drop releases in the background
//! locks.close().await
//! # }
//! # async fn recount() {}
//! ```
//!
//! # What it promises
//!
//! As long as the server keeps what it has acknowledged, and its clock does not jump: holds of different owners do not
//! overlap, from the grant to the release or to [`Guard::valid_until`]; a nested hold neither shortens nor frees the outer
//! one; a command that is sent twice or late counts once; nobody else's lock is freed, except by
//! [`force_release`](Mutex::force_release); a loss is told, at the deadline at the latest; a crashed process blocks the
//! others for one lease.
//!
//! It can't promise that a process which was stopped past its lease sends no late write, or that a server which fails over
//! keeps each lock. Only the resource can exclude these: make the guarded write conditional, by a version or a
//! [fencing token](Mutex::fenced). [`guide::promises`] has the whole list.
//!
//! With several independent masters ([`Builder::server`] called again) a lock is held by whoever holds it on a majority: the
//! end or the data loss of any minority changes nothing. The README has a table of which deployment serves which need.
//!
//! # Which call when
//!
//! | you want to | call |
//! | --- | --- |
//! | work under the lock, in layers, in branches | [`Mutex::run`] |
//! | the same with options, or only if the lock is to be had | [`Lock::run`], [`TryLock::run`] |
//! | hold across functions, or into another task | [`Mutex::lock`], then [`Guard`] |
//! | do it only if nobody else does | [`Mutex::try_lock`] |
//! | limit the wait | [`Lock::within`] (an error), [`TryLock::within`] (`None`) |
//! | a lease that is not renewed; a limit for holders that hang | [`Lock::fixed_lease`]; [`Lock::max_hold`] |
//! | stop work when the lock is lost | [`Mutex::run`], or `select!` with [`Guard::lost`] |
//! | be sure for longer before a long step | [`Guard::extend`] |
//! | have late writes refused | [`Mutex::fenced`], and [`Guard::token`] or [`Mutex::token`] along with each write |
//! | look | [`Mutex::is_held`], [`Mutex::hold_count`] (asks nobody), [`Mutex::is_locked`], [`Mutex::remaining_lease`] |
//! | a hold that outlives its call | [`Lock::owner`] with [`Owner::new`] |
//! | test without a server | [`Locks::in_memory`], [`Memory`] |
//! | end the process | [`Locks::close`] |
//!
//! # The types
//!
//! - [`Locks`]: the entry. [`Builder`] has every option with its default, [`Server`] says where Redis is, [`Memory`] is a
//!   store in its place.
//! - [`Mutex`]: a lock by its name. [`Lock`], [`TryLock`], [`Run`] and [`TryRun`] are its futures.
//! - [`Guard`]: a hold, until it goes.
//! - [`Owner`], [`scope()`], [`Scope`]: who re-enters. A lock is granted to an owner if everyone who holds it is that owner
//!   or one of its ancestors. Without more said the owner is the tokio task.
//! - [`Error`], [`ErrorKind`], [`Loss`]: what went wrong, and what to do.
//!
//! # Three things to know of tasks as owners
//!
//! - Branches of one task (`join!`, `select!`) that take bare guards by [`Mutex::lock`] look like one owner. Branches that
//!   are seen to ask at once queue, later ones may fail as [`Ambiguous`](ErrorKind::Ambiguous), and one that first asks when
//!   another already holds gets in. [`Mutex::run`] is always right, and so is a [`scope()`] for each branch.
//! - A server runs all requests of a keep-alive connection in one task. Give each request an owner of its own,
//!   `Owner::new().scope(next.run(request))`, and a hold that outlives its call its own by [`Lock::owner`].
//! - Executors other than tokio are not supported.
//!
//! # Guides
//!
//! [Owners and re-entry](guide::owners), [leases and loss](guide::leases),
//! [what a lock on Redis can promise](guide::promises), [fencing tokens](guide::fencing),
//! [testing your code](guide::testing) and [migrating](guide::migrating) from Redisson, redsync, rslock or tokio's own mutex.
//! The README has what a drop leaves and the rights of a least-privilege user.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `tls-rustls` | `rediss://` servers, over rustls with the ring provider and the system's certificates |
//! | `tls-native-tls` | `rediss://` servers, over the system's own TLS library; over rustls where both are on |
//! | `sentinel` | `Builder::sentinel`: a master that sentinels watch |
//! | `cluster` | `Builder::cluster`: a Redis Cluster as a master |
//! | `with-redis-1` | a [`Server`] made of a `Client` or a `ConnectionInfo` of the `redis` crate, version 1 |
//!
//! None is on by default, and each only adds. [`Server`] says what TLS does.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod base;
mod client;
mod config;
mod error;
mod memory;
mod owner;
mod quorum;
mod session;
mod table;
mod wire;

pub use client::Guard;
pub use client::Locks;
pub use client::Mutex;
pub use client::{Lock, TryLock};
pub use client::{Run, TryRun};
pub use config::Builder;
pub use config::Server;
pub use error::{Error, ErrorKind, Loss, Result};
pub use memory::Memory;
pub use owner::Owner;
pub use owner::{Scope, scope};

/// The guides: what is too long for one item.
///
/// - [`owners`](guide::owners): who re-enters, branches, spawned tasks, guards that move, servers.
/// - [`leases`](guide::leases): how long a hold lasts, how a loss is told, and what to do then.
/// - [`promises`](guide::promises): what a lock on Redis can promise, what it can't, and what closes the gap.
/// - [`fencing`](guide::fencing): when a fencing token is needed, and how it is checked where the work lands.
/// - [`testing`](guide::testing): tests without a server, with time that does not pass, and trouble on demand.
/// - [`migrating`](guide::migrating): from Redisson, redsync, rslock and tokio's own mutex, call by call.
pub mod guide {
    // The links between the guides lead to files, for those who read them there. What is defined first counts, so here
    // they lead to modules.

    /// [leases and loss]: crate::guide::leases
    #[doc = include_str!("../docs/owners.md")]
    pub mod owners {}

    /// [owners and re-entry]: crate::guide::owners
    /// [what a lock on Redis can promise]: crate::guide::promises
    #[doc = include_str!("../docs/leases.md")]
    pub mod leases {}

    /// [leases and loss]: crate::guide::leases
    /// [what a lock on Redis can promise]: crate::guide::promises
    #[doc = include_str!("../docs/fencing.md")]
    pub mod fencing {}

    /// [leases and loss]: crate::guide::leases
    /// [fencing tokens]: crate::guide::fencing
    #[doc = include_str!("../docs/promises.md")]
    pub mod promises {}

    /// [leases and loss]: crate::guide::leases
    /// [what a lock on Redis can promise]: crate::guide::promises
    /// [fencing tokens]: crate::guide::fencing
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    /// [owner]: crate::guide::owners
    /// [leases and loss]: crate::guide::leases
    /// [testing your code]: crate::guide::testing
    /// [fencing tokens]: crate::guide::fencing
    #[doc = include_str!("../docs/migrating.md")]
    pub mod migrating {}
}

/// The samples of the README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
