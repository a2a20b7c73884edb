//! Two layers of a service that lock the same item, without knowing of each other's lock.
//!
//! `Shelf` is the lower layer: it locks the item that it changes, whoever calls it. `Checkout` is the upper layer: it locks the item for
//! longer, since it checks first and takes afterwards. Called alone, `Shelf::take` takes the lock; called by `Checkout`, it enters the lock
//! that its caller holds.
//!
//! Run it: `cargo run --example layered_service`. It needs no server. With the URL of a Redis in `REDIS_URL` locks and
//! stock are kept there: `scripts/redis cargo run --example layered_service`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use nestlock::Locks;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::{JoinSet, yield_now};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Where the counts are kept. In both kinds a read and the write after it are two steps: the lock keeps them together.
#[derive(Clone)]
enum Counts {
    Redis(MultiplexedConnection),
    Memory(Arc<Mutex<HashMap<String, i64>>>),
}

impl Counts {
    async fn get(&self, item: &str) -> Result<i64> {
        match self {
            Counts::Redis(redis) => Ok(redis.clone().get(format!("{item}:count")).await?),
            Counts::Memory(counts) => {
                yield_now().await; // other tasks run here, as they do during a call to a server
                let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                counts.get(item).copied().ok_or_else(|| format!("there is no {item}").into())
            }
        }
    }

    async fn set(&self, item: &str, count: i64) -> Result<()> {
        match self {
            Counts::Redis(redis) => {
                // The key expires if this program is stopped halfway.
                Ok(redis.clone().set_ex(format!("{item}:count"), count, 60).await?)
            }
            Counts::Memory(counts) => {
                yield_now().await;
                counts.lock().unwrap_or_else(PoisonError::into_inner).insert(item.to_owned(), count);
                Ok(())
            }
        }
    }

    async fn remove(&self, item: &str) -> Result<()> {
        match self {
            Counts::Redis(redis) => Ok(redis.clone().del(format!("{item}:count")).await?),
            Counts::Memory(_) => Ok(()), // ends with the process
        }
    }
}

/// The lower layer: how many there are of an item.
#[derive(Clone)]
struct Shelf {
    locks: Locks,
    counts: Counts,
}

impl Shelf {
    /// Takes that many, with a read and a write that only the lock keeps together.
    async fn take(&self, item: &str, quantity: i64) -> Result<()> {
        let lock = self.locks.mutex(item);
        let entered = if lock.is_held() { "enters its caller's lock" } else { "takes the lock" };
        println!("  shelf: take {quantity}, {entered}");
        lock.run(async |_| {
            let count = self.counts.get(item).await?;
            self.counts.set(item, count - quantity).await
        })
        .await?
    }
}

/// The upper layer: sells, if there is enough.
#[derive(Clone)]
struct Checkout {
    locks: Locks,
    shelf: Shelf,
}

impl Checkout {
    /// Returns whether it was sold. Nobody can take the last one between the check and the sale.
    async fn sell(&self, item: &str, customer: &str) -> Result<bool> {
        self.locks
            .mutex(item)
            .run(async |_| {
                let enough = self.shelf.counts.get(item).await? > 0;
                if enough {
                    self.shelf.take(item, 1).await?;
                }
                println!("checkout: {customer} {}", if enough { "buys one" } else { "comes too late" });
                Ok(enough)
            })
            .await?
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (locks, counts) = match std::env::var("REDIS_URL") {
        Ok(url) => {
            let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
            (Locks::connect(url).await?, Counts::Redis(redis))
        }
        Err(_) => (Locks::in_memory(), Counts::Memory(Arc::default())),
    };
    let shelf = Shelf { locks: locks.clone(), counts: counts.clone() };
    let checkout = Checkout { locks: locks.clone(), shelf: shelf.clone() };

    let item = format!("example:lamp:{}", std::process::id());
    counts.set(&item, 4).await?;
    println!("4 lamps, one of them broken; 5 customers at once");
    shelf.take(&item, 1).await?;

    // Each spawned task is an owner of its own, as each process is: they exclude each other.
    let mut customers = JoinSet::new();
    for customer in ["ada", "bo", "cleo", "dag", "emmy"] {
        let (checkout, item) = (checkout.clone(), item.clone());
        customers.spawn(async move { checkout.sell(&item, customer).await });
    }
    let mut sold = 0;
    while let Some(customer) = customers.join_next().await {
        sold += i64::from(customer??);
    }

    let left = counts.get(&item).await?;
    println!("{sold} sold, {left} left");
    counts.remove(&item).await?;
    locks.close().await?;
    if (sold, left) != (3, 0) {
        return Err("three lamps must be sold, and none be left".into());
    }
    Ok(())
}
