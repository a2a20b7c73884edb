//! The report: a page and its plots, written from the results file alone.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::plot::{self, Axes, Bar, Line};
use crate::ratios::rows;
use crate::results::{Contest, Crowd, Instructions, Machine, Many, Quantiles, Rate, Throughput, Timed, get};
use crate::server::Result;
use crate::spread::Spread;
use crate::store::Counts;

pub(crate) fn write(results: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut page = String::from(HEAD);
    table(&mut page, results)?;
    let pair: Timed = get(results, "pair")?;
    let handoff: Timed = get(results, "handoff")?;
    let crowd: Vec<Crowd> = get(results, "crowd")?;
    write!(page, "{PAIR}")?;
    times(&mut page, &pair)?;
    if let Ok(seen) = get::<Vec<Instructions>>(results, "instructions") {
        instructions(&mut page, &seen)?;
    }
    counted(&mut page, &get(results, "counts")?)?;
    rates(&mut page, &get(results, "throughput")?)?;
    write!(page, "{HANDOFF}")?;
    times(&mut page, &handoff)?;
    many(&mut page, &get(results, "many")?, &get(results, "counts")?)?;
    waiters(&mut page, &crowd)?;
    several_masters(&mut page, results)?;
    machine(&mut page, &get(results, "machine")?)?;
    plots(results, folder, [("pair", &pair), ("handoff", &handoff)], &crowd)?;
    Ok(fs::write(folder.join("benchmarks.md"), page)?)
}

const HEAD: &str = "\
# Benchmarks

What a lock costs compared with the bare commands that it needs, the *floor*. Figure and floor are measured in the same run, in
short alternating turns, so that a disturbance affects both. Each round gives a ratio. The tables have the median of the rounds
and, in brackets, the lowest and the highest. `scripts/bench` measures, and writes this page and its plots.

";

const PAIR: &str = "
## A free lock, one task

The floor is two round trips by the `redis` crate alone: `EVALSHA` of `acquire.lua` and of `release.lua`, with the same
arguments, `TCP_NODELAY`, no timeout, on a connection of its own to the same server. A lock does more: it limits the time for an
answer, keeps the hold's deadline, knows its owner, and undoes what is dropped.

![Times of one lock and release](bench-pair.svg)

";

const HANDOFF: &str = "
## From one process to another

One `Locks` holds the lock. A task of another `Locks`, with its own connections, waits for it. The time is from right before the
release until the waiter has its guard. The floor is a bare `PUBLISH` to a bare subscriber, which then runs `acquire.lua` once. A
missed message would show as a wait of up to `poll_interval`, 5 s: compare the longest of all.

![Times of one hand-off](bench-handoff.svg)

";

fn table(page: &mut String, results: &Path) -> Result<()> {
    writeln!(page, "| what | floor | target | measured | |\n| --- | --- | --- | --- | --- |")?;
    for row in rows(results) {
        let met = row.met.map_or("", |met| if met { "met" } else { "**missed**" });
        writeln!(page, "| {} | {} | {} | {} | {met} |", row.what, row.floor, row.target, row.measured)?;
    }
    if rows(results).iter().any(|row| row.client && row.met == Some(false)) {
        write!(page, "{WHY}")?;
    }
    writeln!(page, "\n![Ratios to the floor, and their targets](bench-ratios.svg)")?;
    Ok(())
}

const WHY: &str = "
Why a target is missed: both sides of a comparison make the same system calls for a pair (two writes, two reads, two waits). No
task is spawned, and no other task is woken. The difference is what the client executes itself, in many small functions; a table
below has the instructions by crate. A client that sleeps between its commands takes several times as long for the same
instructions as one that is kept busy, most likely because other code replaces them in the caches. So the ratio of a single task
grows with the load of the machine. For tasks side by side, compare the processor time of client and server for a pair: the larger
one sets the pace, and on cores that are shared with others the client gets less of it.
";

