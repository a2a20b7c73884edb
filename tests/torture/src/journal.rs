//! What each process writes down: one event a line, as JSON.
//!
//! Each line is one `write` to a file that is opened for appending. A process that is killed leaves whole lines and at most one without an
//! end, which the reader drops.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::clock;

/// A process that does not run for longer than this writes that down.
const STALL: u64 = 200_000_000;

/// One line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// What can happen. A request has the same number as the hold that it becomes. Numbers are unique within a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The first line of a process.
    Begun { process: usize },
    /// A request begins. `waits`: it waits until the lock is granted, instead of making one attempt. `among`: it is part of a request for
    /// several names, and may have the lock before all of them are granted. `claim`: it resumes the hold that has this field.
    Asked {
        request: u64,
        name: String,
        how: String,
        waits: bool,
        #[serde(default)]
        among: bool,
        claim: Option<String>,
    },
    /// The request has ended without a grant.
    Refused { request: u64 },
    /// The request has become a hold. `until`: its deadline, if a guard reports one.
    Granted { request: u64, until: Option<u64>, token: Option<u64> },
    /// The hold was seen to be good at this time, and has this deadline.
    Good { request: u64, until: Option<u64> },
    /// The hold was seen to be lost.
    Lost { request: u64, loss: String },
    /// From this time on the hold is being released, or its guard is dropped or made a claim. `kept`: nobody else may have the lock before
    /// this time.
    Leaving { request: u64, kept: Option<u64> },
    /// The release succeeded.
    Released { request: u64 },
    /// The hold, which has left, belongs to the claim with this field, and stands until this time if nobody resumes it.
    Claimed { request: u64, claim: String, until: u64 },
    /// The crate has confirmed that the hold stood at some time since `from`.
    Checked { request: u64, from: u64 },
    /// The lock is about to be released by force.
    Forces { name: String },
    /// The lock was released by force at some time since `from`. If not `certain`, that may still happen later.
    Forced { name: String, from: u64, certain: bool },
    /// An operation ended with an error of this kind.
    Failed { how: String, kind: String },
    /// The fenced register accepted this write, or refused it.
    Wrote { name: String, token: u64, taken: bool },
    /// The crate or the register did something that it must not do.
    Wrong { what: String },
    /// The process has not run since `from`.
    Stalled { from: u64 },
    /// A server did not answer at once to a command that has nothing to do with locks, since `from`.
    Late { from: u64 },
    /// A fault, which has been repaired by now. `loses`: its servers may lose what they acknowledged, as documented. `forgets`: one of
    /// several masters may lose that too, but its holds survive. `revives`: holds that were over may stand again.
    Fault {
        kind: String,
        what: String,
        from: u64,
        loses: bool,
        forgets: bool,
        #[serde(default)]
        revives: bool,
    },
    /// Something was left on the servers after everything had ended.
    Left { what: String },
}

/// The log of one process.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(file: &Path) -> Result<Journal> {
        Ok(Journal(OpenOptions::new().append(true).create_new(true).open(file)?))
    }

    /// Starts a thread that notes when this process does not run: what takes long at such a time is not the crate's fault.
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

    /// Writes an event that was true at that time.
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

/// Returns all whole lines of a log.
pub(crate) fn read(file: &Path) -> Result<Vec<Entry>> {
    let text = std::fs::read(file)?;
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let lines = text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}
