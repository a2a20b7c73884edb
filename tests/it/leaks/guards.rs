//! Guards dropped where no future runs.

use std::time::Duration;

use nestlock::ErrorKind;
use tokio::runtime::Runtime;

use crate::support::process::Worker;
use crate::support::server::Server;
use crate::support::{builder, soon};

#[test]
fn a_guard_kept_beyond_its_runtime_is_lost_in_time_and_can_be_released() {
    let looks = Runtime::new().unwrap();
    let server = looks.block_on(Server::start());
    let runtime = Runtime::new().unwrap();
    let guard = runtime.block_on(async {
        let locks = builder(&server.url()).lease(Duration::from_secs(1)).connect().await.unwrap();
        locks.mutex("stock").lock().await.unwrap()
    });
    drop(runtime);
    looks.block_on(async {
        soon("the loss", guard.lost()).await;
        assert!(guard.is_lost());
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    });
}

#[tokio::test]
async fn a_process_that_ends_with_a_live_guard_ends_at_once_and_its_lease_frees_the_lock() {
    let server = Server::start().await;
    for how in ["in_block_on", "after_the_runtime", "in_a_static", "forgotten", "exit"] {
        let worker = Worker::start("ends_with_a_guard", &[("url", &server.url()), ("how", how)]);
        worker.expect("holding").await;
        let began = std::time::Instant::now();
        let status = worker.wait().await;
        assert!(status.success(), "{how}: {status}");
        // Its lease is a minute, so it didn't wait for that.
        assert!(began.elapsed() < Duration::from_secs(25), "{how}");
        // Deletes the key instead of waiting a minute for its end.
        let left: i64 = server.ask(&["PTTL", "stock"]).await;
        assert!(left <= 60_000 && left != -1, "{how}: {left}");
        server.ask::<()>(&["DEL", "stock"]).await;
    }
}
