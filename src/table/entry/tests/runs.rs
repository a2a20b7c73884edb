//! The events that the model goes through, and what is checked after each.

use super::*;
use crate::table::hold::Sender;

impl World {
    pub(super) fn event(&mut self) {
        let askers = self.askers.len();
        match self.dice(24) {
            0..4 => self.arrive(),
            4..9 if askers > 0 => {
                let at = self.dice(askers);
                // Not every future that was woken is polled.
                if self.is_ready(at) && (!self.faults || self.dice(3) > 0) {
                    self.poll(at);
                }
            }
            9..14 if askers > 0 => {
                let at = self.dice(askers);
                self.answer(at);
            }
            14..16 => self.release(),
            16..19 => self.arrives(),
            19 if askers > 0 && self.dice(3) == 0 => {
                let at = self.dice(askers);
                self.go(at);
            }
            20 => match self.master.listener {
                Listener::Asks => self.subscribes(),
                Listener::Unconfirmed => self.confirmed(),
                _ if self.master.messages > 0 => self.message(),
                _ => {}
            },
            21 if self.faults => self.trouble(),
            22 if self.faults && self.dice(4) == 0 => self.nests = self.nests.map(|connected| !connected),
            _ => {
                self.now += STEP * self.random.random_range(1..5);
                self.check();
            }
        }
        self.look();
    }

    fn trouble(&mut self) {
        match self.dice(8) {
            // A command that nobody waits for any more runs late.
            0 | 1 if !self.late.is_empty() => {
                let at = self.dice(self.late.len());
                self.runs_late(at);
            }
            2 => self.master.key = None,
            3 if self.master.key.is_none() => {
                let until = self.now + Duration::from_secs(2);
                self.master.key = Some(("another".into(), 1, until));
            }
            4 => self.now += Duration::from_secs(5),
            5 => self.unsubscribed(),
            6 => self.entry.doubt_all(self.now),
            7 => {
                let at = self.dice(self.owners.len());
                let owner = std::mem::replace(&mut self.owners[at], Owner::new().child());
                self.ends(&owner);
            }
            _ => {}
        }
        self.check();
    }

    /// A command that nobody waits for any more runs.
    pub(super) fn runs_late(&mut self, at: usize) {
        let pending = self.late.remove(at);
        self.run(&pending);
    }

    /// The last scope of an owner ends.
    pub(super) fn ends(&mut self, owner: &Owner) {
        owner.enter();
        owner.clone().leave();
        self.entry.owner_ended(owner, self.now);
    }

    pub(super) fn look(&self) {
        let live: Vec<_> =
            self.entry.holds.iter().filter(|hold| hold.lives() && self.now < hold.deadline()).collect();
        assert!(live.len() <= 1, "two holds are alive: {live:#?}");
        let offered = self.entry.holds.iter().filter(|hold| hold.is_offered()).count();
        assert!(live.len() + offered <= 1, "a hold is offered beside another: {:#?}", self.entry.holds);
        for hold in &live {
            assert!(
                hold.deadline() <= hold.valid_until,
                "good for longer than the server keeps it: {hold:#?}"
            );
            let in_order = hold.levels.is_sorted_by(|one, next| next.owner.is_within(&one.owner));
            assert!(in_order, "two owners that are strangers to each other hold the lock: {hold:#?}");
            if let Some(command) = hold.command.as_ref().filter(|_| hold.is_watched() && !hold.is_unsettled())
            {
                let renews =
                    matches!((&command.action, &command.sender), (Action::Renew { .. }, Sender::Background));
                // After a failure, renewal and release take turns: the server may refuse the renewal and not
                // the release.
                let turn =
                    matches!(command.action, Action::Release { .. }) && !hold.failures.is_multiple_of(2);
                assert!(
                    renews || turn || command.sent < hold.renew_at,
                    "it delays a renewal that was due: {hold:#?}"
                );
            }
            // Compared by the owners at their grants: what a child's branch leaves to its parent is nested in
            // the parent's branch.
            let guards = self.guards.iter().filter(|guard| guard.hold == hold.id);
            let branches: Vec<_> = guards.filter_map(|guard| guard.branch_of.as_ref()).collect();
            for (at, owner) in branches.iter().enumerate() {
                assert!(!branches[..at].contains(owner), "two branches of one owner hold it: {hold:#?}");
            }
        }
        for guard in &self.guards {
            let hold = self.entry.holds.iter().find(|hold| hold.id == guard.hold);
            let known = hold.is_some_and(|hold| hold.levels.iter().any(|level| level.id() == guard.level));
            assert!(known, "the level of a guard is forgotten");
            let lives = hold.is_some_and(Hold::lives);
            assert!(lives || guard.signal.loss().is_some(), "a guard without a loss, of a dead hold");
        }
    }

