//! The server: the lock, its line, and the scripts, each of which is one step.

use super::{
    Command, Design, FOREIGN, Field, Life, LineModel, Message, POLLS, Phase, Reply, Request, State, owner,
};

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// The holder's field.
    pub field: Field,
    /// Ticks until the key expires.
    pub ttl: u8,
    /// Not on the server: no running process knows of this hold, because the server takes a connection for open, a
    /// process is stopped, or a command ran late.
    pub unknown: bool,
    /// Whether a token was made for this hold.
    pub token: bool,
}

/// An entry of the line on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub(super) field: Field,
    pub(super) generation: u8,
}

/// What the server has, and what its replica may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    /// The key.
    pub lock: Option<Held>,
    /// The line, the first one first.
    pub line: super::Few<Entry, 6>,
}

/// Which entry a script that serves the line has handed the lock to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Nobody,
    Asker,
    Other,
}

impl State {
    /// Models `PUBLISH` to a connection. Returns whether there is a receiver.
    fn publish(&mut self, model: &LineModel, to: Entry, message: Message) -> bool {
        if self.silent {
            return false;
        }
        let at = owner(to.field);
        let process = &mut self.processes[at];
        let named = !model.generations || to.generation == process.generation;
        if process.heard && named {
            if process.demoted {
                if model.design == Design::Replicated {
                    process.deliver(model, message);
                }
                return false;
            }
            if process.life == Life::Crashed {
                return true;
            }
            process.deliver(model, message);
            return true;
        }
        process.believed && (!model.generations || to.generation != process.generation)
    }

    /// Models a `0` to the lock's channel. Returns whether there is a receiver.
    fn publish_free(&mut self, model: &LineModel) -> bool {
        let mut received = false;
        if self.silent {
            return received;
        }
        for process in self.processes.iter_mut().filter(|process| process.heard && process.listens) {
            received |= !process.demoted;
            if process.life != Life::Crashed && !process.demoted {
                process.deliver(model, Message::Free);
            }
        }
        received
    }

    /// Notifies the entry at this place to ask in so many ticks. An entry that can't be notified is removed. If the entry polls, the next
    /// one is notified instead.
    fn tell(&mut self, model: &LineModel, mut place: usize, ticks: u8) {
        while let Some(entry) = self.data.line.iter().nth(place).filter(|_| model.tells && !self.silent) {
            if entry.generation == POLLS {
                place += 1;
                continue;
            }
            if self.publish(model, entry, Message::Later(entry.field, ticks)) {
                return;
            }
            self.data.line.remove(|other| *other == entry);
            self.order.remove(|field| *field == entry.field);
        }
    }

    /// Serves the line, and notifies the entry that is the first afterwards when to ask.
    fn serve(&mut self, model: &LineModel, asker: Option<Field>) -> Served {
        let served = self.hand_on(model, asker);
        match served {
            Served::Asker => self.tell(model, 0, model.lease),
            Served::Other if model.design != Design::SecondNotTold => {
                let polls = self.data.lock.is_some_and(|lock| model.polls(owner(lock.field)));
                self.tell(model, 0, if polls { 0 } else { model.short });
            }
            _ => {}
        }
        served
    }

    /// Makes the first of the line the holder for a short time. Entries that can't be notified are removed.
    fn hand_on(&mut self, model: &LineModel, asker: Option<Field>) -> Served {
        while let Some(first) = self.data.line.take(0) {
            if Some(first.field) == asker {
                self.grant(model, first.field, model.lease);
                return Served::Asker;
            }
            if first.generation == POLLS && model.design != Design::PollersAreGone {
                // It polls, so no message is sent.
                self.grant(model, first.field, model.short);
                let crashed = self.processes[owner(first.field)].life != Life::Alive;
                self.mark_unknown(crashed);
                return Served::Other;
            }
            if self.silent {
                self.grant(model, first.field, model.short);
                let there = self.is_connected(model, first);
                self.mark_unknown(!there);
                return Served::Other;
            }
            if first.generation != POLLS && self.publish(model, first, Message::Yours(first.field))
                || model.design == Design::ReceiversNotCounted
            {
                self.grant(model, first.field, model.short);
                if let Some(lock) = self.data.lock.as_mut().filter(|_| model.design == Design::TokenAtAnswer)
                {
                    lock.token = false;
                }
                let there = self.is_connected(model, first);
                let process = &self.processes[owner(first.field)];
                self.mark_unknown(!there && (process.believed || process.heard));
                return Served::Other;
            }
            if first.generation != POLLS {
                self.order.remove(|field| *field == first.field);
            }
        }
        self.publish_free(model);
        Served::Nobody
    }

