//! Names that work, and names that don't.

use std::time::Duration;

use nestlock::{Error, ErrorKind, Mutex};

use crate::support::locks;
use crate::support::server::Server;

/// Makes every call that would send a command. Returns their errors.
async fn all_calls(mutex: &Mutex) -> Vec<Error> {
    vec![
        mutex.lock().await.unwrap_err(),
        mutex.lock().within(Duration::ZERO).await.unwrap_err(),
        mutex.try_lock().await.unwrap_err(),
        mutex.run(async |_| {}).await.unwrap_err(),
        mutex.try_lock().run(async |_| {}).await.unwrap_err(),
        mutex.is_locked().await.unwrap_err(),
        mutex.remaining_lease().await.unwrap_err(),
        mutex.force_release().await.unwrap_err(),
    ]
}

#[tokio::test]
async fn a_bad_name_is_reported_at_the_first_use_and_nothing_is_sent() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    server.reset_commands_run().await;
    let long = "x".repeat(1_025);
    let wide = "ü".repeat(513);
    for (name, words) in [
        ("", ["empty", "name what it guards"]),
        (&long, ["1025 bytes", "shorter"]),
        (&wide, ["1026 bytes", "shorter"]),
        ("}stock", ["`}stock`", "begins with `}`"]),
        ("}\u{1b}[2J\n", ["`}\\u{1b}[2J\\n`", "begin it with another character"]),
    ] {
        let mutex = locks.mutex(name);
        assert!(!mutex.is_held() && mutex.hold_count() == 0 && mutex.name() == name);
        for error in all_calls(&mutex).await {
            let text = error.to_string();
            assert_eq!((error.kind(), error.lock()), (ErrorKind::InvalidInput, Some(name)), "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.len() < 600 && !text.chars().any(char::is_control), "{text}");
        }
    }
    let run = server.commands_run().await;
    assert!(!run.keys().any(|command| command.starts_with("eval")), "{run:?}");
}

#[tokio::test]
async fn a_name_is_escaped_and_cut_in_messages() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let name = format!("a\n\u{1b}[31m`{}", "x".repeat(1_000));
    server.ask::<()>(&["RPUSH", &name, "mine"]).await;
    let error = locks.mutex(&name).lock().await.unwrap_err();
    let text = error.to_string();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::NotALock, Some(&*name)));
    assert!(text.starts_with("lock `a\\n\\u{1b}[31m") && text.contains("…"), "{text}");
    assert!(text.len() < 400 && !text.chars().any(char::is_control), "{text}");
}
