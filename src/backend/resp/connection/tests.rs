use std::io::{Read, Write};
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::resp::testing::simulated;
use crate::backend::resp::{TOO_LATE, why_unsent};

mod streams;
mod stress;

impl Connection {
    /// Starts a connection that sends nothing at first. `process` is the one that opened it.
    pub(in crate::backend::resp) fn silent(
        halves: (Reader, Writer),
        on_push: OnPush,
        process: u32,
    ) -> Connection {
        let (connection, task) = Connection::new(halves, on_push, process);
        drop(tokio::spawn(gated(Box::pin(task.run()))));
        connection
    }

    /// Makes all scripts run by their hash from now on.
    pub(in crate::backend) fn has_sent_all(&self) {
        self.handle.shared.scripts.store(u32::MAX, Relaxed);
    }
}

/// Returns a connection over a stream that takes this many bytes until the other side reads, and the kinds of its
/// pushes.
async fn connection(room: usize) -> (Connection, DuplexStream, UnboundedReceiver<PushKind>) {
    let (ours, theirs) = duplex(room);
    let (sender, pushes) = unbounded_channel();
    let on_push = Box::new(move |info: PushInfo| drop(sender.send(info.kind)));
    let connection = Connection::silent(simulated(ours), on_push, std::process::id());
    (connection, theirs, pushes)
}

fn silent(halves: (Reader, Writer)) -> Connection {
    Connection::silent(halves, Box::new(drop), std::process::id())
}

fn command(text: &str) -> impl Fn(&mut Vec<u8>) {
    move |bytes| bytes.extend_from_slice(text.as_bytes())
}

async fn begun<F: Future>(mut future: Pin<&mut F>) {
    assert!(timeout(Duration::ZERO, future.as_mut()).await.is_err());
}

async fn received(server: &mut DuplexStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    server.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn commands_are_answered_in_their_order() {
    let (connection, mut server, mut pushes) = connection(1024).await;
    let (mut one, mut two) =
        (pin!(connection.run(None, command("one "))), pin!(connection.run_all(None, 2, command("two "))));
    begun(one.as_mut()).await;
    begun(two.as_mut()).await;
    assert_eq!(received(&mut server, 8).await, "one two ");
    server.write_all(b":1\r\n:2\r\n>1\r\n+invalidate\r\n:3\r\n").await.unwrap();
    assert_eq!(two.await.unwrap(), [Value::Int(2), Value::Int(3)]);
    assert_eq!(pushes.try_recv().unwrap(), PushKind::Invalidate, "before the answer after it");
    assert_eq!(one.await.unwrap(), Value::Int(1));
}

/// In this order: 1. The server does not read. 2. A call waits for room until its deadline, and another one
/// is dropped. 3. The server reads again.
#[tokio::test(start_paused = true)]
async fn a_full_socket_sends_nothing_that_was_given_up_or_is_too_late() {
    let (connection, mut server, _pushes) = connection(4).await;
    let deadline = Some(Instant::now() + Duration::from_secs(1));
    let mut first = Box::pin(connection.run(None, command("first ")));
    begun(first.as_mut()).await;
    let mut late = Box::pin(connection.run(deadline, command("late ")));
    begun(late.as_mut()).await;
    let mut dropped = Box::pin(connection.run(None, command("dropped ")));
    begun(dropped.as_mut()).await;
    let mut last = Box::pin(connection.run(None, command("last ")));
    begun(last.as_mut()).await;
    drop(dropped);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(received(&mut server, 11).await, "first last ");
    assert_eq!(why_unsent(&late.await.unwrap_err()), Some(TOO_LATE));
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!((first.await.unwrap(), last.await.unwrap()), (Value::Int(1), Value::Int(2)));
}

#[tokio::test(start_paused = true)]
async fn calls_fail_when_the_server_hangs_up_after_its_report() {
    let (connection, mut server, mut pushes) = connection(4).await;
    let (mut sent, mut unsent) =
        (pin!(connection.run(None, command("sent"))), pin!(connection.run(None, command("unsent"))));
    begun(sent.as_mut()).await;
    begun(unsent.as_mut()).await;
    assert_eq!(received(&mut server, 2).await, "se");
    drop(server);
    assert!(sent.await.unwrap_err().is_io_error());
    assert_eq!(pushes.try_recv().unwrap(), PushKind::Disconnection);
    assert!(why_unsent(&connection.run(None, command("later")).await.unwrap_err()).is_some());
    assert!(unsent.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_to_nothing_is_left() {
    let (connection, mut server, mut pushes) = connection(64).await;
    server.write_all(b":1\r\n").await.unwrap();
    assert_eq!(pushes.recv().await, Some(PushKind::Disconnection));
    assert!(connection.run(None, command("later")).await.is_err());
    drop(connection);
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "it was closed");
}

#[tokio::test(start_paused = true)]
async fn what_came_for_the_parent_is_not_read_after_a_fork() {
    let (ours, mut server) = duplex(4);
    let _connection = Connection::silent(simulated(ours), Box::new(drop), 0);
    assert!(timeout(Duration::from_secs(1), server.write_all(b"+OK\r\n")).await.is_err(), "it was read");
}

#[tokio::test]
async fn a_copy_after_a_fork_does_not_end_the_connection_of_the_parent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut parents = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = parents.try_clone().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (reader, writer) = tokio::net::TcpStream::from_std(ours).unwrap().into_split();
    drop(Connection::silent((Box::pin(reader), Writer::Tcp(writer)), Box::new(drop), 0));
    parents.write_all(b"PING").unwrap();
    let (mut server, mut bytes) = (listener.accept().unwrap().0, [0; 4]);
    server.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"PING");
}

