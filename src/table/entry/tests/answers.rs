//! What answers mean: those that fail, those that find nothing, and those that come late.

use super::*;

impl World {
    /// What the background sends after a third of the lease.
    fn renewal(&mut self) -> Pending {
        self.now += LEASE / 3;
        let mut sent = self.sends();
        assert!(
            matches!(sent[..], [Pending { call: Call { action: Action::Renew { .. }, .. }, .. }]),
            "{sent:?}"
        );
        sent.remove(0)
    }

    fn concludes(&mut self, pending: &Pending, answer: Result<&Reply, Outcome>) -> Meaning {
        self.entry.conclude(pending, answer, Spread::default(), self.at())
    }
}

/// The master can't write the counter of the tokens, and may write it with the next renewal.
#[test]
fn a_renewal_whose_counter_was_put_off_keeps_nobody_from_re_entering() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    world.take();
    let renewal = world.renewal();
    assert_eq!(world.concludes(&renewal, Ok(&Reply::Deferred("full".into()))), Meaning::Done);
    let inner = world.asks(&owner, false);
    assert!(world.askers[world.asker(inner)].asking.is_some());
}

/// The renewal is not repeated: a settle follows, which renews as well.
#[test]
fn a_settle_after_a_renewal_without_an_answer_is_a_late_renewal() {
    let mut world = World::new(1);
    world.take();
    let late = |world: &mut World| {
        let log = std::mem::take(&mut world.entry.out.made().log);
        log.into_iter().filter(|event| matches!(event, LogEvent::RenewedLate { .. })).count()
    };
    let renewal = world.renewal();
    world.concludes(&renewal, Err(Outcome::Unknown));
    world.now += world.timing.retry;
    let settle = world.sends().pop().expect("it is sent");
    assert!(matches!(settle.call.action, Action::Settle { .. }));
    world.concludes(&settle, Ok(&Reply::Done));
    assert_eq!(late(&mut world), 1);
    // Nothing failed before this settle.
    world.entry.doubt_all(world.now);
    let settle = world.sends().pop().expect("it is asked for");
    assert!(matches!(settle.call.action, Action::Settle { .. }));
    world.concludes(&settle, Ok(&Reply::Done));
    assert_eq!(late(&mut world), 0);
}

#[test]
fn a_renewal_that_succeeds_after_failures_is_logged() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    let (granted, _) = world.take();
    let inner = world.takes_for(&owner, LEASE);
    let late = |world: &mut World| {
        let log = std::mem::take(&mut world.entry.out.made().log);
        let late = log.into_iter().filter_map(|event| match event {
            LogEvent::RenewedLate { failures, .. } => Some(failures),
            _ => None,
        });
        late.collect::<Vec<_>>()
    };
    let renewal = world.renewal();
    world.concludes(&renewal, Ok(&Reply::Done));
    assert_eq!(late(&mut world), [], "in time");
    for _ in 0..2 {
        let renewal = world.renewal();
        world.concludes(&renewal, Err(Outcome::NotRun));
        world.now -= LEASE / 3;
        world.now += world.timing.retry;
    }
    let renewal = world.renewal();
    world.concludes(&renewal, Ok(&Reply::Done));
    assert_eq!(late(&mut world), [2]);
    let renewal = world.renewal();
    world.concludes(&renewal, Err(Outcome::NotRun));
    let Continue(release) = world.entry.leave(granted.hold, inner, Some(900), world.at()) else {
        panic!("it is held")
    };
    world.concludes(&release, Ok(&Reply::Done));
    assert_eq!(late(&mut world), [], "a release");
}

/// A first release without an answer may have run, so a repeated one that finds nothing succeeds. Once the
/// lease may be over, it reports a loss.
#[test]
fn a_repeated_release_that_finds_nothing_succeeds_within_the_lease() {
    let (millis, expired) = (Duration::from_millis, Err(Loss::Expired));
    let lease = 2 * LEASE;
    for (passed, result) in [(lease - millis(1), Ok(())), (lease, expired), (lease + millis(1), expired)] {
        let mut world = World::new(1);
        world.takes_for(&Owner::new(), lease);
        let grant = world.guards[0].grant.clone();
        let Continue(first) = world.entry.leave(grant.hold, grant.level, Some(900), world.at()) else {
            panic!("it is held")
        };
        world.concludes(&first, Err(Outcome::Unknown));
        let sent = world.sends();
        let [second] = &sent[..] else { panic!("{sent:?}") };
        world.now += passed;
        world.concludes(second, Ok(&Reply::Gone));
        assert_eq!(grant.signal.released(), Some(result), "after {passed:?}");
    }
}

/// The first try may have failed for another reason, so the second one has no pause: nothing shows that the
/// master is away.
#[test]
fn what_is_left_on_a_master_is_ended_at_once_and_then_less_and_less_often() {
    let third = Spread { remains: MasterSet::one(2), ..Spread::default() };
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let Continue(end) = world.entry.leave(granted.hold, level, Some(900), world.at()) else {
        panic!("it is held")
    };
    world.entry.conclude(&end, Ok(&Reply::Done), third, world.at());
    let retry = world.timing.retry;
    for pause in [Duration::ZERO, retry, 2 * retry, 4 * retry, 4 * retry] {
        assert_eq!(world.entry.due(), Some(world.now + pause), "the background sleeps until then");
        if !pause.is_zero() {
            world.now += pause - Duration::from_millis(1);
            assert!(world.sends().is_empty(), "before {pause:?}");
            world.now += Duration::from_millis(1);
        }
        let sent = world.sends();
        let [again] = &sent[..] else { panic!("after {pause:?}: {sent:?}") };
        assert_eq!((again.call.action, again.masters), (Action::END, third.remains));
        world.entry.conclude(again, Ok(&Reply::Done), third, world.at());
    }
}

/// In this order: 1. An acquire waits to be sent, and its hold is given up. 2. Most masters refuse the
/// acquire. One has granted it, or has not answered.
#[test]
fn what_a_refused_acquire_may_have_left_is_ended_though_its_hold_was_given_up() {
    let third = MasterSet::one(2);
    let spreads = [
        (Spread { remains: third, ..Spread::default() }, true),
        (Spread { unanswered: third, ..Spread::default() }, true),
        (Spread::default(), false),
    ];
    for (spread, is_left) in spreads {
        let mut world = World::new(1);
        let pending = world.bygone();
        world.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), spread, world.at());
        assert_eq!(!world.entry.is_empty(), is_left, "{spread:?}");
    }
}

/// A nested acquire that was refused ends nothing: the outer level stands.
#[test]
fn a_nested_acquire_that_did_not_run_leaves_the_hold_as_it_was() {
    for remains in [MasterSet::NONE, MasterSet::one(2)] {
        let mut world = World::new(1);
        let owner = world.owners[0].clone();
        world.take();
        let inner = world.asks(&owner, false);
        let at = world.asker(inner);
        let nested = world.askers[at].asking.take().expect("it may enter");
        let spread = Spread { remains, ..Spread::default() };
        world.entry.conclude(&nested, Err(Outcome::NotRun), spread, world.at());
        assert_eq!(world.entry.live().map(Hold::count), Some(1));
    }
}
