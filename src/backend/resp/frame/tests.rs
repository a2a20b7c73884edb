use super::*;

mod fuzz;

/// Returns all answers in these bytes, which arrive in pieces cut at these places.
pub(super) fn decoded(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> RedisResult<Vec<Value>> {
    let (mut input, mut answers, mut begin) = (Input::default(), Vec::new(), 0);
    for cut in cuts.into_iter().chain([bytes.len()]) {
        let end = cut.clamp(begin, bytes.len());
        input.room(1).extend_from_slice(&bytes[begin..end]);
        begin = end;
        while let Some(answer) = input.next()? {
            answers.push(answer);
        }
    }
    Ok(answers)
}

pub(super) const ANSWERS: [&str; 24] = [
    "+OK\r\n",
    "+hash\r\n",
    "-NOSCRIPT No matching script.\r\n",
    ":1\r\n",
    ":-2\r\n",
    ":9223372036854775807\r\n",
    ":-9223372036854775808\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    "$5\r\na\r\nb\n\r\n",
    "*-1\r\n",
    "*0\r\n",
    "*3\r\n:1\r\n:0\r\n:-2\r\n",
    "*2\r\n:1\r\n:9223372036854775807\r\n",
    "*2\r\n:1\r\n*2\r\n$1\r\nx\r\n_\r\n",
    "%1\r\n$4\r\nrole\r\n+master\r\n",
    "~1\r\n#t\r\n",
    ",1.5\r\n",
    "(3492890328409238509324850943850943825024385\r\n",
    "=7\r\ntxt:abc\r\n",
    "!5\r\nERR x\r\n",
    "_\r\n",
    "|1\r\n+key\r\n:9\r\n+the answer\r\n",
    ">2\r\n+invalidate\r\n_\r\n",
];

#[test]
fn answers_are_the_same_wherever_their_bytes_are_cut() {
    let bytes = ANSWERS.concat().into_bytes();
    let expected: Vec<Value> =
        ANSWERS.iter().map(|answer| redis::parse_redis_value(answer.as_bytes()).unwrap()).collect();
    assert_eq!(decoded(&bytes, []).unwrap(), expected);
    assert_eq!(decoded(&bytes, 0..bytes.len()).unwrap(), expected);
    for cut in 0..bytes.len() {
        assert_eq!(decoded(&bytes, [cut]).unwrap(), expected, "{cut}");
    }
}

#[test]
fn what_no_server_sends_is_an_error_at_once() {
    for garbage in [
        "\u{15}\u{3}\u{3}\0\u{2}\u{2}(",
        "HTTP/1.1 400 Bad Request\r\n",
        "\r\n",
        ":1\n",
        ":\r\n",
        ":one\r\n",
        ":1 \r\nx",
        "$99999999999\r\n",
        "$999999999999999999999\r\n",
        "*99999999999\r\n",
        "%99999999999\r\n",
        "*33554432\r\n",
        "$?\r\n",
        "$1\r\nabc",
    ] {
        let bytes = format!("{garbage}:1\r\n");
        assert!(decoded(bytes.as_bytes(), 0..bytes.len()).is_err(), "{garbage:?}");
    }
}

/// Otherwise a server that sends a line without an end, or announces a length and does not send it, fills the
/// memory.
#[test]
fn what_has_no_end_is_an_error_before_it_is_large() {
    let line = vec![b'+'; LONGEST_LINE];
    assert!(decoded(&line[..LONGEST_LINE - 1], []).unwrap().is_empty());
    assert!(decoded(&line, []).is_err());
}

#[test]
fn the_room_of_answers_that_were_taken_is_used_again() {
    let (mut input, mut answers) = (Input::default(), 0);
    for _ in 0..10_000 {
        // One answer is always there in part only.
        input.room(16).extend_from_slice(if answers == 0 { b":12345\r\n:67" } else { b"8\r\n:12345\r\n:67" });
        while let Some(answer) = input.next().unwrap() {
            assert!(matches!(answer, Value::Int(12345 | 678)), "{answer:?}");
            answers += 1;
        }
    }
    assert_eq!(answers, 19_999);
    assert!(input.bytes.capacity() < 1024, "{}", input.bytes.capacity());
}

/// A value of three bytes takes more memory, and the lengths inside of lengths are not known in advance.
#[test]
fn many_small_values_are_an_error_before_they_fill_the_memory() {
    let most = LARGEST / size_of::<Value>();
    let head = format!("*{}\r\n", most + 1);
    assert!(decoded(head.as_bytes(), []).is_err());
    let mut input = Input::default();
    let nested = [b"*1000\r\n".to_vec(), b"_\r\n".repeat(1000)].concat();
    input.room(16).extend_from_slice(format!("*{}\r\n", most / 2).as_bytes());
    let mut pieces = 0;
    while let Ok(answer) = input.next() {
        assert_eq!((answer, pieces < most / 1000), (None, true));
        input.room(nested.len()).extend_from_slice(&nested);
        pieces += 1;
    }
}

#[test]
fn the_room_of_a_large_answer_is_not_kept() {
    let mut input = Input::default();
    let large = format!("$1000000\r\n{}\r\n", "x".repeat(1_000_000));
    input.room(16).extend_from_slice(large.as_bytes());
    assert!(input.next().unwrap().is_some());
    assert!(input.room(16).capacity() <= KEPT);
}

#[test]
fn values_within_values_are_decoded_or_refused_on_the_stack_of_a_worker() {
    let worker = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        [99, 100, 100_000].map(|depth| {
            let bytes = [b"*1\r\n".repeat(depth), b":1\r\n".to_vec()].concat();
            decoded(&bytes, []).is_ok()
        })
    });
    assert_eq!(worker.unwrap().join().unwrap(), [true, false, false]);
}
