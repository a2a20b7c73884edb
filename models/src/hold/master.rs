//! A master, what is sent to it, and what the scripts in `lua/` do there.

use super::{Design, HOLDS, LEASE, LONGEST};

/// When a key ends, where it has no number yet that its hold knows.
pub(super) const UNKNOWN_END: u8 = 9;

/// What a command asks of a master; the hold that it is for goes beside it. Leases are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// `acquire.lua`: count 1 takes a free lock, more re-enters.
    Acquire {
        /// The count that must stand.
        count: u8,
        /// For at least that long.
        lease: u8,
        /// Of a re-entry: as of a renewal.
        limit: u8,
        /// As of a renewal.
        named: u8,
    },
    /// `release.lua`: 0 ends the hold at any count.
    Release {
        /// The count that must stand.
        count: u8,
    },
    /// `renew.lua`, for a renewal and for an extension.
    Renew {
        /// For at least that long.
        lease: u8,
        /// What a key gets as its TTL if its end is one of those that are named: at least the lease. 0: no limit.
        limit: u8,
        /// The ends that are named, of those that were answered to the hold: so many.
        named: u8,
    },
    /// `settle.lua` without its fifth argument.
    Settle {
        /// The count that must stand.
        count: u8,
        /// For at least that long; 0 leaves the TTL.
        lease: u8,
    },
    /// `settle.lua` with its fifth argument: makes the field where there is no key.
    Repair {
        /// The count that must stand.
        count: u8,
        /// For at least that long.
        lease: u8,
    },
}

impl Command {
    /// The end of a hold.
    pub const END: Command = Command::Release { count: 0 };

    /// Whether it makes a field where there is none.
    pub(super) fn creates(self) -> bool {
        matches!(self, Command::Acquire { count: 1, .. } | Command::Repair { .. })
    }

    pub(super) fn lease(self) -> u8 {
        match self {
            Command::Acquire { lease, .. }
            | Command::Renew { lease, .. }
            | Command::Settle { lease, .. }
            | Command::Repair { lease, .. } => lease,
            Command::Release { .. } => 0,
        }
    }

    fn code(self) -> u8 {
        match self {
            Command::Acquire { count, lease, limit: 0, .. } => 3 * (count - 1) + lease - 1,
            Command::Repair { count, lease } => 9 + 3 * (count - 1) + lease - 1,
            Command::Settle { count, lease } => 18 + 2 * (count - 1) + lease / 2,
            Command::Renew { lease, limit: 0, .. } => 24 + lease - 1,
            Command::Release { count } => 27 + count,
            // A limit is a lease or the longest one; so many ends are named at most.
            Command::Renew { lease, limit, named } => {
                30 + 6 * named + 2 * (lease - 1) + u8::from(limit == LONGEST)
            }
            Command::Acquire { count, lease, limit, named } => {
                54 + 12 * named + 6 * (count - 2) + 2 * (lease - 1) + u8::from(limit == LONGEST)
            }
        }
    }

    fn of(code: u8) -> Command {
        match code {
            0..9 => Command::Acquire { count: code / 3 + 1, lease: code % 3 + 1, limit: 0, named: 0 },
            9..18 => Command::Repair { count: (code - 9) / 3 + 1, lease: code % 3 + 1 },
            18..24 => Command::Settle { count: (code - 18) / 2 + 1, lease: (code - 18) % 2 * 2 },
            24..27 => Command::Renew { lease: code - 24 + 1, limit: 0, named: 0 },
            27..30 => Command::Release { count: code - 27 },
            30..54 => {
                let (named, code) = ((code - 30) / 6, (code - 30) % 6);
                Command::Renew { lease: code / 2 + 1, limit: LEASE + code % 2, named }
            }
            _ => {
                let (named, code) = ((code - 54) / 12, (code - 54) % 12);
                let (count, lease) = (code / 6 + 2, code % 6 / 2 + 1);
                Command::Acquire { count, lease, limit: LEASE + code % 2, named }
            }
        }
    }
}

/// Commands of one hold on their way to one master. Two copies of one command are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commands(u128);

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
        (0..102).filter(move |code| self.0 & (1 << code) != 0).map(Command::of)
    }
}

