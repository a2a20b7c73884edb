//! Losses and ends, who is notified of them, and what is still sent.

use super::*;
use crate::table::expiry::retry_pause;

impl World {
    /// A request of this owner is granted. Its guard is the last one.
    pub(super) fn holds(&mut self, owner: &Owner) -> u64 {
        let id = self.asks(owner, false);
        self.answers(id);
        self.guards.last().expect("it is granted").hold
    }

    /// The background renews the only hold.
    fn renews(&mut self) -> Pending {
        self.now += LEASE / 3;
        let mut sent = self.sends();
        assert!(matches!(sent[..], [Pending { call: Call { action: Action::Renew { .. }, .. }, .. }]));
        sent.remove(0)
    }
}

fn losses(out: &Effects) -> usize {
    out.log.iter().filter(|event| matches!(event, LogEvent::Lost { .. })).count()
}

#[test]
fn a_loss_is_logged_once_and_wakes_all_who_would_have_entered() {
    let mut world = World::new(1);
    let holder = Owner::new();
    world.holds(&holder);
    let renewal = world.renews();
    let waiting = [holder.child(), holder.child()].map(|child| world.asks(&child, false));
    assert!(waiting.iter().all(|id| !world.is_woken(*id)));
    world.entry.conclude(&renewal, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!((losses(world.entry.out.made()), world.guards[0].signal.loss()), (1, Some(Loss::Gone)));
    world.wake();
    assert!(waiting.iter().all(|id| world.is_woken(*id)));
}

/// The client ends the key of a hold whose time is over, and the server answers that the key was gone before.
#[test]
fn what_the_server_answers_of_a_lost_hold_is_no_second_loss() {
    let mut world = World::new(1);
    let hold = world.holds(&Owner::new());
    world.entry.lose(hold, Loss::Expired, true, world.now);
    let sent = world.sends();
    let [end] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(end, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!((losses(world.entry.out.made()), world.guards[0].signal.loss()), (1, Some(Loss::Expired)));
}

/// A minority of masters may still have the hold. A key that is kept there would be in the way of others.
#[test]
fn a_hold_that_was_lost_is_ended_and_its_lock_is_not_kept() {
    for lost in [false, true] {
        let mut world = World::new(1);
        let hold = world.holds(&Owner::new());
        world.entry.keep(hold, 2 * LEASE, world.now);
        if lost {
            world.entry.lose(hold, Loss::Gone, false, world.now);
        }
        world.release_by(0, false);
        let sent = world.sends();
        let [end] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((end.is_end(), end.call.action == Action::END), (true, lost));
    }
}

/// The guard gets the loss as the result of its release.
#[test]
fn a_release_that_finds_nothing_logs_no_loss() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let Continue(release) = world.entry.leave(granted.hold, level, Some(90), world.at()) else {
        panic!("it is held")
    };
    let meaning = world.entry.conclude(&release, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!((meaning, losses(world.entry.out.made())), (Meaning::Lost(Loss::Gone), 0));
}

#[test]
fn a_guard_that_goes_before_a_nested_one_is_logged() {
    for (first, logged) in [(0, 1), (1, 0)] {
        let mut world = World::new(1);
        let owner = Owner::new();
        world.holds(&owner);
        world.holds(&owner);
        let guard = &world.guards[first];
        let _ = world.entry.leave(guard.hold, guard.level, None, world.at());
        let log = &world.entry.out.made().log;
        assert_eq!(log.iter().filter(|event| matches!(event, LogEvent::OutOfOrder { .. })).count(), logged);
    }
}

/// The runtime of the background has ended, so what these wait for would never come.
#[test]
fn whoever_waits_for_the_background_is_woken_when_it_ends() {
    let mut world = World::new(1);
    let holder = Owner::new();
    let hold = world.holds(&holder);
    let _renewal = world.renews();
    let leaves = world.entry.leave(hold, world.guards[0].level, Some(90), world.at());
    assert!(matches!(leaves, Break(Meaning::Void)), "{leaves:?}");
    let waiting = [(); 2].map(|()| world.asks(&Owner::new(), true));
    let idler = Arc::<Flag>::default();
    world.entry.wake_on_command_end(&Waker::from(idler.clone()));
    world.entry.wake_everyone(world.now);
    let notified = &world.entry.out.made().resolve;
    assert!(
        notified.iter().any(|grant| Arc::ptr_eq(grant, &world.guards[0].grant)),
        "its guard waits for the release"
    );
    world.wake();
    assert!(waiting.iter().all(|id| world.is_woken(*id)) && idler.0.load(SeqCst));
}

/// Another background task takes over: nobody reads the answers to the former one's commands.
#[test]
fn what_a_former_background_has_sent_is_settled_at_once() {
    let mut world = World::new(1);
    world.holds(&Owner::new());
    let renewal = world.renews();
    world.entry.give_up_background(world.now);
    let sent = world.sends();
    assert!(
        matches!(sent[..], [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]),
        "{sent:?}"
    );
    let meaning = world.entry.conclude(&renewal, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!(meaning, Meaning::Void, "it was given up");
}

/// In this order: 1. The end of a hold is sent, and never arrives. 2. Another background task sends it again;
/// its message comes. 3. The lock is taken, and released by force.
#[test]
fn no_message_is_expected_of_an_end_that_a_former_background_has_sent() {
    let mut world = World::new(1);
    world.entry.subscription = Subscription::by(MasterSet::one(0));
    let (granted, level) = world.take();
    let _ = world.entry.leave(granted.hold, level, None, world.at());
    assert_eq!(world.sends().len(), 1);
    world.entry.give_up_background(world.now);
    let sent = world.sends();
    let [end] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at());
    world.entry.message(0, world.now);
    world.take();
    world.entry.message(0, world.now);
    let sent = world.sends();
    assert!(
        matches!(sent[..], [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]),
        "{sent:?}"
    );
}

/// The other masters have confirmed the end of the hold.
#[test]
fn an_end_is_not_sent_to_a_master_that_is_away() {
    let third = MasterSet::one(2);
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let Continue(end) = world.entry.leave(granted.hold, level, Some(90), world.at()) else {
        panic!("it is held")
    };
    let spread = Spread { remains: third, ..Spread::default() };
    world.entry.conclude(&end, Ok(&Reply::Done), spread, world.at());
    for (away, ends) in [(third, 0), (MasterSet::NONE, 1)] {
        let sent = world.entry.check(world.at(), away, &world.numbers);
        assert_eq!(sent.len(), ends, "{sent:?}");
        assert!(sent.iter().all(|again| again.call.action == Action::END && again.masters == third));
        world.now += 4 * world.timing.retry;
    }
}

/// A master has a connection again: what failed over the former connection is sent without waiting for its
/// pause.
#[test]
fn an_end_that_failed_is_sent_at_once_when_all_is_asked_for() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let _ = world.entry.leave(granted.hold, level, None, world.at());
    let sent = world.sends();
    let [end] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(end, Err(Outcome::Unknown), Spread::default(), world.at());
    assert!(world.sends().is_empty(), "without a pause");
    world.entry.doubt_all(world.now);
    let sent = world.sends();
    assert!(matches!(&sent[..], [end] if end.is_end()), "{sent:?}");
}

#[test]
fn a_level_whose_owner_ended_is_its_parents() {
    let mut world = World::new(1);
    let parent = Owner::new();
    let child = parent.child();
    world.holds(&parent);
    world.holds(&child);
    let waiting = world.asks(&parent, false);
    assert!(world.askers[world.asker(waiting)].asking.is_none(), "its child holds the lock");
    child.enter();
    child.clone().leave();
    world.entry.owner_ended(&child, world.now);
    world.wake();
    assert!(world.is_woken(waiting));
    world.poll(world.asker(waiting));
    assert!(world.askers[world.asker(waiting)].asking.is_some());
}

/// The guard waits for the result, which is not reported before it is known.
#[test]
fn a_release_without_an_answer_ends_with_its_lease_unless_it_is_under_way() {
    for under_way in [false, true] {
        let mut world = World::new(1);
        let hold = world.holds(&Owner::new());
        let renewal = world.renews();
        let grant = world.guards[0].grant.clone();
        assert!(matches!(world.entry.leave(hold, grant.level, Some(90), world.at()), Break(Meaning::Void)));
        world.entry.conclude(&renewal, Ok(&Reply::Done), Spread::default(), world.at());
        let sent = world.sends();
        let [end] = &sent[..] else { panic!("{sent:?}") };
        if under_way {
            world.now += 2 * LEASE;
            assert!(world.sends().is_empty());
            assert_eq!(grant.signal.released(), None);
            world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at());
            assert_eq!(grant.signal.released(), Some(Ok(())));
        } else {
            world.entry.conclude(end, Err(Outcome::Unknown), Spread::default(), world.at());
            assert!(!world.entry.is_empty() && grant.signal.released().is_none(), "it is sent again");
            world.now += 2 * LEASE;
            assert!(world.sends().is_empty(), "the server has dropped it by itself");
            assert_eq!(grant.signal.released(), Some(Err(Loss::Expired)));
        }
        assert!(world.entry.is_empty());
    }
}

