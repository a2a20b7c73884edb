use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use redis::ErrorKind;

use super::*;
use crate::backend::resp::why_unsent;

mod fuzz;

#[derive(Default)]
pub(super) struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) fn polled(calls: &mut Calls, at: usize) -> Poll<RedisResult<()>> {
    calls.poll(at, &Context::from_waker(Waker::noop())).0
}

impl Calls {
    /// Returns whether nothing is under way and no slot is leaked.
    pub(in crate::backend::resp) fn is_idle(&self) -> bool {
        self.is_unused() && self.free.len() == self.slots.len()
    }
}

fn enter(calls: &mut Calls, answers: usize, bytes: &[u8]) -> usize {
    calls.enter(None, answers, |out| out.extend_from_slice(bytes)).unwrap()
}

/// Gives up to `most` bytes to the socket, and returns them.
pub(super) fn write(calls: &mut Calls, most: usize) -> Vec<u8> {
    let Some(bytes) = calls.begin_write() else { return Vec::new() };
    let given = bytes[..most.min(bytes.len())].to_vec();
    calls.written(bytes, given.len(), false);
    given
}

fn by_caller(calls: &mut Calls) -> Option<Vec<u8>> {
    calls.begin_write_by_caller(Instant::now, &mut Vec::new())
}

fn deliver(calls: &mut Calls, answers: impl IntoIterator<Item = i64>) -> RedisResult<()> {
    let mut answers = answers.into_iter().map(Value::Int).collect();
    calls.deliver(&mut answers, &mut Vec::new())
}

fn lost() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// One thread of the runtime ends the calls while another delivers the answers that it has read: the end of
/// the connection does not wait for those.
#[test]
fn answers_that_come_after_the_end_of_the_runtime_are_owed_no_more() {
    let mut calls = Calls::default();
    enter(&mut calls, 1, b"one");
    enter(&mut calls, 3, b"two");
    write(&mut calls, 100);
    deliver(&mut calls, [1, 2]).unwrap();
    assert_eq!(calls.end_with_runtime(&lost(), &mut Vec::new()), 2);
    deliver(&mut calls, [3]).unwrap();
    assert_eq!(calls.end_with_runtime(&lost(), &mut Vec::new()), 1);
    deliver(&mut calls, [4]).unwrap();
    assert_eq!(calls.end_with_runtime(&lost(), &mut Vec::new()), 0);
    assert!(deliver(&mut calls, [5]).is_err());
}

#[test]
fn answers_are_brought_to_their_calls_in_their_order() {
    let mut calls = Calls::default();
    let (one, two) = (enter(&mut calls, 1, b"one"), enter(&mut calls, 3, b"two"));
    assert_eq!(write(&mut calls, 100), b"onetwo");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    assert!(calls.poll(two, &Context::from_waker(&waker)).0.is_pending());
    deliver(&mut calls, [1, 2, 3]).unwrap();
    assert!(matches!(polled(&mut calls, one), Poll::Ready(Ok(()))));
    assert!(calls.poll(two, &Context::from_waker(&waker)).0.is_pending());
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    let mut wakers = Vec::new();
    calls.deliver(&mut vec![Value::Int(4)], &mut wakers).unwrap();
    wakers.into_iter().for_each(Waker::wake);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(matches!(polled(&mut calls, two), Poll::Ready(Ok(()))));
    assert_eq!(*calls.answers(one), [Value::Int(1)]);
    assert_eq!(*calls.answers(two), [Value::Int(2), Value::Int(3), Value::Int(4)]);
}

#[test]
fn the_task_that_has_polled_a_call_last_is_woken() {
    let mut calls = Calls::default();
    let one = enter(&mut calls, 1, b"one");
    write(&mut calls, 100);
    let [first, last] = [(); 2].map(|()| Arc::new(Woken::default()));
    for woken in [&first, &last] {
        assert!(calls.poll(one, &Context::from_waker(&Waker::from(woken.clone()))).0.is_pending());
    }
    let mut wakers = Vec::new();
    calls.deliver(&mut vec![Value::Int(1)], &mut wakers).unwrap();
    wakers.into_iter().for_each(Waker::wake);
    assert_eq!([first, last].map(|woken| woken.0.load(Ordering::SeqCst)), [0, 1]);
}

