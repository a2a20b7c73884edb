use redis::Cmd;

use super::*;
use crate::base::Drift;

mod fuzz;

#[test]
fn a_field_is_its_sessions_part_and_its_number() {
    let longest = "u".repeat(100);
    for (uuid, no) in [
        ("me", 0),
        ("me", 10),
        ("", u64::MAX),
        ("ü", 7),
        (&*longest, 12),
        (&longest[..62], 1),
        (&longest[..62], 12),
        (&longest, u64::MAX),
        (&"l".repeat(126), 1),
        (&"l".repeat(126), 12),
        (&"l".repeat(200), 1),
    ] {
        assert_eq!(&*field(uuid, no), format!("{uuid}:{no}"));
    }
}

fn lease() -> Lease {
    let drift = Drift { factor: 0.01, slack: Duration::from_millis(2) };
    Lease::new("lease", Duration::from_secs(30), drift).unwrap()
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys { channel: Arc::<str>::from("ch").into(), ..Keys::new("", "k") })
}

fn calls() -> [Call; 9] {
    [
        Action::Acquire { count: 2, lease: lease() },
        Action::Release { count: 1 },
        Action::Renew { lease: lease() },
        Action::Settle { count: 3, lease: lease() },
        Action::Force,
        Action::Look,
        Action::Who,
        Action::Keep { lease: lease() },
        Action::Move { lease: lease() },
    ]
    .map(|action| Call {
        keys: keys(),
        field: "f:1".into(),
        action,
        fence: None,
        sharded: false,
        report_holder: false,
        from: matches!(action, Action::Move { .. }).then(|| "f:9".into()),
        end: KeyEnd::Stays,
        line: None,
    })
}

#[test]
fn an_acquire_and_a_move_give_a_lock_and_nothing_else_does() {
    for Call { action, .. } in calls() {
        let gives = matches!(action, Action::Acquire { .. } | Action::Move { .. });
        assert_eq!(action.grants(), gives, "{action:?}");
    }
}

#[test]
fn what_takes_a_holds_place_has_the_number_that_no_hold_has() {
    for (field, kept) in [("me:7", "me:0"), ("web-7:me:12", "web-7:me:0"), ("foreign", "foreign:0")] {
        assert_eq!(kept_field(field), kept);
    }
}

#[test]
fn an_acquire_says_last_that_it_asks_for_a_name() {
    for call in calls().into_iter().chain(fenced()) {
        let (plain, naming) = (words(&call.evalsha()), Call { report_holder: true, ..call.clone() });
        let asks = matches!(call.action, Action::Acquire { .. } | Action::Look);
        let last: &[&str] = if asks { &["whose"] } else { &[] };
        assert_eq!(words(&naming.evalsha()).strip_prefix(&*plain).unwrap(), last);
        let mut bytes = Vec::new();
        naming.encode(false, &mut bytes);
        assert_eq!(bytes, naming.evalsha().get_packed_command());
    }
}

fn words(cmd: &Cmd) -> Vec<String> {
    let text = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        _ => panic!("a cursor"),
    };
    cmd.args_iter().map(text).collect()
}

#[test]
fn commands_carry_key_and_decimal_arguments_in_the_order_of_the_lua_headers() {
    let expected = [
        ("acquire", vec!["f:1", "2", "30000"]),
        ("release", vec!["f:1", "1", "ch"]),
        ("renew", vec!["f:1", "30000"]),
        ("settle", vec!["f:1", "3", "ch", "PUBLISH", "30000"]),
        ("force", vec!["ch"]),
        ("look", vec![]),
        ("who", vec![]),
        ("keep", vec!["f:1", "f:0", "ch", "PUBLISH", "30000"]),
        ("move", vec!["f:1", "f:9", "30000"]),
    ];
    for (call, (name, args)) in calls().iter().zip(expected) {
        let script = redis::Script::new(call.script().body);
        for (cmd, head) in
            [(call.evalsha(), ["EVALSHA", script.get_hash()]), (call.eval(), ["EVAL", call.script().body])]
        {
            let wanted: Vec<&str> = head.into_iter().chain(["1", "k"]).chain(args.iter().copied()).collect();
            assert_eq!(words(&cmd), wanted);
        }
        assert_eq!((call.name(), call.key()), (name, "k"));
    }
}

