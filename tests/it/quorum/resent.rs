//! Commands that are sent a second time, with the text of their script, after their hold has ended.

use futures::poll;

use super::SECOND;
use super::servers::{over, over_urls, servers};
use crate::support::proxy::Proxy;
use crate::support::{eventually, scripts, soon};

/// 1. The third master doesn't know the acquire's script; the other two grant. 2. The end of the hold runs on the third master, and finds
/// nothing. 3. The acquire runs there, by the text of its script. 4. The client reads its answer before the answer of the end.
#[tokio::test]
async fn a_field_that_is_made_after_the_end_of_its_hold_is_ended() {
    let servers = servers(3).await;
    let proxy = Proxy::to(&servers[2]).await;
    let builder = over_urls([servers[0].url(), servers[1].url(), proxy.url()]).lease(600 * SECOND);
    let locks = builder.connect().await.unwrap();
    let stock = locks.mutex("stock");
    // After this all scripts are sent by their hashes.
    soon("the first lock", stock.lock()).await.unwrap().release().await.unwrap();
    assert!(!soon("the first look", stock.is_locked()).await.unwrap());
    eventually("all at the third master", async || servers[2].scripts_run().await >= 3).await;
    servers[2].reset_commands_run().await;
    servers[2].ask::<()>(&["SCRIPT", "FLUSH"]).await;
    for known in scripts::all().iter().filter(|script| ["look", "release"].contains(&script.name)) {
        servers[2].ask::<String>(&["SCRIPT", "LOAD", &known.body]).await;
    }

    // Everything after that reply waits too, so "unknown script" is read only after the end has run.
    let replies = proxy.on(|command| command.is("look")).times(1).hold_reply();
    assert!(!soon("a look", stock.is_locked()).await.unwrap());
    replies.done().await;
    let guard = soon("the lock", stock.lock()).await.unwrap();
    let ends = proxy.on(|command| command.is("release")).watch();
    let again = proxy.on(|command| command.name == "EVAL" && command.is("acquire")).watch();
    let mut release = Box::pin(guard.release());
    assert!(poll!(&mut release).is_pending());
    ends.seen().await;
    eventually("the end", async || servers[2].commands_run().await.contains_key("hdel")).await;
    drop(replies);
    again.seen().await;
    eventually("the field", async || servers[2].keys().await == ["stock"]).await;
    // The answer of the third master to this look comes after its answer to the acquire.
    servers[0].freeze();
    assert!(!soon("a look", locks.mutex("another").is_locked()).await.unwrap());
    tokio::task::yield_now().await;
    servers[0].thaw();
    soon("the release", release).await.unwrap();
    eventually("the end of what was made", async || servers[2].keys().await.is_empty()).await;
}

/// No fault of the network is involved: each master forgets its scripts while many tasks lock and release.
#[tokio::test]
async fn scripts_that_are_forgotten_leave_no_field_behind() {
    let servers = servers(3).await;
    let builder = || over(&servers).lease(600 * SECOND);
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(builder().connect().await.unwrap());
    }
    for _ in 0..4 {
        for server in &servers {
            server.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        }
        let users = all.iter().map(|locks| async {
            for _ in 0..10 {
                soon("a run", locks.mutex("stock").run(async |_| {})).await.unwrap();
            }
        });
        futures::future::join_all(users).await;
        eventually("all are free", async || super::servers::are_free(&servers).await).await;
    }
}