    /// From now on the network is good and all futures are polled, so that every request and every hold comes
    /// to its end.
    fn settle(&mut self) {
        (self.faults, self.nests) = (false, self.nests.map(|_| true));
        for _ in 0..20_000 {
            if self.askers.is_empty() && self.guards.is_empty() && self.entry.holds.is_empty() {
                return;
            }
            for at in (0..self.askers.len()).rev() {
                if at < self.askers.len() && self.is_ready(at) {
                    self.poll(at);
                }
                if at < self.askers.len() && self.askers[at].asking.is_some() {
                    self.answer(at);
                }
            }
            self.arrives();
            self.confirm();
            if self.dice(3) == 0 {
                self.release();
            }
            self.check();
            self.now += STEP;
            self.look();
            self.rest();
        }
        panic!("somebody is forgotten: {:#?}", self.entry);
    }

    /// If no command is under way or due, the server has what is held here.
    pub(super) fn rest(&self) {
        let busy = |hold: &Hold| hold.command.is_some() || hold.next_action().is_some();
        let Some(hold) = self.entry.live().filter(|hold| !busy(hold) && self.now < hold.deadline()) else {
            return;
        };
        let (field, count, until) = self.master.key.as_ref().expect("the key stands");
        assert_eq!(field, &hold.field);
        assert!(
            *count == hold.server_count && *count <= hold.count() || self.stale.contains(&hold.id),
            "{count} stand there: {hold:#?}"
        );
        assert!(*until >= hold.deadline());
    }
}

fn random_events(seed: u64) -> (usize, usize) {
    let mut world = World::new(seed);
    let handoff = [Duration::ZERO, 3 * STEP, LEASE / 6][seed as usize % 3];
    world.passes_on_for(handoff);
    world.nests = (!seed.is_multiple_of(4)).then_some(true);
    for _ in 0..300 {
        world.event();
    }
    // By now, no late command can run any more, and strangers' keys and losses that nobody reported have been
    // found.
    world.late.clear();
    world.entry.doubt_all(world.now);
    world.settle();
    (world.granted, world.taken)
}

/// `ROOM_FIRST` and `ROOM_SEEDS` choose other seeds: one that failed, or more of them.
#[test]
fn random_events_keep_to_the_rules_and_forget_nobody() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let first = number("ROOM_FIRST").unwrap_or_else(rand::random);
    let (mut granted, mut taken, seeds) = (0, 0, number("ROOM_SEEDS").unwrap_or(400));
    for seed in first..first.saturating_add(seeds) {
        let world = std::panic::catch_unwind(|| random_events(seed));
        let (all, without_command) = world.unwrap_or_else(|_| panic!("seed {seed}"));
        (granted, taken) = (granted + all, taken + without_command);
    }
    // A few seeds are the repetition of a failed run.
    let shows = |count: usize, least: u64| seeds < 100 || count as u64 > least;
    assert!(shows(granted, 5 * seeds), "{granted} grants are too few to show anything");
    assert!(shows(taken, seeds / 4), "{taken} holds that passed on are too few to show anything");
}

impl World {
    /// Takes the lock while nobody else is there. Returns the acquire and the level.
    pub(super) fn take(&mut self) -> (Pending, u64) {
        self.take_with(Spread::default(), |_| ())
    }

    /// Takes the lock, and calls `happens` while the acquire is under way.
    pub(super) fn take_while(&mut self, happens: impl FnOnce(&mut LockEntry)) -> (Pending, u64) {
        self.take_with(Spread::default(), happens)
    }

    /// Takes the lock while the masters differ by `spread`.
    pub(super) fn take_with(
        &mut self,
        spread: Spread,
        happens: impl FnOnce(&mut LockEntry),
    ) -> (Pending, u64) {
        let (owner, now) = (self.owners[0].clone(), self.now);
        let (id, command_id, lease) = (self.number(), self.number(), self.timing.lease);
        self.entry.enter_alone(Waiter::new(id, owner, true, now)).unwrap();
        let ask = AcquireParams::plain(command_id, lease);
        let Admission::Ask(pending) = self.entry.admit(id, ask, self.at()) else {
            panic!("no other request is before it")
        };
        happens(&mut self.entry);
        let level = self.number();
        let (new, moment) = (NewLevel::watched(level, lease), self.at());
        assert!(self.entry.granted(&Grantee::Waiter(id), &pending, &new, spread, moment).is_ok());
        (pending, level)
    }
}

/// In this order: 1. A settle runs. 2. The lock is released by force, or its server comes back empty. 3. The
/// answer to the settle arrives.
#[test]
fn what_happens_while_a_hold_is_settled_is_asked_for_again() {
    let mut world = World::new(1);
    world.take();
    let at = world.at();
    let settles = |world: &mut World| {
        let commands = world.entry.check(at, MasterSet::NONE, &world.numbers);
        assert!(commands.iter().all(|pending| matches!(pending.call.action, Action::Settle { .. })));
        commands
    };
    world.entry.doubt_all(at.now);
    for again in [true, false] {
        let [settle] = &settles(&mut world)[..] else { panic!("it is asked for at once") };
        if again {
            world.entry.doubt_all(at.now);
        }
        world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), at);
    }
    assert!(settles(&mut world).is_empty());
}

