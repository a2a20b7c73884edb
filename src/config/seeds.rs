//! The nodes of a cluster that are known from the start.

use std::fmt;
use std::sync::Arc;

use redis::ConnectionAddr;

use crate::config::destination::Destination;
use crate::config::server::Server;
use crate::error::{Error, Result, rejected};

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

    /// Rejects what can't lead to a cluster, before anything is sent.
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
            return Err(self.wrong(wrong, seed));
        }
        Ok(())
    }

    fn wrong(&self, wrong: &str, seed: &Server) -> Error {
        rejected(wrong).at(&seed.address())
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
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn wrong<const N: usize>(seeds: [&str; N]) -> String {
        let error = Seeds::new(seeds).check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let message = format!("{error} {error:?} {}", Seeds::new(seeds));
        assert!(!message.contains("secret"), "{message}");
        message
    }

    #[test]
    fn seeds_that_lead_nowhere_are_rejected() {
        assert!(wrong([]).contains("no node was given to `Master::cluster`"));
        assert!(wrong(["redis://a:1", "http://secret"]).contains("address can't be used"));
        assert!(wrong(["redis://a:1", "unix:///run/redis.sock"]).contains("(server /run/redis.sock)"));
        assert!(wrong(["redis://:secret@a:1", "redis://:secret@b:2/3"]).contains("(server b:2)"));
        for other in ["redis://b:2", "redis://user:secret@b:2", "redis://:secrets@b:2"] {
            assert!(
                wrong(["redis://:secret@a:1", other]).contains("same user, password and TLS settings"),
                "{other}"
            );
        }
        Seeds::new(["redis://:secret@a:1", "redis://:secret@b:2", "redis://:secret@b:2"]).check().unwrap();
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[test]
    fn seeds_have_the_same_tls_settings() {
        use crate::config::Tls;
        let alike =
            |one: Server, other: Server| has_same_login(one.usable().unwrap(), other.usable().unwrap());
        for mark in ["", "/#insecure"] {
            let url = |host: &str| Server::from(format!("rediss://{host}{mark}"));
            assert!(alike(url("a:1"), url("b:2")), "{mark}");
        }
        let with =
            |host: &str, pem: &str| Server::from(format!("rediss://{host}")).tls(Tls::new().authorities(pem));
        assert!(alike(with("a:1", "one"), with("b:2", "one")));
        assert!(alike("rediss://a:1/#insecure".into(), Server::from(("b", 2)).tls(Tls::new().insecure())));
        for (one, other) in [
            ("rediss://a:1/#insecure".into(), "rediss://b:2".into()),
            ("rediss://a:1".into(), "redis://b:2".into()),
            (with("a:1", "one"), "rediss://b:2".into()),
            (with("a:1", "one"), with("b:2", "other")),
        ] {
            let shown = format!("{one:?} {other:?}");
            assert!(!alike(one, other), "{shown}");
        }
    }

    #[test]
    fn a_seed_is_connected_to_as_it_was_given_and_other_nodes_like_the_first() {
        let seeds = Seeds::new(["redis://one:secret@a:1", "redis://two:secret@b:2"]);
        let user = |host, port| {
            seeds.at(host, port).unwrap().usable().unwrap().redis_settings().username().map(str::to_owned)
        };
        assert_eq!([user("a", 1), user("b", 2), user("c", 3)].map(Option::unwrap), ["one", "two", "one"]);
        assert!(Seeds::new([""; 0]).at("a", 1).is_none());
    }

    #[test]
    fn sets_of_nodes_that_meet_are_seen_to_be_one_cluster() {
        let seeds = Seeds::new([("a", 1), ("b", 2)]);
        assert!(seeds.meets(&Seeds::new(["redis://c:3", "redis://:secret@B:2"])));
        assert!(!seeds.meets(&Seeds::new([("a", 2), ("b", 1)])));
        assert!(seeds.has(&("b", 2).into()));
        assert_eq!(seeds.to_string(), "the cluster at a:1, b:2");
    }
}
