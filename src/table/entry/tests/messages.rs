//! What messages of several masters mean to sleeping requests.

use super::*;
use crate::holder::Holder;
use crate::table::entry::Subscription;
use crate::table::queue::{Waiter, WaiterState};

/// A master that does not run a release publishes nothing, nor does one that has nothing to release.
/// Otherwise the next message from that master, published because the lock was released by force, would be
/// taken for the message of the release.
#[test]
fn no_message_of_a_release_is_expected_from_a_master_that_did_not_run_it() {
    let third = MasterSet::one(2);
    let spreads = [
        Spread { unanswered: third, ..Spread::default() },
        Spread { remains: third, ..Spread::default() },
        Spread { missing: third, ..Spread::default() },
        Spread::default(),
    ];
    for (spread, asks) in spreads.into_iter().zip([1, 1, 1, 0]) {
        let mut world = World::new(1);
        world.entry.subscription = Subscription::by(MasterSet::first(3));
        let (pending, level) = world.take();
        let at = world.at();
        let Continue(release) = world.entry.leave(pending.hold, level, Some(8), at) else {
            panic!("it is held")
        };
        world.entry.conclude(&release, Ok(&Reply::Done), spread, at);
        if !spread.unanswered.is_empty() {
            world.entry.straggled(&release, 2, LateAnswer::Missing, at.now);
        }
        world.take();
        world.entry.message(2, at.now);
        let commands = world.entry.check(at, MasterSet::NONE, &world.numbers);
        let settles = commands.iter().filter(|pending| matches!(pending.call.action, Action::Settle { .. }));
        assert_eq!(settles.count(), asks, "{spread:?}");
    }
}

#[test]
fn one_release_that_each_master_reports_wakes_once() {
    let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
    let name: Arc<str> = "stock".into();
    let keys = Arc::new(Keys::new("", "stock"));
    let mut entry = LockEntry::new(keys, Position { session: nobody, name }, World::new(1).timing);
    let now = Instant::now();
    let (owner, later) = (Owner::new(), now + LEASE);
    entry.enter_alone(Waiter::new(1, owner, false, now)).unwrap();
    entry.subscription = Subscription::by(MasterSet::first(3));
    let mut is_woken = |master: usize| {
        entry.put_to_sleep(1, later);
        entry.message(master, now);
        entry.queue.get_mut(1).is_some_and(|request| request.phase == WaiterState::Waiting)
    };
    assert!(is_woken(0), "it is the first to report the release");
    assert!(!is_woken(1) && !is_woken(2), "the others report the same release");
    assert!(is_woken(1), "a second report from one master is of another release");
    assert!(!is_woken(0) && !is_woken(2));
}

/// A world that is subscribed, and whose release is under way.
fn releasing() -> (World, Pending) {
    let mut world = World::new(1);
    world.entry.subscription = Subscription::by(MasterSet::one(0));
    let (pending, level) = world.take();
    let Continue(release) = world.entry.leave(pending.hold, level, Some(8), world.at()) else {
        panic!("it is held")
    };
    (world, release)
}

/// The lock was released by force before: the release publishes nothing.
#[test]
fn no_message_of_a_release_is_expected_where_the_hold_was_gone() {
    let (mut world, release) = releasing();
    let at = world.at();
    let meaning = world.entry.conclude(&release, Ok(&Reply::Gone), Spread::default(), at);
    assert_eq!(meaning, Meaning::Lost(Loss::Gone));
    world.take();
    world.entry.message(0, at.now);
    let commands = world.entry.check(at, MasterSet::NONE, &world.numbers);
    assert!(matches!(commands[..], [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]));
}

/// In this order: 1. A release is sent. 2. The subscription and the message of that release are lost. 3. The
/// entry is subscribed again. 4. The lock is released by force.
#[test]
fn no_message_of_a_release_is_expected_after_a_lost_subscription() {
    let (mut world, release) = releasing();
    let at = world.at();
    world.entry.unsubscribed(0, at);
    world.entry.conclude(&release, Ok(&Reply::Done), Spread::default(), at);
    world.entry.subscribed(0, at);
    world.take();
    world.entry.message(0, at.now);
    let commands = world.entry.check(at, MasterSet::NONE, &world.numbers);
    assert!(matches!(commands[..], [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]));
}

/// In this order: 1. The end of a hold is sent. 2. A master's late answer to a renewal of it says that it
/// found nothing. 3. The lock is taken. 4. The message of the end arrives.
#[test]
fn the_message_of_a_release_is_no_news_though_a_renewal_was_answered_late() {
    let mut world = World::new(1);
    world.entry.subscription = Subscription::by(MasterSet::one(0));
    let (granted, level) = world.take();
    world.now += LEASE / 3;
    let sent = world.sends();
    let [renewal] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(renewal, Ok(&Reply::Done), Spread::default(), world.at());
    let Continue(release) = world.entry.leave(granted.hold, level, Some(900), world.at()) else {
        panic!("it is held")
    };
    world.entry.straggled(renewal, 0, LateAnswer::Missing, world.now);
    world.entry.conclude(&release, Ok(&Reply::Done), Spread::default(), world.at());
    world.take();
    world.entry.message(0, world.now);
    let sent = world.sends();
    assert!(sent.is_empty(), "{sent:?}");
}

