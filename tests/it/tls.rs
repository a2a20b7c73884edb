//! Servers over TLS, with a certificate signed by the test's own authority.

#![cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]

use std::time::Duration;

use nestlock::{Credentials, Error, ErrorKind, Locks, Tls};

use crate::support::cluster::Cluster;
use crate::support::process::Worker;
use crate::support::sentinel::{Group, NAME, Sentinel, Setup};
use crate::support::server::Server;
use crate::support::tls::Certificates;
use crate::support::{eventually, options, quorum, soon, without_timers};

#[tokio::test]
async fn a_lock_is_taken_and_released_over_tls() {
    let server = Server::tls().await;
    let authority = server.ca_file();
    // This runs in its own process, since the place of the system's authorities is read once per process.
    let mut worker = Worker::with_env(
        "locks_over_tls",
        &[("url", &server.tls_url())],
        &[("SSL_CERT_FILE", authority.to_str().unwrap())],
    );
    worker.expect("holding").await;
    assert_eq!(server.keys().await, ["stock"]);
    let plain = crate::support::locks(&server.url()).await;
    let waits = tokio::spawn(async move { plain.mutex("stock").lock().await });
    eventually("the waiter", async || !server.channels().await.is_empty()).await;
    worker.say("release");
    worker.expect("released").await;
    let guard = soon("the lock", waits).await.unwrap().unwrap();
    worker.say("wait");
    eventually("the waiter over TLS", async || !server.channels().await.is_empty()).await;
    guard.release().await.unwrap();
    worker.expect("holding").await;
    assert!(worker.wait().await.success());
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_not_trusted() {
    let server = Server::tls().await;
    let error = Locks::connect(server.tls_url().replace("rediss://", "rediss://:hidden@")).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
    assert!(text.to_lowercase().contains("certificate") && !text.contains("hidden"), "{text}");
}

#[tokio::test]
async fn a_port_without_tls_and_one_with_it_are_told_apart() {
    let server = Server::tls().await;
    let hint = async |url: String| {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string()
    };
    // A port without TLS does not answer a handshake.
    let text = hint(format!("rediss://localhost:{}", server.port())).await;
    assert!(text.contains("port is one for TLS"), "{text}");
    let text = hint(format!("redis://localhost:{}", server.tls_port())).await;
    assert!(text.contains("rediss://"), "{text}");
}

/// `#insecure` has this effect whichever TLS library another crate turns on.
#[tokio::test]
async fn a_url_that_asks_for_no_proof_is_asked_for_none() {
    let server = Server::tls().await;
    let insecure = crate::support::locks(&format!("{}/#insecure", server.tls_url())).await;
    let guard = insecure.mutex("stock").lock().await.unwrap();
    assert_eq!(server.keys().await, ["stock"]);
    guard.release().await.unwrap();
}

/// The redis crate doesn't give back a certificate that it was given.
#[cfg(feature = "redis-1")]
#[tokio::test]
async fn a_client_of_the_redis_crate_with_certificates_is_refused_with_the_way_out() {
    let none = redis::TlsCertificates { client_tls: None, root_cert: None };
    let client = redis::Client::build_with_tls("rediss://:hidden@localhost", none).unwrap();
    let error = Locks::connect(client).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), ErrorKind::Config, "{text}");
    assert!(text.contains("Server::tls") && !text.contains("hidden"), "{text}");
    let server = Server::tls().await;
    let client = redis::Client::open(server.tls_url()).unwrap();
    let given = nestlock::Server::from(client).tls(trusting(&server));
    options(given).connect().await.unwrap().mutex("stock").run(async |_| {}).await.unwrap();
}

/// Returns options that trust the server's authority.
fn trusting(server: &Server) -> Tls {
    Tls::new().authorities(std::fs::read(server.ca_file()).unwrap())
}

fn unavailable(error: &Error) -> String {
    let text = format!("{error} {error:?}").to_lowercase();
    assert!(error.kind() == ErrorKind::Unavailable && !text.contains("hidden"), "{text}");
    text
}

/// Checks that the refusal of the client's certificate is not reported as if the server's own certificate were wrong.
fn is_about_the_client(error: &Error) {
    let text = unavailable(error);
    assert!(text.contains("`tls::client_certificate`") && !text.contains("not trusted"), "{text}");
}

mod certificates {
    use super::*;

