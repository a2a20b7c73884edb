//! The targets of the comparison with other libraries, and whether they are met.

use crate::peers::holds::Rest;
use crate::peers::results::{Case, Holds, Peers, Rounds};
use crate::peers::work::{Sample, Work};
use crate::spread::Spread;

const OURS: &str = "nestlock";

/// For how long a lock passes on inside a process, in milliseconds: the default of `local_handoff`.
const HANDED_ON_FOR: f64 = 10.0;

/// One line of the table.
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) target: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// Returns the targets for the results.
pub(crate) fn targets(peers: &Peers) -> Vec<Target> {
    let works = peers.works.iter().flat_map(of_work);
    let most = peers.holds.iter().max_by_key(|of| of.holds);
    works.chain(most.into_iter().flat_map(of_holds)).flatten().collect()
}

fn of_work(rounds: &Rounds) -> Vec<Option<Target>> {
    use Limit::{AtLeast, AtMost};
    let (name, floor) = (rounds.work.name(), rounds.ratio(OURS));
    let line = |what: &str, limit, figure| target(format!("{name}{what}"), limit, " ×", figure);
    // For times, less is better.
    let ahead =
        |other: &str, limit| line(&format!(", {other} = 1"), AtMost(limit), beside(rounds, other, time));
    let longest = |limit: f64| {
        let of = rounds.case(OURS).and_then(|case| case.spread(|of| of.longest));
        target(format!("{name}: longest wait"), AtMost(limit), " ms", of)
    };
    match rounds.work {
        Work::Pair => vec![
            line(", the floor = 1", AtMost(1.05), floor),
            ahead("rslock", 1.05),
            ahead("redsync", 1.0),
            ahead("Redisson", 1.0),
            line(
                ": the server's processor time, the floor's = 1",
                AtMost(1.0),
                beside(rounds, "floor", server),
            ),
            line(": the same, Redisson's = 1", AtMost(0.7), beside(rounds, "Redisson", server)),
        ],
        Work::Own { .. } => {
            let rate = beside(rounds, "rslock", |of| Some(1.0 / of.micros));
            vec![line(", the floor = 1", AtLeast(1.9), floor), line(", rslock = 1", AtLeast(1.0), rate)]
        }
        Work::Nested => vec![line(", the floor = 1", AtMost(0.83), floor)],
        Work::Handoff => vec![line(", the floor = 1", AtMost(0.85), floor), ahead("Redisson", 0.6)],
        Work::Crowd { tasks } => {
            // A task that has released the lock waits until all others have had it.
            let mean = |of: &Sample| of.micros * tasks as f64 / 1e3;
            let of = |of: &Sample| Some(of.longest? / mean(of));
            let longest = rounds.case(OURS).and_then(|case| case.spread(of));
            let what = ": longest wait, the mean = 1";
            vec![line(", the floor = 1", AtLeast(50.0), floor), line(what, AtMost(3.0), longest)]
        }
        Work::Processes { .. } => {
            let share = |end: fn(f64, f64) -> f64| {
                let equal = |of: &Sample| of.shares.iter().sum::<f64>() / of.shares.len() as f64;
                rounds.case(OURS)?.spread(|of| Some(of.shares.iter().copied().reduce(end)? / equal(of)))
            };
            vec![
                line(": least share, an equal one = 1", AtLeast(0.5), share(f64::min)),
                line(": largest share", AtMost(2.0), share(f64::max)),
                longest(25.0 * HANDED_ON_FOR),
            ]
        }
    }
}

fn of_holds(of: &Holds) -> Vec<Option<Target>> {
    let ours = of.cases.iter().find(|case| case.name == OURS);
    let line = |what: &str, limit, unit, figure: fn(&Rest) -> Option<f64>| {
        target(format!("{} holds: {what}", of.holds), Limit::AtMost(limit), unit, ours?.spread(figure))
    };
    // Only the first round counts: in later ones the holds use memory that was allocated before.
    let memory = |case: &Case<Rest>| {
        let most = case.samples.iter().filter_map(|of| of.resident).reduce(f64::max)?;
        target(
            format!("{} holds: memory of each", of.holds),
            Limit::AtMost(700.0),
            " bytes",
            Some(Spread::of([most])),
        )
    };
    vec![
        line("the client's processor", 2.0, " % of a core", |of| Some(of.kept.as_ref()?.client? * 100.0)),
        line("the server's", 3.0, " % of a core", |of| Some(of.kept.as_ref()?.server * 100.0)),
        ours.and_then(memory),
    ]
}

