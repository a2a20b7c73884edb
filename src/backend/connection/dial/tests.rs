use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::Server;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[test]
fn a_connection_over_tls_has_time_for_its_handshakes_however_short_the_node_timeout_is() {
    let limit = |url: &str, millis| {
        let to = Server::from(url).destination().unwrap();
        connect_limit(Some(&to), Duration::from_millis(millis)).as_millis()
    };
    assert_eq!([limit("redis://host", 50), limit("redis://host", 1500)], [1000, 1500]);
    assert_eq!([limit("rediss://host", 50), limit("rediss://host", 6000)], [4000, 6000]);
}

#[test]
fn an_error_that_repeats_the_password_is_not_shown() {
    let to = Server::from("redis://bob:hunter2@localhost").destination().unwrap();
    let server = "localhost:6379".into();
    for (code, text, kind, shown) in [
        ("WRONGPASS", "HELLO 3 AUTH bob hunter2", crate::ErrorKind::Denied, "password is wrong"),
        ("ERR", "no such thing: hunter2", crate::ErrorKind::Unavailable, "is not shown"),
        ("ERR", "no such thing", crate::ErrorKind::Unavailable, "no such thing"),
    ] {
        let error = redis::make_extension_error(code.to_owned(), Some(text.to_owned()));
        let error = redis_error::unreachable(without_credentials(error, &to), &server);
        let text = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(shown) && !text.contains("hunter2"), "{text}");
    }
}

/// A proxy may refuse the connection, for example.
#[tokio::test]
async fn a_refused_connection_does_not_show_a_password_that_the_server_repeats() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://bob:hunter2@{}/?protocol=resp3", listener.local_addr().unwrap());
    let to = crate::config::Server::from(url).destination().unwrap();
    let refuse = async {
        let (mut server, _) = listener.accept().await.unwrap();
        assert!(server.read(&mut [0; 1024]).await.unwrap() > 0);
        server.write_all(b"-ERR no such thing: AUTH bob hunter2\r\n+OK\r\n+OK\r\n").await.unwrap();
        server
    };
    let (connected, _server) = tokio::join!(Connection::connect(&to, Box::new(drop)), refuse);
    let error = connected.err().unwrap();
    let text = format!("{error} {error:?}");
    assert!(text.contains("is not shown") && !text.contains("hunter2"), "{text}");
}
