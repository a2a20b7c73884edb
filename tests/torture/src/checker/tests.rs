//! Tests that the checker finds what is wrong in histories, and finds nothing in correct ones.

use super::checks::confirmed_too_late;
use super::claimed::misclaims;
use super::exclusion::{overlaps, unexplained_losses};
use super::kept::granted_before_their_time;
use super::recovery::recoveries;
use super::testing::{
    MS, among, asked, asked_for, checked, claimed, fault, fenced, forced, granted, history, keeping, leaving,
    resumes, revival,
};
use super::tokens::disorders;
use super::waits::waits;
use crate::journal::{self, Event};

#[test]
fn holds_that_follow_each_other_are_no_overlap() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0))];
    let two = [(0, asked(0)), (11, granted(0, 3000)), (20, leaving(0))];
    assert!(overlaps(&history(&[&one, &two])).is_empty());
}

#[test]
fn a_hold_that_begins_before_the_release_of_another_overlaps_with_it() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0))];
    let two = [(0, asked(0)), (9, granted(0, 3000)), (20, leaving(0))];
    let found = overlaps(&history(&[&one, &two]));
    assert_eq!((found.len(), found[0].nanos(), found[0].documented), (1, MS, false));
}

#[test]
fn a_hold_ends_at_its_deadline_and_that_of_a_killed_process_no_sooner() {
    let killed = [(0, asked(0)), (1, granted(0, 3000))];
    let soon = [(0, asked(0)), (2999, granted(0, 9000)), (3500, leaving(0))];
    let later = [(0, asked(0)), (3001, granted(0, 9000)), (3500, leaving(0))];
    assert_eq!(overlaps(&history(&[&killed, &soon])).len(), 1);
    assert!(overlaps(&history(&[&killed, &later])).is_empty());
    let late = [(0, asked(0)), (1, granted(0, 3000)), (5000, leaving(0))];
    assert!(overlaps(&history(&[&late, &later])).is_empty());
}

#[test]
fn a_hold_that_is_seen_to_be_good_past_its_deadline_counts() {
    let good = Event::Good { request: 0, until: Some(3000 * MS) };
    let blind = [(0, asked(0)), (1, granted(0, 3000)), (4000, good), (4001, leaving(0))];
    let next = [(0, asked(0)), (3500, granted(0, 9000)), (3600, leaving(0))];
    assert_eq!(overlaps(&history(&[&blind, &next])).len(), 1);
}

#[test]
fn an_overlap_over_a_documented_loss_is_marked() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (2000, leaving(0))];
    let two = [(0, asked(0)), (1000, granted(0, 3900)), (1100, leaving(0))];
    for (loses, from, to) in [(true, 400, 500), (false, 400, 500), (true, 1001, 1002)] {
        let found = overlaps(&history(&[&one, &two, &[(to, fault(from, loses))]]));
        assert_eq!(found[0].documented, loses && to < 1000);
    }
}

#[test]
fn a_loss_counts_to_the_last_time_at_which_the_hold_was_good() {
    let lost = Event::Lost { request: 0, loss: "Gone".into() };
    let good = Event::Good { request: 0, until: Some(3500 * MS) };
    let one = [(0, asked(0)), (1, granted(0, 3000)), (500, good), (700, lost)];
    let two = |at| [(0, asked(0)), (at, granted(0, 9000)), (at + 1, leaving(0))];
    assert!(overlaps(&history(&[&one, &two(600)])).is_empty());
    assert_eq!(overlaps(&history(&[&one, &two(400)])).len(), 1);
    assert_eq!(unexplained_losses(&history(&[&one])).len(), 1);
    assert!(unexplained_losses(&history(&[&one, &[(650, fault(600, true))]])).is_empty());
}

