//! Locks and releases, as many as its argument, on the server in REDIS_URL: what `scripts/count` counts the instructions of.

use std::error::Error;

use nestlock::Locks;

fn main() -> Result<(), Box<dyn Error>> {
    let pairs: u32 = std::env::args().nth(1).ok_or("how many pairs?")?.parse()?;
    let url = std::env::var("REDIS_URL")?;
    // One thread, and patience: under valgrind everything takes fifty times as long.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let patience = std::time::Duration::from_secs(60);
        let locks =
            Locks::builder().server(url).node_timeout(patience).unavailable_after(patience).connect().await?;
        let stock = locks.mutex("gate:stock");
        for _ in 0..pairs {
            stock.lock().await?.release().await?;
        }
        locks.close().await?;
        Ok(())
    })
}
