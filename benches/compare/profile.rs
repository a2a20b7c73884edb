//! The instructions that the client executes for one lock and release, counted by valgrind: the same on a busy machine as on a quiet one.
//!
//! gungraun (formerly iai-callgrind) is not used: it reports the total of a benchmark and the inclusive cost of functions, but the page
//! shows whose code is executed. That needs the exclusive cost of each function, which `callgrind_annotate` prints.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::pair::Pairs;
use crate::results::Instructions;
use crate::rounds::Ways;
use crate::server::{Result, patient};

/// The groups of code, each with texts in the names of its functions; a function belongs to the first group that fits.
const GROUPS: [(&str, &[&str]); 5] = [
    ("the lock", &["nestlock::"]),
    ("the `redis` crate", &["redis::", "combine::", "tokio_util::", "itoa::"]),
    ("tokio", &["tokio::", "mio::"]),
    ("the allocator", &["malloc", "free", "realloc", "unlink_chunk", "__rust", "__rdl", "raw_vec"]),
    ("copies, hashes and the rest", &[""]),
];

/// The numbers of pairs in two runs. Code that is executed once, for the start and the end, is in both.
const FEW: u64 = 200;
const MANY: u64 = 1_200;

/// Runs that many pairs in one way, in a process that runs under valgrind.
pub(crate) async fn run(way: usize, pairs: u64) -> Result<()> {
    let locks = patient().connect().await?;
    let mut ways = Pairs::new(&locks).await?;
    for _ in 0..pairs {
        ways.once(way).await?;
    }
    Ok(())
}

/// Counts the instructions. Returns `None` if there is no valgrind.
pub(crate) fn profile(folder: &Path) -> Result<Option<Vec<Instructions>>> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(None);
    }
    let mut seen = Vec::new();
    for (way, name) in Pairs::NAMES.iter().enumerate() {
        let (few, many) = (count(folder, way, FEW)?, count(folder, way, MANY)?);
        let each = |at: usize| many[at].saturating_sub(few[at]) / (MANY - FEW);
        let groups = GROUPS.iter().enumerate().map(|(at, (group, _))| ((*group).to_owned(), each(at)));
        seen.push(Instructions { name: (*name).to_owned(), groups: groups.collect() });
    }
    Ok(Some(seen))
}

/// Returns the instructions of each group.
fn count(folder: &Path, way: usize, pairs: u64) -> Result<[u64; GROUPS.len()]> {
    let file = folder.join(format!("callgrind.{way}.{pairs}"));
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", file.display()));
    command.arg(std::env::current_exe()?).args(["--pairs", &pairs.to_string(), "--way", &way.to_string()]);
    if !command.stdin(Stdio::null()).status()?.success() {
        return Err("the benchmark fails under valgrind; its last output is above".into());
    }
    let output =
        Command::new("callgrind_annotate").args(["--threshold=100", "--show-percs=no"]).arg(file).output()?;
    let annotated = String::from_utf8_lossy(&output.stdout);
    let mut sums = [0; GROUPS.len()];
    // The lines below the totals have a count, and where it was taken.
    for line in annotated.lines().skip_while(|line| !line.contains("PROGRAM TOTALS")).skip(1) {
        let Some((count, place)) = line.trim_start().split_once(' ') else { continue };
        let Ok(count) = count.replace(',', "").parse::<u64>() else { continue };
        let fits = |(_, marks): &(&str, &[&str])| marks.iter().any(|mark| place.contains(mark));
        sums[GROUPS.iter().position(fits).unwrap_or(GROUPS.len() - 1)] += count;
    }
    Ok(sums)
}
