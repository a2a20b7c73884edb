//! A holder that the operating system stops.

use super::SECOND;
use crate::support::process::Worker;
use crate::support::server::Server;
use crate::support::{builder, soon};
use crate::wire::fields;

#[tokio::test]
async fn a_frozen_holder_is_overtaken_and_knows_it_once_it_thaws() {
    let server = Server::start().await;
    let mut holder = Worker::start("lease_holder", &[("url", &server.url())]);
    let field = holder.line().await;
    assert_eq!(fields(&server, "stock").await, [(field, "1".to_owned())]);
    holder.freeze();
    let ours = builder(&server.url()).lease(60 * SECOND).connect().await.unwrap();
    let guard = soon("the lock, after the lease", ours.mutex("stock").lock()).await.unwrap();
    holder.thaw();
    holder.say("go on");
    assert_eq!(holder.line().await, "lost true");
    assert_eq!(holder.line().await, "re-entry Lost");
    assert_eq!(holder.line().await, "release Lost");
    assert!(holder.wait().await.success());
    assert_eq!(fields(&server, "stock").await, [(guard.hold_id().to_owned(), "1".to_owned())]);
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}
