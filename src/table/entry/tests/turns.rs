//! Which command goes first: what is sent, and what waits.

use super::*;

impl World {
    /// Returns what the background sends now.
    pub(super) fn sends(&mut self) -> Vec<Pending> {
        self.entry.check(self.at(), MasterSet::NONE, &self.numbers)
    }
}

/// Another process holds the lock. A head was passed over, so that the next request asked, and was polled
/// afterwards. Both have asked and sleep, and the first one is the front again.
fn two_that_sleep() -> (World, [u64; 2]) {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    world.answers(first);
    world.confirm();
    while !world.is_woken(second) {
        world.pass(STEP);
    }
    world.poll(world.asker(second));
    world.answers(second);
    world.poll(world.asker(first));
    world.answers(first);
    assert!(!world.is_woken(first) && !world.is_woken(second), "both sleep");
    (world, [first, second])
}

/// First, two requests sleep. 1. A message wakes the first one. 2. It goes without having asked.
#[test]
fn a_new_head_asks_though_it_has_asked_and_gone_to_sleep_before() {
    let (mut world, [first, second]) = two_that_sleep();
    world.master.messages = 1;
    world.confirm();
    assert!(world.is_woken(first) && !world.is_woken(second));
    let at = world.asker(first);
    world.go(at);
    assert!(world.is_woken(second), "it still sleeps, though the lock may be free");
}

/// First, two requests sleep. 1. The lock is released, and the message wakes the first one. 2. It is not polled, and is passed
/// over.
#[test]
fn whoever_follows_one_that_is_passed_over_asks_though_it_has_asked_and_gone_to_sleep_before() {
    let (mut world, [first, second]) = two_that_sleep();
    (world.master.key, world.master.messages) = (None, 1);
    world.confirm();
    assert!(world.is_woken(first) && !world.is_woken(second));
    // For less time than until the second one would ask again by itself.
    for _ in 0..20 {
        world.pass(STEP);
        if world.is_woken(second) {
            world.poll(world.asker(second));
            assert!(
                world.askers[world.asker(second)].asking.is_some(),
                "it still sleeps, though the lock is free"
            );
            return;
        }
    }
    panic!("nothing wakes the second request");
}

/// Two commands of a hold could overtake each other.
#[test]
fn nothing_of_a_hold_is_sent_while_a_command_of_it_is_under_way() {
    let all = ["a renewal", "a settle", "an extension", "a re-entry", "a nested release"];
    for (under_way, is_doubted) in all.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let mut world = World::new(1);
        let owner = world.owners[0].clone();
        let (granted, level) = world.take();
        let (longer, waker) = (Lease::new("lease", 2 * LEASE, DRIFT).unwrap(), Waker::noop());
        let enters = |world: &mut World| {
            let (id, command_id) = (world.number(), world.number());
            world.entry.enter_alone(Waiter::new(id, owner.clone(), false, world.now)).unwrap();
            let lease = world.timing.lease;
            (id, world.entry.admit(id, AcquireParams::plain(command_id, lease), world.at()))
        };
        let (id, Admission::Ask(nested)) = enters(&mut world) else { panic!("it may enter") };
        if under_way != "a re-entry" {
            let (inner, lease, at) = (world.number(), world.timing.lease, world.at());
            let new = NewLevel::watched(inner, lease);
            world.entry.granted(&Grantee::Waiter(id), &nested, &new, Spread::default(), at).unwrap();
            let sent = match under_way {
                "a renewal" => {
                    world.now += LEASE / 3;
                    matches!(
                        world.sends()[..],
                        [Pending { call: Call { action: Action::Renew { .. }, .. }, .. }]
                    )
                }
                "a settle" => {
                    world.entry.doubt_all(world.now);
                    matches!(
                        world.sends()[..],
                        [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]
                    )
                }
                "an extension" => world
                    .entry
                    .begin_renewal(granted.hold, Some((inner, longer)), 90, waker, at.now)
                    .is_some(),
                _ => matches!(world.entry.leave(granted.hold, inner, Some(90), at), Continue(_)),
            };
            assert!(sent, "{under_way}");
        }
        let (_, turn) = enters(&mut world);
        assert!(matches!(turn, Admission::Wait(_) | Admission::Refused(_)), "beside {under_way}: {turn:?}");
        let extension = world.entry.begin_renewal(granted.hold, Some((level, longer)), 91, waker, world.now);
        assert!(extension.is_none(), "beside {under_way}");
        if is_doubted {
            world.entry.doubt_all(world.now);
        }
        let sent = world.sends();
        assert!(sent.is_empty(), "beside {under_way}: {sent:?}");
        let release = world.entry.leave(granted.hold, level, Some(92), world.at());
        assert!(matches!(release, Break(Meaning::Void)), "beside {under_way}: {release:?}");
        let sent = world.sends();
        assert!(sent.is_empty(), "beside {under_way}: {sent:?}");
    }
}

