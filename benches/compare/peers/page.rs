//! The page on other libraries, and its plots, written from the results file alone. The page's text is in `report.md`.

use std::fs;
use std::path::Path;

use crate::peers::results::{Case, Holds, Peers, Rounds};
use crate::peers::work::{Sample, Work};
use crate::plot::{self, Bar, Group};
use crate::results::{Machine, get};
use crate::server::Result;
use crate::spread::Spread;
use crate::template::{self, Figures};

const REPORT: &str = include_str!("report.md");

pub(crate) fn write(results: &Path, folder: &Path) -> Result<()> {
    let (peers, machine): (Peers, Machine) = (get(results, "peers")?, get(results, "machine")?);
    fs::create_dir_all(folder)?;
    let page = template::fill(REPORT, &figures(&peers, &machine))?;
    for (name, rates, title, across) in [
        ("times", false, "Time, compared with bare commands", "times the floor; less is faster"),
        ("rates", true, "Rate, compared with bare commands", "times the floor; more is faster"),
    ] {
        let file = folder.join(format!("bench-peers-{name}.svg"));
        plot::factors(&file, title, across, &groups(&peers, rates))?;
    }
    Ok(fs::write(folder.join("benchmarks-peers.md"), page)?)
}

fn figures(peers: &Peers, machine: &Machine) -> Figures {
    let mut figures = Figures::new();
    let mut put = |name: &str, figure: String| figures.insert(name.to_owned(), figure);
    let names: Vec<&str> = peers.libraries.iter().map(|of| of.name.as_str()).collect();
    put("overview", overview(peers));
    let section = |belongs: fn(Work) -> bool, table: fn(&Rounds) -> String| {
        let of = peers.works.iter().filter(|rounds| belongs(rounds.work));
        of.map(|rounds| format!("{}, {}:\n\n{}", rounds.work.name(), count(rounds), table(rounds)))
            .collect::<Vec<_>>()
            .join("\n\n")
    };
    put("times", section(|work| !work.is_rate(), times));
    put("own", section(|work| matches!(work, Work::Own { .. }), own));
    put("crowds", section(|work| matches!(work, Work::Crowd { .. }), shared));
    put("processes", section(|work| matches!(work, Work::Processes { .. }), shared));
    put("holds", lines(&peers.holds, holds));
    for name in names {
        put(name, String::new());
    }
    let versions = peers.libraries.iter().flat_map(|of| &of.versions);
    let mut facts: Vec<(String, String)> = Vec::new();
    for fact in versions.chain(&machine.facts) {
        // Two libraries may use the same package.
        if !facts.contains(fact) {
            facts.push(fact.clone());
        }
    }
    put("machine", lines(&facts, |(name, fact)| format!("| {name} | {fact} |")));
    let failures = failures(peers);
    if !failures.is_empty() {
        put("failures", failures);
    }
    figures
}

fn lines<T>(of: &[T], line: impl Fn(&T) -> String) -> String {
    of.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn count(rounds: &Rounds) -> String {
    let rounds = rounds.case("floor").map_or(0, |case| case.samples.len());
    if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") }
}

/// Formats a figure with three digits, unless it has more before its point.
fn short(figure: f64) -> String {
    let decimals = match figure.abs() {
        ..0.000_000_5 => 0,
        ..0.099_95 => 3,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{figure:.decimals$}")
}

fn cell(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "–".to_owned(),
        |of| format!("{} ({}–{})", short(of.median), short(of.low), short(of.high)),
    )
}

fn median(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), |of| short(of.median))
}

fn head(columns: &[&str]) -> String {
    format!("| {} |\n|{}", columns.join(" | "), " --- |".repeat(columns.len()))
}

fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// Returns a table with a line for each work.
pub(crate) fn overview(peers: &Peers) -> String {
    let names = peers.libraries.iter().map(|of| of.name.as_str());
    let libraries: Vec<&str> = names.filter(|name| *name != "floor").collect();
    let mut columns = vec!["times the floor, of", "the floor", "better is"];
    columns.extend(&libraries);
    let rows = lines(&peers.works, |rounds| {
        let floor = rounds.case("floor");
        let (unit, better) = if rounds.work.is_rate() { ("/s", "more") } else { (" µs", "less") };
        let rate = rounds.work.is_rate();
        let floor =
            floor.and_then(|floor| floor.spread(|of| Some(if rate { 1e6 / of.micros } else { of.micros })));
        let mut cells = vec![rounds.work.name(), median(floor) + unit, better.to_owned()];
        cells.extend(libraries.iter().map(|name| cell(rounds.ratio(name))));
        row(&cells)
    });
    format!("{}\n{rows}", head(&columns))
}

fn spreads(case: &Case<Sample>) -> [String; 3] {
    [
        median(case.spread(|of| Some(of.server))),
        median(case.spread(|of| of.client)),
        median(case.spread(|of| of.commands)),
    ]
}

