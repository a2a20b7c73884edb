use super::*;
use crate::testing::{finds, is_sound, is_sound_for};

const TWO: &str = "no two hold the lock";
const PASSED: &str = "nobody who is there is passed over";
const TOKEN: &str = "tokens grow";
const IDLE: &str = "no free lock idles beside a waiter";
const TURNS: &str = "other programs' clients have their turns";

/// Returns a model of the processes that make so many requests each.
fn told(requests: [u8; 3]) -> LineModel {
    LineModel::base(requests)
}

/// Returns a model in which connections are lost; what was sent may run later, and the server may not notice.
fn lossy(model: LineModel, cuts: u8) -> LineModel {
    LineModel { cuts, late: true, half_open: true, ..model }
}

#[test]
fn a_request_that_asks_with_a_fresh_field_waits_for_itself() {
    finds(&LineModel { design: Design::FormerStays, ..lossy(told([1, 1, 0]), 1) }, IDLE, 6);
}

#[test]
fn a_field_that_the_next_request_has_too_is_held_twice() {
    let model = told([2, 1, 0]);
    finds(&LineModel { design: Design::SharedField, drops: 1, ..model }, TWO, 9);
}

#[test]
fn a_release_that_does_not_look_whose_field_it_ends_frees_anothers_hold() {
    let model = told([2, 1, 0]);
    finds(&LineModel { design: Design::UncheckedRelease, drops: 1, ..model }, TWO, 12);
}

#[test]
fn a_release_that_leaves_its_entry_is_handed_the_lock() {
    let model = LineModel { design: Design::ReleaseKeepsEntry, drops: 1, cuts: 1, ..told([1, 1, 1]) };
    finds(&model, IDLE, 19);
}

#[test]
fn a_dropped_request_that_leaves_its_entry_is_handed_the_lock() {
    finds(&LineModel { design: Design::DropLeavesEntry, drops: 1, ..told([1, 1, 1]) }, IDLE, 15);
}

#[test]
fn a_hand_over_to_nobody_idles() {
    finds(&LineModel { design: Design::ReceiversNotCounted, crashes: 1, ..told([1, 1, 1]) }, IDLE, 13);
}

#[test]
fn a_timer_that_counts_from_the_answer_is_late() {
    finds(&LineModel { design: Design::TimerFromAnswer, crashes: 1, delays: 1, ..told([1, 1, 0]) }, IDLE, 10);
}

#[test]
fn whoever_asks_again_first_does_not_take_a_free_lock() {
    finds(&LineModel { design: Design::AskerTakes, ..told([1, 1, 1]) }, PASSED, 14);
}

#[test]
fn who_enters_before_others_passes_them_over() {
    finds(&LineModel { design: Design::NewcomersFirst, ..told([1, 1, 1]) }, PASSED, 9);
}

#[test]
fn a_message_that_nobody_waits_for_is_the_end_of_its_field() {
    let model = LineModel { design: Design::StrangeHintIgnored, drops: 1, overtakes: 1, ..told([1, 1, 1]) };
    finds(&model, IDLE, 17);
}

#[test]
fn a_message_may_be_of_a_late_ask_after_the_release_that_is_not_answered() {
    finds(&LineModel { design: Design::LeavingHintIgnored, ..lossy(told([1, 1, 1]), 1) }, IDLE, 15);
}

#[test]
fn a_message_before_the_answer_of_an_ask_is_remembered() {
    finds(&LineModel { design: Design::HintForgotten, ..told([1, 1, 0]) }, IDLE, 11);
}

#[test]
fn a_request_asks_again_over_a_new_connection() {
    finds(&LineModel { design: Design::NotAgain, cuts: 1, ..told([1, 1, 0]) }, IDLE, 12);
}

#[test]
fn a_hold_whose_time_counts_from_the_answer_overlaps_the_next_one() {
    finds(&LineModel { design: Design::DeadlineFromAnswer, delays: 3, ..told([1, 1, 0]) }, TWO, 9);
}

#[test]
fn requests_that_are_dropped_and_late_are_sound() {
    let model = told([2, 1, 0]);
    is_sound(LineModel { drops: 1, delays: 1, ..model }, 19_321);
    is_sound(LineModel { drops: 1, delays: 1, ..told([1, 1, 1]) }, 49_759);
}

#[test]
fn connections_that_are_lost_are_sound() {
    // An acquire that runs late, and whose end is lost with a second connection, keeps the lock for its lease.
    let model = LineModel { idle: 3, ..lossy(told([1, 1, 0]), 2) };
    is_sound(LineModel { drops: 1, ..model.clone() }, 377_435);
    is_sound(LineModel { delays: 1, ..model }, 596_700);
}

#[test]
fn processes_that_crash_are_sound() {
    is_sound(LineModel { crashes: 1, delays: 1, idle: 1, ..lossy(told([1, 1, 1]), 0) }, 56_118);
}

#[test]
fn restarts_and_failovers_are_sound() {
    is_sound(LineModel { restarts: 1, ..told([1, 1, 1]) }, 43_994);
    is_sound(LineModel { failovers: 1, delays: 1, ..told([1, 1, 0]) }, 14_656);
}

