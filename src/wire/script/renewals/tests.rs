use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::*;
use crate::base::Drift;
use crate::wire::Fence;

fn lease(seconds: u64) -> Lease {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    Lease::new("lease", Duration::from_secs(seconds), drift).unwrap()
}

fn renewal(key: &str, seconds: u64) -> Call {
    Call::of(key, &format!("me:{key}"), Action::Renew { lease: lease(seconds) })
}

fn words(cmd: &Cmd) -> Vec<String> {
    let text = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        _ => panic!("a cursor"),
    };
    cmd.args_iter().map(text).collect()
}

#[test]
fn renewals_of_one_lease_that_follow_each_other_go_together_and_nothing_else() {
    let end = Call::of("c", "me:c", Action::END);
    let fence = Fence { counter: "counter".into(), least: Some(7), stays: None };
    let fenced = Call { fence: Some(Arc::new(fence)), ..renewal("f", 9) };
    let calls = [
        renewal("a", 9),
        renewal("b", 9),
        end.clone(),
        renewal("d", 9),
        renewal("e", 8),
        fenced.clone(),
        fenced,
        renewal("g", 8),
        renewal("h", 8),
        end.clone(),
        end,
    ];
    assert_eq!(
        Renewals::divide(&calls),
        [0..2, 2..3, 3..4, 4..5, 5..6, 6..7, 7..9, 9..10, 10..11].map(|part: Range<usize>| part)
    );
    assert!(Renewals::of(&calls[..1]).is_none());
    let many: Vec<Call> = (0..250).map(|at| renewal(&at.to_string(), 9)).collect();
    assert_eq!(Renewals::divide(&many), [0..100, 100..200, 200..250]);
    assert!(Renewals::divide(&[]).is_empty());
}

#[test]
fn the_command_has_all_locks_their_fields_and_the_lease_and_is_read_so() {
    let calls = [renewal("a", 9), renewal("b", 9), renewal("c", 9)];
    let renewals = Renewals::of(&calls).unwrap();
    for (cmd, head) in
        [(renewals.evalsha(), ["EVALSHA", RENEW_ALL.sha()]), (renewals.eval(), ["EVAL", RENEW_ALL.body])]
    {
        let all = words(&cmd);
        assert_eq!(all[..2], head);
        assert_eq!(all[2..], ["3", "a", "b", "c", "me:a", "me:b", "me:c", "9000"]);
        let words: Vec<&str> = all.iter().map(String::as_str).collect();
        let (script, read) = Renewals::read(&words[1..]).unwrap();
        assert_eq!(script, RENEW_ALL.sha());
        let shown = |calls: &[Call]| {
            format!(
                "{:?}",
                calls
                    .iter()
                    .map(|call| (call.key().to_owned(), call.field.clone(), call.action))
                    .collect::<Vec<_>>()
            )
        };
        assert_eq!(shown(&read), shown(&calls));
    }
}

#[test]
fn a_list_of_another_length_is_no_answer() {
    let calls = [renewal("a", 9), renewal("b", 9)];
    let renewals = Renewals::of(&calls).unwrap();
    let list = |length| Value::Array(vec![Value::Int(-1); length]);
    assert_eq!(renewals.answers(list(2)), Ok(vec![Value::Int(-1); 2]));
    for value in [list(1), list(3), Value::Int(-1)] {
        assert_eq!(renewals.answers(value.clone()), Err(value));
    }
}

#[test]
fn that_a_hold_is_gone_is_in_doubt_and_nothing_else() {
    for (value, is_in_doubt) in [(Value::Int(-2), true), (Value::Int(-1), false), (Value::Nil, false)] {
        assert_eq!(Renewals::is_in_doubt(&value), is_in_doubt, "{value:?}");
    }
}