#[test]
fn a_release_on_a_cluster_names_the_command_for_sharded_channels() {
    let expected = [
        (Action::END, vec!["f:1", "0", "ch", "SPUBLISH"]),
        (Action::Settle { count: 0, lease: lease() }, vec!["f:1", "0", "ch", "SPUBLISH", "30000"]),
        (Action::Keep { lease: lease() }, vec!["f:1", "f:0", "ch", "SPUBLISH", "30000"]),
        (Action::Force, vec!["ch", "SPUBLISH"]),
        (Action::Look, vec![]),
    ];
    for (action, args) in expected {
        let [call, ..] = calls();
        let call = Call { action, sharded: true, ..call };
        assert_eq!(words(&call.evalsha())[4..], args);
    }
}

#[test]
fn what_is_told_of_a_line_stands_last() {
    let line = |again| {
        let [term, stays] = [1000, 90_000].map(Duration::from_millis);
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let [term, stays] = [term, stays].map(|time| Lease::new("time", time, drift).unwrap());
        Some(Line { term, stays, again, polls: false, sharded: false })
    };
    let ask = |action| Call { line: line(false), report_holder: true, ..Call::of("app:k", "f:1", action) };
    let (count, lease) = (1, lease());
    let [acquire, end, decline, force] =
        [Action::Acquire { count, lease }, Action::END, Action::Decline, Action::Force].map(ask);
    let keys = ["2", "app:k", "nestlock_line:{app:k}"];
    let channel = "redisson_lock__channel:{app:k}";
    let told = "1000 90000 nestlock_wake:";
    for (call, args) in [
        (acquire.clone(), vec!["f:1", "1", "30000", told]),
        (Call { line: line(true), ..acquire.clone() }, vec!["f:1", "1", "30000", told, "again"]),
        (end.clone(), vec!["f:1", "0", channel, told]),
        (Call { sharded: true, ..end }, vec!["f:1", "0", channel, "SPUBLISH", told]),
        (decline, vec!["f:1", "decline", channel, told]),
        (force, vec![channel, told]),
    ] {
        assert_eq!(words(&call.evalsha())[2..], [&keys[..], &args].concat());
        let mut bytes = Vec::new();
        call.encode(false, &mut bytes);
        assert_eq!(bytes, call.evalsha().get_packed_command());
    }
    // The arguments of the line follow those of the counter.
    let [fenced, ..] = fenced();
    let fenced = words(&Call { line: line(true), ..fenced }.evalsha());
    let told = ["f:1", "1", "30000", "", "86400000", told, "again"];
    assert_eq!(fenced[2..6], ["3", "k", "token", "nestlock_line:{k}"]);
    assert_eq!(fenced[6..], told);
    // A call that has nothing to do with a line is sent as if there were none.
    for call in calls().into_iter().filter(|call| call.action != Action::Force) {
        let told = Call { line: line(true), ..call.clone() };
        assert_eq!(told.evalsha().get_packed_command(), call.evalsha().get_packed_command());
    }
    // The prefix comes before each of these names.
    let keys = Arc::new(Keys::new("app:", "k"));
    let told = words(&Call { keys, ..acquire }.evalsha());
    assert_eq!((&*told[4], &*told[8]), ("app:nestlock_line:{app:k}", "1000 90000 app:nestlock_wake:"));
}

