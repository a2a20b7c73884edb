use std::future::poll_fn;
use std::pin::pin;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::{sleep, timeout};

use super::testing::{Server, accept, certificate};
use super::*;
use crate::backend::resp::connection::Connection;
use crate::backend::resp::testing::sealed;
use crate::backend::resp::{TOO_LATE, why_unsent};

const LONG: Duration = Duration::from_secs(9);

/// Returns both ends of a connection over a stream that takes this many bytes until the other side reads.
async fn connected(room: usize, longest: Duration) -> (Sealed, Server) {
    let (certificate, key) = certificate();
    let (ours, theirs) = duplex(room);
    let connector = connector(&Tls::new().authorities(&certificate)).unwrap();
    let mut accepting = pin!(accept(&certificate, &key, theirs));
    let mut connecting = pin!(handshake(connector, "localhost", ours));
    let mut accepted = None;
    let ours = loop {
        tokio::select! {
            biased;
            ours = &mut connecting => break ours.unwrap(),
            theirs = &mut accepting, if accepted.is_none() => accepted = Some(theirs.unwrap()),
        }
    };
    let mut stream = Sealed::new(ours, None, longest);
    // The server's last part of the handshake, for which there may be no room until the client reads.
    let theirs = poll_fn(|cx| match accepted.take() {
        Some(theirs) => Poll::Ready(theirs),
        None => {
            let mut none = [];
            let _ = Pin::new(&mut stream).poll_read(cx, &mut ReadBuf::new(&mut none));
            accepting.as_mut().poll(cx).map(Result::unwrap)
        }
    });
    let theirs = theirs.await;
    (stream, theirs)
}

async fn connection(room: usize) -> (Connection, Server) {
    let (stream, server) = connected(room, LONGEST).await;
    (Connection::silent(sealed(stream), Box::new(drop), std::process::id()), server)
}

fn command(length: usize) -> impl Fn(&mut Vec<u8>) {
    move |bytes| bytes.extend(std::iter::repeat_n(b'x', length))
}

