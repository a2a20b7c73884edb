use super::*;
use crate::testing::{finds, is_sound, is_sound_for};

const TWO: &str = "no two hold the lock";
const PASSED: &str = "nobody who is there is passed over";
const TOKEN: &str = "tokens grow";
const IDLE: &str = "no free lock idles beside a waiter";
const TURNS: &str = "other programs' clients have their turns";

/// Returns a model of two processes with a request each, which enter after one more ask.
fn two() -> LineModel {
    LineModel::base(Entering::Confirmed, [1, 1, 0])
}

fn three() -> LineModel {
    LineModel::base(Entering::Confirmed, [1, 1, 1])
}

/// Returns a model in which connections are lost; what was sent may run later, and the server may not notice.
fn lossy(model: LineModel, cuts: u8) -> LineModel {
    LineModel { cuts, late: true, half_open: true, ..model }
}

#[test]
fn a_request_that_asks_with_a_fresh_field_waits_for_itself() {
    finds(&LineModel { design: Design::AlwaysFresh, ..lossy(two(), 1) }, IDLE, 6);
}

#[test]
fn a_field_that_the_next_request_has_too_is_held_twice() {
    let model = LineModel::base(Entering::Confirmed, [2, 1, 0]);
    finds(&LineModel { design: Design::SharedField, drops: 1, ..model }, TWO, 9);
}

#[test]
fn a_release_that_does_not_look_whose_field_it_ends_frees_anothers_hold() {
    let model = LineModel::base(Entering::Confirmed, [2, 1, 0]);
    finds(&LineModel { design: Design::UncheckedRelease, drops: 1, ..model }, TWO, 12);
}

#[test]
fn a_release_that_leaves_its_entry_is_handed_the_lock() {
    let model = LineModel { design: Design::ReleaseKeepsEntry, drops: 1, cuts: 1, ..three() };
    finds(&model, IDLE, 18);
}

#[test]
fn a_dropped_request_that_leaves_its_entry_is_handed_the_lock() {
    finds(&LineModel { design: Design::DropLeavesEntry, drops: 1, ..three() }, IDLE, 15);
}

#[test]
fn an_entry_whose_generation_goes_back_is_skipped() {
    finds(&LineModel { design: Design::GenerationGoesBack, ..lossy(three(), 2) }, IDLE, 16);
}

#[test]
fn a_hand_over_to_nobody_idles() {
    finds(&LineModel { design: Design::ReceiversNotCounted, crashes: 1, ..three() }, IDLE, 13);
}

#[test]
fn a_hand_over_that_nobody_watches_is_not_seen_to_end() {
    finds(&LineModel { design: Design::NoPass, crashes: 1, half_open: true, ..three() }, IDLE, 15);
    finds(&LineModel { design: Design::NoPass, freezes: 1, ..three() }, IDLE, 15);
}

#[test]
fn a_pass_that_is_lost_is_sent_again() {
    finds(&LineModel { design: Design::PassLost, crashes: 1, ..lossy(three(), 1) }, IDLE, 17);
}

#[test]
fn a_release_that_is_sent_again_learns_that_it_has_handed_over() {
    finds(&LineModel { design: Design::SecondReleaseForgets, crashes: 1, ..lossy(three(), 1) }, IDLE, 17);
}

#[test]
fn a_timer_that_counts_from_the_answer_is_late() {
    finds(&LineModel { design: Design::TimerFromAnswer, crashes: 1, delays: 1, ..two() }, IDLE, 10);
}

#[test]
fn whoever_asks_again_first_does_not_take_a_free_lock() {
    finds(&LineModel { design: Design::AskerTakes, ..three() }, PASSED, 14);
}

#[test]
fn who_enters_before_others_passes_them_over() {
    finds(&LineModel { design: Design::NewcomersFirst, ..three() }, PASSED, 9);
}

#[test]
fn a_message_that_nobody_waits_for_is_the_end_of_its_field() {
    let model = LineModel { design: Design::StrangeHintIgnored, drops: 1, overtakes: 1, ..three() };
    finds(&model, IDLE, 17);
}

#[test]
fn a_message_may_be_of_a_late_ask_behind_the_release_that_is_not_answered() {
    finds(&LineModel { design: Design::LeavingHintIgnored, ..lossy(three(), 1) }, IDLE, 19);
}