    /// In TLS 1.3 the refusal comes after the handshake; in earlier versions it comes during it.
    #[tokio::test]
    async fn a_server_that_refuses_the_certificate_of_the_client_is_not_taken_for_one_whose_own_is_wrong() {
        for version in ["TLSv1.2", "TLSv1.3"] {
            let server = Server::tls_with(&["--tls-auth-clients", "yes", "--tls-protocols", version]).await;
            let (certificate, key) = server.client_certificate(false);
            let none = trusting(&server);
            let strange = none.clone().client_certificate(certificate, key);
            for tls in [none, strange] {
                is_about_the_client(&connect(&server, tls).await.unwrap_err());
            }
        }
    }

    /// Connects with a user and a password; a server without a password accepts any.
    async fn connect(server: &Server, tls: Tls) -> nestlock::Result<Locks> {
        let url = server.tls_url().replace("rediss://", "rediss://default:hidden@");
        options(nestlock::Server::from(url).tls(tls)).connect().await
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_not_trusted() {
        let server = Server::tls().await;
        connect(&server, trusting(&server)).await.unwrap().close().await.unwrap();
        server.restart_as_another().await;
        let text = unavailable(&connect(&server, trusting(&server)).await.unwrap_err());
        assert!(text.contains("not trusted") && text.contains("certificate"), "{text}");
    }

    #[tokio::test]
    async fn a_client_shows_the_certificate_that_it_was_given() {
        let server = Server::tls_with(&["--tls-auth-clients", "yes"]).await;
        let with = |trusted| {
            let (certificate, key) = server.client_certificate(trusted);
            trusting(&server).client_certificate(certificate, key)
        };
        let locks = connect(&server, with(true)).await.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        assert_eq!(server.keys().await, ["stock"]);
        guard.release().await.unwrap();
    }

    /// The files are read for each new connection.
    #[tokio::test]
    async fn a_certificate_that_is_replaced_on_disk_is_used_from_the_next_connection_on() {
        let server = Server::tls_with(&["--tls-auth-clients", "yes"]).await;
        let dir = tempfile::tempdir().unwrap();
        let [ca, certificate, key] = ["ca", "certificate", "key"].map(|name| dir.path().join(name));
        let put = |from: &std::path::Path, to| _ = std::fs::copy(from, to).unwrap();
        let [stranger, secret] = server.client_files(false);
        let tls = Tls::new().authorities_file(&ca).client_certificate_files(&certificate, &key);
        let missing = connect(&server, tls.clone()).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Config, "{missing}");
        put(&server.ca_file(), &ca);
        put(&stranger, &certificate);
        put(&secret, &key);
        unavailable(&connect(&server, tls.clone()).await.unwrap_err());
        put(&server.client_files(true)[0], &certificate);
        let locks = connect(&server, tls).await.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        // For a while no connection can be made. The hold is renewed once one can be made.
        put(&stranger, &certificate);
        server.ask::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        eventually("no connection", async || server.clients().await == 0).await;
        put(&server.client_files(true)[0], &certificate);
        eventually("a connection", async || server.clients().await > 0).await;
        guard.release().await.unwrap();
        assert_eq!(server.keys().await, [""; 0]);
    }
}

/// Checks that a message wakes a waiter, that each kind of connection is made again, and that no lock is lost or left behind.
async fn works_and_survives_broken_connections(builder: nestlock::Builder, servers: &[&Server]) {
    let builder = builder.poll_interval(Duration::MAX);
    let (ours, theirs) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let is_subscribed = async || {
        for server in servers {
            if server.channels().await.is_empty() {
                return false;
            }
        }
        true
    };
    let guard = ours.mutex("stock").lock().await.unwrap();
    let waits = tokio::spawn(theirs.mutex("stock").lock());
    eventually("a subscription", is_subscribed).await;
    for kind in ["pubsub", "normal"] {
        for server in servers {
            server.ask::<u64>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await;
        }
        eventually("a subscription again", is_subscribed).await;
    }
    // This asks over new connections, and the server answers.
    for locks in [&ours, &theirs] {
        eventually("a holder", async || {
            locks.mutex("stock").holder().await.is_ok_and(|holder| holder.is_some())
        })
        .await;
    }
    guard.release().await.unwrap();
    let guard = soon("the waiter", waits).await.unwrap().unwrap();
    guard.release().await.unwrap();
    eventually("no key", async || {
        for server in servers {
            if !server.keys().await.is_empty() {
                return false;
            }
        }
        true
    })
    .await;
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
}

