//! Providers that fail, hang or panic, and credentials that the server refuses.

use std::error::Error as _;

use nestlock::{Credentials, ErrorKind};
use tokio::sync::mpsc;

use super::{Answer, SECRET, Vault, add_user, assert_nothing_is_shown, connections, password};
use crate::support::cluster::Cluster;
use crate::support::server::Server;
use crate::support::{SECOND, eventually, log, options, quorum, soon};

#[tokio::test]
async fn a_provider_that_fails_is_reported_as_its_error() {
    let server = Server::start().await;
    let (alive, _ended) = mpsc::channel(1);
    for (answer, words) in [
        (Answer::Fails("the vault is sealed".into()), "provider of credentials failed: the vault is sealed"),
        (Answer::FailsUnshown, "failed with an error that panics"),
        (Answer::Panics, "provider of credentials panicked"),
        (Answer::Hangs(alive), "provider of credentials did not return within 5s"),
    ] {
        let vault = Vault::new(answer.clone());
        let builder = options(server.url()).credentials(vault.provider());
        let error = soon("an error", builder.connect()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let cause = error.source().map(ToString::to_string);
        assert_eq!(cause.is_some(), matches!(answer, Answer::Fails(_)), "{cause:?}");
    }
    assert_eq!(server.clients().await, 0);
}

#[tokio::test]
async fn credentials_that_are_refused_are_an_error_that_does_not_show_them() {
    let server = Server::start().await;
    let cluster = Cluster::shared().await;
    let vault = Vault::new(Answer::User("nobody"));
    for builder in [
        options(server.url()),
        quorum([server.url()]),
        options(nestlock::Master::cluster([cluster.node(0).url()])),
    ] {
        let error = builder.credentials(vault.provider()).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("that the provider of credentials returned"), "{error}");
        assert_nothing_is_shown(&format!("{error} {error:?} {error:#?}"));
    }
}

#[tokio::test]
async fn an_error_of_the_provider_that_repeats_the_password_is_not_shown() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::User("bob"));
    let builder = options(server.url()).credentials(vault.provider()).unavailable_after(SECOND);
    let locks = builder.connect().await.unwrap();
    let why = format!("it is no longer {}", password("bob"));
    for answer in [Answer::Fails(why.clone()), Answer::FailsBecause(why)] {
        vault.set(answer);
        server.ask::<u64>(&["CLIENT", "KILL", "USER", "bob"]).await;
        let error = soon("an error", locks.mutex("stock").lock()).await.unwrap_err();
        let mut text = format!("{error:#?}");
        let mut cause = error.source();
        while let Some(error) = cause {
            text += &format!("{error} {error:?}");
            cause = error.source();
        }
        assert!(text.contains("the password is a part of it"), "{text}");
        assert_nothing_is_shown(&text);
        vault.set(Answer::User("bob"));
        soon("the lock", async { while locks.mutex("stock").run(async |_| {}).await.is_err() {} }).await;
    }
}

#[tokio::test]
async fn standing_connections_live_on_while_the_provider_fails() {
    let server = Server::start().await;
    for user in ["bob", "eve"] {
        add_user(&server, user).await;
    }
    let vault = Vault::new(Answer::User("bob"));
    let builder = options(server.url()).credentials(vault.provider()).lease(6 * SECOND);
    let locks = builder.connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let before = connections(&server, "bob").await;
    let why = format!("no answer for the server at port {}", server.port());
    vault.set(Answer::Fails(why.clone()));
    let logged = log::recorded(|event| event.mentions(&why)).await;
    assert!(logged.message.contains("standing connections stay as they are"), "{}", logged.message);
    // The provider is asked again, but that isn't logged.
    let asked = vault.asked();
    eventually("other questions", async || vault.asked() >= asked + 2).await;
    assert_eq!(log::all(|event| event.mentions(&why)).len(), 1);
    assert_eq!(connections(&server, "bob").await, before);
    vault.set(Answer::User("eve"));
    eventually("they are eve's", async || connections(&server, "eve").await == before).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_refuses_new_credentials_is_asked_again_over_the_same_connection() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    let vault = Vault::new(Answer::User("bob"));
    let locks = options(server.url()).credentials(vault.provider()).connect().await.unwrap();
    let guard = locks.mutex("stock").lock().await.unwrap();
    let before = connections(&server, "bob").await;
    vault.set(Answer::User("eve"));
    let at_it = format!("127.0.0.1:{}", server.port());
    let refused = |event: &log::Event| {
        event.mentions(&at_it)
            && event.message.contains("refuses new credentials")
            && event.mentions("WRONGPASS")
    };
    log::recorded(refused).await;
    // The connections are still bob's, and work. The client tries the new credentials again after pauses.
    guard.check().await.unwrap();
    assert_eq!(connections(&server, "bob").await, before);
    server.reset_commands_run().await;
    let logins = async || server.commands_run().await.get("auth").copied().unwrap_or_default();
    eventually("another login", async || logins().await > 0).await;
    assert!(logins().await <= 3, "{} logins", logins().await);
    add_user(&server, "eve").await;
    eventually("it is eve's", async || connections(&server, "eve").await == before).await;
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    assert_nothing_is_shown("");
}

#[tokio::test]
async fn the_end_of_the_locks_ends_the_question_to_the_provider() {
    let server = Server::start().await;
    add_user(&server, "bob").await;
    for closes in [true, false] {
        let vault = Vault::new(Answer::User("bob"));
        let locks = options(server.url()).credentials(vault.provider()).connect().await.unwrap();
        let (alive, mut ended) = mpsc::channel(1);
        let asked = vault.asked();
        vault.set(Answer::Hangs(alive));
        eventually("a question that hangs", async || vault.asked() > asked).await;
        vault.set(Answer::User("bob"));
        if closes {
            locks.close().await.unwrap();
        }
        drop(locks);
        assert_eq!(soon("the end of the provider's future", ended.recv()).await, None);
        vault.left().await;
    }
}

/// When the future of `connect` is dropped, the provider's future is dropped too.
#[tokio::test]
async fn a_connect_that_is_dropped_ends_the_question_to_the_provider() {
    let server = Server::start().await;
    let (alive, mut ended) = mpsc::channel(1);
    let vault = Vault::new(Answer::Hangs(alive));
    let connecting = tokio::spawn(options(server.url()).credentials(vault.provider()).connect());
    eventually("a question", async || vault.asked() > 0).await;
    vault.set(Answer::User("bob"));
    connecting.abort();
    assert_eq!(soon("the end of the provider's future", ended.recv()).await, None);
    vault.left().await;
}

#[tokio::test]
async fn a_provider_beside_a_password_in_the_url_is_rejected_before_anything_is_sent() {
    let vault = Vault::new(Answer::User("bob"));
    let url = format!("redis://:{SECRET}@127.0.0.1:1");
    let error = options(&url).credentials(vault.provider()).connect().await.unwrap_err();
    assert_eq!((error.kind(), vault.asked()), (ErrorKind::Config, 0), "{error}");
    assert_nothing_is_shown(&format!("{error} {error:?} {:?}", Credentials::new("bob", SECRET)));
}
