//! Compares the verdict on all answers of three masters, in all orders, with what docs/lab/invariants.md says about them.

use super::*;

/// What one master does with a command.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vote {
    Done,
    Gone,
    Busy,
    Foreign,
    Free,
    Deferred,
    NotRun,
    Unknown,
}

use Vote::{Busy, Deferred, Done, Foreign, Free, Gone, NotRun, Unknown};

/// A master's vote, and whether the master is young. `None`: it is young, and therefore not asked.
type Given = Option<(Vote, bool)>;

/// What the verdict reports to its caller, as far as that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    /// Granted, or the hold stands.
    Yes,
    /// Another hold is in the way, or a key that is no lock.
    Refused,
    /// The hold no longer exists.
    Gone,
    /// Released by force; `Free`: nothing was held.
    Freed,
    Free,
    /// No majority agrees on anything.
    Undecided,
}

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn votes(rule: Rule) -> &'static [Vote] {
    match rule {
        Rule::Fresh => &[Done, Busy, Foreign, NotRun, Unknown],
        Rule::Standing => &[Done, Gone, Busy, Foreign, Deferred, NotRun, Unknown],
        Rule::Force => &[Done, Free, Foreign, NotRun, Unknown],
        _ => &[Done, Gone, Foreign, NotRun, Unknown],
    }
}

fn given(rule: Rule) -> Vec<Given> {
    // For other votes, it makes no difference whether the master is young.
    let young =
        [Done, Gone].into_iter().filter(|vote| votes(rule).contains(vote)).map(|vote| Some((vote, true)));
    let asked = votes(rule).iter().map(|vote| Some((*vote, false))).chain(young);
    // A young master is left out only for a fresh grant.
    asked.chain((rule == Rule::Fresh).then_some(None)).collect()
}

fn answer(vote: Vote) -> CallResult {
    Ok(match vote {
        Vote::Done => Reply::Done,
        Vote::Gone => Reply::Gone,
        Vote::Busy => Reply::busy(SECOND),
        Vote::Foreign => Reply::NotALock("a list".into()),
        Vote::Free => Reply::Free,
        Vote::Deferred => Reply::Deferred("full".into()),
        Vote::NotRun => return failed(Outcome::NotRun),
        Vote::Unknown => return failed(Outcome::Unknown),
    })
}

/// Returns what three answers mean once all are known. A majority is two.
fn means(rule: Rule, all: [Given; 3]) -> Means {
    let count = |of: &dyn Fn(Vote, bool) -> bool| {
        all.iter().flatten().filter(|(vote, young)| of(*vote, *young)).count()
    };
    match rule {
        // Young masters have no vote, and a majority of the masters that answer is not a majority of all.
        Rule::Fresh => {
            let granted = count(&|vote, young| vote == Done && !young);
            let foreign = count(&|vote, _| vote == Foreign);
            let busy = count(&|vote, _| vote == Busy);
            match () {
                () if granted >= 2 => Means::Yes,
                () if granted + foreign + busy >= 2 => Means::Refused,
                () => Means::Undecided,
            }
        }
        // The field may be repaired on a young master that lacks it. Old masters that lack it are believed.
        Rule::Standing => match () {
            () if count(&|vote, _| matches!(vote, Done | Deferred)) >= 2 => Means::Yes,
            () if count(&|vote, young| matches!(vote, Busy | Foreign) || (vote == Gone && !young)) >= 2 => {
                Means::Gone
            }
            () => Means::Undecided,
        },
        // Like a standing hold, but a young master has no vote for it, since it may have the field of a claim
        // that was already used.
        Rule::Claim => match () {
            () if count(&|vote, young| vote == Done && !young) >= 2 => Means::Yes,
            () if count(&|vote, young| vote == Foreign || (vote == Gone && !young)) >= 2 => Means::Gone,
            () => Means::Undecided,
        },
        // A repeated release may find the effect of its first try. A young master does not show that the hold
        // was gone.
        Rule::End { repeated } => {
            let ended = |vote, young| vote == Done || (vote == Gone && (young || repeated));
            let lacked = count(&|vote, young| vote == Gone && !young);
            if count(&ended) >= 2 || lacked >= 2 { Means::Gone } else { Means::Undecided }
        }
        Rule::Remains | Rule::Repair => Means::Yes,
        Rule::Force => match () {
            () if count(&|vote, _| vote == Free) >= 2 => Means::Free,
            () if count(&|vote, _| vote == Foreign) >= 2 => Means::Refused,
            () if count(&|vote, _| matches!(vote, Done | Free)) >= 2 => Means::Freed,
            () => Means::Undecided,
        },
        Rule::IsHeld | Rule::HeldFor | Rule::Who | Rule::Waiters => {
            unreachable!("looks have tests of their own")
        }
    }
}

