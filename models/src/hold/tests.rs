use super::*;
use crate::testing;

/// Returns a model that is small enough for each test run.
fn small(design: Design) -> HoldModel {
    HoldModel {
        design,
        masters: 1,
        holds: 1,
        depth: 1,
        leases: &[LEASE],
        extends: false,
        late: false,
        twice: false,
        fenced: false,
        faults: 0,
        restarts: 0,
        crashes: 0,
        doubts: 0,
        jumps: 0,
        local: false,
        streams: false,
        replaced: false,
        thread: false,
        symmetric: false,
    }
}

const OVERLAP: &str = "holds of different clients never overlap";
const FIELD: &str = "what has ended leaves no field";
const COUNT: &str = "the count at rest is that of the levels that were asked for";
const TOKEN: &str = "tokens increase over fresh grants";

fn finds(model: HoldModel, property: &'static str, length: usize) {
    testing::finds(&HoldModel { symmetric: true, ..model }, property, length);
}

fn is_sound(model: HoldModel, states: usize) {
    testing::is_sound(HoldModel { symmetric: true, ..model }, states);
}

#[test]
fn a_count_that_goes_down_by_one_frees_a_lock_under_its_guard() {
    finds(HoldModel { depth: 2, faults: 1, twice: true, ..small(Design::BlindCount) }, OVERLAP, 13);
}

#[test]
fn a_count_that_goes_up_by_one_is_more_than_the_depth() {
    finds(HoldModel { depth: 2, faults: 1, twice: true, ..small(Design::BlindCount) }, COUNT, 4);
}

#[test]
fn an_old_release_deletes_a_newer_hold_of_the_same_field() {
    finds(HoldModel { faults: 1, late: true, ..small(Design::SharedField) }, OVERLAP, 16);
}

#[test]
fn a_release_that_does_not_look_whose_field_it_is_frees_anothers_hold() {
    finds(HoldModel { faults: 1, late: true, ..small(Design::UncheckedRelease) }, OVERLAP, 12);
}

#[test]
fn a_deadline_that_counts_from_the_reply_is_later_than_the_keys() {
    finds(HoldModel { faults: 1, ..small(Design::DeadlineFromReply) }, OVERLAP, 8);
}

#[test]
fn a_guard_that_ignores_its_deadline_overlaps_the_next_one() {
    finds(small(Design::DeadlineIgnored), OVERLAP, 8);
}

#[test]
fn two_minorities_hold_at_once() {
    finds(HoldModel { masters: 3, ..small(Design::MinorityCounts) }, OVERLAP, 10);
}

#[test]
fn a_young_master_that_votes_grants_what_it_has_forgotten() {
    finds(HoldModel { masters: 3, faults: 1, restarts: 1, ..small(Design::YoungVotes) }, OVERLAP, 10);
}

#[test]
fn young_masters_that_vote_as_a_majority_grant_what_they_have_forgotten() {
    finds(HoldModel { masters: 3, faults: 1, restarts: 2, ..small(Design::YoungMajorityVotes) }, OVERLAP, 10);
}

#[test]
fn a_release_that_is_sent_to_a_majority_alone_leaves_a_field() {
    finds(HoldModel { masters: 3, ..small(Design::PartialRelease) }, FIELD, 10);
}

#[test]
fn a_repair_after_the_end_leaves_a_field() {
    finds(HoldModel { masters: 3, faults: 1, ..small(Design::RepairAfterEnd) }, FIELD, 17);
}

#[test]
#[ignore = "takes half a minute"]
fn an_acquire_that_a_renewal_overtook_leaves_a_field() {
    finds(HoldModel { masters: 3, faults: 2, ..small(Design::OvertakenAcquire) }, FIELD, 16);
}

#[test]
fn a_token_that_a_majority_does_not_know_is_followed_by_a_lesser_one() {
    finds(HoldModel { masters: 3, faults: 1, fenced: true, ..small(Design::TokenNotWrittenBack) }, TOKEN, 11);
}

/// Returns a model in which a clock is set back, guards extend and re-enter, and commands that were given up run late.
fn set_back(design: Design) -> HoldModel {
    HoldModel { extends: true, faults: 1, late: true, jumps: 1, ..small(design) }
}

#[test]
fn a_ttl_that_is_shortened_whatever_its_end_is_falls_below_a_deadline() {
    finds(set_back(Design::ShortenedWhateverEnds), OVERLAP, 21);
}

#[test]
fn a_ttl_that_is_shortened_to_a_lease_falls_below_a_longer_deadline() {
    finds(set_back(Design::ShortenedBelowDeadline), OVERLAP, 15);
}