fn times(page: &mut String, timed: &Timed) -> Result<()> {
    let rounds = timed.cases[0].rounds.len();
    writeln!(page, "| µs | median | 90 % | 99 % | longest of all |\n| --- | --- | --- | --- | --- |")?;
    for case in &timed.cases {
        let micros = |of: fn(&Quantiles) -> u64| {
            let spread = Spread::of(case.rounds.iter().map(|round| of(round) as f64 / 1e3));
            format!("{:.0} ({:.0}–{:.0})", spread.median, spread.low, spread.high)
        };
        let (p50, p90, p99) = (micros(|r| r.p50), micros(|r| r.p90), micros(|r| r.p99));
        let longest = case.rounds.iter().map(|round| round.max).max().unwrap_or_default() / 1_000;
        writeln!(page, "| {} | {p50} | {p90} | {p99} | {longest} |", case.name)?;
    }
    writeln!(page, "\n{rounds} rounds of {} each.", timed.samples)?;
    Ok(())
}

fn instructions(page: &mut String, seen: &[Instructions]) -> Result<()> {
    let names: Vec<&str> = seen.iter().map(|of| of.name.as_str()).collect();
    let row = |cells: Vec<String>| cells.join(" | ");
    writeln!(page, "{INSTRUCTIONS}| | {} |\n| --- |{}", names.join(" | "), " --- |".repeat(names.len()))?;
    for (at, (group, _)) in seen.first().map(|of| of.groups.as_slice()).unwrap_or_default().iter().enumerate()
    {
        writeln!(page, "| {group} | {} |", row(seen.iter().map(|of| of.groups[at].1.to_string()).collect()))?;
    }
    let total = |of: &Instructions| of.groups.iter().map(|(_, count)| count).sum::<u64>();
    writeln!(page, "| together | {} |", row(seen.iter().map(|of| total(of).to_string()).collect()))?;
    Ok(())
}

const INSTRUCTIONS: &str = "
Where the time beyond the floor goes: instructions that the client executes for one of each, outside of the kernel, counted by
valgrind. They do not depend on the machine's load, and neither do allocations.

";

fn counted(page: &mut String, counts: &Counts) -> Result<()> {
    writeln!(
        page,
        "\nWhat the whole process allocates for one of each, the connection's own task included:\n"
    )?;
    writeln!(page, "| | allocations | bytes |\n| --- | --- | --- |")?;
    for of in &counts.allocations {
        writeln!(page, "| {} | {:.1} | {:.0} |", of.name, of.blocks, of.bytes)?;
    }
    let (tasks, pairs) = (counts.tasks_spawned, counts.pairs);
    writeln!(page, "\n{pairs} locks and releases spawned {tasks} tasks. Sizes in bytes:\n")?;
    writeln!(page, "| | size |\n| --- | --- |")?;
    for (name, size) in &counts.sizes {
        writeln!(page, "| {name} | {size} |")?;
    }
    Ok(())
}

fn rates(page: &mut String, seen: &Throughput) -> Result<()> {
    let told = [
        ("`redis-benchmark -c 1 -P 64`", &seen.benchmark),
        ("64 tasks, the `redis` crate alone", &seen.raw),
        ("64 tasks, locks", &seen.ours),
    ];
    let spread = |rates: &[Rate], of: fn(&Rate) -> Option<f64>| Spread::of(rates.iter().filter_map(of));
    write!(page, "{RATES}")?;
    for (name, rates) in told {
        let pairs = spread(rates, |rate| Some(rate.pairs_per_second));
        let client = spread(rates, |rate| rate.client_micros).median;
        let client = if client.is_nan() { "–".to_owned() } else { format!("{client:.1}") };
        let server = spread(rates, |rate| Some(rate.server_micros)).median;
        let (low, high) = (pairs.low, pairs.high);
        writeln!(page, "| {name} | {:.0} ({low:.0}–{high:.0}) | {client} | {server:.1} |", pairs.median)?;
    }
    Ok(())
}

