//! The logs of all processes, as one history.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Result;
use crate::clock::nanos;
use crate::job::{LEASE, NODE_TIMEOUT};
use crate::journal::{self, Entry, Event};

/// Everything that happened in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// When the first process began.
    pub(crate) begun: Option<u64>,
    /// The holds of each name, in the order of their grants.
    pub(crate) holds: BTreeMap<String, Vec<Hold>>,
    /// The requests of each name that waited for the lock.
    pub(crate) requests: BTreeMap<String, Vec<Request>>,
    pub(crate) faults: Vec<Fault>,
    /// For each name, the requests for several names that may have had this lock before all were granted.
    pub(crate) gatherings: BTreeMap<String, Vec<Request>>,
    /// For each field, the attempts to resume its claim, in the order in which they began.
    pub(crate) tries: BTreeMap<String, Vec<Try>>,
    /// For each name, the times at which the lock may have been released by force.
    pub(crate) forced: BTreeMap<String, Vec<(u64, u64)>>,
    /// The times in which a process did not run.
    pub(crate) stalls: Vec<(u64, u64)>,
    /// The times in which a server did not answer at once, whatever the command.
    pub(crate) late: Vec<(u64, u64)>,
    /// What the processes saw that must not happen, and what was left at the end.
    pub(crate) wrong: Vec<(u64, String)>,
    /// How many operations ended with an error, by operation and kind of error.
    pub(crate) failures: BTreeMap<(String, String), u64>,
    /// How many holds were taken in each way.
    pub(crate) ways: BTreeMap<String, u64>,
    pub(crate) losses: BTreeMap<String, u64>,
    pub(crate) taken_writes: u64,
    pub(crate) refused_writes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) who: String,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) end: u64,
    pub(crate) token: Option<u64>,
    /// The time by which the hold was reported as gone from the servers.
    pub(crate) gone: Option<u64>,
    /// The claim, if the hold was handed over. The hold then stood until somebody tried to resume it, or until the end of its claim.
    pub(crate) claim: Option<Claimed>,
    /// Nobody else may have the lock before this time.
    pub(crate) kept: Option<u64>,
    /// The release succeeded.
    pub(crate) is_released: bool,
    /// Each check that confirmed the hold, from its call to its answer.
    pub(crate) checks: Vec<(u64, u64)>,
}

/// The claim of a hold that was handed over.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) field: String,
    /// When the claim ended, if nobody resumed it.
    pub(crate) until: u64,
}

/// An attempt to resume a claim.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) who: String,
    pub(crate) asked: u64,
    pub(crate) granted: Option<u64>,
    /// `None` if its process was killed.
    pub(crate) ended: Option<u64>,
}

/// A request, from its first poll until it was granted, refused or dropped.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) asked: u64,
    pub(crate) ended: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) what: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) loses: bool,
    pub(crate) forgets: bool,
    pub(crate) revives: bool,
}

/// A request or a hold that has not ended yet, as far as the log of its process has been read.
struct Open {
    name: String,
    how: String,
    waits: bool,
    among: bool,
    /// The field of the claim that the request resumes.
    resumes: Option<String>,
    asked: u64,
    granted: Option<u64>,
    token: Option<u64>,
    /// When the hold was last seen to be good.
    good: u64,
    until: Option<u64>,
    gone: Option<u64>,
    kept: Option<u64>,
    checks: Vec<(u64, u64)>,
}

impl Open {
    /// Returns until when it was certainly held, if it was released or its loss was seen at this time.
    fn end(&self, at: Option<u64>) -> u64 {
        let claimed = self.until.unwrap_or(self.good).max(self.good);
        at.map_or(claimed, |at| claimed.min(at))
    }
}

impl History {
    /// Reads the logs in a folder.
    pub(crate) fn read(folder: &Path) -> Result<History> {
        let mut logs = Vec::new();
        for file in std::fs::read_dir(folder)? {
            let path = file?.path();
            if path.extension().is_some_and(|end| end == "log") {
                let who = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                logs.push((who, journal::read(&path)?));
            }
        }
        Ok(History::of(logs))
    }

