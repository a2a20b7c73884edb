use super::*;
use std::panic::Location;

#[track_caller]
fn named(name: &str) -> Named {
    let group = name.split(':').next().unwrap_or_default().into();
    Named { name: name.into(), group, location: Location::caller() }
}

/// Returns what is reported when these locks are taken, one under the other, and released again.
fn nest(order: &mut LockOrder, owner: &Owner, names: &[&str]) -> Vec<(String, String)> {
    let mut levels = Vec::new();
    let mut reported = Vec::new();
    for (level, name) in (1..).zip(names) {
        reported.extend(order.asks(owner, &named(name), u64::MAX));
        levels.push((order.holds(level, owner.clone(), named(name)), level));
    }
    levels.into_iter().rev().for_each(|(tree, level)| drop(order.leaves(tree, level)));
    assert!(order.held.is_empty());
    reported.into_iter().map(|one| (one.outer.0.to_string(), one.inner.0.to_string())).collect()
}

fn pair(outer: &str, inner: &str) -> (String, String) {
    (outer.to_owned(), inner.to_owned())
}

#[test]
fn two_orders_of_two_names_are_reported_once() {
    let (mut order, owner) = (LockOrder::default(), Owner::new());
    assert_eq!(nest(&mut order, &owner, &["a", "b"]), []);
    assert_eq!(nest(&mut order, &owner, &["a", "b"]), []);
    assert_eq!(nest(&mut order, &Owner::new(), &["b", "a"]), [pair("b", "a")]);
    assert_eq!(nest(&mut order, &owner, &["b", "a"]), []);
    assert_eq!(nest(&mut order, &owner, &["a", "b"]), []);
    // Each of the names above it counts.
    assert_eq!(nest(&mut order, &owner, &["c", "d", "e"]), []);
    assert_eq!(nest(&mut order, &owner, &["e", "d", "c"]), [pair("e", "d"), pair("e", "c"), pair("d", "c")]);
}

#[test]
fn a_report_has_the_places_of_both_orders() {
    let (mut order, owner) = (LockOrder::default(), Owner::new());
    let first = [named("a"), named("b")];
    order.holds(1, owner.clone(), first[0].clone());
    assert!(order.asks(&owner, &first[1], u64::MAX).is_empty());
    drop(order.leaves(owner.tree(), 1));
    let second = [named("b"), named("a")];
    order.holds(2, owner.clone(), second[0].clone());
    let reported = order.asks(&owner, &second[1], u64::MAX).pop().unwrap();
    let lines = |places: [Place; 2]| places.map(|place| (place.line(), place.column()));
    assert_eq!(lines([reported.outer.1, reported.inner.1]), lines(second.each_ref().map(|one| one.location)));
    assert_eq!(
        lines([reported.before.0, reported.before.1]),
        lines(first.each_ref().map(|one| one.location))
    );
}

#[test]
fn locks_of_one_group_a_reentry_and_several_at_once_have_no_order() {
    let (mut order, owner) = (LockOrder::default(), Owner::new());
    for names in [&["a:1", "a:2"], &["a:2", "a:1"]] {
        assert_eq!(nest(&mut order, &owner, names), []);
    }
    // It holds `a` already when it requests it under `b`.
    nest(&mut order, &owner, &["a:1", "b"]);
    assert_eq!(nest(&mut order, &owner, &["a:1", "b", "a:1"]), []);
    assert_eq!(nest(&mut order, &owner, &["a:1", "b", "a:2"]), [pair("b", "a")], "another one of the group");
    // A request for several locks began at 3, and was granted `d` since.
    nest(&mut order, &owner, &["c", "d"]);
    order.holds(4, owner.clone(), named("d"));
    assert!(order.asks(&owner, &named("c"), 3).is_empty());
    assert_eq!(order.asks(&owner, &named("c"), u64::MAX).len(), 1);
}

