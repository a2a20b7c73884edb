//! One connection, which many callers share. A call is one command or several that are sent together. The server answers the calls in the
//! order in which they were made, so each answer belongs to the oldest unanswered call.
//!
//! The redis crate has such a connection too. This one differs in three ways:
//!
//! - A call is sent only as long as its caller waits and its deadline is not over. If it was not given to the socket by then, it is never
//!   sent, and its error says so.
//! - A caller writes its call to the socket itself if no other call is under way, so that no task has to be woken. Otherwise calls are
//!   collected and written together, at the latest when they fill a packet.
//! - A call needs no allocation and no timer.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use crate::backend::resp::calls::Calls;
use crate::backend::resp::frame::Input;
use crate::backend::resp::socket::{Reader, Writer};
use crate::backend::resp::unsent::{FORKED, TOO_LATE, unsent};
use crate::backend::tokio_now;
use crate::base::{Mutex, gated, lock, wake_all};

/// How long the end of a runtime may wait for the answers on one connection.
const LONGEST_END: Duration = Duration::from_millis(100);

/// A connection. Cheap to clone. When the last clone is dropped, it is closed.
#[derive(Clone)]
pub(crate) struct Connection {
    handle: Arc<Handle>,
}

/// What all clones of a connection share. Its drop closes the connection.
struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    calls: Mutex<Calls>,
    writer: Writer,
    /// The process that opened the connection.
    process: u32,
    /// How many answers were received.
    answers: AtomicU64,
    /// One bit for each script, set once its text was sent.
    scripts: AtomicU32,
}

/// Called by the connection's task: with each push before the answers after it are delivered, and once more when the connection has
/// ended, before the calls that are under way fail.
pub(crate) type OnPush = Box<dyn Fn(PushInfo) + Send + Sync>;

impl Connection {
    /// Starts a connection on the current runtime, which runs the task that reads. The commands that `encode` writes are sent
    /// first, so that even an error that a server sends to each new client before it hangs up is their answer. Returns the
    /// answers that came, and why others did not.
    pub(super) async fn start(
        halves: (Reader, Writer),
        on_push: OnPush,
        answers: usize,
        encode: impl Fn(&mut Vec<u8>),
    ) -> RedisResult<(Connection, Vec<Value>, RedisResult<()>)> {
        let (connection, task) = Connection::new(halves, on_push, std::process::id());
        let first = connection.call(None, answers, &encode, None)?;
        drop(tokio::spawn(gated(Box::pin(task.run()))));
        let all = poll_fn(|cx| first.poll(cx, |_| ())).await;
        let answers = std::mem::take(lock(&connection.handle.shared.calls).answers(first.at));
        drop(first);
        Ok((connection, answers, all))
    }

    fn new((reader, writer): (Reader, Writer), on_push: OnPush, process: u32) -> (Connection, Task) {
        let (calls, count, scripts, input, answers, woken) = Default::default();
        let shared = Arc::new(Shared { calls, writer, process, answers: count, scripts });
        let task = Task { shared: shared.clone(), reader, input, on_push, answers, woken };
        (Connection { handle: Arc::new(Handle { shared }) }, task)
    }

    /// Sends a command, but not after its deadline: then it fails with an [unsent](crate::backend::resp::why_unsent) error. The caller
    /// has to stop waiting at the deadline, since a command that is not sent fails only when the connection's task is polled.
    pub(crate) async fn send(&self, cmd: &Cmd, deadline: Option<Instant>) -> RedisResult<Value> {
        self.run(deadline, |bytes| cmd.write_packed_command(bytes)).await
    }

    /// Like [`send`](Connection::send), for many commands.
    pub(crate) async fn send_all(
        &self,
        commands: &[Cmd],
        deadline: Option<Instant>,
    ) -> RedisResult<Vec<Value>> {
        let encode = |bytes: &mut Vec<u8>| commands.iter().for_each(|cmd| cmd.write_packed_command(bytes));
        self.run_all(deadline, commands.len(), encode).await
    }

