//! A second connection to the server of a slot, which lives on another runtime: for the thread that stands in for a blocked one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::time::{Instant, timeout};

use crate::backend::connection::{
    CHUNK, Commands, ConnectionSlot, DataWatch, Endpoint, Link, LinkStatus, Purpose, ask_all, ask_together,
    dial, redis_error,
};
use crate::backend::sentinel::Sentinels;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, Reply};

const OTHER_SERVER: &str = "its address leads to another server than the one that is connected to";

const OTHER_MASTER: &str = "the sentinels name another master than the one that is connected to";

/// What a second connection needs to know about the server that the slot is connected to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Spare {
    slot: Arc<ConnectionSlot>,
    /// The number of the slot's connection, the server at the other end, and how to connect to it.
    id: u64,
    run_id: Arc<str>,
    endpoint: Endpoint,
    /// The sentinels that have to name the server, if the slot follows them.
    sentinels: Option<Arc<Sentinels>>,
    limit: Duration,
    /// Whether one script may have the keys of several locks.
    renews_together: bool,
}

impl Spare {
    /// Returns `None` if there is no connection now, or it is unknown which server it leads to.
    pub(super) fn new(
        slot: &Arc<ConnectionSlot>,
        endpoint: Option<Endpoint>,
        sentinels: Option<Arc<Sentinels>>,
        limit: Duration,
        renews_together: bool,
    ) -> Option<Spare> {
        let link = slot.link_now().ok()?;
        let (slot, id, run_id, endpoint) = (slot.clone(), link.id, link.run_id.clone()?, endpoint?);
        Some(Spare { slot, id, run_id, endpoint, sentinels, limit, renews_together })
    }

    /// Returns whether a connection that was made for the other one is good for this one.
    pub(crate) fn is_same(&self, other: &Spare) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot) && self.id == other.id
    }

    /// Returns whether the slot is still connected to this server. Otherwise its answers do not count any more.
    pub(crate) fn is_current(&self) -> bool {
        self.slot.id() == Some(self.id)
    }

    /// Connects on the current runtime, with the credentials that the slot has logged in with: the provider's own connections may be on
    /// the runtime that is blocked.
    pub(crate) async fn connect(&self) -> Result<Link> {
        self.check_master().await?;
        let to = self.endpoint.last_destination();
        let connect = async {
            let connection = Commands::connect(&to, Box::new(drop)).await;
            let connection = connection.map_err(|error| self.endpoint.unreachable(error, true))?;
            let (status, purpose) = (
                Arc::new(LinkStatus::default()),
                Purpose { may_be_replica: true, needs_run_id: true, ..Purpose::default() },
            );
            let address = &self.endpoint.address;
            let run_id = purpose.check(&connection, &self.slot, &DataWatch::default(), address).await?;
            if run_id.as_ref() != Some(&self.run_id) {
                return Err(redis_error::not_sent(OTHER_SERVER, address).error);
            }
            if let Some(gate) = &self.endpoint.gate {
                gate(connection.clone()).await?;
            }
            let (id, paired_with, logged_in) = (self.id, None, None);
            Ok(Link { connection, id, status, paired_with, run_id, logged_in })
        };
        match timeout(self.limit, connect).await {
            Ok(link) => link,
            Err(_) => {
                let why = dial::too_long(self.limit, &self.endpoint.to);
                Err(redis_error::not_sent(&why, &self.endpoint.address).error)
            }
        }
    }

    /// Fails if the sentinels don't say that the server is the master: the task that follows them for the slot is on the runtime
    /// that is blocked.
    pub(crate) async fn check_master(&self) -> Result<()> {
        let Some(sentinels) = &self.sentinels else { return Ok(()) };
        if sentinels.endpoint(false).await?.address == self.endpoint.address {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, OTHER_MASTER).at(&self.endpoint.address))
    }

    /// Sends renewals. Returns which of the holds were renewed for certain.
    pub(crate) async fn renew(&self, link: &Link, calls: &[Call], deadline: Instant) -> Vec<bool> {
        let mut renewed = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CHUNK) {
            let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
            match self.renews_together {
                true => ask_together(link, calls, &mut answers, deadline).await,
                false => ask_all(link, calls, |_| false, &mut answers, deadline).await,
            }
            let is_renewed = |(call, answer): (&Call, Option<RedisResult<Value>>)| -> Option<()> {
                let reply = answer?.and_then(Value::extract_error).and_then(|value| call.decode(value));
                matches!(reply, Ok(Reply::Done | Reply::Longer(..))).then_some(())
            };
            renewed.extend(calls.iter().zip(answers).map(is_renewed).map(|renewed| renewed.is_some()));
        }
        renewed
    }
}

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spare").field(&self.endpoint.address).finish()
    }
}
