//! Which node serves a key. No I/O, and no clock.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

/// So many slots the keys of a cluster are spread over.
const COUNT: u16 = 16_384;

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeAddress {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl NodeAddress {
    /// Of a node that is known from the start. A socket is no place.
    pub(super) fn seed(info: &ConnectionInfo) -> Option<NodeAddress> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(NodeAddress { host: host.as_str().into(), port: *port })
            }
            _ => None,
        }
    }

    /// Of a redirection, told by the node at `asked`: one that does not know its own name leaves the host out.
    pub(super) fn of(address: &str, asked: &NodeAddress) -> Option<NodeAddress> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = if host.is_empty() || host == "?" { asked.host.clone() } else { host.into() };
        Some(NodeAddress { host, port: port.parse().ok()? })
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

/// The slot of a key: a checksum of it or, where it has one, of what stands between its first braces.
pub(super) fn slot(key: &str) -> u16 {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tagged.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % COUNT
}

/// CRC-16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shift)
    })
}

/// Who serves which slot, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// Of each slot the number of its place, or [`NOBODY`].
    owners: Box<[u16]>,
    places: Vec<NodeAddress>,
}

const NOBODY: u16 = u16::MAX;

impl Slots {
    pub(super) fn new() -> Slots {
        Slots { owners: vec![NOBODY; usize::from(COUNT)].into(), places: Vec::new() }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&NodeAddress> {
        self.places.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Whether that is news. Slots that no cluster has are left out.
    pub(super) fn assign(&mut self, slots: RangeInclusive<u16>, place: &NodeAddress) -> bool {
        let known = self.places.iter().position(|known| known == place).unwrap_or(self.places.len());
        let Some(number) = u16::try_from(known).ok().filter(|number| *number != NOBODY) else { return false };
        let last = usize::from(*slots.end()).min(self.owners.len() - 1);
        let Some(owners) = self.owners.get_mut(usize::from(*slots.start())..=last) else { return false };
        if known == self.places.len() {
            self.places.push(place.clone());
        }
        let news = owners.iter().any(|owner| *owner != number);
        owners.fill(number);
        news
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.iter().all(|owner| *owner == NOBODY)
    }

    /// Those that serve a slot.
    pub(super) fn serving(&self) -> Vec<&NodeAddress> {
        let mut serves = vec![false; self.places.len()];
        for owner in &self.owners {
            if let Some(serves) = serves.get_mut(usize::from(*owner)) {
                *serves = true;
            }
        }
        self.places.iter().zip(serves).filter_map(|(place, serves)| serves.then_some(place)).collect()
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Slots) -> bool {
        (0..COUNT).all(|slot| self.owner(slot) == other.owner(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> NodeAddress {
        NodeAddress { host: "host".into(), port }
    }

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As `CLUSTER KEYSLOT` of a server says.
        for (key, at) in [("foo", 12_182), ("bar", 5_061), ("user1000", 3_443), ("", 0)] {
            assert_eq!(slot(key), at, "{key}");
        }
    }

    #[test]
    fn what_stands_between_the_first_braces_decides() {
        for key in ["{user1000}.following", "{user1000}", "a{user1000}b{foo}", "x{user1000}}"] {
            assert_eq!(slot(key), slot("user1000"), "{key}");
        }
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        for key in ["foo{}{bar}", "foo{bar", "foo}bar{", "{}"] {
            assert_eq!(slot(key), crc16(key.as_bytes()) % COUNT, "{key}");
        }
    }

    #[test]
    fn a_redirection_names_host_and_port_or_the_port_alone() {
        let asked = place(1);
        let told = |address| NodeAddress::of(address, &asked).map(|place| place.to_string());
        assert_eq!(told("10.0.0.1:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(told(":7000").as_deref(), Some("host:7000"));
        assert_eq!(told("?:7000").as_deref(), Some("host:7000"));
        assert_eq!(told("::1:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(told("[::1]:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(told("host"), None);
        assert_eq!(told("host:port"), None);
    }

    #[test]
    fn slots_have_the_owner_that_was_told_last() {
        let mut slots = Slots::new();
        assert!(slots.is_empty() && slots.owner(7).is_none());
        assert!(slots.assign(0..=COUNT - 1, &place(1)));
        assert!(slots.assign(7..=7, &place(2)));
        assert!(!slots.assign(7..=7, &place(2)));
        assert_eq!([6, 7, 8].map(|slot| slots.owner(slot).unwrap().port), [1, 2, 1]);
        assert_eq!(slots.serving(), [&place(1), &place(2)]);
        let before = slots.clone();
        assert!(slots.assign(0..=u16::MAX, &place(2)));
        assert_eq!(slots.serving(), [&place(2)]);
        assert!(slots != before);
        assert!(slots.assign(0..=COUNT - 1, &place(1)) && slots.assign(7..=7, &place(2)));
        assert_eq!(slots, before);
        assert!(slots.owner(COUNT).is_none() && !slots.assign(COUNT..=COUNT, &place(3)));
    }
}
