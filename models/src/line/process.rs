//! A process: its request, its connection, its timers.

use super::{Command, Design, Few, Field, LineModel, Message, Place, Reply, State};

/// How far a request has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// An ask is under way.
    Asking {
        /// Whether a message came before the answer, so that it asks once more.
        hinted: bool,
    },
    /// The answer was that the lock is busy.
    InLine,
    /// It holds the lock.
    Held,
}

/// The request that is the head of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Its field on the server.
    pub field: Field,
    /// How far it has got.
    pub phase: Phase,
    /// Ticks since its last command was sent.
    pub age: u8,
    /// Whether it stands in the line, as far as its process knows; set only if that matters.
    pub stands: bool,
    /// Whether its field is one of a process that polls.
    pub polls: bool,
    /// Ticks until it asks again.
    pub ask_in: u8,
    /// Ticks for which it still holds the lock.
    pub valid: u8,
    /// Not in the process: whether the server has lost its hold, or a forced release has ended it.
    pub void: bool,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    /// It runs.
    #[default]
    Alive,
    /// It is stopped, and its connections stay open.
    Frozen,
    /// It is gone.
    Crashed,
}

/// A process, and the commands, answers and messages on their way from it and to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// How many requests it still makes.
    pub requests: u8,
    /// The request that is its head, if any.
    pub request: Option<Request>,
    /// Fields whose end is not confirmed.
    pub leaving: Few<Field, 4>,
    /// Whether it runs.
    pub life: Life,
    /// Whether it may not subscribe, and knows that.
    pub polls: bool,
    /// Whether it may not publish either, which it knows from the beginning.
    pub mute: bool,
    /// Whether the server sends messages over the connection, and the process knows that.
    pub heard: bool,
    /// Whether the server takes an earlier connection for open.
    pub believed: bool,
    /// Whether it is subscribed to the lock's channel.
    pub listens: bool,
    /// Whether it has to be subscribed to the lock's channel.
    pub listening: bool,
    /// The commands on their way to the server, the first one first.
    pub commands: Few<Command, 5>,
    /// The answers on their way back.
    pub answers: Few<Reply, 5>,
    /// The messages on their way from the server.
    pub messages: Few<Message, 5>,
    /// The commands of a connection that was lost: they may still run.
    pub late: Few<Command, 5>,
}

impl Process {
    /// Sends a message to it. A second copy of a message changes nothing.
    pub(super) fn deliver(&mut self, message: Message) {
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    /// Returns whether more is on its way than is explored.
    pub(super) fn is_full(&self) -> bool {
        self.commands.len() > 3 || self.answers.len() > 3 || self.messages.len() > 3
    }

    /// Returns whether a command or an answer is on its way.
    pub(super) fn is_asking(&self) -> bool {
        !self.commands.is_empty() || !self.answers.is_empty()
    }
}

impl State {
    /// Sends a command, unless the same one is on its way.
    pub(super) fn send(&mut self, at: usize, command: Command) {
        let commands = &mut self.processes[at].commands;
        if !commands.contains(&command) {
            commands.push(command);
        }
    }

    /// A request becomes the head and asks for the first time.
    pub(super) fn begin(&mut self, model: &LineModel, at: usize, field: Field) {
        let process = &mut self.processes[at];
        process.requests -= 1;
        let phase = Phase::Asking { hinted: false };
        let (age, ask_in, valid) = (0, 0, 0);
        process.request = Some(Request {
            field,
            phase,
            age,
            stands: false,
            polls: process.polls,
            ask_in,
            valid,
            void: false,
        });
        self.ask(model, at, false);
    }

    /// Asks. `again`: there was an earlier ask of the same field, whether or not it has run.
    pub(super) fn ask(&mut self, model: &LineModel, at: usize, mut again: bool) {
        let process = &self.processes[at];
        let denied = process.polls && process.request.is_some_and(|request| !request.polls);
        if denied && model.design != Design::DeniedStays {
            again &= !self.takes_fresh_field(model, at);
        }
        let process = &mut self.processes[at];
        let Some(request) = &mut process.request else { return };
        let place = match process.polls {
            true if request.polls => Some(Place::Polls),
            true => Some(Place::Denied),
            false => process.heard.then_some(Place::Notified),
        };
        (request.phase, request.age, request.void) = (Phase::Asking { hinted: false }, 0, false);
        let field = request.field;
        self.send(at, Command::Ask { field, place, again });
    }

