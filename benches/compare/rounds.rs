//! Rounds: several ways to do one thing, measured in short turns, so that a disturbance affects all of them.

use std::time::Duration;

use hdrhistogram::Histogram;
use rand::seq::SliceRandom;

use crate::results::{Case, Quantiles, Timed};
use crate::server::Result;

/// How many samples of one way are taken before the next way.
pub(crate) const TURN: u64 = 25;

/// Something that can be done in several ways.
pub(crate) trait Ways {
    /// The names of the ways; the first is the floor.
    const NAMES: &'static [&'static str];

    /// Runs once in one way, and returns how long it took.
    async fn once(&mut self, way: usize) -> Result<Duration>;
}

/// Takes that many samples of each way in each round, in blocks.
pub(crate) async fn timed<W: Ways>(ways: &mut W, rounds: u64, samples: u64, turn: u64) -> Result<Timed> {
    let empty = Histogram::<u64>::new(3)?;
    let mut quantiles = vec![Vec::new(); W::NAMES.len()];
    // This round is not counted: it warms up connections, caches and the server's scripts.
    round(ways, samples.min(4 * TURN), turn, &mut vec![empty.clone(); W::NAMES.len()]).await?;
    for _ in 0..rounds {
        let mut seen = vec![empty.clone(); W::NAMES.len()];
        round(ways, samples, turn, &mut seen).await?;
        for (way, seen) in seen.iter().enumerate() {
            quantiles[way].push(of(seen));
        }
    }
    let cases = W::NAMES.iter().zip(quantiles);
    let cases = cases.map(|(name, rounds)| Case { name: (*name).to_owned(), rounds });
    Ok(Timed { samples, cases: cases.collect() })
}

async fn round<W: Ways>(ways: &mut W, samples: u64, turn: u64, seen: &mut [Histogram<u64>]) -> Result<()> {
    let mut order: Vec<usize> = (0..W::NAMES.len()).collect();
    let mut left = samples;
    while left > 0 {
        let turn = left.min(turn);
        order.shuffle(&mut rand::rng());
        for &way in &order {
            for _ in 0..turn {
                let took = ways.once(way).await?;
                seen[way].record(took.as_nanos().max(1) as u64)?;
            }
        }
        left -= turn;
    }
    Ok(())
}

fn of(seen: &Histogram<u64>) -> Quantiles {
    let at = |quantile| seen.value_at_quantile(quantile);
    Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: seen.max() }
}
