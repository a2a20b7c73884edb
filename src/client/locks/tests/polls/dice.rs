//! All choices of one run, drawn from its seed.

use std::cell::RefCell;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(super) struct Dice(RefCell<StdRng>);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(RefCell::new(StdRng::seed_from_u64(seed)))
    }

    /// Returns dice for a part of the run. What other parts draw does not depend on how often that one draws.
    pub(super) fn split(&self) -> Dice {
        Dice::new(self.0.borrow_mut().random())
    }

    /// Returns one of `0..sides`.
    pub(super) fn roll(&self, sides: usize) -> usize {
        self.0.borrow_mut().random_range(0..sides)
    }

    pub(super) fn one_in(&self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub(super) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// Returns a time up to `longest`. Each order of magnitude is as likely as the next: races differ by milliseconds, timeouts by
    /// seconds.
    pub(super) fn time(&self, longest: Duration) -> Duration {
        let longest = (longest.as_millis() as f64).ln_1p();
        let drawn = self.0.borrow_mut().random_range(0.0..=longest).exp_m1();
        Duration::from_millis(drawn as u64)
    }
}
