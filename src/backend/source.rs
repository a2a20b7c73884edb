//! Where connections go to: always to the same server, or to the one that is the master now.

use std::future::pending;
use std::sync::{Arc, Mutex};

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use super::connection::{Line, State};
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::{Answer, verdict};
use crate::error::{ErrorKind, Result};
use crate::failure::Failure;
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
    /// Where the connection for commands goes.
    Beside(Beside),
}

/// A connection beside the one for commands: it is made once that one stands, and ends with it.
pub(super) struct Beside {
    main: Arc<Line>,
    target: Target,
    /// The number of the connection for commands that this one goes with.
    with: Mutex<Option<u64>>,
}

const NO_MASTER: &str =
    "the sentinels have not told where the master is; check that they run, and their addresses";

impl Source {
    pub(super) fn beside(main: Arc<Line>, target: Target) -> Source {
        Source::Beside(Beside { main, target, with: Mutex::default() })
    }

    /// The number of the connection that the last one goes with.
    pub(super) fn with(&self) -> Option<u64> {
        match self {
            Source::Beside(beside) => *lock(&beside.with),
            _ => None,
        }
    }

    /// What it can be said to be before anybody was asked.
    pub(super) fn known(&self) -> Option<Site> {
        match self {
            Source::Fixed(site) => Some(Site::clone(site)),
            #[cfg(feature = "sentinel")]
            Source::Sentinel(_) => None,
            Source::Beside(beside) => beside.target.borrow().clone(),
        }
    }

    /// Whether a server may turn out not to be the master.
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Source::Fixed(_))
    }

    /// Where to connect to now. `first`: nobody was connected yet, so what looks like a mistake is told as one.
    pub(super) async fn site(&self, first: bool) -> Result<Site> {
        match self {
            Source::Fixed(site) => Ok(Site::clone(site)),
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.site(first).await,
            Source::Beside(beside) => beside.site(first).await,
        }
    }

    /// Tells whenever what `site` said last is true no more. Never ends.
    pub(super) async fn watch(&self, moved: impl Fn()) {
        match self {
            Source::Fixed(_) => pending().await,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.watch(moved).await,
            Source::Beside(beside) => beside.watch(moved).await,
        }
    }
}

impl Beside {
    async fn site(&self, first: bool) -> Result<Site> {
        let mut state = self.main.state.subscribe();
        loop {
            if !first {
                let _ = state.wait_for(|state| !matches!(state, State::Down { .. })).await;
            }
            let with = match self.main.link_now() {
                Ok(link) => link.id,
                Err(Failure { error, .. }) if first || error.kind() == ErrorKind::Closed => {
                    return Err(error);
                }
                Err(_) => continue,
            };
            *lock(&self.with) = Some(with);
            let site = self.target.borrow().clone();
            // 1. The number is read. 2. That connection is replaced: `watch` finds nothing that goes with it. 3. The number is
            // noted. Looked at again behind that, one of the two sees it in every order.
            if self.main.id() == Some(with) {
                return site.ok_or_else(|| verdict::not_sent(NO_MASTER, &self.main.address).error);
            }
        }
    }

    async fn watch(&self, moved: impl Fn()) {
        let mut state = self.main.state.subscribe();
        while state.changed().await.is_ok() {
            let now = self.main.id();
            let parted = lock(&self.with).take_if(|with| now != Some(*with)).is_some();
            if parted {
                moved();
            }
        }
        pending().await
    }
}

/// Waits until a target is another one. For ever, where it never will be.
pub(super) async fn moved(target: &mut Target) {
    if target.changed().await.is_err() {
        pending().await
    }
}
