use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use redis::RedisError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::resp::{self, why_unsent};
use crate::backend::testing::commands;
use crate::wire::Action;

/// 1. The socket is full. 2. Deadlines pass. 3. The server reads again.
#[tokio::test(start_paused = true)]
async fn nothing_that_waits_for_room_is_sent_after_its_deadline() {
    let (ours, mut server) = duplex(4);
    let commands = &commands(ours).await;
    let ping = &redis::cmd("PING");
    let mut first = Box::pin(commands.send(ping, None));
    assert!(timeout(Duration::ZERO, first.as_mut()).await.is_err());
    let deadline = Instant::now() + Duration::from_secs(1);
    let (call, mut pipeline) = (&Call::of("stock", "", Action::Look), redis::pipe());
    pipeline.add_command(ping.clone());
    let pipeline = &pipeline;
    type Late<'a> = Pin<Box<dyn Future<Output = Option<RedisError>> + 'a>>;
    let late: [Late; 4] = [
        Box::pin(async { commands.send(ping, Some(deadline)).await.err() }),
        Box::pin(async { commands.run(call, By::Hash, deadline).await.err() }),
        Box::pin(async { commands.run(call, By::Text, deadline).await.err() }),
        Box::pin(async { commands.send_all(pipeline, Some(deadline)).await.err() }),
    ];
    let mut waiting = Vec::new();
    for mut call in late {
        assert!(timeout(Duration::ZERO, call.as_mut()).await.is_err());
        waiting.push(call);
    }
    sleep(Duration::from_secs(2)).await;
    let sent = "*1\r\n$4\r\nPING\r\n".len();
    server.read_exact(&mut vec![0; sent]).await.unwrap();
    for call in waiting {
        let error = timeout(Duration::from_secs(9), call).await.unwrap().unwrap();
        assert_eq!(why_unsent(&error), Some(TOO_LATE));
    }
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err(), "no more was sent");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_that_is_called_at_its_deadline() {
    let (ours, mut server) = duplex(1024);
    let commands = commands(ours).await;
    let (now, call) = (Instant::now(), Call::of("stock", "", Action::Look));
    for error in [
        commands.send(&redis::cmd("PING"), Some(now)).await.unwrap_err(),
        commands.run(&call, By::Hash, now).await.unwrap_err(),
        commands.send_all(&redis::pipe(), Some(now)).await.unwrap_err(),
    ] {
        assert_eq!(why_unsent(&error), Some(TOO_LATE));
    }
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err());
}

/// A proxy may refuse it, for example.
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
    let (connected, _server) = tokio::join!(Commands::connect(&to, Box::new(drop)), refuse);
    let error = connected.err().unwrap();
    let text = format!("{error} {error:?}");
    assert!(text.contains("is not shown") && !text.contains("hunter2"), "{text}");
}

/// The parent would take the answer for that to a command of its own.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_over_the_connection_of_a_parent_process() {
    let (ours, mut server) = duplex(1024);
    let commands = Commands::over(resp::open_copied(ours));
    let (ping, soon) = (redis::cmd("PING"), Duration::from_secs(9));
    let one = timeout(soon, commands.send(&ping, None)).await.unwrap().unwrap_err();
    let many = timeout(soon, commands.send_all(redis::pipe().cmd("PING"), None)).await.unwrap().unwrap_err();
    assert_eq!([one, many].map(|error| why_unsent(&error)), [Some(COPIED); 2]);
    assert!(timeout(Duration::from_secs(9), server.read(&mut [0])).await.is_err(), "nothing was sent");
}