const RATES: &str = "
## Many tasks, a lock each

64 tasks take and release a lock each over one connection, as fast as they can. The floor is the server's own load generator, in
C, with 64 commands in a pipeline over one connection and 64 keys. It repeats one command only, so one script contains both: it
takes the key if it is free, and releases it otherwise. The bodies are those of `acquire.lua` and `release.lua`, and each asks the
server for the same as it does alone. Two of its commands are one pair. The second line has the same pairs by the `redis` crate
alone. The difference between the first and the second line is the cost of the client library; between the second and the third,
that of the lock.

| | pairs/s | client, µs of processor a pair | server |
| --- | --- | --- | --- |
";

fn many(page: &mut String, seen: &Many, counts: &Counts) -> Result<()> {
    let (holds, lease) = (seen.holds, seen.lease_ms / 1_000);
    let seconds = seen.leases * lease as f64;
    let rss =
        seen.rss_per_hold.map_or_else(String::new, |rss| format!(", {rss} with what the allocator keeps"));
    writeln!(
        page,
        "\n## {holds} locks held\n\nWith a lease of {lease} s, for {:.1} leases: {} were lost. Each had at least {} ms of its \
         lease left at each check. {} commands renewed them, {:.2} for each hold and lease, in pipelines. The client \
         used {:.1} % of one core, {:.1} µs a renewal. A hold takes {:.0} bytes on the heap{rss}.",
        seen.leases,
        seen.lost,
        seen.least_left_ms,
        seen.renewals,
        seen.renewals as f64 / holds as f64 / seen.leases,
        seen.cpu_share * 100.0,
        seen.cpu_share * seconds * 1e6 / seen.renewals as f64,
        counts.bytes_per_hold,
    )?;
    Ok(())
}

fn waiters(page: &mut String, crowds: &[Crowd]) -> Result<()> {
    write!(page, "{WAITERS}")?;
    crowd_rows(page, crowds, false)
}

fn crowd_rows(page: &mut String, crowds: &[Crowd], several: bool) -> Result<()> {
    for crowd in crowds {
        let first = if several { format!("| {} ", crowd.masters) } else { String::new() };
        let sent = crowd.commands.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>();
        let (waiters, processes, each) = (crowd.waiters, crowd.processes, crowd.per_handoff());
        let (micros, sent) = (crowd.micros_per_handoff, sent.join(", "));
        writeln!(page, "{first}| {waiters} | {processes} | {each:.2} | {sent} | {micros:.0} |")?;
    }
    Ok(())
}

const WAITERS: &str = "
## Many tasks, one lock

The waiters are tasks that wait for one lock. Each takes and releases it once, and the server counts the commands. The waiters
are in one `Locks`, or half of them in each of two, as in two processes that take turns.

![Commands a hand-off](bench-waiters.svg)

| waiters | `Locks` | commands a hand-off | which | µs a hand-off |
| --- | --- | --- | --- | --- |
";

/// Where several were measured.
fn several_masters(page: &mut String, results: &Path) -> Result<()> {
    let Ok(contests) = get::<Vec<Contest>>(results, "quorum-contest") else { return Ok(()) };
    writeln!(page, "{MASTERS}")?;
    for count in [3, 5] {
        writeln!(page, "{count} masters:\n")?;
        times(page, &get(results, &format!("quorum-{count}"))?)?;
        writeln!(page)?;
    }
    writeln!(page, "{FROZEN}")?;
    for count in [3, 5] {
        for (name, how) in [("frozen", ""), ("awake", ", cores kept awake")] {
            let Ok(seen) = get(results, &format!("{name}-{count}")) else { continue };
            writeln!(page, "{} of {count} masters{how}:\n", (count - 1) / 2)?;
            times(page, &seen)?;
            writeln!(page)?;
        }
    }
    write!(page, "{CONTEST}")?;
    for of in &contests {
        let Contest { masters, clients, acquires, commands, micros, wait_p50, wait_p99, wait_max, .. } = of;
        let (p50, p99, max) = (wait_p50 / 1_000, wait_p99 / 1_000, wait_max / 1_000);
        writeln!(
            page,
            "| {masters} | {clients} | {acquires:.2} | {commands:.2} | {micros:.0} | {p50} | {p99} | {max} |"
        )?;
    }
    write!(page, "{CROWDS}")?;
    crowd_rows(page, &get::<Vec<Crowd>>(results, "quorum-crowd")?, true)
}

