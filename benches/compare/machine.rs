//! The machine on which the figures were taken.

use std::fs;
use std::process::Command;

use crate::results::Machine;
use crate::server::Result;
use crate::stats::Stats;

pub(crate) async fn machine() -> Result<Machine> {
    let mut stats = Stats::connect().await?;
    let server = match stats.fact("server", "valkey_version").await? {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", stats.fact("server", "redis_version").await?.unwrap_or_default()),
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let facts = [
        ("processor", processor()),
        ("cores", Some(std::env::var("BENCH_CORES").unwrap_or_else(|_| cores.to_string()))),
        ("pinned", Some(std::env::var("BENCH_PINNED").unwrap_or_else(|_| "nothing".to_owned()))),
        ("system", output_of("uname", &["-srm"])),
        ("server", Some(server)),
        ("Rust", output_of("rustc", &["--version"])),
        ("redis crate", locked("redis")),
        ("tokio", locked("tokio")),
        ("date", output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
    ];
    let known = facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
    Ok(Machine { facts: known.collect() })
}

/// Returns how many processes were ready to run in the last minute: the machine may have had other work.
pub(crate) fn load() -> Option<String> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next().map(str::to_owned)
}

fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = info.lines().find(|line| line.starts_with("model name"));
    let named = named.and_then(|line| line.split(": ").nth(1)).map(str::to_owned);
    named.or_else(|| output_of("sysctl", &["-n", "machdep.cpu.brand_string"]))
}

fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Returns the version of a package that was built.
fn locked(package: &str) -> Option<String> {
    let lock = fs::read_to_string("Cargo.lock").ok()?;
    let entry =
        lock.split("[[package]]").find(|entry| entry.contains(&format!("\nname = \"{package}\"\n")))?;
    entry
        .lines()
        .find_map(|line| line.strip_prefix("version = "))
        .map(|version| version.trim_matches('"').into())
}