/// The process stopped for two leases. The server's clock may have been set back: nothing has shown that the key is gone.
#[test]
fn an_end_that_was_never_sent_is_sent_though_the_lease_is_over() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let _ = world.entry.leave(granted.hold, level, None, world.at());
    world.now += 2 * LEASE;
    let sent = world.sends();
    assert!(matches!(&sent[..], [end] if end.is_end()), "{sent:?}");
}

/// The process stopped for two leases after its acquire was given up, and the acquire ran only then.
#[test]
fn an_end_that_fails_is_repeated_for_a_lease_however_late_it_was_sent() {
    for failure in [Outcome::NotRun, Outcome::Unknown] {
        let mut world = World::new(1);
        world.asks(&Owner::new(), false);
        let acquire = world.askers[0].asking.take().expect("nobody is before it");
        world.entry.conclude(&acquire, Err(Outcome::Unknown), Spread::default(), world.at());
        world.now += 2 * LEASE;
        for _ in 0..2 {
            let sent = world.sends();
            let [end] = &sent[..] else { panic!("{sent:?}") };
            assert!(end.is_end());
            world.entry.conclude(end, Err(failure), Spread::default(), world.at());
            world.now += world.timing.retry;
        }
        world.now += LEASE;
        assert!(world.sends().is_empty() && world.entry.holds.is_empty());
    }
}