const MASTERS: &str = "
## Several masters

All masters run on this machine, and share one core. The floor is two raw round trips to all of them at once, on a connection to
each; the slowest one ends a trip. A lock waits for a majority, and receives the other answers in the background. So it can be
faster than that floor. Masters that were just started have no vote; the benchmark waits until they have one, and checks it each
time.
";

const FROZEN: &str = "
The same lock while all masters answer, and while the largest possible minority is frozen (`SIGSTOP`), in turns. A turn is longer
than the node timeout. At first each command to a frozen master gets no answer; then the master counts as away until the client
connects to it again. Raw commands go to the masters that answer, and wait for a majority: what they lose is caused by the machine.

A core with nothing to do halts, and takes time to continue, on a virtual machine tens of microseconds. The masters share a core
here. While all of them answer, those that a result does not wait for keep it awake for the next command, and their answers keep
the client's core awake. With some of them frozen, both cores halt several times in each pair. So it is measured once more with
cores kept awake, each by a loop that runs only if nothing else does (`chrt --idle`). What the freeze costs then is caused by the
lock.
";

const CONTEST: &str = "
Clients take and release one lock as fast as they can. Each has its own connections, and there are as many clients as masters. If
none gets a majority, each releases what it got and pauses for a random time (`retry_delay`). The masters count acquires and
commands, for each grant and master: 1.00 acquires is one attempt a grant. Clients are not served in order, so a wait is long for a
client that pauses while the others continue.

| masters | clients | acquires a grant | commands a grant | µs a grant | a wait, ms | 99 % | longest |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

const CROWDS: &str = "
Many tasks that wait for one lock, as above, over several masters: commands a hand-off at each master. Each master publishes a
release, and a waiter asks once for all of them.

| masters | waiters | `Locks` | commands a hand-off and master | which, on all masters | µs a hand-off |
| --- | --- | --- | --- | --- | --- |
";

fn machine(page: &mut String, machine: &Machine) -> Result<()> {
    writeln!(page, "\n## The machine\n\n| | |\n| --- | --- |")?;
    for (name, fact) in &machine.facts {
        writeln!(page, "| {name} | {fact} |")?;
    }
    write!(page, "{AGAIN}")?;
    Ok(())
}

const AGAIN: &str = "
\"load\" is how many processes were ready to run in the minute before. More than there are cores means that other programs were running,
which affects the spread and the 99 % more than the ratios.

## Run it again

`scripts/bench` takes some minutes. It starts six servers of its own, pins servers and client to separate cores if the system can
do that, and writes this page. `scripts/bench --quick` checks in about a minute that everything works, and writes no page.
`scripts/redis cargo bench -p benches --bench calls` measures single calls by criterion, to look at a change of your own.
";

fn plots(results: &Path, folder: &Path, timed: [(&str, &Timed); 2], crowds: &[Crowd]) -> Result<()> {
    let bar = |name: &str, (ratio, limit): (Spread, Option<f64>)| {
        let (name, Spread { median, low, high }) = (name.replace('`', ""), ratio);
        Bar { name, low, median, high, limit }
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
    let axes = Axes { across: "waiters", up: "commands" };
    let lines: Vec<Line> = [target].into_iter().chain(measured).collect();
    plot::counts(&folder.join("bench-waiters.svg"), &axes, &lines, 4.5)
}
