use super::*;
use crate::testing::{finds, is_sound};

const KEPT: &str = "nothing is kept for who does not take it";
const CIRCLE: &str = "while requests wait, one works";
const PASSED: &str = "nobody in a line is passed over";

/// Returns a model of two processes that take the same two names.
fn two() -> SeveralModel {
    SeveralModel::base([0b11, 0b11, 0])
}

/// Returns a model of three processes: one takes two names, and the others one of them each.
fn mixed() -> SeveralModel {
    SeveralModel::base([0b11, 0b01, 0b10])
}

#[test]
fn names_in_different_orders_are_waited_for_in_a_circle() {
    finds(&SeveralModel { design: Design::OrderOfTheirOwn, ..two() }, CIRCLE, 14);
}

#[test]
fn who_keeps_a_name_after_the_one_that_it_waits_for_waits_in_a_circle() {
    finds(&SeveralModel { design: Design::KeepsLaterNames, ..two() }, CIRCLE, 14);
}

#[test]
fn a_name_is_handed_to_one_that_waits_for_another_name() {
    finds(&SeveralModel { design: Design::EntersAllLines, ..mixed() }, KEPT, 18);
}

#[test]
fn an_entry_that_is_left_after_a_loss_is_handed_the_lock() {
    finds(&SeveralModel { design: Design::LossLeavesEntry, forces: 1, ..mixed() }, KEPT, 22);
}

#[test]
fn a_name_that_is_given_back_outside_its_line_keeps_the_line_waiting() {
    finds(&SeveralModel { design: Design::EndsOutsideLine, ..mixed() }, KEPT, 12);
}

#[test]
fn a_name_that_is_given_back_outside_its_line_is_taken_past_it() {
    finds(&SeveralModel { design: Design::EndsOutsideLine, requests: 2, ..two() }, PASSED, 13);
}

#[test]
fn requests_for_several_names_are_sound() {
    is_sound(SeveralModel { drops: 1, forces: 1, ..two() }, 201_646);
    is_sound(SeveralModel { requests: 2, ..two() }, 50_696);
    is_sound(SeveralModel { drops: 1, forces: 1, ..mixed() }, 136_981);
    is_sound(SeveralModel { drops: 1, ..SeveralModel::base([0b111, 0b110, 0]) }, 32_198);
}
