//! Samples: each hold is counted once, from its grant until its release or its loss.

use super::*;

impl World {
    /// The samples since the last call.
    fn counted(&mut self) -> Vec<Sample> {
        let log = std::mem::take(&mut self.entry.out.made().log).into_iter();
        let kept = std::mem::take(&mut self.samples).into_iter();
        kept.chain(log.filter_map(sample)).collect()
    }
}

pub(super) fn sample(event: LogEvent) -> Option<Sample> {
    match event {
        LogEvent::Measured(sample) => Some(sample),
        _ => None,
    }
}

#[test]
fn a_hold_is_counted_once_whatever_its_levels() {
    for order in [[1, 0], [0, 0]] {
        let mut world = World::new(1);
        let owner = Owner::new();
        world.holds(&owner);
        assert_eq!(world.counted(), [Sample::Held]);
        world.now += STEP;
        world.holds(&owner);
        assert_eq!(world.counted(), []);
        world.now += STEP;
        world.release_by(order[0], false);
        assert_eq!(world.counted(), []);
        world.now += STEP;
        world.release_by(order[1], false);
        assert_eq!(world.counted(), [Sample::Ended(3 * STEP)]);
    }
}

#[test]
fn a_hold_that_passes_on_is_counted_for_each_of_its_owners() {
    let mut world = World::new(1);
    world.passes_on_for(LEASE / 2);
    let owner = Owner::new();
    world.holds(&owner);
    let next = world.asks(&Owner::new(), true);
    world.now += STEP;
    world.release_by(0, false);
    assert_eq!(world.counted(), [Sample::Held, Sample::Ended(STEP)]);
    world.poll(world.asker(next));
    assert_eq!((world.taken, world.counted()), (1, vec![Sample::Held]));
    world.now += 2 * STEP;
    world.release_by(0, false);
    assert_eq!(world.counted(), [Sample::Ended(2 * STEP)]);
}

#[test]
fn a_loss_ends_a_hold_and_is_counted_once() {
    let mut world = World::new(1);
    let owner = Owner::new();
    let hold = world.holds(&owner);
    world.holds(&owner);
    world.now += STEP;
    world.entry.lose(hold, Loss::Gone, false, world.now);
    world.entry.lose(hold, Loss::Gone, false, world.now);
    assert_eq!(
        world.counted(),
        [Sample::Held, Sample::Ended(STEP), Sample::Lost { loss: Loss::Gone, fixed: false }]
    );
    world.now += STEP;
    world.release_by(1, false);
    world.release_by(0, true);
    assert_eq!(world.counted(), []);
}

/// The guard is gone by then, and its hold has ended.
#[test]
fn a_loss_that_a_release_finds_is_counted_and_that_of_a_request_is_not() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    assert_eq!(world.counted(), [Sample::Held]);
    let Continue(release) = world.entry.leave(granted.hold, level, Some(90), world.at()) else {
        panic!("it is held")
    };
    world.entry.conclude(&release, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!(
        world.counted(),
        [Sample::Ended(Duration::ZERO), Sample::Lost { loss: Loss::Gone, fixed: false }]
    );
    // A request is dropped while it asks, and its end finds nothing.
    let id = world.asks(&Owner::new(), true);
    let at = world.asker(id);
    world.go(at);
    world.check();
    let end = world.flight.pop().expect("its end");
    world.entry.conclude(&end, Ok(&Reply::Gone), Spread::default(), world.at());
    assert_eq!(world.counted(), []);
}

/// The hold keeps others out until its guard goes, or its lease is over.
#[test]
fn a_level_whose_time_is_over_is_lost_and_the_hold_goes_on_until_its_end() {
    let mut world = World::new(1);
    let options = Options { lease: LEASE, fixed: false, limit: Some(STEP), single_attempt: false };
    world.begin(Owner::new(), true, options);
    world.faults = false;
    world.answer(0);
    assert_eq!(world.counted(), [Sample::Held]);
    world.now += STEP;
    world.check();
    assert_eq!(world.counted(), [Sample::Lost { loss: Loss::MaxHold, fixed: false }]);
    world.now += LEASE;
    world.check();
    assert_eq!(world.counted(), [Sample::Ended(STEP + LEASE)]);
}

/// After each of many random steps, the holds that have begun and not ended are as many as are held.
#[test]
fn what_is_counted_is_what_is_held() {
    let mut begun = 0;
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.passes_on_for(if seed % 2 == 0 { LEASE / 6 } else { Duration::ZERO });
        let mut held = 0;
        for _ in 0..400 {
            world.event();
            for sample in world.counted() {
                match sample {
                    Sample::Held => (held, begun) = (held + 1, begun + 1),
                    Sample::Ended(_) => held -= 1,
                    _ => {}
                }
            }
            let stands =
                world.entry.holds.iter().filter(|hold| !hold.levels.is_empty() && hold.loss().is_none());
            assert_eq!(held, stands.count(), "seed {seed}: {:#?}", world.entry);
            assert!(world.entry.queue.report_at().is_none() || !world.entry.queue.is_empty(), "seed {seed}");
        }
    }
    assert!(begun > 500, "{begun} holds are too few to show anything");
}
