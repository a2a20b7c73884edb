//! The results for a terminal: ratios first.

use std::path::Path;

use crate::ratios::rows;
use crate::results::{Contest, Crowd, Many, Throughput, Timed, get};
use crate::spread::Spread;

pub(crate) fn print(file: &Path) {
    println!(
        "\n{:<44} {:<22} {:<20} what it is measured against",
        "what", "median (lowest–highest)", "target"
    );
    for row in rows(file) {
        let met = if row.met == Some(false) { "  MISSED" } else { "" };
        println!("{:<44} {:<23} {:<20} {}{met}", row.what, row.measured, row.target, row.floor);
    }
    println!();
    let sections = ["pair", "handoff", "quorum-3", "quorum-5", "frozen-3", "awake-3", "frozen-5", "awake-5"];
    for section in sections {
        if let Ok(timed) = get::<Timed>(file, section) {
            println!("{section}");
            times(&timed);
        }
    }
    if let Ok(seen) = get::<Throughput>(file, "throughput") {
        rates(&seen);
    }
    for section in ["crowd", "quorum-crowd"] {
        if let Ok(seen) = get::<Vec<Crowd>>(file, section) {
            crowds(&seen);
        }
    }
    for of in get::<Vec<Contest>>(file, "quorum-contest").unwrap_or_default() {
        contest(&of);
    }
    if let Ok(seen) = get::<Many>(file, "many") {
        holds(&seen);
    }
}

fn times(timed: &Timed) {
    println!("{:<44} {:>10} {:>10} {:>10}   in µs, medians of the rounds", "", "median", "p90", "p99");
    for case in &timed.cases {
        let micros = |of: fn(&crate::results::Quantiles) -> u64| {
            Spread::of(case.rounds.iter().map(|round| of(round) as f64 / 1e3)).median
        };
        let (p50, p90, p99) = (micros(|r| r.p50), micros(|r| r.p90), micros(|r| r.p99));
        let max = case.rounds.iter().map(|round| round.max).max().unwrap_or_default() as f64 / 1e3;
        println!("{:<44} {p50:>10.1} {p90:>10.1} {p99:>10.1}   longest of all {max:.0}", case.name);
    }
    println!();
}

fn rates(seen: &Throughput) {
    let rates_by_name =
        [("redis-benchmark", &seen.benchmark), ("redis crate alone", &seen.raw), ("locks", &seen.ours)];
    for (name, rates) in rates_by_name {
        let rate = Spread::of(rates.iter().map(|rate| rate.pairs_per_second));
        let client = Spread::of(rates.iter().filter_map(|rate| rate.client_micros)).median;
        let server = Spread::of(rates.iter().map(|rate| rate.server_micros)).median;
        let client = if client.is_nan() { String::new() } else { format!("client {client:.1} µs, ") };
        let (median, low, high) = (rate.median, rate.low, rate.high);
        println!(
            "{name:<44} {median:>10.0} pairs/s ({low:.0}–{high:.0}); processor a pair: {client}server {server:.1} µs"
        );
    }
    println!();
}

fn crowds(seen: &[Crowd]) {
    for crowd in seen {
        let what =
            format!("{} waiters in {} `Locks`, {} masters", crowd.waiters, crowd.processes, crowd.masters);
        let (commands, micros) = (crowd.per_handoff(), crowd.micros_per_handoff);
        println!("{what:<44} {commands:>10.2} commands and {micros:.0} µs a hand-off {:?}", crowd.commands);
    }
    println!();
}

fn contest(of: &Contest) {
    println!(
        "{} clients, one lock, {} masters: {:.2} acquires and {:.2} commands a grant and master, {:.0} µs a grant; a wait {} µs, \
         99 % {}, longest {}",
        of.clients, of.masters, of.acquires, of.commands, of.micros, of.wait_p50, of.wait_p99, of.wait_max
    );
}

fn holds(seen: &Many) {
    let rss = seen.rss_per_hold.map_or_else(String::new, |bytes| format!(", {bytes} bytes of memory a hold"));
    println!(
        "{} holds: {:.1} % of a core{rss}; {} renewals, never less than {} ms left of {} ms",
        seen.holds,
        seen.cpu_share * 100.0,
        seen.renewals,
        seen.least_left_ms,
        seen.lease_ms
    );
}