/// A renewal failed, and then the process stopped for two leases.
#[test]
fn a_guard_whose_renewal_failed_is_lost_with_its_lease() {
    let mut world = World::new(1);
    world.holds(&Owner::new());
    let renewal = world.renews();
    world.entry.conclude(&renewal, Err(Outcome::Unknown), Spread::default(), world.at());
    world.now += 2 * LEASE;
    world.sends();
    assert_eq!(world.guards[0].signal.loss(), Some(Loss::Expired));
}

/// A due time in the past would make the background look again and again.
#[test]
fn nothing_is_due_of_a_lost_hold_whose_guard_is_kept() {
    let mut world = World::new(1);
    world.holds(&Owner::new());
    let renewal = world.renews();
    world.entry.conclude(&renewal, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!(world.entry.due(), None);
    assert!(!world.entry.is_empty());
}

#[test]
fn a_failed_command_is_tried_again_often_within_its_lease() {
    let pause = |millis| retry_pause(Lease::rest(Duration::from_millis(millis))).as_millis();
    assert_eq!([100, 600, 4_000, 30_000].map(pause), [10, 30, 200, 500]);
}

/// If the machine slept before the last answer, that has cost the lease nothing.
#[test]
fn a_loss_is_a_suspension_where_the_machine_has_slept_since_the_last_answer() {
    let seconds = Duration::from_secs;
    for (before, after, loss) in [
        (seconds(0), seconds(0), Loss::Expired),
        (seconds(10), seconds(10), Loss::Expired),
        (seconds(0), seconds(10), Loss::Suspended),
        (seconds(10), seconds(20), Loss::Suspended),
    ] {
        for renews in [false, true] {
            let mut world = World::new(1);
            let owner = Owner::new();
            if renews {
                world.holds(&owner);
                let renewal = world.renews();
                let at = Moment { slept: before, ..world.at() };
                world.entry.conclude(&renewal, Ok(&Reply::Done), Spread::default(), at);
            } else {
                let id = world.asks(&owner, false);
                let pending = world.askers[0].asking.take().expect("nobody is before it");
                let at = Moment { slept: before, ..world.at() };
                let new = NewLevel::watched(90, world.timing.lease);
                assert!(
                    world.entry.granted(&Grantee::Waiter(id), &pending, &new, Spread::default(), at).is_ok()
                );
            }
            world.now += LEASE;
            let at = Moment { slept: after, ..world.at() };
            world.entry.check(at, MasterSet::NONE, &world.numbers);
            let seen = world.entry.holds.first().and_then(Hold::loss);
            assert_eq!(seen, Some(loss), "slept {before:?} and {after:?}, renews {renews}");
        }
    }
}

#[test]
fn a_hold_names_nobody_from_its_end_on() {
    let mut world = World::new(1);
    world.take();
    let end = world.entry.live().expect("it is held").deadline();
    for (now, is_held) in [(end - Duration::from_millis(1), true), (end, false)] {
        world.now = now;
        assert_eq!(world.entry.holder(world.at()).is_some(), is_held);
        assert_eq!(world.entry.usage(world.at()).is_some(), is_held);
    }
}

/// A late renewal is reported once the hold is renewed: a release that succeeds after a failed command says
/// nothing about the renewal.
#[test]
fn a_release_is_not_reported_as_a_late_renewal() {
    let mut world = World::new(1);
    let owner = Owner::new();
    let hold = world.holds(&owner);
    world.holds(&owner);
    let is_reported = |world: &mut World, pending: &Pending| {
        world.entry.holds[0].failures = 1;
        world.entry.out.made().log.clear();
        world.entry.conclude(pending, Ok(&Reply::Done), Spread::default(), world.at());
        world.entry.out.made().log.iter().any(|event| matches!(event, LogEvent::RenewedLate { .. }))
    };
    let (inner, at) = (world.guards[1].level, world.at());
    let Continue(release) = world.entry.leave(hold, inner, Some(900), at) else { panic!("it is held") };
    assert!(!is_reported(&mut world, &release));
    let renewal = world.renews();
    assert!(is_reported(&mut world, &renewal));
}

impl World {
    /// Takes a level below the one that was taken last.
    fn nests(&mut self, owner: &Owner) -> (u64, u64) {
        let hold = self.holds(owner);
        (hold, self.guards.last().expect("it is granted").level)
    }

    fn leaves(&mut self, (hold, level): (u64, u64)) -> ControlFlow<Meaning, Pending> {
        let (command_id, moment) = (self.number(), self.at());
        self.guards.retain(|guard| guard.level != level);
        self.entry.leave(hold, level, Some(command_id), moment)
    }
}

/// In this order: 1. A release is under way. 2. A renewal becomes due. 3. The release is answered, and its task asks for the
/// next command of the hold at once.
#[test]
fn nothing_that_a_user_asks_for_puts_off_a_renewal_that_is_due() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    let levels: Vec<_> = (0..4).map(|_| world.nests(&owner)).collect();
    let hold = levels[0].0;
    let Continue(release) = world.leaves(levels[3]) else { panic!("nothing goes before it") };
    world.now += LEASE / 3;
    world.entry.conclude(&release, Ok(&Reply::Done), Spread::default(), world.at());
    let (command_id, waker, now) = (world.number(), Waker::noop(), world.now);
    assert!(matches!(world.leaves(levels[2]), Break(Meaning::Void)));
    let inner = world.asks(&owner, false);
    assert!(world.askers[world.asker(inner)].asking.is_none());
    assert!(world.entry.begin_renewal(hold, None, command_id, waker, now).is_none());
    let extends = Some((levels[0].1, Lease::SHORTEST));
    assert!(world.entry.begin_renewal(hold, extends, command_id, waker, now).is_none());
    let sent = world.sends();
    let [renewal] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(renewal.call.action, Action::Renew { lease: world.timing.lease });
    world.entry.conclude(renewal, Ok(&Reply::Done), Spread::default(), world.at());
    let sent = world.sends();
    let [release] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(release.call.action, Action::Release { count: 2 });
    world.entry.conclude(release, Ok(&Reply::Done), Spread::default(), world.at());
    world.wake();
    assert!(world.is_woken(inner));
}

