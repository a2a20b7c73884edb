//! One watchdog renews many holds.

use futures::future::join_all;
use nestlock::{Loss, Mutex};

use super::SECOND;
use crate::support::proxy::Proxy;
use crate::support::resp::Command;
use crate::support::server::Server;
use crate::support::{builder, soon};

#[tokio::test]
async fn two_thousand_holds_are_renewed_by_a_few_commands() {
    const HOLDS: usize = 2_000;
    let server = Server::start().await;
    let locks = builder(&server.url()).lease(6 * SECOND).connect().await.unwrap();
    let mut guards = Vec::with_capacity(HOLDS);
    for at in 0..HOLDS {
        guards.push(locks.mutex(format!("lock:{at}")).lock().await.unwrap());
    }
    let reads = async || server.info("stats").await["total_reads_processed"].parse::<usize>().unwrap();
    let runs = async || server.scripts_run().await as usize;
    let (reads_before, runs_before) = (reads().await, runs().await);
    let lasts = guards.iter().map(|guard| guard.valid_until()).max().unwrap();
    // Two leases later, each hold has been renewed several times.
    tokio::time::sleep_until(lasts + 6 * SECOND).await;
    let (reads, runs) = (reads().await - reads_before, runs().await - runs_before);
    // One command renews a hundred holds.
    assert!(100 * runs >= 4 * HOLDS && runs < HOLDS, "{runs} commands");
    assert!(reads < HOLDS / 2, "{reads} reads");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(server.keys().await.len(), HOLDS);
    drop(guards);
    locks.close().await.unwrap();
    assert!(server.keys().await.is_empty());
}

/// A proxy in front of several servers may send a script to the server of its first key, which lacks the other locks.
#[tokio::test]
async fn a_hold_that_is_missing_where_many_are_renewed_is_asked_for_alone() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server).await;
    let locks = builder(&proxy.url()).lease(6 * SECOND).connect().await.unwrap();
    // The locks are granted together, so that at least two of them are due together.
    let mutexes = ["one", "two", "three"].map(|name| locks.mutex(name));
    let guards = join_all(mutexes.iter().map(Mutex::lock)).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let of = |keys: usize| move |command: &Command| command.is("renew_all") && command.keys().len() == keys;
    let [two, three] = [(2, "*2\r\n:-2\r\n:-2"), (3, "*3\r\n:-2\r\n:-2\r\n:-2")]
        .map(|(keys, missing)| proxy.on(of(keys)).replace_reply(missing));
    server.ask::<()>(&["DEL", "two"]).await;
    soon("a renewal of several", async {
        tokio::select! {
            _ = two.done() => {}
            _ = three.done() => {}
        }
    })
    .await;
    assert_eq!(soon("its loss", guards[1].lost()).await, Loss::Gone);
    for guard in [&guards[0], &guards[2]] {
        guard.check().await.unwrap();
    }
    assert!(!guards[0].is_lost() && !guards[2].is_lost());
}
