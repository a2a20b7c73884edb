//! A recorder of what the crate measures with `metrics`, for a test whose runtime has one thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Metadata,
    Recorder, SharedString, Unit, set_default_local_recorder,
};

/// The recorded values by metric, with labels as `name{label=value}`.
#[derive(Clone, Default)]
pub struct Recorded(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    values: BTreeMap<String, f64>,
    samples: BTreeMap<String, Vec<f64>>,
    described: BTreeMap<String, Option<Unit>>,
    panics: bool,
}

/// Records what this thread measures until the guard is dropped. A test keeps both as long as its locks.
pub fn record() -> (Recorded, LocalRecorderGuard<'static>) {
    let recorded = Recorded::default();
    // The recorder is leaked, which is harmless since few tests need one.
    let recorder: &'static Recorded = Box::leak(Box::new(recorded.clone()));
    (recorded, set_default_local_recorder(recorder))
}

impl Recorded {
    /// Returns the value of a counter or a gauge, 0 if it does not exist.
    pub fn value(&self, name: &str) -> f64 {
        self.0.lock().unwrap().values.get(name).copied().unwrap_or_default()
    }

    /// From now on the recorder panics, or no longer does.
    pub fn panics(&self, panics: bool) {
        self.0.lock().unwrap().panics = panics;
    }

    /// Returns the samples of a histogram.
    pub fn samples(&self, name: &str) -> Vec<f64> {
        self.0.lock().unwrap().samples.get(name).cloned().unwrap_or_default()
    }

    /// Returns all metrics that were changed, with their labels.
    pub fn names(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        state.values.keys().chain(state.samples.keys()).cloned().collect()
    }

    /// Returns the units of the described metrics.
    pub fn described(&self) -> BTreeMap<String, Option<Unit>> {
        self.0.lock().unwrap().described.clone()
    }

    fn describe(&self, key: KeyName, unit: Option<Unit>) {
        self.0.lock().unwrap().described.insert(key.as_str().to_owned(), unit);
    }

    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = match labels.is_empty() {
            true => key.name().to_owned(),
            false => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        let panics = self.0.lock().unwrap().panics;
        assert!(!panics, "no `{name}` here");
        Arc::new(Metric { name, recorded: self.clone() })
    }
}

struct Metric {
    name: String,
    recorded: Recorded,
}

impl Metric {
    fn change(&self, by: impl FnOnce(&mut f64)) {
        by(self.recorded.0.lock().unwrap().values.entry(self.name.clone()).or_default());
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.change(|count| *count += value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|count| *count = value as f64);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, value: f64) {
        self.change(|gauge| *gauge += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|gauge| *gauge -= value);
    }

    fn set(&self, value: f64) {
        self.change(|gauge| *gauge = value);
    }
}

impl HistogramFn for Metric {
    fn record(&self, value: f64) {
        self.recorded.0.lock().unwrap().samples.entry(self.name.clone()).or_default().push(value);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(key, unit);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}
