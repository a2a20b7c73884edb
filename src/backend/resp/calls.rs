//! The calls of one connection: what has to be sent, and who waits for which answer. No I/O.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use redis::{PushKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::backend::resp::frame::{garbled, text};
use crate::backend::resp::unsent::{CONNECTION_LOST, TOO_LATE, unsent};

/// This many bytes fill a packet of most networks.
pub(super) const PACKET: usize = 1400;

/// The limit on put-off writes: this many polls of a task with nothing to do take about 20 µs.
const PUT_OFF: u32 = 100;

/// A write takes in no more calls once it has this many bytes, since all of them are collected again for each new call while the socket
/// is full. A buffer that has grown beyond this is not kept.
const KEPT: usize = 64 << 10;

/// The slots of a burst of more calls than this are not kept.
const KEPT_SLOTS: usize = 1024;

const REPLY_OFF: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n";

/// The state of the calls. Locked only briefly, and never while something is written.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Bytes to write before the waiting calls: the rest of a call that the socket has taken in part, or what was [added
    /// last](Calls::add_last).
    out: Vec<u8>,
    /// Whether a write is under way. Commands that arrive in the meantime are written after it.
    writing: bool,
    /// Whether the socket did not take everything that it was given. The connection's task waits until the socket has room.
    full: bool,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The calls that were not given to the socket, in their order. They are certainly not sent.
    waiting: VecDeque<usize>,
    /// The calls that were given to the socket and still wait for answers, in their order.
    sent: VecDeque<usize>,
    /// How many of the calls that were sent are in the last write.
    in_write: usize,
    /// Whether the socket has taken anything.
    has_sent: bool,
    /// Whether no command is sent any more, except by [`add_last`](Calls::add_last).
    pub(super) ended: bool,
    /// Whether the server was told to send no more answers, since something was [added last](Calls::add_last).
    pub(super) silent: bool,
    /// How many answers the server owed when the runtime of the connection ended.
    owed: usize,
    /// The waker of the connection's task, if it sleeps.
    task: Option<Waker>,
    /// How many callers of the current round were woken by their answers and have not looked at them yet. They may make further calls.
    collecting: usize,
    /// The number of the round, which ends when its callers are no longer waited for.
    round: u64,
    /// How many times the next write was put off.
    put_off: u32,
}

/// One call, from when it enters until its answers are taken.
#[derive(Debug, Default)]
struct Slot {
    /// Its commands. They are kept until the call is released, since their length shows how much of them was written.
    bytes: Vec<u8>,
    deadline: Option<Instant>,
    /// How many answers are still to come.
    missing: usize,
    answers: Vec<Value>,
    failed: Option<RedisError>,
    /// The push that answers it unless its answer is an error: the kind of a subscription, and its channel.
    confirmed_by: Option<Box<(PushKind, String)>>,
    waker: Option<Waker>,
    /// Whether nobody waits for it any more.
    given_up: bool,
    /// The round in which its answers have woken its caller, until the caller looks at them.
    collected_in: Option<u64>,
}

