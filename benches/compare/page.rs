//! The report: a page and its plots, written from the results file alone. The page's text is in `report.md`.

use std::fs;
use std::path::Path;

use crate::peers::{Peers, targets};
use crate::plot::{self, Axes, Bar, Line};
use crate::ratios::rows;
use crate::results::{
    Contest, Crowd, Growth, Instructions, Machine, Many, Quantiles, Rate, Throughput, Timed, get,
};
use crate::server::Result;
use crate::spread::Spread;
use crate::store::Counts;
use crate::template::{self, Figures};

const REPORT: &str = include_str!("report.md");

pub(crate) fn write(results: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let page = template::fill(REPORT, &figures(results)?)?;
    let (pair, handoff) = (get(results, "pair")?, get(results, "handoff")?);
    plots(results, folder, [("pair", &pair), ("handoff", &handoff)], &get::<Vec<Crowd>>(results, "crowd")?)?;
    Ok(fs::write(folder.join("benchmarks.md"), page)?)
}

/// All that `report.md` names.
fn figures(results: &Path) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut put = |name: &str, figure: String| figures.insert(name.to_owned(), figure);
    put("ratios", ratios(results));
    if rows(results).iter().any(|row| row.client && row.met == Some(false)) {
        put("missed", String::new());
    }
    // Of the last comparison with other libraries on this machine, if there is one.
    if let Ok(peers) = get::<Peers>(&results.with_file_name("peers.json"), "peers") {
        put(
            "targets",
            table(&targets(&peers), |of| {
                format!("| {} | {} | {} | {} |", of.what, of.target, of.measured, verdict(of.met))
            }),
        );
    }
    for section in ["pair", "handoff"] {
        put(section, times(&get(results, section)?));
    }
    if let Ok(seen) = get::<Vec<Instructions>>(results, "instructions") {
        put("instructions", instructions(&seen));
    }
    let counts: Counts = get(results, "counts")?;
    put(
        "allocations",
        table(&counts.allocations, |of| format!("| {} | {:.1} | {:.0} |", of.name, of.blocks, of.bytes)),
    );
    put("counted pairs", counts.pairs.to_string());
    put("tasks", counts.tasks_spawned.to_string());
    put("sizes", table(&counts.sizes, |(name, size)| format!("| {name} | {size} |")));
    put("rates", rates(&get(results, "throughput")?));
    many(&mut put, &get(results, "many")?, &counts);
    put("waiters", table(&get::<Vec<Crowd>>(results, "crowd")?, crowd));
    if let Ok(all) = get::<Vec<Growth>>(results, "growth") {
        put("growth", table(&all, growth));
    }
    if let Ok(contests) = get::<Vec<Contest>>(results, "quorum-contest") {
        put("several masters", String::new());
        for section in ["quorum-3", "quorum-5"] {
            put(section, times(&get(results, section)?));
        }
        for section in ["frozen-3", "awake-3", "frozen-5", "awake-5"] {
            if let Ok(seen) = get(results, section) {
                put(section, times(&seen));
            }
        }
        put("contests", table(&contests, contest));
        let crowds: Vec<Crowd> = get(results, "quorum-crowd")?;
        put("waiters over several", table(&crowds, |of| format!("| {} {}", of.masters, crowd(of))));
    }
    let machine: Machine = get(results, "machine")?;
    put("machine", table(&machine.facts, |(name, fact)| format!("| {name} | {fact} |")));
    Ok(figures)
}

