//! The table of the results, each beside its floor and its target.

use std::path::Path;
use std::time::Duration;

use crate::results::{Case, Crowd, Instructions, Many, Quantiles, Rate, Throughput, Timed, get};
use crate::spread::Spread;
use crate::store::Counts;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) floor: &'static str,
    pub(crate) target: String,
    pub(crate) measured: String,
    /// `None` if there is no target.
    pub(crate) met: Option<bool>,
    /// Whether it compares the client's own work with that of a floor.
    pub(crate) client: bool,
    /// The figure, if it is a ratio that is better the smaller it is.
    pub(crate) ratio: Option<Spread>,
}

/// Returns the lines for the results file; sections that were not measured are left out.
pub(crate) fn rows(file: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    let pair = get::<Timed>(file, "pair").ok();
    rows.extend(
        pair.as_ref().map(|pair| {
            times("lock + release, one task", "two raw EVALSHA round trips", pair, 1, Some(1.05))
        }),
    );
    rows.extend(get::<Throughput>(file, "throughput").ok().map(|seen| share(&seen)));
    rows.extend(pair.as_ref().map(|pair| {
        times("re-entry: nested lock + release", "two raw EVALSHA round trips", pair, 2, Some(0.83))
    }));
    rows.extend(
        pair.as_ref().map(|pair| times("`run` of empty work", "two raw EVALSHA round trips", pair, 3, None)),
    );
    rows.extend(pair.as_ref().filter(|pair| pair.cases.len() > 4).map(|pair| {
        times(
            "lock + release with a fencing token",
            "two raw EVALSHA round trips, without one",
            pair,
            4,
            None,
        )
    }));
    rows.extend(get::<Timed>(file, "handoff").ok().map(|seen| handoff(&seen)));
    rows.extend(get::<Many>(file, "many").ok().map(|seen| many(&seen)));
    rows.extend(get::<Vec<Crowd>>(file, "crowd").ok().map(|seen| crowd(&seen)));
    rows.extend(get::<Vec<Instructions>>(file, "instructions").ok().and_then(|seen| executed(&seen)));
    rows.extend(get::<Counts>(file, "counts").ok().and_then(|seen| allocated(&seen)));
    for count in [3, 5] {
        let seen = get::<Timed>(file, &format!("quorum-{count}")).ok();
        rows.extend(seen.as_ref().map(|seen| quorum(count, seen)));
        rows.extend(seen.as_ref().filter(|seen| seen.cases.len() > 2).map(|seen| tokens(count, seen)));
        for (name, awake) in [("frozen", false), ("awake", true)] {
            let seen = get::<Timed>(file, &format!("{name}-{count}")).ok();
            rows.extend(seen.iter().flat_map(|seen| frozen(count, awake, seen)));
        }
    }
    rows
}

fn quorum(masters: usize, seen: &Timed) -> Row {
    let what = if masters == 3 { "3 masters: lock + release" } else { "5 masters: lock + release" };
    let floor = "two raw EVALSHA round trips on all at once, the slowest";
    // The limit is what an earlier run reached, so that it does not get worse.
    let limit = if masters == 3 { 0.69 } else { 0.63 };
    Row { what, floor, ..limited(against(seen, 1, |round| round.p50), limit) }
}

fn tokens(masters: usize, seen: &Timed) -> Row {
    let what =
        if masters == 3 { "3 masters: with a fencing token" } else { "5 masters: with a fencing token" };
    let floor = "the same round trips, without a token";
    Row { client: false, ..times(what, floor, seen, 2, None) }
}

fn frozen(masters: usize, awake: bool, seen: &Timed) -> [Row; 2] {
    let (what, beside) = match (masters, awake) {
        (3, false) => ("1 of 3 frozen: lock + release", "1 of 3 frozen: raw commands"),
        (_, false) => ("2 of 5 frozen: lock + release", "2 of 5 frozen: raw commands"),
        (3, true) => {
            ("1 of 3 frozen, cores awake: lock + release", "1 of 3 frozen, cores awake: raw commands")
        }
        (_, true) => {
            ("2 of 5 frozen, cores awake: lock + release", "2 of 5 frozen, cores awake: raw commands")
        }
    };
    let floor = "no master is frozen";
    let ours = limited(between(seen, 3, 2, |round| round.p50), 1.1);
    let raw = between(seen, 1, 0, |round| round.p50);
    [
        Row { what, floor, ..ours },
        Row { what: beside, floor, target: "–".to_owned(), met: None, ..limited(raw, 1.1) },
    ]
}

