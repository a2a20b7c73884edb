//! Histories for tests, written by hand.

use super::history::History;
use crate::journal::{Entry, Event};

/// A millisecond, in nanoseconds.
pub(super) const MS: u64 = 1_000_000;

/// Makes a history from the lines of these processes, with times in milliseconds.
pub(super) fn history(processes: &[&[(u64, Event)]]) -> History {
    let entries = |process: &&[(u64, Event)]| {
        process.iter().map(|(at, event)| Entry { at: at * MS, event: event.clone() }).collect()
    };
    let logs = processes.iter().enumerate();
    History::of(logs.map(|(at, process)| (format!("process {at}"), entries(process))).collect())
}

pub(super) fn asked(request: u64) -> Event {
    asked_for(request, "stock")
}

pub(super) fn asked_for(request: u64, name: &str) -> Event {
    Event::Asked { request, name: name.into(), how: "lock".into(), waits: true, among: false, claim: None }
}

/// A grant that is good until this time.
pub(super) fn granted(request: u64, until: u64) -> Event {
    Event::Granted { request, until: Some(until * MS), token: None }
}

pub(super) fn fenced(request: u64, token: u64) -> Event {
    Event::Granted { request, until: Some(1_000_000 * MS), token: Some(token) }
}

pub(super) fn leaving(request: u64) -> Event {
    Event::Leaving { request, kept: None }
}

/// A request that is part of one for several names.
pub(super) fn among(request: u64) -> Event {
    Event::Asked {
        request,
        name: "stock".into(),
        how: "several".into(),
        waits: false,
        among: true,
        claim: None,
    }
}

/// The release of a lock that is kept until this time.
pub(super) fn keeping(request: u64, until: u64) -> Event {
    Event::Leaving { request, kept: Some(until * MS) }
}

pub(super) fn checked(request: u64, from: u64) -> Event {
    Event::Checked { request, from: from * MS }
}

/// The hand-over of a hold; its claim is good until this time.
pub(super) fn claimed(request: u64, until: u64) -> Event {
    Event::Claimed { request, claim: "claim".into(), until: until * MS }
}

/// A request that resumes the claim.
pub(super) fn resumes(request: u64) -> Event {
    Event::Asked {
        request,
        name: "stock".into(),
        how: "resume".into(),
        waits: false,
        among: false,
        claim: Some("claim".into()),
    }
}

/// A release by force, at some time since `from`.
pub(super) fn forced(from: u64) -> Event {
    Event::Forced { name: "stock".into(), from: from * MS, certain: true }
}

/// A fault after which holds that were over may stand again.
pub(super) fn revival(from: u64) -> Event {
    Event::Fault {
        kind: "fault".into(),
        what: String::new(),
        from: from * MS,
        loses: true,
        forgets: false,
        revives: true,
    }
}

pub(super) fn fault(from: u64, loses: bool) -> Event {
    Event::Fault {
        kind: "fault".into(),
        what: String::new(),
        from: from * MS,
        loses,
        forgets: false,
        revives: false,
    }
}
