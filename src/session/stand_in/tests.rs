use std::sync::{Mutex, mpsc};

use super::lock_for_a_moment;

/// Two runtimes that take their first locks at the same moment both have to be attended.
#[test]
fn a_session_that_begins_while_another_one_does_waits_for_it() {
    let mutex = Mutex::new(());
    let (locked, is_locked) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let mutex = &mutex;
        scope.spawn(move || {
            let held = mutex.lock().unwrap();
            locked.send(()).unwrap();
            is_ready.recv().unwrap();
            drop(held);
        });
        is_locked.recv().unwrap();
        let waits = scope.spawn(|| {
            ready.send(()).unwrap();
            lock_for_a_moment(mutex).is_some()
        });
        assert!(waits.join().unwrap());
    });
}

/// In the child of a fork nobody unlocks it.
#[test]
fn what_nobody_unlocks_is_not_waited_for_for_ever() {
    let mutex = Mutex::new(());
    let _held = mutex.lock().unwrap();
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| lock_for_a_moment(&mutex).is_none()).join().unwrap());
    });
}