#[test]
fn a_late_command_shortens_what_was_confirmed_for_longer_at_the_same_end() {
    finds(set_back(Design::EndNotMoved), OVERLAP, 21);
    let nested =
        HoldModel { depth: 2, leases: &[LEASE, LONGEST], extends: false, ..set_back(Design::EndNotMoved) };
    finds(nested, OVERLAP, 21);
}

#[test]
fn one_master_whose_clock_is_set_back_is_sound() {
    is_sound(set_back(Design::Sound), 34_336);
}

#[test]
fn one_master_whose_clock_is_set_back_twice_is_sound() {
    is_sound(HoldModel { jumps: 2, twice: true, ..set_back(Design::Sound) }, 80_813);
}

#[test]
#[ignore = "takes a minute"]
fn one_master_whose_clock_is_set_back_beside_re_entries_is_sound() {
    is_sound(HoldModel { depth: 2, leases: &[LEASE, LONGEST], ..set_back(Design::Sound) }, 4_621_093);
}

#[test]
fn a_level_that_is_taken_to_be_counted_is_not_on_the_masters() {
    finds(HoldModel { depth: 2, local: true, ..small(Design::LocalCounts) }, COUNT, 4);
}

#[test]
fn an_end_that_overtakes_its_acquire_leaves_a_field() {
    finds(HoldModel { faults: 1, streams: true, ..small(Design::EndOvertakes) }, FIELD, 9);
}

/// Returns a model in which an end may run before what was given up.
fn replaced(design: Design) -> HoldModel {
    HoldModel { faults: 1, streams: true, replaced: true, ..small(design) }
}

#[test]
fn one_end_that_overtakes_an_acquire_leaves_a_field() {
    finds(replaced(Design::OneEnd), FIELD, 6);
}

/// To find the shortest execution would take minutes.
#[test]
#[should_panic(expected = "what has ended leaves no field")]
fn one_end_that_finds_what_a_repair_made_leaves_a_field() {
    is_sound(HoldModel { masters: 3, ..replaced(Design::OneMaker) }, 0);
}

#[test]
fn one_master_whose_connection_is_replaced_is_sound() {
    is_sound(HoldModel { holds: 2, depth: 2, faults: 2, ..replaced(Design::Sound) }, 1_002_471);
}

#[test]
#[ignore = "takes a minute"]
fn three_masters_whose_connections_are_replaced_are_sound() {
    is_sound(HoldModel { masters: 3, ..replaced(Design::Sound) }, 2_226_470);
}

#[test]
fn an_answer_of_a_former_master_keeps_a_hold_that_another_client_is_granted() {
    finds(HoldModel { restarts: 1, thread: true, ..small(Design::AnyServerConfirms) }, OVERLAP, 19);
}

#[test]
fn one_master_with_levels_that_no_command_asks_for_is_sound() {
    is_sound(HoldModel { depth: 3, faults: 1, doubts: 1, local: true, ..small(Design::Sound) }, 55_244);
}

#[test]
fn one_master_whose_connection_keeps_what_was_given_up_is_sound() {
    is_sound(HoldModel { holds: 2, depth: 2, faults: 2, streams: true, ..small(Design::Sound) }, 404_311);
}

#[test]
fn one_master_with_a_thread_that_renews_is_sound() {
    let model = HoldModel { depth: 2, faults: 1, local: true, streams: true, ..small(Design::Sound) };
    is_sound(HoldModel { thread: true, ..model }, 19_878);
}

#[test]
fn a_thread_whose_connection_leads_to_a_former_master_is_sound() {
    is_sound(HoldModel { restarts: 1, thread: true, ..small(Design::Sound) }, 20_907);
}

#[test]
fn one_master_is_sound() {
    is_sound(HoldModel { holds: 2, depth: 2, faults: 1, ..small(Design::Sound) }, 15_620);
}

#[test]
fn three_masters_are_sound() {
    is_sound(HoldModel { masters: 3, ..small(Design::Sound) }, 32_113);
}

#[test]
#[ignore = "takes two minutes"]
fn one_master_with_fixed_leases_is_sound() {
    let leases = &[1, LEASE, LONGEST];
    let model = HoldModel { depth: 2, leases, extends: true, faults: 1, ..small(Design::Sound) };
    is_sound(HoldModel { crashes: 1, doubts: 1, late: true, twice: true, ..model }, 6_779_916);
}

#[test]
#[ignore = "takes half a minute"]
fn three_masters_of_which_one_restarts_are_sound() {
    is_sound(HoldModel { masters: 3, restarts: 1, ..small(Design::Sound) }, 1_334_523);
}

#[test]
#[ignore = "takes half a minute"]
fn tokens_are_sound() {
    is_sound(HoldModel { masters: 3, fenced: true, ..small(Design::Sound) }, 1_950_200);
}