    /// Like [`send`](Connection::send), for the command that `encode` writes.
    pub(crate) async fn run(
        &self,
        deadline: Option<Instant>,
        encode: impl Fn(&mut Vec<u8>),
    ) -> RedisResult<Value> {
        Ok(self.run_all(deadline, 1, encode).await?.pop().unwrap_or(Value::Nil))
    }

    /// Like [`run`](Connection::run), for several commands that have this many answers together. Fails in the child of a fork, whose
    /// parent would take the answers for those to its own commands.
    pub(crate) async fn run_all(
        &self,
        deadline: Option<Instant>,
        answers: usize,
        encode: impl Fn(&mut Vec<u8>),
    ) -> RedisResult<Vec<Value>> {
        if self.handle.shared.is_copied() {
            return Err(unsent(FORKED));
        }
        if answers == 0 {
            return Ok(Vec::new());
        }
        self.call(deadline, answers, &encode, None)?.all().await
    }

    /// Returns whether no call is under way, so that the next [call](Connection::call) is written to the socket at once.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.handle.shared.calls).is_unused()
    }

    /// Writes commands whose answers nobody gets, as far as the socket has room, on any thread: the runtime of the connection ends
    /// or has ended. After that no other call is sent. A command that was given to the socket in part is completed first.
    pub(crate) fn send_last(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        let (shared, mut woken) = (&self.handle.shared, Vec::new());
        let bytes = {
            let mut calls = lock(&shared.calls);
            if !calls.ended {
                calls.end_with_runtime(&task_has_ended(), &mut woken);
            }
            if !calls.silent {
                // Nobody learns that the server has forgotten a script, so the first call of each is sent by its text once more.
                shared.scripts.store(0, Relaxed);
            }
            calls.add_last(encode);
            calls.begin_write()
        };
        // If another thread is writing, that thread writes this too.
        let task = bytes.and_then(|bytes| shared.write(bytes));
        wake_all(woken.into_iter().chain(task));
    }

    /// Returns whether the connection's task has not read everything that has arrived. While its runtime is driven, this is true
    /// only for a moment.
    pub(crate) fn is_unread(&self) -> bool {
        self.handle.shared.writer.is_unread()
    }

    /// Returns how many answers were received.
    pub(crate) fn answers(&self) -> u64 {
        self.handle.shared.answers.load(Relaxed)
    }

    /// Returns whether a call of a script has to send the text, and notes the call. The first call over the connection has to be sent by
    /// the text of the script, the later ones by its hash. If the first one were sent by the hash, a server that does not know the script
    /// would need a second round trip, which may come too late over a slow network. If the first call was not sent after all, or the server
    /// has forgotten the script, the server answers that it does not know the hash, and the call is sent again by the text.
    pub(crate) fn sends_text(&self, script: u32) -> bool {
        let (scripts, bit) = (&self.handle.shared.scripts, 1 << script);
        // A load is usually enough.
        scripts.load(Relaxed) & bit == 0 && scripts.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Makes a call: the commands that `encode` writes, which the server answers by this many `answers`. May be called on any thread, and
    /// outside a runtime: if no other call is under way, the commands are written to the socket here, and otherwise by the connection's
    /// task. Fails with an [unsent](crate::backend::resp::why_unsent) error if the deadline is over.
    ///
    /// `push` is for a command of a subscription. The server answers it by a push of this kind about this channel, or by an error. Such a
    /// push is also passed to `on_push`, in order with all others.
    pub(crate) fn call(
        &self,
        deadline: Option<Instant>,
        answers: usize,
        encode: &dyn Fn(&mut Vec<u8>),
        push: Option<(PushKind, &str)>,
    ) -> RedisResult<PendingAnswer> {
        if deadline.is_some_and(|deadline| deadline <= tokio_now()) {
            return Err(unsent(TOO_LATE));
        }
        let shared = self.handle.shared.clone();
        // The task's waker is kept apart from those of callers, which are rarely woken here: in the vector it would cost each call
        // an allocation.
        let (mut woken, mut task) = (Vec::new(), None);
        let (at, bytes) = {
            let mut calls = lock(&shared.calls);
            let at = calls.enter(deadline, answers, encode)?;
            if let Some((kind, channel)) = push {
                calls.confirm_by(at, kind, channel);
            }
            let bytes = calls.begin_write_by_caller(tokio_now, &mut woken);
            if bytes.is_none() {
                task = calls.task();
            }
            (at, bytes)
        };
        let answer = PendingAnswer { shared, at };
        if let Some(bytes) = bytes {
            task = answer.shared.write(bytes);
        }
        wake_all(woken.into_iter().chain(task));
        Ok(answer)
    }
}

