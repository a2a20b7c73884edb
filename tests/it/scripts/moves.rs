//! `move.lua`: a hold continues under another field.

use super::*;

impl Wire {
    async fn moves(&mut self, to: &str, from: &str, lease: u64) -> Value {
        self.run("move", &[to, from, &lease.to_string()]).await.unwrap()
    }
}

#[tokio::test]
async fn a_moved_hold_is_the_new_fields_for_its_own_lease() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for count in ["1", "4", "text"] {
        for lease in [LEASE / 3, 3 * LEASE] {
            wire.plant(OURS, count).await;
            let before = wire.end().await;
            assert_eq!(wire.moves(THEIRS, OURS, lease).await, DONE);
            assert_eq!(wire.fields().await, held(&[(THEIRS, "1")]));
            let after = wire.end().await;
            assert_eq!(after > before, lease > LEASE, "{before} {after}");
            // A repeat shortens nothing, since a guard counts on it by then.
            assert_eq!(wire.moves(THEIRS, OURS, lease / 2).await, DONE);
            assert_eq!(wire.end().await, after);
        }
    }
    wire.ask::<()>(&["PERSIST", KEY]).await;
    assert_eq!(wire.moves(OURS, THEIRS, LEASE).await, DONE);
    assert!(wire.end().await > 0);
}

/// 1. The move runs, and its answer is lost. 2. The move is sent again. After that come late commands of the former field.
#[tokio::test]
async fn a_move_that_runs_twice_is_answered_twice_and_another_one_is_refused() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(OURS, "1").await;
    assert_eq!(wire.moves(THEIRS, OURS, LEASE).await, DONE);
    let before = wire.fields().await;
    assert_eq!(wire.moves(THEIRS, OURS, LEASE).await, DONE);
    assert_eq!(wire.moves("f00:1", OURS, 9 * LEASE).await, GONE);
    assert_eq!(wire.renew(OURS, 9 * LEASE).await, GONE);
    assert_eq!(wire.settle(OURS, 1, 9 * LEASE).await, GONE);
    assert_eq!(wire.run("settle", &[OURS, "1", CHANNEL, "PUBLISH", "900000", "1"]).await.unwrap(), GONE);
    assert!(is_busy(&wire.acquire(OURS, 1, 9 * LEASE).await));
    assert_eq!(wire.acquire(OURS, 2, 9 * LEASE).await, GONE);
    assert_eq!(wire.release(OURS, 0).await, GONE);
    assert_eq!(wire.fields().await, before);
    assert!(wire.ask::<i64>(&["PTTL", KEY]).await <= LEASE as i64);
    // The hold was re-entered before this move arrives.
    wire.acquire(THEIRS, 2, LEASE).await;
    assert_eq!(wire.moves(THEIRS, OURS, LEASE).await, DONE);
    assert_eq!(wire.fields().await, held(&[(THEIRS, "2")]));
}

#[tokio::test]
async fn a_move_makes_nothing_where_the_hold_is_gone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    assert_eq!(wire.moves(THEIRS, OURS, LEASE).await, GONE);
    assert!(wire.fields().await.is_empty());
    wire.plant("f00:1", "1").await;
    let before = wire.state().await;
    assert_eq!(wire.moves(THEIRS, OURS, 9 * LEASE).await, GONE);
    assert_eq!(wire.state().await, before);
    wire.clear().await;
    wire.ask::<()>(&["SET", KEY, "text"]).await;
    assert_eq!(wire.moves(THEIRS, OURS, LEASE).await, GONE);
}

/// Neither field may be lost, and the key must not be left without a TTL.
#[tokio::test]
async fn a_full_server_moves_nothing() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(OURS, "1").await;
    let before = wire.state().await;
    server.set("maxmemory", 1).await;
    assert!(wire.run("move", &[THEIRS, OURS, "900000"]).await.is_err());
    server.set("maxmemory", 0).await;
    assert_eq!(wire.state().await, before);
}
