//! Counts with the recorder that the program has installed. This is the only file that uses the crate `metrics`. No panic of the recorder
//! leaves it while anything is held: see [`unless_it_panics`].

use metrics::{
    Gauge, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::base::meter::{Grouping, Sample};
use crate::base::unless_it_panics;
use crate::error::Loss;

const WAIT: &str = "nestlock_wait_seconds";
const HOLD: &str = "nestlock_held_seconds";
const WAITING: &str = "nestlock_waiting";
const HELD: &str = "nestlock_held";
const LINE: &str = "nestlock_line_length";
const NESTED: &str = "nestlock_nested_locally_total";
const LOST: &str = "nestlock_lost_total";
const TIMEOUTS: &str = "nestlock_timeouts_total";
const RENEWED_LATE: &str = "nestlock_renewals_late_total";
const UNAVAILABLE: &str = "nestlock_unavailable_total";
const CONNECTED: &str = "nestlock_connected";

/// Describes each metric to the recorder.
pub(crate) fn describe() {
    describe_histogram!(WAIT, Unit::Seconds, "From a request's first poll to the grant of its hold");
    describe_histogram!(HOLD, Unit::Seconds, "From a hold's grant to its release or loss");
    describe_histogram!(LINE, Unit::Count, "Processes in a lock's line, when one of them asks");
    describe_gauge!(WAITING, Unit::Count, "Requests that wait for a lock");
    describe_gauge!(HELD, Unit::Count, "Locks that this process holds");
    describe_counter!(NESTED, Unit::Count, "Nested levels that were granted without a command");
    describe_counter!(LOST, Unit::Count, "Holds that ended without a release");
    describe_counter!(TIMEOUTS, Unit::Count, "Requests that were not granted in the time that they had");
    describe_counter!(RENEWED_LATE, Unit::Count, "Leases that were renewed after failed attempts");
    describe_counter!(UNAVAILABLE, Unit::Count, "Commands that too few masters answered");
    describe_gauge!(CONNECTED, Unit::Count, "Standing connections for commands to a server");
}

/// Makes the counters and gauges known at zero: those of all locks, or those of this lock's group. Otherwise the first event would
/// be the first sample, in which nobody sees an increase. Does so once for each group.
pub(crate) fn begin(name: Option<&str>, grouping: Option<&Grouping>) {
    let labels = match (name, grouping) {
        (None, None) => Vec::new(),
        (Some(name), Some(grouping)) => {
            let group = grouping.group_of(name);
            if !grouping.adds(&group) {
                return;
            }
            vec![Label::new("lock", group.into_owned())]
        }
        // These became known when the `Locks` was made, or will at the first request for a lock of their group.
        (Some(_), None) | (None, Some(_)) => return,
    };
    [WAITING, HELD].into_iter().for_each(|name| gauge!(name, labels.clone()).increment(0.0));
    let counters = [NESTED, TIMEOUTS, RENEWED_LATE, UNAVAILABLE];
    counters.into_iter().for_each(|name| counter!(name, labels.clone()).increment(0));
    for why in LOSSES.into_iter().map(shown).chain([FIXED]) {
        let loss = Label::from_static_parts("loss", why);
        counter!(LOST, labels.iter().cloned().chain([loss]).collect::<Vec<_>>()).increment(0);
    }
}

pub(crate) fn record(name: &str, grouping: Option<&Grouping>, sample: Sample) {
    unless_it_panics(|| count(labels(name, grouping), sample));
}

fn count(mut labels: Vec<Label>, sample: Sample) {
    match sample {
        Sample::Waited(time) => histogram!(WAIT, labels).record(time),
        Sample::Line(length) => histogram!(LINE, labels).record(f64::from(length)),
        Sample::Held => gauge!(HELD, labels).increment(1.0),
        Sample::Nested => counter!(NESTED, labels).increment(1),
        Sample::Ended(time) => {
            gauge!(HELD, labels.clone()).decrement(1.0);
            histogram!(HOLD, labels).record(time);
        }
        Sample::Lost { loss, fixed } => {
            let why = if fixed { FIXED } else { shown(loss) };
            labels.push(Label::from_static_parts("loss", why));
            counter!(LOST, labels).increment(1);
        }
        Sample::TimedOut => counter!(TIMEOUTS, labels).increment(1),
        Sample::RenewedLate => counter!(RENEWED_LATE, labels).increment(1),
        Sample::Unavailable => counter!(UNAVAILABLE, labels).increment(1),
    }
}

/// Counts one more waiting request, from [`begin`](Waiting::begin) until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Option<Gauge>);

impl Waiting {
    pub(crate) fn begin(&mut self, name: &str, grouping: Option<&Grouping>) {
        if self.0.is_none() {
            self.0 = unless_it_panics(|| {
                let waiting = gauge!(WAITING, labels(name, grouping));
                waiting.increment(1.0);
                waiting
            });
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiting) = &self.0 {
            unless_it_panics(|| waiting.decrement(1.0));
        }
    }
}

/// Counts a server as connected, until the connection is lost or this is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    gauge: Gauge,
    up: bool,
}

impl Connected {
    pub(crate) fn to(server: &str) -> Connected {
        let made = unless_it_panics(|| {
            let gauge = gauge!(CONNECTED, vec![Label::new("server", server.to_owned())]);
            gauge.increment(0.0);
            gauge
        });
        Connected { gauge: made.unwrap_or_else(Gauge::noop), up: false }
    }

    pub(crate) fn is(&mut self, up: bool) {
        if std::mem::replace(&mut self.up, up) == up {
            return;
        }
        // A recorder that panics must not end the task that makes the connections.
        unless_it_panics(|| match up {
            true => self.gauge.increment(1.0),
            false => self.gauge.decrement(1.0),
        });
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.is(false);
    }
}

/// Returns the labels of a lock. Its name is not one of them, since there may be millions of names.
fn labels(name: &str, grouping: Option<&Grouping>) -> Vec<Label> {
    let group = grouping.map(|grouping| grouping.group_of(name).into_owned());
    group.map(|group| Label::new("lock", group)).into_iter().collect()
}

const LOSSES: [Loss; 4] = [Loss::Expired, Loss::Gone, Loss::MaxHold, Loss::Suspended];
const FIXED: &str = "fixed_lease";

fn shown(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::MaxHold => "max_hold",
        Loss::Suspended => "suspended",
    }
}