#[tokio::test]
async fn a_server_works_over_tls_though_connections_break() {
    let server = Server::tls().await;
    let given = nestlock::Server::from(server.tls_url()).tls(trusting(&server));
    works_and_survives_broken_connections(options(given), &[&server]).await;
}

#[tokio::test]
async fn a_quorum_of_three_works_over_tls_though_connections_break() {
    let servers = [Server::tls().await, Server::tls().await, Server::tls().await];
    let given = servers.each_ref().map(|one| nestlock::Server::from(one.tls_url()).tls(trusting(one)));
    let builder = quorum(given);
    works_and_survives_broken_connections(builder, &servers.each_ref()).await;
}

/// Each node requires a certificate of its clients, and names the others by their TLS ports.
#[tokio::test]
async fn a_cluster_of_several_nodes_works_over_tls_though_connections_break_and_a_node_fails() {
    let certificates = Certificates::new();
    let cluster = Cluster::over_tls(&certificates, &["--tls-auth-clients", "yes"]).await;
    let [certificate, key] = certificates.client();
    let tls = Tls::new().authorities(certificates.authority()).client_certificate(certificate, key);
    let seed = |node: &Server| nestlock::Server::from(node.tls_url()).tls(tls.clone());
    let builder = || options(nestlock::Master::cluster(cluster.nodes()[..2].iter().map(seed)));
    let at = cluster.owner("stock").await;
    works_and_survives_broken_connections(builder(), &[cluster.node(at)]).await;
    let locks = builder().connect().await.unwrap();
    for at in 0..3 {
        let name = cluster.name_on(at, "order").await;
        let guard = locks.mutex(&name).lock().await.unwrap();
        assert_eq!(cluster.node(at).keys().await, [name.as_str()]);
        guard.release().await.unwrap();
    }
    let guard = locks.mutex("stock").lock().await.unwrap();
    cluster.replicated(at, "stock").await;
    cluster.fail_over(at + 3).await;
    soon("the release", guard.release()).await.unwrap();
    soon("the lock", locks.mutex("stock").run(async |_| {})).await.unwrap();
    assert!(cluster.node(at + 3).keys().await.is_empty());
    let stranger = options(nestlock::Master::cluster([nestlock::Server::from(cluster.node(0).tls_url())
        .tls(Tls::new().authorities(certificates.authority()))]));
    is_about_the_client(&stranger.connect().await.unwrap_err());
}

/// The sentinel requires a password, and so does its master. The sentinel names the master by its TLS port.
#[tokio::test]
async fn sentinels_with_a_password_work_over_tls_though_connections_break() {
    let certificates = Certificates::new();
    let master =
        Server::tls_among(&certificates, &["--requirepass", "hidden", "--masterauth", "hidden"]).await;
    for sentinel_password in [Some("hidden"), None] {
        let setup = Setup {
            password: Some("hidden"),
            sentinel_password,
            tls: Some(&certificates),
            ..Setup::default()
        };
        let sentinel = Sentinel::start(master.tls_port(), setup).await;
        let url = format!("rediss://:hidden@localhost:{}", sentinel.tls_port());
        let given = nestlock::Server::from(url).tls(trusting(&master));
        works_and_survives_broken_connections(options(nestlock::Master::sentinel([given], NAME)), &[&master])
            .await;
    }
}

#[tokio::test]
async fn a_failover_is_followed_over_tls_and_its_hold_goes_on() {
    let certificates = Certificates::new();
    let setup = Setup {
        password: Some("hidden"),
        sentinel_password: Some("hidden"),
        tls: Some(&certificates),
        ..Setup::default()
    };
    let group = Group::with(setup).await;
    let builder =
        || without_timers(group.builder_over_tls(":hidden@", &certificates)).lease(Duration::from_secs(60));
    let (ours, theirs) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    let guard = ours.mutex("stock").lock().await.unwrap();
    let old = &group.servers[0];
    let waiting = tokio::spawn(theirs.mutex("stock").lock());
    eventually("it listens", async || !old.channels().await.is_empty()).await;
    for server in &group.servers {
        eventually("the replicas have it", async || server.keys().await == ["stock"]).await;
    }
    group.fail_over().await;
    let new = group.failed_over(old).await;
    eventually("the waiter listens there", async || !new.channels().await.is_empty()).await;
    assert!(!guard.is_lost());
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the waiter's turn, by message", waiting).await.unwrap().unwrap();
    soon("the release", next.release()).await.unwrap();
    assert!(new.keys().await.is_empty());
}