#[test]
fn what_happens_while_a_lock_is_granted_is_asked_for() {
    let mut world = World::new(1);
    let now = world.now;
    world.take_while(|entry| entry.doubt_all(now));
    let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    assert!(matches!(commands[..], [Pending { call: Call { action: Action::Settle { .. }, .. }, .. }]));
}

/// A lock that one process alone takes and releases does not wake the watchdog before the first renewal is
/// due.
#[test]
fn who_is_alone_makes_nothing_due_before_a_renewal() {
    let mut world = World::new(1);
    let now = world.now;
    let (pending, level) = world.take_while(|entry| assert_eq!(entry.due(), None));
    let moment = world.at();
    let renewal = world.entry.due().unwrap();
    assert!(renewal > now + LEASE / 4);
    let command_id = world.number();
    let Continue(pending) = world.entry.leave(pending.hold, level, Some(command_id), moment) else {
        panic!("it is held")
    };
    assert!(world.entry.due().is_none_or(|due| due >= renewal));
    world.entry.conclude(&pending, Ok(&Reply::Done), Spread::default(), moment);
    assert!(world.entry.is_empty() && world.entry.due().is_none());
}

/// The background repeats its own failed commands after a pause, and those of a guard at once.
#[test]
fn who_has_sent_a_command_in_vain_decides_when_it_is_sent_again() {
    for outcome in [Outcome::NotRun, Outcome::Unknown] {
        let mut world = World::new(1);
        let (granted, level) = world.take();
        let check = |world: &mut World| world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
        world.entry.doubt_all(world.now);
        let [settle] = &check(&mut world)[..] else { panic!("it is asked for at once") };
        world.entry.conclude(settle, Err(outcome), Spread::default(), world.at());
        assert!(check(&mut world).is_empty(), "without a pause");
        world.now += world.timing.retry;
        let [settle] = &check(&mut world)[..] else { panic!("it is forgotten") };
        world.entry.conclude(settle, Ok(&Reply::Done), Spread::default(), world.at());
        let grant = world.entry.live().unwrap().levels[0].grant.clone();
        let Continue(end) = world.entry.leave(granted.hold, level, Some(99), world.at()) else {
            panic!("it is held")
        };
        world.entry.conclude(&end, Err(outcome), Spread::default(), world.at());
        let [end] = &check(&mut world)[..] else { panic!("it is sent at once") };
        assert!(end.is_end());
        world.entry.conclude(end, Ok(&Reply::Done), Spread::default(), world.at());
        assert_eq!(grant.signal.released(), Some(Ok(())), "the guard may wait for it");
    }
}

#[test]
fn a_longer_lease_counts_for_the_level_that_it_was_asked_for() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    let (at, longer) = (world.at(), Lease::new("lease", 2 * LEASE, DRIFT).unwrap());
    let mut extend = |command_id| {
        world.entry.begin_renewal(granted.hold, Some((level, longer)), command_id, Waker::noop(), at.now)
    };
    let extension = extend(99).unwrap();
    assert!(extend(100).is_none(), "one command at a time");
    assert_eq!(world.entry.conclude(&extension, Ok(&Reply::Done), Spread::default(), at), Meaning::Done);
    assert_eq!(world.entry.live().unwrap().levels[0].until, Some((at.now + 2 * LEASE).into()));
}

/// Otherwise, two commands could overtake each other.
#[test]
fn a_release_does_not_go_before_a_settle() {
    let mut world = World::new(1);
    let (granted, level) = world.take();
    world.entry.doubt_all(world.now);
    let release = world.entry.leave(granted.hold, level, Some(99), world.at());
    assert!(matches!(release, Break(Meaning::Void)), "{release:?}");
    let commands = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    assert!(matches!(&commands[..], [end] if end.is_end()), "{commands:?}");
}

/// The guard is kept, and the master is away. Without drift the key is gone when the hold ends.
#[test]
fn the_end_of_a_fixed_lease_is_sent_no_more_once_the_key_is_gone() {
    let mut world = World::new(1);
    let (pending, _) = world.take();
    world.entry.holds[0].levels[0].watched = false;
    world.now = world.entry.holds[0].deadline();
    let mut sent = 0;
    while let Some(due) = world.entry.due() {
        world.now = world.now.max(due);
        for end in world.entry.check(world.at(), MasterSet::NONE, &world.numbers) {
            world.fails(&end, Net::CommandLost);
            sent += 1;
        }
        assert!(sent == 1, "{sent} ends were sent");
    }
    assert!(world.entry.hold_of_guard(pending.hold).is_some_and(Hold::is_gone));
}
