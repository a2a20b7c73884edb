//! What a run came to, as a table.

use std::path::Path;

use hdrhistogram::Histogram;

use crate::checker::{self, Findings, History, Overlap, Recovery, Try};
use crate::clock::seconds;
use crate::job::Setting;
use crate::violation::Violation;
use crate::{Result, journal};

/// The file beside the logs that has what was run.
pub(crate) const SETTING: &str = "setting.json";

/// How many violations are printed.
const SHOWN: usize = 20;

/// Whether any process has got a lock yet.
pub(crate) fn is_granted(folder: &Path) -> Result<bool> {
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        let is_log = path.extension().is_some_and(|end| end == "log");
        if is_log
            && journal::read(&path)?.iter().any(|entry| matches!(entry.event, journal::Event::Granted { .. }))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks the logs in a folder, and prints what they show; whether all is as it must be.
pub(crate) fn judge(folder: &Path) -> Result<bool> {
    let setting: Setting = serde_json::from_slice(&std::fs::read(folder.join(SETTING))?)?;
    let history = History::read(folder)?;
    let findings = Findings::of(&history);
    println!("\n{}, seed {}, {} s", setting.shape, setting.seed, setting.seconds);
    println!("  (a seed decides the order of faults and operations; the timing differs from run to run)");
    operations(&history);
    recoveries(&history);
    gaps(&history, &findings);
    checks(&history, &findings);
    let violations = Violation::all(&history, &findings);
    for violation in violations.iter().take(SHOWN) {
        violation.print(&history);
    }
    if violations.is_empty() {
        println!("\nno violation");
    } else {
        println!("\n{} violations; logs in {}", violations.len(), folder.display());
    }
    Ok(violations.is_empty())
}

fn operations(history: &History) {
    println!("\ngrants {}", history.grants());
    for (how, count) in &history.ways {
        println!("  {how:<32} {count:>8}");
    }
    list("losses that holders saw", history.losses.iter().map(|(loss, count)| (loss.clone(), *count)));
    let failures = history.failures.iter().map(|((how, kind), count)| (format!("{how}: {kind}"), *count));
    list("operations that failed", failures);
}

fn checks(history: &History, findings: &Findings) {
    println!("\nchecks");
    row("holds that overlap", findings.overlaps.len());
    println!("    {:<34} {:>6}", "over a documented loss", findings.documented.len());
    if let Some(longest) = findings.documented.iter().map(Overlap::nanos).max() {
        println!("    {:<34} {:>6.3} s", "the longest of these", seconds(longest));
    }
    let losing = history.faults.iter().filter(|fault| fault.loses).map(|fault| fault.to - fault.from).sum();
    println!("    {:<34} {:>6.1} s", "time in which servers may lose", seconds(losing));
    row("tokens that do not grow", findings.disorders.len());
    println!("    {:<34} {:>6}", "writes that the register took", history.taken_writes);
    println!("    {:<34} {:>6}", "late writes that it refused", history.refused_writes);
    row("holds gone without a reason", findings.lost.len());
    let holds = || history.holds.values().flatten();
    row("holds that were over, and confirmed", findings.confirmed.len());
    println!(
        "    {:<34} {:>6}",
        "checks that confirmed a hold",
        holds().map(|hold| hold.checks.len()).sum::<usize>()
    );
    row("claims resumed twice, or refused", findings.misclaims.len());
    println!("    {:<34} {:>6}", "claims", holds().filter(|hold| hold.claim.is_some()).count());
    println!("    {:<34} {:>6}", "tries to resume one", history.tries.values().map(Vec::len).sum::<usize>());
    let granted = |tries: &[Try]| tries.iter().filter(|one| one.granted.is_some()).count();
    println!(
        "    {:<34} {:>6}",
        "of these, granted",
        history.tries.values().map(|tries| granted(tries)).sum::<usize>()
    );
    row("kept locks granted too early", findings.too_early.len());
    println!("    {:<34} {:>6}", "locks that were kept", holds().filter(|hold| hold.kept.is_some()).count());
    row("free locks that were not granted", findings.slow().count());
    row("wrong answers, and what was left", history.wrong.len());
}

fn row(what: &str, count: usize) {
    let mark = if count == 0 { "" } else { "  VIOLATION" };
    println!("  {what:<36} {count:>6}{mark}");
}

fn list(heading: &str, rows: impl Iterator<Item = (String, u64)>) {
    println!("\n{heading}");
    for (what, count) in rows {
        println!("  {what:<32} {count:>8}");
    }
}

fn recoveries(history: &History) {
    println!("\n{:<34} {:>6}  seconds until each lock is granted again", "faults", "count");
    println!("{:<34} {:>6}  {:>8} {:>8} {:>8}  next one came before", "", "", "median", "90 %", "longest");
    let mut all = Vec::new();
    for (kind, Recovery { count, times, cut_short }) in checker::recoveries(history) {
        println!("  {kind:<32} {count:>6}  {} {cut_short:>8}", quantiles(&times));
        all.extend(times);
    }
    println!("  {:<32} {:>6}  {}", "all", history.faults.len(), quantiles(&all));
}

/// How long free locks stayed free.
fn gaps(history: &History, findings: &Findings) {
    println!(
        "\n{:<34} {:>6}  {:>8} {:>8} {:>8}  seconds until a waiter had it",
        "free locks", "count", "median", "90 %", "longest"
    );
    for (what, calm) in [("without faults", true), ("with faults", false)] {
        let waits = findings.waits.iter().filter(|wait| wait.calm == calm);
        let times: Vec<u64> = waits.map(|wait| wait.nanos).collect();
        println!("  {what:<32} {:>6}  {}", times.len(), quantiles(&times));
    }
    let longest = history.stalls.iter().map(|(from, to)| to - from).max().unwrap_or_default();
    let (stalls, longest) = (history.stalls.len(), seconds(longest));
    println!("  servers answered late {} times, those with faults included", history.late.len());
    println!("  processes stood still {stalls} times, frozen ones included, for {longest:.1} s at most");
}

fn quantiles(nanos: &[u64]) -> String {
    let Ok(mut histogram) = Histogram::<u64>::new(3) else { return String::new() };
    for nanos in nanos {
        // One that grows as needed takes any value.
        let _ = histogram.record(nanos / 1_000);
    }
    if histogram.is_empty() {
        return format!("{:>8} {:>8} {:>8}", "-", "-", "-");
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    format!("{:>8.3} {:>8.3} {:>8.3}", at(0.5), at(0.9), histogram.max() as f64 / 1e6)
}
