//! Makes as many pairs of lock and release as its argument says, on the server in REDIS_URL. `scripts/lab/count` counts their instructions.

use std::error::Error;

use nestlock::{BareReentry, Locks, Mutex, Result};

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let pairs: u32 = arguments.next().ok_or("how many pairs?")?.parse()?;
    let what = arguments.next().unwrap_or_else(|| "free".to_owned());
    let url = std::env::var("REDIS_URL")?;
    // One thread, and long timeouts: under valgrind everything takes fifty times as long.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let patience = std::time::Duration::from_secs(60);
        let builder = Locks::builder(url).node_timeout(patience).unavailable_after(patience);
        // The lease is so long that all pairs run within half of it.
        let builder = builder.lease(20 * patience).bare_reentry(BareReentry::Local);
        let locks = builder.connect().await?;
        let stock = locks.mutex("gate:stock");
        match &*what {
            "free" => free(&stock, pairs).await?,
            "nested-run" => stock.run(|_| nested_runs(&stock, pairs)).await??,
            "nested-lock" => {
                let guard = stock.lock().await?;
                free(&stock, pairs).await?;
                guard.release().await?;
            }
            other => return Err(format!("nothing is known of {other}").into()),
        }
        locks.close().await?;
        Ok(())
    })
}

async fn free(stock: &Mutex, pairs: u32) -> Result<()> {
    for _ in 0..pairs {
        stock.lock().await?.release().await?;
    }
    Ok(())
}

async fn nested_runs(stock: &Mutex, pairs: u32) -> Result<()> {
    for _ in 0..pairs {
        stock.run(async |_| {}).await?;
    }
    Ok(())
}
