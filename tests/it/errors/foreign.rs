//! Keys that other programs made: a lock of another program is waited for, and any other key is left alone.

use std::time::{Duration, Instant};

use nestlock::{ErrorKind, Loss};

use super::is;
use crate::support::server::Server;
use crate::support::{SOON_OVER, STRANGER, builder, eventually, locks, soon};

const TTL: Duration = Duration::from_millis(1_500);

#[tokio::test]
async fn a_string_with_a_ttl_is_waited_for_until_it_expires() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    let began = Instant::now();
    server.ask::<()>(&["SET", "stock", "theirs", "NX", "PX", "1500"]).await;
    let guard = soon("the lock", stock.lock()).await.unwrap();
    // The server's clock counts in milliseconds.
    assert!(began.elapsed() + Duration::from_millis(5) >= TTL, "{:?}", began.elapsed());
    assert_eq!(server.ask::<String>(&["TYPE", "stock"]).await, "hash");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_string_with_a_ttl_is_a_lock_that_somebody_holds() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    server.ask::<()>(&["SET", "stock", "theirs", "PX", "600000"]).await;
    assert!(stock.try_lock().await.unwrap().is_none());
    let error = stock.lock().within(SOON_OVER).await.unwrap_err();
    is(&error, ErrorKind::Timeout, Some("stock"), &["somebody else held it"]);
    // A lock of this kind doesn't name its holder.
    assert_eq!(error.holder(), None);
    let error = stock.holder().await.unwrap_err();
    is(&error, ErrorKind::NotALock, Some("stock"), &["string, which is no lock of this kind", "untouched"]);
    assert!(stock.is_locked().await.unwrap() && !stock.is_held());
    let left = stock.remaining_lease().await.unwrap().unwrap();
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(600), "{left:?}");
    let error = stock.force_release().await.unwrap_err();
    is(&error, ErrorKind::NotALock, Some("stock"), &["string", "untouched"]);
    assert_eq!(server.ask::<String>(&["GET", "stock"]).await, "theirs");
    assert!(server.ask::<i64>(&["PTTL", "stock"]).await > 500_000);
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_reported_at_once_and_left_untouched() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let put: [(&str, &[&str]); 7] = [
        ("a string without a TTL", &["SET", "stock", "mine"]),
        ("a hash without a TTL", &["HSET", "stock", "mine", "1"]),
        ("a list", &["RPUSH", "stock", "mine"]),
        ("a set", &["SADD", "stock", "mine"]),
        ("a zset", &["ZADD", "stock", "1", "mine"]),
        ("a stream", &["XADD", "stock", "*", "mine", "1"]),
        ("a string", &["SETBIT", "stock", "7", "1"]),
    ];
    let stock = locks.mutex("stock");
    for (found, put) in put {
        server.ask::<redis::Value>(put).await;
        let before: Vec<u8> = server.ask(&["DUMP", "stock"]).await;
        for error in [
            soon("lock", stock.lock()).await.unwrap_err(),
            soon("try_lock", stock.try_lock()).await.unwrap_err(),
            soon("run", stock.run(async |_| {})).await.unwrap_err(),
            stock.is_locked().await.unwrap_err(),
            stock.remaining_lease().await.unwrap_err(),
        ] {
            is(&error, ErrorKind::NotALock, Some("stock"), &[found, "untouched"]);
        }
        for error in [stock.force_release().await.unwrap_err(), stock.holder().await.unwrap_err()] {
            is(&error, ErrorKind::NotALock, Some("stock"), &["untouched"]);
        }
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "stock"]).await, before, "{found}");
        server.ask::<()>(&["DEL", "stock"]).await;
    }
    stock.lock().await.unwrap().release().await.unwrap();
}

/// Two such hashes: a web session, and Redisson's read-write lock.
#[tokio::test]
async fn a_hash_of_another_program_is_no_lock_though_it_has_a_ttl() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    for (found, fields) in [
        ("a hash whose fields are not those of a lock", &["user", "bob", "cart", "3"]),
        ("a read-write lock of Redisson", &["mode", "read", STRANGER, "1"]),
    ] {
        server.ask::<()>(&[&["HSET", "stock"][..], fields].concat()).await;
        server.ask::<()>(&["PEXPIRE", "stock", "600000"]).await;
        let before: Vec<u8> = server.ask(&["DUMP", "stock"]).await;
        for error in [
            stock.force_release().await.unwrap_err(),
            stock.holder().await.unwrap_err(),
            stock.is_locked().await.unwrap_err(),
            stock.remaining_lease().await.unwrap_err(),
            soon("lock", stock.lock()).await.unwrap_err(),
            soon("within", stock.lock().within(Duration::ZERO)).await.unwrap_err(),
            soon("run", stock.run(async |_| {})).await.unwrap_err(),
        ] {
            is(&error, ErrorKind::NotALock, Some("stock"), &[found, "untouched"]);
        }
        // A `try_lock` doesn't ask who holds the lock.
        assert!(stock.try_lock().await.unwrap().is_none());
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "stock"]).await, before, "{found}");
        assert!(server.ask::<i64>(&["PTTL", "stock"]).await > 500_000);
        server.ask::<()>(&["DEL", "stock"]).await;
    }
}

