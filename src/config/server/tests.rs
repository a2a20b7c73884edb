use super::*;
use crate::error::ErrorKind;

mod fuzz;

fn wrong(server: impl Into<Server>) -> String {
    let server = server.into();
    let error = server.destination().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    format!("{error} {error:?} {server:?}")
}

#[test]
fn an_address_is_host_and_port_without_credentials() {
    for (url, address) in [
        ("redis://127.0.0.1", "127.0.0.1:6379"),
        ("redis://user:secret@Example.org:7000/3", "example.org:7000"),
        ("redis://:secret@[::1]:7000", "[::1]:7000"),
        ("unix:///run/redis.sock?pass=secret", "/run/redis.sock"),
    ] {
        let server = Server::from(url);
        assert_eq!(&*server.address(), address);
        server.destination().unwrap();
        assert!(!format!("{server:?}").contains("secret"));
    }
    assert_eq!(Server::from(("LOCALHOST", 7)).address(), Server::from("redis://localhost:7").address());
    assert_eq!(&*Server::from(("[::1]".to_owned(), 7)).address(), "[::1]:7");
}

#[test]
fn an_address_that_cannot_be_used_is_reported_without_any_part_of_it() {
    for url in [
        "",
        "secret",
        "localhost:secret",
        "http://user:secret@host",
        "redis://:secret",
        "redis://user:secret@",
        "redis://user:se cret@host:port",
        "redis://user:secret@host:6379/secret",
        "redis://user:secret@host/?protocol=secret",
        "redis://user:secret@host/?secret=5",
        "redis://user:secret@host/2?protocol=resp3&timeout=secret",
        "redis://user:secret@host/#insecure",
        "unix:///tmp/s?pass=secret&password=secret",
        "redis://user:secret@0.0.0.0",
        "unix:secret",
        "unix:///tmp/s?pass=secret&db=secret",
    ] {
        let message = wrong(url);
        assert!(!message.contains("secret") && !message.contains("cret@"), "{url}: {message}");
        assert!(message.contains("redis://user:password@host"), "{url}: {message}");
    }
}

/// Otherwise the connection would be that of the default user, and a port would be ignored.
#[test]
fn the_login_of_a_socket_is_in_the_query_of_its_url() {
    for url in
        ["unix://bob:secret@localhost/run/s", "unix://:secret@localhost/run/s", "redis+unix://localhost:7/s"]
    {
        let message = wrong(url);
        assert!(
            message.contains("unix:///path?db=database&user=user") && !message.contains("secret"),
            "{message}"
        );
    }
    Server::from("unix://localhost/run/s?user=bob&pass=pw").destination().unwrap();
}

/// Otherwise the connection would be that of the default user, who may have more rights, or none.
#[test]
fn a_user_without_a_password_is_refused() {
    for url in ["redis://bob@host", "redis://bob@host:7/2", "redis://bob:@host", "unix:///run/s?user=bob"] {
        let message = wrong(url);
        assert!(message.contains("redis://user:password@host") && !message.contains("bob"), "{message}");
    }
    for url in
        ["redis://bob:pw@host", "redis://:pw@host", "redis://default@host", "unix:///run/s?user=bob&pass=pw"]
    {
        Server::from(url).destination().unwrap();
    }
}

#[test]
fn a_host_is_a_host_alone() {
    for host in ["", "user:secret@host", "redis://secret", "secret host"] {
        assert!(!wrong((host, 6379)).contains("secret"));
    }
    wrong(("host", 0));
}

#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
#[test]
fn tls_without_its_feature_names_the_features() {
    for url in ["rediss://user:secret@host", "valkeys://host", "REDISS://host"] {
        let message = wrong(url);
        assert!(message.contains("`tls-rustls`") && message.contains("`tls-native-tls`"), "{message}");
        assert!(!message.contains("secret"));
    }
}

#[cfg(feature = "tls-rustls")]
#[test]
fn tls_installs_no_cryptography_for_the_whole_program() {
    Server::from("rediss://host").destination().unwrap();
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[cfg(feature = "redis-1")]
#[test]
fn a_client_of_the_redis_crate_is_a_server() {
    let client = redis::Client::open("redis://:secret@host:7/2").unwrap();
    let server = Server::from(&client);
    assert_eq!(&*server.address(), "host:7");
    assert_eq!(server.destination().unwrap().redis_settings().db(), 2);
    assert_eq!(Server::from(client.get_connection_info()).address(), Server::from(client).address());
}