#[tokio::test]
async fn a_provider_of_credentials_works_over_tls() {
    let server = Server::tls().await;
    let rule = ["ACL", "SETUSER", "bob", "on", ">one", "~*", "&*", "+@all"];
    server.ask::<()>(&rule).await;
    let password = std::sync::Arc::new(std::sync::Mutex::new("one"));
    let provider = {
        let password = password.clone();
        move || {
            let password = *password.lock().unwrap();
            async move {
                let soon = std::time::Duration::from_millis(200);
                Ok::<_, std::io::Error>(Credentials::new("bob", password).renew_after(soon))
            }
        }
    };
    let given = nestlock::Server::from(server.tls_url()).tls(trusting(&server));
    let locks = options(given).credentials(provider).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    server.reset_commands_run().await;
    *password.lock().unwrap() = "two";
    server.ask::<()>(&["ACL", "SETUSER", "bob", ">two", "<one"]).await;
    eventually("a login", async || server.commands_run().await.contains_key("auth")).await;
    guard.release().await.unwrap();
    works_and_survives_broken_connections(
        options(nestlock::Server::from(server.tls_url()).tls(trusting(&server)))
            .credentials(|| async { Ok::<_, std::io::Error>(Credentials::new("bob", "two")) }),
        &[&server],
    )
    .await;
}

mod expired {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::net::{TcpListener, TcpStream};
    use tracing::Level;

    use crate::support::server::Server;
    use crate::support::{eventually, log, quorum};

    /// The certificate of one of three masters expires while it is connected. The lock keeps working without this master.
    #[tokio::test]
    async fn a_master_whose_certificate_has_expired_is_warned_of_once_in_an_outage() {
        let (one, two, three) = (Server::start().await, Server::start().await, Server::tls().await);
        // A server without a password accepts any user.
        let (port, attempts) = counted(three.tls_url().trim_start_matches("rediss://").to_owned()).await;
        let address = format!("localhost:{port}");
        let url = format!("rediss://default:hidden@{address}");
        let connect = async || {
            let given = nestlock::Server::from(url.as_str()).tls(super::trusting(&three));
            let masters = [one.url().into(), two.url().into(), given];
            quorum(masters).connect().await.unwrap()
        };
        let warnings = || {
            log::all(|event| {
                event.level == Level::WARN
                    && event.mentions("certificate")
                    && event.mentions("xpired")
                    && event.mentions(&address)
            })
        };
        let locks = connect().await;
        for outage in 1..=2 {
            three.restart_expired(true).await;
            eventually("a warning", async || warnings().len() >= outage).await;
            // Meanwhile the client tries that server again.
            locks.mutex("stock").run(async |_| {}).await.unwrap();
            let before = attempts.load(SeqCst);
            eventually("more attempts", async || attempts.load(SeqCst) >= before + 3).await;
            assert_eq!(warnings().len(), outage, "{:?}", warnings());
            three.restart_expired(false).await;
            let again = |event: &log::Event| {
                event.message.contains("reconnected to Redis") && event.mentions(&address)
            };
            eventually("it is back", async || log::all(again).len() == outage).await;
        }
        // For a new client the certificate is expired from the start.
        three.restart_expired(true).await;
        eventually("a warning", async || warnings().len() >= 3).await;
        let other = connect().await;
        eventually("a warning", async || warnings().len() >= 4).await;
        other.mutex("stock").run(async |_| {}).await.unwrap();
        let before = attempts.load(SeqCst);
        eventually("more attempts of both", async || attempts.load(SeqCst) >= before + 8).await;
        assert_eq!(warnings().len(), 4, "{:?}", warnings());
        assert!(warnings().iter().all(|event| !event.mentions("hidden")));
    }

    /// Opens a port that leads to another one. Returns it with a count of its connections, since the server doesn't count connections that
    /// fail because of a certificate.
    async fn counted(to: String) -> (u16, Arc<AtomicUsize>) {
        let door = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, count) = (door.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let taken = count.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = door.accept().await {
                taken.fetch_add(1, SeqCst);
                let to = to.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        (port, count)
    }
}
