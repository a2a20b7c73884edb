//! The faults of a run and their order, as a seed decides them.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::Kind::{self, *};
use super::{Fault, Step};
use crate::job::PROCESSES;
use crate::options::Shape;

/// Kinds that come often are listed more than once.
const OF_SERVERS: [Kind; 17] = [
    Kill,
    Kill,
    Kill,
    Lose,
    Freeze,
    FreezeLong,
    Pause,
    Busy,
    FlushScripts,
    Fill,
    Evict,
    Strip,
    Refuse,
    KillClients,
    FailOver,
    Move,
    FreezeSentinel,
];
const OF_NETWORK: [Kind; 7] = [Cut, HalfOpen, Reset, Slow, LoseReplies, LoseCommands, DeliverLate];
const OF_PROCESSES: [Kind; 2] = [KillProcess, FreezeProcess];

/// Kinds of faults in random order: each of them comes once before any comes again.
struct Deck {
    kinds: Vec<Kind>,
    left: Vec<Kind>,
}

impl Deck {
    fn new(kinds: &[Kind], shape: Shape, only: &str) -> Deck {
        let suit = |kind: &&Kind| kind.suits(shape) && kind.name().contains(only);
        Deck { kinds: kinds.iter().filter(suit).copied().collect(), left: Vec::new() }
    }

    fn next(&mut self, random: &mut StdRng) -> Option<Kind> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            self.left.shuffle(random);
        }
        self.left.pop()
    }
}

/// The faults of a run, as a seed decides them.
pub(crate) struct Plan {
    shape: Shape,
    random: StdRng,
    servers: Deck,
    network: Deck,
    processes: Deck,
}

impl Plan {
    pub(crate) fn new(shape: Shape, seed: u64, only: &str) -> Plan {
        Plan {
            shape,
            random: StdRng::seed_from_u64(seed),
            servers: Deck::new(&OF_SERVERS, shape, only),
            network: Deck::new(&OF_NETWORK, shape, only),
            processes: Deck::new(&OF_PROCESSES, shape, only),
        }
    }

    /// Returns the next step, and the time for which nothing fails after it.
    pub(crate) fn next(&mut self) -> (Step, Duration) {
        let Plan { shape, random, servers, network, processes } = self;
        let drawn = random.random_range(0..20_u32);
        let mut step = Step { servers: None, network: None, process: None };
        let fault = |deck: &mut Deck, random: &mut StdRng| {
            deck.next(random).map(|kind| Fault::draw(random, kind, *shape))
        };
        if drawn < 12 {
            step.servers = fault(servers, random);
        }
        // A fault that delays or cuts connections must find its server alive.
        let serves = step.servers.as_ref().is_none_or(|fault| fault.leaves_alive());
        if drawn >= 10 && serves {
            step.network = fault(network, random);
        }
        if drawn.is_multiple_of(3) || (step.servers.is_none() && step.network.is_none()) {
            step.process = fault(processes, random);
        }
        // Some pauses are long enough to see how long recovery takes. Several masters that were killed have no vote for a lease.
        let are_young = matches!(shape, Shape::Masters(2..))
            && step.servers.as_ref().is_some_and(|fault| fault.kind == Kill);
        let pause =
            if random.random_ratio(1, if are_young { 2 } else { 6 }) { 4_000..6_000 } else { 100..1_000 };
        (step, Duration::from_millis(random.random_range(pause)))
    }
}

impl Fault {
    fn draw(random: &mut StdRng, kind: Kind, shape: Shape) -> Fault {
        let masters = match shape {
            Shape::Masters(count) => count,
            _ => 1,
        };
        // Most faults hit a minority of the masters. A kill, which costs several masters their data, mostly
        // hits a majority.
        let count = match random.random_range(0..10) {
            0..=2 => 1,
            3..=5 if kind != Kill => (masters / 2).max(1),
            3..=7 => masters / 2 + 1,
            _ => masters,
        };
        // If replicas or sentinels watch the servers, a server must not be taken for dead.
        let longest = match (kind, shape) {
            (FreezeProcess, _) => 5_000,
            (Slow, _) => 2_000,
            // Shorter than a lease, so a hold that was granted before still stands.
            (Kill, _) => 1_000,
            // Longer than a lease.
            (Freeze | Pause | Cut | DeliverLate, Shape::Masters(_)) => 4_000,
            (_, Shape::Masters(_)) => 2_000,
            _ => 1_000,
        };
        Fault {
            kind,
            server: random.random_range(0..1_000),
            count,
            process: random.random_ratio(1, 2).then(|| random.random_range(0..PROCESSES)),
            time: Duration::from_millis(random.random_range(longest / 20..=longest)),
            variant: random.random_range(0..1_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHAPES: [Shape; 5] =
        [Shape::Masters(1), Shape::Masters(3), Shape::Masters(5), Shape::Sentinel, Shape::Cluster];

    fn steps(shape: Shape, seed: u64, count: usize) -> Vec<(Step, Duration)> {
        let mut plan = Plan::new(shape, seed, "");
        (0..count).map(|_| plan.next()).collect()
    }

    #[test]
    fn a_seed_decides_all_steps() {
        for shape in SHAPES {
            let of = |seed| format!("{:?}", steps(shape, seed, 100));
            assert_eq!(of(7), of(7));
            assert_ne!(of(7), of(8));
        }
    }

    #[test]
    fn each_kind_that_suits_a_deployment_comes_soon() {
        for shape in SHAPES {
            let kinds = |kinds: &[Kind]| {
                kinds.iter().filter(|kind| kind.suits(shape)).map(|kind| kind.name()).collect::<BTreeSet<_>>()
            };
            let steps = steps(shape, 3, 60);
            let faults = steps.iter().flat_map(|(step, _)| [&step.servers, &step.network, &step.process]);
            let came: BTreeSet<_> = faults.flatten().map(|fault| fault.kind.name()).collect();
            assert_eq!(came, &(&kinds(&OF_SERVERS) | &kinds(&OF_NETWORK)) | &kinds(&OF_PROCESSES));
        }
    }

    #[test]
    fn a_step_does_something_and_single_masters_are_struck() {
        for shape in SHAPES {
            for (step, _) in steps(shape, 5, 200) {
                let faults = [&step.servers, &step.network, &step.process];
                assert!(
                    faults.iter().any(|fault| fault.as_ref().is_some_and(|fault| fault.count > 0)),
                    "{step:?}"
                );
            }
        }
    }
}