impl World {
    /// Takes a level of this owner, with a fixed lease.
    pub(super) fn takes_for(&mut self, owner: &Owner, lease: Duration) -> u64 {
        let id = self.asks(owner, false);
        let at = self.asker(id);
        let pending = self.askers[at].asking.take().expect("nobody is before it");
        self.askers[at].lease = Lease::new("lease", lease, DRIFT).unwrap();
        self.askers[at].fixed = true;
        self.grant(at, &pending);
        self.guards.last().expect("it was granted").level
    }
}

/// Otherwise the key would stand for the lease of the longer level.
#[test]
fn a_hold_whose_longer_level_went_is_ended_though_a_guard_is_left() {
    let mut world = World::new(1);
    let owner = Owner::new();
    world.takes_for(&owner, LEASE / 3);
    let longer = world.takes_for(&owner, 2 * LEASE);
    let hold = world.guards[0].hold;
    let (command_id, at) = (world.number(), world.at());
    let Continue(release) = world.entry.leave(hold, longer, Some(command_id), at) else {
        panic!("it is held")
    };
    world.entry.conclude(&release, Ok(&Reply::Done), Spread::default(), at);
    world.now += LEASE / 3;
    let sent = world.sends();
    assert!(matches!(&sent[..], [end] if end.is_end()), "{sent:?}");
    assert_eq!(world.guards[0].signal.loss(), Some(Loss::Expired));
}

#[test]
fn a_grant_whose_lease_is_over_is_undone() {
    for (passed, is_late) in [(LEASE - Duration::from_millis(1), false), (LEASE, true)] {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let pending = world.askers[0].asking.take().unwrap();
        world.now += passed;
        let new = NewLevel::watched(90, world.timing.lease);
        let granted =
            world.entry.granted(&Grantee::Waiter(id), &pending, &new, Spread::default(), world.at());
        assert_eq!(granted.err(), is_late.then_some(NotHeld::Late));
        let ends = world.sends().iter().filter(|sent| sent.is_end()).count();
        assert_eq!(ends, usize::from(is_late));
    }
}

/// In this order: 1. A request is granted, and is not polled. 2. The lock is released by force. 3. The next
/// request in the queue asks, and is granted. 4. The first one is polled.
#[test]
fn a_grant_is_undone_where_a_hold_that_was_asked_for_later_lives() {
    let mut world = World::new(1);
    world.faults = false;
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    world.entry.wake_requests(world.now);
    world.wake();
    world.pass(Duration::from_millis(60));
    world.poll(world.asker(second));
    world.answers(second);
    let later = world.entry.live().expect("it is granted").id;
    let at = world.asker(first);
    let pending = world.askers[at].asking.take().unwrap();
    let new = NewLevel::watched(90, world.timing.lease);
    let granted = world.entry.granted(&Grantee::Waiter(first), &pending, &new, Spread::default(), world.at());
    assert_eq!(granted.err(), Some(NotHeld::Taken));
    assert_eq!(world.entry.live().map(|live| live.id), Some(later));
    assert!(world.guards.iter().all(|guard| guard.signal.loss().is_none()));
}