#[test]
fn a_pass_whose_time_counts_from_the_answer_is_late() {
    let model = LineModel { crashes: 1, delays: 1, ..lossy(three(), 0) };
    finds(&LineModel { design: Design::PassFromAnswer, ..model }, IDLE, 15);
}

#[test]
fn a_message_before_the_answer_of_an_ask_is_remembered() {
    finds(&LineModel { design: Design::HintForgotten, ..two() }, IDLE, 11);
}

#[test]
fn a_request_asks_again_over_a_new_connection() {
    finds(&LineModel { design: Design::NotAgain, cuts: 1, ..two() }, IDLE, 12);
}

#[test]
fn a_hold_whose_time_counts_from_the_answer_overlaps_the_next_one() {
    finds(&LineModel { design: Design::DeadlineFromAnswer, delays: 3, ..two() }, TWO, 9);
}

#[test]
fn others_locks_need_a_process_that_listens() {
    finds(&LineModel { design: Design::NobodyListens, foreign: 1, ..two() }, IDLE, 6);
}

#[test]
fn a_message_that_counts_from_its_receipt_makes_two_holders() {
    let model = LineModel::base(Entering::ByMessage, [2, 1, 0]);
    finds(&LineModel { design: Design::DeadlineFromMessage, delays: 2, ..model }, TWO, 15);
}

#[test]
fn requests_that_are_dropped_and_late_are_sound() {
    let model = LineModel::base(Entering::Confirmed, [2, 1, 0]);
    is_sound(LineModel { drops: 1, delays: 1, ..model }, 89_018);
    is_sound(LineModel { drops: 1, delays: 1, ..three() }, 172_861);
}

#[test]
fn connections_that_are_lost_are_sound() {
    is_sound(LineModel { drops: 1, ..lossy(two(), 2) }, 71_722);
    is_sound(LineModel { delays: 1, ..lossy(two(), 2) }, 197_334);
}

#[test]
fn processes_that_crash_or_stop_are_sound() {
    is_sound(LineModel { crashes: 1, delays: 1, ..lossy(three(), 0) }, 123_891);
    is_sound(LineModel { freezes: 1, ..three() }, 91_653);
}

#[test]
fn forced_releases_are_sound() {
    is_sound(LineModel { forces: 1, ..three() }, 17_368);
}

#[test]
fn restarts_and_failovers_are_sound() {
    is_sound(LineModel { restarts: 1, ..three() }, 25_094);
    is_sound(LineModel { failovers: 1, delays: 1, ..two() }, 12_543);
}

#[test]
fn a_server_whose_clock_steps_costs_its_step() {
    is_sound(LineModel { steps: 1, delays: 1, idle: 1, ..two() }, 3_799);
}

#[test]
fn commands_that_overtake_are_sound() {
    is_sound(LineModel { overtakes: 1, drops: 1, delays: 1, ..two() }, 5_159);
    is_sound(LineModel { overtakes: 1, drops: 1, ..three() }, 26_540);
}

#[test]
fn processes_that_subscribe_late_are_sound() {
    is_sound(LineModel { heard: false, drops: 1, ..lossy(two(), 1) }, 9_460);
}

#[test]
fn others_locks_are_waited_for() {
    is_sound(LineModel { foreign: 1, shares: 1, ..two() }, 109_860);
}

#[test]
fn others_locks_cost_a_hand_over_where_what_asks_to_listen_is_lost() {
    let model = LineModel { foreign: 1, ..two() };
    is_sound(LineModel { idle: 2, cuts: 1, ..model }, 211_612);
}

#[test]
fn a_process_that_polls_is_in_the_line() {
    is_sound(LineModel { pollers: 0b100, idle: 1, crashes: 1, ..three() }, 11_877);
}

#[test]
fn entries_without_a_connection_are_enough_where_an_ask_confirms() {
    is_sound(LineModel { generations: false, ..lossy(three(), 1) }, 101_821);
}

/// The message is the grant.
fn by_message(requests: [u8; 3]) -> LineModel {
    LineModel::base(Entering::ByMessage, requests)
}

