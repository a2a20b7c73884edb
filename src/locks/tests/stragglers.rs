//! Masters whose answers come after the verdict: what they have of a hold that is no more is ended there too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::sleep;

use crate::{Locks, Memory};

async fn locks<'a>(stores: impl IntoIterator<Item = &'a Memory>) -> Locks {
    let builder = stores.into_iter().fold(Locks::builder(), |builder, store| builder.memory(store));
    builder.connect().await.unwrap()
}

fn shown(stores: &[Memory]) -> Vec<bool> {
    stores.iter().map(|store| format!("{store:?}") != "Memory { locks: {} }").collect()
}

/// What one master granted is ended at once; what another grants later must not be forgotten with it.
#[tokio::test(start_paused = true)]
async fn a_late_grant_is_ended_also_where_another_was_ended_before() {
    let stores: Vec<_> = (0..5).map(|_| Memory::new()).collect();
    let (ours, theirs) = (locks(&stores).await, locks(&stores[1..4]).await);
    let held = theirs.mutex("stock").lock().await.unwrap();
    stores[4].stall(Duration::from_millis(300));
    assert!(ours.mutex("stock").try_lock().await.unwrap().is_none());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(shown(&stores), [false, true, true, true, false]);
    held.release().await.unwrap();
}

/// The answer to a re-entry never comes, and then neither does that to the end of the hold: the second one counts.
#[tokio::test(start_paused = true)]
async fn an_end_that_a_master_did_not_hear_of_is_sent_again_though_an_earlier_command_was_lost_there_too() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let stock = locks(&stores).await.mutex("stock");
    let outer = stock.lock().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    stores[2].visit(|store| store.loses = Some(Box::new(|| true)));
    let inner = stock.lock().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    sleep(Duration::from_millis(550)).await;
    stores[2].visit(|store| store.loses = None);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(shown(&stores), [false; 3]);
}

/// The masters that came back empty have another's key, left there by a late command: nothing can be repaired.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_put_right_is_tried_again_after_a_pause() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let guard = locks(&stores).await.mutex("stock").lock().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let (mut ghosts, commands) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for store in &stores[..2] {
        let theirs = locks([store]).await;
        store.restart_empty();
        ghosts.push(theirs.mutex("stock").lock().await.unwrap());
        let counted = commands.clone();
        // Without an end of it no time would pass here.
        store.visit(|store| store.loses = Some(Box::new(move || counted.fetch_add(1, SeqCst) > 500)));
    }
    sleep(Duration::from_secs(15)).await;
    assert!(!guard.is_lost());
    let commands = commands.load(SeqCst);
    assert!((4..100).contains(&commands), "{commands} commands");
}