    /// Makes a history from the logs of all processes, by their names.
    pub(crate) fn of(logs: Vec<(String, Vec<Entry>)>) -> History {
        let stalls = logs.iter().flat_map(|(_, entries)| entries).filter_map(|entry| match entry.event {
            Event::Stalled { from } => Some((from, entry.at)),
            _ => None,
        });
        let mut history = History { stalls: stalls.collect(), ..History::default() };
        for (who, entries) in logs {
            history.add(&who, entries);
        }
        history.tries.values_mut().for_each(|tries| tries.sort_by_key(|one| one.asked));
        for hold in history.holds.values_mut().flatten() {
            // A resume that failed after its move frees the lock.
            let first = hold.claim.as_ref().and_then(|claim| history.tries.get(&claim.field)?.first());
            hold.end = first.map_or(hold.end, |first| hold.end.min(first.asked));
        }
        history.holds.values_mut().for_each(|holds| holds.sort_by_key(|hold| hold.granted));
        history.faults.sort_by_key(|fault| fault.from);
        // A majority has run the forced release. A master that hangs, or that gets it late, runs it when the fault is over, as documented.
        for (from, to) in history.forced.values_mut().flatten() {
            let during = history.faults.iter().filter(|fault| fault.from <= *to && *from <= fault.to);
            *to = during.map(|fault| fault.to + nanos(NODE_TIMEOUT)).fold(*to, u64::max);
        }
        history
    }

    /// Adds the log of one process.
    fn add(&mut self, who: &str, entries: Vec<Entry>) {
        let mut open = BTreeMap::<u64, Open>::new();
        // Holds that have left: their name, and their place among the holds of that name.
        let mut left = BTreeMap::<u64, (String, usize)>::new();
        let mut forcing = BTreeMap::<String, u64>::new();
        // The work of a `run` sees its hold only from inside: if the process stood still after the crate's look at the hold and before this
        // one, the hold may have ended in between. If any process stood still, the whole machine may have, and not every process notes
        // that.
        let stalls = std::mem::take(&mut self.stalls);
        let ran = |at: u64| !stalls.iter().any(|(from, to)| (*from..=to + 20_000_000).contains(&at));
        for Entry { at, event } in entries {
            match event {
                Event::Asked { request, name, how, waits, among, claim } => {
                    let new = Open {
                        name,
                        how,
                        waits,
                        among,
                        resumes: claim,
                        asked: at,
                        granted: None,
                        token: None,
                        good: at,
                        until: None,
                        gone: None,
                        kept: None,
                        checks: Vec::new(),
                    };
                    open.insert(request, new);
                }
                Event::Refused { request } => {
                    if let Some(request) = open.remove(&request) {
                        self.tried(who, &request, Some(at));
                        self.ended(request, at);
                    }
                }
                Event::Granted { request, until, token } => {
                    if let Some(hold) = open.get_mut(&request) {
                        (hold.granted, hold.good, hold.until, hold.token) = (Some(at), at, until, token);
                    }
                }
                Event::Good { request, until } => {
                    if let Some(hold) = open.get_mut(&request).filter(|_| until.is_some() || ran(at)) {
                        (hold.good, hold.until) = (at, until);
                    }
                }
                Event::Lost { request, loss } => {
                    if let Some(mut hold) = open.remove(&request) {
                        *self.losses.entry(loss.clone()).or_default() += 1;
                        // For any other loss it is only certain that the hold was good when it was last seen.
                        let end = if loss == "Expired" { at } else { hold.good };
                        hold.gone = (loss == "Gone").then_some(at);
                        self.hold(who, hold, Some(end));
                    }
                }
                Event::Checked { request, from } => {
                    if let Some(hold) = open.get_mut(&request) {
                        hold.good = hold.good.max(from);
                        hold.checks.push((from, at));
                    }
                }
                Event::Leaving { request, kept } => {
                    if let Some(mut hold) = open.remove(&request) {
                        if hold.until.is_none() && ran(at) {
                            hold.good = at;
                        }
                        hold.kept = kept;
                        let name = hold.name.clone();
                        self.hold(who, hold, Some(at));
                        let place = self.holds.get(&name).map_or(0, Vec::len).saturating_sub(1);
                        left.insert(request, (name, place));
                    }
                }
                Event::Released { request } => {
                    if let Some(hold) = left.get(&request).and_then(|place| self.hold_at(place)) {
                        hold.is_released = true;
                    }
                }
                Event::Claimed { request, claim, until } => {
                    if let Some(hold) = left.get(&request).and_then(|place| self.hold_at(place)) {
                        (hold.end, hold.claim) = (until, Some(Claimed { field: claim, until }));
                    }
                }
                Event::Forces { name } => drop(forcing.insert(name, at)),
                Event::Forced { name, from, certain } => {
                    forcing.remove(&name);
                    let to = if certain { at } else { at + nanos(2 * LEASE) };
                    self.forced.entry(name).or_default().push((from, to));
                }
                Event::Failed { how, kind } => *self.failures.entry((how, kind)).or_default() += 1,
                Event::Wrote { taken: true, .. } => self.taken_writes += 1,
                Event::Wrote { taken: false, .. } => self.refused_writes += 1,
                Event::Wrong { what } => self.wrong.push((at, format!("{who}: {what}"))),
                Event::Left { what } => self.wrong.push((at, format!("at the end: {what}"))),
                Event::Fault { kind, what, from, loses, forgets, revives } => {
                    self.faults.push(Fault { kind, what, from, to: at, loses, forgets, revives });
                }
                Event::Begun { .. } => self.begun = Some(self.begun.map_or(at, |before| before.min(at))),
                Event::Late { from } => self.late.push((from, at)),
                Event::Stalled { .. } => {}
            }
        }
        self.stalls = stalls;
        // These have no end in the log, so the process was killed.
        for hold in open.into_values() {
            self.hold(who, hold, None);
        }
        for (name, from) in forcing {
            self.forced.entry(name).or_default().push((from, from + nanos(2 * LEASE)));
        }
    }