impl Shared {
    /// Returns whether this is a copy in the child of a `fork`, whose parent has the same socket.
    fn is_copied(&self) -> bool {
        self.process != std::process::id()
    }

    /// Writes these bytes for a caller. Returns the task's waker if the task has to go on.
    fn write(&self, mut bytes: Vec<u8>) -> Option<Waker> {
        loop {
            // An error is left to the task, which will get it too.
            let count = self.writer.try_write(&bytes).unwrap_or(0);
            let is_owing = self.writer.is_owing();
            let mut calls = lock(&self.calls);
            if !calls.written(bytes, count, is_owing) {
                return None;
            }
            // The rest may have to be written here: 1. The runtime ends, and two threads drop its tasks. 2. While one of them writes,
            // the other has something to write too. 3. No task is left to go on with it.
            match calls.ended && count > 0 {
                true => bytes = calls.begin_write()?,
                false => return calls.task(),
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (task, is_silent) = {
            let mut calls = lock(&self.shared.calls);
            (calls.close(), calls.silent)
        };
        wake_all(task);
        // The socket is shut down, since the task has the other half and may not be polled for a long time. But not if something was
        // added last, which the task may be about to write.
        if !is_silent && !self.shared.is_copied() {
            self.shared.writer.shut_down();
        }
    }
}

/// A call under way. If it is dropped before it is sent, it is never sent.
pub(crate) struct PendingAnswer {
    shared: Arc<Shared>,
    at: usize,
}

impl PendingAnswer {
    /// Takes the answers by `take` once all have come.
    fn poll<T>(&self, cx: &Context<'_>, take: impl FnOnce(&mut Vec<Value>) -> T) -> Poll<RedisResult<T>> {
        let (polled, _replaced) = {
            let mut calls = lock(&self.shared.calls);
            let (polled, replaced) = calls.poll(self.at, cx);
            (polled.map_ok(|()| take(calls.answers(self.at))), replaced)
        };
        polled
    }

    /// The call's slot is free for another call once the future is dropped.
    pub(crate) fn one(self) -> impl Future<Output = RedisResult<Value>> {
        poll_fn(move |cx| self.poll(cx, |answers| answers.pop().unwrap_or(Value::Nil)))
    }

    fn all(self) -> impl Future<Output = RedisResult<Vec<Value>>> {
        poll_fn(move |cx| self.poll(cx, std::mem::take))
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let _waker = lock(&self.shared.calls).leave(self.at);
    }
}

/// The task of a connection, which reads, and writes what callers could not.
struct Task {
    shared: Arc<Shared>,
    reader: Reader,
    input: Input,
    on_push: OnPush,
    /// Kept empty between polls.
    answers: Vec<Value>,
    woken: Vec<Waker>,
}

impl Task {
    async fn run(mut self) {
        if let Err(why) = poll_fn(|cx| self.poll(cx)).await {
            (self.on_push)(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
            let mut woken = Vec::new();
            lock(&self.shared.calls).end(&why, &mut woken);
            wake_all(woken);
        }
    }

    /// Waits for the answers to what was sent, for a short time. Otherwise:
    ///
    /// 1. A dropped guard has sent the end of its hold. Other ends are [sent](Connection::send_last) before that one is answered.
    /// 2. The process ends. An answer that was not read, or that comes now, breaks the connection.
    /// 3. The server drops what it has not read: the other ends.
    fn receive_last(&mut self, mut owed: usize) {
        let (mut bytes, until) = ([0; 4096], std::time::Instant::now() + LONGEST_END);
        while owed > 0 {
            match self.input.next() {
                Ok(Some(Value::Push { kind, .. })) if !is_confirmation(&kind) => continue,
                Ok(Some(_)) => {
                    owed -= 1;
                    continue;
                }
                Ok(None) => {}
                Err(_) => return,
            }
            match self.shared.writer.try_read(&mut bytes) {
                Ok(count) if count > 0 => {
                    self.input.room(count).extend_from_slice(&bytes[..count]);
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && std::time::Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_micros(100));
                }
                _ => return,
            }
        }
    }

    /// Ready once nobody uses the connection any more, or it is lost.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<()>> {
        // In the child of a fork that goes on with its parent's runtime, bytes that are read here would be missing in the parent.
        if self.shared.is_copied() {
            return Poll::Pending;
        }
        // Done before anything else is looked at, so that whatever comes from now on wakes the task.
        if lock(&self.shared.calls).sleep(cx) {
            return Poll::Ready(Ok(()));
        }
        let written = self.write(cx);
        // Even if nothing can be written any more, since the server may have sent the reason.
        let polled = self.read(cx).and(written);
        wake_all(self.woken.drain(..));
        match polled {
            Ok(()) => Poll::Pending,
            // The last handle was dropped in the meantime, which has shut down the socket.
            Err(_) if lock(&self.shared.calls).ended => Poll::Ready(Ok(())),
            lost => Poll::Ready(lost),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> RedisResult<()> {
        loop {
            match self.shared.writer.poll_flush(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(flushed) => flushed?,
            }
            let bytes = {
                let mut calls = lock(&self.shared.calls);
                if calls.puts_off() {
                    cx.waker().wake_by_ref();
                    return Ok(());
                }
                calls.expire(Instant::now, &mut self.woken);
                calls.begin_write()
            };
            let Some(bytes) = bytes else { return Ok(()) };
            let written = self.shared.writer.poll_write(cx, &bytes);
            let count = match &written {
                Poll::Ready(Ok(count)) => *count,
                _ => 0,
            };
            // The rest is written in the next turn, or when the socket has room.
            lock(&self.shared.calls).written(bytes, count, self.shared.writer.is_owing());
            match written {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(why)) => return Err(why.into()),
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>) -> RedisResult<()> {
        const ROOM: usize = 4096;
        loop {
            match pin!(self.reader.read_buf(self.input.room(ROOM))).poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(why)) => return Err(why.into()),
            }
            let garbled = loop {
                match self.input.next() {
                    Ok(Some(Value::Push { kind, data })) => {
                        if is_confirmation(&kind) {
                            self.answers.push(Value::Push { kind: kind.clone(), data: data.clone() });
                        }
                        (self.on_push)(PushInfo { kind, data });
                    }
                    Ok(Some(answer)) => self.answers.push(answer),
                    Ok(None) => break Ok(()),
                    Err(why) => break Err(why),
                }
            };
            self.shared.answers.fetch_add(self.answers.len() as u64, Relaxed);
            lock(&self.shared.calls).deliver(&mut self.answers, &mut self.woken)?;
            garbled?;
        }
    }
}

/// Returns whether a push may be the answer to a command.
fn is_confirmation(kind: &PushKind) -> bool {
    matches!(
        kind,
        PushKind::Subscribe | PushKind::Unsubscribe | PushKind::SSubscribe | PushKind::SUnsubscribe
    )
}

/// This also runs when the task's runtime ends, maybe before the first poll. It is no disconnection then: the task that makes
/// connections is on the same runtime.
impl Drop for Task {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        let (owed, bytes) = {
            let mut calls = lock(&self.shared.calls);
            let owed = calls.end_with_runtime(&task_has_ended(), &mut woken);
            (owed, if calls.silent { calls.begin_write() } else { None })
        };
        wake_all(woken);
        // In the child of a fork nothing was added, and the answers are the parent's.
        if !self.shared.is_copied() {
            // What was added last while this task was writing, and could not be written by it.
            let _task = bytes.and_then(|bytes| self.shared.write(bytes));
            self.receive_last(owed);
        }
    }
}

fn task_has_ended() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the task of the connection has ended").into()
}

#[cfg(test)]
mod tests;