#[test]
fn the_answers_to_a_call_that_was_given_up_are_nobodys() {
    let mut calls = Calls::default();
    let (one, two) = (enter(&mut calls, 2, b"one"), enter(&mut calls, 1, b"two"));
    write(&mut calls, 100);
    deliver(&mut calls, [1]).unwrap();
    calls.leave(one);
    // The place of the call is not free until its last answer has arrived.
    let three = enter(&mut calls, 1, b"three");
    assert!(three != one && three != two);
    deliver(&mut calls, [1, 2]).unwrap();
    assert_eq!(*calls.answers(two), [Value::Int(2)]);
    assert_eq!(enter(&mut calls, 1, b"four"), one);
    assert!(polled(&mut calls, one).is_pending());
}

#[test]
fn a_call_that_is_left_before_it_is_given_to_the_socket_is_never_sent() {
    let mut calls = Calls::default();
    let [one, two, three] = [&b"one"[..], b"two", b"three"].map(|bytes| enter(&mut calls, 1, bytes));
    assert_eq!(write(&mut calls, 1), b"o");
    // A part of the first call was given to the socket, so that call continues. Nothing of the second one
    // was.
    calls.leave(one);
    calls.leave(two);
    assert_eq!(write(&mut calls, 100), b"nethree");
    deliver(&mut calls, [1, 3]).unwrap();
    assert!(matches!(polled(&mut calls, three), Poll::Ready(Ok(()))));
    assert_eq!(*calls.answers(three), [Value::Int(3)]);
}

/// However many calls were sent before.
#[test]
fn of_many_calls_that_are_left_nothing_is_sent() {
    for (stride, of_them) in [(1, true), (2, true), (3, true), (7, true), (4, false), (10, false)] {
        let mut calls = Calls::default();
        (0..10_000).for_each(|_| _ = enter(&mut calls, 1, b"x"));
        enter(&mut calls, 1, b"ab");
        write(&mut calls, 10_001);
        let all: Vec<usize> = (0..10_000_u32).map(|at| enter(&mut calls, 1, &at.to_be_bytes())).collect();
        let is_left = |at: usize| at.is_multiple_of(stride) == of_them;
        let left = (0..all.len()).filter(|at| is_left(*at)).collect::<Vec<_>>();
        left.iter().for_each(|at| drop(calls.leave(all[*at])));
        let rest = all.len() - left.len();
        let expected = (0..10_000_u32).filter(|at| !is_left(*at as usize)).flat_map(u32::to_be_bytes);
        assert_eq!(write(&mut calls, usize::MAX), b"b".iter().copied().chain(expected).collect::<Vec<_>>());
        assert_eq!(calls.free.len(), left.len(), "left calls keep no memory");
        deliver(&mut calls, 0..=10_000 + rest as i64).unwrap();
        let waits = (0..all.len()).filter(|at| !is_left(*at)).map(|at| all[at]);
        assert!(
            waits.enumerate().all(|(place, at)| *calls.answers(at) == [Value::Int(10_001 + place as i64)])
        );
    }
}

/// Reusing the buffer saves an allocation for each call.
#[test]
fn the_room_of_a_call_is_used_by_the_next_one_unless_it_is_large() {
    for (size, is_kept) in [(1, true), (KEPT, true), (KEPT + 1, false)] {
        let mut calls = Calls::default();
        let one = calls.enter(None, 1, |out| *out = vec![b'x'; size]).unwrap();
        assert_eq!(write(&mut calls, usize::MAX).len(), size);
        assert_eq!(calls.out.capacity() > 0, is_kept, "{size}");
        deliver(&mut calls, [1]).unwrap();
        calls.leave(one);
        assert!(calls.slots[one].answers.capacity() > 0);
        // A call enters while a large one is written.
        calls.enter(None, 1, |out| *out = vec![b'x'; KEPT + 1]).unwrap();
        let bytes = calls.begin_write().unwrap();
        enter(&mut calls, 1, b"next");
        assert!(calls.written(bytes, KEPT + 1, false));
        assert!(calls.out.capacity() <= KEPT);
        assert_eq!(write(&mut calls, usize::MAX), b"next");
    }
}

