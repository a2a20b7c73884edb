//! A reentrant mutex on Redis for async Rust on tokio. All processes that use the same Redis share it.
//!
//! Code that holds a lock can call code that takes the same lock. A lock has a lease, which is renewed while the lock is held,
//! so a crashed process blocks the others for at most one lease. Keys and channels are those of Redisson's `RLock`, so Java and
//! Rust services can share locks. A lock is kept by one server, by a master that sentinels monitor, by a Cluster, or by a
//! majority of several independent masters (Redlock). The same lock runs [in memory](Locks::in_memory), for tests without a
//! server.
//!
//! ```
//! use std::time::Duration;
//! use nestlock::{Locks, Mutex, Result};
//!
//! /// The lower layer locks what it changes, whoever calls it.
//! async fn take(stock: &Mutex) -> Result<u32> {
//!     stock.run(async |_hold| 41).await
//! }
//!
//! async fn work(locks: &Locks) -> Result<()> {
//!     let stock = locks.mutex("stock:42");
//!
//!     // Held while the work runs. Nested calls that take the same lock re-enter.
//!     let left = stock.run(async |_hold| take(&stock).await).await??;
//!     assert_eq!(left, 41);
//!
//!     // A guard, for a hold that is not a single piece of work.
//!     let guard = stock.lock().within(Duration::from_secs(5)).await?;
//!     tokio::select! {
//!         () = recount() => {}
//!         loss = guard.lost() => println!("stopped: {loss}"),
//!     }
//!     guard.release().await // reports; a drop releases without waiting
//! }
//!
//! # #[tokio::main] async fn main() -> Result<()> {
//! let locks = Locks::in_memory(); // in a service: `Locks::connect(url).await?`, once per process
//! let done = work(&locks).await;
//! let closed = locks.close().await; // completes queued releases, also after an error
//! done?;
//! closed
//! # }
//! # async fn recount() {}
//! ```
//!
//! # What it promises
//!
//! Holds of different owners do not overlap, and a loss is reported, as long as the server keeps what it has acknowledged and its
//! clock does not jump. No lock on Redis can prevent a late write by a process that was stopped past its lease. Only the resource
//! can: make the guarded write conditional, on a version or a [fencing token](Fenced). [`guide::promises`] has the full list.
//!
//! # The types
//!
//! - [`Locks`]: the entry point, one per process. [`Builder`] has the options, one of which takes a [`BareReentry`].
//! - [`Server`]: the address of a server. [`Tls`] has its TLS settings, and [`Credentials`] are what a provider of changing credentials
//!   returns. [`Memory`] is a store that replaces a server, and [`testing::Faults`] makes it fail.
//! - [`Master`]: what keeps the locks: a server, a Sentinel deployment, a Cluster or a `Memory`. [`Locks::builder`] takes one, and
//!   [`Locks::quorum`] takes several.
//! - [`Mutex`]: a lock with a name. [`run`](Mutex::run) runs work while it is held; [`lock`](Mutex::lock) and
//!   [`try_lock`](Mutex::try_lock) return a guard. The [`futures`] that they return take options, and document errors and cancel
//!   safety.
//! - [`Guard`]: a hold, which is released on drop. [`Hold`]: what the work of a `run` knows of its hold.
//! - [`Claim`]: a hold on its way from one process to another.
//! - [`Mutexes`], [`Guards`]: several locks, taken together or not at all.
//! - [`Fenced`]: the kind of a lock with a fencing token for each hold, as in `Mutex<Fenced>`. [`Plain`] is that of all others, and
//!   [`Kind`] stands for both in generic code.
//! - [`Owner`], [`scope()`]: who re-enters. A lock is granted to an owner if it is free, or if everyone who holds it is that owner or
//!   one of its ancestors. By default the owner is the current tokio task. Two things need [care](guide::owners): guards from `lock` or
//!   `try_lock` in branches of one task (*bare* guards, in these pages), and servers that run several requests in one task. `OwnerLayer`,
//!   of the feature `tower`, makes each request of a server an owner.
//! - [`Error`], [`ErrorKind`], [`Loss`]: what went wrong.
//! - [`Holder`], [`WaitingProcess`], [`LockStatus`]: who holds a lock, who waits for it, and what this process holds.
//!
//! # Cargo features
//!
//! None is on by default. Sentinel and Cluster need none. [`guide::options`](guide::options#cargo-features) has the details.
//!
//! - `metrics`: counters, gauges and histograms, by the `metrics` crate.
//! - `tls-rustls`: TLS over rustls, with the ring provider and the system's certificates.
//! - `tls-native-tls`: TLS over the system's own library.
//! - `tower`: `OwnerLayer`.
//! - `redis-1`: a `Client` or a `ConnectionInfo` of the `redis` crate, version 1, as a server.
//!
//! # Requirements
//!
//! Rust 1.88, tokio 1.51, and Redis 6.2 or later or Valkey. Before version 1.0 of this crate, a minor version may break code. The
//! licence is MIT or Apache 2.0.
//!
//! # How do I …
//!
//! - [find the call that I need?](guide::calls)
//! - [hold several locks at once?](guide::several)
//! - [re-enter from branches, spawned tasks, requests of a server?](guide::owners)
//! - [choose a lease, and react to a loss?](guide::leases)
//! - [see who gets a lock next, and why?](guide::waiting)
//! - [handle an error?](guide::errors)
//! - [cancel a request, and what does a dropped future leave?](guide::cancellation)
//! - [have late writes refused, by a fencing token?](guide::fencing)
//! - [run jobs, elect a leader, shut down?](guide::services)
//! - [test my code?](guide::testing)
//! - [change a timeout or a prefix, turn on TLS or another cargo feature?](guide::options)
//! - [use several masters, Sentinel, or a Cluster?](guide::deployments)
//! - [make a least-privilege user (ACL), find a lock's keys, monitor?](guide::operations)
//! - [run a shell command, or a cron job, under a lock?](guide::cli)
//! - [know what can go wrong?](guide::promises)
//! - [know what a failover may lose, and what the inside of a Cluster means?](guide::failover)
//! - [compare it with Redisson, redsync, rslock and tokio's mutex?](guide::comparison)
//! - [share locks with Java, or move from one of these?](guide::migrating)

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod base;
mod client;
mod config;
mod error;
mod holder;
mod memory;
mod owner;
mod quorum;
mod session;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../tests/sim/mod.rs"]
mod sim;
mod table;
mod wire;

