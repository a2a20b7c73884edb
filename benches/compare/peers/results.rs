//! The part of the results file on other libraries.

use serde::{Deserialize, Serialize};

use crate::peers::fleet::About;
use crate::peers::holds::Rest;
use crate::peers::work::{Sample, Work};
use crate::spread::Spread;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Peers {
    pub(crate) libraries: Vec<About>,
    pub(crate) works: Vec<Rounds>,
    pub(crate) holds: Vec<Holds>,
}

/// One work, done by all libraries.
#[derive(Serialize, Deserialize)]
pub(crate) struct Rounds {
    pub(crate) work: Work,
    pub(crate) cases: Vec<Case<Sample>>,
}

/// Many holds, kept by each library.
#[derive(Serialize, Deserialize)]
pub(crate) struct Holds {
    pub(crate) holds: u64,
    pub(crate) lease: f64,
    pub(crate) cases: Vec<Case<Rest>>,
}

/// One library: a sample of each round, until it failed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Case<T> {
    pub(crate) name: String,
    pub(crate) samples: Vec<T>,
    pub(crate) failure: Option<String>,
}

impl<T> Case<T> {
    pub(crate) fn new(name: &str) -> Case<T> {
        Case { name: name.to_owned(), samples: Vec::new(), failure: None }
    }

    /// Returns the spread of a figure, or `None` if there is no such figure.
    pub(crate) fn spread(&self, of: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
        let figures: Vec<f64> =
            self.samples.iter().filter_map(of).filter(|figure| figure.is_finite()).collect();
        (!figures.is_empty()).then(|| Spread::of(figures))
    }
}

impl Rounds {
    pub(crate) fn case(&self, name: &str) -> Option<&Case<Sample>> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// Returns a library's figure as a multiple of the floor's in the same round: the time or, if many operations are under way at once,
    /// the rate.
    pub(crate) fn ratio(&self, name: &str) -> Option<Spread> {
        let (floor, of) = (&self.case("floor")?.samples, &self.case(name)?.samples);
        let ratio = |(floor, of): (&Sample, &Sample)| match self.work.is_rate() {
            true => floor.micros / of.micros,
            false => of.micros / floor.micros,
        };
        let ratios: Vec<f64> = floor.iter().zip(of).map(ratio).filter(|ratio| ratio.is_normal()).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios))
    }
}
