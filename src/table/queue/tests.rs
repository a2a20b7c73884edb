use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

const LATE: Duration = HEAD_PATIENCE;

fn request(id: u64, owner: &Owner, bare: bool, now: Instant) -> Waiter {
    Waiter::new(id, owner.clone(), bare, now)
}

fn queue_of(owners: &[&Owner], now: Instant) -> Queue {
    let mut queue = Queue::default();
    for (id, owner) in (1..).zip(owners) {
        queue.enter(request(id, owner, true, now), false).unwrap();
    }
    queue
}

fn branches(queue: &mut Queue) -> Vec<bool> {
    queue.iter_mut().map(|request| request.branch).collect()
}

/// Returns how many are woken, and how many are passed over.
fn check(queue: &mut Queue, head: u64, now: Instant) -> (usize, usize) {
    let mut out = Out::default();
    let count = queue.check(head, now, &mut out);
    (out.made().wake.len(), count)
}

#[test]
fn two_bare_requests_of_one_owner_prove_branches() {
    let (now, one, two) = (Instant::now(), Owner::new(), Owner::new());
    assert_eq!(branches(&mut queue_of(&[&one, &two], now)), [false, false]);
    assert_eq!(branches(&mut queue_of(&[&one, &two, &one], now)), [true, false, true]);
    let mut queue = queue_of(&[&one], now);
    queue.enter(request(2, &one, false, now), false).unwrap();
    assert_eq!(branches(&mut queue), [false, false], "a request by `run` proves nothing");
}

#[test]
fn after_the_proof_a_request_of_a_holder_is_ambiguous() {
    let (now, owner) = (Instant::now(), Owner::new());
    let mut queue = queue_of(&[&owner, &owner], now);
    assert_eq!(queue.enter(request(3, &owner, true, now), true), Err(Ambiguous));
    queue.enter(request(4, &owner, false, now), true).unwrap();
    queue.enter(request(5, &owner, true, now), false).unwrap();
    assert_eq!(queue.len(), 4);
}

#[test]
fn a_proof_stands_until_its_owner_has_neither_hold_nor_request() {
    let (now, owner) = (Instant::now(), Owner::new());
    let mut queue = queue_of(&[&owner, &owner], now);
    queue.remove(1).unwrap();
    queue.forget_proofs(|_| false);
    assert_eq!(queue.enter(request(3, &owner, true, now), true), Err(Ambiguous));
    queue.remove(2).unwrap();
    queue.forget_proofs(|_| true);
    assert_eq!(queue.enter(request(4, &owner, true, now), true), Err(Ambiguous));
    queue.forget_proofs(|_| false);
    queue.enter(request(5, &owner, true, now), true).unwrap();
    assert_eq!(branches(&mut queue), [false]);
}

/// In this order: 1. Branches of an owner are proven. 2. Its requests and its hold are over, and the entry is
/// kept for the next use.
#[test]
fn no_proof_is_left_of_a_queue_that_rests() {
    let (now, owner) = (Instant::now(), Owner::new());
    let mut queue = queue_of(&[&owner, &owner], now);
    let _ = [1, 2].map(|id| queue.remove(id).unwrap());
    queue.reset();
    queue.enter(request(3, &owner, true, now), true).unwrap();
    assert_eq!(branches(&mut queue), [false]);
}

#[test]
fn requests_that_get_one_owner_by_inheritance_are_branches() {
    let (now, heir) = (Instant::now(), Owner::new());
    let (one, two) = (heir.child(), heir.child());
    let mut queue = queue_of(&[&one, &two], now);
    queue.pass_on(&one, || heir.clone());
    assert_eq!(branches(&mut queue), [false, false]);
    queue.pass_on(&two, || heir.clone());
    assert_eq!(branches(&mut queue), [true, true]);
    assert_eq!(queue.enter(request(3, &heir, true, now), true), Err(Ambiguous));
}

#[test]
fn a_woken_head_that_does_not_come_is_passed_over_until_it_is_polled() {
    let (now, one, two) = (Instant::now(), Owner::new(), Owner::new());
    let mut queue = queue_of(&[&one, &two], now);
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let head = |queue: &Queue| queue.front(|_| true).map(|front| front.id);
    let _ = queue.get_mut(1).unwrap().polled(&waker, now);
    assert_eq!(queue.late_at(1), None, "it waits for nothing of its own");
    queue.get_mut(1).unwrap().wake(now).unwrap().wake();
    assert!(queue.get_mut(1).unwrap().wake(now).is_none(), "once for each poll");
    assert_eq!(queue.late_at(1), Some(now + LATE));
    assert_eq!(check(&mut queue, 1, now), (0, 0));
    assert_eq!(head(&queue), Some(1));
    assert_eq!(check(&mut queue, 1, now + LATE), (0, 1));
    assert_eq!((head(&queue), count.0.load(SeqCst)), (Some(2), 1));
    let _ = queue.get_mut(1).unwrap().polled(&waker, now + LATE);
    assert_eq!(head(&queue), Some(1));
}

