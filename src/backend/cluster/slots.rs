//! The slots of keys, and the nodes that serve them.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::ConnectionAddr;

use crate::config::{AddressMap, Destination};
use crate::wire::keys::tag;

/// The number of slots of a cluster.
const COUNT: u16 = 16_384;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeAddress {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl NodeAddress {
    /// Returns the address of a seed, or `None` for a Unix socket.
    pub(super) fn seed(to: &Destination) -> Option<NodeAddress> {
        match to.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(NodeAddress { host: host.as_str().into(), port: *port })
            }
            _ => None,
        }
    }

    /// Parses the address of a redirection by the node at `asked`. A node that does not know its own name leaves the host out.
    pub(super) fn of(address: &str, asked: &NodeAddress) -> Option<NodeAddress> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = if host.is_empty() || host == "?" { asked.host.clone() } else { host.into() };
        Some(NodeAddress { host, port: port.parse().ok()? })
    }

    /// Returns the address to connect to, given one that a node has reported. The node is known only by this address from then on,
    /// since it is compared to those of seeds, which are addresses to connect to.
    pub(super) fn mapped(self, map: &AddressMap) -> NodeAddress {
        match map.get(&self.host, self.port) {
            Some((host, port)) => NodeAddress { host: host.into(), port },
            None => self,
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.host {
            host if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

/// Returns the slot of a key: the checksum of the key, or of its hash tag, the text between its first braces.
pub(super) fn slot(key: &str) -> u16 {
    crc16(tag(key).as_bytes()) % COUNT
}

/// Returns the CRC-16/XMODEM checksum.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shift)
    })
}

/// The node that serves each slot.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// For each slot an index into `node_addresses`, or [`NOBODY`].
    owners: Box<[u16]>,
    node_addresses: Vec<NodeAddress>,
}

const NOBODY: u16 = u16::MAX;

impl Default for Slots {
    fn default() -> Slots {
        Slots { owners: vec![NOBODY; usize::from(COUNT)].into(), node_addresses: Vec::new() }
    }
}

impl Slots {
    pub(super) fn owner(&self, slot: u16) -> Option<&NodeAddress> {
        self.node_addresses.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Assigns slots to a node. Returns whether that is a change. Ignores slots beyond the last one.
    pub(super) fn assign(&mut self, slots: RangeInclusive<u16>, node_address: &NodeAddress) -> bool {
        let known = self.node_addresses.iter().position(|known| known == node_address);
        let number = known.unwrap_or(self.node_addresses.len());
        let Some(number) = u16::try_from(number).ok().filter(|number| *number != NOBODY) else {
            return false;
        };
        let last = usize::from(*slots.end()).min(self.owners.len() - 1);
        let Some(owners) = self.owners.get_mut(usize::from(*slots.start())..=last) else { return false };
        if known.is_none() {
            self.node_addresses.push(node_address.clone());
        }
        let news = owners.iter().any(|owner| *owner != number);
        owners.fill(number);
        news
    }

    pub(super) fn all() -> impl Iterator<Item = u16> {
        0..COUNT
    }

    /// Returns the slots that another node, or none, serves here than there.
    pub(super) fn differing(&self, there: &Slots) -> impl Iterator<Item = u16> {
        Slots::all().filter(|slot| self.owner(*slot) != there.owner(*slot))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.iter().all(|owner| *owner == NOBODY)
    }

    /// Returns the nodes that serve a slot.
    pub(super) fn serving(&self) -> Vec<&NodeAddress> {
        let numbered = self.node_addresses.iter().zip(0..);
        numbered
            .filter(|(_, number)| self.owners.contains(number))
            .map(|(node_address, _)| node_address)
            .collect()
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Slots) -> bool {
        self.differing(other).next().is_none()
    }
}

#[cfg(test)]
mod tests;
