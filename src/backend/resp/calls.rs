//! The calls of one connection: what is to be sent, and who waits for which answer. No I/O.

use std::collections::VecDeque;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use redis::{PushKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::backend::resp::frame::garbled;
use crate::backend::resp::unsent::{CONNECTION_LOST, TOO_LATE, unsent};

/// This many bytes fill a packet of most networks.
pub(super) const PACKET: usize = 1400;

/// This many polls of a task with nothing to do take some 20 µs.
const PUT_OFF: u32 = 100;

/// A buffer that has grown beyond this is not kept.
const KEPT: usize = 64 << 10;

const REPLY_OFF: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n";

/// The state of the calls. Locked only briefly, and never while something is written.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Commands that were not given to the socket yet.
    out: Vec<u8>,
    /// How many bytes were given to the socket. A call that begins after them is certainly not sent.
    given: u64,
    /// Whether somebody writes. Commands that arrive in the meantime are written after that.
    writing: bool,
    /// Whether the socket has not taken all that it was given. The connection's task waits until it has room.
    full: bool,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The calls that still wait for answers, in the order in which they are sent.
    order: VecDeque<usize>,
    /// Whether no command is sent any more, except by [`add_last`](Calls::add_last).
    ended: bool,
    /// Whether the server was told to send no more answers.
    silent: bool,
    /// How many answers the server owed when the runtime of the connection ended.
    owed: usize,
    /// How many calls were given up before they were given to the socket. Their bytes are removed together, with the next write at the
    /// latest: one by one, thousands of calls that time out at once would each move the bytes of all others.
    left: usize,
    /// The waker of the connection's task, if it sleeps.
    task: Option<Waker>,
    /// How many callers of the current round have been woken by their answers and have not looked at them. They may call again.
    collecting: usize,
    /// The round ends when these callers are not waited for any more.
    round: u64,
    /// How many times the next write was put off.
    put_off: u32,
}

