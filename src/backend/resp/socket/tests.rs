use std::time::Duration;

use redis::io::tcp::socket2::TcpKeepalive;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::config::Server;

fn of(url: String) -> Destination {
    Server::from(url).destination().unwrap()
}

#[tokio::test]
async fn a_stream_has_the_settings_of_its_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probe = Duration::from_secs(7);
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(9));
    let to = of(format!("redis://{}", listener.local_addr().unwrap()));
    let (_reader, writer) = open(&to.with_tcp_settings(settings)).await.unwrap();
    let Writer::Tcp(half) = &writer else { panic!("it is a TCP socket") };
    let socket = SockRef::from(half.as_ref());
    assert!(half.as_ref().nodelay().unwrap() && socket.keepalive().unwrap());
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(9)));
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_keepalive_time().unwrap(), probe);
}

#[tokio::test]
async fn of_several_addresses_of_a_name_one_is_enough() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listens = listener.local_addr().unwrap();
    // Bound, so that no other process takes the port, but not listened on.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refuses = silent.local_addr().unwrap();
    for addresses in [[listens, refuses], [refuses, listens]] {
        assert_eq!(connect_to_any(addresses.into()).await.unwrap().peer_addr().unwrap(), listens);
    }
    for addresses in [vec![refuses], vec![refuses, refuses]] {
        assert!(connect_to_any(addresses).await.unwrap_err().is_connection_refusal());
    }
    assert_eq!(connect_to_any(Vec::new()).await.unwrap_err().kind(), ErrorKind::InvalidClientConfig);
}

#[tokio::test]
async fn a_server_is_reached_by_ipv6_and_over_a_unix_socket() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let port = listener.local_addr().unwrap().port();
    let to = of(format!("redis://[::1]:{port}"));
    assert!(matches!(open(&to).await.unwrap().1, Writer::Tcp(_)));
    #[cfg(unix)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redis");
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        let to = of(format!("redis+unix://{}", path.display()));
        assert!(matches!(open(&to).await.unwrap().1, Writer::Unix(_)));
    }
}

/// The write must not be taken for one to a socket without room, which would be polled without end.
#[tokio::test]
async fn a_write_to_a_socket_that_was_shut_down_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = of(format!("redis://{}", listener.local_addr().unwrap()));
    let (_reader, writer) = open(&to).await.unwrap();
    writer.shut_down();
    let write = std::future::poll_fn(|cx| writer.poll_write(cx, b"late"));
    let written = tokio::time::timeout(Duration::from_secs(20), write).await.unwrap();
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// The write completes once the other side has read, without any other event.
#[tokio::test]
async fn a_write_to_a_socket_without_room_waits_for_room() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = of(format!("redis://{}", listener.local_addr().unwrap()));
    let (_reader, writer) = open(&to).await.unwrap();
    let mut theirs = listener.accept().await.unwrap().0;
    let part = vec![0; 1 << 16];
    while writer.try_write(&part).is_ok() {}
    let reads =
        tokio::spawn(
            async move { while theirs.read(&mut [0; 1 << 16]).await.is_ok_and(|count| count > 0) {} },
        );
    for _ in 0..100 {
        let write = std::future::poll_fn(|cx| writer.poll_write(cx, &part));
        assert!(tokio::time::timeout(Duration::from_secs(20), write).await.unwrap().unwrap() > 0);
    }
    drop((_reader, writer));
    reads.await.unwrap();
}
