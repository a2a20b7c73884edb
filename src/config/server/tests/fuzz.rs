use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::base::testing::{fuzz, text};
use crate::config::{Builder, Master};

const SECRET: &str = "s3cret";

/// URLs with a password, with mistakes in their other parts. The password itself is percent-encoded, as
/// required.
fn urls() -> impl Strategy<Value = String> {
    let part = |words: &'static [&'static str]| {
        let special = |c: char| "@:/?#[]\\".contains(c) || c.is_control() || c.is_whitespace();
        let other =
            text().prop_map(move |text| text.replace(special, "").chars().take(20).collect::<String>());
        prop_oneof![4 => select(words).prop_map(str::to_owned), 1 => other]
    };
    let scheme = part(&["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "http", "REDIS", ""]);
    let user = part(&["", "user", "default", "%40", "%"]);
    let around = part(&["", "%40", "%2F", "%", "%zz", "é", "&", "=", "!", "$"]);
    let host = part(&["localhost", "127.0.0.1", "[::1]", "[::1", "a b", "", "%00", "0.0.0.0", "host:7:8"]);
    let port = part(&["", ":7000", ":0", ":65536", ":x", ":"]);
    let path = part(&["", "/", "/3", "/-1", "/x", "//", "/3/4"]);
    let more = part(&[
        "",
        "?protocol=resp3",
        "?protocol=9",
        "?db=1",
        "?x",
        "#insecure",
        "#x",
        "?pass=s3cret",
        "?user=a&pass=s3cret",
    ]);
    let place =
        (host, port, path, more).prop_map(|(host, port, path, more)| format!("{host}{port}{path}{more}"));
    (scheme, user, around.clone(), around, place).prop_map(|(scheme, user, before, after, place)| {
        format!("{scheme}://{user}:{before}{SECRET}{after}@{place}")
    })
}

#[test]
fn no_url_shows_its_password() {
    fuzz((urls(), urls()), |(one, other)| {
        let server = Server::from(&one);
        let mut shown = vec![format!("{server:?} {}", server.address())];
        if let Err(error) = server.destination() {
            shown.push(format!("{error} {error:?}"));
        }
        for builder in [
            Builder::over([&one]),
            Builder::over([&one, &other, &one]),
            Builder::over([Master::cluster([&one, &other])]),
            Builder::over([Master::sentinel([&one, &other], "stock")]),
            Builder::over([Master::server(&one), Master::cluster([&other, &one])]),
        ] {
            shown.push(format!("{builder:?}"));
            match builder.check() {
                Ok(config) => shown.push(format!("{config:?}")),
                Err(error) => shown.push(format!("{error} {error:?}")),
            }
        }
        for text in shown {
            assert!(!text.contains(SECRET), "{text}");
            assert!(text.len() < 20_000, "{} bytes", text.len());
        }
    });
}

#[test]
fn any_host_is_taken_or_rejected() {
    fuzz((text(), any::<u16>()), |(host, port)| {
        let server = Server::from((host.clone(), port));
        if let Err(error) = server.destination() {
            assert!(format!("{error} {error:?}").len() < 2_000);
        }
    });
}
