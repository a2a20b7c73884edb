//! What a connection promises, over each kind of stream that connects to a server.

use std::io::ErrorKind;

use super::*;
use crate::backend::resp::socket;
use crate::config::{Destination, Server};

trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for S {}

/// The server's end.
type Far = Box<dyn AsyncStream>;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp,
    #[cfg(unix)]
    Unix,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    Tls,
}

const KINDS: &[Kind] = &[
    Kind::Tcp,
    #[cfg(unix)]
    Kind::Unix,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    Kind::Tls,
];

const LONG: Duration = Duration::from_secs(60);

impl Kind {
    async fn connection(self) -> (Connection, Far, UnboundedReceiver<PushKind>) {
        let (halves, far) = self.connected().await;
        let (sender, pushes) = unbounded_channel();
        let on_push = Box::new(move |info: PushInfo| drop(sender.send(info.kind)));
        let connection = Connection::silent(halves, on_push, std::process::id());
        (connection, far, pushes)
    }

    async fn connected(self) -> ((Reader, Writer), Far) {
        match self {
            Kind::Tcp => {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let to = to(&format!("redis://{}", listener.local_addr().unwrap()));
                let (halves, far) = tokio::join!(socket::open(&to), listener.accept());
                (halves.unwrap(), Box::new(far.unwrap().0))
            }
            #[cfg(unix)]
            Kind::Unix => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("redis");
                let listener = tokio::net::UnixListener::bind(&path).unwrap();
                let to = to(&format!("unix://{}", path.display()));
                let (halves, far) = tokio::join!(socket::open(&to), listener.accept());
                (halves.unwrap(), Box::new(far.unwrap().0))
            }
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            Kind::Tls => {
                use crate::backend::resp::tls::testing::{accept, certificate};
                let (certificate, key) = certificate();
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let url = format!("rediss://localhost:{}", listener.local_addr().unwrap().port());
                let given = Server::from(url).tls(crate::Tls::new().authorities(&certificate));
                let to = given.destination().unwrap();
                let far = async {
                    let socket = listener.accept().await.unwrap().0;
                    accept(&certificate, &key, socket).await.unwrap()
                };
                let (halves, far) = tokio::join!(socket::open(&to), far);
                (halves.unwrap(), Box::new(far))
            }
        }
    }
}

fn to(url: &str) -> Destination {
    Server::from(url).destination().unwrap()
}

async fn received(far: &mut Far, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(LONG, far.read_exact(&mut bytes)).await.unwrap().unwrap();
    bytes
}

async fn answers(far: &mut Far, text: &str) {
    far.write_all(text.as_bytes()).await.unwrap();
    far.flush().await.unwrap();
}

#[tokio::test]
async fn commands_are_answered_in_their_order_over_each_kind_of_stream() {
    for kind in KINDS {
        let (connection, mut far, mut pushes) = kind.connection().await;
        let (mut one, mut two) =
            (pin!(connection.run(None, command("one "))), pin!(connection.run_all(None, 2, command("two "))));
        begun(one.as_mut()).await;
        begun(two.as_mut()).await;
        assert_eq!(received(&mut far, 8).await, b"one two ", "{kind:?}");
        for part in [":1\r", "\n:2\r\n>1\r\n+inva", "lidate\r\n:3\r\n"] {
            answers(&mut far, part).await;
        }
        assert_eq!(timeout(LONG, two).await.unwrap().unwrap(), [Value::Int(2), Value::Int(3)], "{kind:?}");
        assert_eq!(pushes.try_recv().unwrap(), PushKind::Invalidate, "{kind:?}");
        assert_eq!(one.await.unwrap(), Value::Int(1), "{kind:?}");
    }
}