/// Otherwise a burst of calls would keep its memory for ever.
#[test]
fn the_room_of_many_calls_is_given_back_once_none_is_under_way() {
    let (mut calls, many) = (Calls::default(), 10 * KEPT_SLOTS);
    let burst = |calls: &mut Calls| -> Vec<usize> { (0..many).map(|_| enter(calls, 1, b"one")).collect() };
    let entered = burst(&mut calls);
    while !calls.waiting.is_empty() {
        write(&mut calls, usize::MAX);
    }
    deliver(&mut calls, (0..).take(many)).unwrap();
    for at in entered {
        assert_eq!(calls.slots.len(), many);
        assert!(polled(&mut calls, at).is_ready());
        calls.leave(at);
    }
    let room = |calls: &Calls| calls.slots.capacity() + calls.free.capacity() + calls.sent.capacity();
    assert!(calls.is_idle() && room(&calls) <= 3 * KEPT_SLOTS, "{}", room(&calls));
    let few = [enter(&mut calls, 1, b"one"), enter(&mut calls, 1, b"two")];
    assert_eq!(write(&mut calls, 100), b"onetwo");
    deliver(&mut calls, [1, 2]).unwrap();
    few.iter().for_each(|at| drop(calls.leave(*at)));
    assert!(calls.is_idle() && calls.slots.len() == 2);
}

/// During a write, the calls from before it may be sent; those that enter meanwhile are not.
#[test]
fn what_comes_during_a_write_is_after_it_and_can_be_taken_out() {
    let mut calls = Calls::default();
    let one = enter(&mut calls, 1, b"one");
    let also = enter(&mut calls, 1, b"also");
    assert!(by_caller(&mut calls).is_none(), "the task writes both");
    calls.leave(also);
    let bytes = calls.begin_write().unwrap();
    let (two, three) = (enter(&mut calls, 1, b"two"), enter(&mut calls, 1, b"three"));
    assert!(by_caller(&mut calls).is_none() && calls.begin_write().is_none() && calls.task().is_none());
    calls.leave(two);
    calls.leave(one);
    assert!(calls.written(bytes, 2, false), "there is more to write");
    assert_eq!(write(&mut calls, 100), b"ethree");
    assert!(polled(&mut calls, three).is_pending());
}

#[test]
fn a_call_is_written_by_its_caller_if_it_is_alone_or_fills_a_packet_and_the_socket_has_room() {
    let mut calls = Calls::default();
    enter(&mut calls, 1, b"alone");
    let bytes = by_caller(&mut calls).unwrap();
    let packet = [b'x'; PACKET];
    enter(&mut calls, 1, &packet);
    assert!(by_caller(&mut calls).is_none(), "another caller writes");
    calls.written(bytes, 5, false);
    // The socket takes a part of the packet, and then nothing.
    let bytes = by_caller(&mut calls).unwrap();
    assert_eq!(bytes, packet);
    assert!(calls.written(bytes, 1, false));
    enter(&mut calls, 1, &packet);
    assert!(by_caller(&mut calls).is_none(), "the task waits for room");
    assert_eq!(write(&mut calls, usize::MAX).len(), 2 * PACKET - 1);
    enter(&mut calls, 1, &packet[1..]);
    assert!(by_caller(&mut calls).is_none(), "more may come");
    enter(&mut calls, 1, b"y");
    assert_eq!(by_caller(&mut calls).unwrap().len(), PACKET);
}

/// Two calls that were sent, and whose callers wait.
fn two_sent(calls: &mut Calls) -> [usize; 2] {
    let sent = [&b"one"[..], b"two"].map(|bytes| enter(calls, 1, bytes));
    assert_eq!(write(calls, 100), b"onetwo");
    assert!(sent.iter().all(|at| polled(calls, *at).is_pending()));
    sent
}

