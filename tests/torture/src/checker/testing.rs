//! Histories for tests, written by hand.

use super::history::History;
use crate::journal::{Entry, Event};

/// A millisecond.
pub(super) const MS: u64 = 1_000_000;

/// Lines of one process, with times in milliseconds.
pub(super) fn history(processes: &[&[(u64, Event)]]) -> History {
    let entries = |process: &&[(u64, Event)]| {
        process.iter().map(|(at, event)| Entry { at: at * MS, event: event.clone() }).collect()
    };
    let logs = processes.iter().enumerate();
    History::of(logs.map(|(at, process)| (format!("process {at}"), entries(process))).collect())
}

pub(super) fn asked(request: u64) -> Event {
    Event::Asked { request, name: "stock".into(), how: "lock".into(), waits: true }
}

/// Good until this time.
pub(super) fn granted(request: u64, until: u64) -> Event {
    Event::Granted { request, until: Some(until * MS), token: None }
}

pub(super) fn fenced(request: u64, token: u64) -> Event {
    Event::Granted { request, until: Some(1_000_000 * MS), token: Some(token) }
}

pub(super) fn leaving(request: u64) -> Event {
    Event::Leaving { request }
}

pub(super) fn fault(from: u64, loses: bool) -> Event {
    Event::Fault { kind: "fault".into(), what: String::new(), from: from * MS, loses, forgets: false }
}
