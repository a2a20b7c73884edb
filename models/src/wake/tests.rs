use super::*;
use crate::testing::{finds, is_sound_for};

fn small(design: Design) -> WakeModel {
    WakeModel { design, requests: [1, 1], drops: 0, losses: 0, cuts: 0, young: false, subscribed: [0; 2] }
}

const LOST: &str = "no wake-up is lost";
const ECHO: &str = "no echo is expected that never comes";
const NEWS: &str = "an echo is no news";

#[test]
#[ignore = "takes two minutes"]
fn a_waiter_that_does_not_look_again_after_its_subscription_sleeps_beside_a_free_lock() {
    finds(&small(Design::NoSecondLook), LOST, 26);
}

/// The process is subscribed at one master, which is not the young one, so it misses no message that other masters
/// would send too.
#[test]
fn a_message_that_is_forgotten_while_the_head_asks_leaves_it_asleep() {
    let model = small(Design::MessageWhileAsking);
    finds(&WakeModel { young: true, subscribed: [0b010; 2], ..model }, LOST, 14);
}

#[test]
fn an_echo_that_is_taken_for_a_foreign_release_is_news() {
    finds(&WakeModel { subscribed: [ALL; 2], ..small(Design::EchoIsForeign) }, NEWS, 7);
}

#[test]
fn an_echo_of_a_master_that_had_nothing_is_expected_for_ever() {
    finds(&WakeModel { subscribed: [ALL, 0], ..small(Design::EchoOfNothing) }, ECHO, 12);
}

#[test]
fn processes_that_are_subscribed_are_sound_for_some_steps() {
    is_sound_for(WakeModel { young: true, subscribed: [ALL; 2], ..small(Design::Sound) }, 12);
}

#[test]
fn processes_that_subscribe_are_sound_for_some_steps() {
    is_sound_for(WakeModel { young: true, ..small(Design::Sound) }, 12);
}