    /// Ends the field of the request, which goes on with a fresh one. Returns whether it does.
    fn takes_fresh_field(&mut self, model: &LineModel, at: usize) -> bool {
        let fresh = self.fresh_field(model, at);
        let process = &mut self.processes[at];
        let (Some(fresh), Some(request)) = (fresh, &mut process.request) else { return false };
        let former = std::mem::replace(&mut request.field, fresh);
        (request.polls, request.stands) = (process.polls, false);
        self.order.remove(|field| *field == former);
        if model.design != Design::FormerStays {
            self.end(at, former);
        }
        true
    }

    /// Ends the request: it was released or dropped, or its time is up. Its field is ended on the server.
    pub(super) fn leave(&mut self, model: &LineModel, at: usize) {
        let process = &mut self.processes[at];
        let Some(request) = process.request.take() else { return };
        self.order.remove(|field| *field == request.field);
        if request.phase != Phase::Held && model.design == Design::DropLeavesEntry {
            return;
        }
        self.end(at, request.field);
    }

    fn end(&mut self, at: usize, field: Field) {
        let leaving = &mut self.processes[at].leaving;
        if !leaving.contains(&field) {
            leaving.push(field);
        }
        self.send(at, Command::Release(field));
    }

    /// Handles an answer.
    pub(super) fn answered(&mut self, model: &LineModel, at: usize, reply: Reply) {
        let process = &mut self.processes[at];
        match reply {
            Reply::Granted(field, token) => {
                let Some(request) = process.request.as_mut().filter(|request| request.field == field) else {
                    // Its end was sent after the ask. If the end ran before the ask, the field still stands.
                    if !process.leaving.contains(&field) {
                        self.end(at, field);
                    }
                    return;
                };
                if request.phase == Phase::Held {
                    return;
                }
                let age = if model.design == Design::DeadlineFromAnswer { 0 } else { request.age };
                let valid = model.lease.saturating_sub(age);
                if valid == 0 {
                    self.ask(model, at, true);
                    return;
                }
                (request.phase, request.valid) = (Phase::Held, valid);
                // After a forced release or a failover, the next holder may have begun before.
                self.old_token |= model.fenced && !request.void && token <= self.begun;
                self.begun = self.begun.max(token);
            }
            Reply::Busy { field, ttl, polls } => {
                let Some(request) = process.request.as_mut().filter(|request| request.field == field) else {
                    return;
                };
                let Phase::Asking { hinted } = request.phase else { return };
                (request.phase, request.stands) = (Phase::InLine, model.hears_releases());
                let age = if model.design == Design::TimerFromAnswer { 0 } else { request.age };
                let behind = polls && model.design != Design::SleepsBehindSilent;
                let poll = if request.polls || behind { 1 } else { model.poll };
                request.ask_in = ttl.min(poll).saturating_sub(age);
                if hinted && model.design != Design::HintForgotten {
                    self.ask(model, at, true);
                } else if model.hears_releases() && !process.polls && model.design != Design::NobodyListens {
                    self.listen(at);
                }
            }
            Reply::Released(field) => process.leaving.remove(|leaving| *leaving == field),
            Reply::Listening => self.asks_in(model, at, 1),
            Reply::Unknown(command) => self.send_by_text(at, command),
        }
    }

    /// Sends a command again that the server did not know. An acquire is sent again by its request.
    fn send_by_text(&mut self, at: usize, command: Command) {
        let asks = |field| {
            let is_it = |request: Request| request.field == field && request.phase != Phase::InLine;
            self.processes[at].request.is_some_and(is_it)
        };
        let goes_on = match command {
            Command::Ask { field, .. } => asks(field),
            _ => true,
        };
        if goes_on {
            self.send(at, command);
        }
    }

    /// Subscribes to the lock's channel.
    fn listen(&mut self, at: usize) {
        if !self.processes[at].listening {
            self.processes[at].listening = true;
            self.send(at, Command::Listen);
        }
    }

