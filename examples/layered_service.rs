//! Two layers of a service that lock the same item, without knowing of each other's lock.
//!
//! `Shelf` is the lower layer: whoever calls it, it locks the item that it changes. `Checkout` is
//! the upper layer: it locks the item for longer, since it looks first and takes afterwards.
//! Called alone, `Shelf::take` takes the lock; called by `Checkout`, it enters the lock it is under.
//!
//! Run it on a Redis: `cargo run --example layered_service`, or
//! `scripts/redis cargo run --example layered_service`.

use std::error::Error;

use nestlock::Locks;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The lower layer: how many there are of an item.
#[derive(Clone)]
struct Shelf {
    locks: Locks,
    redis: MultiplexedConnection,
}

impl Shelf {
    async fn count(&self, item: &str) -> Result<i64> {
        Ok(self.redis.clone().get(format!("{item}:count")).await?)
    }

    async fn put(&self, item: &str, count: i64) -> Result<()> {
        Ok(self.redis.clone().set(format!("{item}:count"), count).await?)
    }

    /// Takes some, with a GET and a SET that only the lock keeps together.
    async fn take(&self, item: &str, quantity: i64) -> Result<()> {
        let lock = self.locks.mutex(item);
        let entered = if lock.is_held() { "enters its caller's lock" } else { "takes the lock" };
        println!("  shelf: take {quantity}, {entered}");
        lock.run(async {
            let count = self.count(item).await?;
            self.put(item, count - quantity).await
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
    /// Tells whether it was sold. Nobody can take the last one between the look and the taking.
    async fn sell(&self, item: &str, customer: &str) -> Result<bool> {
        self.locks
            .mutex(item)
            .run(async {
                let enough = self.shelf.count(item).await? > 0;
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
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let locks = Locks::connect(url).await?;
    let shelf = Shelf { locks: locks.clone(), redis: redis.clone() };
    let checkout = Checkout { locks: locks.clone(), shelf: shelf.clone() };

    let item = format!("example:lamp:{}", std::process::id());
    shelf.put(&item, 4).await?;
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

    let left = shelf.count(&item).await?;
    println!("{sold} sold, {left} left");
    let () = redis.clone().del(format!("{item}:count")).await?;
    locks.close().await?;
    if (sold, left) != (3, 0) {
        return Err("three lamps must be sold, and none be left".into());
    }
    Ok(())
}
