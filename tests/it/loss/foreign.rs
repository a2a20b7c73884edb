//! Keys that are not locks of this kind.

use nestlock::{Error, ErrorKind};

use crate::support::server::Server;
use crate::support::{locks, soon};

#[tokio::test]
async fn a_string_without_a_ttl_is_not_a_lock_and_left_alone() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    server.ask::<()>(&["SET", "stock", "theirs"]).await;
    let check = |error: Error| {
        assert_eq!((error.kind(), error.lock()), (ErrorKind::NotALock, Some("stock")));
        assert!(error.to_string().contains("stock") && error.to_string().contains("string"), "{error}");
    };
    check(soon("an answer", stock.lock()).await.unwrap_err());
    check(stock.try_lock().await.unwrap_err());
    check(stock.run(async |_| {}).await.unwrap_err());
    check(stock.is_locked().await.unwrap_err());
    check(stock.remaining_lease().await.unwrap_err());
    check(stock.force_release().await.unwrap_err());
    assert_eq!(server.ask::<String>(&["GET", "stock"]).await, "theirs");
}

#[tokio::test]
async fn a_held_lock_that_became_a_string_is_a_loss_to_each_command_and_left_alone() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    for late in ["release", "re-entry", "extend"] {
        server.ask::<()>(&["DEL", "stock"]).await;
        let guard = soon("the lock", stock.lock()).await.unwrap();
        server.ask::<()>(&["SET", "stock", "theirs"]).await;
        let error = match late {
            "release" => guard.release().await.unwrap_err(),
            "re-entry" => stock.lock().await.unwrap_err(),
            _ => guard.extend(super::LONG).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Lost, "{late}");
        assert_eq!(server.ask::<String>(&["GET", "stock"]).await, "theirs", "{late}");
    }
}
