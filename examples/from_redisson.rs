//! Moving from Redisson's `RLock`, call by call: the Java code is in the comment, and the Rust code for the same is below it.
//!
//! These things are different: the owner is the task, not the thread; a lock that is taken is a guard, and
//! only code that has the guard can unlock; an inner lease never shortens the outer one; and the loss of a
//! lock is reported.
//!
//! Run it: `cargo run --example from_redisson`. It needs no server. With the URL of a Redis in `REDIS_URL` its locks are
//! kept there: `scripts/redis cargo run --example from_redisson`.

use std::error::Error;
use std::time::Duration;

use nestlock::{ErrorKind, Locks, Loss, Memory, Mutex};
use tokio::time::sleep;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// ```java
/// RLock lock = redisson.getLock("orders");
/// lock.lock();
/// try {
///     ship();
/// } finally {
///     lock.unlock();
/// }
/// ```
async fn lock_and_unlock(locks: &Locks) -> Result<()> {
    let lock = locks.mutex("orders");
    lock.run(|_| ship()).await?; // lock, try, finally and unlock in one

    // Or with a guard. If the code returns before `release`, the drop of the guard unlocks in the background.
    let guard = lock.lock().await?;
    ship().await;
    guard.release().await?;
    Ok(())
}

/// ```java
/// lock.lock();
/// reserve(lock);
/// lock.unlock();
///
/// void reserve(RLock lock) {
///     lock.lock();
///     lock.isHeldByCurrentThread();  // true
///     lock.getHoldCount();           // 2
///     lock.unlock();
/// }
/// ```
async fn nested(locks: &Locks) -> Result<()> {
    async fn reserve(lock: &Mutex) -> Result<()> {
        let guard = lock.lock().await?;
        assert!(lock.is_held()); // by this task; nothing is sent, whereas Redisson asks the server
        assert_eq!(lock.hold_count(), 2);
        Ok(guard.release().await?)
    }

    let lock = locks.mutex("orders");
    let guard = lock.lock().await?;
    reserve(&lock).await?;
    guard.release().await?;
    assert_eq!(lock.hold_count(), 0);
    Ok(())
}

/// ```java
/// lock.tryLock();                       // false: another thread has it
/// lock.tryLock(100, MILLISECONDS);      // false, after 100 ms
/// lock.tryLock(5, 10, SECONDS);         // true, as soon as that thread unlocks; ends after 10 s
/// lock.unlock();
/// ```
async fn try_lock(locks: &Locks) -> Result<()> {
    let lock = locks.mutex("orders");
    // Another thread is another task here: each task's locks are its own, even if it passes a guard on.
    let theirs = lock.clone();
    let theirs = tokio::spawn(async move { theirs.lock().await }).await??;

    assert!(lock.try_lock().await?.is_none());
    assert!(lock.try_lock().within(Duration::from_millis(100)).await?.is_none());

    let attempt = lock.try_lock().within(Duration::from_secs(5)).fixed_lease(Duration::from_secs(10));
    let (unlocked, guard) = tokio::join!(theirs.release(), attempt);
    unlocked?;
    guard?.ok_or("the other task has unlocked, so it must be ours")?.release().await?;
    Ok(())
}

/// ```java
/// lock.lock(500, MILLISECONDS);         // no watchdog
/// Thread.sleep(600);
/// lock.unlock();                        // IllegalMonitorStateException
/// ```
async fn lease(locks: &Locks) -> Result<()> {
    let lock = locks.mutex("orders");
    let guard = lock.lock().fixed_lease(Duration::from_millis(500)).await?;
    assert_eq!(guard.lost().await, Loss::Expired); // reported, without waiting for an unlock to fail
    match guard.release().await {
        Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
        other => Err(format!("the lease was over, and release gave {other:?}").into()),
    }
}

/// ```java
/// lock.isLocked();                      // false
/// lock.remainTimeToLive();              // -2
/// lock.lock(10, SECONDS);
/// lock.isLocked();                      // true, by whichever thread
/// lock.remainTimeToLive();              // up to 10000
/// lock.unlock();
/// ```
async fn look(locks: &Locks) -> Result<()> {
    // This is another lock than above, since a lease ends here some milliseconds before it ends on the
    // server.
    let lock = locks.mutex("invoices");
    assert!(!lock.is_locked().await?);
    assert_eq!(lock.remaining_lease().await?, None);
    let guard = lock.lock().fixed_lease(Duration::from_secs(10)).await?;
    assert!(lock.is_locked().await?);
    assert!(lock.remaining_lease().await?.is_some_and(|left| left <= Duration::from_secs(10)));
    Ok(guard.release().await?)
}

/// ```java
/// lock.lock();
/// lock.forceUnlock();                   // true; by an operator, whoever has it
/// lock.unlock();                        // IllegalMonitorStateException
/// lock.forceUnlock();                   // false: nobody has it
/// ```
async fn force_unlock(locks: &Locks) -> Result<()> {
    let lock = locks.mutex("orders");
    let guard = lock.lock().await?;
    assert!(lock.force_release().await?);
    match guard.release().await {
        Err(error) => assert_eq!(error.loss(), Some(Loss::Gone)),
        Ok(()) => return Err("the lock was freed by force, and release has not noticed".into()),
    }
    assert!(!lock.force_release().await?);
    Ok(())
}

/// ```java
/// config.setLockWatchdogTimeout(2000);  // the default is 30000
/// lock.lock();                          // renewed every third of that
/// Thread.sleep(2500);
/// lock.isHeldByCurrentThread();         // true
/// lock.unlock();
/// ```
async fn watchdog(locks: &Locks) -> Result<()> {
    let lock = locks.mutex("orders");
    let guard = lock.lock().await?;
    sleep(WATCHDOG_TIMEOUT + Duration::from_millis(500)).await;
    assert!(lock.is_held());
    Ok(guard.release().await?)
}

const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(2);

/// The work under the lock.
async fn ship() {}

/// ```java
/// Config config = new Config();
/// config.useSingleServer().setAddress("redis://127.0.0.1:6379");
/// config.setLockWatchdogTimeout(2000);
/// RedissonClient redisson = Redisson.create(config);
/// ...
/// redisson.shutdown();
/// ```
#[tokio::main]
async fn main() -> Result<()> {
    let builder = match std::env::var("REDIS_URL") {
        Ok(url) => Locks::builder(url),
        Err(_) => Locks::builder(Memory::new()),
    };
    // The process id keeps two people who try this on one Redis out of each other's way. Leave the prefix out if you share locks with
    // Redisson.
    let prefix = format!("example:{}:", std::process::id());
    let locks = builder.lease(WATCHDOG_TIMEOUT).prefix(prefix).connect().await?;

    lock_and_unlock(&locks).await?;
    println!("lock, unlock: run, or lock and release");
    nested(&locks).await?;
    println!("nested lock, isHeldByCurrentThread, getHoldCount: lock, is_held, hold_count");
    try_lock(&locks).await?;
    println!("tryLock(wait, lease): try_lock, within, fixed_lease");
    lease(&locks).await?;
    println!("lock(lease): fixed_lease; IllegalMonitorStateException: an error of kind Lost");
    look(&locks).await?;
    println!("isLocked, remainTimeToLive: is_locked, remaining_lease");
    force_unlock(&locks).await?;
    println!("forceUnlock: force_release");
    watchdog(&locks).await?;
    println!("setLockWatchdogTimeout: lease; held for longer than it");

    locks.close().await?;
    Ok(())
}
