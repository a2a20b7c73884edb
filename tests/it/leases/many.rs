//! Many holds, one watchdog.

use super::SECOND;
use crate::support::builder;
use crate::support::server::Server;

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
    let runs = async || server.commands_run().await["evalsha"] as usize;
    let (reads_before, runs_before) = (reads().await, runs().await);
    let lasts = guards.iter().map(|guard| guard.valid_until()).max().unwrap();
    // Two leases later all have been renewed several times.
    tokio::time::sleep_until(lasts + 6 * SECOND).await;
    let (reads, runs) = (reads().await - reads_before, runs().await - runs_before);
    // A hundred at once.
    assert!(100 * runs >= 4 * HOLDS && runs < HOLDS, "{runs} commands");
    assert!(reads < HOLDS / 2, "{reads} reads");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(server.keys().await.len(), HOLDS);
    drop(guards);
    locks.close().await.unwrap();
    assert!(server.keys().await.is_empty());
}