#[tokio::test(start_paused = true)]
async fn the_connection_is_closed_with_its_last_handle_and_reports_nothing() {
    let (connection, mut server, mut pushes) = connection(64).await;
    let other = connection.clone();
    drop(connection);
    let mut asked = Box::pin(other.run(None, command("one ")));
    begun(asked.as_mut()).await;
    assert_eq!(received(&mut server, 4).await, "one ");
    server.write_all(b"+OK\r\n").await.unwrap();
    assert_eq!(asked.as_mut().await.unwrap(), Value::Okay);
    drop(asked);
    drop(other);
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(pushes.recv().await, None);
}

/// That text may be the reason for which the server hangs up.
#[tokio::test(start_paused = true)]
async fn what_a_server_sends_to_whoever_connects_is_the_answer_to_the_first_command() {
    let (ours, mut server) = duplex(64);
    server.write_all(b"-ERR max number of clients reached\r\n").await.unwrap();
    let (_, answers, _) =
        Connection::start(simulated(ours), Box::new(drop), 1, command("HELLO")).await.unwrap();
    assert!(matches!(answers[..], [Value::ServerError(_)]), "{answers:?}");
}

#[test]
fn calls_fail_when_the_runtime_of_the_connection_ends() {
    let (ours, _server) = duplex(64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connection = runtime.block_on(async { silent(simulated(ours)) });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(connection.run(None, command("late"))).is_err());
}

/// A waker that owns a call.
struct Holder {
    _call: std::sync::Mutex<Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>>,
}

impl std::task::Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