#[test]
fn work_that_went_on_after_a_stall_of_its_process_may_be_late() {
    let good = |request| Event::Good { request, until: None };
    let run = Event::Granted { request: 0, until: None, token: None };
    let stalled = Event::Stalled { from: 100 * MS };
    let next = [(0, asked(0)), (3500, granted(0, 9000)), (3600, leaving(0))];
    let work = [(0, asked(0)), (1, run.clone()), (90, good(0)), (4000, good(0)), (4001, leaving(0))];
    assert_eq!(overlaps(&history(&[&work, &next])).len(), 1);
    let frozen = [
        (0, asked(0)),
        (1, run),
        (90, good(0)),
        (4000, good(0)),
        (4001, stalled.clone()),
        (4002, leaving(0)),
    ];
    assert!(overlaps(&history(&[&frozen, &next])).is_empty());
    // Another process of the same machine has noted the stall.
    assert!(overlaps(&history(&[&work, &next, &[(4001, stalled)]])).is_empty());
}

#[test]
fn tokens_that_fall_or_stay_are_found() {
    for (second, fall) in [(6, 0), (5, 1), (4, 1)] {
        let one = [(0, asked(0)), (1, fenced(0, 5)), (10, leaving(0))];
        let two = [(2, asked(0)), (11, fenced(0, second)), (20, leaving(0))];
        assert_eq!(disorders(&history(&[&one, &two])).len(), fall);
    }
}

#[test]
fn a_hold_that_was_over_when_it_was_seen_may_have_been_granted_before_others() {
    let until = |until| Event::Granted { request: 0, until: Some(until * MS), token: Some(4) };
    let one = [(5, asked(0)), (11, fenced(0, 5)), (12, leaving(0))];
    for (end, asked_at, found) in [(30, 0, 1), (19, 0, 0), (19, 13, 1)] {
        let two = [(asked_at, asked(0)), (20, until(end)), (21, leaving(0))];
        assert_eq!(disorders(&history(&[&one, &two])).len(), found);
    }
}

#[test]
fn tokens_that_fall_where_a_counter_was_ahead_and_is_lost_are_no_violation() {
    let ahead = |request| asked_for(request, crate::job::AHEAD);
    let one = [(0, ahead(0)), (1, fenced(0, 5)), (10, leaving(0))];
    let two = [(12, ahead(0)), (20, fenced(0, 4)), (30, leaving(0))];
    let three = [(32, ahead(0)), (40, fenced(0, 3)), (50, leaving(0))];
    assert_eq!(disorders(&history(&[&one, &two, &[(11, fault(10, false))]])).len(), 1);
    let lost: &[_] = &[(11, fault(10, true))];
    assert!(disorders(&history(&[&one, &two, lost])).is_empty());
    assert_eq!(disorders(&history(&[&one, &two, &three, lost])).len(), 1);
}

#[test]
fn a_lock_that_is_free_though_somebody_waits_is_found() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0))];
    let two = [(5, asked(0)), (2990, granted(0, 6000)), (3000, leaving(0))];
    let found = waits(&history(&[&one, &two]));
    assert_eq!((found.len(), found[0].nanos, found[0].calm), (1, 2980 * MS, true));
    assert!(found[0].is_too_long());
    let late = [(11, asked(0)), (2990, granted(0, 6000)), (3000, leaving(0))];
    assert!(waits(&history(&[&one, &late])).is_empty());
    let (stalled, late) = (Event::Stalled { from: 100 * MS }, Event::Late { from: 100 * MS });
    for reason in [fault(1000, false), stalled, late] {
        let disturbed = waits(&history(&[&one, &two, &[(2000, reason)]]));
        assert!(!disturbed[0].calm && !disturbed[0].is_too_long());
    }
}

#[test]
fn a_lock_that_a_request_for_several_names_may_have_is_not_free() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0))];
    let two = [(5, asked(0)), (9000, granted(0, 9900)), (9010, leaving(0))];
    // Such a request may have the lock until it is granted all of them, or gives up.
    let several = [(8, among(0)), (8990, Event::Refused { request: 0 })];
    let found = waits(&history(&[&one, &two, &several]));
    assert_eq!((found.len(), found[0].nanos), (1, 10 * MS));
    let several = [(8, among(0)), (3000, granted(0, 6000)), (3010, leaving(0))];
    let found = waits(&history(&[&one, &two, &several]));
    assert_eq!((found.len(), found[0].nanos), (1, 5990 * MS));
    assert!(found[0].is_too_long());
}

