//! What the confirmations of several masters mean to a head that sleeps.

use super::*;
use crate::table::entry::Subscription;
use crate::table::queue::{Waiter, WaiterState};

/// What a majority of three masters publishes is reported by one of two.
#[test]
fn a_head_asks_again_once_each_majority_has_a_master_that_confirmed() {
    let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
    let position = Position { session: nobody, name: "stock".into() };
    let terms = Terms { masters: 3, ..World::new(1).terms };
    let mut entry = LockEntry::new(Arc::new(Keys::new("", "stock")), position, terms);
    let now = Instant::now();
    let (at, later) = (Moment { now, slept: Duration::ZERO }, now + LEASE);
    let owner = Owner::new();
    entry.enter(Waiter::new(1, owner.clone(), owner, false, now)).unwrap();
    entry.subscription = Subscription::Asked;
    let mut asks_behind = |master: usize| {
        entry.sleeps(1, later);
        entry.subscribed(master, at);
        entry.queue.get(1).is_some_and(|request| request.phase == WaiterState::Waiting)
    };
    assert!(asks_behind(0));
    assert!(!asks_behind(0), "it was subscribed there before");
    assert!(asks_behind(1));
    assert!(!asks_behind(2), "one that a majority has reports");
}