    /// Adds a hold that is over. `at`: when its end was certain.
    fn hold(&mut self, who: &str, hold: Open, at: Option<u64>) {
        self.tried(who, &hold, hold.granted);
        let Some(granted) = hold.granted else { return };
        let end = hold.end(at).max(granted);
        *self.ways.entry(hold.how.clone()).or_default() += 1;
        let who = format!("{who}, {}", hold.how);
        self.holds.entry(hold.name.clone()).or_default().push(Hold {
            who,
            asked: hold.asked,
            granted,
            end,
            token: hold.token,
            gone: hold.gone,
            claim: None,
            kept: hold.kept,
            is_released: false,
            checks: hold.checks.clone(),
        });
        self.ended(hold, granted);
    }

    fn hold_at(&mut self, (name, place): &(String, usize)) -> Option<&mut Hold> {
        self.holds.get_mut(name)?.get_mut(*place)
    }

    /// Notes the end of an attempt to resume a claim, if the request is one.
    fn tried(&mut self, who: &str, request: &Open, ended: Option<u64>) {
        let Some(claim) = &request.resumes else { return };
        let (who, asked, granted) = (format!("{who}, {}", request.how), request.asked, request.granted);
        self.tries.entry(claim.clone()).or_default().push(Try { who, asked, granted, ended });
    }

    fn ended(&mut self, request: Open, ended: u64) {
        let of_name = match (request.waits, request.among) {
            (true, _) => &mut self.requests,
            (_, true) => &mut self.gatherings,
            _ => return,
        };
        of_name.entry(request.name).or_default().push(Request { asked: request.asked, ended });
    }

    /// Returns whether somebody may have released this lock by force during a part of this time.
    pub(crate) fn may_have_been_forced(&self, name: &str, from: u64, to: u64) -> bool {
        let forced = self.forced.get(name).map(Vec::as_slice).unwrap_or_default();
        forced.iter().any(|(begun, over)| *begun <= to && from <= *over)
    }

    /// Returns whether servers may have lost what they had acknowledged, as documented, during a part of this time.
    pub(crate) fn may_have_lost(&self, from: u64, to: u64) -> bool {
        self.faults.iter().any(|fault| fault.loses && fault.from <= to && from <= fault.to)
    }

    /// Returns whether a hold that was over may have stood again during a part of this time, since servers went back to older data.
    pub(crate) fn may_have_revived(&self, from: u64, to: u64) -> bool {
        let revives = |fault: &&Fault| fault.loses && fault.revives;
        self.faults.iter().filter(revives).any(|fault| fault.from <= to && from <= fault.to)
    }

    /// Returns whether a counter of tokens may have been lost during a part of this time. One master's counter is enough.
    pub(crate) fn may_have_forgotten(&self, from: u64, to: u64) -> bool {
        let forgets = |fault: &&Fault| fault.loses || fault.forgets;
        self.faults.iter().filter(forgets).any(|fault| fault.from <= to && from <= fault.to)
    }

    /// Returns whether all processes and servers ran in this time, and nothing failed in it or so shortly before it that it could still be
    /// felt.
    pub(crate) fn is_calm(&self, from: u64, to: u64, aftermath: u64) -> bool {
        let touches = |begun: u64, over: u64| begun <= to && from <= over;
        !self.faults.iter().any(|fault| touches(fault.from, fault.to + aftermath))
            && !self.stalls.iter().chain(&self.late).any(|(begun, over)| touches(*begun, *over))
    }

    pub(crate) fn grants(&self) -> usize {
        self.holds.values().map(Vec::len).sum()
    }
}
