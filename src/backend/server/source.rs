//! Where connections go to: always to the same server, or to the one that is the master now.

use std::future::pending;
use std::sync::{Arc, Mutex};

use crate::backend::connection::{Endpoint, Line, State, Target, redis_error};
use crate::backend::sentinel::Sentinels;
use crate::base::{Failure, lock};
use crate::error::{ErrorKind, Result};

/// How a keeper learns where to connect to.
pub(crate) enum Source {
    Fixed(Box<Endpoint>),
    Sentinel(Sentinels),
    /// Where the connection for commands goes.
    Beside(Beside),
}

/// A connection beside the one for commands: it is made once that one stands, and ends with it.
pub(crate) struct Beside {
    main: Arc<Line>,
    target: Target,
    /// The number of the connection for commands that this one goes with.
    with: Mutex<Option<u64>>,
}

const NO_MASTER: &str =
    "the sentinels have not told where the master is; check that they run, and their addresses";

impl Source {
    pub(crate) fn beside(main: Arc<Line>, target: Target) -> Source {
        Source::Beside(Beside { main, target, with: Mutex::default() })
    }

    /// The number of the connection that the last one goes with.
    pub(crate) fn with(&self) -> Option<u64> {
        match self {
            Source::Beside(beside) => *lock(&beside.with),
            _ => None,
        }
    }

    /// What it can be said to be before anybody was asked.
    pub(crate) fn known(&self) -> Option<Endpoint> {
        match self {
            Source::Fixed(site) => Some(Endpoint::clone(site)),
            Source::Sentinel(_) => None,
            Source::Beside(beside) => beside.target.borrow().clone(),
        }
    }

    /// Whether a server may turn out not to be the master.
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Source::Fixed(_))
    }

    /// Where to connect to now. `first`: nobody was connected yet, so what looks like a mistake is told as one.
    pub(crate) async fn site(&self, first: bool) -> Result<Endpoint> {
        match self {
            Source::Fixed(site) => Ok(Endpoint::clone(site)),
            Source::Sentinel(sentinels) => sentinels.site(first).await,
            Source::Beside(beside) => beside.site(first).await,
        }
    }

    /// Tells whenever what `site` said last is true no more. Never ends.
    pub(crate) async fn watch(&self, moved: impl Fn()) {
        match self {
            Source::Fixed(_) => pending().await,
            Source::Sentinel(sentinels) => sentinels.watch(moved).await,
            Source::Beside(beside) => beside.watch(moved).await,
        }
    }
}

impl Beside {
    async fn site(&self, first: bool) -> Result<Endpoint> {
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
                return site.ok_or_else(|| redis_error::not_sent(NO_MASTER, &self.main.address).error);
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
