//! Figures that are counted, not timed: allocations and tasks of an uncontended lock and release, bytes of a hold and of a request that
//! waits, sizes of the futures. `scripts/lab/bench` runs it on a server of its own.

#[path = "../shared/floor.rs"]
mod floor;
#[path = "../shared/server.rs"]
mod server;
#[path = "../shared/store.rs"]
mod store;

use std::path::PathBuf;

use clap::Parser;
use nestlock::{Guard, Locks, Mutex, Owner, scope};

use crate::floor::{Floor, Key};
use crate::server::{Result, patient};
use crate::store::{Allocations, Counts, put};

/// Counts its allocations while a profiler lives. It is in a binary of its own, since it makes everything slower.
#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const PAIRS: u64 = 1_000;
const HOLDS: u64 = 10_000;
const WAITERS: u64 = 10_000;

/// Counts allocations, tasks and bytes, on the server in REDIS_URL.
#[derive(Parser)]
struct Options {
    /// The file that the figures are written to.
    #[arg(long, default_value = "target/bench/results.json")]
    results: PathBuf,
    /// Writes to this file where the allocations of lock and release come from, for the viewer of dhat.
    #[arg(long)]
    sites: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    let locks = patient().connect().await?;
    if let Some(file) = options.sites {
        return sites(&locks, file).await;
    }
    let _counting = dhat::Profiler::builder().testing().build();
    let (free, held) = (locks.mutex("count:free"), locks.mutex("count:held"));
    let outer = held.lock().await?;
    let allocations = vec![
        raw().await?,
        counted("lock and release", async || free.lock().await?.release().await).await?,
        counted("nested lock and release", async || held.lock().await?.release().await).await?,
        counted("run", async || free.run(async |_| {}).await).await?,
    ];
    let tasks_spawned = spawned(&free).await?;
    let sizes = sizes(&free, &outer);
    outer.release().await?;
    let bytes_per_hold = bytes_per_hold(&locks).await?;
    let bytes_per_waiter = bytes_per_waiter(&locks).await?;
    locks.close().await?;
    let counts = Counts { pairs: PAIRS, allocations, tasks_spawned, bytes_per_hold, bytes_per_waiter, sizes };
    print(&counts);
    put(&options.results, "counts", &counts)
}

async fn raw() -> Result<Allocations> {
    let (floor, key) = (Floor::connect().await?, Key::new("count:raw"));
    counted("two raw EVALSHA round trips", async || floor.clone().pair(&key).await).await
}

/// Counts all allocations of the process meanwhile, those of the connection's task included.
async fn counted<E>(
    name: &str,
    once: impl AsyncFn() -> std::result::Result<(), E>,
) -> std::result::Result<Allocations, E> {
    // Buffers that grow only once grow in this loop.
    for _ in 0..100 {
        once().await?;
    }
    let before = dhat::HeapStats::get();
    for _ in 0..PAIRS {
        once().await?;
    }
    let after = dhat::HeapStats::get();
    let each = |now: u64, then: u64| (now - then) as f64 / PAIRS as f64;
    Ok(Allocations {
        name: name.to_owned(),
        blocks: each(after.total_blocks, before.total_blocks),
        bytes: each(after.total_bytes, before.total_bytes),
    })
}

async fn sites(locks: &Locks, file: PathBuf) -> Result<()> {
    let free = locks.mutex("count:free");
    free.lock().await?.release().await?;
    let _profiler = dhat::Profiler::builder().file_name(file).build();
    for _ in 0..PAIRS {
        free.lock().await?.release().await?;
    }
    Ok(())
}

/// Returns how many tasks the pairs spawned. Tasks of a process have consecutive numbers.
async fn spawned(lock: &Mutex) -> Result<i64> {
    let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let first = number().await?;
    for _ in 0..PAIRS {
        lock.lock().await?.release().await?;
    }
    let last = number().await?;
    let more = tokio::runtime::Handle::current().metrics().num_alive_tasks() as i64 - alive as i64;
    Ok((last - first - 1).max(more))
}

async fn number() -> Result<i64> {
    let id = tokio::spawn(async { tokio::task::id() }).await?;
    Ok(id.to_string().parse()?)
}

async fn bytes_per_hold(locks: &Locks) -> Result<f64> {
    let before = dhat::HeapStats::get().curr_bytes;
    // Room for exactly these guards: spare room of the vector does not belong to a hold.
    let mut guards = Vec::with_capacity(HOLDS as usize);
    for at in 0..HOLDS {
        guards.push(locks.mutex(format!("count:many:{at}")).lock().await?);
    }
    let after = dhat::HeapStats::get().curr_bytes;
    for guard in guards {
        guard.release().await?;
    }
    Ok((after - before) as f64 / HOLDS as f64)
}

/// Returns the bytes of a request that waits, its task included.
async fn bytes_per_waiter(locks: &Locks) -> Result<f64> {
    let lock = locks.mutex("count:waiters");
    let held = lock.lock().owner(&Owner::new()).await?;
    let before = dhat::HeapStats::get().curr_bytes;
    let mut waiting = Vec::with_capacity(WAITERS as usize);
    for _ in 0..WAITERS {
        let lock = lock.clone();
        waiting.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
    }
    while locks.status().iter().all(|held| held.waiting() < WAITERS as usize) {
        tokio::task::yield_now().await;
    }
    let after = dhat::HeapStats::get().curr_bytes;
    held.release().await?;
    for waiter in waiting {
        waiter.await??;
    }
    Ok((after - before) as f64 / WAITERS as f64)
}

fn sizes(lock: &Mutex, guard: &Guard) -> Vec<(String, usize)> {
    let job = || std::future::ready(0_usize);
    let sizes = [
        ("`Mutex`", size_of::<Mutex>()),
        ("`Guard`", size_of::<Guard>()),
        ("`lock()`", size_of_val(&lock.lock())),
        ("`try_lock()`", size_of_val(&lock.try_lock())),
        ("`run(work)`, less the work", size_of_val(&lock.run(|_| job())) - size_of_val(&job())),
        (
            "`run(run(work))`, less the work",
            size_of_val(&lock.run(|_| lock.run(|_| job()))) - size_of_val(&job()),
        ),
        ("`scope(work)`, less the work", size_of_val(&scope(job())) - size_of_val(&job())),
        ("`guard.lost()`", size_of_val(&guard.lost())),
        ("`guard.release()`", size_of_output(<Guard>::release)),
    ];
    sizes.map(|(name, size)| (name.to_owned(), size)).into()
}

/// Returns the size of a future that takes ownership of what it is made from.
fn size_of_output<T, F>(_: impl FnOnce(T) -> F) -> usize {
    size_of::<F>()
}

fn print(counts: &Counts) {
    println!("\n{:<44} {:>10} {:>10}", "allocations", "blocks", "bytes");
    for of in &counts.allocations {
        println!("{:<44} {:>10.1} {:>10.0}", of.name, of.blocks, of.bytes);
    }
    println!("\n{} tasks spawned by {} locks and releases", counts.tasks_spawned, counts.pairs);
    println!("{:.0} bytes on the heap for each hold", counts.bytes_per_hold);
    println!("{:.0} bytes for each request that waits, its task included", counts.bytes_per_waiter);
    let sizes: Vec<String> = counts.sizes.iter().map(|(name, size)| format!("{name} {size}")).collect();
    println!("bytes of each: {}", sizes.join(", "));
}
