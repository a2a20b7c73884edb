//! What a master's answer after the verdict means. The third of three masters is late.

use super::*;

const LATE: usize = 2;

impl World {
    /// The only guard is released. The third master's answer to that is still to come.
    fn ends_without_third(&mut self, acquire: &Pending, level: u64) -> Pending {
        let Continue(end) = self.entry.leave(acquire.hold, level, Some(900), self.at()) else {
            panic!("it is held")
        };
        let spread = Spread { unanswered: MasterSet::one(LATE), ..Spread::default() };
        assert_eq!(self.entry.conclude(&end, Ok(&Reply::Done), spread, self.at()), Meaning::Done);
        end
    }

    /// Returns how often the end is sent to the third master again, until nothing is left of the hold. It
    /// finds nothing there.
    fn ends_again(&mut self) -> usize {
        let mut ends = 0;
        while !self.entry.is_empty() && ends < 4 {
            self.now += 4 * self.timing.retry;
            for again in self.sends() {
                assert_eq!((again.call.action, again.masters), (Action::END, MasterSet::one(LATE)));
                let missing = Spread { missing: again.masters, ..Spread::default() };
                self.entry.conclude(&again, Ok(&Reply::Done), missing, self.at());
                ends += 1;
            }
        }
        ends
    }

    /// A renewal that the other masters have answered.
    fn renewal_of(&self, acquire: &Pending) -> Pending {
        let action = Action::Renew { lease: self.timing.lease };
        let call = Call { action, ..acquire.call.clone() };
        Pending { command_id: 800, call, ..acquire.clone() }
    }
}

#[test]
fn an_end_is_sent_again_to_a_master_that_did_not_run_it() {
    for (answer, ends) in
        [(LateAnswer::Done, 0), (LateAnswer::Missing, 0), (LateAnswer::Unsent, 1), (LateAnswer::Unknown, 1)]
    {
        let mut world = World::new(1);
        let (acquire, level) = world.take();
        let end = world.ends_without_third(&acquire, level);
        assert!(!world.entry.is_empty(), "its answer is awaited");
        world.entry.straggled(&end, LATE, answer, world.now);
        assert_eq!(world.entry.is_empty(), ends == 0, "{answer:?}");
        assert_eq!(world.ends_again(), ends, "{answer:?}");
    }
}

/// The second master has not answered yet, so the hold is still known when the third one's answer comes.
#[test]
fn no_end_is_sent_again_to_a_master_that_refused_the_acquire() {
    let mut world = World::new(1);
    let (acquire, level) =
        world.take_with(Spread { missing: MasterSet::one(LATE), ..Spread::default() }, |_| ());
    let Continue(end) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
        panic!("it is held")
    };
    let unanswered = MasterSet::one(1).union(MasterSet::one(LATE));
    let spread = Spread { unanswered, ..Spread::default() };
    world.entry.conclude(&end, Ok(&Reply::Done), spread, world.at());
    world.entry.straggled(&end, LATE, LateAnswer::Unsent, world.now);
    assert!(world.sends().is_empty());
    world.entry.straggled(&end, 1, LateAnswer::Missing, world.now);
    assert!(world.entry.is_empty());
}

/// An acquire makes a field; a renewal makes none.
#[test]
fn a_late_answer_to_a_renewal_shows_nothing_of_a_hold_that_is_gone() {
    for answer in [LateAnswer::Done, LateAnswer::Missing, LateAnswer::Unsent, LateAnswer::Unknown] {
        let mut world = World::new(1);
        let (acquire, level) = world.take();
        let renewal = world.renewal_of(&acquire);
        let end = world.ends_without_third(&acquire, level);
        world.entry.straggled(&renewal, LATE, answer, world.now);
        assert!(!world.entry.is_empty(), "{answer:?}: the answer to the end is still awaited");
        assert!(world.sends().is_empty(), "{answer:?}");
        world.entry.straggled(&end, LATE, LateAnswer::Missing, world.now);
        assert!(world.entry.is_empty(), "{answer:?}");
    }
}

