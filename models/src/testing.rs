//! The checks that the tests of all models make.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Checks that the shortest execution that breaks a property has so many steps. With `SHOW` in the environment it
/// prints the shortest one instead.
pub(crate) fn finds<M>(model: &M, property: &'static str, length: usize)
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    if std::env::var("SHOW").is_ok() {
        let path = (3..40).find_map(|length| discovery(model, property, length)).unwrap();
        println!("{model:?} {property} {} {path:?}", path.len());
        return;
    }
    assert_eq!(discovery(model, property, length - 1), None);
    assert_eq!(discovery(model, property, length).map(|steps| steps.len()), Some(length));
}

/// Returns an execution of at most so many steps. If there are several, it is not the shortest: the checker reports
/// the last of those that it finds together.
fn discovery<M>(model: &M, property: &'static str, longest: usize) -> Option<Vec<M::Action>>
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let finish = HasDiscoveries::AnyOf([property].into());
    let checker = model.clone().checker().finish_when(finish).target_max_depth(longest + 2);
    checker.spawn_bfs().join().discovery(property).map(|found| found.into_actions())
}

/// Checks that no execution of the model breaks a property, and that the model has so many states. With `SHOW` in the
/// environment it prints the number of states, and each execution that breaks a property, instead.
pub(crate) fn is_sound<M>(model: M, states: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    if std::env::var("SHOW").is_ok() {
        println!("{} states", checker.unique_state_count());
        for (name, path) in checker.discoveries() {
            println!("{name}: {:?}\n{:?}", path.clone().into_actions(), path.last_state());
        }
        return;
    }
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

/// Checks that no execution of so many steps breaks a property.
pub(crate) fn is_sound_for<M>(model: M, steps: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().target_max_depth(steps + 2).spawn_bfs().join();
    if std::env::var("SHOW").is_ok() {
        println!("{} states", checker.unique_state_count());
    }
    checker.assert_properties();
}