    /// Handles a message.
    pub(super) fn message(&mut self, model: &LineModel, at: usize, message: Message) {
        let process = &mut self.processes[at];
        let field = match message {
            Message::Yours(field) => field,
            Message::Left if process.request.is_some_and(|request| request.stands) => return,
            Message::Free | Message::Left => return self.hears_release(model, at),
            Message::Later(_, ticks) => return self.asks_in(model, at, ticks),
        };
        let Some(request) = process.request.as_mut().filter(|request| request.field == field) else {
            // No request waits with that field.
            let ignores = match model.design {
                Design::StrangeHintIgnored => true,
                Design::LeavingHintIgnored => process.leaving.contains(&field),
                _ => false,
            };
            if !ignores {
                self.end(at, field);
            }
            return;
        };
        match request.phase {
            Phase::Held => {}
            Phase::Asking { .. } => request.phase = Phase::Asking { hinted: true },
            Phase::InLine => self.ask(model, at, true),
        }
    }

    /// Handles a message about a release: the request asks once more.
    fn hears_release(&mut self, model: &LineModel, at: usize) {
        match self.processes[at].request.map(|request| request.phase) {
            Some(Phase::InLine) => self.ask(model, at, true),
            Some(Phase::Asking { .. }) => self.hinted(at),
            _ => {}
        }
    }

    /// Handles a message about when the lock may be free. It applies to each request that waits here, even if its
    /// field is another one now.
    fn asks_in(&mut self, model: &LineModel, at: usize, ticks: u8) {
        let Some(request) = &mut self.processes[at].request else { return };
        match &mut request.phase {
            Phase::InLine => request.ask_in = request.ask_in.min(ticks),
            // The answer that it is about to get may be older than the message.
            Phase::Asking { hinted } => *hinted |= model.design != Design::TimeForgotten,
            Phase::Held => {}
        }
    }

    /// Loses the commands that were sent, or lets them run late, and loses the answers.
    fn lose_commands(&mut self, model: &LineModel, at: usize) {
        let process = &mut self.processes[at];
        process.late = if model.late { process.commands } else { Few::default() };
        (process.commands, process.answers) = (Few::default(), Few::default());
    }

    /// Models that the connection is lost and the process notices. `believed`: the server does not.
    pub(super) fn lose_connection(&mut self, at: usize, believed: bool) {
        let process = &self.processes[at];
        let lost = self.data.lock.is_some_and(|lock| {
            let sent = process.messages.contains(&Message::Yours(lock.field));
            sent && process.request.is_none_or(|request| request.field != lock.field)
        });
        self.mark_unknown(lost);
        let process = &mut self.processes[at];
        (process.heard, process.believed, process.listens) = (false, believed, false);
        process.messages = Few::default();
    }

    /// Models that the process has a connection again.
    pub(super) fn connect(&mut self, model: &LineModel, at: usize) {
        let process = &mut self.processes[at];
        process.heard = true;
        if process.listening {
            process.listening = false;
            self.listen(at);
        }
        match self.processes[at].request.map(|request| request.phase) {
            Some(Phase::InLine) if model.design != Design::NotAgain => self.ask(model, at, true),
            // The ask under way named another connection or none, so it has to ask once more.
            Some(Phase::Asking { .. }) => self.hinted(at),
            _ => {}
        }
    }

    fn hinted(&mut self, at: usize) {
        if let Some(request) = &mut self.processes[at].request {
            request.phase = Phase::Asking { hinted: true };
        }
    }

    /// Models that the separate connection for commands is lost. Commands are lost, and sent again.
    pub(super) fn lose_command_connection(&mut self, model: &LineModel, at: usize) {
        self.lose_commands(model, at);
        let process = &mut self.processes[at];
        if process.listening && !process.listens && process.heard {
            process.listening = false;
            self.listen(at);
        }
        for field in self.processes[at].leaving.iter() {
            self.send(at, Command::Release(field));
        }
        let asking = |request: Request| matches!(request.phase, Phase::Asking { .. });
        if self.processes[at].request.is_some_and(asking) {
            let again = !self.takes_fresh_field(model, at);
            self.ask(model, at, again);
        }
    }

    /// Models a crash of the process. What it has sent may still run.
    pub(super) fn crash(&mut self, model: &LineModel, at: usize, believed: bool) {
        let process = &self.processes[at];
        let mut late = process.commands;
        if !model.late {
            late = Few::default();
        }
        let Process { polls, mute, .. } = *process;
        let heard = believed && process.heard;
        self.order.remove(|field| super::owner(*field) == at);
        self.processes[at] = Process { life: Life::Crashed, late, heard, polls, mute, ..Process::default() };
    }
}