    pub(super) fn mark_unknown(&mut self, unknown: bool) {
        if let Some(lock) = &mut self.data.lock {
            lock.unknown |= unknown;
        }
    }

    /// Returns whether the process runs and reads what is sent to this entry.
    fn is_connected(&self, model: &LineModel, to: Entry) -> bool {
        let process = &self.processes[owner(to.field)];
        let named = !model.generations || process.generation == to.generation;
        process.life == Life::Alive && process.heard && !process.demoted && named
    }

    /// Makes a field the holder that was served from the line or has asked again.
    fn grant(&mut self, model: &LineModel, field: Field, ttl: u8) {
        if self.order.contains(&field) && self.waits(field) {
            let earlier = self.order.iter().take_while(|earlier| *earlier != field);
            self.passed_over |= earlier.into_iter().any(|earlier| self.waits_there(model, earlier));
        }
        self.hold(field, ttl);
    }

    /// Returns whether a request waits with this field. The server does not know that.
    pub(super) fn waits(&self, field: Field) -> bool {
        let waits = |request: Request| {
            request.field == field && matches!(request.phase, Phase::Asking { .. } | Phase::InLine)
        };
        self.processes[owner(field)].request.is_some_and(waits)
    }

    fn hold(&mut self, field: Field, ttl: u8) {
        self.data.lock = Some(Held { field, ttl, unknown: false, token: true });
        self.order.remove(|waiting| *waiting == field);
    }

    /// Returns whether the request waits, its process runs, and the server knows its connection. The server does not
    /// know that.
    fn waits_there(&self, model: &LineModel, field: Field) -> bool {
        let process = &self.processes[owner(field)];
        let placed = |request: Request| !model.generations || request.placed == process.generation;
        let heard = process.heard && !process.demoted && process.request.is_some_and(placed);
        process.life == Life::Alive && self.waits(field) && (heard || model.polls(owner(field)))
    }

    /// Runs a command. `late`: its process no longer waits for the answer.
    pub(super) fn run(
        &mut self,
        model: &LineModel,
        at: usize,
        command: Command,
        late: bool,
    ) -> Option<Reply> {
        self.silent = model.tells && model.polls(at);
        let reply = self.runs(model, at, command, late);
        self.silent = false;
        reply
    }

    fn runs(&mut self, model: &LineModel, at: usize, command: Command, late: bool) -> Option<Reply> {
        match command {
            Command::Ask { field, generation, again } => {
                let reply = self.acquire(model, field, generation, again);
                self.late_ran |= late;
                if late || self.processes[at].life != Life::Alive {
                    let own = self.data.lock.is_some_and(|lock| lock.field == field);
                    self.mark_unknown(own);
                }
                Some(reply)
            }
            Command::Release { field, shares } => {
                let pass_in = self.release(model, field, shares);
                Some(Reply::Released { field, pass_in })
            }
            Command::Pass => Some(Reply::Passed(self.pass(model))),
            Command::Listen => {
                self.processes[at].listens = true;
                Some(Reply::Passed(self.pass(model)))
            }
            Command::Renew { field } => {
                let there = self.data.lock.as_mut().filter(|lock| lock.field == field);
                let renewed = there.is_some();
                if let Some(lock) = there {
                    lock.ttl = lock.ttl.max(model.lease);
                }
                Some(Reply::Renewed { field, there: renewed })
            }
        }
    }

