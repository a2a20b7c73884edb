//! What a run came to, as a table.

use std::path::Path;

use hdrhistogram::Histogram;

use crate::checker::{self, Fault, History, Overlap, Recovery, Wait};
use crate::clock::seconds;
use crate::job::Setting;
use crate::{Result, journal};

/// The file beside the logs that has what was run.
pub(crate) const SETTING: &str = "setting.json";

/// How many violations of one kind are printed.
const SHOWN: usize = 5;

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
    let overlaps = checker::overlaps(&history);
    let (documented, violations): (Vec<&Overlap>, Vec<&Overlap>) =
        overlaps.iter().partition(|overlap| overlap.documented);
    let disorders = checker::disorders(&history);
    let lost = checker::unexplained_losses(&history);
    let waits = checker::waits(&history);
    let slow: Vec<&Wait> = waits.iter().filter(|wait| wait.is_too_long()).collect();
    let begin = history.begun.unwrap_or_default();
    let when = |at: u64| format!("{:.3} s", at as f64 / 1e9 - seconds(begin));

    println!("\n{}, seed {}, {} s", setting.shape, setting.seed, setting.seconds);
    println!(
        "  (the seed decides the order of faults and operations; the timing of real processes differs from run to run)"
    );
    println!("\ngrants {}", history.grants());
    for (how, count) in &history.ways {
        println!("  {how:<32} {count:>8}");
    }
    list("losses that holders saw", history.losses.iter().map(|(loss, count)| (loss.clone(), *count)));
    let failures = history.failures.iter().map(|((how, kind), count)| (format!("{how}: {kind}"), *count));
    list("operations that failed", failures);
    recoveries(&history);
    gaps(&waits);
    let longest = history.stalls.iter().map(|(from, to)| to - from).max().unwrap_or_default();
    let stalls = history.stalls.len();
    println!(
        "  processes stood still {stalls} times, frozen ones included, for {:.1} s at most",
        seconds(longest)
    );

    println!("\nchecks");
    row("holds that overlap", violations.len());
    println!("    {:<34} {:>6}", "over a documented loss", documented.len());
    if let Some(longest) = documented.iter().map(|overlap| overlap.nanos()).max() {
        println!("    {:<34} {:>6.3} s", "the longest of these", seconds(longest));
    }
    let losing = history.faults.iter().filter(|fault| fault.loses).map(|fault| fault.to - fault.from).sum();
    println!("    {:<34} {:>6.1} s", "time in which servers may lose", seconds(losing));
    row("tokens that do not grow", disorders.len());
    println!("    {:<34} {:>6}", "writes that the register took", history.taken_writes);
    println!("    {:<34} {:>6}", "late writes that it refused", history.refused_writes);
    row("holds gone without a reason", lost.len());
    row("free locks that were not granted", slow.len());
    row("wrong answers, and what was left", history.wrong.len());

    let mut found: Vec<Violation> = violations
        .iter()
        .map(|overlap| {
            let Overlap { name, first, second, .. } = overlap;
            let what = format!("{name} was held twice, for {:.3} s:", seconds(overlap.nanos()));
            let holds = [first, second].map(|hold| {
                format!("\n    {}, granted {}, held until {}", hold.who, when(hold.granted), when(hold.end))
            });
            Violation { at: second.granted, from: first.asked, what: what + &holds.concat() }
        })
        .collect();
    found.extend(disorders.iter().map(|(name, before, hold)| {
        let tokens = (before.token.unwrap_or_default(), hold.token.unwrap_or_default());
        let what = format!("{name}: {} got the token {}, and then", before.who, tokens.0);
        Violation {
            at: hold.granted,
            from: before.granted,
            what: format!("{what} {} got {}", hold.who, tokens.1),
        }
    }));
    found.extend(lost.iter().map(|(name, hold)| {
        let what = format!("{name} was gone without a reason: {}, granted {}", hold.who, when(hold.granted));
        Violation { at: hold.gone.unwrap_or(hold.end), from: hold.asked, what }
    }));
    found.extend(slow.iter().map(|wait| {
        let calm = if wait.calm { "nothing failed" } else { "there were faults" };
        let what = format!("{} was free and waited for, for {:.3} s; {calm}", wait.name, seconds(wait.nanos));
        Violation { at: wait.from, from: wait.from, what }
    }));
    found.extend(history.wrong.iter().map(|(at, what)| Violation { at: *at, from: *at, what: what.clone() }));
    found.sort_by_key(|violation| violation.at);
    for violation in found.iter().take(SHOWN) {
        println!("\nVIOLATION at {}: {}", when(violation.at), violation.what);
        around(&history, violation.from, violation.at, &when);
    }
    let count = found.len();
    if count == 0 {
        println!("\nno violation");
        return Ok(true);
    }
    println!("\n{count} violations; logs in {}", folder.display());
    Ok(false)
}

struct Violation {
    at: u64,
    /// Faults since then may have to do with it.
    from: u64,
    what: String,
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
fn gaps(waits: &[Wait]) {
    println!(
        "\n{:<34} {:>6}  {:>8} {:>8} {:>8}  seconds until a waiter had it",
        "free locks", "count", "median", "90 %", "longest"
    );
    for (what, calm) in [("without faults", true), ("with faults", false)] {
        let times: Vec<u64> = waits.iter().filter(|wait| wait.calm == calm).map(|wait| wait.nanos).collect();
        println!("  {what:<32} {:>6}  {}", times.len(), quantiles(&times));
    }
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

/// The faults in this time, and shortly before.
fn around(history: &History, from: u64, to: u64, when: &impl Fn(u64) -> String) {
    let shortly = from.saturating_sub(4_000_000_000);
    for Fault { what, from, to, .. } in
        history.faults.iter().filter(|fault| fault.from <= to && shortly <= fault.to)
    {
        println!("    fault from {} to {}: {what}", when(*from), when(*to));
    }
}