#[test]
fn a_hand_over_without_a_token_leaves_the_one_of_the_hold_before() {
    finds(&LineModel { design: Design::TokenAtAnswer, fenced: true, ..told([1, 1, 0]) }, TOKEN, 11);
}

#[test]
fn a_server_that_takes_over_with_an_old_counter_and_an_old_clock_gives_a_token_twice() {
    // docs/fencing.md has it among what tokens depend on.
    let model = LineModel { fenced: true, failovers: 1, ..told([1, 1, 0]) };
    finds(&LineModel { design: Design::ClockBehind, ..model }, TOKEN, 7);
}

#[test]
fn tokens_of_holds_that_were_handed_over_grow() {
    let fenced = |requests| LineModel { fenced: true, ..told(requests) };
    is_sound(LineModel { drops: 1, delays: 1, idle: 1, ..fenced([2, 1, 0]) }, 50_060);
    is_sound(LineModel { idle: 1, ..lossy(fenced([1, 1, 0]), 1) }, 6_293);
    is_sound(LineModel { forces: 1, drops: 1, ..fenced([1, 1, 1]) }, 79_899);
    is_sound(LineModel { failovers: 1, delays: 1, idle: 1, ..fenced([1, 1, 0]) }, 27_059);
    is_sound(LineModel { restarts: 1, ..fenced([1, 1, 1]) }, 55_935);
}

#[test]
fn a_message_that_a_demoted_master_delivers_is_no_grant() {
    finds(&LineModel { design: Design::Replicated, failovers: 1, ..by_message([2, 1, 0]) }, TWO, 15);
}

#[test]
fn messages_that_grant_name_their_connection() {
    let model = LineModel { design: Design::GenerationGoesBack, ..by_message([1, 1, 1]) };
    finds(&lossy(model, 1), IDLE, 13);
}

#[test]
fn a_message_for_a_request_that_is_gone_is_the_end_of_its_field() {
    let model = LineModel { design: Design::StrangeHintIgnored, ..by_message([1, 1, 1]) };
    finds(&LineModel { drops: 1, overtakes: 1, ..model }, IDLE, 17);
}

#[test]
fn messages_that_grant_are_sound() {
    is_sound(LineModel { drops: 1, delays: 1, ..by_message([1, 1, 1]) }, 123_169);
    is_sound(LineModel { freezes: 1, ..by_message([2, 1, 0]) }, 42_613);
    is_sound(LineModel { crashes: 1, ..lossy(by_message([1, 1, 1]), 0) }, 12_198);
    is_sound(lossy(by_message([1, 1, 1]), 1), 129_662);
}

#[test]
fn messages_that_grant_are_sound_behind_restarts_and_failovers() {
    is_sound(LineModel { restarts: 1, ..by_message([1, 1, 1]) }, 33_055);
    is_sound(LineModel { failovers: 1, ..by_message([1, 1, 1]) }, 220_964);
}

#[test]
fn messages_that_grant_are_sound_beside_others_and_pollers() {
    is_sound(LineModel { foreign: 1, shares: 1, ..by_message([1, 1, 0]) }, 20_637);
    is_sound(LineModel { pollers: 0b100, idle: 1, crashes: 1, ..by_message([1, 1, 1]) }, 9_482);
    is_sound(LineModel { forces: 1, ..by_message([1, 1, 1]) }, 15_260);
}

/// The message is the grant, and comes over a connection of its own. Nothing names that connection.
fn asked_once(requests: [u8; 3]) -> LineModel {
    LineModel { generations: false, ..LineModel::base(Entering::AskedOnce, requests) }
}

#[test]
fn a_message_in_any_order_may_be_older_than_the_second_ask() {
    let model = LineModel { delays: 2, ..asked_once([2, 1, 0]) };
    finds(&LineModel { design: Design::AskedTwice, ..model.clone() }, TWO, 19);
    finds(&LineModel { design: Design::DeadlineFromMessage, ..model }, TWO, 15);
}

#[test]
fn a_message_in_any_order_that_a_demoted_master_delivers_is_no_grant() {
    finds(&LineModel { design: Design::Replicated, failovers: 1, ..asked_once([2, 1, 0]) }, TWO, 14);
}

