//! Where connections go to: always to the same server, or to the one that is the master now.

use std::future::pending;
use std::sync::{Arc, Mutex};

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::{Answer, verdict};
use crate::error::Result;
use crate::sync::lock;

/// A server that can be connected to.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) client: redis::Client,
    pub(super) address: Arc<str>,
    /// Asked of each new command connection before anything is sent over it.
    pub(super) gate: Option<Gate>,
}

/// Whether the server at the other end is the one that is meant.
pub(super) type Gate = Arc<dyn Fn(MultiplexedConnection) -> Answer<Result<()>> + Send + Sync>;

/// Where the command connection went last. Whoever follows it never goes to a server that was not seen to be the master.
pub(super) type Target = watch::Receiver<Option<Site>>;

/// How a keeper learns where to connect to.
pub(super) enum Source {
    Fixed(Box<Site>),
    #[cfg(feature = "sentinel")]
    Sentinel(Sentinels),
    /// Another keeper's connection, the address that was told of last, and what is told while there is none.
    Beside(Target, Mutex<Option<Arc<str>>>, Arc<str>),
}

const NO_MASTER: &str =
    "the sentinels have not told where the master is; check that they run, and their addresses";

impl Source {
    pub(super) fn beside(target: Target, name: Arc<str>) -> Source {
        Source::Beside(target, Mutex::default(), name)
    }

    /// What it can be said to be before anybody was asked.
    pub(super) fn known(&self) -> Option<Site> {
        match self {
            Source::Fixed(site) => Some(Site::clone(site)),
            #[cfg(feature = "sentinel")]
            Source::Sentinel(_) => None,
            Source::Beside(target, ..) => target.borrow().clone(),
        }
    }

    /// Whether a server may turn out not to be the master.
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Source::Fixed(_))
    }

    /// Where to connect to now. `first`: nobody was connected yet, so what looks like a mistake is told as one.
    pub(super) async fn site(&self, first: bool) -> Result<Site> {
        #[cfg(not(feature = "sentinel"))]
        let _ = first;
        match self {
            Source::Fixed(site) => Ok(Site::clone(site)),
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.site(first).await,
            Source::Beside(target, told, name) => {
                let site = target.borrow().clone();
                *lock(told) = site.as_ref().map(|site| site.address.clone());
                site.ok_or_else(|| verdict::not_sent(NO_MASTER, name).error)
            }
        }
    }

    /// Tells whenever what `site` said last is true no more. Never ends.
    pub(super) async fn watch(&self, moved: impl Fn()) {
        match self {
            Source::Fixed(_) => pending().await,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.watch(moved).await,
            Source::Beside(target, told, _) => {
                let mut target = target.clone();
                while target.changed().await.is_ok() {
                    let now = target.borrow().as_ref().map(|site| site.address.clone());
                    if *lock(told) != now {
                        moved();
                    }
                }
                pending().await
            }
        }
    }
}

/// Waits until a target is another one. For ever, where it never will be.
pub(super) async fn moved(target: &mut Target) {
    if target.changed().await.is_err() {
        pending().await
    }
}