pub use client::Claim;
pub use client::Guard;
pub use client::LockStatus;
pub use client::Locks;
pub use client::Mutex;
pub use client::{Fenced, Hold, Kind, Plain};
pub use client::{Guards, Mutexes};
pub use config::Credentials;
pub use config::Master;
pub use config::{BareReentry, Builder};
pub use config::{Server, Tls};
pub use error::{Error, ErrorKind, Loss, Result};
pub use holder::{Holder, WaitingProcess};
pub use memory::Memory;
pub use owner::Owner;
pub use owner::scope;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub use owner::{OwnerLayer, OwnerService};

/// The futures of requests, runs and scopes, and the trait of what a request resolves to.
///
/// They are public so that they can be named, for example in a struct. [`Request`](futures::Request) takes options until it is polled.
/// Each documents its errors and its cancel safety.
pub mod futures {
    pub use crate::client::{Answer, Request, Run};
    pub use crate::owner::Scope;
}

/// Tools for tests of code that takes locks.
///
/// See [`guide::testing`] for how to use them.
pub mod testing {
    pub use crate::backend::memory::Faults;
}

/// The guides, one question per page. The front page lists the questions.
#[cfg(any(doc, doctest))]
pub mod guide {
    // The pages link to each other as files, for readers of the repository. In Markdown the first definition of a link counts,
    // so the definitions here make them links to modules.