/// Returns a table of the libraries that did the work at all.
fn table(rounds: &Rounds, columns: &[&str], cells: impl Fn(&Case<Sample>) -> Vec<String>) -> String {
    let cases = rounds.cases.iter().filter(|case| !case.samples.is_empty());
    let rows = cases.map(|case| {
        let mut line = vec![if case.name == "floor" { "the floor".to_owned() } else { case.name.clone() }];
        line.extend(cells(case));
        row(&line)
    });
    format!("{}\n{}", head(columns), rows.collect::<Vec<_>>().join("\n"))
}

fn times(rounds: &Rounds) -> String {
    let columns = ["", "µs", "times the floor", "server, µs of processor", "client", "commands"];
    table(rounds, &columns, |case| {
        let mut cells = vec![cell(case.spread(|of| Some(of.micros))), cell(rounds.ratio(&case.name))];
        cells.extend(spreads(case));
        cells
    })
}

fn rate(case: &Case<Sample>) -> String {
    cell(case.spread(|of| Some(1e6 / of.micros)))
}

fn own(rounds: &Rounds) -> String {
    let columns =
        ["", "pairs/s", "times the floor", "server, µs of processor a pair", "client", "commands a pair"];
    table(rounds, &columns, |case| {
        let mut cells = vec![rate(case), cell(rounds.ratio(&case.name))];
        cells.extend(spreads(case));
        cells
    })
}

fn shared(rounds: &Rounds) -> String {
    let columns = [
        "",
        "grants/s",
        "times the floor",
        "least, of an equal share",
        "most",
        "without a grant",
        "longest wait, ms",
        "commands a grant",
        "server, µs of processor a grant",
        "errors",
    ];
    table(rounds, &columns, |case| {
        let equal = |of: &Sample| of.shares.len() as f64;
        let least = case.spread(|of| Some(of.shares.iter().copied().fold(1.0, f64::min) * equal(of)));
        let most = case.spread(|of| Some(of.shares.iter().copied().fold(0.0, f64::max) * equal(of)));
        let without = case.spread(|of| Some(of.shares.iter().filter(|share| **share == 0.0).count() as f64));
        let of = case.samples.iter().map(|of| of.shares.len()).max().unwrap_or_default();
        let [server, _, commands] = spreads(case);
        let errors: u64 = case.samples.iter().map(|of| of.errors).sum();
        let alone = case.name == "floor";
        let unless_alone = |figure: String| if alone { "–".to_owned() } else { figure };
        vec![
            rate(case),
            cell(rounds.ratio(&case.name)),
            unless_alone(cell(least)),
            unless_alone(cell(most)),
            unless_alone(format!("{:.0} of {of}", without.map_or(f64::NAN, |of| of.median))),
            unless_alone(cell(case.spread(|of| of.longest))),
            commands,
            server,
            errors.to_string(),
        ]
    })
}

fn holds(of: &Holds) -> String {
    lines(&of.cases, |case| {
        if case.samples.is_empty() {
            let unknown = std::iter::repeat_n("–".to_owned(), 7);
            return row(&[of.holds.to_string(), case.name.clone()]
                .into_iter()
                .chain(unknown)
                .collect::<Vec<_>>());
        }
        // Only the first round counts: later ones use memory that it has freed.
        let first = case.samples.first();
        let bytes =
            |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.0}"));
        let percent = |of: fn(&crate::peers::holds::Kept) -> Option<f64>| {
            cell(case.spread(|rest| rest.kept.as_ref().and_then(of).map(|share| share * 100.0)))
        };
        row(&[
            of.holds.to_string(),
            case.name.clone(),
            percent(|kept| kept.client),
            percent(|kept| Some(kept.server)),
            median(case.spread(|rest| rest.kept.as_ref().map(|kept| kept.commands))),
            bytes(first.and_then(|rest| rest.resident)),
            bytes(first.and_then(|rest| rest.live)),
            bytes(first.map(|rest| rest.server_memory)),
            case.samples.iter().map(|rest| rest.lost).sum::<u64>().to_string(),
        ])
    })
}

fn failures(peers: &Peers) -> String {
    let works = peers.works.iter().flat_map(|rounds| {
        let failed = |case: &Case<Sample>| Some((case.name.clone(), case.failure.clone()?));
        rounds.cases.iter().filter_map(failed).map(|(name, error)| (name, rounds.work.name(), error))
    });
    let holds = peers.holds.iter().flat_map(|of| {
        let what = format!("{} holds", of.holds);
        of.cases.iter().filter_map(move |case| Some((case.name.clone(), what.clone(), case.failure.clone()?)))
    });
    let all: Vec<_> = works.chain(holds).collect();
    lines(&all, |(name, work, error)| format!("- {name}, {work}: {error}"))
}