#[test]
fn messages_in_any_order_that_grant_are_sound() {
    is_sound(LineModel { drops: 1, delays: 1, ..asked_once([1, 1, 1]) }, 244_768);
    is_sound(LineModel { delays: 2, ..asked_once([2, 1, 0]) }, 299_276);
    is_sound(LineModel { freezes: 1, ..asked_once([2, 1, 0]) }, 84_359);
    is_sound(LineModel { crashes: 1, ..lossy(asked_once([1, 1, 1]), 0) }, 21_482);
    is_sound(lossy(asked_once([1, 1, 1]), 1), 155_928);
}

#[test]
fn messages_in_any_order_that_grant_are_sound_behind_restarts_and_failovers() {
    is_sound(LineModel { restarts: 1, ..asked_once([1, 1, 1]) }, 42_857);
    is_sound(LineModel { failovers: 1, ..asked_once([1, 1, 1]) }, 380_861);
}

#[test]
fn messages_in_any_order_that_grant_are_sound_beside_others_and_pollers() {
    is_sound(LineModel { foreign: 1, shares: 1, ..asked_once([1, 1, 0]) }, 180_063);
    is_sound(LineModel { pollers: 0b100, idle: 1, crashes: 1, ..asked_once([1, 1, 1]) }, 18_769);
    is_sound(LineModel { forces: 1, ..asked_once([1, 1, 1]) }, 31_895);
}

/// The protocol of the crate's code.
fn told(requests: [u8; 3]) -> LineModel {
    LineModel::told(LineModel::base(Entering::Confirmed, requests))
}

#[test]
fn a_second_that_is_not_told_when_to_ask_sleeps_beside_a_free_lock() {
    finds(&LineModel { design: Design::SecondNotTold, freezes: 1, ..told([1, 1, 1]) }, IDLE, 15);
}

#[test]
fn who_is_told_when_to_ask_while_it_asks_asks_once_more() {
    finds(&LineModel { design: Design::TimeForgotten, freezes: 1, ..told([1, 1, 1]) }, IDLE, 16);
}

#[test]
fn one_that_polls_and_is_taken_for_gone_is_passed_over() {
    let model = LineModel { design: Design::PollersAreGone, pollers: 0b100, idle: 1, ..told([1, 1, 1]) };
    finds(&model, PASSED, 9);
}

#[test]
fn who_is_refused_by_one_that_may_not_publish_polls_too() {
    let model = LineModel { pollers: 0b100, idle: 2, lease: 4, poll: 4, ..told([1, 1, 1]) };
    finds(&LineModel { design: Design::SleepsBehindSilent, ..model.clone() }, IDLE, 12);
    is_sound(model, 5_860);
}

#[test]
fn those_who_poll_beside_those_who_are_told_when_to_ask_are_sound() {
    // A hand-over that is not used costs one more tick.
    let polls = || LineModel { pollers: 0b100, idle: 2, ..told([1, 1, 1]) };
    is_sound(LineModel { drops: 1, ..polls() }, 17_759);
    is_sound(LineModel { crashes: 1, ..polls() }, 8_469);
    is_sound(LineModel { freezes: 1, ..polls() }, 117_000);
    is_sound(LineModel { crashes: 1, pollers: 0b110, ..polls() }, 3_596);
    is_sound(LineModel { idle: 3, ..lossy(polls(), 1) }, 349_529);
}

#[test]
fn those_who_are_told_when_to_ask_are_sound() {
    is_sound(LineModel { drops: 1, ..told([1, 1, 1]) }, 14_569);
    is_sound(LineModel { drops: 1, ..told([2, 1, 0]) }, 5_351);
    is_sound(LineModel { freezes: 1, ..told([1, 1, 1]) }, 90_305);
    is_sound(lossy(told([1, 1, 1]), 1), 354_819);
    is_sound(LineModel { crashes: 1, ..lossy(told([1, 1, 1]), 0) }, 14_518);
    is_sound(LineModel { forces: 1, drops: 1, ..told([1, 1, 1]) }, 71_992);
}

#[test]
fn one_that_gets_no_hints_any_more_and_keeps_its_field_is_passed_over() {
    let model = LineModel { denials: 1, idle: 3, ..told([1, 1, 1]) };
    finds(&LineModel { design: Design::DeniedStays, ..model }, PASSED, 18);
}

