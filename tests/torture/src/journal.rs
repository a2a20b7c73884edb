//! What each process writes down: one event a line, as JSON.
//!
//! A line is one `write` to a file that is opened for appending. A process that is killed leaves whole lines, and at
//! most one that has no end, which the reader drops.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::clock;

/// How long a process may not run before that is written down.
const STALL: u64 = 200_000_000;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// A request has the same number as the hold that it becomes. Numbers are of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The first line of a process.
    Begun { process: usize },
    /// `waits`: until the lock is granted, and not for one attempt. `among`: it is part of a request for several names, and
    /// may have the lock before all of them are granted. `claim`: it resumes the hold that has this field.
    Asked {
        request: u64,
        name: String,
        how: String,
        waits: bool,
        #[serde(default)]
        among: bool,
        claim: Option<String>,
    },
    /// The request has ended otherwise.
    Refused { request: u64 },
    /// The request is a hold. `until`: its deadline, where a guard reports one.
    Granted { request: u64, until: Option<u64>, token: Option<u64> },
    /// It was seen to be good at this time, and has this deadline.
    Good { request: u64, until: Option<u64> },
    /// It was seen to be lost.
    Lost { request: u64, loss: String },
    /// It is released, or its guard is dropped or made a claim, from this time on. `kept`: nobody is to have the lock
    /// before this time.
    Leaving { request: u64, kept: Option<u64> },
    /// The release succeeded.
    Released { request: u64 },
    /// The hold, which has left, is that of the claim with this field, and stands until then if nobody resumes it.
    Claimed { request: u64, claim: String, until: u64 },
    /// The crate confirmed that the hold stood at some time between then and now.
    Checked { request: u64, from: u64 },
    /// The lock is going to be released by force.
    Forces { name: String },
    /// The lock was released by force, between then and now. Not `certain`: or will be later.
    Forced { name: String, from: u64, certain: bool },
    /// An operation ended with an error of this kind.
    Failed { how: String, kind: String },
    /// The fenced register took this write, or refused it.
    Wrote { name: String, token: u64, taken: bool },
    /// The crate or the register did what it must not.
    Wrong { what: String },
    /// The process did not run from then to now.
    Stalled { from: u64 },
    /// A server did not answer at once to what has nothing to do with locks, from then to now.
    Late { from: u64 },
    /// A fault, which has been repaired by now. `loses`: its servers may lose what they acknowledged, as documented.
    /// `forgets`: so does one of several masters, whose holds survive that. `revives`: what was over may stand again.
    Fault {
        kind: String,
        what: String,
        from: u64,
        loses: bool,
        forgets: bool,
        #[serde(default)]
        revives: bool,
    },
    /// Something was left on the servers after all had ended.
    Left { what: String },
}

/// The log of one process.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(file: &Path) -> Result<Journal> {
        Ok(Journal(OpenOptions::new().append(true).create_new(true).open(file)?))
    }

    /// From now on a thread of its own notes when the process does not run: what takes long then is not the crate's
    /// fault.
    pub(crate) fn note_stalls(self: Arc<Self>) {
        std::thread::spawn(move || {
            let mut last = clock::now();
            loop {
                std::thread::sleep(Duration::from_millis(20));
                let now = clock::now();
                if now - last > STALL {
                    self.write_at(now, Event::Stalled { from: last });
                }
                last = now;
            }
        });
    }

    pub(crate) fn write(&self, event: Event) {
        self.write_at(clock::now(), event);
    }

    /// What was so at that time.
    pub(crate) fn write_at(&self, at: u64, event: Event) {
        let Ok(mut line) = serde_json::to_vec(&Entry { at, event }) else { return };
        line.push(b'\n');
        if let Err(error) = (&self.0).write_all(&line) {
            // Without its log a process proves nothing.
            eprintln!("torture: cannot write a log: {error}");
            std::process::abort();
        }
    }
}

/// All whole lines of a log.
pub(crate) fn read(file: &Path) -> Result<Vec<Entry>> {
    let text = std::fs::read(file)?;
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines = text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}