#[test]
fn that_a_field_is_in_the_line_is_answered_to_those_who_are_told_of_one() {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let time = Lease::new("time", Duration::from_secs(1), drift).unwrap();
    let line = Some(Line { term: time, stays: time, again: false, polls: false, sharded: false });
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let list = |last| Value::Array(vec![Value::Int(7), bulk("f:7"), bulk("0"), Value::Int(last)]);
    let acquire = Call::of("k", "f:1", Action::Acquire { count: 1, lease: lease() });
    let told = Call { line, ..acquire.clone() };
    let left = Duration::from_millis(7);
    let holder = Holder::new("f:7", 0, left);
    assert_eq!(told.decode(list(1)).unwrap(), Reply::InLine(left, Box::new(holder.clone()), 1));
    let three = Value::Array(vec![Value::Int(7), bulk("f:7"), bulk("0")]);
    assert_eq!(told.decode(three).unwrap(), Reply::held_by(holder));
    assert_eq!(told.decode(Value::Array(vec![Value::Int(7)])).unwrap(), Reply::Nameless(left));
    for (call, answer) in [
        (&acquire, list(1)),
        (&told, list(0)),
        (&Call { line, ..Call::of("k", "", Action::Look) }, list(1)),
        (&Call { line, ..Call::of("k", "", Action::Who) }, list(1)),
    ] {
        call.decode(answer).unwrap_err();
    }
    let end = Call { line, ..Call::of("k", "f:1", Action::END) };
    assert_eq!(end.decode(Value::Int(-6)).unwrap(), Reply::Ended(Notice::Sent(2)));
}

#[test]
fn a_call_is_sent_as_its_command() {
    let lengths = [0, 1, 9, 10, 99, 100, 999, 1000, 1024];
    for mut call in calls().into_iter().chain(fenced()) {
        for length in lengths {
            call.field = "f".repeat(length).into();
            for number in [0, 9, 10, 99, 100, 12_345, u32::MAX] {
                if let Action::Release { count } = &mut call.action {
                    *count = number;
                }
                let (mut hash, mut text) = (b"before".to_vec(), Vec::new());
                call.encode(false, &mut hash);
                call.encode(true, &mut text);
                assert_eq!(hash.strip_prefix(b"before"), Some(&*call.evalsha().get_packed_command()));
                assert_eq!(text, call.eval().get_packed_command());
            }
        }
    }
}

fn fenced() -> [Call; 4] {
    let (count, lease) = (1, lease());
    [
        (Action::Acquire { count, lease }, None, Some(Lease::DAY)),
        (Action::Acquire { count, lease }, Some(u64::MAX), None),
        (Action::Renew { lease }, Some(7), Some(Lease::DAY)),
        (Action::Settle { count, lease }, Some(7), None),
    ]
    .map(|(action, least, stays)| {
        let fence = Some(Arc::new(Fence { counter: "token".into(), least, stays }));
        Call {
            keys: keys(),
            field: "f:1".into(),
            action,
            fence,
            sharded: false,
            report_holder: false,
            from: None,
            end: KeyEnd::Stays,
            line: None,
        }
    })
}

#[test]
fn those_with_a_fence_carry_the_counter_and_what_is_asked_of_it() {
    let expected = [
        vec!["2", "k", "token", "f:1", "1", "30000", "", "86400000"],
        vec!["2", "k", "token", "f:1", "1", "30000", "18446744073709551615", ""],
        vec!["2", "k", "token", "f:1", "30000", "7", "86400000"],
        vec!["2", "k", "token", "f:1", "1", "ch", "PUBLISH", "30000", "0", "7", ""],
    ];
    for (call, args) in fenced().iter().zip(expected) {
        assert_eq!(words(&call.evalsha())[2..], args);
        assert_eq!(words(&call.eval())[1], call.script().body);
    }
}

#[test]
fn a_fenced_call_is_one_for_its_lock_alone_and_one_for_its_counter_which_is_given_twice() {
    for (call, plain) in fenced().iter().zip(["acquire", "acquire", "renew", "settle"]) {
        let (alone, fence) = call.alone().unwrap();
        assert_eq!((alone.name(), &alone.fence), (plain, &None));
        assert_eq!(alone.script().sha().len(), 40);
        assert!(alone.alone().is_none());
        for (ask, word) in [(Count::Look, "look"), (Count::Next, "next"), (Count::Raise, "raise")] {
            let count = Call { action: Action::Count(ask), fence: Some(fence.clone()), ..call.clone() };
            assert_eq!(words(&count.evalsha())[2..6], ["2", "token", "token", word]);
            assert!(count.alone().is_none() && count.name() == "count");
            let expected = count.decode(Value::BulkString(b"7".to_vec())).unwrap();
            assert_eq!(expected, Reply::Token(7));
            let wrong = count.decode(Value::SimpleString("counter list".to_owned())).unwrap();
            assert_eq!(wrong, Reply::NotACounter("a list".into()));
            assert!(count.decode(Value::Int(DONE)).is_err());
        }
    }
}

