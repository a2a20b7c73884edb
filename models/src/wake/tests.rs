use stateright::{Checker, HasDiscoveries};

use super::*;

fn small(design: Design) -> WakeModel {
    WakeModel { design, requests: [1, 1], drops: 0, losses: 0, cuts: 0, young: false, subscribed: false }
}

const LOST: &str = "no wake-up is lost";
const ECHO: &str = "no echo is expected that never comes";
const NEWS: &str = "an echo is no news";

/// The shortest execution that breaks a property has so many steps.
fn finds(model: &WakeModel, property: &'static str, length: usize) {
    // Prints the shortest one instead.
    if std::env::var("SHOW").is_ok() {
        let path = (3..30).find_map(|length| discovery(model, property, length)).unwrap();
        println!("{:?} {property} {} {path:?}", model.design, path.len());
        return;
    }
    assert_eq!(discovery(model, property, length - 1), None);
    assert_eq!(discovery(model, property, length).map(|steps| steps.len()), Some(length));
}

/// An execution of so many steps at most. Of several it is not the shortest: the checker reports the last of those
/// that it finds together.
fn discovery(model: &WakeModel, property: &'static str, longest: usize) -> Option<Vec<Step>> {
    let finish = HasDiscoveries::AnyOf([property].into());
    let checker = model.clone().checker().finish_when(finish).target_max_depth(longest + 2);
    checker.spawn_bfs().join().discovery(property).map(|found| found.into_actions())
}

fn is_sound(model: WakeModel, states: usize) {
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    if std::env::var("SHOW").is_ok() {
        println!("STATES {}", checker.unique_state_count());
        for (name, path) in checker.discoveries() {
            println!("{name}: {:?}", path.clone().into_actions());
            println!("{:?}", path.last_state());
        }
        return;
    }
    checker.assert_properties();
    assert!(checker.unique_state_count() >= states);
}

#[test]
#[ignore = "takes a minute"]
fn a_waiter_that_does_not_look_again_behind_its_subscription_sleeps_beside_a_free_lock() {
    finds(&small(Design::NoSecondLook), LOST, 26);
}

#[test]
#[ignore = "not measured"]
fn a_head_that_goes_and_hands_nothing_on_leaves_the_next_one_asleep() {
    finds(&WakeModel { requests: [1, 2], drops: 1, ..small(Design::HeadKeeps) }, LOST, 1);
}

#[test]
#[ignore = "not measured"]
fn a_message_that_is_forgotten_while_the_head_asks_leaves_it_asleep() {
    finds(&small(Design::MessageWhileAsking), LOST, 1);
}

#[test]
fn an_echo_that_is_taken_for_a_foreign_release_is_news() {
    finds(&WakeModel { subscribed: true, ..small(Design::EchoIsForeign) }, NEWS, 7);
}

#[test]
#[ignore = "not measured"]
fn an_echo_of_a_master_that_had_nothing_is_expected_for_ever() {
    finds(&WakeModel { subscribed: true, ..small(Design::EchoOfNothing) }, ECHO, 1);
}

#[test]
#[ignore = "not measured"]
fn one_request_for_each_process_is_sound() {
    is_sound(small(Design::Sound), 1);
}

#[test]
#[ignore = "not measured"]
fn processes_that_are_subscribed_are_sound() {
    is_sound(WakeModel { subscribed: true, ..small(Design::Sound) }, 1);
}

#[test]
#[ignore = "not measured"]
fn a_young_master_is_sound() {
    is_sound(WakeModel { young: true, ..small(Design::Sound) }, 1);
}
