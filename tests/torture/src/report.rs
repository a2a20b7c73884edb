//! The result of a run, as a table.

use std::path::Path;

use hdrhistogram::Histogram;

use crate::checker::{self, Findings, History, Overlap, Recovery, Try};
use crate::clock::seconds;
use crate::job::Setting;
use crate::login::{Leak, Login, Scan, Searched};
use crate::violation::Violation;
use crate::{Result, journal};

/// The file beside the logs that describes the run.
pub(crate) const SETTING: &str = "setting.json";

/// How many violations are printed at most.
const SHOWN: usize = 20;

/// Returns whether any process has got a lock yet.
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

/// Checks the logs in a folder, and prints what they show. Returns whether everything is correct.
pub(crate) fn judge(folder: &Path) -> Result<bool> {
    let setting: Setting = serde_json::from_slice(&std::fs::read(folder.join(SETTING))?)?;
    let history = History::read(folder)?;
    let findings = Findings::of(&history);
    let scan = Scan::of(&Login::of(setting.seed));
    let mut searched = Searched::default();
    scan.search_folder(folder, &mut searched)?;
    let page = &mut Page::default();
    page.line(format!("\n{}, seed {}, {} s", setting.shape, setting.seed, setting.seconds));
    page.line("  (a seed decides the order of faults and operations; the timing differs from run to run)");
    operations(page, &history);
    recoveries(page, &history);
    gaps(page, &history, &findings);
    checks(page, &history, &findings);
    let violations = Violation::all(&history, &findings);
    let mut shown = Page::default();
    for violation in violations.iter().take(SHOWN) {
        shown.line(violation.in_words(&history));
    }
    scan.search("the report", &format!("{}{}", page.0, shown.0), &mut searched);
    outputs(page, &searched);
    for Leak { output, line, text } in searched.leaks.iter().take(SHOWN) {
        shown.line(format!("\nVIOLATION: the password is in {output}, line {line}: {text}"));
    }
    let count = violations.len() + searched.leaks.len();
    match count {
        0 => shown.line("\nno violation"),
        _ => shown.line(format!("\n{count} violations; logs in {}", folder.display())),
    }
    print!("{}", scan.mask(&format!("{}{}", page.0, shown.0)));
    Ok(count == 0)
}

/// The text that will be printed.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: impl AsRef<str>) {
        self.0 += line.as_ref();
        self.0.push('\n');
    }
}

fn outputs(page: &mut Page, searched: &Searched) {
    row(page, "outputs that have the password", searched.leaks.len());
    page.line(format!("    {:<34} {:>6}", "outputs that were searched", searched.outputs));
    page.line(format!("    {:<34} {:>6} MB", "their size", searched.bytes / 1_000_000));
}

fn operations(page: &mut Page, history: &History) {
    page.line(format!("\ngrants {}", history.grants()));
    for (how, count) in &history.ways {
        page.line(format!("  {how:<32} {count:>8}"));
    }
    list(page, "losses that holders saw", history.losses.iter().map(|(loss, count)| (loss.clone(), *count)));
    let failures = history.failures.iter().map(|((how, kind), count)| (format!("{how}: {kind}"), *count));
    list(page, "operations that failed", failures);
}