#[test]
fn those_who_get_no_hints_any_more_are_sound() {
    // They sleep until the poll interval is over, or the time that they know of.
    let denied = |requests| LineModel { denials: 1, idle: 3, ..told(requests) };
    // One that is dropped before it knows that it has the lock costs one more tick.
    is_sound(LineModel { drops: 1, idle: 4, ..denied([1, 1, 1]) }, 66_396);
    is_sound(LineModel { crashes: 1, ..denied([1, 1, 1]) }, 30_860);
    is_sound(LineModel { pollers: 0b100, ..denied([1, 1, 1]) }, 21_079);
}

#[test]
fn a_release_that_is_sent_again_by_its_text_must_not_end_the_next_hold() {
    let model = LineModel { flushes: 1, ..told([2, 1, 0]) };
    finds(&LineModel { design: Design::SharedField, ..model }, TWO, 13);
}

#[test]
fn commands_that_are_sent_again_by_their_text_are_sound() {
    let model = |requests| LineModel { flushes: 2, ..told(requests) };
    is_sound(LineModel { drops: 1, ..model([1, 1, 1]) }, 77_573);
    is_sound(LineModel { flushes: 1, drops: 1, ..model([2, 1, 0]) }, 23_095);
    is_sound(LineModel { fenced: true, ..lossy(model([1, 1, 0]), 1) }, 36_956);
    is_sound(LineModel { overtakes: 1, drops: 1, ..told([1, 1, 1]) }, 27_499);
}

/// Another program's client waits, and has so many holds.
fn beside_others(requests: [u8; 3], foreign: u8) -> LineModel {
    LineModel { foreign, idle: 1, ..told(requests) }
}

#[test]
fn others_that_are_never_left_the_lock_wait_without_end() {
    finds(&LineModel { design: Design::NoTurns, ..beside_others([1, 1, 1], 1) }, TURNS, 16);
}

#[test]
fn others_sleep_on_beside_a_free_lock_behind_one_that_is_stopped() {
    // 1. A waits in the line alone, and stops. 2. The holder releases: it is the other
    // program's turn, and A has given way. 3. That client is slow, and the next request of the holder takes the lock. 4. The
    // client asks, and sleeps until the end of the lease that it sees. 5. The lock is released, and handed to A. Nobody is
    // notified of the end of that time.
    let model = LineModel { freezes: 1, lease: 6, ..beside_others([2, 1, 0], 1) };
    finds(&LineModel { design: Design::OthersNotTold, ..model.clone() }, IDLE, 21);
    is_sound_for(model, 22);
}

#[test]
fn who_is_not_subscribed_sleeps_on_behind_others() {
    finds(&LineModel { design: Design::NobodyListens, ..beside_others([1, 1, 0], 1) }, IDLE, 7);
}

#[test]
fn others_that_wait_are_sound() {
    is_sound(beside_others([2, 1, 0], 1), 102_485);
    is_sound(LineModel { drops: 1, ..beside_others([1, 1, 0], 1) }, 32_118);
    is_sound(LineModel { freezes: 1, ..beside_others([1, 1, 0], 1) }, 183_293);
}

#[test]
fn a_line_by_the_servers_clock_is_passed_over_behind_a_step_back() {
    let model = LineModel { steps: 1, clocks: &[Clock::Back], ..told([1, 1, 1]) };
    finds(&LineModel { design: Design::OrderByClock, ..model }, PASSED, 10);
}

#[test]
fn steps_of_the_clock_cost_no_more_than_a_poll_interval() {
    let steps = |clocks, requests| LineModel { steps: 1, clocks, ..told(requests) };
    is_sound(LineModel { delays: 1, idle: 1, ..steps(&[Clock::Ahead, Clock::Back], [1, 1, 0]) }, 8_760);
    is_sound(LineModel { idle: 1, ..steps(&[Clock::AheadOfLine], [2, 1, 0]) }, 10_730);
    is_sound(LineModel { idle: 3, ..steps(&[Clock::AheadOfAll], [1, 1, 0]) }, 858);
    let ahead = steps(&[Clock::Ahead, Clock::Back], [1, 1, 0]);
    is_sound(LineModel { failovers: 1, idle: 1, ..ahead }, 94_288);
}