/// Some executors' wakers own the task: when the last waker is dropped, so is the future, and with it other
/// calls.
#[tokio::test(start_paused = true)]
async fn a_waker_may_own_another_call() {
    let (connection, _server, _pushes) = connection(1024).await;
    let holder = || {
        let connection = connection.clone();
        let mut held: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { connection.run(None, command("held ")).await });
        assert!(held.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Waker::from(Arc::new(Holder { _call: held.into() }))
    };
    let (ended, end) = std::sync::mpsc::channel();
    let wakers = [holder(), holder()];
    let connection = connection.clone();
    std::thread::spawn(move || {
        let mut future = Box::pin(connection.run(None, command("one ")));
        for waker in wakers {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(future);
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(20)).expect("the drop waits for itself");
}

struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("an executor's queue is full");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_ends_no_connection() {
    let (connection, mut server, mut pushes) = connection(1024).await;
    let (mut first, mut second) =
        (Box::pin(connection.run(None, command("one "))), pin!(connection.run(None, command("two "))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&Arc::new(Panics).into())).is_pending());
    begun(second.as_mut()).await;
    assert_eq!(received(&mut server, 8).await, "one two ");
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!((second.await.unwrap(), first.await.unwrap()), (Value::Int(2), Value::Int(1)));
    let mut third = pin!(connection.run(None, command("three ")));
    begun(third.as_mut()).await;
    assert_eq!(received(&mut server, 6).await, "three ");
    drop(server);
    assert!(third.await.unwrap_err().is_io_error());
    assert_eq!(pushes.try_recv().unwrap(), PushKind::Disconnection);
}

/// Returns a connection over TCP, the runtime, which nobody drives meanwhile, and the server's end.
fn connection_over_tcp() -> (tokio::runtime::Runtime, Connection, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let to = crate::config::Server::from(url).destination().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connection = runtime.block_on(async {
        let halves = crate::backend::resp::socket::open(&to).await.unwrap();
        silent(halves)
    });
    let server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (runtime, connection, server)
}

#[test]
fn the_connection_is_closed_with_its_last_handle_though_its_task_is_not_polled() {
    let (_runtime, connection, mut server) = connection_over_tcp();
    drop(connection);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

/// A process that ends while an answer is on its way breaks the connection, and the server drops what it has
/// not read.
#[test]
fn a_runtime_that_ends_waits_for_the_answers_to_what_was_sent() {
    for added_before in [false, true] {
        let (runtime, connection, mut server) = connection_over_tcp();
        let asked = connection.call(None, 1, &command("one "), None);
        server.read_exact(&mut [0; 4]).unwrap();
        server.write_all(b":1\r\n").unwrap();
        while !connection.is_unread() {
            std::thread::yield_now();
        }
        if added_before {
            connection.send_last(command("last"));
        }
        drop(runtime);
        assert!(!connection.is_unread(), "{added_before}");
        drop((asked, connection));
    }
}

/// In this order: 1. One thread writes. 2. The runtime ends, and another thread adds the last end. 3. The
/// last handle is dropped.
#[test]
fn what_is_sent_last_while_another_thread_writes_is_written_by_that_one() {
    for goes_on in [false, true] {
        let (runtime, connection, mut server) = connection_over_tcp();
        let shared = connection.handle.shared.clone();
        let bytes = {
            let mut calls = lock(&shared.calls);
            calls.enter(None, 1, command("one ")).unwrap();
            calls.begin_write().unwrap()
        };
        connection.send_last(command("last"));
        drop(connection);
        if goes_on {
            let _task = shared.write(bytes);
        } else {
            // Like a task that would be polled again, and is dropped with its runtime instead.
            assert_eq!(shared.writer.try_write(&bytes).unwrap(), 4);
            lock(&shared.calls).written(bytes, 4, false);
            server.write_all(b":1\r\n").unwrap();
            drop(runtime);
        }
        let mut received = [0; 64];
        let mut length = 0;
        while !received[..length].ends_with(b"last") {
            let count = server.read(&mut received[length..]).unwrap();
            assert!(count > 0, "{goes_on}: it was closed after {length} bytes");
            length += count;
        }
    }
}

/// The task is asleep at the second call, and the caller can't write any of it.
#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_can_not_write_wakes_the_task() {
    let (connection, mut server, _pushes) = connection(1024).await;
    for _ in 0..2 {
        let mut asked = Box::pin(connection.run(None, command("one ")));
        begun(asked.as_mut()).await;
        assert_eq!(timeout(Duration::from_secs(9), received(&mut server, 4)).await.unwrap(), "one ");
        server.write_all(b":1\r\n").await.unwrap();
        assert_eq!(asked.await.unwrap(), Value::Int(1));
    }
}

/// In this order: 1. Two calls are under way. One of them is answered, and its future is not polled. 2. A
/// third one is made.
#[tokio::test(start_paused = true)]
async fn a_call_is_sent_though_one_that_was_answered_is_not_polled() {
    let (connection, mut server, _pushes) = connection(1024).await;
    let mut calls = ["one ", "two "].map(|text| Box::pin(connection.run(None, command(text))));
    for call in &mut calls {
        begun(call.as_mut()).await;
    }
    assert_eq!(received(&mut server, 8).await, "one two ");
    server.write_all(b":1\r\n").await.unwrap();
    tokio::task::yield_now().await;
    let mut third = Box::pin(connection.run(None, command("three ")));
    begun(third.as_mut()).await;
    assert_eq!(timeout(Duration::from_secs(9), received(&mut server, 6)).await.unwrap(), "three ");
}

type Call = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// Polls a call of the connection whenever the task of the connection reads.
struct Calling(DuplexStream, Arc<std::sync::Mutex<Option<Call>>>);

fn polled_once(call: &mut Call) -> Poll<RedisResult<Value>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

impl AsyncRead for Calling {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(call) = &mut *self.1.lock().unwrap() {
            assert!(polled_once(call).is_pending());
        }
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl AsyncWrite for Calling {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// In this order: 1. A call wakes the task, which writes it. 2. Another call enters before the task sleeps.
#[tokio::test(start_paused = true)]
async fn a_call_that_comes_while_the_task_is_polled_is_sent() {
    let (ours, mut server) = duplex(1024);
    let call = Arc::<std::sync::Mutex<Option<Call>>>::default();
    let stream = simulated(Calling(ours, call.clone()));
    let connection = silent(stream);
    tokio::task::yield_now().await;
    let other = connection.clone();
    *call.lock().unwrap() = Some(Box::pin(async move { other.run(None, command("two ")).await }));
    let mut one = Box::pin(connection.run(None, command("one ")));
    begun(one.as_mut()).await;
    assert_eq!(timeout(Duration::from_secs(9), received(&mut server, 8)).await.unwrap(), "one two ");
    drop(call.lock().unwrap().take());
}

#[tokio::test(start_paused = true)]
async fn a_push_and_the_end_are_reported_before_the_calls_after_them_have_an_outcome() {
    let (ours, mut server) = duplex(1024);
    let call = Arc::<std::sync::Mutex<Option<Call>>>::default();
    let (sender, mut pushes) = unbounded_channel();
    let asked = call.clone();
    let on_push = Box::new(move |info: PushInfo| {
        let pending = asked.lock().unwrap().as_mut().map(|call| polled_once(call).is_pending());
        drop(sender.send((info.kind, pending)));
    });
    let connection = Connection::silent(simulated(ours), on_push, std::process::id());
    let ask = || {
        let connection = connection.clone();
        let mut asked: Call = Box::pin(async move { connection.run(None, command("one ")).await });
        assert!(polled_once(&mut asked).is_pending());
        *call.lock().unwrap() = Some(asked);
    };
    ask();
    assert_eq!(received(&mut server, 4).await, "one ");
    server.write_all(b">1\r\n+invalidate\r\n:1\r\n").await.unwrap();
    assert_eq!(pushes.recv().await, Some((PushKind::Invalidate, Some(true))));
    ask();
    assert_eq!(received(&mut server, 4).await, "one ");
    drop(server);
    assert_eq!(pushes.recv().await, Some((PushKind::Disconnection, Some(true))));
    drop(call.lock().unwrap().take());
    assert_eq!(pushes.recv().await, None, "the end is reported once");
}

/// A stream that ends while the last handle of the connection is dropped.
struct Leaving(Arc<std::sync::Mutex<Option<Connection>>>);

impl AsyncRead for Leaving {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        drop(self.0.lock().unwrap().take());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Leaving {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Dropping the last handle ends the connection. The task may see that as a loss.
#[tokio::test]
async fn a_connection_that_is_closed_while_its_task_is_polled_reports_nothing() {
    let (last, (sender, mut pushes)) = (Arc::default(), unbounded_channel());
    let on_push = Box::new(move |info: PushInfo| drop(sender.send(info.kind)));
    let connection = Connection::silent(simulated(Leaving(Arc::clone(&last))), on_push, std::process::id());
    *last.lock().unwrap() = Some(connection);
    assert_eq!(pushes.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_ends_the_connection_after_the_answers_before_it() {
    let (connection, mut server, mut pushes) = connection(64).await;
    let mut one = Box::pin(connection.run(None, command("one ")));
    begun(one.as_mut()).await;
    let mut two = Box::pin(connection.run(None, command("two ")));
    begun(two.as_mut()).await;
    assert_eq!(received(&mut server, 8).await, "one two ");
    server.write_all(b":1\r\nHTTP/1.1 400 Bad Request\r\n").await.unwrap();
    assert_eq!(
        timeout(Duration::from_secs(9), two).await.unwrap().unwrap_err().kind(),
        redis::ErrorKind::Parse
    );
    assert_eq!(one.await.unwrap(), Value::Int(1));
    assert_eq!(pushes.recv().await, Some(PushKind::Disconnection));
}

/// A server that sends the reason why it hangs up, and reads this many bytes.
struct HangingUp(usize, &'static [u8]);

impl AsyncRead for HangingUp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        to.put_slice(std::mem::take(&mut self.1));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HangingUp {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match std::mem::take(&mut self.0) {
            0 => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            room => Poll::Ready(Ok(room)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn why_a_server_hangs_up_is_read_though_nothing_can_be_written_any_more() {
    for room in [0, 1] {
        let stream = || simulated(HangingUp(room, b"-ERR max number of clients reached\r\n"));
        for commands in [1, 3] {
            let started = Connection::start(stream(), Box::new(drop), commands, command("HELLO")).await;
            let (_, answers, all) = started.unwrap();
            assert!(matches!(answers[..], [Value::ServerError(_)]), "{answers:?}");
            assert_eq!(all.is_ok(), commands == 1, "{all:?}");
        }
    }
}
