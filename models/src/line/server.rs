//! The server: the lock, its line, and the scripts, each of which is one step.

use super::{
    Command, Design, FOREIGN, Field, Life, LineModel, Message, Other, Phase, Reply, Request, State, owner,
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
    /// Whether it was only handed to the field, which has not asked since. So it has no token yet.
    pub handed: bool,
    /// Whether the field is one of a process that polls.
    pub polls: bool,
}

/// How an entry stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Its process gets messages.
    Notified,
    /// Its process gets none any more and knows that, but the entry does not show it.
    Denied,
    /// Its process polls, and the entry shows that.
    Polls,
}

/// An entry of the line on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub(super) field: Field,
    pub(super) place: Place,
    /// Its number in the line, if other programs' clients wait: only the lowest bits matter.
    pub(super) number: u8,
    /// Whether it has let other programs' clients go first.
    pub(super) gave_way: bool,
}

/// What the server has, and what its replica may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    /// The key.
    pub lock: Option<Held>,
    /// The line, the first one first.
    pub line: super::Few<Entry, 6>,
    /// The counter of the tokens.
    pub token: u8,
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
    fn publish(&mut self, to: Entry, message: Message) -> bool {
        if self.silent {
            return false;
        }
        let process = &mut self.processes[owner(to.field)];
        if process.heard && process.life != Life::Crashed {
            process.deliver(message);
        }
        process.heard || process.believed
    }

    /// Publishes to the lock's channel that the lock is free.
    fn publish_free(&mut self, message: Message) {
        if self.silent {
            return;
        }
        if matches!(self.other, Other::Asleep(_)) {
            self.other = Other::Woken;
        }
        self.behind = 0;
        for process in self.processes.iter_mut().filter(|process| process.heard && process.listens) {
            if process.life != Life::Crashed {
                process.deliver(message);
            }
        }
    }

    /// Notifies the entry at this place to ask in so many ticks. An entry that can't be notified is removed. If the entry
    /// polls, the next one is notified instead.
    fn tell(&mut self, mut place: usize, ticks: u8) {
        while let Some(entry) = self.data.line.iter().nth(place).filter(|_| !self.silent) {
            if entry.place == Place::Polls {
                place += 1;
                continue;
            }
            if self.publish(entry, Message::Later(entry.field, ticks)) {
                return;
            }
            self.data.line.remove(|other| *other == entry);
            self.skip(entry);
        }
    }

    /// Handles an entry that was removed because its process can't be notified. A process that has asked since it knows
    /// that, and polls in the line, is passed over.
    fn skip(&mut self, entry: Entry) {
        let process = &self.processes[owner(entry.field)];
        let waits = |request: Request| request.field == entry.field && request.phase == Phase::InLine;
        let knows = entry.place == Place::Denied && process.life == Life::Alive;
        self.passed_over |= knows && process.request.is_some_and(waits);
        self.order.remove(|field| *field == entry.field);
    }

    /// Serves the line, and notifies the entry that is the first afterwards when to ask.
    fn serve(&mut self, model: &LineModel, asker: Option<Field>) -> Served {
        let served = self.hand_on(model, asker);
        match served {
            Served::Asker => self.tell(0, model.lease),
            Served::Other if model.design != Design::SecondNotTold => {
                let polls = self.data.lock.is_some_and(|lock| lock.polls);
                self.tell(0, if polls { 0 } else { model.short });
            }
            _ => {}
        }
        served
    }

    /// Makes the first of the line the holder for a short time. Entries that can't be notified are removed.
    fn hand_on(&mut self, model: &LineModel, asker: Option<Field>) -> Served {
        while let Some(first) = self.data.line.take(0) {
            if Some(first.field) == asker {
                self.grant(first.field, model.lease, first.place == Place::Polls);
                self.data.token += u8::from(model.fenced);
                return Served::Asker;
            }
            if first.place == Place::Polls && model.design != Design::PollersAreGone {
                // It polls, so no message is sent.
                self.hand_over(model, first, model.short);
                let crashed = self.processes[owner(first.field)].life != Life::Alive;
                self.mark_unknown(crashed);
                return Served::Other;
            }
            if self.silent {
                self.hand_over(model, first, model.short);
                let there = self.is_connected(first);
                self.mark_unknown(!there);
                return Served::Other;
            }
            if first.place != Place::Polls && self.publish(first, Message::Yours(first.field))
                || model.design == Design::ReceiversNotCounted
            {
                self.hand_over(model, first, model.short);
                let there = self.is_connected(first);
                let process = &self.processes[owner(first.field)];
                self.mark_unknown(!there && (process.believed || process.heard));
                return Served::Other;
            }
            if first.place != Place::Polls {
                self.skip(first);
            }
        }
        Served::Nobody
    }

    /// Makes the first of the line the holder for a short time. It has no token before it asks.
    fn hand_over(&mut self, model: &LineModel, first: Entry, ttl: u8) {
        self.grant(first.field, ttl, first.place == Place::Polls);
        if let Some(lock) = &mut self.data.lock {
            lock.handed = model.fenced;
        }
    }

    pub(super) fn mark_unknown(&mut self, unknown: bool) {
        if let Some(lock) = &mut self.data.lock {
            lock.unknown |= unknown;
        }
    }

    /// Returns whether the process runs and reads what is sent to this entry.
    fn is_connected(&self, to: Entry) -> bool {
        let process = &self.processes[owner(to.field)];
        process.life == Life::Alive && process.heard
    }

    /// Makes a field the holder that was served from the line or has asked again.
    fn grant(&mut self, field: Field, ttl: u8, polls: bool) {
        if self.order.contains(&field) && self.waits(field) {
            let earlier = self.order.iter().take_while(|earlier| *earlier != field);
            self.passed_over |= earlier.into_iter().any(|earlier| self.waits_there(earlier));
        }
        self.hold(field, ttl, polls);
    }

    /// Returns whether a request waits with this field. The server does not know that.
    pub(super) fn waits(&self, field: Field) -> bool {
        let waits = |request: Request| {
            request.field == field && matches!(request.phase, Phase::Asking { .. } | Phase::InLine)
        };
        self.processes[owner(field)].request.is_some_and(waits)
    }

    fn hold(&mut self, field: Field, ttl: u8, polls: bool) {
        self.data.lock = Some(Held { field, ttl, unknown: false, handed: false, polls });
        self.order.remove(|waiting| *waiting == field);
    }

    /// Returns whether the request waits, its process runs, and the server knows its connection. The server does not
    /// know that.
    fn waits_there(&self, field: Field) -> bool {
        let process = &self.processes[owner(field)];
        process.life == Life::Alive && self.waits(field) && (process.heard || process.polls)
    }

    /// Runs a command. `late`: its process no longer waits for the answer.
    pub(super) fn run(&mut self, model: &LineModel, at: usize, command: Command, late: bool) -> Reply {
        self.silent = self.processes[at].mute;
        let reply = self.runs(model, at, command, late);
        self.silent = false;
        reply
    }

    fn runs(&mut self, model: &LineModel, at: usize, command: Command, late: bool) -> Reply {
        match command {
            Command::Ask { field, place, again } => {
                let reply = self.acquire(model, field, place, again);
                self.late_ran |= late;
                if late || self.processes[at].life != Life::Alive {
                    let own = self.data.lock.is_some_and(|lock| lock.field == field);
                    self.mark_unknown(own);
                }
                reply
            }
            Command::Release(field) => {
                self.release(model, field);
                Reply::Released(field)
            }
            Command::Listen => {
                self.processes[at].listens = self.processes[at].heard;
                Reply::Listening
            }
        }
    }

    /// Models `acquire`.
    fn acquire(&mut self, model: &LineModel, field: Field, place: Option<Place>, again: bool) -> Reply {
        let (lease, polls) = (model.lease, place == Some(Place::Polls));
        match self.data.lock {
            None if again && model.design == Design::AskerTakes => {
                self.enter(model, field, place);
                self.data.line.remove(|entry| entry.field == field);
                self.grant(field, lease, polls);
                return Reply::Granted(field, self.data.token);
            }
            None if !again || place.is_none() => {
                // A late command keeps the place that the field has got in the meantime.
                let entered = self.data.line.iter().any(|entry| entry.field == field);
                let order = self.order;
                self.hold(field, lease, polls);
                self.data.token += u8::from(model.fenced);
                if entered {
                    self.order = order;
                }
                return Reply::Granted(field, self.data.token);
            }
            None => {
                self.enter(model, field, place);
                if self.serve(model, Some(field)) == Served::Asker {
                    return Reply::Granted(field, self.data.token);
                }
            }
            Some(lock) if lock.field == field => {
                self.data.line.remove(|entry| entry.field == field);
                // A repeat gets the token that is there.
                self.data.token += u8::from(lock.handed && model.design != Design::TokenAtAnswer);
                self.hold(field, lock.ttl.max(lease), lock.polls);
                return Reply::Granted(field, self.data.token);
            }
            Some(_) => self.enter(model, field, place),
        }
        let ttl = self.data.lock.map_or(0, |lock| lock.ttl);
        let polls = self.data.lock.is_some_and(|lock| lock.polls);
        Reply::Busy { field, ttl, polls }
    }

    /// Enters the line, or keeps its number. An ask that runs late does not take back what a later one said.
    fn enter(&mut self, model: &LineModel, field: Field, place: Option<Place>) {
        let Some(place) = place else { return };
        if let Some(entry) = self.data.line.iter_mut().find(|entry| entry.field == field) {
            entry.place = entry.place.max(place);
        } else {
            let counts = model.foreign > 0;
            let last = self.data.line.iter().last().map_or(0, |last| last.number);
            let number = if counts { (last + 1) % 4 } else { 0 };
            let passes = match model.design {
                Design::NewcomersFirst => true,
                Design::OrderByClock => self.set_back,
                _ => false,
            };
            let at = if passes { 0 } else { self.data.line.len() };
            self.data.line.insert(at, Entry { field, place, number, gave_way: false });
        }
        let is_its = |request: Request| request.field == field;
        if self.processes[owner(field)].request.is_some_and(is_its) && !self.order.contains(&field) {
            self.order.push(field);
        }
    }

    /// Models `release` and `settle` to 0.
    fn release(&mut self, model: &LineModel, field: Field) {
        let entered = self.data.line.iter().any(|entry| entry.field == field);
        if model.design != Design::ReleaseKeepsEntry {
            self.data.line.remove(|entry| entry.field == field);
        }
        let ended = self.data.lock.is_some_and(|lock| lock.field == field);
        match self.data.lock {
            Some(_) if ended || model.design == Design::UncheckedRelease => self.data.lock = None,
            Some(lock) => {
                if entered {
                    self.tell(0, lock.ttl);
                    // A lock that is handed on has no lease yet.
                    if lock.ttl <= model.short {
                        self.last_has_left(model);
                    }
                }
                return;
            }
            None => {}
        }
        self.hand_on_or_leave(model, ended);
    }

    /// Serves the line, or leaves the lock to other programs' clients if it is their turn. `ended`: a hold was ended.
    fn hand_on_or_leave(&mut self, model: &LineModel, ended: bool) {
        let waits = ended && self.other != Other::Away && model.design != Design::NoTurns;
        // The smallest power of two that is not less than the length of the line, as one client waits.
        let every = (self.data.line.len() as u8).next_power_of_two();
        let first = self.data.line.iter_mut().next().filter(|_| waits && !self.silent);
        if let Some(first) = first.filter(|first| !first.gave_way && first.number.is_multiple_of(every)) {
            first.gave_way = true;
            self.publish_free(Message::Left);
            self.tell(0, 0);
            self.tell(1, model.short);
            return;
        }
        if self.serve(model, None) == Served::Nobody {
            if ended {
                self.publish_free(Message::Free);
            }
        } else if self.other != Other::Away {
            self.behind += u8::from(matches!(self.other, Other::Asleep(_)));
            self.last_has_left(model);
        }
    }

    /// Has other programs' clients ask if nobody is left in the line to ask at the end of a hand-over.
    fn last_has_left(&mut self, model: &LineModel) {
        if self.data.line.is_empty() && model.design != Design::OthersNotTold {
            let behind = self.behind;
            self.publish_free(Message::Left);
            self.behind = behind;
        }
    }

    /// Ends the hold, whoever has it.
    pub(super) fn force(&mut self, model: &LineModel) {
        self.data.lock = None;
        self.serve(model, None);
        // Published even if the lock was handed on.
        self.publish_free(Message::Free);
    }

    /// Models that another program's client releases the lock. It does not look at the line.
    pub(super) fn other_releases(&mut self) {
        self.data.lock = None;
        self.publish_free(Message::Free);
    }

    /// Models another program's client that takes the lock, or is subscribed and sleeps until a message or the end of the
    /// TTL.
    pub(super) fn other_asks(&mut self, model: &LineModel) {
        self.other = match self.data.lock {
            Some(lock) => Other::Asleep(lock.ttl),
            None => {
                self.foreign -= 1;
                self.behind = 0;
                let (field, ttl) = (FOREIGN, model.lease);
                self.data.lock = Some(Held { field, ttl, unknown: false, handed: false, polls: false });
                Other::Away
            }
        };
    }
}
