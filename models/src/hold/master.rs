//! A master, the commands that are sent to it, and what the scripts in `lua/` do there.

use super::{Design, HOLDS, LEASE};

/// A TTL that no lease explains. It lasts longer than the model explores.
pub const FAR: u8 = 9;
/// How many ends of keys are distinguished at once.
const ENDS: u8 = 3;

/// What a command asks of a master, without the hold that it is for. Leases are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// `acquire.lua`: count 1 takes a free lock, more re-enters.
    Acquire {
        /// The count that has to be there afterwards.
        count: u8,
        /// The shortest TTL afterwards.
        lease: u8,
        /// Whether a key that stays for longer gets another end, as in a renewal.
        moves: bool,
    },
    /// `release.lua`: 0 ends the hold at any count.
    Release {
        /// The count that has to be there afterwards.
        count: u8,
    },
    /// `renew.lua`, for a renewal and for an extension.
    Renew {
        /// The shortest TTL afterwards.
        lease: u8,
        /// Whether a key that stays for longer gets another end.
        moves: bool,
    },
    /// `shorten.lua`.
    Shorten {
        /// The TTL.
        lease: u8,
        /// When the key ends, by the number in the answer to a renewal. A key with another end stays as it is.
        ends: u8,
    },
    /// `settle.lua` without its fifth argument.
    Settle {
        /// The count that has to be there afterwards.
        count: u8,
        /// The shortest TTL afterwards; 0 leaves the TTL.
        lease: u8,
    },
    /// `settle.lua` with its fifth argument: makes the field if there is no key.
    Repair {
        /// The count that has to be there afterwards.
        count: u8,
        /// The shortest TTL afterwards.
        lease: u8,
    },
}

impl Command {
    /// The end of a hold.
    pub const END: Command = Command::Release { count: 0 };

    /// Returns whether it makes a field if there is none.
    pub(super) fn creates(self) -> bool {
        matches!(self, Command::Acquire { count: 1, .. } | Command::Repair { .. })
    }

    pub(super) fn lease(self) -> u8 {
        match self {
            Command::Acquire { lease, .. }
            | Command::Renew { lease, .. }
            | Command::Shorten { lease, .. }
            | Command::Settle { lease, .. }
            | Command::Repair { lease, .. } => lease,
            Command::Release { .. } => 0,
        }
    }

    fn code(self) -> u8 {
        match self {
            Command::Acquire { count, lease, moves: false } => 3 * (count - 1) + lease - 1,
            Command::Repair { count, lease } => 9 + 3 * (count - 1) + lease - 1,
            Command::Settle { count, lease } => 18 + 2 * (count - 1) + lease / 2,
            Command::Renew { lease, moves: false } => 24 + lease - 1,
            Command::Release { count } => 27 + count,
            Command::Acquire { count, lease, moves: true } => 31 + 3 * (count - 1) + lease - 1,
            Command::Renew { lease, moves: true } => 40 + lease - 1,
            Command::Shorten { lease, ends } => 43 + 2 * (ends - 1) + lease - LEASE,
        }
    }

    fn of(code: u8) -> Command {
        match code {
            0..9 => Command::Acquire { count: code / 3 + 1, lease: code % 3 + 1, moves: false },
            9..18 => Command::Repair { count: (code - 9) / 3 + 1, lease: code % 3 + 1 },
            18..24 => Command::Settle { count: (code - 18) / 2 + 1, lease: (code - 18) % 2 * 2 },
            24..27 => Command::Renew { lease: code - 24 + 1, moves: false },
            27..31 => Command::Release { count: code - 27 },
            31..40 => {
                Command::Acquire { count: (code - 31) / 3 + 1, lease: (code - 31) % 3 + 1, moves: true }
            }
            40..43 => Command::Renew { lease: code - 40 + 1, moves: true },
            _ => Command::Shorten { lease: (code - 43) % 2 + LEASE, ends: (code - 43) / 2 + 1 },
        }
    }
}

/// Commands of one hold on their way to one master. Two copies of one command count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commands(u64);

impl Commands {
    pub(super) fn insert(&mut self, command: Command) {
        self.0 |= 1 << command.code();
    }

    pub(super) fn remove(&mut self, command: Command) {
        self.0 &= !(1 << command.code());
    }

    pub(super) fn contains(self, command: Command) -> bool {
        self.0 & (1 << command.code()) != 0
    }

    pub(super) fn union(self, others: Commands) -> Commands {
        Commands(self.0 | others.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Command> {
        (0..49).filter(move |code| self.0 & (1 << code) != 0).map(Command::of)
    }
}

/// What a master answered to the command under way. `young` means that it had no vote when the command ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It was not asked.
    #[default]
    Unasked,
    /// Its answer is still to come.
    Waiting,
    /// It did not answer in time.
    Failed,
    /// It did as asked. Has the token, if the hold is fenced.
    Done {
        /// It had no vote.
        young: bool,
        /// The value of the counter.
        token: u8,
        /// When the key ends, by a number, if a renewal found a TTL that no lease explains; otherwise 0.
        ends: u8,
    },
    /// The field is not there.
    Gone {
        /// It had no vote.
        young: bool,
    },
    /// Another hold is there.
    Busy,
}

/// The state between the client of one hold and one master. `sets` has one bit for each set of masters that a hold
/// has in the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Commands that were sent and whose answers are awaited: they may run.
    pub flying: Commands,
    /// Commands that have run, but whose awaited answers will not arrive.
    pub ran: Commands,
    /// Commands that were given up: they may run at any time, any number of times, or never.
    pub stray: Commands,
    /// Whether an end has run before a maker of the field that was sent earlier.
    pub overtaken: bool,
    /// The answer to the command under way.
    pub answer: Answer,
    /// Which sets, such as `Differences::lacking`, this master is in.
    pub sets: u8,
}

