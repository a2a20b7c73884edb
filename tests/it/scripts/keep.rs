//! `keep.lua`: a hold ends, and its lock is kept.

use super::*;

/// Checks that this is approximately the TTL of the key.
async fn assert_left(wire: &mut Wire, lease: u64) {
    let left: u64 = wire.ask(&["PTTL", KEY]).await;
    assert!(left <= lease && left + 30_000 > lease, "{left} of {lease}");
}

#[tokio::test]
async fn a_kept_lock_is_nobodys_and_lives_exactly_that_long() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for lease in [LEASE / 3, 3 * LEASE] {
        for count in ["1", "3", "text"] {
            wire.plant(OURS, count).await;
            assert_eq!(wire.keep(OURS, lease).await, DONE);
            assert_eq!(wire.fields().await, held(&[(KEPT, "1")]));
            assert_left(&mut wire, lease).await;
            assert!(
                is_busy(&wire.acquire(OURS, 1, LEASE).await)
                    && is_busy(&wire.acquire(THEIRS, 1, LEASE).await)
            );
        }
    }
}

/// Tries each command that may still be under way when its hold is kept, or that is sent for the hold later.
#[tokio::test]
async fn no_late_command_of_a_hold_changes_when_its_kept_lock_ends() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(OURS, "2").await;
    assert_eq!(wire.keep(OURS, LEASE).await, DONE);
    let before = wire.state().await;
    assert_eq!(wire.renew(OURS, 9 * LEASE).await, GONE);
    assert_eq!(wire.settle(OURS, 1, 9 * LEASE).await, GONE);
    assert_eq!(wire.run("settle", &[OURS, "1", CHANNEL, "PUBLISH", "900000", "1"]).await.unwrap(), GONE);
    assert_eq!(wire.acquire(OURS, 2, 9 * LEASE).await, GONE);
    assert!(is_busy(&wire.acquire(OURS, 1, 9 * LEASE).await));
    assert_eq!(wire.release(OURS, 1).await, GONE);
    assert_eq!(wire.release(OURS, 0).await, GONE);
    // A repeat and a late command: by now their times are too long and too short.
    assert_eq!((wire.keep(OURS, 9 * LEASE).await, wire.keep(OURS, 1).await), (GONE, GONE));
    assert_eq!(wire.state().await, before);
}

#[tokio::test]
async fn what_another_has_is_not_kept() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    assert_eq!(wire.keep(OURS, LEASE).await, GONE);
    assert!(wire.fields().await.is_empty());
    wire.plant(THEIRS, "1").await;
    let before = wire.state().await;
    assert_eq!(wire.keep(OURS, 1).await, GONE);
    assert_eq!(wire.state().await, before);
    for (make, value) in [("SET", &["text"][..]), ("RPUSH", &["one"])] {
        wire.clear().await;
        wire.ask::<()>(&[&[make, KEY], value].concat()).await;
        let before = wire.state().await;
        assert_eq!(wire.keep(OURS, 1).await, GONE, "{make}");
        assert_eq!(wire.state().await, before);
    }
}

/// When the late command arrives, the field kept for the client's last such hold is gone, since otherwise the
/// client could not hold the lock again.
#[tokio::test]
async fn a_late_keep_of_an_earlier_hold_leaves_a_newer_one_alone() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let newer = "e4a85f5e-2103-4c02-ade1-d8e0aa7691bb:13";
    wire.plant(newer, "1").await;
    let before = wire.state().await;
    assert_eq!(wire.keep(OURS, 1).await, GONE);
    assert_eq!(wire.state().await, before);
}

#[tokio::test]
async fn a_keep_is_published_where_the_hold_was_there() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(OURS, "1").await;
    wire.published().await;
    wire.keep(OURS, LEASE).await;
    assert_eq!(wire.published().await, [1, 0]);
    // A repeat publishes nothing.
    wire.keep(OURS, LEASE).await;
    assert_eq!(wire.published().await, [0, 0]);
    wire.clear().await;
    wire.plant(OURS, "1").await;
    wire.run("keep", &[OURS, KEPT, CHANNEL, "SPUBLISH", "1000"]).await.unwrap();
    assert_eq!(wire.published().await, [0, 1]);
    wire.clear().await;
    wire.keep(OURS, LEASE).await;
    assert_eq!(wire.published().await, [0, 0]);
}

/// No step may be left undone. Otherwise the lock would be kept for a lease, or would be free.
#[tokio::test]
async fn a_full_server_keeps_a_lock_all_the_same() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.plant(OURS, "1").await;
    server.set("maxmemory", 1).await;
    assert!(wire.try_acquire(OURS, 2, LEASE).await.is_err(), "it is full");
    assert_eq!(wire.keep(OURS, 3 * LEASE).await, DONE);
    server.set("maxmemory", 0).await;
    assert_eq!(wire.fields().await, held(&[(KEPT, "1")]));
    assert_left(&mut wire, 3 * LEASE).await;
}
