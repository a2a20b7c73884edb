//! Choices that are named by numbers: each is the same whatever else was drawn before.

use std::time::Duration;

/// A place at which something is chosen, such as the seventh command of one process to one master.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Key {
    pub(super) fn new(seed: u64) -> Key {
        Key(mix(seed.wrapping_add(STEP)))
    }

    pub(super) fn with(self, part: u64) -> Key {
        Key(mix(self.0.wrapping_mul(STEP) ^ mix(part.wrapping_add(STEP))))
    }

    /// Returns a number below `sides`.
    pub(super) fn roll(self, sides: u64) -> u64 {
        self.0 % sides.max(1)
    }

    /// Is true with a chance of one in `sides`; never for zero.
    pub(super) fn one_in(self, sides: u64) -> bool {
        sides > 0 && self.roll(sides) == 0
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds up to `longest`; each order of magnitude is equally likely.
    pub(super) fn time(self, longest: Duration) -> Duration {
        let share = (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        let most = (longest.as_millis() as f64).ln_1p();
        Duration::from_millis((share * most).exp_m1().round() as u64).min(longest)
    }
}

/// Draws one choice after another.
pub(super) struct Dice {
    key: Key,
    drawn: u64,
}

impl Dice {
    pub(super) fn new(key: Key) -> Dice {
        Dice { key, drawn: 0 }
    }

    pub(super) fn next(&mut self) -> Key {
        self.drawn += 1;
        self.key.with(self.drawn)
    }

    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.next().roll(sides as u64) as usize
    }

    pub(super) fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    pub(super) fn time(&mut self, longest: Duration) -> Duration {
        self.next().time(longest)
    }
}