/// A line for each.
fn table<T>(of: &[T], line: impl Fn(&T) -> String) -> String {
    of.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn ratios(results: &Path) -> String {
    table(&rows(results), |row| {
        let met = row.met.map_or("", verdict);
        format!("| {} | {} | {} | {} | {met} |", row.what, row.floor, row.target, row.measured)
    })
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

fn times(timed: &Timed) -> String {
    let rounds = timed.cases[0].rounds.len();
    let lines = table(&timed.cases, |case| {
        let micros = |of: fn(&Quantiles) -> u64| {
            let spread = Spread::of(case.rounds.iter().map(|round| of(round) as f64 / 1e3));
            format!("{:.0} ({:.0}–{:.0})", spread.median, spread.low, spread.high)
        };
        let (p50, p90, p99) = (micros(|r| r.p50), micros(|r| r.p90), micros(|r| r.p99));
        let longest = case.rounds.iter().map(|round| round.max).max().unwrap_or_default() / 1_000;
        format!("| {} | {p50} | {p90} | {p99} | {longest} |", case.name)
    });
    let head = "| µs | median | 90 % | 99 % | longest of all |\n| --- | --- | --- | --- | --- |";
    format!("{head}\n{lines}\n\n{rounds} rounds of {} each.", timed.samples)
}

fn instructions(seen: &[Instructions]) -> String {
    let row = |name: &str, cells: Vec<String>| format!("| {name} | {} |", cells.join(" | "));
    let names: Vec<_> = seen.iter().map(|of| of.name.as_str()).collect();
    let mut lines =
        vec![format!("| | {} |", names.join(" | ")), format!("| --- |{}", " --- |".repeat(seen.len()))];
    let groups = seen.first().map(|of| of.groups.as_slice()).unwrap_or_default();
    for (at, (group, _)) in groups.iter().enumerate() {
        lines.push(row(group, seen.iter().map(|of| of.groups[at].1.to_string()).collect()));
    }
    let total = |of: &Instructions| of.groups.iter().map(|(_, count)| count).sum::<u64>();
    lines.push(row("together", seen.iter().map(|of| total(of).to_string()).collect()));
    lines.join("\n")
}

fn rates(seen: &Throughput) -> String {
    let named = [
        ("`redis-benchmark -c 1 -P 64`", &seen.benchmark),
        ("64 tasks, the `redis` crate alone", &seen.raw),
        ("64 tasks, locks", &seen.ours),
    ];
    let spread = |rates: &[Rate], of: fn(&Rate) -> Option<f64>| Spread::of(rates.iter().filter_map(of));
    table(&named, |(name, rates)| {
        let pairs = spread(rates, |rate| Some(rate.pairs_per_second));
        let client = spread(rates, |rate| rate.client_micros).median;
        let client = if client.is_nan() { "–".to_owned() } else { format!("{client:.1}") };
        let server = spread(rates, |rate| Some(rate.server_micros)).median;
        let (low, high) = (pairs.low, pairs.high);
        format!("| {name} | {:.0} ({low:.0}–{high:.0}) | {client} | {server:.1} |", pairs.median)
    })
}

fn many<T>(put: &mut impl FnMut(&str, String) -> T, seen: &Many, counts: &Counts) {
    let (holds, lease) = (seen.holds, seen.lease_ms / 1_000);
    let seconds = seen.leases * lease as f64;
    let figures = [
        ("holds", holds.to_string()),
        ("lease", lease.to_string()),
        ("leases", format!("{:.1}", seen.leases)),
        ("lost", seen.lost.to_string()),
        ("least left", seen.least_left_ms.to_string()),
        ("renewals", seen.renewals.to_string()),
        ("renewals a lease", format!("{:.2}", seen.renewals as f64 / holds as f64 / seen.leases)),
        ("processor", format!("{:.1}", seen.cpu_share * 100.0)),
        ("processor a renewal", format!("{:.1}", seen.cpu_share * seconds * 1e6 / seen.renewals as f64)),
        ("heap", format!("{:.0}", counts.bytes_per_hold)),
        ("heap of a waiter", format!("{:.0}", counts.bytes_per_waiter)),
        (
            "resident",
            seen.rss_per_hold
                .map_or_else(String::new, |bytes| format!(", {bytes} with what the allocator keeps")),
        ),
    ];
    for (name, figure) in figures {
        put(name, figure);
    }
}

fn crowd(of: &Crowd) -> String {
    let sent = of.commands.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>();
    let (each, sent, micros) = (of.per_handoff(), sent.join(", "), of.micros_per_handoff);
    format!("| {} | {} | {each:.2} | {sent} | {micros:.0} |", of.waiters, of.processes)
}

/// A line for each number.
fn growth(of: &Growth) -> String {
    table(&of.points, |point| {
        format!("| {} | {} | {:.0} | {:.2} |", of.what, point.count, point.micros, point.commands)
    })
}

fn contest(of: &Contest) -> String {
    let Contest { masters, clients, acquires, commands, micros, wait_p50, wait_p99, wait_max, .. } = of;
    let (p50, p99, max) = (wait_p50 / 1_000, wait_p99 / 1_000, wait_max / 1_000);
    format!("| {masters} | {clients} | {acquires:.2} | {commands:.2} | {micros:.0} | {p50} | {p99} | {max} |")
}

fn plots(results: &Path, folder: &Path, timed: [(&str, &Timed); 2], crowds: &[Crowd]) -> Result<()> {
    let bar = |name: &str, (ratio, limit): (Spread, Option<f64>)| {
        let (name, Spread { median, low, high }) = (name.replace('`', ""), ratio);
        Bar { name, low, median, high, limit, aside: false }
    };
    let bars = rows(results).into_iter().filter_map(|row| Some(bar(row.what, row.ratio?)));
    plot::ratios(&folder.join("bench-ratios.svg"), &bars.collect::<Vec<_>>())?;
    for (name, timed) in timed {
        let axes = Axes { across: "percentile", up: "µs" };
        let line =
            |points: &[(f64, u64)]| points.iter().map(|(at, nanos)| (*at, *nanos as f64 / 1e3)).collect();
        let lines =
            timed.cases.iter().map(|case| Line { name: case.name.clone(), points: line(&case.curve) });
        plot::percentiles(&folder.join(format!("bench-{name}.svg")), &axes, &lines.collect::<Vec<_>>())?;
    }
    let target = Line { name: "target".to_owned(), points: vec![(10.0, 3.0), (1_000.0, 3.0)] };
    let measured = [(1, "one `Locks`"), (2, "two `Locks`")].map(|(processes, name)| {
        let of = crowds.iter().filter(|crowd| crowd.processes == processes);
        let points = of.map(|crowd| (crowd.waiters as f64, crowd.per_handoff())).collect();
        Line { name: name.replace('`', ""), points }
    });
    if let Ok(all) = get::<Vec<Growth>>(results, "growth") {
        growth_plots(folder, &all)?;
    }
    let axes = Axes { across: "waiters", up: "commands" };
    let lines: Vec<Line> = [target].into_iter().chain(measured).collect();
    plot::counts(&folder.join("bench-waiters.svg"), &axes, &lines, 4.5)
}

/// One plot of what is counted in powers of ten, and one of few masters and processes.
fn growth_plots(folder: &Path, all: &[Growth]) -> Result<()> {
    let line = |of: &Growth| {
        let points = of.points.iter().map(|point| (point.count as f64, point.micros)).collect();
        Line { name: of.what.split(':').next().unwrap_or_default().to_owned(), points }
    };
    let (many, few): (Vec<_>, Vec<_>) =
        all.iter().partition(|of| of.points.windows(2).any(|pair| pair[1].count >= 10 * pair[0].count));
    let axes = Axes { across: "how many", up: "µs" };
    let lines = |of: Vec<&Growth>| of.into_iter().map(line).collect::<Vec<_>>();
    plot::powers(&folder.join("bench-growth-many.svg"), &axes, &lines(many))?;
    plot::numbers(&folder.join("bench-growth-few.svg"), &axes, &lines(few))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::store::put;

    fn timed(nanos: [u64; 5]) -> Value {
        let names = ["the floor", "one", "two", "three", "four"];
        let round = |p50: u64| json!({ "p50": p50, "p90": p50 * 2, "p99": p50 * 3, "max": p50 * 40 });
        let cases = names.iter().zip(nanos).map(|(name, nanos)| {
            let rounds = [round(nanos), round(nanos + 10_000), round(nanos + 20_000)];
            json!({ "name": name, "rounds": rounds, "curve": [[50.0, nanos], [99.0, nanos * 3]] })
        });
        json!({ "samples": 1_000, "cases": cases.collect::<Vec<_>>() })
    }

    fn crowd(masters: u64, waiters: u64, processes: u64) -> Value {
        let commands = json!({ "evalsha": (2 * waiters + 1) * masters, "unsubscribe": masters });
        let fixed = json!({ "masters": masters, "waiters": waiters, "processes": processes });
        let mut crowd = json!({ "handoffs": waiters, "commands": commands, "micros_per_handoff": 371.4 });
        crowd.as_object_mut().unwrap().extend(fixed.as_object().unwrap().clone());
        crowd
    }

    /// The page that is written from made-up figures; on several masters too, or on one alone.
    fn page(several: bool) -> String {
        let folder = std::env::temp_dir().join(format!("nestlock-report-{}-{several}", std::process::id()));
        let results = folder.join("results.json");
        let rates = |pairs: f64, client: Option<f64>| json!([{ "pairs_per_second": pairs, "client_micros": client, "server_micros": 12.25 }]);
        let mut sections = vec![
            ("pair", timed([100_000, if several { 112_000 } else { 104_000 }, 80_000, 130_000, 140_000])),
            ("handoff", timed([500_000, 600_000, 0, 0, 0])),
            ("crowd", json!([crowd(1, 10, 1), crowd(1, 10, 2)])),
            (
                "throughput",
                json!({ "benchmark": rates(60_000.0, None), "raw": rates(59_000.0, Some(6.2)),
                    "ours": rates(if several { 30_000.0 } else { 120_000.0 }, Some(13.4)) }),
            ),
            (
                "many",
                json!({ "holds": 10_000, "lease_ms": 3_000, "leases": 5.0, "lost": 0, "least_left_ms": 1_898,
                    "renewals": 150_500, "cpu_share": 0.079, "rss_per_hold": several.then_some(3_405) }),
            ),
            (
                "counts",
                json!({ "pairs": 1_000, "tasks_spawned": 0, "bytes_per_hold": 3_395.2,
                    "bytes_per_waiter": 1_060.0, "sizes": [["`Mutex`", 24]],
                    "allocations": [{ "name": "run", "blocks": 24.0, "bytes": 10_531.4 }] }),
            ),
            ("machine", json!({ "facts": [["cores", "2"], ["server", "Redis 7.0.15"]] })),
        ];
        if several {
            let of = |name: &str, lock: u64| json!({ "name": name, "groups": [["the lock", lock], ["tokio", 9_915]] });
            sections.push(("instructions", json!([of("raw", 54), of("lock", 11_902)])));
            for section in ["quorum-3", "quorum-5", "frozen-3", "frozen-5", "awake-5"] {
                sections.push((section, timed([467_000, 305_000, 394_000, 300_000, 0])));
            }
            sections.push((
                "quorum-contest",
                json!([{ "masters": 3, "clients": 3, "grants": 300, "acquires": 1.02, "commands": 2.04,
                    "micros": 837.4, "wait_p50": 900, "wait_p99": 1_900, "wait_max": 217_000 }]),
            ));
            sections.push(("quorum-crowd", json!([crowd(3, 10, 1)])));
            let of = |what: &str, counts: [usize; 2]| {
                let points = counts.map(|count| json!({ "count": count, "micros": 80.4, "commands": 2.0 }));
                json!({ "what": what, "points": points })
            };
            sections.push(("growth", json!([of("names: a pair", [1, 10]), of("masters: a pair", [1, 2])])));
        }
        for (section, figures) in &sections {
            put(&results, section, figures).unwrap();
        }
        write(&results, &folder).unwrap();
        let page = fs::read_to_string(folder.join("benchmarks.md")).unwrap();
        fs::remove_dir_all(folder).unwrap();
        page
    }

    #[track_caller]
    fn has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|other| other == *line), "`{line}` is missing in:\n{page}");
        }
    }

    #[test]
    fn the_page_of_one_master_has_no_section_on_several_and_no_reason_for_a_target_that_was_met() {
        let page = page(false);
        has(
            &page,
            &[
                "| the floor | 110 (100–120) | 220 (200–240) | 330 (300–360) | 4800 |",
                "3 rounds of 1000 each.",
                "| `redis-benchmark -c 1 -P 64` | 60000 (60000–60000) | – | 12.2 |",
                "## 10000 locks held",
                "| 10 | 2 | 2.20 | 21 evalsha, 1 unsubscribe | 371 |",
                "| server | Redis 7.0.15 |",
            ],
        );
        for absent in ["{{", "## Several masters", "## How it grows", "Why targets are missed", "valgrind"] {
            assert!(!page.contains(absent), "{page}");
        }
    }

    #[test]
    fn the_page_of_several_masters_has_what_was_measured_of_them() {
        let page = page(true);
        has(
            &page,
            &[
                "| the lock | 54 | 11902 |",
                "| together | 9969 | 21817 |",
                "## Several masters",
                "2 of 5 masters, cores kept awake:",
                "| 3 | 3 | 1.02 | 2.04 | 837 | 0 | 1 | 217 |",
                "| 3 | 10 | 1 | 2.20 | 63 evalsha, 3 unsubscribe | 371 |",
                "| names: a pair | 10 | 80 | 2.00 |",
                "| masters: a pair | 2 | 80 | 2.00 |",
            ],
        );
        assert!(
            page.contains("Why targets are missed") && page.contains(", 3405 with what the allocator keeps.")
        );
        for absent in ["{{", "1 of 3 masters, cores kept awake:"] {
            assert!(!page.contains(absent), "{page}");
        }
    }
}
