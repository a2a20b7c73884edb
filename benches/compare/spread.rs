//! Medians of rounds, and their lowest and highest values.

/// The median of some figures, and the lowest and the highest.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        let end = |at: Option<&f64>| at.copied().unwrap_or(f64::NAN);
        Spread { median, low: end(sorted.first()), high: end(sorted.last()) }
    }

    /// Returns the spread of the ratios round by round: a disturbance affects both sides of a round.
    pub(crate) fn of_ratios(
        ours: impl IntoIterator<Item = f64>,
        floor: impl IntoIterator<Item = f64>,
    ) -> Spread {
        Spread::of(ours.into_iter().zip(floor).map(|(ours, floor)| ours / floor))
    }
}
