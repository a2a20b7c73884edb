//! What tests run as processes of their own, by `support::process`. Each is ignored: by itself it is no test.

use std::time::Duration;

use crate::support;
use crate::support::process;
use crate::support::server::Server;

#[tokio::test]
#[ignore = "a part of other tests"]
async fn echo() {
    if !process::is_worker() {
        return;
    }
    process::tell(&format!("hello {}", process::param("whom")));
    while let Some(line) = process::heard().await {
        if line == "bye" {
            return;
        }
        process::tell(&line);
    }
}

#[tokio::test]
#[ignore = "a part of other tests"]
async fn server_owner() {
    if !process::is_worker() {
        return;
    }
    let server = Server::start().await;
    server.freeze();
    process::tell(&server.pid().to_string());
    process::tell(server.dir().to_str().unwrap());
    process::heard().await;
}

/// Its `main` is left with a live guard, in one of several ways.
#[test]
#[ignore = "a part of other tests"]
fn ends_with_a_guard() {
    static KEPT: std::sync::Mutex<Option<nestlock::Guard>> = std::sync::Mutex::new(None);
    if !process::is_worker() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let how = process::param("how");
    let (locks, guard) = runtime.block_on(async {
        let locks = support::builder(&process::param("url")).lease(Duration::from_secs(60)).connect().await;
        let locks = locks.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        process::tell("holding");
        (locks, guard)
    });
    match &*how {
        "in_block_on" => runtime.block_on(async { drop(guard) }),
        "after_the_runtime" => {
            drop(runtime);
            drop(guard);
        }
        "in_a_static" => *KEPT.lock().unwrap() = Some(guard),
        "forgotten" => std::mem::forget(guard),
        "exit" => std::process::exit(0),
        how => panic!("unknown: {how}"),
    }
    drop(locks);
}

/// Takes a lock over TLS, releases it, and waits for it.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn locks_over_tls() {
    if !process::is_worker() {
        return;
    }
    let locks = support::locks(&process::param("url")).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    process::tell("holding");
    assert_eq!(process::heard().await.as_deref(), Some("release"));
    guard.release().await.unwrap();
    process::tell("released");
    assert_eq!(process::heard().await.as_deref(), Some("wait"));
    let guard = stock.lock().await.unwrap();
    process::tell("holding");
    guard.release().await.unwrap();
    locks.close().await.unwrap();
}

/// Takes `stock` with a short lease, tells its field, and on a word tells what became of the hold.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn lease_holder() {
    if !process::is_worker() {
        return;
    }
    let builder = crate::support::builder(&process::param("url"));
    let stock = builder.lease(std::time::Duration::from_secs(2)).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    process::tell(guard.field());
    process::heard().await;
    process::tell(&format!("lost {}", guard.is_lost()));
    process::tell(&format!("re-entry {:?}", stock.lock().await.unwrap_err().kind()));
    process::tell(&format!("release {:?}", guard.release().await.unwrap_err().kind()));
}