/// What a master answered to the command under way. `young`: it had no vote when the command ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It was not asked.
    #[default]
    Unasked,
    /// Its answer is to come.
    Waiting,
    /// It gave none in time.
    Failed,
    /// As asked; with the token, if the hold is fenced.
    Done {
        /// It had no vote.
        young: bool,
        /// The counter as it stands.
        token: u8,
        /// The TTL, where a renewal found it longer than its lease; else 0.
        longer: u8,
        /// When the key ends, where it was asked for and the TTL is beyond the limit: the number that it is given there; else 0.
        ends: u8,
    },
    /// The field is not there.
    Gone {
        /// It had no vote.
        young: bool,
    },
    /// Another's hold is there.
    Busy,
}

/// What stands between the client of one hold and one master. One bit of `sets` for each set of masters that a hold
/// of the code has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Sent, and its answer is awaited: it may run.
    pub flying: Commands,
    /// It has run, and its answer is awaited for nothing.
    pub ran: Commands,
    /// Given up: it may run at any time, any number of times, or never.
    pub stray: Commands,
    /// To the command under way.
    pub answer: Answer,
    /// Whether this master is in `Spread::lacking` and so on.
    pub sets: u8,
}

impl Link {
    /// Whether nothing of the hold is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.flying.union(self.ran).union(self.stray).is_empty()
    }
}

/// One master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Master {
    /// The key's field: one more than the hold; 0: there is no key.
    pub field: u8,
    /// The field's value.
    pub count: u8,
    /// Ticks until the key is gone.
    pub ttl: u8,
    /// When the key ends, as a number of those that were answered to its hold; 0: another time.
    pub ends: u8,
    /// Ticks until it is older than `longest_lease`.
    pub young: u8,
    /// The fencing counter.
    pub counter: u8,
    /// By hold.
    pub links: [Link; HOLDS],
}

impl Master {
    /// Runs a script. `token`: what the hold's renewals carry; 0: nothing.
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
        let (mut longer, mut ends) = (0, 0);
        if fenced && !matches!(command, Command::Release { .. } | Command::Acquire { .. }) {
            self.counter = self.counter.max(token);
        }
        match command {
            Command::Acquire { count: 1, .. } | Command::Repair { .. } if free => {
                let count = if let Command::Repair { count, .. } = command { count } else { 1 };
                (self.field, self.count, self.ttl) = (field, count, command.lease());
                if fenced && matches!(command, Command::Acquire { .. }) {
                    self.counter += 1;
                }
            }
            Command::Acquire { count, lease, limit, named } if ours => {
                self.count = if blind { (self.count + 1).min(9) } else { self.count.max(count) };
                self.extend(lease, limit, named);
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
            Command::Renew { lease, limit, named } if ours => {
                if design == Design::LimitWhateverEnds && limit > 0 && self.ttl > limit {
                    (self.ttl, self.ends) = (limit, 0);
                }
                self.extend(lease, limit, named);
                longer = if self.ttl > lease { self.ttl } else { 0 };
                if limit > 0 && self.ttl > limit {
                    self.ends = if self.ends == 0 { UNKNOWN_END } else { self.ends };
                    ends = self.ends;
                }
            }
            Command::Settle { count, lease } | Command::Repair { count, lease } if ours => {
                self.count = count;
                self.extend(lease, 0, 0);
            }
            _ => return Answer::Gone { young },
        }
        Answer::Done { young, token: if fenced { self.counter } else { 0 }, longer, ends }
    }

    /// For a lease at least; a key whose end is named gets the limit. The end is another one with each new TTL.
    fn extend(&mut self, lease: u8, limit: u8, named: u8) {
        if self.ttl < lease {
            (self.ttl, self.ends) = (lease, 0);
        } else if (1..=named).contains(&self.ends) {
            (self.ttl, self.ends) = (limit, 0);
        }
    }

    fn end(&mut self) {
        (self.field, self.count, self.ttl, self.ends) = (0, 0, 0, 0);
    }

    /// It comes back empty.
    pub(super) fn restart(&mut self, longest: u8) {
        self.end();
        (self.young, self.counter) = (longest, 0);
    }

    /// Its clock is set back.
    pub(super) fn jump(&mut self) {
        self.ttl += LONGEST;
    }

    pub(super) fn tick(&mut self) {
        self.young = self.young.saturating_sub(1);
        self.ttl = self.ttl.saturating_sub(1);
        if self.ttl == 0 {
            self.end();
        }
    }
}
