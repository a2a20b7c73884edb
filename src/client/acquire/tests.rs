use tokio::time::advance;

use super::*;
use crate::Locks;
use crate::client::answer::Asks;

/// Otherwise requests that compete for slow masters would pause for the shortest time every time.
#[tokio::test(start_paused = true)]
async fn a_pause_is_long_ago_by_when_the_attempt_after_it_was_sent() {
    let locks = Locks::in_memory();
    let (mut attempted, second) = (Attempts::default(), Duration::from_secs(1));
    for pauses in 0..10 {
        let asked = Instant::now();
        // The attempt takes longer than any pause.
        advance(2 * second).await;
        let pause = attempted.next_pause(asked, locks.session());
        assert_eq!(attempted.pauses, pauses);
        attempted.note_pause(after(Instant::now(), pause));
        advance(pause).await;
    }
    advance(2 * second).await;
    attempted.next_pause(Instant::now(), locks.session());
    assert_eq!(attempted.pauses, 0);
}

/// A loop of nested runs has to let other tasks run.
#[tokio::test]
async fn each_nested_level_that_is_granted_at_once_takes_a_part_of_the_budget() {
    let stock = Locks::in_memory().mutex("stock");
    let _held = stock.lock().await.unwrap();
    let child = || {
        let mut request = stock.request(None);
        let call = request.call_mut();
        (call.bare, call.owner) = (false, Some(Owner::current().child()));
        request
    };
    let granted = poll_fn(|cx| {
        let at_once = (0..1000).take_while(|_| child().poll(cx).is_ready()).count();
        Poll::Ready(at_once)
    });
    let granted = granted.await;
    assert!((1..1000).contains(&granted), "{granted}");
}
