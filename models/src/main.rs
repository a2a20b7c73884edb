//! Explores the models in configurations that are too big for a test, and prints how many states there were:
//! `models [hold | wake | line | several] [THREADS]`.

use std::fmt::Debug;
use std::hash::Hash;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use models::{hold, line, several, wake};
use stateright::{Checker, HasDiscoveries, Model};

/// The bounds of one run. States that are reached by fewer steps are explored first; what is beyond the bounds is not
/// explored.
const STATES: usize = 40_000_000;
const TIME: Duration = Duration::from_secs(900);

fn main() -> ExitCode {
    let which = std::env::args().nth(1);
    let runs = |name: &str| which.as_deref().is_none_or(|which| which == name);
    let mut sound = true;
    if runs("hold") {
        sound &= check("hold, everything at once", hold::HoldModel::everything());
        sound &= check("hold, what it leaves behind", hold::HoldModel::remains());
        sound &= check("hold, tokens", hold::HoldModel::tokens());
    }
    if runs("wake") {
        sound &= check("wake, everything at once", wake::WakeModel::everything());
        sound &= check("wake, subscribed all the time", wake::WakeModel::echoes());
    }
    if runs("line") {
        for model in line::LineModel::scopes() {
            sound &= check("line", model);
        }
    }
    if runs("several") {
        for model in several::SeveralModel::scopes() {
            sound &= check("several names", model);
        }
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores the states. Prints how many there are, and an execution that breaks a property, if any.
fn check<M>(name: &str, model: M) -> bool
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    println!("{name}\n    {model:?}");
    let begun = Instant::now();
    let threads = std::env::args().nth(2).and_then(|threads| threads.parse().ok());
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let checker = model.checker().threads(threads).finish_when(HasDiscoveries::Any);
    let checker = checker.target_state_count(STATES).timeout(TIME).spawn_bfs().join();
    let (states, seconds) = (checker.state_count(), begun.elapsed().as_secs());
    let cut = states >= STATES || begun.elapsed() >= TIME;
    let all = if cut { "not all" } else { "all" };
    println!(
        "    {states} states, {} unique, depth {}, {seconds} s, {all} explored",
        checker.unique_state_count(),
        checker.max_depth(),
    );
    let broken = checker.discoveries();
    for (property, path) in &broken {
        println!("\nbroken: {property}");
        let (last, steps) = (path.last_state().clone(), path.clone().into_actions());
        steps.iter().for_each(|step| println!("  {step:?}"));
        println!("{last:?}");
    }
    broken.is_empty()
}
