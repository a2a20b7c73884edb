//! One lock and its release, and 64 tasks side by side, over TLS and over TCP: on one server, in turns.
//!
//! `cargo run --release -p benches --features tls --bin tls`. It starts a `redis-server` of its own, and prints the rows of a table.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nestlock::{Locks, Server, Tls};
use rand::seq::SliceRandom;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: usize = 21;
const PAIRS: usize = 1_000;
const TASKS: usize = 64;
const PAIRS_PER_TASK: usize = 200;

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Runs on one thread: the client has one core, as the server has.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let (certificate, key) = (dir.path().join("certificate"), dir.path().join("key"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let (port, tls_port) = (free_port()?, free_port()?);
    let _redis = start(port, tls_port, &certificate, &key, dir.path())?;
    let tcp = connect(Server::from(("127.0.0.1", port))).await?;
    let tls = Tls::new().authorities_file(&certificate);
    let tls = connect(Server::from(("localhost", tls_port)).tls(tls)).await?;
    let ways = [tcp, tls];
    let (mut one, mut many) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut order = [0, 1];
    // The first round is not counted: it loads the scripts.
    for round in 0..=ROUNDS {
        order.shuffle(&mut rand::rng());
        for way in order {
            let (pair, rate) = (pairs(&ways[way]).await?, side_by_side(&ways[way]).await?);
            if round > 0 {
                one[way].push(pair);
                many[way].push(rate);
            }
        }
    }
    println!("| what | over TCP | over TLS | ratio |");
    println!("| --- | --- | --- | --- |");
    row("lock + release, one task, µs", &one, 1);
    row("64 tasks, distinct keys, pairs/s", &many, 0);
    Ok(())
}

fn row(what: &str, [tcp, tls]: &[Vec<f64>; 2], digits: usize) {
    let mut ratios: Vec<f64> = tls.iter().zip(tcp).map(|(tls, tcp)| tls / tcp).collect();
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    let (tcp, tls, ratio) = (median(tcp), median(tls), median(&ratios));
    println!("| {what} | {tcp:.digits$} | {tls:.digits$} | {ratio:.2} × ({least:.2}–{most:.2}) |");
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the microseconds of one pair, as the median of many.
async fn pairs(locks: &Locks) -> Result<f64> {
    let lock = locks.mutex("bench:one");
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let began = Instant::now();
        lock.lock().await?.release().await?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&times))
}

/// Returns the pairs per second.
async fn side_by_side(locks: &Locks) -> Result<f64> {
    let mut tasks = JoinSet::<nestlock::Result<()>>::new();
    let began = Instant::now();
    for at in 0..TASKS {
        let lock = locks.mutex(format!("bench:many:{at}"));
        tasks.spawn(async move {
            for _ in 0..PAIRS_PER_TASK {
                lock.lock().await?.release().await?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((TASKS * PAIRS_PER_TASK) as f64 / began.elapsed().as_secs_f64())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn start(port: u16, tls_port: u16, certificate: &Path, key: &Path, dir: &Path) -> Result<Redis> {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--save", "", "--tls-auth-clients", "no"]);
    command.args(["--port", &port.to_string(), "--tls-port", &tls_port.to_string()]);
    command.arg("--dir").arg(dir).arg("--tls-ca-cert-file").arg(certificate);
    command.arg("--tls-cert-file").arg(certificate).arg("--tls-key-file").arg(key);
    Ok(Redis(command.stdout(Stdio::null()).spawn()?))
}

async fn connect(server: Server) -> Result<Locks> {
    let patient = Locks::builder(server).node_timeout(Duration::from_secs(10));
    let patient = patient.unavailable_after(Duration::from_secs(60));
    let begun = Instant::now();
    loop {
        match patient.clone().connect().await {
            Err(error) if begun.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            // The server is still starting.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Ok(locks) => return Ok(locks),
        }
    }
}