#[tokio::test]
async fn calls_fail_when_the_server_hangs_up_over_each_kind_of_stream() {
    for kind in KINDS {
        let (connection, mut far, mut pushes) = kind.connection().await;
        let mut sent = pin!(connection.run(None, command("sent")));
        begun(sent.as_mut()).await;
        assert_eq!(received(&mut far, 4).await, b"sent", "{kind:?}");
        drop(far);
        let error = timeout(LONG, sent).await.unwrap().unwrap_err();
        assert!(error.is_io_error() && why_unsent(&error).is_none(), "{kind:?}: {error}");
        assert_eq!(pushes.recv().await, Some(PushKind::Disconnection), "{kind:?}");
        assert!(why_unsent(&connection.run(None, command("later")).await.unwrap_err()).is_some(), "{kind:?}");
    }
}

/// A server may send data of its own, as one over TLS does.
async fn until_read(connection: &Connection) {
    let read = async {
        while connection.is_unread() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, read).await.unwrap();
}

/// The task of the connection is not polled while this one does not wait.
#[tokio::test]
async fn what_has_come_is_seen_before_the_task_reads_it_over_each_kind_of_stream() {
    for kind in KINDS {
        let (connection, mut far, _pushes) = kind.connection().await;
        let mut sent = pin!(connection.run(None, command("sent")));
        begun(sent.as_mut()).await;
        assert_eq!(received(&mut far, 4).await, b"sent", "{kind:?}");
        until_read(&connection).await;
        answers(&mut far, ":1\r\n").await;
        let began = std::time::Instant::now();
        while !connection.is_unread() {
            assert!(began.elapsed() < LONG, "{kind:?}");
            std::thread::yield_now();
        }
        assert_eq!(timeout(LONG, sent).await.unwrap().unwrap(), Value::Int(1), "{kind:?}");
        until_read(&connection).await;
        drop(far);
    }
}

#[tokio::test]
async fn a_connection_ends_with_its_last_handle_over_each_kind_of_stream() {
    for kind in KINDS {
        let (connection, mut far, mut pushes) = kind.connection().await;
        drop(connection);
        match timeout(LONG, far.read(&mut [0])).await.unwrap() {
            Ok(count) => assert_eq!(count, 0, "{kind:?}"),
            // An end over TLS that was not announced.
            Err(error) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{kind:?}: {error}"),
        }
        assert_eq!(timeout(LONG, pushes.recv()).await.unwrap(), None, "{kind:?}");
    }
}

/// In this order: 1. The server reads nothing, and a call fills the stream. 2. A second call waits until its
/// deadline, and a third one is dropped. 3. The server reads again.
#[tokio::test]
async fn a_full_stream_of_each_kind_sends_nothing_that_was_given_up_or_is_too_late() {
    // More than a system buffers for a socket whose other side does not read.
    const LARGE: usize = 32 << 20;
    for kind in KINDS {
        let (connection, mut far, _pushes) = kind.connection().await;
        let mut large = Box::pin(connection.run(None, |bytes| bytes.resize(LARGE, b'x')));
        begun(large.as_mut()).await;
        let deadline = Instant::now() + Duration::from_millis(20);
        let mut late = Box::pin(connection.run(Some(deadline), command("late")));
        begun(late.as_mut()).await;
        let mut dropped = Box::pin(connection.run(None, command("dropped")));
        begun(dropped.as_mut()).await;
        drop(dropped);
        tokio::time::sleep_until(deadline).await;
        assert!(received(&mut far, LARGE).await.iter().all(|byte| *byte == b'x'), "{kind:?}");
        assert_eq!(why_unsent(&timeout(LONG, late).await.unwrap().unwrap_err()), Some(TOO_LATE), "{kind:?}");
        let mut next = Box::pin(connection.run(None, command("next")));
        begun(next.as_mut()).await;
        assert_eq!(received(&mut far, 4).await, b"next", "{kind:?}");
        answers(&mut far, ":1\r\n:2\r\n").await;
        assert_eq!(timeout(LONG, large).await.unwrap().unwrap(), Value::Int(1), "{kind:?}");
        assert_eq!(timeout(LONG, next).await.unwrap().unwrap(), Value::Int(2), "{kind:?}");
    }
}