/// Returns what a verdict means.
fn meaning(rule: Rule, verdict: &Verdict) -> Means {
    match (&verdict.result, rule) {
        (Err(_), _) => Means::Undecided,
        (Ok(Reply::NotALock(_) | Reply::Busy(..)), _) => Means::Refused,
        (Ok(Reply::Free), _) => Means::Free,
        (Ok(Reply::Done), Rule::Force) => Means::Freed,
        (Ok(Reply::Done), Rule::End { .. }) | (Ok(Reply::Gone), _) => Means::Gone,
        (Ok(_), _) => Means::Yes,
    }
}

/// Returns all ways in which the masters that have not answered may still answer.
fn completed(rule: Rule, answered: [Option<Given>; 3]) -> Vec<[Given; 3]> {
    let open = given(rule).into_iter().filter(Option::is_some).collect::<Vec<_>>();
    let of = |at: usize| answered[at].map_or_else(|| open.clone(), |given| vec![given]);
    let (one, two, three) = (of(0), of(1), of(2));
    let pairs = one.iter().flat_map(|one| two.iter().map(move |two| (*one, *two)));
    pairs.flat_map(|(one, two)| three.iter().map(move |three| [one, two, *three])).collect()
}

/// Returns whether a master that gave this vote may have the field.
fn may_have(vote: Vote) -> bool {
    matches!(vote, Done | Unknown | Deferred)
}

const RULES: [Rule; 8] = [
    Rule::Fresh,
    Rule::Standing,
    Rule::Claim,
    Rule::End { repeated: false },
    Rule::End { repeated: true },
    Rule::Remains,
    Rule::Repair,
    Rule::Force,
];

/// Calls `each` after each answer, in each order, with the answers so far and the verdict, if there is one.
fn in_all_orders(mut each: impl FnMut(Rule, [Option<Given>; 3], [Given; 3], Option<Verdict>)) -> usize {
    let mut cases = 0;
    for rule in RULES {
        let kinds = given(rule);
        let triples = kinds.iter().flat_map(|one| kinds.iter().map(move |two| (*one, *two)));
        for (one, two) in triples {
            for three in &kinds {
                let all = [one, two, *three];
                for order in ORDERS {
                    let mut tally = tally(rule, 3);
                    let mut answered = [None; 3];
                    for at in (0..3).filter(|at| all[*at].is_none()) {
                        tally.bar(at);
                        answered[at] = Some(None);
                    }
                    each(rule, answered, all, tally.verdict());
                    for at in order {
                        let Some((vote, young)) = all[at] else { continue };
                        tally.count(at, young, answer(vote));
                        answered[at] = Some(all[at]);
                        each(rule, answered, all, tally.verdict());
                        cases += 1;
                    }
                }
            }
        }
    }
    cases
}

fn pending(answered: [Option<Given>; 3]) -> MasterSet {
    set(|at| answered[at].is_none())
}

fn set(is_in: impl Fn(usize) -> bool) -> MasterSet {
    (0..3).filter(|at| is_in(*at)).fold(MasterSet::NONE, |set, at| set.union(MasterSet::one(at)))
}