#[test]
fn each_name_of_several_is_a_hold() {
    let several = [
        (0, asked_for(0, "shelf")),
        (0, asked_for(1, "stock")),
        (2, granted(0, 3000)),
        (2, granted(1, 3000)),
        (20, leaving(0)),
        (20, leaving(1)),
    ];
    for name in ["shelf", "stock"] {
        let other = [(5, asked_for(0, name)), (10, granted(0, 3000)), (11, leaving(0))];
        assert_eq!(overlaps(&history(&[&several, &other])).len(), 1, "{name}");
    }
}

#[test]
fn a_check_that_confirms_a_hold_after_the_grant_of_a_later_one_is_found() {
    let one = |from| [(0, asked(0)), (1, granted(0, 3000)), (from + 5, checked(0, from)), (2000, leaving(0))];
    let two = [(100, asked(0)), (110, granted(0, 3110)), (120, leaving(0))];
    assert_eq!(confirmed_too_late(&history(&[&one(111), &two])).len(), 1);
    assert_eq!(confirmed_too_late(&history(&[&one(500), &two])).len(), 1);
    let early = [
        (0, asked(0)),
        (1, granted(0, 3000)),
        (55, checked(0, 50)),
        (505, checked(0, 500)),
        (600, leaving(0)),
    ];
    assert_eq!(confirmed_too_late(&history(&[&early, &two]))[0].at, 500 * MS);
    // The hold may have stood when the check ran.
    assert!(confirmed_too_late(&history(&[&one(109), &two])).is_empty());
    // A loss on the servers is no excuse, unless a hold that was over may stand again.
    assert_eq!(confirmed_too_late(&history(&[&one(500), &two, &[(99, fault(50, true))]])).len(), 1);
    assert_eq!(confirmed_too_late(&history(&[&one(500), &two, &[(300, fault(200, true))]])).len(), 1);
    assert_eq!(confirmed_too_late(&history(&[&one(500), &two, &[(99, revival(50))]])).len(), 1);
    assert!(confirmed_too_late(&history(&[&one(500), &two, &[(300, revival(200))]])).is_empty());
}

#[test]
fn a_lock_that_is_taken_by_force_is_another_owners_and_a_check_shows_it() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (505, checked(0, 500)), (2000, leaving(0))];
    let two = |at| [(100, asked(0)), (at, granted(0, 3110)), (at + 10, leaving(0))];
    let force = [(99, forced(98))];
    assert!(overlaps(&history(&[&one, &two(110), &force])).is_empty());
    assert_eq!(confirmed_too_late(&history(&[&one, &two(110), &force])).len(), 1);
    assert!(confirmed_too_late(&history(&[&one, &two(503), &force])).is_empty());
    // A forced release of another lock, or at another time, is no excuse.
    let early = [(0, asked(0)), (1, granted(0, 3000)), (2000, leaving(0))];
    assert_eq!(overlaps(&history(&[&early, &two(110), &[(1000, forced(999))]])).len(), 1);
    let other = Event::Forced { name: "shelf".into(), from: 98 * MS, certain: true };
    assert_eq!(overlaps(&history(&[&early, &two(110), &[(99, other)]])).len(), 1);
    let lost = Event::Lost { request: 0, loss: "Gone".into() };
    let gone = [(0, asked(0)), (1, granted(0, 3000)), (500, lost)];
    assert!(unexplained_losses(&history(&[&gone, &force])).is_empty());
    // 1. A hold is granted. 2. It is released by force, and another one is granted. 3. The process notices
    // the first grant.
    let late = [(50, asked(0)), (120, granted(0, 3000)), (130, leaving(0))];
    let next = [(100, asked(0)), (110, granted(0, 3110)), (2000, leaving(0))];
    for (at, found) in [(99, 0), (40, 1)] {
        assert_eq!(overlaps(&history(&[&late, &next, &[(at, forced(at - 1))]])).len(), found);
    }
    // A master that hangs runs the forced release when it continues.
    let gone_late = [(900, asked(0)), (901, granted(0, 3000)), (950, gone[2].1.clone())];
    for (fault_ends, found) in [(500, 0), (300, 1)] {
        let hangs = [(fault_ends, fault(90, false))];
        assert_eq!(unexplained_losses(&history(&[&gone_late, &force, &hangs])).len(), found);
    }
    // A process that is killed during a forced release writes no more lines.
    let forces = Event::Forces { name: "stock".into() };
    assert!(unexplained_losses(&history(&[&gone, &[(98, forces.clone())]])).is_empty());
    let later = [(6200, asked(0)), (6201, granted(0, 9000)), (6500, gone[2].1.clone())];
    assert_eq!(unexplained_losses(&history(&[&later, &[(98, forces.clone())]])).len(), 1);
    let answered = [(98, forces), (99, forced(98))];
    let again = [(200, asked(0)), (201, granted(0, 3000)), (500, gone[2].1.clone())];
    assert_eq!(unexplained_losses(&history(&[&again, &answered])).len(), 1);
    // A forced release without an answer may run later.
    let force = |certain| Event::Forced { name: "stock".into(), from: 2 * MS, certain };
    let after = [(60, asked(0)), (61, granted(0, 3000)), (2000, leaving(0))];
    for (certain, found) in [(true, 1), (false, 0)] {
        assert_eq!(overlaps(&history(&[&after, &two(110), &[(50, force(certain))]])).len(), found);
    }
}