#[test]
fn a_release_that_had_no_answer_twice_holds_nobody_back() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let command_id = world.number();
    let Continue(release) = world.entry.leave(granted.hold, level, Some(command_id), world.at()) else {
        panic!("it is held")
    };
    let stranger = world.asks(&Owner::new(), true);
    let asks = |world: &World| world.askers[world.asker(stranger)].asking.is_some();
    world.entry.conclude(&release, Err(Outcome::Unknown), Spread::default(), world.at());
    world.wake();
    assert!(!world.is_woken(stranger));
    world.poll(world.asker(stranger));
    assert!(!asks(&world), "after the release, which is sent once more");
    let sent = world.sends();
    let [again] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(again, Err(Outcome::Unknown), Spread::default(), world.at());
    world.wake();
    assert!(world.is_woken(stranger));
    world.poll(world.asker(stranger));
    assert!(asks(&world));
}

#[test]
fn what_this_process_releases_goes_before_what_it_asks() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    assert!(matches!(world.entry.leave(granted.hold, level, None, world.at()), Break(Meaning::Void)));
    let stranger = world.asks(&Owner::new(), true);
    let asks = |world: &World| world.askers[world.asker(stranger)].asking.is_some();
    assert!(!asks(&world), "it would meet the hold of its own process");
    let sent = world.sends();
    let [release] = &sent[..] else { panic!("{sent:?}") };
    world.poll(world.asker(stranger));
    assert!(!asks(&world));
    world.entry.conclude(release, Ok(&Reply::Done), Spread::default(), world.at());
    world.poll(world.asker(stranger));
    assert!(asks(&world));
}

/// Another process keeps the head waiting. A message that arrives while it asks makes it ask once more.
#[test]
fn a_head_that_was_notified_while_it_asked_does_not_sleep() {
    for notified in [false, true] {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let pending = world.askers[0].asking.take().unwrap();
        if notified {
            world.entry.subscription = Subscription::by(MasterSet::one(0));
            world.entry.message(0, world.now);
        }
        let until = world.now + LEASE;
        world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), Spread::default(), world.at());
        world.entry.refused(id, Refusal::until(until));
        assert_eq!(world.entry.queue.get(id).is_some_and(Waiter::is_asleep), !notified);
    }
}

#[test]
fn who_is_not_subscribed_yet_does_not_rely_on_messages() {
    let mut world = World::new(1);
    let id = world.asks(&Owner::new(), true);
    let pending = world.askers[0].asking.take().unwrap();
    let until = world.now + LEASE;
    world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), Spread::default(), world.at());
    world.entry.refused(id, Refusal::until(until));
    assert_eq!(world.entry.subscription_change(world.now), Some(true));
    assert!(!world.entry.is_subscribed());
    world.entry.subscribed(0, world.at());
    assert!(world.entry.is_subscribed());
}

/// A full server defers the count, which is written later.
#[test]
fn a_count_that_was_put_off_is_settled() {
    let mut world = World::new(1);
    let owner = Owner::new();
    world.takes_for(&owner, LEASE);
    let inner = world.takes_for(&owner, LEASE);
    let hold = world.guards[0].hold;
    let (command_id, at) = (world.number(), world.at());
    let Continue(release) = world.entry.leave(hold, inner, Some(command_id), at) else {
        panic!("it is held")
    };
    let full = Reply::Deferred("full".into());
    assert_eq!(world.entry.conclude(&release, Ok(&full), Spread::default(), at), Meaning::Done);
    assert!(world.sends().is_empty(), "without a pause");
    world.now += world.timing.retry;
    let sent = world.sends();
    assert!(
        matches!(&sent[..], [Pending { call: Call { action: Action::Settle { count: 1, .. }, .. }, .. }]),
        "{sent:?}"
    );
}

/// The command is given up if it keeps another request waiting, and only then.
#[test]
fn a_command_of_a_future_that_is_not_polled_is_given_up() {
    for waits in [false, true] {
        let mut world = World::new(1);
        world.asks(&Owner::new(), true);
        if waits {
            world.asks(&Owner::new(), true);
        }
        world.now += world.timing.patience - Duration::from_millis(1);
        assert!(world.sends().is_empty());
        world.now += Duration::from_millis(1);
        let sent = world.sends();
        assert_eq!(sent.iter().filter(|sent| sent.is_end()).count(), usize::from(waits), "{sent:?}");
    }
}

