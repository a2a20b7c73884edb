//! A business routine that calls itself, and takes the same lock at each depth.
//!
//! A price list has offers made of other offers. `price` locks the list, so that nobody changes it during the calculation, and calls itself
//! for the parts. With a lock that is not reentrant, the second call would wait for the first one for ever.
//!
//! Run it: `cargo run --example recursive`. It needs no server. With the URL of a Redis in `REDIS_URL` its lock is kept
//! there: `scripts/redis cargo run --example recursive`.

use std::error::Error;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use nestlock::{Locks, Mutex};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Returns what an offer costs by itself, and what it contains.
fn offer(name: &str) -> Result<(u32, &'static [&'static str])> {
    Ok(match name {
        "holiday" => (50, &["flight", "hotel week"]),
        "flight" => (300, &["airport bus"]),
        "hotel week" => (700, &["airport bus", "breakfast"]),
        "airport bus" => (12, &[]),
        "breakfast" => (70, &[]),
        _ => return Err(format!("there is no offer {name}").into()),
    })
}

/// Returns the price of an offer with all that it contains.
///
/// `run` holds the lock while the work runs. A call inside the work finds that its caller holds
/// the lock, and enters. The future is boxed because it contains itself, as every async recursion.
fn price<'a>(list: &'a Mutex, name: &'a str) -> BoxFuture<'a, Result<u32>> {
    async move {
        let work = async {
            let depth = list.hold_count();
            let (mut sum, parts) = offer(name)?;
            println!("{:indent$}{name}: hold {depth} of {}", "", list.name(), indent = depth * 2);
            for part in parts {
                sum += price(list, part).await?;
            }
            println!("{:indent$}{name}: {sum} in all", "", indent = depth * 2);
            Ok(sum)
        };
        // The first `?` is for the lock's error, the second one for the work's.
        list.run(|_| work).await?
    }
    .boxed()
}

#[tokio::main]
async fn main() -> Result<()> {
    let locks = match std::env::var("REDIS_URL") {
        Ok(url) => Locks::connect(url).await?,
        Err(_) => Locks::in_memory(),
    };
    // The process id keeps two people who try this on one Redis out of each other's way.
    let list = locks.mutex(format!("example:prices:{}", std::process::id()));

    let sum = price(&list, "holiday").await?;
    println!("a holiday costs {sum}");
    if sum != 1144 {
        return Err(format!("a holiday must cost 1144, and came to {sum}").into());
    }

    // Each `run` has released its own hold, so the lock is free, and a stranger gets it.
    let stranger = tokio::spawn({
        let list = list.clone();
        async move { list.lock().within(Duration::from_secs(5)).await?.release().await }
    });
    stranger.await??;
    println!("the lock is free again: {}", !list.is_locked().await?);

    locks.close().await?;
    Ok(())
}