fn checks(page: &mut Page, history: &History, findings: &Findings) {
    page.line("\nchecks");
    row(page, "holds that overlap", findings.overlaps.len());
    page.line(format!("    {:<34} {:>6}", "over a documented loss", findings.documented.len()));
    if let Some(longest) = findings.documented.iter().map(Overlap::nanos).max() {
        page.line(format!("    {:<34} {:>6.3} s", "the longest of these", seconds(longest)));
    }
    let losing = history.faults.iter().filter(|fault| fault.loses).map(|fault| fault.to - fault.from).sum();
    page.line(format!("    {:<34} {:>6.1} s", "time in which servers may lose", seconds(losing)));
    row(page, "tokens that do not grow", findings.disorders.len());
    page.line(format!("    {:<34} {:>6}", "writes that the register took", history.taken_writes));
    page.line(format!("    {:<34} {:>6}", "late writes that it refused", history.refused_writes));
    row(page, "holds gone without a reason", findings.lost.len());
    let holds = || history.holds.values().flatten();
    row(page, "holds that were over, and confirmed", findings.confirmed.len());
    page.line(format!(
        "    {:<34} {:>6}",
        "checks that confirmed a hold",
        holds().map(|hold| hold.checks.len()).sum::<usize>()
    ));
    row(page, "claims resumed twice, or refused", findings.misclaims.len());
    page.line(format!("    {:<34} {:>6}", "claims", holds().filter(|hold| hold.claim.is_some()).count()));
    page.line(format!(
        "    {:<34} {:>6}",
        "tries to resume one",
        history.tries.values().map(Vec::len).sum::<usize>()
    ));
    let granted = |tries: &[Try]| tries.iter().filter(|one| one.granted.is_some()).count();
    page.line(format!(
        "    {:<34} {:>6}",
        "of these, granted",
        history.tries.values().map(|tries| granted(tries)).sum::<usize>()
    ));
    row(page, "kept locks granted too early", findings.too_early.len());
    page.line(format!(
        "    {:<34} {:>6}",
        "locks that were kept",
        holds().filter(|hold| hold.kept.is_some()).count()
    ));
    row(page, "free locks that were not granted", findings.slow().count());
    row(page, "wrong answers, and what was left", history.wrong.len());
}

fn row(page: &mut Page, what: &str, count: usize) {
    let mark = if count == 0 { "" } else { "  VIOLATION" };
    page.line(format!("  {what:<36} {count:>6}{mark}"));
}

fn list(page: &mut Page, heading: &str, rows: impl Iterator<Item = (String, u64)>) {
    page.line(format!("\n{heading}"));
    for (what, count) in rows {
        page.line(format!("  {what:<32} {count:>8}"));
    }
}

fn recoveries(page: &mut Page, history: &History) {
    page.line(format!("\n{:<34} {:>6}  seconds until each lock is granted again", "faults", "count"));
    page.line(format!(
        "{:<34} {:>6}  {:>8} {:>8} {:>8}  next one came before",
        "", "", "median", "90 %", "longest"
    ));
    let mut all = Vec::new();
    for (kind, Recovery { count, times, cut_short }) in checker::recoveries(history) {
        page.line(format!("  {kind:<32} {count:>6}  {} {cut_short:>8}", quantiles(&times)));
        all.extend(times);
    }
    page.line(format!("  {:<32} {:>6}  {}", "all", history.faults.len(), quantiles(&all)));
}

/// Prints for how long free locks stayed free.
fn gaps(page: &mut Page, history: &History, findings: &Findings) {
    page.line(format!(
        "\n{:<34} {:>6}  {:>8} {:>8} {:>8}  seconds until a waiter had it",
        "free locks", "count", "median", "90 %", "longest"
    ));
    for (what, calm) in [("without faults", true), ("with faults", false)] {
        let waits = findings.waits.iter().filter(|wait| wait.calm == calm);
        let times: Vec<u64> = waits.map(|wait| wait.nanos).collect();
        page.line(format!("  {what:<32} {:>6}  {}", times.len(), quantiles(&times)));
    }
    let longest = history.stalls.iter().map(|(from, to)| to - from).max().unwrap_or_default();
    let (stalls, longest) = (history.stalls.len(), seconds(longest));
    page.line(format!("  servers answered late {} times, those with faults included", history.late.len()));
    page.line(format!(
        "  processes stood still {stalls} times, frozen ones included, for {longest:.1} s at most"
    ));
}

fn quantiles(nanos: &[u64]) -> String {
    let Ok(mut histogram) = Histogram::<u64>::new(3) else { return String::new() };
    for nanos in nanos {
        // A histogram that grows as needed takes any value.
        let _ = histogram.record(nanos / 1_000);
    }
    if histogram.is_empty() {
        return format!("{:>8} {:>8} {:>8}", "-", "-", "-");
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    format!("{:>8.3} {:>8.3} {:>8.3}", at(0.5), at(0.9), histogram.max() as f64 / 1e6)
}