#[test]
fn commands_that_overtake_are_sound() {
    is_sound(LineModel { overtakes: 1, drops: 1, delays: 1, ..told([1, 1, 0]) }, 1_655);
    is_sound(LineModel { overtakes: 1, drops: 1, ..told([1, 1, 1]) }, 19_932);
}

#[test]
fn processes_that_subscribe_late_are_sound() {
    is_sound(LineModel { heard: false, drops: 1, ..lossy(told([1, 1, 0]), 1) }, 16_293);
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
    is_sound(LineModel { drops: 1, delays: 1, idle: 1, ..fenced([2, 1, 0]) }, 20_903);
    is_sound(LineModel { idle: 1, ..lossy(fenced([1, 1, 0]), 1) }, 5_471);
    is_sound(LineModel { forces: 1, drops: 1, ..fenced([1, 1, 1]) }, 55_528);
    is_sound(LineModel { failovers: 1, delays: 1, idle: 1, ..fenced([1, 1, 0]) }, 14_981);
    is_sound(LineModel { restarts: 1, ..fenced([1, 1, 1]) }, 44_558);
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
    is_sound(model, 4_697);
}

#[test]
fn those_who_poll_beside_those_who_are_told_when_to_ask_are_sound() {
    // A hand-over that is not used costs one more tick.
    let polls = || LineModel { pollers: 0b100, idle: 2, ..told([1, 1, 1]) };
    is_sound(LineModel { drops: 1, ..polls() }, 12_974);
    is_sound(LineModel { crashes: 1, ..polls() }, 6_893);
    is_sound(LineModel { freezes: 1, ..polls() }, 50_739);
    is_sound(LineModel { crashes: 1, pollers: 0b110, ..polls() }, 3_057);
    is_sound(LineModel { idle: 3, ..lossy(polls(), 1) }, 238_209);
}

#[test]
fn those_who_are_told_when_to_ask_are_sound() {
    is_sound(LineModel { drops: 1, ..told([1, 1, 1]) }, 10_768);
    is_sound(LineModel { drops: 1, ..told([2, 1, 0]) }, 4_638);
    is_sound(LineModel { freezes: 1, ..told([1, 1, 1]) }, 38_266);
    is_sound(lossy(told([1, 1, 1]), 1), 238_784);
    is_sound(LineModel { crashes: 1, ..lossy(told([1, 1, 1]), 0) }, 12_088);
    is_sound(LineModel { forces: 1, drops: 1, ..told([1, 1, 1]) }, 49_713);
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
    is_sound(LineModel { drops: 1, idle: 4, ..denied([1, 1, 1]) }, 48_394);
    is_sound(LineModel { crashes: 1, ..denied([1, 1, 1]) }, 24_967);
    is_sound(LineModel { pollers: 0b100, ..denied([1, 1, 1]) }, 16_558);
}

#[test]
fn a_release_that_is_sent_again_by_its_text_must_not_end_the_next_hold() {
    let model = LineModel { flushes: 1, ..told([2, 1, 0]) };
    finds(&LineModel { design: Design::SharedField, ..model }, TWO, 13);
}

#[test]
fn commands_that_are_sent_again_by_their_text_are_sound() {
    let model = |requests| LineModel { flushes: 2, ..told(requests) };
    is_sound(LineModel { drops: 1, ..model([1, 1, 1]) }, 59_452);
    is_sound(LineModel { flushes: 1, drops: 1, ..model([2, 1, 0]) }, 20_003);
    is_sound(LineModel { fenced: true, ..lossy(model([1, 1, 0]), 1) }, 32_732);
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
    is_sound(beside_others([2, 1, 0], 1), 96_085);
    is_sound(LineModel { drops: 1, ..beside_others([1, 1, 0], 1) }, 28_227);
    is_sound(LineModel { freezes: 1, ..beside_others([1, 1, 0], 1) }, 84_709);
}

#[test]
fn a_line_by_the_servers_clock_is_passed_over_after_a_step_back() {
    let model = LineModel { steps: 1, clocks: &[Clock::Back], ..told([1, 1, 1]) };
    finds(&LineModel { design: Design::OrderByClock, ..model }, PASSED, 10);
}

#[test]
fn steps_of_the_clock_cost_no_more_than_a_poll_interval() {
    let steps = |clocks, requests| LineModel { steps: 1, clocks, ..told(requests) };
    is_sound(LineModel { delays: 1, idle: 1, ..steps(&[Clock::Ahead, Clock::Back], [1, 1, 0]) }, 4_881);
    is_sound(LineModel { idle: 1, ..steps(&[Clock::AheadOfLine], [2, 1, 0]) }, 10_374);
    is_sound(LineModel { idle: 3, ..steps(&[Clock::AheadOfAll], [1, 1, 0]) }, 846);
    let ahead = steps(&[Clock::Ahead, Clock::Back], [1, 1, 0]);
    is_sound(LineModel { failovers: 1, idle: 1, ..ahead }, 86_561);
}