fn time(of: &Sample) -> Option<f64> {
    Some(of.micros)
}

fn server(of: &Sample) -> Option<f64> {
    Some(of.server)
}

/// Returns a figure of this crate as a multiple of another library's, round by round.
fn beside(rounds: &Rounds, other: &str, of: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
    let (ours, others) = (&rounds.case(OURS)?.samples, &rounds.case(other)?.samples);
    let ratios = ours.iter().zip(others).filter_map(|(ours, other)| Some(of(ours)? / of(other)?));
    let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_normal()).collect();
    (!ratios.is_empty()).then(|| Spread::of(ratios))
}

fn target(what: String, limit: Limit, unit: &str, of: Option<Spread>) -> Option<Target> {
    let of = of?;
    let (sign, limit, met) = match limit {
        Limit::AtMost(limit) => ("≤", limit, of.median <= limit),
        Limit::AtLeast(limit) => ("≥", limit, of.median >= limit),
    };
    let digits =
        |figure: f64| if figure.abs() < 99.95 { format!("{figure:.2}") } else { format!("{figure:.0}") };
    let measured = format!("{}{unit} ({}–{})", digits(of.median), digits(of.low), digits(of.high));
    Some(Target { what, target: format!("{sign} {}{unit}", digits(limit)), measured, met })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(micros: f64, longest: f64, shares: &[f64]) -> Sample {
        let (server, client, commands) = (micros / 2.0, None, None);
        let (longest, shares) = (Some(longest), shares.to_vec());
        Sample { operations: 1, micros, server, client, commands, longest, shares, errors: 0 }
    }

    fn case(name: &str, samples: Vec<Sample>) -> Case<Sample> {
        Case { name: name.to_owned(), samples, failure: None }
    }

    fn lines(work: Work, cases: Vec<Case<Sample>>) -> Vec<String> {
        let peers = Peers { works: vec![Rounds { work, cases }], ..Peers::default() };
        let line = |of: Target| format!("{} {} {} {}", of.what, of.target, of.measured, of.met);
        targets(&peers).into_iter().map(line).collect()
    }

    #[test]
    fn times_are_to_be_less_and_rates_more() {
        let floor = || case("floor", vec![sample(10.0, 0.0, &[]), sample(20.0, 0.0, &[])]);
        let ours = || case(OURS, vec![sample(9.0, 0.0, &[]), sample(10.0, 0.0, &[])]);
        let handoff = lines(Work::Handoff, vec![floor(), ours()]);
        let name = Work::Handoff.name();
        assert_eq!(handoff, [format!("{name}, the floor = 1 ≤ 0.85 × 0.70 × (0.50–0.90) true")]);
        let own = lines(Work::Own { workers: 1 }, vec![floor(), ours()]);
        let name = Work::Own { workers: 1 }.name();
        assert_eq!(own, [format!("{name}, the floor = 1 ≥ 1.90 × 1.56 × (1.11–2.00) false")]);
    }

    #[test]
    fn waits_are_compared_with_the_mean_and_shares_with_equal_ones() {
        let ours = case(OURS, vec![sample(1000.0, 30.0, &[0.5, 1.5])]);
        let crowd = lines(Work::Crowd { tasks: 8 }, vec![ours]);
        assert_eq!(crowd.len(), 1, "no floor was measured");
        assert!(
            crowd[0].ends_with("longest wait, the mean = 1 ≤ 3.00 × 3.75 × (3.75–3.75) false"),
            "{crowd:?}"
        );
        let ours = case(OURS, vec![sample(1.0, 251.0, &[0.25, 0.75])]);
        let seen = lines(Work::Processes { count: 2 }, vec![ours]);
        let met: Vec<bool> = seen.iter().map(|line| line.ends_with("true")).collect();
        assert_eq!(met, [true, true, false], "{seen:?}");
        assert!(seen[0].contains("0.50 × (0.50–0.50)") && seen[1].contains("1.50 × (1.50–1.50)"), "{seen:?}");
    }
}