/// One call, from when it enters until its answers are taken.
#[derive(Debug, Default)]
struct Slot {
    /// Where its bytes begin, counted from the first byte of the connection.
    begin: u64,
    end: u64,
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
        let begin = self.given + self.out.len() as u64;
        encode(&mut self.out);
        let end = self.given + self.out.len() as u64;
        let slot = &mut self.slots[at];
        (slot.begin, slot.end, slot.deadline, slot.missing) = (begin, end, deadline, answers);
        self.order.push_back(at);
        Ok(at)
    }

    /// Adds a command whose answer nobody gets, after everything that is to be written, once the connection has
    /// [ended](Calls::end).
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

    /// Returns whether a call that enters now is the only one, so that its caller writes it.
    pub(super) fn is_unused(&self) -> bool {
        !self.ended && !self.writing && self.order.is_empty() && self.out.is_empty()
    }

    /// Notes that a call that has just entered is answered by this push, or by an error.
    pub(super) fn confirm_by(&mut self, at: usize, kind: PushKind, channel: &str) {
        self.slots[at].confirmed_by = Some(Box::new((kind, channel.to_owned())));
    }

    /// Returns what the caller of the call that has just entered writes now, if anything, like [`begin_write`](Calls::begin_write).
    /// Otherwise the connection's task writes it, together with what arrives in the meantime.
    ///
    /// A call that is the only one under way is written at once. A full packet gains nothing by waiting either, and the server runs
    /// it while more is made: if only the task wrote, all calls that are woken by one read of answers would be sent at once, after
    /// the last of them, and client and server would work in turns. If the socket is full, the task waits for room.
    pub(super) fn begin_write_by_caller(
        &mut self,
        now: impl Fn() -> Instant,
        woken: &mut Vec<Waker>,
    ) -> Option<Vec<u8>> {
        if self.order.len() == 1 {
            return self.begin_write();
        }
        if self.full || self.out.len() < PACKET {
            return None;
        }
        self.expire(now, woken);
        self.begin_write()
    }

    /// Returns what to write now; [`written`](Calls::written) has to follow. Returns `None` if there is nothing, or somebody else
    /// writes.
    pub(super) fn begin_write(&mut self) -> Option<Vec<u8>> {
        if self.writing {
            return None;
        }
        if self.left > 0 {
            self.remove_left();
        }
        if self.out.is_empty() {
            return None;
        }
        self.writing = true;
        self.given += self.out.len() as u64;
        Some(std::mem::take(&mut self.out))
    }

    /// Returns whether the connection's task has to put off its next write, and to be polled again: callers that were woken by
    /// answers are about to call too, and bytes that fill no packet yet would be a packet for each of them.
    ///
    /// On one thread the callers are polled before the task, and nothing is put off. On several threads the task is polled at the
    /// same time. A caller may not be polled for long, so the task waits for few polls, and then for none of the callers that were
    /// woken until then.
    pub(super) fn puts_off(&mut self) -> bool {
        let is_full = self.full || self.out.len() >= PACKET;
        if self.collecting == 0 || self.writing || self.out.is_empty() || is_full {
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

    /// Called when this many of these bytes were written. `is_owing`: a part of them still waits for room. Returns whether the task
    /// has to go on: with the rest, or with what has arrived in the meantime.
    pub(super) fn written(&mut self, mut bytes: Vec<u8>, count: usize, is_owing: bool) -> bool {
        self.writing = false;
        let is_whole = count == bytes.len();
        self.full = !is_whole || is_owing;
        self.given -= (bytes.len() - count) as u64;
        if is_whole {
            bytes.clear();
        } else {
            bytes.drain(..count);
        }
        if !(bytes.is_empty() && (self.out.capacity() > 0 || bytes.capacity() > KEPT)) {
            bytes.append(&mut self.out);
            self.out = bytes;
        }
        // 1. A call is written. 2. Its caller drops it. 3. The socket has no room. The call was not given to the socket, and never
        // is.
        if !is_whole || self.left > 0 {
            self.remove_left();
        }
        is_owing || !self.out.is_empty()
    }

    fn remove_left(&mut self) {
        self.left = 0;
        for at in self.take_out(|slot| slot.given_up) {
            self.release(at);
        }
    }

    /// Returns where the calls begin that were not given to the socket.
    fn unsent_from(&self) -> usize {
        self.order.partition_point(|at| self.slots[*at].begin < self.given)
    }

    /// Removes the calls whose deadline is over and that were not given to the socket: 1. The socket is full, or the task of the
    /// connection is not polled. 2. The call is given up, and the hold's end is sent elsewhere. 3. It would be sent now.
    pub(super) fn expire(&mut self, now: impl Fn() -> Instant, woken: &mut Vec<Waker>) {
        if self.writing || self.out.is_empty() {
            return;
        }
        let now = now();
        let is_over = |slot: &Slot| slot.deadline.is_some_and(|deadline| deadline <= now);
        for at in self.take_out(|slot| is_over(slot) && !slot.given_up) {
            self.fail(at, unsent(TOO_LATE), woken);
        }
    }

    /// Removes calls that were not given to the socket, with their bytes, in one pass.
    fn take_out(&mut self, is_removed: impl Fn(&Slot) -> bool) -> Vec<usize> {
        let unsent_from = self.unsent_from();
        if !self.order.range(unsent_from..).any(|at| is_removed(&self.slots[*at])) {
            return Vec::new();
        }
        let unsent = self.order.split_off(unsent_from);
        let (mut removed, mut bytes) = (Vec::new(), Vec::with_capacity(self.out.len()));
        // The rest of a call stays if a part of it was given to the socket.
        let mut copied = self.range_of(unsent[0]).start;
        bytes.extend_from_slice(&self.out[..copied]);
        for at in unsent {
            let range = self.range_of(at);
            debug_assert_eq!(range.start, copied, "calls lie side by side");
            copied = range.end;
            if is_removed(&self.slots[at]) {
                removed.push(at);
                continue;
            }
            let begin = self.given + bytes.len() as u64;
            bytes.extend_from_slice(&self.out[range]);
            let slot = &mut self.slots[at];
            (slot.begin, slot.end) = (begin, self.given + bytes.len() as u64);
            self.order.push_back(at);
        }
        self.out = bytes;
        removed
    }

    /// Returns where the bytes of a call are that was not given to the socket.
    fn range_of(&self, at: usize) -> Range<usize> {
        let place = |byte: u64| (byte - self.given) as usize;
        place(self.slots[at].begin)..place(self.slots[at].end)
    }

    /// Assigns answers to their calls. A push that answers none is skipped: a server ends a subscription by itself when its slot
    /// moves. One that comes while an unsubscribe of the same channel is the next call is taken for its answer.
    pub(super) fn deliver(&mut self, answers: &mut Vec<Value>, woken: &mut Vec<Waker>) -> RedisResult<()> {
        for answer in answers.drain(..) {
            // 1. The runtime ends, and one of its threads ends the calls. 2. Another one still reads answers here. 3. The end of the
            // connection would wait for them in vain.
            if self.owed > 0 {
                self.owed -= 1;
                continue;
            }
            // The first call may be refused though it could not be written: 1. A server sends why it hangs up. 2. It hangs up.
            let is_refused = |begin| begin == 0 && matches!(answer, Value::ServerError(_));
            let is_sent = |begin| begin < self.given || is_refused(begin);
            let sent = self.order.front().copied().filter(|at| is_sent(self.slots[*at].begin));
            if let Value::Push { kind, data } = &answer {
                let is_answer = |at: usize| {
                    let expected = self.slots[at].confirmed_by.as_deref();
                    expected.is_some_and(|(its, channel)| its == kind && names(data, channel))
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
                self.order.pop_front();
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
    /// 1. Somebody's executor owns a task by its wakers alone. 2. The last of them is dropped, and with it the task's future.
    /// 3. That holds another call of this connection, which locks it to leave.
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
        if slot.begin >= self.given {
            self.left += 1;
            if 2 * self.left >= self.order.len() - self.unsent_from() {
                self.remove_left();
            }
        }
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
        let mut answers = std::mem::take(&mut self.slots[at].answers);
        answers.clear();
        self.slots[at] = Slot { answers, ..Slot::default() };
        self.free.push(at);
    }

    /// Called when the connection is over, or its task is. Calls that were not given to the socket certainly do not run, so they
    /// are removed: otherwise [`add_last`](Calls::add_last) would have them sent. The rest of a call stays if a part of it was
    /// given to the socket.
    pub(super) fn end(&mut self, why: &RedisError, woken: &mut Vec<Waker>) {
        (self.ended, self.left) = (true, 0);
        for at in self.take_out(|_| true) {
            self.fail(at, unsent(CONNECTION_LOST), woken);
        }
        for at in std::mem::take(&mut self.order) {
            self.fail(at, why.clone(), woken);
        }
    }

    /// Like [`end`](Calls::end), for the end of the runtime: the connection may still be good. Returns how many answers the server owes.
    pub(super) fn end_with_runtime(&mut self, why: &RedisError, woken: &mut Vec<Waker>) -> usize {
        let is_sent = |at: &&usize| self.slots[**at].begin < self.given;
        self.owed += self.order.iter().filter(is_sent).map(|at| self.slots[*at].missing).sum::<usize>();
        self.end(why, woken);
        self.owed
    }

    /// Returns whether something was [added last](Calls::add_last).
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether the task has to end, because nobody uses the connection any more. Otherwise the task is woken when there is
    /// something to write.
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

    /// Returns whether nothing is under way and no place is lost.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.out.is_empty() && !self.writing && self.free.len() == self.slots.len()
    }

    /// Returns the task's waker, if it sleeps and nobody writes.
    pub(super) fn task(&mut self) -> Option<Waker> {
        if self.writing { None } else { self.task.take() }
    }
}

/// Returns whether a push is about this channel.
fn names(data: &[Value], channel: &str) -> bool {
    match data.first() {
        Some(Value::BulkString(bytes)) => bytes == channel.as_bytes(),
        Some(Value::SimpleString(text)) => text == channel,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