#[test]
fn a_head_that_overslept_is_woken_before_it_is_passed_over() {
    let (now, one, two) = (Instant::now(), Owner::new(), Owner::new());
    let mut queue = queue_of(&[&one, &two], now);
    let _ = queue.get_mut(1).unwrap().polled(Waker::noop(), now);
    let until = now + Duration::from_secs(1);
    for (phase, since) in [(WaiterState::Asking, now), (WaiterState::Asleep { until }, until)] {
        queue.get_mut(1).unwrap().phase = phase;
        assert_eq!(queue.late_at(1), Some(since + LATE));
    }
    assert_eq!(check(&mut queue, 1, until + LATE), (1, 0));
    assert_eq!(queue.late_at(1), Some(until + 2 * LATE));
    check(&mut queue, 1, until + 2 * LATE);
    assert_eq!(queue.front(|_| true).unwrap().id, 2);
    // Alone in the queue, it keeps nobody waiting.
    queue.remove(2).unwrap();
    assert_eq!(queue.late_at(1), None);
}

/// A request that wants an answer at once looks whether the head is late, and passes over it.
#[test]
fn a_head_that_does_not_look_at_its_answer_is_passed_over() {
    let (now, one, two) = (Instant::now(), Owner::new(), Owner::new());
    let patience = Duration::from_secs(1);
    for (phase, is_late) in [(WaiterState::Asking, true), (WaiterState::Waiting, false)] {
        let mut queue = queue_of(&[&one, &two], now);
        let _ = queue.get_mut(1).unwrap().polled(Waker::noop(), now);
        queue.get_mut(1).unwrap().phase = phase;
        assert_eq!(queue.pass_over(1, now + patience - Duration::from_millis(1), patience), 0);
        assert_eq!(queue.pass_over(1, now + patience, patience), usize::from(is_late));
        assert_eq!(queue.front(|_| true).map(|front| front.id), Some(if is_late { 2 } else { 1 }));
    }
}

#[test]
fn a_head_that_was_polled_after_its_sleep_is_not_late_at_once() {
    let (now, one, two) = (Instant::now(), Owner::new(), Owner::new());
    let mut queue = queue_of(&[&one, &two], now);
    // The sleep of the first one is over, and a command of its own process goes before it.
    queue.get_mut(1).unwrap().phase = WaiterState::Asleep { until: now };
    let polled = now + 3 * LATE;
    let _ = queue.get_mut(1).unwrap().polled(Waker::noop(), polled);
    assert_eq!(queue.late_at(1), Some(polled + LATE), "otherwise it would be woken again and again");
    assert_eq!(check(&mut queue, 1, polled), (0, 0));
}

#[test]
fn who_polls_last_is_woken() {
    let (now, owner) = (Instant::now(), Owner::new());
    let mut queue = queue_of(&[&owner], now);
    let [first, last] = [(); 2].map(|()| Arc::<Count>::default());
    let request = queue.get_mut(1).unwrap();
    assert!(request.polled(&Waker::from(first.clone()), now).is_none());
    let before = request.polled(&Waker::from(last.clone()), now).expect("it is not dropped here");
    request.wake(now).unwrap().wake();
    assert_eq!((first.0.load(SeqCst), last.0.load(SeqCst)), (0, 1));
    before.wake();
    assert_eq!(first.0.load(SeqCst), 1);
}

#[test]
fn a_sleep_is_over_at_its_end() {
    let (now, owner) = (Instant::now(), Owner::new());
    let mut request = request(1, &owner, true, now);
    let until = now + LATE;
    for phase in [WaiterState::Asleep { until }, WaiterState::Pausing { until }] {
        request.phase = phase;
        let looks = [until - Duration::from_millis(1), until, until + LATE];
        assert_eq!(looks.map(|now| request.sleeps_until(now)), [Some(until), None, None]);
    }
}

/// A queue of many knows which trees have requests in it, without a look at each request.
#[test]
fn requests_of_a_tree_are_found_among_many_until_the_last_of_them_goes() {
    let now = Instant::now();
    let (tree, strangers) = (Owner::new(), Owner::new());
    let mut queue = Queue::default();
    let enter = |queue: &mut Queue, id: u64, owner: Owner| {
        queue.enter(Waiter::new(id, owner, false, now), false).unwrap();
    };
    (0..2 * MANY as u64).for_each(|id| enter(&mut queue, id, strangers.child()));
    assert!(queue.may_have_kin(&strangers) && !queue.may_have_kin(&tree));
    enter(&mut queue, 100, tree.child().child());
    enter(&mut queue, 101, tree.child());
    for id in [100, 101] {
        assert!(queue.may_have_kin(&tree) && queue.may_have_kin(&tree.child()));
        queue.remove(id);
    }
    assert!(!queue.may_have_kin(&tree));
    (0..2 * MANY as u64).for_each(|id| drop(queue.remove(id)));
    assert!(queue.0.is_some_and(|waiters| waiters.per_tree.is_empty()), "few are looked at one by one");
}