    /// [options]: crate::guide::options
    /// [owners and re-entry]: crate::guide::owners
    /// [several locks]: crate::guide::several
    /// [waiting]: crate::guide::waiting
    #[doc = include_str!("../docs/calls.md")]
    pub mod calls {}

    /// [options]: crate::guide::options
    /// [owners and re-entry]: crate::guide::owners
    #[doc = include_str!("../docs/several.md")]
    pub mod several {}

    /// [leases and loss]: crate::guide::leases
    /// [line]: crate::guide::waiting
    /// [waits for long]: crate::guide::operations#what-to-monitor
    #[doc = include_str!("../docs/owners.md")]
    pub mod owners {}

    /// [owners and re-entry]: crate::guide::owners
    /// [what a lock on Redis can promise]: crate::guide::promises
    /// [cancellation]: crate::guide::cancellation
    /// [fencing tokens]: crate::guide::fencing
    /// [how waiting works]: crate::guide::waiting
    /// [operations]: crate::guide::operations#rights-of-a-least-privilege-user
    /// [fleet]: crate::guide::operations#changes-to-a-running-fleet
    #[doc = include_str!("../docs/leases.md")]
    pub mod leases {}

    /// [leases and loss]: crate::guide::leases
    /// [hand-off]: crate::guide::leases#hand-off-inside-a-process
    /// [keys]: crate::guide::operations#keys-and-channels
    /// [rights]: crate::guide::operations#rights-of-a-least-privilege-user
    #[doc = include_str!("../docs/waiting.md")]
    pub mod waiting {}

    /// [leases and loss]: crate::guide::leases
    /// [the start]: crate::guide::services#the-start
    /// [owners and re-entry]: crate::guide::owners
    /// [operations]: crate::guide::operations
    /// [cancellation]: crate::guide::cancellation
    #[doc = include_str!("../docs/errors.md")]
    pub mod errors {}

    /// [leases and loss]: crate::guide::leases
    /// [shutdown]: crate::guide::services#shutdown
    #[doc = include_str!("../docs/cancellation.md")]
    pub mod cancellation {}

    /// [fencing tokens]: crate::guide::fencing
    /// [stand-in]: crate::guide::leases#work-without-an-await
    /// [the end of a program]: crate::guide::cancellation#the-end-of-a-program
    #[doc = include_str!("../docs/services.md")]
    pub mod services {}

    /// [deployments]: crate::guide::deployments
    /// [the start of a service]: crate::guide::services#the-start
    /// [who holds a lock]: crate::guide::operations#who-holds-a-lock
    /// [what to monitor]: crate::guide::operations#what-to-monitor
    /// [credentials that change]: crate::guide::operations#credentials-that-change
    /// [address translation]: crate::guide::deployments#behind-address-translation
    /// [metrics]: crate::guide::operations#metrics
    /// [several locks]: crate::guide::several
    /// [jobs]: crate::guide::services#scheduled-jobs
    /// [leader]: crate::guide::services#a-leader
    /// [leases and loss]: crate::guide::leases
    /// [owners and re-entry]: crate::guide::owners
    /// [fencing tokens]: crate::guide::fencing
    #[doc = include_str!("../docs/options.md")]
    pub mod options {}

    /// [operations]: crate::guide::operations#rights-of-a-least-privilege-user
    /// [leases and loss]: crate::guide::leases
    /// [what a lock on Redis can promise]: crate::guide::promises
    #[doc = include_str!("../docs/fencing.md")]
    pub mod fencing {}