/// Returns how many bytes arrive until there are no more.
async fn received(server: &mut Server) -> usize {
    let (mut count, mut bytes) = (0, vec![0; 1 << 16]);
    while let Ok(Ok(read @ 1..)) = timeout(LONG, server.read(&mut bytes)).await {
        count += read;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn calls_are_answered_in_their_order_over_tls() {
    let (connection, mut server) = connection(1 << 16).await;
    let (one, two) = (connection.run(None, command(10)), connection.run_all(None, 2, command(20)));
    let answers = async {
        let mut bytes = [0; 30];
        server.read_exact(&mut bytes).await.unwrap();
        for part in [b":1\r".as_slice(), b"\n:2\r\n:", b"3\r\n"] {
            server.write_all(part).await.unwrap();
            server.flush().await.unwrap();
        }
    };
    let (one, two, ()) = tokio::join!(one, two, answers);
    assert_eq!(one.unwrap(), redis::Value::Int(1));
    assert_eq!(two.unwrap(), [redis::Value::Int(2), redis::Value::Int(3)]);
    drop(connection);
}

/// The caller of a single call writes it itself: no task is woken for it.
#[tokio::test(start_paused = true)]
async fn a_call_over_tls_is_sent_in_its_first_poll() {
    let (connection, mut server) = connection(1 << 16).await;
    let mut call = pin!(connection.run(None, command(10)));
    assert!(futures::poll!(call.as_mut()).is_pending());
    let mut bytes = [0; 10];
    assert!(matches!(futures::poll!(pin!(server.read_exact(&mut bytes))), Poll::Ready(Ok(10))));
}

/// In this order: 1. The stream is full, and the TLS library has a part of a call. 2. Deadlines pass. 3. The
/// server reads again.
#[tokio::test(start_paused = true)]
async fn a_full_stream_over_tls_sends_nothing_that_is_too_late_or_given_up() {
    let (connection, mut server) = connection(4096).await;
    let large = 3 * RECORD;
    let mut first = Box::pin(connection.run(None, command(large)));
    assert!(timeout(Duration::ZERO, first.as_mut()).await.is_err());
    let deadline = Some(Instant::now() + Duration::from_secs(1));
    let mut late = Box::pin(connection.run(deadline, command(100)));
    let mut left = Box::pin(connection.run(None, command(100)));
    assert!(timeout(Duration::ZERO, late.as_mut()).await.is_err());
    assert!(timeout(Duration::ZERO, left.as_mut()).await.is_err());
    sleep(Duration::from_secs(2)).await;
    drop(left);
    let (count, late) = tokio::join!(received(&mut server), late);
    assert_eq!(count, large, "all of the call that has begun, and nothing else");
    assert_eq!(why_unsent(&late.unwrap_err()), Some(TOO_LATE));
    drop(first);
    // The connection still works.
    let mut next = Box::pin(connection.run(None, command(50)));
    assert!(timeout(Duration::ZERO, next.as_mut()).await.is_err());
    assert_eq!(received(&mut server).await, 50);
}

/// In this order: 1. The TLS library has data that the stream has no room for. 2. The process is stopped for
/// longer than a socket would keep it. 3. There is room.
#[tokio::test(start_paused = true)]
async fn what_has_waited_for_room_for_too_long_is_not_sent() {
    let (stream, mut server) = connected(4096, Duration::from_secs(5)).await;
    let part = vec![0; RECORD];
    let taken = poll_fn(|cx| stream.poll_write(cx, &part)).await.unwrap();
    assert_eq!(taken, RECORD);
    assert!(stream.is_owing());
    assert!(stream.try_write(&part).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    sleep(Duration::from_secs(6)).await;
    let mut bytes = vec![0; RECORD];
    let read = server.read(&mut bytes);
    assert!(timeout(LONG, read).await.is_err(), "no whole record has come");
    for _ in 0..2 {
        let flushed = timeout(LONG, poll_fn(|cx| stream.poll_flush(cx))).await;
        assert_eq!(flushed.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
    assert!(stream.is_owing());
}

#[tokio::test(start_paused = true)]
async fn every_byte_comes_once_and_in_order_however_little_room_there_is() {
    for room in [100, 5000, RECORD + 100] {
        let (stream, mut server) = connected(room, LONGEST).await;
        let sent: Vec<u8> = (0..50_000_u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let write = async {
            let mut rest = &sent[..];
            while !rest.is_empty() {
                // Alternates between the ways in which callers and the task write.
                let count = match stream.try_write(rest) {
                    Ok(count) => count,
                    Err(_) => poll_fn(|cx| stream.poll_write(cx, rest)).await.unwrap(),
                };
                rest = &rest[count..];
            }
            poll_fn(|cx| stream.poll_flush(cx)).await.unwrap();
        };
        let mut came = vec![0; sent.len()];
        let read = async { server.read_exact(&mut came).await.unwrap() };
        tokio::join!(write, read);
        assert!(came == sent, "{room}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_over_tls_fails_what_is_under_way() {
    let (connection, server) = connection(1 << 16).await;
    let mut call = Box::pin(connection.run(None, command(10)));
    assert!(timeout(Duration::ZERO, call.as_mut()).await.is_err());
    drop(server);
    let error = timeout(LONG, call).await.unwrap().unwrap_err();
    assert!(error.is_io_error() && why_unsent(&error).is_none(), "{error}");
    let error = connection.run(None, command(10)).await.unwrap_err();
    assert!(why_unsent(&error).is_some(), "{error}");
}

/// A middlebox has changed what arrives.
#[tokio::test(start_paused = true)]
async fn garbage_in_a_connection_over_tls_ends_it() {
    let (certificate, key) = certificate();
    let ((ours, mut middle), (far, theirs)) = (duplex(1 << 16), duplex(1 << 16));
    let connector = connector(&Tls::new().authorities(&certificate)).unwrap();
    let (garbage, mut garbled) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut far = far;
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut middle, &mut far) => {}
            _ = &mut garbled => {
                middle.write_all(&[23, 3, 3, 0, 40]).await.unwrap();
                middle.write_all(&[7; 40]).await.unwrap();
                std::future::pending::<()>().await;
            }
        }
    });
    let (ours, theirs) =
        tokio::join!(handshake(connector, "localhost", ours), accept(&certificate, &key, theirs));
    let (_server, stream) = (theirs.unwrap(), Sealed::new(ours.unwrap(), None, LONGEST));
    let connection = Connection::silent(sealed(stream), Box::new(drop), std::process::id());
    let mut call = Box::pin(connection.run(None, command(10)));
    assert!(timeout(Duration::ZERO, call.as_mut()).await.is_err());
    garbage.send(()).unwrap();
    assert!(timeout(LONG, call).await.unwrap().unwrap_err().is_io_error());
}

async fn refusal(tls: Tls, host: &str) -> String {
    let (certificate, key) = certificate();
    let (ours, theirs) = duplex(1 << 16);
    let connector = connector(&tls).unwrap();
    let (ours, _) = tokio::join!(handshake(connector, host, ours), accept(&certificate, &key, theirs));
    ours.err().unwrap().to_string()
}

#[tokio::test]
async fn a_certificate_is_verified_unless_the_settings_ask_for_none() {
    let (other, _) = certificate();
    let text = refusal(Tls::new().authorities(&other), "localhost").await;
    assert!(text.to_lowercase().contains("certificate"), "{text}");
    let (certificate, key) = certificate();
    for (tls, host, is_trusted) in [
        (Tls::new().authorities(&certificate), "localhost", true),
        (Tls::new().authorities(&certificate), "other.invalid", false),
        (Tls::new().authorities(&other).insecure(), "other.invalid", true),
        (Tls::new().insecure(), "localhost", true),
    ] {
        let (ours, theirs) = duplex(1 << 16);
        let connector = connector(&tls).unwrap();
        let (ours, _) = tokio::join!(handshake(connector, host, ours), accept(&certificate, &key, theirs));
        assert_eq!(ours.is_ok(), is_trusted, "{host}: {tls:?}");
    }
}

#[tokio::test]
async fn who_does_not_speak_tls_is_reported_as_such() {
    let connector = || connector(&Tls::new().insecure()).unwrap();
    let (ours, mut theirs) = duplex(1 << 16);
    let answers = async {
        theirs.write_all(b"-ERR Protocol error: invalid request, as of some proxy\r\n").await.unwrap();
        theirs
    };
    let (ours, _theirs) = tokio::join!(handshake(connector(), "localhost", ours), answers);
    let text = ours.err().unwrap().to_string();
    assert!(text.contains(NO_TLS), "{text}");
    let (ours, theirs) = duplex(1 << 16);
    drop(theirs);
    let error = handshake(connector(), "localhost", ours).await.err().unwrap();
    assert!(error.is_io_error(), "{error}");
}

#[test]
fn a_file_is_read_at_each_connection() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| dir.path().join(name));
    let tls = Tls::new().authorities_file(&ca).client_certificate_files(&cert, &key);
    let missing = connector(&tls).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::InvalidClientConfig);
    assert!(missing.to_string().contains("ca"), "{missing}");
    let (pem, secret) = certificate();
    std::fs::write(&ca, &pem).unwrap();
    std::fs::write(&cert, &pem).unwrap();
    std::fs::write(&key, &secret).unwrap();
    connector(&tls).unwrap();
    std::fs::write(&key, "secret").unwrap();
    let wrong = connector(&tls).err().unwrap();
    assert!(wrong.to_string().contains("private key") && !wrong.to_string().contains("secret"), "{wrong}");
}
