//! What messages of several masters mean to whoever sleeps.

use super::*;
use crate::queue::{Phase, Request};
use crate::room::Hearing;

#[test]
fn one_release_that_each_master_tells_of_wakes_once() {
    let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
    let name: Arc<str> = "stock".into();
    let names = Arc::new(Names::new("", "stock"));
    let mut room = Room::new(names, Place { registry: nobody, name });
    let now = Instant::now();
    let (owner, later) = (Owner::new(), now + LEASE);
    room.enter(Request::new(1, owner.clone(), owner, false, now)).unwrap();
    (room.hearing, room.heard) = (Hearing::On, Nodes::first(3));
    let mut is_woken = |node: usize| {
        room.sleeps(1, later);
        room.message(node, now);
        room.queue.get_mut(1).is_some_and(|request| request.phase == Phase::Waiting)
    };
    assert!(is_woken(0), "the first that tells of it");
    assert!(!is_woken(1) && !is_woken(2), "the others tell of the same");
    assert!(is_woken(1), "one that speaks again tells of another");
    assert!(!is_woken(0) && !is_woken(2));
}
