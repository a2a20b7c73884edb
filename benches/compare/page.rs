//! The report: a page for users, a page on the targets, and the plots, written from the results file alone. The text is in `report.md` and
//! `targets.md`.

use std::fs;
use std::path::Path;

use crate::peers::{Peers, targets};
use crate::plot::{self, Bar, Group, Labels, Line};
use crate::ratios::{against, rows};
use crate::results::{
    Case, Contest, Crowd, Growth, Instructions, Machine, Many, Quantiles, Rate, Throughput, Timed, get,
};
use crate::server::Result;
use crate::spread::Spread;
use crate::store::Counts;
use crate::template::{self, Figures};

const REPORT: &str = include_str!("report.md");
const TARGETS: &str = include_str!("targets.md");

pub(crate) fn write(results: &Path, folder: &Path) -> Result<()> {
    let lab = folder.join("lab");
    fs::create_dir_all(&lab)?;
    let figures = figures(results)?;
    let (page, targets) = (template::fill(REPORT, &figures)?, template::fill(TARGETS, &figures)?);
    plots(results, folder)?;
    fs::write(folder.join("benchmarks.md"), page)?;
    Ok(fs::write(lab.join("targets.md"), targets)?)
}

/// Returns all figures that `report.md` and `targets.md` name.
fn figures(results: &Path) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut put = |name: &str, figure: String| figures.insert(name.to_owned(), figure);
    put("ratios", ratios(results));
    put("limits", limits(results));
    if rows(results).iter().any(|row| row.client && row.met == Some(false)) {
        put("missed", String::new());
    }
    // These figures are from the last comparison with other libraries on this machine, if there is one.
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
    put("in short", in_short(results, &counts)?);
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

