//! Where to connect to: always to the same server, or to the current master.

use std::future::pending;
use std::sync::{Arc, Mutex};

use crate::backend::connection::{ConnectionSlot, Endpoint, State, Target, redis_error};
use crate::backend::sentinel::Sentinels;
use crate::base::{Failure, lock};
use crate::error::{ErrorKind, Result};

/// How a `Reconnector` finds out where to connect to.
pub(super) enum Source {
    Fixed(Box<Endpoint>),
    Sentinel(Sentinels),
    /// The server of the connection for commands.
    Paired(Paired),
}

/// A connection that is paired with the one for commands: made once that one is live, and ended with it.
pub(super) struct Paired {
    main: Arc<ConnectionSlot>,
    target: Target,
    /// The number of the connection for commands that this one is paired with.
    with: Mutex<Option<u64>>,
}

const NO_MASTER: &str =
    "the sentinels have not reported where the master is; check that they run, and their addresses";

impl Source {
    pub(super) fn paired(main: Arc<ConnectionSlot>, target: Target) -> Source {
        Source::Paired(Paired { main, target, with: Mutex::default() })
    }

    /// Returns the endpoint, if it is known without a query.
    pub(super) fn known(&self) -> Option<Endpoint> {
        match self {
            Source::Fixed(endpoint) => Some(Endpoint::clone(endpoint)),
            Source::Sentinel(_) => None,
            Source::Paired(paired) => paired.target.borrow().clone(),
        }
    }

    /// Returns where to connect to now, and the number of the connection for commands to pair with, if any. `first` means before the first
    /// connection: an apparent mistake in an option is reported as one. `awaited`: `connect` waits for this attempt, so the attempt waits
    /// for no other connection. With sentinels, calls `moved` if that shows that the last result is outdated, which
    /// [`watch`](Source::watch) then doesn't.
    pub(super) async fn endpoint(
        &self,
        first: bool,
        awaited: bool,
        moved: impl Fn(),
    ) -> Result<(Endpoint, Option<u64>)> {
        match self {
            Source::Fixed(endpoint) => Ok((Endpoint::clone(endpoint), None)),
            Source::Sentinel(sentinels) => Ok((sentinels.endpoint(first, moved).await?, None)),
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
            *lock(&self.with) = Some(with);
            let endpoint = self.target.borrow().clone();
            // The slot is checked again, since this may have happened: 1. The number is read. 2. That connection is replaced: `watch`
            // finds no number. 3. The number is stored. So in every order one of the two sees the change.
            if self.main.id() == Some(with) {
                let endpoint = endpoint.map(|endpoint| (endpoint, Some(with)));
                return endpoint.ok_or_else(|| redis_error::not_sent(NO_MASTER, &self.main.address).error);
            }
        }
    }

    async fn watch(&self, moved: impl Fn()) {
        let mut state = self.main.state.subscribe();
        while state.changed().await.is_ok() {
            let now = self.main.id();
            let is_outdated = lock(&self.with).take_if(|with| now != Some(*with)).is_some();
            if is_outdated {
                moved();
            }
        }
        pending().await
    }
}