#[test]
fn a_check_is_no_excuse_for_a_hold_that_may_have_been_granted_before() {
    let one = [(200, asked(0)), (210, granted(0, 3000)), (505, checked(0, 500)), (2000, leaving(0))];
    let two = [(100, asked(0)), (300, granted(0, 3110)), (320, leaving(0))];
    assert!(confirmed_too_late(&history(&[&one, &two])).is_empty());
}

#[test]
fn a_hold_was_good_when_a_check_of_it_was_asked() {
    let lost = Event::Lost { request: 0, loss: "Gone".into() };
    let one = [(0, asked(0)), (1, granted(0, 3000)), (505, checked(0, 500)), (700, lost)];
    let two = |at| [(0, asked(0)), (at, granted(0, 9000)), (at + 1, leaving(0))];
    assert_eq!(overlaps(&history(&[&one, &two(499)])).len(), 1);
    assert!(overlaps(&history(&[&one, &two(501)])).is_empty());
}

#[test]
fn a_lock_that_is_kept_is_granted_when_its_time_is_over() {
    let released = Event::Released { request: 0 };
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, keeping(0, 500)), (11, released)];
    let two = |at| [(5, asked(0)), (at, granted(0, 9000)), (at + 1, leaving(0))];
    assert_eq!(granted_before_their_time(&history(&[&one, &two(499)])).len(), 1);
    assert!(granted_before_their_time(&history(&[&one, &two(500)])).is_empty());
    // Nor may the same process get the lock.
    let again = [&one[..], &[(20, asked(1)), (30, granted(1, 3000)), (40, leaving(1))]].concat();
    assert_eq!(granted_before_their_time(&history(&[&again])).len(), 1);
    let found = waits(&history(&[&one, &two(520)]));
    assert_eq!((found.len(), found[0].nanos), (1, 20 * MS));
    for (fall, documented) in [(fault(100, true), 0), (fault(100, false), 1)] {
        let found = granted_before_their_time(&history(&[&one, &two(400), &[(200, fall)]]));
        assert_eq!(found.len(), documented);
    }
}

#[test]
fn a_lock_whose_guard_is_dropped_is_kept_unless_something_fails() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, keeping(0, 500))];
    let two = [(5, asked(0)), (400, granted(0, 9000)), (401, leaving(0))];
    assert_eq!(granted_before_their_time(&history(&[&one, &two])).len(), 1);
    assert!(granted_before_their_time(&history(&[&one, &two, &[(200, fault(100, false))]])).is_empty());
}