    /// Models `acquire`.
    fn acquire(&mut self, model: &LineModel, field: Field, generation: Option<u8>, again: bool) -> Reply {
        let lease = model.lease;
        match self.data.lock {
            None if again && model.design == Design::AskerTakes => {
                self.enter(model, field, generation);
                self.data.line.remove(|entry| entry.field == field);
                self.grant(model, field, lease);
                return Reply::Granted(field);
            }
            None if !again || generation.is_none() => {
                // A late command keeps the place that the field has got in the meantime.
                let entered = self.data.line.iter().any(|entry| entry.field == field);
                let order = self.order;
                self.hold(field, lease);
                if entered {
                    self.order = order;
                }
                return Reply::Granted(field);
            }
            None => {
                self.enter(model, field, generation);
                if self.serve(model, Some(field)) == Served::Asker {
                    return Reply::Granted(field);
                }
            }
            Some(lock) if lock.field == field => {
                self.data.line.remove(|entry| entry.field == field);
                // It gets the token that is there.
                self.old_token |= !lock.token;
                self.hold(field, lock.ttl.max(lease));
                return Reply::Granted(field);
            }
            Some(_) => self.enter(model, field, generation),
        }
        let ttl = self.data.lock.map_or(0, |lock| lock.ttl);
        let polls = model.tells && self.data.lock.is_some_and(|lock| model.polls(owner(lock.field)));
        Reply::Busy { field, ttl, alone: self.data.line.iter().count() == 1, polls }
    }

    /// Enters the line, or keeps its place. The generation only grows.
    fn enter(&mut self, model: &LineModel, field: Field, generation: Option<u8>) {
        let Some(generation) = generation else { return };
        let back = model.design == Design::GenerationGoesBack;
        if let Some(entry) = self.data.line.iter_mut().find(|entry| entry.field == field) {
            if back || entry.generation < generation {
                entry.generation = generation;
            }
        } else if model.design == Design::NewcomersFirst {
            self.data.line.insert(0, Entry { field, generation });
        } else {
            self.data.line.push(Entry { field, generation });
        }
        let process = &mut self.processes[owner(field)];
        if let Some(request) = process.request.as_mut().filter(|request| request.field == field) {
            request.placed = request.placed.max(generation);
            if !self.order.contains(&field) {
                self.order.push(field);
            }
        }
    }

    /// Models `release` and `settle` to 0. Returns in how many ticks the lock may be free, if it was handed on by
    /// this command or earlier.
    fn release(&mut self, model: &LineModel, field: Field, shares: bool) -> Option<u8> {
        let entered = self.data.line.iter().any(|entry| entry.field == field);
        if model.design != Design::ReleaseKeepsEntry {
            self.data.line.remove(|entry| entry.field == field);
        }
        match self.data.lock {
            Some(lock) if lock.field == field || model.design == Design::UncheckedRelease => {
                self.data.lock = None
            }
            Some(lock) => {
                if entered {
                    self.tell(model, 0, lock.ttl);
                }
                let handed = lock.ttl <= model.short && model.design != Design::SecondReleaseForgets;
                return handed.then_some(lock.ttl);
            }
            None if model.design == Design::GoneNotServed => return None,
            None => {}
        }
        // It leaves the lock to other programs' clients for a moment, if any is subscribed.
        if shares && self.publish_free(model) {
            return Some(0);
        }
        (self.serve(model, None) == Served::Other).then_some(model.short)
    }

    /// Ends the hold, whoever has it.
    pub(super) fn force(&mut self, model: &LineModel) {
        self.data.lock = None;
        self.serve(model, None);
    }

    /// Models `pass`. Returns the TTL, after a hand-over if the lock was free.
    fn pass(&mut self, model: &LineModel) -> u8 {
        if self.data.lock.is_none() {
            self.serve(model, None);
        }
        self.data.lock.map_or(0, |lock| lock.ttl)
    }

    /// Models another program's client, which does not look at the line.
    pub(super) fn foreign(&mut self, model: &LineModel, takes: bool) {
        if takes {
            self.data.lock = Some(Held { field: FOREIGN, ttl: model.lease, unknown: false, token: true });
        } else {
            self.data.lock = None;
            self.publish_free(model);
        }
    }
}
