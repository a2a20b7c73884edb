//! Where to connect to: always to the same server, or to the current master.

use std::future::pending;
use std::sync::Arc;

use crate::backend::connection::{ConnectionSlot, Endpoint, State, Target, redis_error};
use crate::backend::sentinel::Sentinels;
use crate::base::Failure;
use crate::error::{ErrorKind, Result};

/// How a `Reconnector` finds out where to connect to.
pub(super) enum Source {
    Fixed(Box<Endpoint>),
    Sentinel(Sentinels),
    Paired(Paired),
}

/// The server of the connection for commands, for a connection that is paired with that one: it is made once that one is live, and ends
/// with it.
pub(super) struct Paired {
    main: Arc<ConnectionSlot>,
    target: Target,
}

const NO_MASTER: &str =
    "the sentinels have not reported where the master is; check that they run, and their addresses";

impl Source {
    pub(super) fn paired(main: Arc<ConnectionSlot>, target: Target) -> Source {
        Source::Paired(Paired { main, target })
    }

    /// Returns the endpoint, if it is known without a query.
    pub(super) fn known(&self) -> Option<Endpoint> {
        match self {
            Source::Fixed(endpoint) => Some(Endpoint::clone(endpoint)),
            Source::Sentinel(_) => None,
            Source::Paired(paired) => paired.target.borrow().clone(),
        }
    }

    /// Returns whether another server may become the master.
    pub(super) fn can_change(&self) -> bool {
        !matches!(self, Source::Fixed(_))
    }

    /// Returns where to connect to now. `first` means before the first connection: an apparent mistake in an option is reported as
    /// one. `awaited`: `connect` waits for this attempt, so the attempt waits for no other connection. Also returns the number of the
    /// connection for commands that the new one is paired with, if it is paired.
    pub(super) async fn endpoint(&self, first: bool, awaited: bool) -> Result<(Endpoint, Option<u64>)> {
        match self {
            Source::Fixed(endpoint) => Ok((Endpoint::clone(endpoint), None)),
            Source::Sentinel(sentinels) => Ok((sentinels.endpoint(first).await?, None)),
            Source::Paired(paired) => paired.endpoint(awaited).await,
        }
    }

    /// Calls `moved` whenever the last result of `endpoint` is outdated. Never ends.
    pub(super) async fn watch(&self, moved: impl Fn()) {
        match self {
            Source::Fixed(_) => pending().await,
            Source::Sentinel(sentinels) => sentinels.watch(moved).await,
            Source::Paired(paired) => paired.watch(moved).await,
        }
    }
}

impl Paired {
    async fn endpoint(&self, awaited: bool) -> Result<(Endpoint, Option<u64>)> {
        let mut state = self.main.state.subscribe();
        loop {
            if !awaited {
                let _ = state.wait_for(|state| !matches!(state, State::Down { .. })).await;
            }
            let with = match self.main.link_now() {
                Ok(link) => link.id,
                Err(Failure { error, .. }) if awaited || error.kind() == ErrorKind::Closed => {
                    return Err(error);
                }
                Err(_) => continue,
            };
            let endpoint = self.target.borrow().clone();
            // 1. The number is read. 2. That connection is replaced, by one to another server. 3. The endpoint is read: it is not that of
            // this number.
            if self.main.id() == Some(with) {
                let unknown = || redis_error::not_sent(NO_MASTER, &self.main.address).error;
                return Ok((endpoint.ok_or_else(unknown)?, Some(with)));
            }
        }
    }

    async fn watch(&self, moved: impl Fn()) {
        let mut state = self.main.state.subscribe();
        let mut with = self.main.id();
        while state.changed().await.is_ok() {
            let before = std::mem::replace(&mut with, self.main.id());
            if before.is_some() && before != with {
                moved();
            }
        }
        pending().await
    }
}