#[test]
fn what_a_master_may_have_is_forgotten_once_its_lease_is_over() {
    let mut world = World::new(1);
    let bygone = world.bygone();
    world.entry.straggled(&bygone, 2, LateAnswer::Done, world.now);
    assert!(!world.entry.is_empty());
    world.now += LEASE;
    assert!(world.sends().is_empty());
    assert!(world.entry.is_empty());
}

/// Nobody polls the guard's release, and one request waits for it.
#[test]
fn a_release_that_is_not_polled_is_given_up_for_one_that_waits() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let command_id = world.number();
    assert!(matches!(world.entry.leave(granted.hold, level, Some(command_id), world.at()), Continue(_)));
    world.asks(&Owner::new(), true);
    world.now += world.timing.patience;
    let sent = world.sends();
    assert!(matches!(&sent[..], [end] if end.is_end() && end.repeated), "{sent:?}");
}

/// Passing over does not depend on how many wait after the head.
#[test]
fn a_head_that_does_not_come_is_passed_over_before_few_and_before_many() {
    for waiting in [2, 3, 9] {
        let mut world = World::new(1);
        world.faults = false;
        world.is_taken();
        let waiting: Vec<u64> = (0..waiting).map(|_| world.asks(&Owner::new(), true)).collect();
        world.answers(waiting[0]);
        world.confirm();
        assert!(world.is_woken(waiting[0]), "it asks again after the confirmation");
        (0..20).for_each(|_| world.pass(STEP));
        assert!(world.is_woken(waiting[1]), "of {}", waiting.len());
    }
}

/// A request for several names gives one of them up, and asks for it again after its owner has got that name
/// by another request.
#[test]
fn a_level_that_was_granted_since_a_bare_request_began_is_one_of_a_branch() {
    for (is_older, bare) in [(false, true), (true, true), (false, false)] {
        let mut world = World::new(1);
        let parent = Owner::new();
        let child = parent.child();
        world.holds(&parent);
        world.holds(&child);
        let level = world.guards[1].level;
        let began = if is_older { level } else { level - 1 };
        let id = world.number();
        world.entry.enter(Waiter::new(id, child, bare, world.now), began).unwrap();
        let level = world.entry.live().and_then(|hold| hold.level(level)).expect("it is held");
        assert_eq!(level.branch, bare && !is_older);
    }
}

/// The request may be nested in the first of them, or be a branch beside it: the two look the same.
#[test]
fn a_request_that_asks_again_beside_a_branch_and_a_level_from_before_is_ambiguous() {
    let mut world = World::new(1);
    let owner = Owner::new();
    world.holds(&owner);
    world.holds(&owner);
    let (id, began) = (world.number(), world.guards[0].level);
    let request = Waiter::new(id, owner, true, world.now);
    assert!(world.entry.enter(request, began).is_err());
}

/// It costs the server more to report the holder, which is useless if nobody waits.
#[test]
fn whoever_may_sleep_on_the_answer_asks_for_the_holder_as_well() {
    let mut world = World::new(1);
    world.faults = false;
    world.is_taken();
    let names = |world: &World| world.askers[0].asking.as_ref().map(|pending| pending.call.report_holder);
    let first = world.asks(&Owner::new(), true);
    assert_eq!(names(&world), Some(false), "the first attempt does not ask for it");
    world.answers(first);
    world.confirm();
    world.poll(0);
    assert_eq!(names(&world), Some(true));
}

#[test]
fn a_hold_is_in_doubt_until_it_is_settled() {
    let mut world = World::new(1);
    let (granted, _) = world.take();
    assert!(!world.entry.is_in_doubt(granted.hold));
    world.entry.doubt_all(world.now);
    assert!(world.entry.is_in_doubt(granted.hold));
    let [settle] = &world.sends()[..] else { panic!("it is due") };
    world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(!world.entry.is_in_doubt(granted.hold));
}
