//! Credentials appear in no message, no cause, no `Debug` and no log.

use std::time::Duration;

use nestlock::{ErrorKind, Locks, Server as Address};

use super::everything;
use crate::support::server::{Server, free_port};
use crate::support::{SECOND, builder, log, options, quorum, soon};

const SECRET: &str = "h1dden-pa55word";

#[tokio::test]
async fn a_password_is_never_shown() {
    let server = Server::with(&["--requirepass", SECRET]).await;
    let url = format!("redis://default:{SECRET}@127.0.0.1:{}/0", server.port());
    let options = builder(&url).node_timeout(SECOND).unavailable_after(SECOND).lease(Duration::from_secs(60));
    let mut text = format!("{:?} {options:?} {options:#?}", Address::from(&url));
    let locks = options.connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    text += &format!("{locks:?} {locks:#?} {stock:?} {guard:?} {:?} {:?}", stock.lock(), guard.owner());
    server.kill();
    for error in [
        soon("try_lock", locks.mutex("other").try_lock()).await.unwrap_err(),
        soon("lock", locks.mutex("other").lock()).await.unwrap_err(),
        soon("a look", stock.is_locked()).await.unwrap_err(),
        soon("a release", guard.release()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        text += &everything(&error);
    }
    assert!(text.contains(&format!("127.0.0.1:{}", server.port())));
    assert!(!text.contains(SECRET), "{text}");
    assert!(log::all(|event| event.mentions(SECRET)).is_empty());
}

/// A server repeats the arguments of a command that it doesn't know.
#[tokio::test]
async fn a_password_is_not_shown_where_the_server_does_not_know_hello() {
    let renamed =
        async || Server::with(&["--requirepass", SECRET, "--rename-command", "HELLO", "howdy"]).await;
    let url = |server: &Server| format!("redis://default:{SECRET}@127.0.0.1:{}", server.port());
    let unusable = renamed().await;
    let (one, two) =
        (Server::with(&["--requirepass", SECRET]).await, Server::with(&["--requirepass", SECRET]).await);
    for options in [builder(&url(&unusable)), options(nestlock::Master::cluster([url(&unusable)]))] {
        let error = soon("an error", options.connect()).await.unwrap_err();
        let text = everything(&error);
        assert!(!text.contains(SECRET), "{text}");
        // Valkey demands the password before it checks whether it knows the command. Then a wrong password is an error, even with several
        // masters.
        if text.contains("NOAUTH") {
            return;
        }
        assert!(text.contains("unknown command 'HELLO'"), "{text}");
    }
    // With several masters, the refusal of one server is logged.
    let masters = quorum([url(&one), url(&two), url(&unusable)]);
    soon("the other two", masters.connect()).await.unwrap();
    log::recorded(|event| event.mentions(&format!(":{}", unusable.port())) && event.mentions("HELLO")).await;
    assert!(log::all(|event| event.mentions(SECRET)).is_empty());
}

#[tokio::test]
async fn a_password_that_does_not_help_is_not_shown_either() {
    let server = Server::with(&["--requirepass", "another"]).await;
    let port = server.port();
    let closed = free_port();
    for address in [
        format!("redis://:{SECRET}@127.0.0.1:{port}"),
        format!("redis://{SECRET}:{SECRET}@127.0.0.1:{port}"),
        format!("redis://:{SECRET}@127.0.0.1:{closed}"),
        format!("redis://:{SECRET}@no.such.host.invalid:{port}"),
        format!("redis://:{SECRET}@127.0.0.1:{port}/{SECRET}"),
        format!("redis://:{SECRET}@[broken:{port}"),
        format!("redis://:{SECRET}@"),
        format!("http://:{SECRET}@127.0.0.1"),
        format!("rediss://:{SECRET}@127.0.0.1:{closed}"),
        format!("unix:///no/such/socket?pass={SECRET}"),
        SECRET.to_owned(),
    ] {
        let options = builder(&address);
        let mut text = format!("{options:?} {:?}", Address::from(&address));
        let error = soon("an error", options.connect()).await.unwrap_err();
        text += &everything(&error);
        assert!(!text.contains(SECRET), "{text}");
    }
    assert!(Locks::connect((SECRET, 0)).await.is_err_and(|error| !everything(&error).contains(SECRET)));
    assert!(log::all(|event| event.mentions(SECRET)).is_empty());
}