/// Returns a table with a line for each item.
fn table<T>(of: &[T], line: impl Fn(&T) -> String) -> String {
    of.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns lines with the cost of a call and what it is compared with.
fn in_short(results: &Path, counts: &Counts) -> Result<String> {
    let mut lines = Vec::new();
    let mut time = |what: &str, section: &str, case: usize, floor: &str| {
        let Ok(timed) = get::<Timed>(results, section) else { return };
        if let Some(of) = timed.cases.get(case) {
            let micros = Spread::of(of.rounds.iter().map(|round| round.p50 as f64 / 1e3)).median;
            let ratio = against(&timed, case, |round| round.p50).median;
            lines.push(format!("| {what} | {micros:.0} µs | {ratio:.2} × {floor} |"));
        }
    };
    time("lock and release a free lock", "pair", 1, "two bare round trips");
    time("the same with a fencing token", "pair", 4, "two bare round trips");
    time("release → a waiter of another `Locks` holds", "handoff", 1, "a message and a round trip");
    time("lock and release over 3 masters", "quorum-3", 1, "two round trips to all of them");
    time("lock and release over 5 masters", "quorum-5", 1, "two round trips to all of them");
    let (seen, many): (Throughput, Many) = (get(results, "throughput")?, get(results, "many")?);
    let rates = |rates: &[Rate]| rates.iter().map(|rate| rate.pairs_per_second).collect::<Vec<_>>();
    let share = Spread::of_ratios(rates(&seen.ours), rates(&seen.benchmark)).median;
    lines.push(format!(
        "| 64 tasks take a lock each, over one connection | {:.0} locks a second | {share:.2} × `redis-benchmark` in C |",
        Spread::of(rates(&seen.ours)).median
    ));
    lines.push(format!(
        "| hold {} locks, renewed | {:.1} % of a core | |",
        many.holds,
        many.cpu_share * 100.0
    ));
    let (hold, waiter) = (counts.bytes_per_hold, counts.bytes_per_waiter);
    lines.push(format!("| memory of a hold, of a waiting request | {hold:.0}, {waiter:.0} bytes | |"));
    Ok(lines.join("\n"))
}

fn ratios(results: &Path) -> String {
    let compared: Vec<_> = rows(results).into_iter().filter(|row| row.floor != "–").collect();
    table(&compared, |row| format!("| {} | {} | {} |", row.what, row.floor, row.measured))
}

fn limits(results: &Path) -> String {
    let limited: Vec<_> = rows(results).into_iter().filter(|row| row.met.is_some()).collect();
    table(&limited, |row| {
        let met = row.met.map_or("", verdict);
        format!("| {} | {} | {} | {} | {met} |", row.what, row.floor, row.target, row.measured)
    })
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
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

/// Returns a line for each number.
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

fn plots(results: &Path, folder: &Path) -> Result<()> {
    let bar = |name: &str, Spread { low, median, high }: Spread| {
        let (name, aside) = (name.replace('`', ""), name.ends_with("raw commands"));
        Bar { name, low, median, high, aside }
    };
    let bars = rows(results).into_iter().filter_map(|row| Some(bar(row.what, row.ratio?)));
    let groups = [Group { name: String::new(), bars: bars.collect() }];
    let (title, across) =
        ("What a lock costs, compared with bare commands", "times the bare commands; less is faster");
    plot::ratios(&folder.join("bench-ratios.svg"), title, across, &groups)?;
    for (name, title) in [
        ("pair", "One lock and its release, one task"),
        ("handoff", "From the release until a waiter elsewhere holds the lock"),
    ] {
        let timed: Timed = get(results, name)?;
        let bar = |(at, case): (usize, &Case)| {
            let micros = |of: fn(&Quantiles) -> u64| {
                Spread::of(case.rounds.iter().map(|round| of(round) as f64 / 1e3)).median
            };
            let (median, high) = (micros(|round| round.p50), micros(|round| round.p99));
            Bar { name: case.name.clone(), low: median, median, high, aside: at == 0 }
        };
        let bars = timed.cases.iter().enumerate().map(bar).collect();
        plot::times(&folder.join(format!("bench-{name}.svg")), title, "µs: median to 99th percentile", bars)?;
    }
    let crowds: Vec<Crowd> = get(results, "crowd")?;
    let lines = [(1, "in one Locks"), (2, "in two Locks")].map(|(processes, name)| {
        let of = crowds.iter().filter(|crowd| crowd.processes == processes);
        let points = of.map(|crowd| (crowd.waiters as f64, crowd.per_handoff())).collect();
        Line { name: name.to_owned(), points }
    });
    if let Ok(all) = get::<Vec<Growth>>(results, "growth") {
        growth_plots(folder, &all)?;
    }
    contest_plot(folder)?;
    let labels =
        Labels { title: "Commands for each hand-off of one lock", across: "waiters", up: "commands" };
    plot::counts(&folder.join("bench-waiters.svg"), &labels, &lines)
}

/// Plots the longest waits of processes that contend. They are measured separately, so their table is in the text of the page.
fn contest_plot(folder: &Path) -> Result<()> {
    let row = |line: &str| -> Option<(bool, (f64, f64))> {
        let (contest, rest) = line.strip_prefix("| ")?.split_once(" × 1, 1 ms, none | ")?;
        let (fair, rest) = rest.split_once(" | ")?;
        let longest = rest.rsplit_once(" | ")?.1.strip_suffix(" ms |")?;
        Some((fair == "yes", (contest.parse().ok()?, longest.parse().ok()?)))
    };
    let rows: Vec<_> = REPORT.lines().filter_map(row).collect();
    let lines = [(true, "with the line"), (false, "without it")].map(|(fair, name)| {
        let points = rows.iter().filter(|row| row.0 == fair).map(|row| row.1).collect();
        Line { name: name.to_owned(), points }
    });
    let title = "Longest wait of processes that contend for one lock";
    let labels = Labels { title, across: "processes", up: "ms" };
    plot::powers(&folder.join("bench-contest.svg"), &labels, &lines, 2.0)
}

/// Makes one plot of the numbers that grow by powers of ten, and one of few masters and processes.
fn growth_plots(folder: &Path, all: &[Growth]) -> Result<()> {
    let line = |of: &Growth| {
        let points = of.points.iter().map(|point| (point.count as f64, point.micros)).collect();
        Line { name: of.what.split(':').next().unwrap_or_default().to_owned(), points }
    };
    let (many, few): (Vec<_>, Vec<_>) =
        all.iter().partition(|of| of.points.windows(2).any(|pair| pair[1].count >= 10 * pair[0].count));
    let labels = |title, across| Labels { title, across, up: "µs" };
    let lines = |of: Vec<&Growth>| of.into_iter().map(line).collect::<Vec<_>>();
    let many_of = labels("A lock and its release, or a hand-off, as one number grows", "how many");
    plot::powers(&folder.join("bench-growth-many.svg"), &many_of, &lines(many), 10.0)?;
    let few_of =
        labels("A lock and its release with several masters, a hand-off with several clients", "how many");
    plot::numbers(&folder.join("bench-growth-few.svg"), &few_of, &lines(few))
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
            json!({ "name": name, "rounds": rounds })
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

    /// The pages that are written from made-up figures, on several masters too or on a single one.
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
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let page = read("benchmarks.md") + &read("lab/targets.md");
        for plot in ["pair", "handoff", "ratios", "waiters", "contest"] {
            assert!(read(&format!("bench-{plot}.svg")).ends_with("</svg>\n"), "{plot}");
        }
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
                "| lock and release a free lock | 114 µs | 1.04 × two bare round trips |",
                "| lock + release, one task | two raw EVALSHA round trips | ≤ 1.05 × | 1.04 × (1.03–1.04) | met |",
                "3 rounds of 1000 each.",
                "| `redis-benchmark -c 1 -P 64` | 60000 (60000–60000) | – | 12.2 |",
                "## 10000 locks held",
                "| 10 | 2 | 2.20 | 21 evalsha, 1 unsubscribe | 371 |",
                "| server | Redis 7.0.15 |",
            ],
        );
        for absent in [
            "{{",
            "## Several masters",
            "## How it grows",
            "Why these targets are missed",
            "counted by valgrind",
        ] {
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
            page.contains("Why these targets are missed")
                && page.contains(", 3405 with what the allocator keeps.")
        );
        for absent in ["{{", "1 of 3 masters, cores kept awake:"] {
            assert!(!page.contains(absent), "{page}");
        }
    }
}
