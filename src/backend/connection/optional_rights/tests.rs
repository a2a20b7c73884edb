use super::*;
use std::time::Duration;

use crate::holder::Holder;
use crate::wire::Action;

#[test]
fn a_name_that_is_denied_is_not_asked_for_until_one_is_read() {
    let (right, call) = (OptionalRights::default(), Call::of("stock", "", Action::Look));
    let second = Duration::from_secs(1);
    let asks = |answer: CallResult| {
        right.learn(&answer, || Some(1));
        let asked = [true, false].map(|names| {
            let mut call = Call { report_holder: names, ..call.clone() };
            right.apply(&mut call, || Some(1));
            call.report_holder
        });
        assert!(!asked[1]);
        asked[0]
    };
    assert!(asks(Ok(Reply::Done)) && asks(Ok(Reply::busy(second))));
    assert!(!asks(Ok(Reply::Nameless(second))));
    assert!(!asks(Ok(Reply::busy(second))) && !asks(Ok(Reply::Done)));
    assert!(asks(Ok(Reply::held_by(Holder::new("f", 1, second)))));
}

#[test]
fn what_lines_need_is_tried_again_with_the_next_connection() {
    let drift = crate::base::Drift { factor: 0.0, slack: Duration::ZERO };
    let time = crate::base::Lease::new("time", Duration::from_secs(1), drift).unwrap();
    let line =
        Some(crate::wire::Line { term: time, stays: time, again: false, polls: false, sharded: false });
    let right = OptionalRights::default();
    let says = |connection| {
        let mut call = Call { line, ..Call::of("stock", "f:1", Action::END) };
        right.apply(&mut call, || connection);
        call.line.is_some()
    };
    assert!(says(Some(1)));
    right.learn_of_lines(&Ok(Reply::Gone), Some(1), "server");
    assert!(!says(Some(1)) && says(Some(2)) && says(None));
    right.learn_of_lines(&Ok(Reply::Gone), Some(2), "server");
    assert!(says(Some(1)) && !says(Some(2)));
}