/// Returns one group for each work.
fn groups(peers: &Peers, rates: bool) -> Vec<Group> {
    let works = peers.works.iter().filter(|rounds| rounds.work.is_rate() == rates);
    let group = |rounds: &Rounds| {
        let names = peers.libraries.iter().map(|of| of.name.as_str()).filter(|name| *name != "floor");
        let bars = names.filter_map(|name| {
            let Spread { median, low, high } = rounds.ratio(name)?;
            Some(Bar { name: name.to_owned(), low, median, high, aside: name != "nestlock" })
        });
        Group { name: rounds.work.name(), bars: bars.collect() }
    };
    works.map(group).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::store::put;

    fn sample(micros: f64, shares: &[f64]) -> Value {
        json!({
            "operations": 100, "micros": micros, "server": 8.25, "client": null, "commands": 2.0,
            "longest": 12.5, "shares": shares, "errors": 0,
        })
    }

    fn case(name: &str, samples: &[Value], failure: Option<&str>) -> Value {
        json!({ "name": name, "samples": samples, "failure": failure })
    }

    fn library(name: &str, waits: bool) -> Value {
        json!({
            "name": name, "versions": [["redis", "1.8.1"]], "sends": [], "nests": true, "renews": true,
            "waits": waits,
        })
    }

    /// The page of one round of pairs and two of a crowd, without redsync.
    fn page() -> String {
        let pairs = [
            case("floor", &[sample(80.0, &[])], None),
            case("nestlock", &[sample(100.0, &[])], None),
            case("Redisson", &[], Some("`java` has ended")),
            case("redis-benchmark", &[sample(60.0, &[])], None),
        ];
        let crowd = [
            case("floor", &[sample(100.0, &[1.0]), sample(200.0, &[1.0])], None),
            case("nestlock", &[sample(50.0, &[0.5, 0.5]), sample(50.0, &[1.0, 0.0])], None),
            case("Redisson", &[sample(200.0, &[0.25, 0.75]), sample(200.0, &[0.5, 0.5])], None),
        ];
        let rest = json!({
            "holds": 1_000, "resident": 2_000.0, "live": null, "server_memory": 120.4, "lost": 0,
            "kept": { "client": 0.02, "server": 0.01, "commands": 3.0 },
        });
        let holds = json!({ "holds": 1_000, "lease": 30.0, "cases": [case("nestlock", &[rest], None), case("Redisson", &[], None)] });
        let peers = json!({
            "libraries": [library("floor", false), library("nestlock", true), library("Redisson", true)],
            "works": [{ "work": "Pair", "cases": pairs }, { "work": { "Crowd": { "tasks": 2 } }, "cases": crowd }],
            "holds": [holds],
        });
        let folder = std::env::temp_dir().join(format!("nestlock-peers-{}", std::process::id()));
        let results = folder.join("peers.json");
        put(&results, "peers", &peers).unwrap();
        put(&results, "machine", &json!({ "facts": [["redis", "1.8.1"], ["server", "Redis 7.0.15"]] }))
            .unwrap();
        write(&results, &folder).unwrap();
        for plot in ["bench-peers-times.svg", "bench-peers-rates.svg"] {
            let plot = fs::read_to_string(folder.join(plot)).unwrap();
            assert!(plot.contains("nestlock") && plot.ends_with("</svg>\n"), "{plot}");
        }
        let page = fs::read_to_string(folder.join("benchmarks-peers.md")).unwrap();
        fs::remove_dir_all(folder).unwrap();
        page
    }

    #[test]
    fn a_page_has_the_ratios_of_what_was_measured_and_names_what_failed() {
        let page = page();
        for line in [
            "| one task, a free lock | 80.0 µs | less | 1.25 (1.25–1.25) | – |",
            "| 2 tasks of one process, one lock | 7500/s | more | 3.00 (2.00–4.00) | 0.75 (0.50–1.00) |",
            "one task, a free lock, one round:",
            "| redis-benchmark | 60.0 (60.0–60.0) | 0.75 (0.75–0.75) | 8.25 | – | 2.00 |",
            "| nestlock | 20000 (20000–20000) | 3.00 (2.00–4.00) | 0.50 (0–1.00) | 1.50 (1.00–2.00) | 0 of 2 | 12.5 (12.5–12.5) | 2.00 | 8.25 | 0 |",
            "| 1000 | nestlock | 2.00 (2.00–2.00) | 1.00 (1.00–1.00) | 3.00 | 2000 | – | 120 | 0 |",
            "| 1000 | Redisson | – | – | – | – | – | – | – |",
            "- Redisson, one task, a free lock: `java` has ended",
            "| server | Redis 7.0.15 |",
        ] {
            assert!(page.lines().any(|other| other == line), "`{line}` is missing in:\n{page}");
        }
        assert_eq!(page.matches("| redis | 1.8.1 |").count(), 1, "{page}");
        for absent in ["{{", "**redsync**", "**rslock**"] {
            assert!(!page.contains(absent), "{page}");
        }
    }
}