#[tokio::test]
async fn a_list_with_a_ttl_is_no_lock_either() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    server.ask::<()>(&["RPUSH", "stock", "mine"]).await;
    server.ask::<()>(&["PEXPIRE", "stock", "600000"]).await;
    let stock = locks.mutex("stock");
    is(&stock.lock().await.unwrap_err(), ErrorKind::NotALock, Some("stock"), &["a list"]);
    is(&stock.is_locked().await.unwrap_err(), ErrorKind::NotALock, Some("stock"), &["a list"]);
    is(&stock.force_release().await.unwrap_err(), ErrorKind::NotALock, Some("stock"), &["a list"]);
    assert_eq!(server.ask::<String>(&["TYPE", "stock"]).await, "list");
}

#[tokio::test]
async fn locks_by_set_nx_and_ours_exclude_each_other() {
    let server = Server::start().await;
    let poll = Duration::from_millis(20);
    let locks = builder(&server.url()).poll_interval(poll).connect().await.unwrap();
    let theirs = async || {
        let set = ["SET", "stock", "theirs", "NX", "PX", "60000"];
        server.ask::<Option<String>>(&set).await.is_some()
    };
    let stock = locks.mutex("stock");
    for _ in 0..5 {
        let guard = stock.lock().await.unwrap();
        assert!(!theirs().await, "they got the lock while we held it");
        guard.release().await.unwrap();
        assert!(theirs().await);
        assert!(stock.try_lock().await.unwrap().is_none(), "we got the lock while they held it");
        // The other owner releases it in its own way: by a DEL, without a message.
        let waits = stock.clone();
        let waits = tokio::spawn(async move { waits.lock().await });
        eventually("the waiter", async || !server.channels().await.is_empty()).await;
        server.ask::<()>(&["DEL", "stock"]).await;
        soon("the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_is_replaced_under_a_guard_is_lost_and_left_untouched() {
    let server = Server::start().await;
    let locks = locks(&server.url()).await;
    let stock = locks.mutex("stock");
    for put in
        [&["SET", "stock", "theirs"][..], &["RPUSH", "stock", "theirs"], &["HSET", "stock", "theirs", "1"]]
    {
        let (outer, inner) = (stock.lock().await.unwrap(), stock.lock().await.unwrap());
        server.ask::<()>(&["DEL", "stock"]).await;
        server.ask::<()>(put).await;
        let before: Vec<u8> = server.ask(&["DUMP", "stock"]).await;
        assert_eq!(inner.release().await.unwrap_err().loss(), Some(Loss::Gone));
        assert_eq!(soon("the loss", outer.lost()).await, Loss::Gone);
        assert_eq!(outer.release().await.unwrap_err().loss(), Some(Loss::Gone));
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "stock"]).await, before);
        server.ask::<()>(&["DEL", "stock"]).await;
    }
}

/// One field as Redisson writes it, and one that no library writes.
#[tokio::test]
async fn the_field_of_another_library_is_named_as_it_stands() {
    let server = Server::start().await;
    let stock = locks(&server.url()).await.mutex("stock");
    let odd = format!("a\nb:c:{STRANGER}");
    for (field, count, shown) in [(STRANGER, "3", STRANGER), (&*odd, "1", "a\\nb:c:")] {
        server.ask::<()>(&["DEL", "stock"]).await;
        server.ask::<()>(&["HSET", "stock", field, count]).await;
        server.ask::<()>(&["PEXPIRE", "stock", "600000"]).await;
        let holder = stock.holder().await.unwrap().unwrap();
        assert_eq!((holder.name(), holder.hold_id()), (None, field));
        assert_eq!(holder.count(), count.parse::<usize>().unwrap());
        let error = stock.lock().within(Duration::ZERO).await.unwrap_err();
        is(&error, ErrorKind::Timeout, Some("stock"), &["held by", shown, "for another 59"]);
        assert_eq!(error.holder().map(|holder| holder.hold_id()), Some(field));
    }
}