/// In this order: 1. A renewal finds a TTL of an hour. 2. The command that shortens it gets no answer. 3. The
/// hold is settled, and the next renewal finds such a TTL again.
#[test]
fn a_ttl_that_is_too_long_is_brought_back_after_the_renewal_that_finds_it() {
    let mut world = World::new(1);
    world.holds(&Owner::new());
    let shorten = |world: &mut World, ends| {
        let renewal = world.renews();
        let found = Reply::Longer(120 * LEASE, std::num::NonZeroU64::new(ends).unwrap());
        let meaning = world.entry.conclude(&renewal, Ok(&found), Spread::default(), world.at());
        assert_eq!(meaning, Meaning::Done);
        let mut sent = world.sends();
        assert!(matches!(sent[..], [Pending { call: Call { action: Action::Shorten { .. }, .. }, .. }]));
        sent.remove(0)
    };
    let end = world.entry.holds[0].deadline();
    let first = shorten(&mut world, 7);
    assert!(world.entry.holds[0].deadline() > end, "it is renewed");
    world.entry.conclude(&first, Err(Outcome::Unknown), Spread::default(), world.at());
    world.now += retry_pause(world.timing.lease);
    let sent = world.sends();
    let [settle] = &sent[..] else { panic!("{sent:?}") };
    assert!(matches!(settle.call.action, Action::Settle { .. }));
    world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.sends().is_empty());
    let end = world.entry.holds[0].deadline();
    let second = shorten(&mut world, 7);
    assert!(world.entry.holds[0].deadline() > end);
    let end = world.entry.holds[0].deadline();
    world.entry.conclude(&second, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.sends().is_empty());
    assert_eq!(world.entry.holds[0].deadline(), end, "its answer says nothing about the TTL");
}