#[test]
fn the_room_of_a_queue_goes_to_whoever_asks_next() {
    let (now, owner, mut free) = (Instant::now(), Owner::new(), FreeQueues::default());
    let [mut queue, mut next] = [Queue::default(), Queue::default()];
    queue.take_memory(&mut free);
    assert!(queue.0.is_none(), "there is none yet");
    queue.enter(request(1, &owner, true, now), false).unwrap();
    queue.return_memory(&mut free);
    assert!(free.0.is_empty() && queue.len() == 1, "it asks");
    queue.remove(1).unwrap();
    queue.return_memory(&mut free);
    assert!(queue.0.is_none() && free.0.len() == 1);
    next.take_memory(&mut free);
    assert!(next.0.is_some() && next.is_empty() && free.0.is_empty());
    next.wake_on_command_end(Waker::noop().clone());
    next.return_memory(&mut free);
    assert!(
        free.0.is_empty() && next.command_waiters().is_some_and(|command_waiters| command_waiters.len() == 1),
        "it waits"
    );
    (0..2 * MANY as u64).for_each(|id| next.enter(request(id, &owner, false, now), false).unwrap());
    (0..2 * MANY as u64).for_each(|id| drop(next.remove(id)));
    next.return_memory(&mut free);
    assert!(next.0.is_none() && free.0.is_empty(), "the memory of many requests is not kept");
}

/// One task has many requests, and polls none of them. After them comes one of another task, which is polled
/// when it is woken.
#[test]
fn those_that_do_not_come_are_passed_over_together() {
    let (mut now, neglected, healthy) = (Instant::now(), Owner::new(), Owner::new());
    let mut queue = Queue::default();
    for id in 1..=500 {
        queue.enter(request(id, &neglected, false, now), false).unwrap();
    }
    queue.enter(request(501, &healthy, false, now), false).unwrap();
    let mut passed_over = 0;
    loop {
        let front = queue.front(|_| true).unwrap().id;
        if front == 501 {
            break;
        }
        queue.get_mut(front).unwrap().wake(now);
        now += LATE;
        // The last one is polled, though it is not its turn.
        let _ = queue.get_mut(501).unwrap().polled(Waker::noop(), now);
        let (_, count) = check(&mut queue, front, now);
        assert!(count > 0, "{front} was polled");
        passed_over += 1;
        let _ = queue.wake_ahead(count, now);
    }
    assert!(passed_over <= 5, "{passed_over} times 50 ms");
    // Requests that were passed over take their places again once they are polled.
    for id in [7, 3] {
        let _ = queue.get_mut(id).unwrap().polled(Waker::noop(), now);
        assert_eq!(queue.front(|_| true).unwrap().id, id);
    }
}

/// In this order: 1. A head is passed over, and the next ones are woken. 2. They are polled.
#[test]
fn those_that_come_are_not_passed_over_with_one_that_does_not() {
    let (now, owners) = (Instant::now(), [Owner::new(), Owner::new(), Owner::new()]);
    let mut queue = queue_of(&owners.each_ref(), now);
    let _ = queue.get_mut(2).unwrap().polled(Waker::noop(), now);
    queue.get_mut(1).unwrap().wake(now);
    assert_eq!(check(&mut queue, 1, now + LATE), (0, 1));
    assert_eq!(queue.wake_ahead(1, now + LATE).len(), 1, "it was polled before, and the third one never");
    let _ = queue.get_mut(2).unwrap().polled(Waker::noop(), now + LATE);
    assert_eq!(check(&mut queue, 2, now + 2 * LATE), (0, 0));
    assert_eq!(queue.front(|_| true).unwrap().id, 2);
}

/// Requests that have been passed over for long, since nobody polls them, do not make this wake others again.
#[test]
fn as_many_are_woken_ahead_as_are_newly_passed_over() {
    let (now, owners) = (Instant::now(), [(); 60].map(|()| Owner::new()));
    let mut queue = queue_of(&owners.each_ref(), now);
    for id in 1..=60 {
        let _ = queue.get_mut(id).unwrap().polled(Waker::noop(), now);
    }
    let mut at = now;
    for (late, round) in [(1, 0), (2, 1), (3, 2)] {
        queue.get_mut(late).unwrap().wake(at);
        at += LATE;
        let (_, count) = check(&mut queue, late, at);
        assert!(count > 0, "{late} was polled");
        assert_eq!((count, queue.wake_ahead(count, at).len()), (1, WOKEN_AHEAD), "{round} before");
        // All others are polled.
        for id in late + 1..=60 {
            let _ = queue.get_mut(id).unwrap().polled(Waker::noop(), at);
        }
    }
}
