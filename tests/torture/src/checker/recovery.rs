//! How long it takes after a fault until each lock is granted again.

use std::collections::BTreeMap;

use super::history::History;
use crate::job::NAMES;

/// The recovery after one kind of fault.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) count: u64,
    /// For each name, the nanoseconds from the repair until it was granted again.
    pub(crate) times: Vec<u64>,
    /// How often the next fault came first, or one that came at the same time lasted longer.
    pub(crate) cut_short: u64,
}

pub(crate) fn recoveries(history: &History) -> BTreeMap<String, Recovery> {
    let mut found = BTreeMap::<String, Recovery>::new();
    for fault in &history.faults {
        let recovery = found.entry(fault.kind.clone()).or_default();
        recovery.count += 1;
        let first = |name: &&str| {
            let holds = history.holds.get(*name).map(Vec::as_slice).unwrap_or_default();
            holds.get(holds.partition_point(|hold| hold.granted <= fault.to)).map(|hold| hold.granted)
        };
        let all: Option<Vec<u64>> = NAMES.iter().map(first).collect();
        let last = all.and_then(|all| all.into_iter().max());
        let next = history.faults.iter().filter(|other| other.to > fault.to).map(|other| other.from).min();
        match last {
            Some(last) if next.is_none_or(|next| last <= next) => recovery.times.push(last - fault.to),
            _ => recovery.cut_short += 1,
        }
    }
    found
}
