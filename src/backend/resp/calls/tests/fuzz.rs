use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};

use super::*;
use crate::base::testing::fuzz;

#[derive(Clone, Debug)]
enum Step {
    Enter {
        answers: usize,
        length: usize,
    },
    Write(usize),
    Answer(usize),
    /// A call among those that are waited for.
    Leave(usize),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    (any::<usize>(), 0..5, 1..4_usize, 1..30_usize).prop_map(|(which, kind, answers, length)| match kind {
        0 => Step::Enter { answers, length },
        1 => Step::Write(length),
        2 => Step::Answer(answers),
        3 => Step::Leave(which),
        _ => Step::Take,
    })
}

/// A server that answers a command once it has received all of it. Each byte of a command is its number.
#[derive(Default)]
struct Server {
    received: Vec<u16>,
    /// The answers that are due.
    due: VecDeque<i64>,
}

/// Each command is sent as a whole or not at all, in order, and each call gets only its own answers.
#[test]
fn whatever_is_left_and_however_it_is_written_each_call_gets_its_own_answers() {
    fuzz(vec(step(), 1..120), |steps| {
        let (mut calls, mut server) = (Calls::default(), Server::default());
        // By number: the answers, the length, and the place of the call.
        let mut all: HashMap<u16, (usize, usize, usize)> = HashMap::new();
        let (mut waiting, mut next) = (Vec::new(), 0_u16);
        for step in steps {
            match step {
                Step::Enter { answers, length } => {
                    next += 1;
                    let bytes = next.to_be_bytes().repeat(length);
                    let at = calls.enter(None, answers, |out| out.extend(bytes)).unwrap();
                    all.insert(next, (answers, length, at));
                    waiting.push(next);
                }
                // Each number takes two bytes.
                Step::Write(most) => {
                    let bytes = write(&mut calls, 2 * most);
                    server
                        .received
                        .extend(bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])));
                    while let Some(number) = server.received.first().copied() {
                        let (answers, length, _) = all[&number];
                        let whole = server.received.iter().take(length).filter(|other| **other == number);
                        if whole.count() < server.received.len().min(length) {
                            panic!("{number} was cut: {:?}", server.received);
                        }
                        if server.received.len() < length {
                            break;
                        }
                        server.received.drain(..length);
                        server.due.extend((0..answers).map(|at| i64::from(number) * 10 + at as i64));
                    }
                }
                Step::Answer(count) => {
                    let count = count.min(server.due.len());
                    let mut answers = server.due.drain(..count).map(Value::Int).collect();
                    calls.deliver(&mut answers, &mut Vec::new()).unwrap();
                }
                Step::Leave(which) if !waiting.is_empty() => {
                    let number = waiting.swap_remove(which % waiting.len());
                    calls.leave(all[&number].2);
                }
                Step::Leave(_) => {}
                Step::Take => waiting.retain(|number| {
                    let (answers, _, at) = all[number];
                    let Poll::Ready(done) = polled(&mut calls, at) else { return true };
                    done.unwrap();
                    let expected = (0..answers).map(|at| Value::Int(i64::from(*number) * 10 + at as i64));
                    assert_eq!(*calls.answers(at), expected.collect::<Vec<_>>());
                    calls.leave(at);
                    false
                }),
            }
        }
        // Nothing remains of calls that nobody waits for.
        while !(calls.waiting.is_empty() && calls.sent.is_empty()) {
            let bytes = write(&mut calls, usize::MAX);
            server.received.extend(bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])));
            server.received.dedup();
            let due = server.received.drain(..).flat_map(|number| vec![number; all[&number].0]);
            let mut left: Vec<Value> =
                server.due.drain(..).chain(due.map(i64::from)).map(Value::Int).collect();
            calls.deliver(&mut left, &mut Vec::new()).unwrap();
        }
        waiting.iter().for_each(|number| drop(calls.leave(all[number].2)));
        assert_eq!((calls.free.len(), calls.collecting), (calls.slots.len(), 0));
    });
}