/// Three masters, one of which is late with a message. In this order: 1. A head asks. 2. The others report a
/// release after the one that made it ask. 3. It is refused. A majority may depend on the late master.
#[test]
fn a_head_that_was_notified_of_a_release_while_it_asked_sleeps_for_a_short_time() {
    for notified in [false, true] {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let pending = world.askers[0].asking.take().unwrap();
        world.entry.subscription = Subscription::by(MasterSet::first(3));
        world.entry.subscription.as_mut().unwrap().reported = MasterSet::one(0);
        if notified {
            world.entry.message(1, world.now);
        }
        let (soon, until) = (world.now + STEP, world.now + LEASE);
        world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), Spread::default(), world.at());
        world.entry.refused(id, Refusal { pause: soon, ..Refusal::until(until) });
        let sleeps = world.entry.queue.get(id).and_then(|request| request.sleeps_until(world.now));
        assert_eq!(sleeps, Some(if notified { soon } else { until }));
    }
}

/// A request that times out must not name a holder that has released the lock.
#[test]
fn what_was_seen_of_a_holder_ends_with_its_hold() {
    let holder = || Holder::new("other:7", 2, LEASE);
    let refused = |names: bool| {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let mut pending = world.askers[0].asking.take().unwrap();
        pending.call.report_holder = names;
        world.entry.subscription = Subscription::by(MasterSet::first(1));
        world.entry.conclude(&pending, Ok(&Reply::held_by(holder())), Spread::default(), world.at());
        world.entry.put_to_sleep(id, world.now + LEASE);
        world
    };
    let seen = |world: &World| world.entry.holder(world.at()).map(|owned| (owned.holder, owned.here));
    let mut world = refused(true);
    assert_eq!(seen(&world), Some((holder(), false)));
    assert_eq!(
        world.entry.usage(world.at()).map(|usage| (usage.waiting, usage.holder)),
        Some((1, Some(holder())))
    );
    world.now += LEASE / 2;
    assert_eq!(seen(&world), Some((holder().with(2, LEASE / 2), false)));
    let at = world.at();
    world.entry.message(0, at.now);
    assert_eq!(seen(&world), None, "it was released");

    let mut world = refused(true);
    world.now += LEASE;
    assert_eq!(seen(&world), None, "nobody knows whether its lease was renewed");
    assert_eq!(seen(&refused(false)), None);

    let mut world = refused(true);
    world.go(0);
    let (pending, level) = world.take();
    let (held, here) = seen(&world).unwrap();
    assert_eq!((held.hold_id(), held.count(), here), (&*pending.call.field, 1, true));
    let at = world.at();
    let _ = world.entry.leave(pending.hold, level, Some(99), at);
    assert_eq!(seen(&world), None, "this process has held it since");
}

/// In this order: 1. A request asks. 2. The lock is released. 3. The answer arrives, and names the former
/// holder.
#[test]
fn an_answer_that_was_sent_before_a_release_names_nobody() {
    let seen = |asks_after: bool| {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let mut pending = world.askers[0].asking.take().unwrap();
        pending.call.report_holder = true;
        world.entry.subscription = Subscription::by(MasterSet::first(1));
        world.now += STEP;
        world.entry.message(0, world.now);
        if asks_after {
            pending.sent = world.now + STEP;
            world.now += STEP;
        }
        let holder = Holder::new("other:7", 1, LEASE);
        world.entry.conclude(&pending, Ok(&Reply::held_by(holder)), Spread::default(), world.at());
        world.entry.put_to_sleep(id, world.now + LEASE);
        world.entry.holder(world.at()).map(|owned| owned.holder.hold_id().to_owned())
    };
    assert_eq!(seen(false), None);
    assert_eq!(seen(true).as_deref(), Some("other:7"));
}

/// In this order: 1. An owner holds the lock, and another one asks at once. 2. The first one releases it.
/// 3. The answer arrives.
#[test]
fn a_hold_of_this_process_is_not_seen_as_another_s() {
    let seen = |field: &str| {
        let mut world = World::new(1);
        let id = world.asks(&Owner::new(), true);
        let mut pending = world.askers[0].asking.take().unwrap();
        pending.call.report_holder = true;
        let holder = Holder::new(field, 1, LEASE);
        world.entry.conclude(&pending, Ok(&Reply::held_by(holder)), Spread::default(), world.at());
        world.entry.put_to_sleep(id, world.now + LEASE);
        (pending.call.field.clone(), world.entry.holder(world.at()).is_some())
    };
    let (ours, _) = seen("other:7");
    let (session, _) = ours.rsplit_once(':').unwrap();
    assert_eq!(
        [format!("{session}:99"), format!("a{session}:99")].map(|field| seen(&field).1),
        [false, true]
    );
}