/// They are taken in a loop. Comparing a thousand with each other would make half a million pairs.
#[test]
fn what_is_asked_for_under_many_locks_is_not_compared_with_them() {
    for held in [MOST_HELD, MOST_HELD + 1] {
        let (mut order, owner) = (LockOrder::default(), Owner::new());
        nest(&mut order, &owner, &["b", "a"]);
        let names = std::iter::once("a".to_owned()).chain((1..held).map(|at| format!("x{at}")));
        for (level, name) in (1..).zip(names) {
            order.holds(level, owner.clone(), named(&name));
        }
        let reported = order.asks(&owner, &named("b"), u64::MAX).len();
        assert_eq!(reported, usize::from(held <= MOST_HELD), "{held}");
    }
}

#[test]
fn what_an_ancestor_holds_counts_and_what_others_hold_does_not() {
    let (mut order, task) = (LockOrder::default(), Owner::new());
    let (one, two) = (task.child(), task.child());
    nest(&mut order, &task, &["b", "a"]);
    order.holds(1, one.clone(), named("a"));
    for stranger in [&two, &task, &Owner::new()] {
        assert!(order.asks(stranger, &named("b"), u64::MAX).is_empty(), "{stranger:?}");
    }
    assert_eq!(order.asks(&one.child(), &named("b"), u64::MAX).len(), 1);
}

/// 1. A scope takes a guard, and ends. 2. The task that it ran in now has the guard, and requests another lock.
#[test]
fn what_an_ended_scope_has_left_is_its_parents() {
    let (mut order, task) = (LockOrder::default(), Owner::new());
    let child = task.child();
    nest(&mut order, &task, &["b", "a"]);
    child.enter();
    order.holds(1, child.clone(), named("a"));
    assert!(order.asks(&task, &named("b"), u64::MAX).is_empty());
    child.leave();
    assert_eq!(order.asks(&task, &named("b"), u64::MAX).len(), 1);
}

#[test]
fn pairs_are_bounded_and_those_that_are_seen_again_stay() {
    let (mut order, owner) = (LockOrder::default(), Owner::new());
    nest(&mut order, &owner, &["forgotten", "inner"]);
    for at in 0..100 {
        nest(&mut order, &owner, &["a", "b"]);
        nest(&mut order, &owner, &[&format!("x{at}"), "y"]);
        assert!(order.pairs.young.len() <= MOST_PAIRS && order.pairs.old.len() <= MOST_PAIRS);
    }
    assert_eq!(nest(&mut order, &owner, &["b", "a"]), [pair("b", "a")]);
    assert_eq!(nest(&mut order, &owner, &["inner", "forgotten"]), []);
}

/// 1. Both orders of two locks are reported. 2. One of the two pairs is forgotten, and the other one is seen again.
#[test]
fn two_orders_are_reported_once_for_as_long_as_one_of_them_is_remembered() {
    let forgotten = |order: &LockOrder, (outer, inner): (&str, &str)| {
        let pair = (outer.into(), inner.into());
        !order.pairs.young.contains_key(&pair) && !order.pairs.old.contains_key(&pair)
    };
    let mut seen = 0;
    for (first, second) in (0..2 * MOST_PAIRS).flat_map(|one| (0..2 * MOST_PAIRS).map(move |two| (one, two)))
    {
        let (mut order, owner) = (LockOrder::default(), Owner::new());
        nest(&mut order, &owner, &["a", "b"]);
        assert_eq!(nest(&mut order, &owner, &["b", "a"]), [pair("b", "a")]);
        for at in 0..first {
            nest(&mut order, &owner, &[&format!("x{at}"), "y"]);
        }
        if forgotten(&order, ("a", "b")) {
            continue;
        }
        nest(&mut order, &owner, &["a", "b"]);
        for at in 0..second {
            nest(&mut order, &owner, &[&format!("z{at}"), "y"]);
        }
        if forgotten(&order, ("b", "a")) && !forgotten(&order, ("a", "b")) {
            seen += 1;
            assert_eq!(nest(&mut order, &owner, &["a", "b"]), []);
            assert_eq!(nest(&mut order, &owner, &["b", "a"]), [], "{first} and {second}");
        }
    }
    assert!(seen > 0);
}
