//! Ensures that no server has the votes of two masters.

use std::sync::{Arc, Mutex, Weak};

use crate::backend::connection::{ConnectionSlot, Link, State};
use crate::base::lock;
use crate::error::{Error, ErrorKind, Result};

/// One of several masters, with the slots of all of them. Different names, addresses and sentinels may lead to one server:
///
/// 1. Two of three masters are one server.
/// 2. It grants a lock twice, which is a majority.
/// 3. It loses its data or becomes unreachable, and so does the majority: another client is granted the lock, or nobody is.
///
/// So, of two masters that lead to the same server, only the first has a connection. The other has no vote until it leads to another server.
#[derive(Clone)]
pub(crate) struct OneVote {
    master: usize,
    slots: Arc<Mutex<Slots>>,
}

/// The slots of all masters, each with the number of its master. All nodes of a cluster have the same number.
type Slots = Vec<(usize, Weak<ConnectionSlot>)>;

impl OneVote {
    /// Returns a `OneVote` for each of this many masters. All of them share one list.
    pub(crate) fn each(masters: usize) -> impl Iterator<Item = OneVote> {
        let slots: Arc<Mutex<Slots>> = Arc::default();
        (0..masters).map(move |master| OneVote { master, slots: slots.clone() })
    }

    pub(super) fn add(&self, slot: &Arc<ConnectionSlot>) {
        let mut slots = lock(&self.slots);
        slots.retain(|(_, slot)| slot.strong_count() > 0);
        slots.push((self.master, Arc::downgrade(slot)));
    }

    /// Calls `install`, which makes `link` the connection of the slot at this address, unless another master is connected to its server.
    /// Only one call runs at a time: if two slots checked each other at once, neither might see the other's connection. A server whose
    /// `run_id` this user may not read passes the check.
    ///
    /// `first`: `connect` waits for this connection, or the slot is a node's and has never had one. A second vote is then reported as a
    /// wrong option, and not as an outage.
    pub(super) fn install(
        &self,
        link: &Link,
        address: &str,
        first: bool,
        install: impl FnOnce(),
    ) -> Result<()> {
        let slots = lock(&self.slots);
        let is_same = |slot: &ConnectionSlot| match &*slot.state.borrow() {
            State::Up(other) => other.run_id.is_some() && other.run_id == link.run_id,
            _ => false,
        };
        let others = slots.iter().filter(|(master, _)| *master != self.master);
        if let Some(other) = others.filter_map(|(_, slot)| slot.upgrade()).find(|slot| is_same(slot)) {
            let kind = if first { ErrorKind::Config } else { ErrorKind::Unavailable };
            let message = format!(
                "{address} and {} are one server, which would have two votes; give each server once",
                other.address
            );
            return Err(Error::new(kind, message));
        }
        install();
        Ok(())
    }
}
