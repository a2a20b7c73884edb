//! Inputs for fuzzing: answers as servers give them, changed in some places. `scripts/lab/fuzz` tries more of them than a test does.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use redis::Value;

pub(crate) mod simulation;

/// Tries a property on a few inputs, or on as many as `FUZZ_SECONDS` allows. Prints the smallest input found that breaks it.
pub(crate) fn fuzz<S: Strategy>(inputs: S, property: impl Fn(S::Value)) {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (begun, limit) = (Instant::now(), seconds.map_or(Duration::ZERO, Duration::from_secs));
    let mut tried = 0;
    loop {
        let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&inputs, |input| {
            property(input);
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{failure}"));
        tried += 200;
        if begun.elapsed() >= limit {
            break;
        }
    }
    eprintln!("{tried} inputs");
}

/// A change of an answer at one place.
#[derive(Clone, Debug)]
enum Edit {
    Put(Value),
    Remove,
    Repeat,
}

/// Words that parsers look for, and numbers at the ends of their ranges.
const WORDS: [&str; 26] = [
    "",
    "?",
    "ip",
    "port",
    "flags",
    "config-epoch",
    "failover_in_progress",
    "message",
    "pmessage",
    "list",
    "hash",
    "string",
    "counter end",
    "counter list",
    "run_id:",
    "OOM",
    "0",
    "-1",
    "7",
    "65536",
    "18446744073709551616",
    "9223372036854775807",
    "\r\n",
    "\u{0}\u{1b}[2J",
    "é…",
    "[::1]:7",
];

const NUMBERS: [i64; 12] = [0, 1, -1, -2, -3, 7, 16_383, 16_384, 65_535, 65_536, i64::MAX, i64::MIN];

const ERRORS: [&str; 8] = [
    "-ERR\r\n",
    "-MOVED 7 :0\r\n",
    "-MOVED 99999 host:99999\r\n",
    "-ASK x [::1\r\n",
    "-NOSCRIPT No matching script\r\n",
    "-NOPERM no right\r\n",
    "-OOM out of memory script: 7, on @user_script:1.\r\n",
    "-WRONGPASS \u{1b}[2J\r\n",
];

pub(crate) fn text() -> impl Strategy<Value = String> {
    let long = (0..9_000_usize).prop_map(|length| "x".repeat(length));
    prop_oneof![6 => select(&WORDS[..]).prop_map(str::to_owned), 3 => any::<String>(), 1 => long]
}

/// Any answer.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        select(&NUMBERS[..]).prop_map(Value::Int),
        any::<i64>().prop_map(Value::Int),
        text().prop_map(|text| Value::BulkString(text.into_bytes())),
        vec(any::<u8>(), 0..20).prop_map(Value::BulkString),
        text().prop_map(Value::SimpleString),
        select(&ERRORS[..]).prop_map(parsed),
        select(&[Value::Nil, Value::Okay, Value::Boolean(true), Value::Double(f64::NAN)][..]),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let pairs = vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![vec(inner, 0..6).prop_map(Value::Array), pairs.prop_map(Value::Map)]
    })
}

/// Returns one of these answers, in their wire format, changed in some places; or any other value.
pub(crate) fn answers(valid: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let edit = prop_oneof![value().prop_map(Edit::Put), Just(Edit::Remove), Just(Edit::Repeat)];
    let edits = vec((any::<usize>(), edit), 0..4);
    let of_tree = (select(valid), edits).prop_map(|(wire, edits)| {
        edits.into_iter().fold(parsed(wire), |mut value, (at, edit)| {
            let mut left = at % nodes(&value);
            change(&mut value, &mut left, &edit);
            value
        })
    });
    let of_bytes = (select(valid), vec((any::<usize>(), select(&b"*$:+-_%0179\r\nx\xff"[..])), 1..4));
    let of_bytes = of_bytes.prop_filter_map("no answer", |(wire, edits)| {
        let mut bytes = wire.as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        redis::parse_redis_value(&bytes).ok()
    });
    prop_oneof![6 => of_tree, 2 => of_bytes, 1 => value()]
}

fn parsed(wire: &str) -> Value {
    redis::parse_redis_value(wire.as_bytes()).expect("an answer")
}

fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nodes).sum::<usize>(),
        _ => 1,
    }
}

/// Changes the node that has `before` others before it. Returns whether it was found.
fn change(value: &mut Value, before: &mut usize, edit: &Edit) -> bool {
    if *before == 0 {
        if let Edit::Put(other) = edit {
            *value = other.clone();
        }
        return true;
    }
    *before -= 1;
    let Value::Array(list) = value else { return false };
    for at in 0..list.len() {
        let here = *before == 0;
        match edit {
            Edit::Remove if here => drop(list.remove(at)),
            Edit::Repeat if here => list.insert(at, list[at].clone()),
            _ if change(&mut list[at], before, edit) => {}
            _ => continue,
        }
        return true;
    }
    false
}

/// Checks that the text or value made from an answer is not much larger than the answer.
pub(crate) fn is_bounded(shown: &impl Debug, answer: &impl Debug) {
    let (shown, answer) = (format!("{shown:?}").len(), format!("{answer:?}").len());
    assert!(shown <= 1_000 + 8 * answer, "{shown} bytes of {answer}");
}