impl Link {
    /// Returns whether a command that makes the field may still run.
    pub(super) fn has_maker(&self) -> bool {
        self.flying.union(self.stray).iter().any(Command::creates)
    }

    /// Returns whether nothing of the hold is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.flying.union(self.ran).union(self.stray).is_empty()
    }
}

/// One master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Master {
    /// The key's field, as one more than the hold; 0 if there is no key.
    pub field: u8,
    /// The field's value.
    pub count: u8,
    /// Ticks until the key is gone.
    pub ttl: u8,
    /// When the key ends: the number in the answer to a renewal; 0: at another time.
    pub ends: u8,
    /// Ticks until it is older than `longest_lease`.
    pub young: u8,
    /// The fencing counter.
    pub counter: u8,
    /// The field on the server that was the master before, and the ticks until that is gone.
    pub former: (u8, u8),
    /// The links, by hold.
    pub links: [Link; HOLDS],
}

impl Master {
    /// Runs a script. `token` is what the hold's renewals carry, or 0 for none.
    pub(super) fn run(
        &mut self,
        hold: usize,
        command: Command,
        token: u8,
        fenced: bool,
        design: Design,
    ) -> Answer {
        let field = hold as u8 + 1;
        let free = self.field == 0;
        let ours = self.field == field;
        let young = self.young > 0;
        let blind = design == Design::BlindCount;
        let mut ends = 0;
        if fenced && !matches!(command, Command::Release { .. } | Command::Acquire { .. }) {
            self.counter = self.counter.max(token);
        }
        match command {
            Command::Acquire { count: 1, .. } | Command::Repair { .. } if free => {
                let count = if let Command::Repair { count, .. } = command { count } else { 1 };
                (self.field, self.count, self.ttl, self.ends) = (field, count, command.lease(), 0);
                if fenced && matches!(command, Command::Acquire { .. }) {
                    self.counter += 1;
                }
            }
            Command::Acquire { count, lease, moves } if ours => {
                self.count = if blind { (self.count + 1).min(9) } else { self.count.max(count) };
                self.stays(lease, moves);
            }
            Command::Acquire { count: 1, .. } => return Answer::Busy,
            Command::Release { count: 0 } if ours || design == Design::UncheckedRelease && !free => {
                self.end()
            }
            Command::Release { .. } if ours && blind => {
                self.count -= 1;
                if self.count == 0 {
                    self.end();
                }
            }
            Command::Release { count } if ours => self.count = self.count.min(count),
            Command::Renew { lease, moves } if ours => {
                self.stays(lease, moves);
                if self.ttl == FAR {
                    self.ends = if self.ends > 0 { self.ends } else { self.number_of_end() };
                    ends = self.ends;
                }
            }
            Command::Shorten { lease, ends }
                if ours && (self.ends == ends || design == Design::ShortenedWhateverEnds) =>
            {
                (self.ttl, self.ends) = (lease, 0);
            }
            Command::Shorten { .. } if ours => {}
            Command::Settle { count, lease } | Command::Repair { count, lease } if ours => {
                self.count = count;
                self.stays(lease, false);
            }
            _ => return Answer::Gone { young },
        }
        Answer::Done { young, token: if fenced { self.counter } else { 0 }, ends }
    }

    /// Lets the key stay for at least that long.
    fn stays(&mut self, lease: u8, moves: bool) {
        if self.ttl < lease || moves {
            (self.ttl, self.ends) = (self.ttl.max(lease), 0);
        }
    }

    /// Returns a number for the end of a key that no command under way names.
    fn number_of_end(&self) -> u8 {
        let sent = |link: &Link| link.flying.union(link.ran).union(link.stray);
        let is_named = |number: u8| {
            let names = |command| matches!(command, Command::Shorten { ends, .. } if ends == number);
            self.links.iter().any(|link| sent(link).iter().any(names))
        };
        // There are numbers enough.
        (1..=ENDS).find(|number| !is_named(*number)).unwrap_or(ENDS)
    }

    /// Models that its clock is set back by far more than a lease. By that clock, the key ends when it did before.
    pub(super) fn jump(&mut self) {
        self.ttl = FAR;
    }

    fn end(&mut self) {
        (self.field, self.count, self.ttl, self.ends) = (0, 0, 0, 0);
    }

    /// Models that the master comes back empty. If `replaced`, its former server still runs.
    pub(super) fn restart(&mut self, longest: u8, replaced: bool) {
        if replaced {
            self.former = (self.field, self.ttl);
        }
        self.end();
        (self.young, self.counter) = (longest, 0);
    }

    pub(super) fn tick(&mut self) {
        self.young = self.young.saturating_sub(1);
        self.former.1 = self.former.1.saturating_sub(1);
        if self.former.1 == 0 {
            self.former.0 = 0;
        }
        if self.ttl != FAR {
            self.ttl = self.ttl.saturating_sub(1);
        }
        if self.ttl == 0 {
            self.end();
        }
    }
}