#[test]
fn a_lock_is_the_claims_until_it_is_resumed_or_over() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0)), (12, claimed(0, 3010))];
    let two = |at| [(5, asked(0)), (at, granted(0, 9000)), (at + 1, leaving(0))];
    assert_eq!(overlaps(&history(&[&one, &two(100)])).len(), 1);
    assert!(overlaps(&history(&[&one, &two(3011)])).is_empty());
    let resumed = [(50, resumes(0)), (52, granted(0, 3050)), (80, leaving(0))];
    assert!(overlaps(&history(&[&one, &resumed])).is_empty());
    assert!(overlaps(&history(&[&one, &resumed, &two(90)])).is_empty());
    assert_eq!(overlaps(&history(&[&one, &resumed, &two(70)])).len(), 1);
    assert_eq!(overlaps(&history(&[&one, &resumed, &two(40)])).len(), 1);
    // A resume that fails may free the lock.
    let failed = [(50, resumes(0)), (52, Event::Refused { request: 0 })];
    assert!(overlaps(&history(&[&one, &failed, &two(51)])).is_empty());
    // If a process did not note the claim, its hold is assumed to have ended with the call.
    assert!(overlaps(&history(&[&one[..3], &two(100)])).is_empty());
}

#[test]
fn a_claim_that_is_resumed_twice_is_found() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0)), (12, claimed(0, 3010))];
    let first = [(50, resumes(0)), (52, granted(0, 3050)), (80, leaving(0))];
    let (again, refused) = (
        [(85, resumes(0)), (90, granted(0, 3050)), (95, leaving(0))],
        [(51, resumes(0)), (53, Event::Refused { request: 0 })],
    );
    let found = misclaims(&history(&[&one, &first, &again]));
    assert_eq!((found.len(), found[0].twice), (1, true));
    assert!(misclaims(&history(&[&one, &first, &refused])).is_empty());
    assert!(misclaims(&history(&[&one, &first])).is_empty());
    // After its time a claim may be gone. Servers that lose it do not grant it twice, unless a replica still has it.
    assert_eq!(misclaims(&history(&[&one, &first, &again, &[(84, fault(82, true))]])).len(), 1);
    assert!(misclaims(&history(&[&one, &first, &again, &[(84, revival(82))]])).is_empty());
}

#[test]
fn a_good_claim_that_is_refused_to_the_only_one_who_tries_is_found() {
    let one = [(0, asked(0)), (1, granted(0, 3000)), (10, leaving(0)), (12, claimed(0, 3010))];
    let tries = |at| [(at, resumes(0)), (at + 5, Event::Refused { request: 0 })];
    let found = misclaims(&history(&[&one, &tries(50)]));
    assert_eq!((found.len(), found[0].twice), (1, false));
    // The claim was over, something failed, or somebody else tried too: with several masters both may be refused.
    assert!(misclaims(&history(&[&one, &tries(3006)])).is_empty());
    assert!(misclaims(&history(&[&one, &tries(50), &[(40, fault(30, false))]])).is_empty());
    assert!(misclaims(&history(&[&one, &tries(50), &tries(51)])).is_empty());
    assert!(misclaims(&history(&[&one, &[(50, resumes(0))]])).is_empty());
}

#[test]
fn recovery_is_measured_until_each_lock_is_granted() {
    let names = crate::job::NAMES;
    let mut lines = Vec::new();
    for (request, name) in names.iter().enumerate() {
        let request = request as u64;
        lines.push((0, asked_for(request, name)));
        lines.push((100 + request, granted(request, 3000)));
        lines.push((200, leaving(request)));
    }
    let found = recoveries(&history(&[&lines, &[(50, fault(20, false))]]));
    assert_eq!(found["fault"].times, [53 * MS]);
    for (from, to) in [(70, 80), (20, 60)] {
        let disturbed = recoveries(&history(&[&lines, &[(50, fault(20, false)), (to, fault(from, false))]]));
        assert_eq!((disturbed["fault"].count, disturbed["fault"].cut_short), (2, 1));
    }
}

#[test]
fn a_line_without_an_end_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.log");
    std::fs::write(&file, "{\"at\":1,\"event\":\"leaving\",\"request\":7}\n{\"at\":2,\"ev").unwrap();
    let read = journal::read(&file).unwrap();
    assert_eq!(read.len(), 1);
    assert!(matches!(read[0].event, Event::Leaving { request: 7, kept: None }));
}