/// The verdict is given exactly when no further answer can change it, and later answers do not change it.
#[test]
fn the_verdict_is_what_all_answers_mean_and_comes_as_soon_as_it_is_certain() {
    // The order of the same answers does not change what may become of them.
    type Case = (Rule, [Option<Given>; 3]);
    let mut known: Vec<(Case, Vec<Means>)> = Vec::new();
    let cases = in_all_orders(|rule, answered, _, verdict| {
        let key = (rule, answered);
        let possible = match known.iter().rev().take(8).find(|(of, _)| *of == key) {
            Some((_, possible)) => possible.clone(),
            None => {
                let mut possible = Vec::new();
                for all in completed(rule, answered) {
                    let means = means(rule, all);
                    if !possible.contains(&means) {
                        possible.push(means);
                    }
                }
                known.push((key, possible.clone()));
                possible
            }
        };
        let meant = verdict.as_ref().map(|verdict| meaning(rule, verdict));
        let young_lacks = answered.contains(&Some(Some((Gone, true))));
        let expected = match (rule, &possible[..]) {
            // The field is repaired on the young master unless an old one lacks it too.
            (Rule::Standing | Rule::Claim, [Means::Undecided])
                if young_lacks && !pending(answered).is_empty() =>
            {
                None
            }
            // What is left on a minority is asked of each master on its own. A forced release frees every
            // master that it can.
            (Rule::Remains, _) | (Rule::Force, [Means::Undecided]) if !pending(answered).is_empty() => None,
            (_, [one]) => Some(*one),
            _ => None,
        };
        assert_eq!(meant, expected, "{rule:?}: {answered:?}, of which may come {possible:?}");
    });
    assert!(cases > 20_000, "{cases}");
}

/// If a master may have a field that nobody holds, the verdict names that master, or it is still to answer.
#[test]
fn no_master_that_may_have_the_field_is_left_out() {
    in_all_orders(|rule, answered, _, verdict| {
        let Some(verdict) = verdict else { return };
        let spread = verdict.spread;
        let of = |is: &dyn Fn(Vote, bool) -> bool| {
            set(|at| answered[at].flatten().is_some_and(|(vote, young)| is(vote, young)))
        };
        let case = format!("{rule:?}: {answered:?}: {verdict:?}");
        let meant = meaning(rule, &verdict);
        let has = of(&|vote, _| may_have(vote));
        let remains = match (rule, meant) {
            (Rule::Fresh, Means::Refused | Means::Undecided) => has,
            // A master that did not confirm the end.
            (Rule::End { .. }, Means::Gone) | (Rule::Remains, _) => {
                of(&|vote, _| matches!(vote, NotRun | Unknown))
            }
            // No master is asked again, so all that may have the field are named, also those that are still
            // to answer.
            (Rule::Standing | Rule::Claim, Means::Gone) => has
                .union(of(&|vote, young| vote == NotRun || (vote == Gone && young)))
                .union(pending(answered)),
            _ => MasterSet::NONE,
        };
        assert_eq!(spread.remains, remains, "{case}");
        if !(matches!(rule, Rule::Standing | Rule::Claim) && meant == Means::Gone) {
            assert_eq!(spread.unanswered, pending(answered), "{case}");
        }
        // A master that is called lacking is given the field, and one that is called missing gets no end:
        // neither may have the field.
        assert!(spread.missing.within(has.union(pending(answered))).is_empty(), "{case}");
        assert!(spread.lacking.within(has.union(pending(answered))).is_empty(), "{case}");
        let missing = of(&|vote, _| vote == Gone);
        if let (Rule::End { repeated }, Means::Gone) = (rule, meant) {
            assert_eq!(spread.missing, missing, "{case}");
            // A guard reports a loss if a majority lacked the field, or no master is known to have had it.
            let lacked = of(&|vote, young| vote == Gone && !young && !repeated).len() >= 2;
            let had = !of(&|vote, _| vote == Done).is_empty();
            assert_eq!(
                verdict.result.as_ref().is_ok_and(|reply| *reply == Reply::Done),
                had && !lacked,
                "{case}"
            );
        }
        if matches!(rule, Rule::Standing | Rule::Claim) && meant == Means::Yes {
            assert_eq!(spread.lacking, missing, "{case}");
        }
        // A key that is no lock fails a request for good, so a single master is not believed.
        let foreign = of(&|vote, _| vote == Foreign).len();
        assert_eq!(
            matches!(verdict.result, Ok(Reply::NotALock(_))),
            meant == Means::Refused && foreign >= 2,
            "{case}"
        );
        // After "not run", a request forgets its field: no master that answered may have it.
        if let (Rule::Fresh, Err(Failure { outcome: Outcome::NotRun, .. })) = (rule, &verdict.result) {
            assert!(has.is_empty(), "{case}");
        }
    });
}