/// The late answer to the renewal comes while the hold stands, or while its end is under way.
#[test]
fn a_late_answer_to_a_renewal_has_no_end_sent_twice() {
    let missing = Spread { missing: MasterSet::one(LATE), ..Spread::default() };
    for answer in [LateAnswer::Done, LateAnswer::Unsent, LateAnswer::Unknown] {
        for under_way in [false, true] {
            let mut world = World::new(1);
            let (acquire, level) = world.take();
            let renewal = world.renewal_of(&acquire);
            if !under_way {
                world.entry.straggled(&renewal, LATE, answer, world.now);
            }
            let Continue(end) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
                panic!("it is held")
            };
            if under_way {
                world.entry.straggled(&renewal, LATE, answer, world.now);
            }
            world.entry.conclude(&end, Ok(&Reply::Done), missing, world.at());
            assert!(world.entry.is_empty(), "{answer:?}, under way {under_way}");
        }
    }
}

/// A renewal is answered late by a master where the hold was repaired.
#[test]
fn a_late_answer_to_a_renewal_has_no_end_sent_to_a_master_that_was_repaired() {
    let mut world = World::new(1);
    let lacking = Spread { lacking: MasterSet::one(LATE), ..Spread::default() };
    let (acquire, level) = world.take_with(lacking, |_| ());
    let sent = world.sends();
    let [repair] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(repair, Ok(&Reply::Done), Spread::default(), world.at());
    let renewal = world.renewal_of(&acquire);
    let Continue(end) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
        panic!("it is held")
    };
    world.entry.straggled(&renewal, LATE, LateAnswer::Done, world.now);
    world.entry.conclude(&end, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.entry.is_empty());
}

/// A repair runs, or may run, on the third master after the end of its hold.
#[test]
fn what_a_repair_makes_when_its_hold_is_gone_is_ended() {
    for answer in [LateAnswer::Done, LateAnswer::Unknown] {
        let mut world = World::new(1);
        let (acquire, level) = world.take();
        let action = Action::Repair { count: 1, lease: world.timing.lease };
        let repair =
            Pending { command_id: 800, call: Call { action, ..acquire.call.clone() }, ..acquire.clone() };
        let end = world.ends_without_third(&acquire, level);
        world.entry.straggled(&repair, LATE, answer, world.now);
        let sent = world.sends();
        let [again] = &sent[..] else { panic!("{answer:?}: {sent:?}") };
        assert_eq!((again.call.action, again.masters), (Action::END, MasterSet::one(LATE)));
        world.entry.conclude(again, Ok(&Reply::Done), Spread::default(), world.at());
        world.entry.straggled(&end, LATE, LateAnswer::Done, world.now);
        assert!(world.entry.is_empty(), "{answer:?}");
    }
}

/// In this order: 1. The first end gets no answer from a majority. 2. The second one is under way. 3. The
/// third master answers that the first one did not run. The second end finds what the acquire has made there,
/// or may still make.
#[test]
fn a_late_answer_to_an_end_that_is_sent_again_changes_nothing() {
    let answers = [LateAnswer::Done, LateAnswer::Missing, LateAnswer::Unsent, LateAnswer::Unknown];
    for acquired in [None, Some(LateAnswer::Done), Some(LateAnswer::Unknown)] {
        for answer in answers {
            let mut world = World::new(1);
            let (acquire, level) = world.take();
            let Continue(first) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
                panic!("it is held")
            };
            world.entry.conclude(&first, Err(Outcome::Unknown), Spread::default(), world.at());
            let sent = world.sends();
            let [second] = &sent[..] else { panic!("{sent:?}") };
            if let Some(acquired) = acquired {
                world.entry.straggled(&acquire, LATE, acquired, world.now);
            }
            world.entry.straggled(&first, LATE, answer, world.now);
            world.entry.conclude(second, Ok(&Reply::Done), Spread::default(), world.at());
            assert!(world.entry.is_empty(), "{answer:?}, the acquire {acquired:?}");
        }
    }
}