#[test]
fn a_grant_with_a_fence_is_its_token_alone() {
    let [acquire, _, renew, settle] = fenced();
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let status = |text: &str| Value::SimpleString(text.to_owned());
    assert_eq!(acquire.decode(bulk("9223372036854775807")).unwrap(), Reply::Token(i64::MAX as u64));
    assert_eq!(acquire.decode(Value::Int(-2)).unwrap(), Reply::Gone);
    assert_eq!(acquire.decode(status("list")).unwrap(), Reply::NotALock("a list".into()));
    for (kind, expected) in
        [("list", "a list"), ("string", "a string that is no number"), ("end", AT_ITS_END)]
    {
        let found = acquire.decode(status(&format!("counter {kind}"))).unwrap();
        assert_eq!(found, Reply::NotACounter(expected.into()));
    }
    for garbage in [Value::Int(-1), bulk(""), bulk("-5"), bulk("7x")] {
        acquire.decode(garbage).unwrap_err();
    }
    for call in [renew, settle] {
        assert_eq!(call.decode(bulk("OOM")).unwrap(), Reply::Deferred("OOM".into()));
        assert_eq!(call.decode(Value::Int(-1)).unwrap(), Reply::Done);
        call.decode(status("counter list")).unwrap_err();
    }
}

#[test]
fn an_end_is_answered_by_how_many_are_subscribed() {
    for action in [Action::END, Action::Release { count: 1 }, Action::Keep { lease: lease() }] {
        for (answer, listeners) in [(-4, 0), (-5, 1), (i64::MIN, i64::MAX as u64 - 3)] {
            let reply = Call::of("k", "f:1", action).decode(Value::Int(answer));
            let expected = (action == Action::END).then_some(Reply::Ended(Notice::Sent(listeners)));
            assert_eq!(reply.ok(), expected, "{action:?} {answer}");
        }
    }
}

#[test]
fn only_a_grant_is_taken_for_one() {
    assert!(Reply::Done.is_grant() && Reply::Token(7).is_grant());
    let others = [
        Reply::Ended(Notice::Sent(0)),
        Reply::Gone,
        Reply::Free,
        Reply::busy(Duration::ZERO),
        Reply::Deferred("full".into()),
    ];
    assert!(!others.iter().any(Reply::is_grant));
}

#[test]
fn each_file_lists_keys_arguments_and_replies_and_names_keys_literally() {
    for script in calls().map(|call| call.script()) {
        for part in ["-- KEYS[1]", "-- Replies"] {
            assert!(script.body.contains(part), "{}: {part}", script.name);
        }
        let rest =
            ["KEYS[1]", "KEYS[2]"].iter().fold(script.body.to_owned(), |body, key| body.replace(key, ""));
        assert!(!rest.contains("KEYS"), "{}", script.name);
    }
}

/// An error that the server raises out of a script ends with ` script: SHA, on @user_script:LINE.`. That mark
/// shows that it is not a refusal before the script began. An error that a script catches and returns lacks
/// the mark, so the script adds it.
#[test]
fn an_error_that_a_script_catches_is_returned_with_the_mark_of_a_script_alone() {
    let all = calls().into_iter().chain(fenced());
    for body in all.map(|call| call.script().body) {
        let caught = body.lines().filter_map(|line| {
            let (name, _) = line.trim().strip_prefix("local ")?.split_once(" = redis.pcall(")?;
            // This is the counter's value, which is returned as text.
            (name != "text").then_some(name)
        });
        for name in caught {
            assert!(!body.lines().any(|line| line.trim() == format!("return {name}")), "{name}: {body}");
        }
        let marked = |line: &&str| line.contains("error_reply(");
        assert!(body.lines().filter(marked).all(|line| line.contains(".. ' script: user_script")));
    }
}

