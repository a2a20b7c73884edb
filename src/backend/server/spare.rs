//! How the backup thread makes a second connection, of its own, to the server of a slot.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::backend::connection::{
    CHUNK, Connection, ConnectionSlot, DataWatch, Endpoint, Link, LinkStatus, Purpose, ask_all, redis_error,
};
use crate::backend::sentinel::Sentinels;
use crate::base::{after, join_all};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Call, Reply};

const OTHER_SERVER: &str = "its address leads to another server than the one that is connected to";

const OTHER_MASTER: &str = "the sentinels name another master than the one that is connected to";

/// What a second connection needs to know about the server that the slot is connected to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Spare {
    slot: Arc<ConnectionSlot>,
    /// The number of the slot's connection.
    id: u64,
    /// The server at its other end.
    run_id: Arc<str>,
    /// How to connect to that server.
    endpoint: Endpoint,
    /// The sentinels that have to name the server, if the slot follows them.
    sentinels: Option<Arc<Sentinels>>,
    /// `None` except on a Cluster.
    redirect: Option<Redirect>,
}

/// On a Cluster: how to connect to the node that another one redirects to.
pub(crate) type Redirect = Arc<dyn Fn(&str) -> Option<Endpoint> + Send + Sync>;

impl Spare {
    /// Returns `None` if there is no connection now, or it is unknown which server it leads to.
    pub(super) fn new(
        slot: &Arc<ConnectionSlot>,
        endpoint: Option<Endpoint>,
        sentinels: Option<Arc<Sentinels>>,
    ) -> Option<Spare> {
        let link = slot.link_now().ok()?;
        let (slot, id, run_id, endpoint) = (slot.clone(), link.id, link.run_id.clone()?, endpoint?);
        Some(Spare { slot, id, run_id, endpoint, sentinels, redirect: None })
    }

    pub(crate) fn with_redirect(self, redirect: Redirect) -> Spare {
        Spare { redirect: Some(redirect), ..self }
    }

    /// Returns whether both are about the same connection of the same slot, so that a link made for one also serves the other.
    pub(crate) fn is_same(&self, other: &Spare) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot) && self.id == other.id
    }

    /// Returns whether the slot is still connected to this server. Otherwise its answers do not count any more.
    pub(crate) fn is_current(&self) -> bool {
        self.slot.id() == Some(self.id)
    }

    /// Connects on the current runtime, with the credentials that their provider returned last. It is not asked for new ones: its own
    /// connections may be on the runtime that is blocked.
    pub(crate) async fn connect(&self) -> Result<Link> {
        self.check_master().await?;
        // On a Cluster a replica needs no check: it answers a renewal with `MOVED`, which `renew` follows.
        let purpose =
            Purpose { checks_role: self.redirect.is_none(), needs_run_id: true, ..Purpose::default() };
        let link = self.connect_to(&self.endpoint, purpose).await?;
        if link.run_id.as_ref() != Some(&self.run_id) {
            return Err(redis_error::not_sent(OTHER_SERVER, &self.endpoint.address).error);
        }
        Ok(link)
    }

    async fn connect_to(&self, endpoint: &Endpoint, purpose: Purpose) -> Result<Link> {
        let (to, address) = (endpoint.last_destination(), &endpoint.address);
        let connect = async {
            let connection = Connection::connect(&to, Box::new(drop)).await;
            // The slot has logged in with credentials of the same provider, so a refusal now does not mean that they are wrong.
            let connection = connection.map_err(|error| endpoint.unreachable(error, true))?;
            let status = Arc::new(LinkStatus::default());
            let run_id = purpose.check(&connection, &self.slot, &DataWatch::default(), address).await?;
            // On a Cluster: checks that the node belongs to it.
            if let Some(gate) = &endpoint.gate {
                gate(connection.clone()).await?;
            }
            let (id, paired_with, logged_in) = (self.id, None, None);
            Ok(Link { connection, id, status, paired_with, run_id, logged_in })
        };
        endpoint.within(self.slot.node_timeout, connect).await
    }

    /// Fails if the sentinels don't say that the server is the master: the task that follows them for the slot is on the runtime
    /// that is blocked.
    pub(crate) async fn check_master(&self) -> Result<()> {
        let Some(sentinels) = &self.sentinels else { return Ok(()) };
        if sentinels.endpoint(false, || ()).await?.address == self.endpoint.address {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, OTHER_MASTER).at(&self.endpoint.address))
    }

    /// Sends renewals. Returns which of the holds were renewed for certain.
    ///
    /// On a Cluster, the server may answer that another one serves the slot now. That one is asked too, if it is a master of the same
    /// cluster. Otherwise: 1. The runtime is blocked. 2. A replica takes the place of its master. 3. Nobody follows it, and the hold ends.
    pub(crate) async fn renew(&self, link: &Link, calls: &[Call], deadline: Instant) -> Vec<bool> {
        let answers = self.send(link, calls, deadline).await;
        let mut moved: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, answer) in answers.iter().enumerate() {
            let to = answer.as_ref().err().filter(|error| error.code() == Some("MOVED"));
            if let Some((to, _)) = to.and_then(RedisError::redirect_node) {
                moved.entry(to).or_default().push(at);
            }
        }
        let mut renewed: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        // The caller drops this future at `deadline`, and with it the results so far. So the other servers get half of the time that is
        // left. They are asked at the same time: one that does not answer would use up the time of the next one.
        let now = Instant::now();
        let until = after(now, deadline.saturating_duration_since(now) / 2);
        let followed = join_all(moved.into_iter().map(async |(to, part)| {
            let calls: Vec<_> = part.iter().map(|at| calls[*at].clone()).collect();
            let answers = timeout_at(until, self.follow(to, &calls, until)).await;
            (part, answers.ok().flatten().unwrap_or_default())
        }));
        for (part, answers) in followed.await {
            part.into_iter().zip(answers).for_each(|(at, answer)| renewed[at] = answer.is_ok());
        }
        renewed
    }

    /// Sends renewals to the node that another one redirects to. Returns `None` if it can't be reached.
    async fn follow(&self, to: &str, calls: &[Call], deadline: Instant) -> Option<Vec<RedisResult<()>>> {
        let endpoint = self.redirect.as_ref()?(to)?;
        let purpose = Purpose { checks_role: true, ..Purpose::default() };
        let link = self.connect_to(&endpoint, purpose).await.ok()?;
        Some(self.send(&link, calls, deadline).await)
    }

    /// Returns for each call that it has renewed a hold, or why not.
    async fn send(&self, link: &Link, calls: &[Call], deadline: Instant) -> Vec<RedisResult<()>> {
        let mut renewed = Vec::with_capacity(calls.len());
        // On a Cluster the keys of several locks are in several slots, so that no script may have them together.
        let renews_together = self.redirect.is_none();
        for calls in calls.chunks(CHUNK) {
            let mut answers: Vec<Option<RedisResult<Value>>> = calls.iter().map(|_| None).collect();
            let asked = ask_all(&link.connection, calls, &[], renews_together, &mut answers, deadline);
            asked.await;
            renewed.extend(calls.iter().zip(answers).map(|(call, answer)| {
                let answer = answer.unwrap_or_else(|| Err(not_renewed()))?.extract_error()?;
                match call.decode(answer)? {
                    Reply::Done | Reply::Longer(..) => Ok(()),
                    _ => Err(not_renewed()),
                }
            }));
        }
        renewed
    }
}

fn not_renewed() -> RedisError {
    (redis::ErrorKind::Client, "not renewed").into()
}

#[cfg(test)]
mod tests;