    /// [leases and loss]: crate::guide::leases
    /// [fencing tokens]: crate::guide::fencing
    /// [what a lock on Redis can promise]: crate::guide::promises
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    /// [fencing tokens]: crate::guide::fencing
    /// [promises]: crate::guide::promises
    /// [testing]: crate::guide::testing#several-masters
    /// [operations]: crate::guide::operations#rights-of-a-least-privilege-user
    /// [fleet]: crate::guide::operations#changes-to-a-running-fleet
    /// [credentials]: crate::guide::operations#credentials-that-change
    /// [failover]: crate::guide::failover#what-a-failover-changes
    /// [cluster]: crate::guide::failover#what-a-cluster-changes
    /// [migrating]: crate::guide::migrating#on-a-cluster
    /// [line]: crate::guide::leases#first-come-first-served
    #[doc = include_str!("../docs/deployments.md")]
    pub mod deployments {}

    /// [leases and loss]: crate::guide::leases
    /// [shutdown]: crate::guide::services#shutdown
    /// [fencing tokens]: crate::guide::fencing
    /// [failover]: crate::guide::failover#what-a-failover-changes
    /// [cluster]: crate::guide::failover#what-a-cluster-changes
    /// [which]: crate::guide::failover#which-cluster-it-is
    /// [owners]: crate::guide::owners
    /// [hand-off]: crate::guide::leases#hand-off-inside-a-process
    /// [line]: crate::guide::leases#first-come-first-served
    /// [masters]: crate::guide::deployments#several-masters
    /// [mute]: crate::guide::waiting#processes-that-get-no-messages
    /// [connections]: crate::guide::services#connections
    /// [stand-in]: crate::guide::leases#work-without-an-await
    /// [the end of a program]: crate::guide::cancellation#the-end-of-a-program
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    /// [leases and loss]: crate::guide::leases
    /// [fencing tokens]: crate::guide::fencing
    /// [what a lock on Redis can promise]: crate::guide::promises
    /// [several]: crate::guide::several
    /// [options]: crate::guide::options
    /// [rights]: crate::guide::operations#rights-of-a-least-privilege-user
    /// [keys]: crate::guide::operations#keys-and-channels
    /// [line]: crate::guide::leases#first-come-first-served
    #[doc = include_str!("../docs/cli.md")]
    pub mod cli {}

    /// [leases and loss]: crate::guide::leases
    /// [fencing tokens]: crate::guide::fencing
    /// [blocks]: crate::guide::leases#work-without-an-await
    /// [the end of a program]: crate::guide::cancellation#the-end-of-a-program
    /// [failovers]: crate::guide::failover
    /// [replicas]: crate::guide::failover#several-masters
    #[doc = include_str!("../docs/promises.md")]
    pub mod promises {}

    /// [what a lock on Redis can promise]: crate::guide::promises
    #[doc = include_str!("../docs/failover.md")]
    pub mod failover {}

    /// [migrating]: crate::guide::migrating
    /// [promises]: crate::guide::promises
    /// [calls]: crate::guide::calls
    /// [several]: crate::guide::several
    /// [side by side]: crate::guide::migrating#side-by-side
    /// [waiting]: crate::guide::waiting
    /// [fencing tokens]: crate::guide::fencing
    /// [jobs]: crate::guide::services#scheduled-jobs
    #[doc = include_str!("../docs/comparison.md")]
    pub mod comparison {}

    /// [owner]: crate::guide::owners
    /// [leases and loss]: crate::guide::leases
    /// [testing your code]: crate::guide::testing
    /// [fencing tokens]: crate::guide::fencing
    /// [credentials that change]: crate::guide::operations#credentials-that-change
    /// [connections]: crate::guide::services#connections
    /// [TLS feature]: crate::guide::options#cargo-features
    /// [those of a lock]: crate::guide::operations#keys-and-channels
    /// [blocks]: crate::guide::leases#work-without-an-await
    /// [end]: crate::guide::cancellation#the-end-of-a-program
    /// [gets a child of its owner]: crate::guide::owners#spawned-tasks
    /// [scheduled jobs]: crate::guide::services#scheduled-jobs
    /// [layers of functions]: crate::guide::services#layers-that-lock
    /// [before the connection]: crate::guide::services#commit-before-the-release
    #[doc = include_str!("../docs/migrating.md")]
    pub mod migrating {}
}

/// The samples of the README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
