use std::time::Duration;

use super::*;
use crate::backend::testing::fakes::{FakeServer, usual};
use crate::backend::testing::{link, until};
use crate::base::Lease;
use crate::config::Server;
use crate::wire::Action;

/// The time until the deadline of the renewals, and the limit of an attempt to connect. An attempt may take
/// all the time that the targets of redirects have.
const LIMIT: Duration = Duration::from_secs(20);

const RENEWED: &str = ":-1\r\n";

fn endpoint(address: &str) -> Endpoint {
    let to = Server::from(format!("redis://{address}/?protocol=resp3")).destination().unwrap();
    Endpoint { to, address: address.into(), gate: None, login: None }
}

/// In this order: 1. A node has handed two slots over, and redirects to their new nodes. 2. One of these
/// accepts the connection, and does not answer. 3. The other one renews its hold, whichever of the two is
/// asked first.
#[tokio::test(start_paused = true)]
async fn a_silent_target_of_a_redirect_does_not_use_up_the_time_of_another() {
    let _old = FakeServer::start("old", |words| match words {
        ["EVAL" | "EVALSHA", _, _, "one", ..] => Some("-MOVED 1 silent:1\r\n".to_owned()),
        ["EVAL" | "EVALSHA", _, _, "other", ..] => Some("-MOVED 2 answers:1\r\n".to_owned()),
        words => usual(words),
    });
    let silent = FakeServer::start("silent", |_| None);
    let answers = FakeServer::start("answers", |words| match words {
        // Held back until the silent node is asked too. Otherwise the test could not fail if this node were
        // asked first.
        ["EVAL" | "EVALSHA", ..] => None,
        words => usual(words),
    });
    let spare = Spare {
        slot: ConnectionSlot::new("old:1".into(), LIMIT, true, None),
        id: 1,
        run_id: "old".into(),
        endpoint: endpoint("old:1"),
        sentinels: None,
        redirect: Some(Arc::new(|to| Some(endpoint(to)))),
    };
    let connection = Connection::connect(&spare.endpoint.to, Box::new(drop)).await.unwrap();
    let old = link(connection, 1);
    let renew = |key| Call::of(key, "me:1", Action::Renew { lease: Lease::DEFAULT });
    let calls = ["one", "other"].map(renew);
    let answer = async {
        until(async || silent.count("HELLO") == 1 && answers.count("EVAL") == 1).await;
        answers.send(RENEWED);
        std::future::pending().await
    };
    let renewed = tokio::select! {
        renewed = spare.renew(&old, &calls, after(Instant::now(), LIMIT)) => renewed,
        () = answer => unreachable!(),
    };
    assert_eq!(renewed, [false, true]);
}