fn limited(ratio: Spread, limit: f64) -> Row {
    let (measured, met) = (factor(ratio), Some(ratio.median <= limit));
    let target = at_most(limit);
    Row { what: "", floor: "", target, measured, met, client: false, ratio: Some(ratio) }
}

/// Returns the ratios of a case to the floor, round by round.
pub(crate) fn against(timed: &Timed, case: usize, quantile: impl Fn(&Quantiles) -> u64) -> Spread {
    between(timed, case, 0, quantile)
}

fn between(timed: &Timed, case: usize, other: usize, quantile: impl Fn(&Quantiles) -> u64) -> Spread {
    let times = |case: &Case| case.rounds.iter().map(|round| quantile(round) as f64).collect::<Vec<_>>();
    Spread::of_ratios(times(&timed.cases[case]), times(&timed.cases[other]))
}

fn times(what: &'static str, floor: &'static str, timed: &Timed, case: usize, limit: Option<f64>) -> Row {
    let ratio = against(timed, case, |round| round.p50);
    let met = limit.map(|limit| ratio.median <= limit);
    let target = limit.map_or_else(|| "–".to_owned(), at_most);
    Row { what, floor, target, measured: factor(ratio), met, client: true, ratio: Some(ratio) }
}

fn share(seen: &Throughput) -> Row {
    let rates = |of: &[Rate]| of.iter().map(|rate| rate.pairs_per_second).collect::<Vec<_>>();
    let share = Spread::of_ratios(rates(&seen.ours), rates(&seen.benchmark));
    let percent = |share: f64| (share * 100.0).round();
    let measured = format!("{} % ({}–{} %)", percent(share.median), percent(share.low), percent(share.high));
    Row {
        what: "64 tasks, distinct keys, pairs/s",
        floor: "`redis-benchmark -P 64` of the same scripts",
        target: "≥ 190 %".to_owned(),
        measured,
        met: Some(share.median >= 1.9),
        client: true,
        ratio: None,
    }
}

/// How long a waiter that missed its message would wait.
const POLL_CAP: Duration = Duration::from_secs(5);

/// The target, as a multiple of the floor.
const HANDOFF: f64 = 0.85;

fn handoff(seen: &Timed) -> Row {
    let ratio = against(seen, 1, |round| round.p50);
    let polled = seen.cases[1].rounds.iter().any(|round| u128::from(round.p99) >= POLL_CAP.as_nanos() / 2);
    Row {
        what: "release sent → a waiter elsewhere holds",
        floor: "a raw message + one raw round trip",
        target: at_most(HANDOFF),
        measured: factor(ratio),
        met: Some(ratio.median <= HANDOFF && !polled),
        client: false,
        ratio: Some(ratio),
    }
}

fn many(seen: &Many) -> Row {
    Row {
        what: "10,000 locks held, lease 3 s",
        floor: "–",
        target: "all renewed in time".to_owned(),
        measured: format!("{} lost in {:.1} leases", seen.lost, seen.leases),
        met: Some(seen.lost == 0 && seen.least_left_ms > 0),
        client: false,
        ratio: None,
    }
}

fn crowd(seen: &[Crowd]) -> Row {
    let most = seen.iter().map(Crowd::per_handoff).fold(0.0, f64::max);
    Row {
        what: "commands a hand-off, 10 to 1,000 waiters",
        floor: "–",
        target: "≤ 3".to_owned(),
        measured: format!("at most {most:.2}"),
        met: Some(most <= 3.0),
        client: false,
        ratio: None,
    }
}

/// The name of the case that locks and releases a free lock.
const LOCK: &str = "lock and release";

fn executed(seen: &[Instructions]) -> Option<Row> {
    const MOST: u64 = 26_000;
    let groups = &seen.iter().find(|of| of.name == LOCK)?.groups;
    let count = groups.iter().map(|(_, count)| count).sum::<u64>();
    Some(counted("instructions of the client for a pair", MOST as f64, count as f64, 0))
}

fn allocated(seen: &Counts) -> Option<Row> {
    let pair = seen.allocations.iter().find(|of| of.name == LOCK)?;
    Some(counted("allocations of the client for a pair", 9.0, pair.blocks, 1))
}

fn counted(what: &'static str, most: f64, count: f64, decimals: usize) -> Row {
    Row {
        what,
        floor: "–",
        target: format!("≤ {most:.0}"),
        measured: format!("{count:.decimals$}"),
        met: Some(count <= most),
        client: false,
        ratio: None,
    }
}

fn at_most(limit: f64) -> String {
    format!("≤ {limit:.2} ×")
}

fn factor(ratio: Spread) -> String {
    format!("{:.2} × ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
}
