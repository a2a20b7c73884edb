//! The nodes of a cluster that are known from the start.

use std::fmt;
use std::sync::Arc;

use redis::ConnectionAddr;

use crate::config::destination::Destination;
use crate::config::server::Server;
use crate::error::{Result, rejected};

/// The nodes by which a cluster is found.
#[derive(Clone, Debug)]
pub(crate) struct Seeds(Arc<[Server]>);

impl Seeds {
    pub(crate) fn new(seeds: impl IntoIterator<Item = impl Into<Server>>) -> Seeds {
        Seeds(seeds.into_iter().map(Into::into).collect())
    }

    pub(crate) fn all(&self) -> &[Server] {
        &self.0
    }

    /// Returns how to connect to a node at this address: as the seed with this address is given or, if there is none, like the first
    /// seed.
    pub(crate) fn at(&self, host: &str, port: u16) -> Option<Server> {
        let is_there = |seed: &&Server| match seed.usable().map(Destination::addr) {
            Some(ConnectionAddr::Tcp(at, its) | ConnectionAddr::TcpTls { host: at, port: its, .. }) => {
                at == host && *its == port
            }
            _ => false,
        };
        self.0.iter().find(is_there).cloned().or_else(|| Some(self.0.first()?.at(host, port)))
    }

    /// Rejects nodes that can't lead to a cluster, before anything is sent.
    pub(super) fn check(&self) -> Result<()> {
        let Some(first) = self.0.first() else {
            return Err(rejected(
                "no node was given to `Master::cluster`; name one at least, better several",
            ));
        };
        for seed in self.all() {
            seed.destination()?;
            let Some(to) = seed.usable() else { continue };
            let wrong = if matches!(to.addr(), ConnectionAddr::Unix(_)) {
                "a node of a cluster can't be given by its socket: the others are reached by host and port"
            } else if to.redis_settings().db() != 0 {
                "a cluster has no database but 0; leave it out of the URLs given to `Master::cluster`"
            } else if first.usable().is_some_and(|first| !has_same_login(to, first)) {
                "the URLs given to `Master::cluster` must have the same user, password and TLS settings: they hold for all its nodes"
            } else {
                continue;
            };
            return Err(rejected(wrong).at(&seed.address()));
        }
        Ok(())
    }

    pub(super) fn has(&self, server: &Server) -> bool {
        self.0.iter().any(|seed| seed.address() == server.address())
    }

    /// Returns whether both have a node in common.
    pub(super) fn meets(&self, other: &Seeds) -> bool {
        other.0.iter().any(|seed| self.has(seed))
    }
}

fn has_same_login(one: &Destination, other: &Destination) -> bool {
    let login = |to: &Destination| {
        let redis = to.redis_settings();
        (redis.username().map(str::to_owned), redis.password().map(str::to_owned), to.tls())
    };
    login(one) == login(other)
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cluster")?;
        for (at, seed) in self.0.iter().enumerate() {
            write!(f, "{} {}", if at == 0 { " at" } else { "," }, seed.address())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
