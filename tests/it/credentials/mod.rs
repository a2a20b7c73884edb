//! User and password from a provider, and how they change while connections are open.

mod failures;
mod rotation;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nestlock::Credentials;
use tokio::sync::mpsc;

use crate::support::server::Server;
use crate::support::{eventually, log};

/// A part of each password.
const SECRET: &str = "n0where-shown";

/// How soon an open connection gets new credentials.
const SOON: Duration = Duration::from_millis(200);

/// What the provider of a test does when it is asked.
#[derive(Clone)]
enum Answer {
    /// Returns this user, whose password is made of its name and [`SECRET`].
    User(&'static str),
    Login(&'static str, String),
    /// Returns this user, with credentials that do not expire.
    Lasting(&'static str),
    Fails(String),
    /// Fails with an error whose cause is another error.
    FailsBecause(String),
    /// Fails with an error that panics when it is shown.
    FailsUnshown,
    Panics,
    /// Never becomes ready. The sender is dropped with the future.
    Hangs(mpsc::Sender<()>),
}

/// Holds the answers of a test's provider, and counts how often it was asked.
#[derive(Clone)]
struct Vault(Arc<Mutex<(Answer, usize)>>);

type Provided = Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send>>;

/// An error whose text shows nothing of its cause.
struct Because(Box<dyn Error + Send + Sync>);

impl fmt::Debug for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Because(..)")
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault has failed")
    }
}

impl Error for Because {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

#[derive(Debug)]
struct Unshown;

impl fmt::Display for Unshown {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("as the test asks")
    }
}

impl Error for Unshown {}

impl Vault {
    fn new(answer: Answer) -> Vault {
        Vault(Arc::new(Mutex::new((answer, 0))))
    }

    fn set(&self, answer: Answer) {
        self.0.lock().unwrap().0 = answer;
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().1
    }

    /// Waits until nothing keeps the provider any more.
    async fn left(&self) {
        eventually("the end of the provider", async || Arc::strong_count(&self.0) == 1).await;
    }

    fn provider(&self) -> impl Fn() -> Provided + Send + Sync + 'static {
        let vault = self.clone();
        move || {
            let answer = {
                let mut vault = vault.0.lock().unwrap();
                vault.1 += 1;
                vault.0.clone()
            };
            Box::pin(async move {
                let credentials = match answer {
                    Answer::User(user) => Credentials::new(user, password(user)),
                    Answer::Login(user, password) => Credentials::new(user, password),
                    Answer::Lasting(user) => return Ok(Credentials::new(user, password(user))),
                    Answer::Fails(why) => return Err(why.into()),
                    Answer::FailsBecause(why) => return Err(Because(why.into()).into()),
                    Answer::FailsUnshown => return Err(Unshown.into()),
                    Answer::Panics => panic!("as the test asks"),
                    Answer::Hangs(_alive) => pending().await,
                };
                Ok(credentials.renew_after(SOON))
            })
        }
    }
}

fn password(user: &str) -> String {
    format!("{user}-{SECRET}")
}

/// Adds a user who may do anything.
async fn add_user(server: &Server, user: &str) {
    let password = format!(">{}", password(user));
    server.ask::<()>(&["ACL", "SETUSER", user, "reset", "on", &password, "~*", "&*", "+@all"]).await;
}

/// Returns the connections that are logged in as this user.
async fn connections(server: &Server, user: &str) -> BTreeSet<u64> {
    let list: String = server.ask(&["CLIENT", "LIST"]).await;
    let theirs = list.lines().filter(|line| line.contains(&format!(" user={user} ")));
    theirs.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok()).collect()
}

/// Makes the provider return `new` from now on. The open connections log in as `new`; then `old` is deleted, which ends every connection
/// that is still logged in as `old`.
async fn replace_user(vault: &Vault, servers: &[&Server], old: &str, new: &'static str) {
    let mut before = Vec::new();
    for server in servers {
        before.push(connections(server, old).await);
        add_user(server, new).await;
    }
    assert!(before.iter().any(|connections| !connections.is_empty()));
    vault.set(Answer::User(new));
    for (server, before) in servers.iter().zip(&before) {
        eventually("all are the new user's", async || connections(server, new).await.is_superset(before))
            .await;
        assert!(connections(server, old).await.is_empty(), "a connection was replaced");
        server.ask::<()>(&["ACL", "DELUSER", old]).await;
    }
}

#[track_caller]
fn assert_nothing_is_shown(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
    let logged = log::all(|event| event.mentions(SECRET));
    assert!(logged.is_empty(), "{logged:?}");
}
