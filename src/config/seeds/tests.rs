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
    let alike = |one: Server, other: Server| has_same_login(one.usable().unwrap(), other.usable().unwrap());
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
