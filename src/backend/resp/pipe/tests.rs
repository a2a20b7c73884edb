use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::resp::socket::simulated;
use crate::backend::resp::{TOO_LATE, why_unsent};

mod stress;

/// A pipe over a stream that takes so many bytes until the other side reads; and the kinds of its pushes.
async fn pipe(room: usize) -> (Pipe, DuplexStream, UnboundedReceiver<PushKind>) {
    let (ours, theirs) = duplex(room);
    let (sender, pushes) = unbounded_channel();
    let on_push = Box::new(move |info: PushInfo| drop(sender.send(info.kind)));
    let (pipe, answers) = Pipe::start(simulated(ours), on_push, 0, |_| ()).await.unwrap();
    assert!(answers.is_empty());
    (pipe, theirs, pushes)
}

fn command(text: &str) -> impl FnOnce(&mut Vec<u8>) {
    |bytes| bytes.extend_from_slice(text.as_bytes())
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
    let (pipe, mut server, mut pushes) = pipe(1024).await;
    let (mut one, mut two) =
        (pin!(pipe.send(None, command("one "))), pin!(pipe.send_all(None, 2, command("two "))));
    begun(one.as_mut()).await;
    begun(two.as_mut()).await;
    assert_eq!(received(&mut server, 8).await, "one two ");
    server.write_all(b":1\r\n:2\r\n>1\r\n+invalidate\r\n:3\r\n").await.unwrap();
    assert_eq!(two.await.unwrap(), [Value::Int(2), Value::Int(3)]);
    assert_eq!(pushes.try_recv().unwrap(), PushKind::Invalidate, "before the answer behind it");
    assert_eq!(one.await.unwrap(), Value::Int(1));
}

/// 1. The server does not read. 2. A call waits for room until its deadline, another one is dropped. 3. The server reads again.
#[tokio::test(start_paused = true)]
async fn a_full_socket_sends_nothing_that_was_given_up_or_is_too_late() {
    let (pipe, mut server, _pushes) = pipe(4).await;
    let deadline = Some(Instant::now() + Duration::from_secs(1));
    let mut first = Box::pin(pipe.send(None, command("first ")));
    begun(first.as_mut()).await;
    let mut late = Box::pin(pipe.send(deadline, command("late ")));
    begun(late.as_mut()).await;
    let mut dropped = Box::pin(pipe.send(None, command("dropped ")));
    begun(dropped.as_mut()).await;
    let mut last = Box::pin(pipe.send(None, command("last ")));
    begun(last.as_mut()).await;
    drop(dropped);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(received(&mut server, 11).await, "first last ");
    assert_eq!(why_unsent(&late.await.unwrap_err()), Some(TOO_LATE));
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!((first.await.unwrap(), last.await.unwrap()), (Value::Int(1), Value::Int(2)));
}

#[tokio::test(start_paused = true)]
async fn calls_fail_when_the_server_hangs_up_behind_its_report() {
    let (pipe, mut server, mut pushes) = pipe(4).await;
    let (mut sent, mut unsent) =
        (pin!(pipe.send(None, command("sent"))), pin!(pipe.send(None, command("unsent"))));
    begun(sent.as_mut()).await;
    begun(unsent.as_mut()).await;
    assert_eq!(received(&mut server, 2).await, "se");
    drop(server);
    assert!(sent.await.unwrap_err().is_io_error());
    assert_eq!(pushes.try_recv().unwrap(), PushKind::Disconnection);
    assert!(why_unsent(&pipe.send(None, command("later")).await.unwrap_err()).is_some());
    assert!(unsent.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_to_nothing_is_left() {
    let (pipe, mut server, mut pushes) = pipe(64).await;
    server.write_all(b":1\r\n").await.unwrap();
    assert_eq!(pushes.recv().await, Some(PushKind::Disconnection));
    assert!(pipe.send(None, command("later")).await.is_err());
    drop(pipe);
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "it was closed");
}

#[tokio::test(start_paused = true)]
async fn the_connection_is_closed_with_its_last_handle_and_reports_nothing() {
    let (pipe, mut server, mut pushes) = pipe(64).await;
    let other = pipe.clone();
    drop(pipe);
    let mut asked = Box::pin(other.send(None, command("one ")));
    begun(asked.as_mut()).await;
    assert_eq!(received(&mut server, 4).await, "one ");
    server.write_all(b"+OK\r\n").await.unwrap();
    assert_eq!(asked.as_mut().await.unwrap(), Value::Okay);
    drop(asked);
    drop(other);
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(pushes.recv().await, None);
}

/// It may be the reason why the server hangs up.
#[tokio::test(start_paused = true)]
async fn what_a_server_sends_to_whoever_connects_is_the_answer_to_the_first_command() {
    let (ours, mut server) = duplex(64);
    server.write_all(b"-ERR max number of clients reached\r\n").await.unwrap();
    let (_, answers) = Pipe::start(simulated(ours), Box::new(drop), 1, command("HELLO")).await.unwrap();
    assert!(matches!(answers[..], [Value::ServerError(_)]), "{answers:?}");
}

#[test]
fn calls_fail_when_the_runtime_of_the_connection_ends() {
    let (ours, _server) = duplex(64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let started = runtime.block_on(Pipe::start(simulated(ours), Box::new(drop), 0, |_| ()));
    let pipe = started.unwrap().0;
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(pipe.send(None, command("late"))).is_err());
}

/// A waker that holds a call.
struct Holder {
    _call: std::sync::Mutex<Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>>,
}

impl std::task::Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

/// The task of some executors is owned by its wakers: with the last of them its future is dropped, and with it other calls.
#[tokio::test(start_paused = true)]
async fn a_waker_may_own_another_call() {
    let (pipe, _server, _pushes) = pipe(1024).await;
    let holder = || {
        let pipe = pipe.clone();
        let mut held: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { pipe.send(None, command("held ")).await });
        assert!(held.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Waker::from(Arc::new(Holder { _call: held.into() }))
    };
    let (ended, end) = std::sync::mpsc::channel();
    let wakers = [holder(), holder()];
    let pipe = pipe.clone();
    std::thread::spawn(move || {
        let mut future = Box::pin(pipe.send(None, command("one ")));
        for waker in wakers {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(future);
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(20)).expect("it waits for itself");
}

#[test]
fn the_connection_is_closed_with_its_last_handle_though_its_task_is_not_polled() {
    use std::io::Read;

    use redis::IntoConnectionInfo;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let info = format!("redis://{}", listener.local_addr().unwrap()).into_connection_info().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pipe = runtime.block_on(async {
        let halves = crate::backend::resp::socket::open(&info).await.unwrap();
        Pipe::start(halves, Box::new(drop), 0, |_| ()).await.unwrap().0
    });
    let mut server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    drop(pipe);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}