#[test]
fn a_write_is_put_off_while_those_who_were_answered_may_call_too() {
    let mut calls = Calls::default();
    let [one, two] = two_sent(&mut calls);
    enter(&mut calls, 1, b"three");
    assert!(!calls.puts_off(), "nobody was answered");
    deliver(&mut calls, [1]).unwrap();
    assert!(calls.puts_off());
    assert!(polled(&mut calls, one).is_ready());
    assert!(!calls.puts_off(), "the answered caller has looked");
    deliver(&mut calls, [2]).unwrap();
    assert!(calls.puts_off());
    calls.leave(two);
    assert!(!calls.puts_off(), "the answered caller is gone");
}

/// The callers may be on a thread that is kept busy, or in a future that is not polled.
#[test]
fn a_write_is_put_off_for_few_polls_and_not_again_for_the_same_callers() {
    let mut calls = Calls::default();
    let [one, two] = two_sent(&mut calls);
    deliver(&mut calls, [1]).unwrap();
    enter(&mut calls, 1, b"three");
    assert_eq!((0..1_000).take_while(|_| calls.puts_off()).count(), PUT_OFF as usize);
    assert_eq!(write(&mut calls, 100), b"three");
    enter(&mut calls, 1, b"four");
    assert!(!calls.puts_off());
    // The limit starts over for callers that are answered from now on, however late the first one is polled.
    deliver(&mut calls, [2]).unwrap();
    assert!(polled(&mut calls, one).is_ready());
    assert!(calls.puts_off());
    assert!(polled(&mut calls, two).is_ready());
    assert!(!calls.puts_off());
}

#[test]
fn a_write_that_fills_a_packet_or_waits_for_room_is_not_put_off() {
    let mut calls = Calls::default();
    two_sent(&mut calls);
    deliver(&mut calls, [1, 2]).unwrap();
    assert!(!calls.puts_off(), "there is nothing to write");
    enter(&mut calls, 1, &[b'x'; PACKET - 1]);
    assert!(calls.puts_off());
    enter(&mut calls, 1, b"y");
    assert!(!calls.puts_off());
    assert_eq!(write(&mut calls, PACKET - 1).len(), PACKET - 1);
    assert!(!calls.puts_off(), "the socket had no room for the last byte");
}

/// In this order: 1. The task of the connection is not polled. 2. A call is given up at its deadline.
/// 3. Another caller writes.
#[test]
fn a_caller_does_not_write_what_is_over() {
    let (mut calls, begun) = (Calls::default(), Instant::now());
    let over = Some(begun + Duration::from_secs(1));
    let sent = enter(&mut calls, 1, b"sent");
    assert_eq!(write(&mut calls, 4), b"sent");
    let late = calls.enter(over, 1, |out| out.push(b'a')).unwrap();
    enter(&mut calls, 1, &[b'x'; PACKET]);
    let mut woken = Vec::new();
    assert!(polled(&mut calls, sent).is_pending() && polled(&mut calls, late).is_pending());
    let bytes = calls.begin_write_by_caller(|| begun + Duration::from_secs(2), &mut woken).unwrap();
    assert_eq!((bytes.len(), woken.len()), (PACKET, 1));
    let Poll::Ready(Err(error)) = polled(&mut calls, late) else { panic!("it is not over") };
    assert_eq!(why_unsent(&error), Some(TOO_LATE));
}

/// In this order: 1. A call is being written. 2. Its caller drops it. 3. The socket had no room for it.
#[test]
fn a_call_that_is_left_during_a_write_without_room_is_never_sent() {
    let mut calls = Calls::default();
    let [one, two, three] = [&b"one"[..], b"two", b"three"].map(|bytes| enter(&mut calls, 1, bytes));
    let bytes = calls.begin_write().unwrap();
    calls.leave(two);
    calls.leave(one);
    assert!(calls.written(bytes, 0, false));
    assert_eq!(write(&mut calls, 100), b"three");
    deliver(&mut calls, [3]).unwrap();
    assert_eq!(*calls.answers(three), [Value::Int(3)]);
    assert!(calls.waiting.is_empty() && calls.sent.is_empty());
}

