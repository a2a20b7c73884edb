//! Single calls beside their floor, by criterion: `scripts/redis cargo bench -p benches --bench calls`.
//!
//! It is for a quick look at a change of your own. Its cases run one after the other; `scripts/lab/bench` interleaves them.

#[path = "shared/floor.rs"]
mod floor;
#[path = "shared/server.rs"]
mod server;

use criterion::Criterion;
use tokio::runtime::{Builder, Runtime};

use crate::floor::{Floor, Key};
use crate::server::{Result, patient};

fn main() -> Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    pairs(&mut criterion, &runtime)?;
    criterion.final_summary();
    Ok(())
}

fn pairs(criterion: &mut Criterion, runtime: &Runtime) -> Result<()> {
    let locks = runtime.block_on(patient().connect())?;
    let floor = runtime.block_on(Floor::connect())?;
    let (key, free, held) = (Key::new("calls:raw"), locks.mutex("calls:free"), locks.mutex("calls:held"));
    let outer = runtime.block_on(async { held.lock().await })?;
    let mut group = criterion.benchmark_group("lock and release");
    group.bench_function("raw", |b| b.to_async(runtime).iter(|| async { floor.clone().pair(&key).await }));
    group.bench_function("free", |b| {
        b.to_async(runtime).iter(|| async { free.lock().await?.release().await })
    });
    group.bench_function("nested", |b| {
        b.to_async(runtime).iter(|| async { held.lock().await?.release().await })
    });
    group.bench_function("run", |b| b.to_async(runtime).iter(|| free.run(async |_| {})));
    group.finish();
    runtime.block_on(async {
        outer.release().await?;
        locks.close().await
    })?;
    Ok(())
}
