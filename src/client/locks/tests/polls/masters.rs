//! The masters, and what goes wrong with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::Instant;

use super::dice::Dice;
use super::journal::note;
use crate::wire::Action;
use crate::wire::keys::Keys;
use crate::{Builder, Locks, Memory};

pub(super) struct Masters {
    stores: Vec<Memory>,
    /// Which of several masters restarts.
    restarts: usize,
    commands: Arc<AtomicUsize>,
    /// How many of the next commands never arrive, at any master.
    lost: Arc<AtomicUsize>,
}

impl Masters {
    pub(super) fn new(count: usize, dice: &Dice) -> Masters {
        let stores: Vec<Memory> = (0..count).map(|_| Memory::new()).collect();
        let (commands, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for store in &stores {
            let (commands, lost) = (commands.clone(), lost.clone());
            let arrives = move || {
                commands.fetch_add(1, SeqCst);
                lost.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
            };
            store.visit(|store| store.loses = Some(Box::new(arrives)));
        }
        Masters { stores, restarts: dice.roll(count), commands, lost }
    }

    pub(super) fn are_several(&self) -> bool {
        self.stores.len() > 1
    }

    pub(super) fn builder(&self) -> Builder {
        Locks::quorum(&self.stores)
    }

    /// Returns how many commands were sent.
    pub(super) fn commands(&self) -> usize {
        self.commands.load(SeqCst)
    }

    /// Makes answers come late or not at all, or commands never arrive.
    pub(super) fn fail(&self, dice: &Dice, longest: Duration) {
        let at = dice.roll(self.stores.len());
        let store = &self.stores[at];
        match dice.roll(4) {
            0 | 1 => {
                let time = dice.time(longest);
                note(|| format!("master {at} stalls for {time:?}"));
                store.faults().stall(time);
            }
            2 => {
                let answers = dice.roll(4);
                note(|| format!("master {at} does not send {answers} answers"));
                store.faults().drop_replies(answers);
            }
            _ => {
                let commands = dice.roll(4);
                note(|| format!("{commands} commands do not arrive"));
                self.lost.store(commands, SeqCst);
            }
        }
    }

    /// Restarts one of several masters. It is the same one each time, since a majority has to remember.
    pub(super) fn restart(&self) {
        self.stores[self.restarts].faults().restart_empty();
    }

    pub(super) fn lose(&self, keys: &[&str]) {
        for (store, name) in self.stores.iter().flat_map(|store| keys.iter().map(move |name| (store, name))) {
            store.faults().lose(name);
        }
    }

    /// Returns whether a forced release was sent and has not run yet.
    pub(super) fn are_to_force(&self) -> bool {
        let force = |store: &Memory| {
            store.visit(|store| store.backlog.iter().any(|(call, _)| call.action == Action::Force))
        };
        self.stores.iter().any(force)
    }

    /// Ends all faults.
    pub(super) fn recover(&self) {
        self.lost.store(0, SeqCst);
        for store in &self.stores {
            store.faults().drop_replies(0);
            store.faults().stall(Duration::ZERO);
        }
    }

    pub(super) fn are_empty(&self) -> bool {
        self.stores.iter().all(|store| format!("{store:?}") == "Memory { locks: {} }")
    }

    /// Returns the fields that stand in the line of a lock.
    pub(super) fn line(&self, name: &str) -> Vec<Arc<str>> {
        let (keys, now) = (Keys::new("", name), Instant::now());
        let line = |store: &Memory| store.visit(|store| store.lines.seen(&keys.line().line, now));
        self.stores.iter().filter_map(line).flat_map(|(fields, _)| fields).collect()
    }

    pub(super) fn shown(&self) -> String {
        format!("{:#?}", self.stores)
    }
}