#[test]
fn only_what_was_not_given_to_the_socket_expires() {
    let (mut calls, begun) = (Calls::default(), Instant::now());
    let [soon, late] = [1, 3].map(|seconds| Some(begun + Duration::from_secs(seconds)));
    let mut enter =
        |deadline, bytes: &[u8]| calls.enter(deadline, 1, |out| out.extend_from_slice(bytes)).unwrap();
    let [sent, over, whenever, later] =
        [enter(soon, b"sent"), enter(soon, b"over"), enter(None, b"whenever"), enter(late, b"later")];
    assert_eq!(write(&mut calls, 2), b"se");
    let mut woken = Vec::new();
    assert!(calls.poll(over, &Context::from_waker(Waker::noop())).0.is_pending());
    calls.expire(|| begun + Duration::from_secs(2), &mut woken);
    assert_eq!(woken.len(), 1);
    let Poll::Ready(Err(error)) = polled(&mut calls, over) else { panic!("it is not over") };
    assert_eq!(why_unsent(&error), Some(TOO_LATE));
    assert!([sent, whenever, later].iter().all(|at| polled(&mut calls, *at).is_pending()));
    assert_eq!(write(&mut calls, 100), b"ntwheneverlater");
}

#[test]
fn at_the_end_what_was_not_sent_is_known_not_to_run() {
    for (written, sent) in [(0, 0), (4, 1), (5, 2), (10, 2), (100, 3)] {
        let mut calls = Calls::default();
        let all = [&b"sent"[..], b"partly", b"unsent"].map(|bytes| enter(&mut calls, 1, bytes));
        write(&mut calls, written);
        calls.end(&lost(), &mut Vec::new());
        for (place, at) in all.into_iter().enumerate() {
            let Poll::Ready(Err(error)) = polled(&mut calls, at) else { panic!("the call goes on") };
            assert_eq!(error.is_io_error(), place < sent, "{written} {place}");
            assert_eq!(why_unsent(&error), (place >= sent).then_some(CONNECTION_LOST), "{written} {place}");
        }
        let error = calls.enter(None, 1, |_| panic!("it is not sent")).unwrap_err();
        assert_eq!(why_unsent(&error), Some(CONNECTION_LOST));
        all.into_iter().for_each(|at| drop(calls.leave(at)));
        assert_eq!(calls.free.len(), 3);
    }
}

/// Such an answer would be taken for the answer to the next command.
#[test]
fn an_answer_to_nothing_is_an_error() {
    let mut calls = Calls::default();
    assert_eq!(deliver(&mut calls, [1]).unwrap_err().kind(), ErrorKind::Parse);
    enter(&mut calls, 1, b"one");
    assert!(deliver(&mut calls, [1]).is_err(), "it was not sent");
    write(&mut calls, 1);
    deliver(&mut calls, [1]).unwrap();
    assert!(deliver(&mut calls, [1]).is_err());
}

/// In this order: 1. The socket takes a part of a call. 2. The runtime ends. 3. A guard is dropped.
#[test]
fn what_is_sent_last_completes_a_call_that_was_sent_in_part_and_sends_none_that_waited() {
    let mut calls = Calls::default();
    let (part, waits) = (enter(&mut calls, 1, b"part "), enter(&mut calls, 1, b"waits "));
    assert_eq!(write(&mut calls, 3), b"par");
    calls.end(&lost(), &mut Vec::new());
    assert!(why_unsent(&outcome(&mut calls, part)).is_none(), "it may run");
    assert!(why_unsent(&outcome(&mut calls, waits)).is_some(), "it never runs");
    calls.add_last(|out| out.extend_from_slice(b"end "));
    assert_eq!(write(&mut calls, 4), b"t *3");
    calls.add_last(|out| out.extend_from_slice(b"another end"));
    let rest = [&REPLY_OFF[2..], b"end another end"].concat();
    assert_eq!(write(&mut calls, 100), rest, "the server is silenced once");
    assert!(calls.enter(None, 1, |_| ()).is_err());
}

fn outcome(calls: &mut Calls, at: usize) -> RedisError {
    match polled(calls, at) {
        Poll::Ready(Err(why)) => why,
        other => panic!("{other:?}"),
    }
}
