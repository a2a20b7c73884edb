//! The future that `lost()` returns.

use nestlock::{ErrorKind, Locks, Loss};
use tokio::time::Instant;

use super::SECOND;
use crate::support::server::Server;
use crate::support::{builder, soon};

/// The background tasks end with their runtime, but `lost()` has its own timer.
#[test]
fn a_hold_is_lost_at_its_deadline_where_the_background_is_gone() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let server = first.block_on(Server::start());
    let (locks, guard): (Locks, _) = first.block_on(async {
        let locks = builder(&server.url()).lease(2 * SECOND).connect().await.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        (locks, guard)
    });
    drop(first);
    let end = guard.valid_until();
    assert_eq!(runtime().block_on(soon("the loss", guard.lost())), Loss::Expired);
    assert!(Instant::now() >= end);
    let asked = runtime().block_on(locks.mutex("stock").lock());
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Closed);
}