/// A re-entry makes no field if there is none.
#[test]
fn a_re_entry_that_was_dropped_has_no_end_sent_twice() {
    let mut world = World::new(1);
    let owner = world.owners[0].clone();
    let (acquire, level) = world.take();
    let inner = world.asks(&owner, false);
    let at = world.asker(inner);
    let nested = world.askers[at].asking.take().expect("it may enter");
    let spread = Spread { given_up: nested.masters, ..Spread::default() };
    world.entry.conclude(&nested, Err(Outcome::Unknown), spread, world.at());
    world.go(at);
    let sent = world.sends();
    let [settle] = &sent[..] else { panic!("{sent:?}") };
    world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
    let Continue(end) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
        panic!("it is held")
    };
    let missing = Spread { missing: MasterSet::one(LATE), ..Spread::default() };
    world.entry.conclude(&end, Ok(&Reply::Done), missing, world.at());
    assert!(world.entry.is_empty());
}

/// If a repair finds nothing, another hold has the key, and a second repair would find the same.
#[test]
fn what_a_renewal_misses_on_a_master_is_put_there_and_what_a_repair_misses_is_not() {
    for (repairs, answer, is_sent) in [
        (false, LateAnswer::Done, false),
        (false, LateAnswer::Unsent, false),
        (false, LateAnswer::Unknown, false),
        (false, LateAnswer::Missing, true),
        (true, LateAnswer::Missing, false),
    ] {
        let mut world = World::new(1);
        let (acquire, _) = world.take();
        let mut late = world.renewal_of(&acquire);
        if repairs {
            late.call.action = Action::Repair { count: 1, lease: world.timing.lease };
        }
        world.entry.straggled(&late, LATE, answer, world.now);
        let sent: Vec<_> = world.sends().iter().map(|sent| (sent.call.action, sent.masters)).collect();
        let repair = (Action::Repair { count: 1, lease: world.timing.lease }, MasterSet::one(LATE));
        assert_eq!(sent, [repair][..usize::from(is_sent)], "repairs {repairs}, {answer:?}");
    }
}

/// A majority has to confirm the hold first: it may have been released by force, while another master still
/// has it.
#[test]
fn what_a_renewal_misses_on_a_master_is_not_put_there_while_the_hold_is_in_doubt() {
    let mut world = World::new(1);
    let (acquire, _) = world.take();
    let late = world.renewal_of(&acquire);
    world.entry.doubt_all(world.now);
    world.entry.straggled(&late, LATE, LateAnswer::Missing, world.now);
    let [settle] = &world.sends()[..] else { panic!("it is in doubt") };
    assert!(matches!(settle.call.action, Action::Settle { .. }));
    world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
    assert!(world.sends().is_empty());
}

/// A hold that an old master had and now lacks may have been released by force. If that master never had the
/// hold, its lack shows nothing.
#[test]
fn what_a_young_master_lacks_is_not_put_there_if_an_old_one_lacks_it_that_had_it() {
    let [young, old] = [1, LATE].map(MasterSet::one);
    let undecided = Spread { lacking: young, missing: old, ..Spread::default() };
    for (had_it, repaired, in_doubt, is_put) in [
        (true, None, false, false),
        (false, Some(LateAnswer::Missing), false, true),
        (false, Some(LateAnswer::Missing), true, true),
        (false, Some(LateAnswer::Done), false, false),
        (false, Some(LateAnswer::Unknown), false, false),
        (false, None, false, false),
    ] {
        let mut world = World::new(1);
        let lacking = Spread { lacking: if had_it { MasterSet::NONE } else { old }, ..Spread::default() };
        let (acquire, _) = world.take_with(lacking, |_| ());
        for repair in world.sends() {
            assert_eq!(repair.masters, old);
            world.entry.conclude(&repair, Ok(&Reply::Done), Spread::default(), world.at());
            if in_doubt {
                world.entry.doubt_all(world.now);
            }
            repaired.inspect(|answer| world.entry.straggled(&repair, LATE, *answer, world.now));
        }
        world.entry.doubt_all(world.now);
        let [settle] = &world.sends()[..] else { panic!("it is in doubt") };
        world.entry.conclude(settle, Err(Outcome::Unknown), undecided, world.at());
        let hold = world.entry.hold(acquire.hold).unwrap();
        let lacking = if is_put { young } else { MasterSet::NONE };
        assert_eq!(hold.copies.lacking, lacking, "{repaired:?}, in doubt before: {in_doubt}");
    }
}

