//! A reentrant mutex on Redis for async Rust on tokio, shared by all processes that use the same server.
//!
//! ```
//! # #[tokio::main] async fn main() -> nestlock::Result<()> {
//! # let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
//! let locks = nestlock::Locks::connect(url).await?; // one for the process
//! let stock = locks.mutex("crate:stock:42");
//!
//! // Held while the work runs. Calls in it that take the same lock re-enter.
//! let left = stock.run(async { 41 }).await?;
//!
//! // A guard, if nobody else has the lock.
//! if let Some(guard) = stock.try_lock().await? {
//!     guard.release().await?; // reports; a drop releases in the background
//! }
//! # assert_eq!(left, 41);
//! locks.close().await
//! # }
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
//! # What it can't promise
//!
//! Two processes may believe that they hold the lock after a failover or restart of the server that lost it, when a process
//! was stopped past its lease and goes on writing before it looks, when the server's wall clock steps forward, and when a
//! machine was cloned or a process forked. Only the resource can exclude these: make the guarded write conditional, by a
//! version or compare-and-set. Looking at [`Guard::is_lost`] and [`Guard::valid_until`] right before the write, and
//! stopping at [`Guard::lost`], makes the window small and does not close it.
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
//! | look | [`Mutex::is_held`], [`Mutex::hold_count`] (asks nobody), [`Mutex::is_locked`], [`Mutex::remaining_lease`] |
//! | end the process | [`Locks::close`] |
//!
//! # The types
//!
//! - [`Locks`]: the entry. [`Builder`] has every option with its default, [`Server`] says where Redis is.
//! - [`Mutex`]: a lock by its name. [`Lock`], [`TryLock`], [`Run`] and [`TryRun`] are its futures.
//! - [`Guard`]: a hold, until it goes.
//! - [`Owner`], [`scope()`], [`Scope`]: who re-enters. A lock is granted to an owner if everyone who holds it is that owner
//!   or one of its ancestors. Without more said the owner is the tokio task.
//! - [`Error`], [`ErrorKind`], [`Loss`]: what went wrong, and what to do.
//!
//! # Two things to know of tasks as owners
//!
//! Branches of one task (`join!`, `select!`) that take bare guards by [`Mutex::lock`] look like one owner. Branches that are
//! seen to ask at once queue, later ones may fail as [`Ambiguous`](ErrorKind::Ambiguous), and one that first asks when
//! another already holds gets in. [`Mutex::run`] is always right, and so is a [`scope()`] for each branch.
//!
//! A server runs all requests of a keep-alive connection in one task. Give each request an owner of its own,
//! `Owner::new().scope(next.run(request))`, and a hold that outlives its call its own by [`Lock::owner`].
//!
//! # Features
//!
//! `tls-rustls` and `tls-native-tls` for `rediss://` servers; `with-redis-1` to make a [`Server`] of the types of the `redis`
//! crate. The README has all options, what a drop leaves, the rights of a least-privilege user, and how to share locks with
//! Redisson.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod answer;
mod backend;
mod clock;
mod config;
mod deadline;
mod error;
mod events;
mod fate;
mod guard;
mod hearing;
mod hold;
mod locks;
mod memory;
mod mutex;
mod names;
mod outage;
mod owner;
mod queue;
mod quorum;
mod registry;
mod request;
mod room;
mod run;
mod scope;
mod script;
mod server;
mod session;
mod step;
mod store;
mod sync;
mod telemetry;
mod turn;
mod upkeep;
mod wake;
mod watchdog;

pub use config::Builder;
pub use error::{Error, ErrorKind, Loss, Result};
pub use guard::Guard;
pub use locks::Locks;
pub use memory::Memory;
pub use mutex::Mutex;
pub use owner::Owner;
pub use request::{Lock, TryLock};
pub use run::{Run, TryRun};
pub use scope::{Scope, scope};
pub use server::Server;

/// The samples of the README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