/// A release goes after a renewal that is under way. The server refuses the renewal, but not the release.
#[test]
fn a_renewal_that_is_refused_and_a_release_that_waits_for_it_take_turns() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    let levels: Vec<_> = (0..2).map(|_| world.nests(&owner)).collect();
    let renewal = world.renews();
    assert!(matches!(world.leaves(levels[1]), Break(Meaning::Void)));
    world.entry.conclude(&renewal, Err(Outcome::NotRun), Spread::default(), world.at());
    for renews in [false, true, false, true] {
        world.now += retry_pause(world.timing.lease);
        let sent = world.sends();
        let [command] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(matches!(command.call.action, Action::Renew { .. }), renews, "{:?}", command.call.action);
        world.entry.conclude(command, Err(Outcome::NotRun), Spread::default(), world.at());
    }
    world.now += retry_pause(world.timing.lease);
    let sent = world.sends();
    let [release] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(release, Ok(&Reply::Done), Spread::default(), world.at());
    // The renewal is due again, since the release had its turn.
    assert!(matches!(world.sends()[..], [Pending { call: Call { action: Action::Renew { .. }, .. }, .. }]));
}

/// A renewal that fails pauses, like any command. The last release does not wait for a renewal, nor does any
/// release once nothing is renewed any more.
#[test]
fn a_renewal_that_is_due_holds_back_no_release_for_long() {
    for (fails, levels, closes) in [(true, 2, false), (false, 1, false), (false, 2, true)] {
        let mut world = World::new(1);
        let owner = world.owners[0].clone();
        let levels: Vec<_> = (0..levels).map(|_| world.nests(&owner)).collect();
        if fails {
            let renewal = world.renews();
            world.entry.conclude(&renewal, Err(Outcome::NotRun), Spread::default(), world.at());
        } else {
            world.now += LEASE / 3;
        }
        world.entry.is_open = !closes;
        assert!(matches!(world.leaves(*levels.last().unwrap()), Continue(_)), "{fails} {closes}");
    }
}