/// The old master could not be reached when the hold was acquired, so it has not lost it.
#[test]
fn what_a_young_master_lacks_is_put_there_if_an_old_one_was_not_asked_for_the_hold() {
    let [young, old] = [1, LATE].map(MasterSet::one);
    let mut world = World::new(1);
    let (acquire, _) = world.take_with(Spread { missing: old, ..Spread::default() }, |_| ());
    world.entry.doubt_all(world.now);
    let [settle] = &world.sends()[..] else { panic!("it is in doubt") };
    let undecided = Spread { lacking: young, missing: old, ..Spread::default() };
    world.entry.conclude(settle, Err(Outcome::Unknown), undecided, world.at());
    assert_eq!(world.entry.hold(acquire.hold).unwrap().copies.lacking, young);
}

/// The repair of the young master finds another field there, which is gone before the next attempt.
#[test]
fn a_hold_is_put_on_a_young_master_again_if_it_could_not_be_put_there_before() {
    let [young, old] = [1, LATE].map(MasterSet::one);
    let undecided = Spread { lacking: young, missing: old, ..Spread::default() };
    let mut world = World::new(1);
    let (acquire, _) = world.take_with(Spread { lacking: old, ..Spread::default() }, |_| ());
    world.entry.doubt_all(world.now);
    for masters in [old, young, young] {
        let [repair] = &world.sends()[..] else { panic!("it is lacking") };
        assert_eq!((repair.call.action.creates(), repair.masters), (true, masters));
        world.entry.conclude(repair, Ok(&Reply::Done), Spread::default(), world.at());
        for master in masters.iter() {
            world.entry.straggled(repair, master, LateAnswer::Missing, world.now);
        }
        let [settle] = &world.sends()[..] else { panic!("it is in doubt") };
        world.entry.conclude(settle, Err(Outcome::Unknown), undecided, world.at());
        world.now += 4 * world.timing.retry;
    }
    assert!(world.entry.hold(acquire.hold).unwrap().lives());
}

/// In this order: 1. A renewal finds nothing on a master while a repair is under way to it. 2. The repair
/// runs there.
#[test]
fn a_master_that_a_repair_has_reached_late_had_the_hold() {
    let [young, old] = [1, LATE].map(MasterSet::one);
    let mut world = World::new(1);
    let (acquire, _) = world.take_with(Spread { lacking: old, ..Spread::default() }, |_| ());
    let [repair] = &world.sends()[..] else { panic!("a master lacks it") };
    world.entry.conclude(repair, Ok(&Reply::Done), Spread::default(), world.at());
    world.entry.hold(acquire.hold).unwrap().copies.set_lacking(old);
    world.entry.straggled(repair, LATE, LateAnswer::Done, world.now);
    let hold = world.entry.hold(acquire.hold).unwrap();
    hold.lacked_in_doubt(young, old, world.now);
    assert_eq!(hold.copies.lacking, MasterSet::NONE);
}

/// The end of the hold has no answer from the third master. A field can be there unless the acquire was refused there.
#[test]
fn only_a_refused_acquire_shows_that_a_master_has_no_field() {
    let remains = Spread { remains: MasterSet::one(LATE), ..Spread::default() };
    for (acquired, answer, ends) in [
        (true, LateAnswer::Done, 1),
        (true, LateAnswer::Missing, 0),
        (true, LateAnswer::Unsent, 0),
        (false, LateAnswer::Missing, 1),
        (false, LateAnswer::Unsent, 1),
    ] {
        let mut world = World::new(1);
        let (acquire, level) = world.take();
        let renewal = world.renewal_of(&acquire);
        world.entry.straggled(if acquired { &acquire } else { &renewal }, LATE, answer, world.now);
        let Continue(end) = world.entry.leave(acquire.hold, level, Some(900), world.at()) else {
            panic!("it is held")
        };
        world.entry.conclude(&end, Ok(&Reply::Done), remains, world.at());
        assert_eq!(world.ends_again(), ends, "acquire {acquired}, {answer:?}");
    }
}