#[test]
fn each_reply_is_understood_by_the_calls_that_give_it_and_by_no_other() {
    use Reply::{Deferred, Done, Free, Gone, NotALock};
    let text = |kind: &str| Value::SimpleString(kind.to_owned());
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let full = bulk("OOM full");
    let list = |field: &str, count: &str| Value::Array(vec![Value::Int(0), bulk(field), bulk(count)]);
    let ms = |ms| Some(Reply::busy(Duration::from_millis(ms)));
    let no = |expected: &str| Some(NotALock(expected.to_owned()));
    let by = |field: &str, count| Some(Reply::held_by(Holder::new(field, count, Duration::from_millis(1))));
    let later = Some(Deferred("OOM full".to_owned()));
    let hidden = Some(Reply::Nameless(Duration::from_millis(7)));
    let foreign = no("a string, which is no lock of this kind");
    let hash = no(
        "a hash without a TTL (if somebody removed the TTL of a lock, its holder's next renewal restores it)",
    );
    let string = no("a string without a TTL");
    let (fields, rwlock) =
        (no("a hash whose fields are not those of a lock"), no("a read-write lock of Redisson"));
    let (zset, counter) = (no("a zset"), no("a counter list"));
    let (named, odd) = (by("a:f:7", 3), by("f", 0));
    //                        acquire, release, renew, settle, force, look, who
    let table: [(Value, [Option<Reply>; 7]); 16] = [
        (Value::Int(-1), [Some(Done), Some(Done), Some(Done), Some(Done), Some(Done), None, None]),
        (Value::Int(-2), [Some(Gone), Some(Gone), Some(Gone), Some(Gone), None, None, None]),
        (Value::Int(-3), [None, None, None, None, Some(Free), Some(Free), Some(Free)]),
        (Value::Int(-4), [None, None, None, None, None, None, None]),
        (Value::Int(0), [ms(1), None, None, None, None, ms(1), None]),
        (Value::Int(29_999), [ms(29_999), None, None, None, None, ms(29_999), None]),
        (list("a:f:7", "3"), [named.clone(), None, None, None, None, named.clone(), named]),
        (list("f", "no number"), [odd.clone(), None, None, None, None, odd.clone(), odd]),
        (Value::Array(vec![Value::Int(7)]), [hidden.clone(), None, None, None, None, hidden.clone(), hidden]),
        (text("hash"), [hash.clone(), None, None, None, hash.clone(), hash.clone(), hash]),
        (text("string"), [string.clone(), None, None, None, foreign.clone(), string, foreign]),
        (text("fields"), [fields.clone(), None, None, None, fields.clone(), fields.clone(), fields]),
        (text("rwlock"), [rwlock.clone(), None, None, None, rwlock.clone(), rwlock.clone(), rwlock]),
        (text("zset"), [zset.clone(), None, None, None, zset.clone(), zset.clone(), zset]),
        (
            text("counter list"),
            [counter.clone(), None, None, None, counter.clone(), counter.clone(), counter],
        ),
        (full, [None, later.clone(), None, later, None, None, None]),
    ];
    for (value, expected) in table {
        for (call, expected) in calls().iter().zip(expected) {
            assert_eq!(call.decode(value.clone()).ok(), expected, "{} {value:?}", call.name());
        }
    }
}

#[test]
fn garbage_is_an_error_that_names_the_call() {
    let garbage = [
        Value::Nil,
        Value::Okay,
        Value::Int(i64::MIN),
        Value::Boolean(true),
        Value::Double(1.0),
        Value::Array(vec![Value::Int(-1)]),
        Value::Array(vec![Value::Int(1), Value::BulkString(b"f".to_vec())]),
        Value::Array(vec![
            Value::Int(-1),
            Value::BulkString(b"f".to_vec()),
            Value::BulkString(b"1".to_vec()),
        ]),
        Value::Array(vec![Value::Nil; 10_000]),
    ];
    for call in calls() {
        for value in &garbage {
            let error = call.decode(value.clone()).unwrap_err();
            assert_eq!(error.kind(), redis::ErrorKind::UnexpectedReturnType);
            let text = error.to_string();
            assert!(text.contains(call.name()) && text.len() < 250, "{text}");
        }
    }
}

#[test]
fn the_servers_refusal_stays_the_servers_error() {
    let refused = redis::parse_redis_value(b"-OOM command not allowed\r\n").unwrap();
    for call in calls() {
        assert_eq!(call.decode(refused.clone()).unwrap_err().code(), Some("OOM"));
    }
}