impl Calls {
    /// Takes in a call with this many answers, and returns its number. It is not sent after its deadline.
    pub(super) fn enter(
        &mut self,
        deadline: Option<Instant>,
        answers: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<usize> {
        if self.ended {
            return Err(unsent(CONNECTION_LOST));
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        encode(&mut slot.bytes);
        (slot.deadline, slot.missing) = (deadline, answers);
        self.waiting.push_back(at);
        Ok(at)
    }

    /// Adds a command whose answer nobody gets, after everything else to be written, once the connection has [ended](Calls::end).
    ///
    /// The server is asked for no more answers before the first of them: 1. It runs some of these commands, and writes their
    /// answers. 2. The process has ended, so writing them fails. 3. The server drops the connection with the commands that it has
    /// not read.
    pub(super) fn add_last(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(self.ended);
        if !std::mem::replace(&mut self.silent, true) {
            self.out.extend_from_slice(REPLY_OFF);
        }
        encode(&mut self.out);
    }

    /// Returns whether a call that enters now would be the only one, so that its caller writes it.
    pub(super) fn is_unused(&self) -> bool {
        let is_idle = self.waiting.is_empty() && self.sent.is_empty() && self.out.is_empty();
        is_idle && !self.ended && !self.writing
    }

    /// Notes that a call that has just entered is answered by this push, or by an error.
    pub(super) fn confirm_by(&mut self, at: usize, kind: PushKind, channel: &str) {
        self.slots[at].confirmed_by = Some(Box::new((kind, channel.to_owned())));
    }

    /// Returns what the caller of the call that has just entered writes now, if anything, like [`begin_write`](Calls::begin_write).
    /// Otherwise the connection's task writes it, together with what arrives in the meantime.
    ///
    /// A call that is the only one under way is written at once. A full packet gains nothing by waiting either, and the server runs
    /// it while more calls are made. If only the task wrote, all calls of the callers that one read of answers wakes would be sent
    /// together, after the last of them, and client and server would work in turns. If the socket is full, the task waits for room.
    pub(super) fn begin_write_by_caller(
        &mut self,
        now: impl Fn() -> Instant,
        woken: &mut Vec<Waker>,
    ) -> Option<Vec<u8>> {
        if self.waiting.len() + self.sent.len() == 1 {
            return self.begin_write();
        }
        if self.writing || self.full || !self.fills_packet() {
            return None;
        }
        self.expire(now, woken);
        self.begin_write()
    }

    /// Returns what to write now; [`written`](Calls::written) has to follow. Returns `None` if there is nothing, or another write
    /// is under way. A call that nobody waits for any more is not sent.
    pub(super) fn begin_write(&mut self) -> Option<Vec<u8>> {
        if self.writing {
            return None;
        }
        (self.writing, self.in_write) = (true, 0);
        let mut bytes = std::mem::take(&mut self.out);
        while bytes.len() < KEPT
            && let Some(at) = self.waiting.pop_front()
        {
            if self.slots[at].given_up {
                self.release(at);
                continue;
            }
            bytes.extend_from_slice(&self.slots[at].bytes);
            self.sent.push_back(at);
            self.in_write += 1;
        }
        if bytes.is_empty() {
            (self.writing, self.out) = (false, bytes);
            return None;
        }
        Some(bytes)
    }

    /// Returns whether the bytes to be written fill a packet.
    fn fills_packet(&self) -> bool {
        let mut length = self.out.len();
        self.waiting.iter().any(|at| {
            length += self.slots[*at].bytes.len();
            length >= PACKET
        })
    }

    /// Returns whether the connection's task has to put off its next write, and to be polled again: callers that were woken by
    /// answers are about to make calls too, and each of these calls would be a packet of its own.
    ///
    /// On one thread the callers are polled before the task, and nothing is put off. On several threads the task is polled at the
    /// same time. A caller may not be polled for a long time, so the task waits for only a few polls, and then no longer for the
    /// callers woken so far.
    pub(super) fn puts_off(&mut self) -> bool {
        let is_empty = self.waiting.is_empty() && self.out.is_empty();
        if self.collecting == 0 || self.writing || is_empty || self.full || self.fills_packet() {
            self.put_off = 0;
            return false;
        }
        self.put_off += 1;
        if self.put_off > PUT_OFF {
            (self.put_off, self.collecting) = (0, 0);
            self.round += 1;
            return false;
        }
        true
    }

    /// Called when `count` of these bytes were written. `is_owing`: some of them still wait for room. Returns whether the task has
    /// to go on, with the rest or with calls that have arrived in the meantime.
    pub(super) fn written(&mut self, mut bytes: Vec<u8>, count: usize, is_owing: bool) -> bool {
        (self.writing, self.has_sent) = (false, self.has_sent || count > 0);
        self.full = count < bytes.len() || is_owing;
        // Calls of which the socket has taken nothing wait again, and the rest of the call before them goes first.
        for _ in 0..self.in_write {
            let Some(at) = self.sent.back().copied() else { break };
            let Some(begin) = bytes.len().checked_sub(self.slots[at].bytes.len()) else { break };
            if begin < count || bytes.len() == count {
                break;
            }
            bytes.truncate(begin);
            self.sent.pop_back();
            self.waiting.push_front(at);
        }
        bytes.drain(..count);
        if bytes.capacity() <= KEPT || !bytes.is_empty() {
            bytes.append(&mut self.out);
            self.out = bytes;
        }
        is_owing || !self.waiting.is_empty() || !self.out.is_empty()
    }

    /// Fails the calls whose deadline is over and that were not given to the socket. Otherwise: 1. The socket is full, or the
    /// task of the connection is not polled. 2. A call is given up, and the hold's end is sent elsewhere. 3. The call is sent
    /// after that.
    pub(super) fn expire(&mut self, now: impl Fn() -> Instant, woken: &mut Vec<Waker>) {
        if self.waiting.is_empty() {
            return;
        }
        let now = now();
        for _ in 0..self.waiting.len() {
            let Some(at) = self.waiting.pop_front() else { return };
            match self.slots[at].deadline {
                Some(deadline) if deadline <= now => self.fail(at, unsent(TOO_LATE), woken),
                _ => self.waiting.push_back(at),
            }
        }
    }

    /// Assigns answers to their calls. A push that answers no call is skipped: a server ends a subscription by itself when its
    /// slot moves. If that push comes while an unsubscribe of the same channel is the next call, it counts as that call's answer.
    pub(super) fn deliver(&mut self, answers: &mut Vec<Value>, woken: &mut Vec<Waker>) -> RedisResult<()> {
        for answer in answers.drain(..) {
            // Counted, though its call is over. Otherwise: 1. The runtime ends, and one of its threads ends the calls. 2. Another thread
            // still reads answers here. 3. The end of the connection waits for these answers in vain.
            if self.owed > 0 {
                self.owed -= 1;
                continue;
            }
            // The first call may be refused even if it could not be written: a server may send the reason, and then hang up.
            let is_refused =
                !self.has_sent && self.sent.is_empty() && matches!(answer, Value::ServerError(_));
            let asked = if is_refused { &mut self.waiting } else { &mut self.sent };
            let sent = asked.front().copied();
            if let Value::Push { kind, data } = &answer {
                let is_answer = |at: usize| {
                    let expected = self.slots[at].confirmed_by.as_deref();
                    expected.is_some_and(|(its, channel)| {
                        its == kind && data.first().and_then(text) == Some(channel)
                    })
                };
                if !sent.is_some_and(is_answer) {
                    continue;
                }
            }
            let at = sent.ok_or_else(|| garbled("an answer to no command"))?;
            let slot = &mut self.slots[at];
            slot.missing -= 1;
            if !slot.given_up {
                slot.answers.push(answer);
            }
            if slot.missing == 0 {
                asked.pop_front();
                if slot.given_up {
                    self.release(at);
                } else if let Some(waker) = slot.waker.take() {
                    slot.collected_in = Some(self.round);
                    self.collecting += 1;
                    woken.push(waker);
                }
            }
        }
        Ok(())
    }

    /// Returns whether the answers to a call have come. Also returns the waker that is replaced, which must not be dropped while
    /// this is locked:
    ///
    /// 1. Some executor owns a task only by its wakers.
    /// 2. The last of them is dropped, and with it the task's future.
    /// 3. That future owns another call of this connection, whose drop locks it again.
    pub(super) fn poll(&mut self, at: usize, cx: &Context<'_>) -> (Poll<RedisResult<()>>, Option<Waker>) {
        self.collected(at);
        let slot = &mut self.slots[at];
        if let Some(why) = slot.failed.take() {
            return (Poll::Ready(Err(why)), None);
        }
        if slot.missing == 0 {
            return (Poll::Ready(Ok(())), None);
        }
        if slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return (Poll::Pending, None);
        }
        (Poll::Pending, slot.waker.replace(cx.waker().clone()))
    }

    /// Returns the answers to a call once they have come, or those that came before the call failed.
    pub(super) fn answers(&mut self, at: usize) -> &mut Vec<Value> {
        &mut self.slots[at].answers
    }

    /// Gives a call up: nobody waits for it any more. If it was not given to the socket, it is never sent. Returns the call's
    /// waker, which must not be dropped while this is locked, as with [`poll`](Calls::poll).
    pub(super) fn leave(&mut self, at: usize) -> Option<Waker> {
        let slot = &mut self.slots[at];
        let waker = slot.waker.take();
        if slot.missing == 0 {
            self.release(at);
            return waker;
        }
        slot.given_up = true;
        slot.answers.clear();
        waker
    }

    fn fail(&mut self, at: usize, why: RedisError, woken: &mut Vec<Waker>) {
        let slot = &mut self.slots[at];
        if slot.given_up {
            return self.release(at);
        }
        (slot.missing, slot.failed) = (0, Some(why));
        woken.extend(slot.waker.take());
    }

    fn collected(&mut self, at: usize) {
        if self.slots[at].collected_in.take() == Some(self.round) {
            self.collecting -= 1;
        }
    }

    fn release(&mut self, at: usize) {
        self.collected(at);
        let slot = &mut self.slots[at];
        slot.bytes.clear();
        slot.bytes.shrink_to(PACKET);
        slot.answers.clear();
        let (bytes, answers) = (std::mem::take(&mut slot.bytes), std::mem::take(&mut slot.answers));
        *slot = Slot { bytes, answers, ..Slot::default() };
        self.free.push(at);
        if self.slots.len() > KEPT_SLOTS && self.free.len() == self.slots.len() {
            (self.slots, self.free, self.waiting, self.sent) = Default::default();
        }
    }

    /// Called when the connection or its task has ended. Calls that were not given to the socket certainly do not run, and
    /// [`add_last`](Calls::add_last) does not send them. If a part of a call was given to the socket, the rest of it stays.
    pub(super) fn end(&mut self, why: &RedisError, woken: &mut Vec<Waker>) {
        self.ended = true;
        for at in std::mem::take(&mut self.waiting) {
            self.fail(at, unsent(CONNECTION_LOST), woken);
        }
        for at in std::mem::take(&mut self.sent) {
            self.fail(at, why.clone(), woken);
        }
    }

    /// Like [`end`](Calls::end), for the end of the runtime: the connection may still be good. Returns how many answers the server owes.
    pub(super) fn end_with_runtime(&mut self, why: &RedisError, woken: &mut Vec<Waker>) -> usize {
        self.owed += self.sent.iter().map(|at| self.slots[*at].missing).sum::<usize>();
        self.end(why, woken);
        self.owed
    }

    /// Returns whether the task has to end, because nobody uses the connection any more. If not, the task will be woken when there
    /// is something to write.
    pub(super) fn sleep(&mut self, cx: &Context<'_>) -> bool {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
        }
        self.ended
    }

    /// Called when nobody uses the connection any more.
    pub(super) fn close(&mut self) -> Option<Waker> {
        self.ended = true;
        self.task.take()
    }

    /// Returns the task's waker, if the task sleeps and no write is under way.
    pub(super) fn task(&mut self) -> Option<Waker> {
        if self.writing { None } else { self.task.take() }
    }
}

#[cfg(test)]
mod tests;
