//! A released hold that passes to the next owner of its process: when it is passed on, to which request, and
//! for how long it is offered.

use super::late::MOMENT;
use super::*;
use crate::table::hold::Sender;
use crate::table::offer::Offer;
use crate::table::queue::HEAD_PATIENCE;
use crate::wire::{Line, Notice};

const LONGEST: Duration = Duration::from_secs(1);

/// One owner holds the lock, and this many requests wait. Returns their numbers.
fn one_holds(waiting: usize) -> (World, Vec<u64>) {
    one_holds_in(World::new(1), waiting)
}

fn one_holds_in(mut world: World, waiting: usize) -> (World, Vec<u64>) {
    world.faults = false;
    world.passes_on_for(LONGEST);
    let first = world.asks(&Owner::new(), true);
    world.answers(first);
    let waiting = (0..waiting).map(|_| world.asks(&Owner::new(), true));
    let waiting = waiting.collect();
    (world, waiting)
}

impl World {
    fn field(&self) -> Option<Arc<str>> {
        self.entry.live().map(|hold| hold.field.clone())
    }

    /// The only guard is released, or dropped. Returns whether the hold is offered.
    fn offers(&mut self, sends: bool) -> bool {
        let before = self.flight.len();
        self.release_by(0, sends);
        let offered = self.entry.holds.iter().any(Hold::is_offered);
        assert!(!offered || self.flight.len() == before, "an end is sent");
        offered
    }

    /// Returns what the background sends now.
    fn is_sent(&mut self) -> Vec<Action> {
        self.check();
        self.flight.iter().map(|pending| pending.call.action).collect()
    }

    /// The hold ends by a command; no request takes it.
    fn ends_it(&mut self) {
        assert_eq!(self.is_sent(), [Action::END]);
        self.arrives();
        assert!(self.entry.holds.is_empty() && self.master.key.is_none());
    }
}

#[test]
fn a_released_hold_passes_to_the_next_in_line_without_a_command() {
    for sends in [true, false] {
        let (mut world, waiting) = one_holds(3);
        let field = world.field();
        for id in waiting {
            assert!(world.offers(sends));
            assert!(world.is_woken(id), "it is next in the queue");
            world.poll(world.asker(id));
            assert_eq!((world.guards.len(), world.field()), (1, field.clone()));
            world.rest();
        }
        assert!(!world.offers(true), "nobody waits");
        assert_eq!(world.is_sent(), [Action::END]);
        assert_eq!((world.granted, world.taken), (4, 3));
    }
}

/// In this order: 1. Two branches ask in one poll of their task. 2. If the first were granted in that poll,
/// it would hold before the second one asks, which would be taken for nested.
#[test]
fn what_is_offered_is_not_taken_in_the_first_poll() {
    let (mut world, waiting) = one_holds(1);
    assert!(world.offers(true));
    // The waiting request is passed over, so that the new one is the first in the queue.
    world.entry.queue.pass_over(waiting[0], world.now + LEASE, LEASE);
    let late = world.asks(&Owner::new(), true);
    assert!(world.guards.is_empty() && world.askers[world.asker(late)].asking.is_none());
    world.ends_it();
}

#[test]
fn a_hold_that_nobody_takes_in_time_ends() {
    let (mut world, waiting) = one_holds(1);
    assert!(world.offers(true));
    assert_eq!(world.is_sent(), []);
    world.now += HEAD_PATIENCE;
    assert_eq!(world.is_sent(), [Action::END]);
    world.poll(world.asker(waiting[0]));
    assert!(world.guards.is_empty(), "the time of the offer is over");
    world.arrives();
    world.answers_all();
    assert_eq!(world.guards.len(), 1);
}

impl World {
    /// Polls all that are woken, and answers their commands.
    fn answers_all(&mut self) {
        for id in self.askers.iter().map(|asker| asker.id).collect::<Vec<_>>() {
            if self.is_ready(self.asker(id)) {
                self.poll(self.asker(id));
            }
            if self.askers.iter().any(|asker| asker.id == id && asker.asking.is_some()) {
                self.answers(id);
            }
        }
    }
}

#[test]
fn a_hold_that_nobody_waits_for_any_more_ends_at_once() {
    let (mut world, waiting) = one_holds(1);
    assert!(world.offers(true));
    let at = world.asker(waiting[0]);
    world.go(at);
    world.ends_it();
}

#[test]
fn a_hold_passes_to_the_next_one_where_the_first_goes() {
    let (mut world, waiting) = one_holds(2);
    assert!(world.offers(true));
    let at = world.asker(waiting[0]);
    world.go(at);
    assert!(world.is_woken(waiting[1]));
    world.poll(world.asker(waiting[1]));
    assert_eq!(world.taken, 1);
}

#[test]
fn a_hold_passes_on_for_as_long_as_it_may_after_its_grant_and_then_lets_others_go_first() {
    let (mut world, waiting) = one_holds(3);
    world.pass(LONGEST - STEP);
    assert!(world.offers(true));
    world.poll(world.asker(waiting[0]));
    world.pass(STEP);
    assert!(!world.offers(true));
    world.now += STEP;
    world.arrives();
    // The pause lasts two round trips.
    let next = world.asker(waiting[1]);
    assert!(world.is_woken(waiting[1]), "to set its timer");
    world.poll(next);
    assert_eq!(
        (world.askers[next].nap, world.askers[next].asking.is_some()),
        (Some(world.now + 2 * STEP), false)
    );
    // Neither this process's own message nor that of another changes this.
    world.confirm();
    world.entry.message(0, world.now);
    world.poll(next);
    assert!(world.askers[next].asking.is_none());
    world.now += 2 * STEP;
    world.poll(next);
    assert!(world.askers[next].asking.is_some());
}

/// A hold has passed on for as long as it may, and its end is sent; another request waits. Returns the number
/// of that request.
fn ends_a_turn() -> (World, u64) {
    ends_a_turn_in(World::new(1))
}

fn ends_a_turn_in(world: World) -> (World, u64) {
    let (mut world, waiting) = one_holds_in(world, 2);
    assert!(world.offers(true));
    world.poll(world.asker(waiting[0]));
    world.pass(LONGEST);
    assert!(!world.offers(true));
    (world, waiting[1])
}

/// Others go first unless the lock is handed on, or left to clients that know no line. If no other process
/// was notified, they still go first after one turn in four: a process that polls may be waiting.
#[test]
fn nobody_goes_first_where_nobody_else_was_notified() {
    let (left, term) = (
        Reply::Ended(Notice::LeftToOthers(Duration::from_millis(1))),
        Lease::new("lease", STEP, DRIFT).unwrap(),
    );
    for (reply, line, subscribed, asks) in [
        // This process may not subscribe, so neither may the others.
        (Reply::Ended(Notice::Sent(0)), false, false, 0..=0),
        (Reply::Ended(Notice::Sent(1)), false, false, 0..=0),
        (Reply::Ended(Notice::Sent(1)), false, true, 43..=53),
        (Reply::Ended(Notice::Sent(2)), false, true, 0..=0),
        (Reply::Done, false, true, 0..=0),
        (Reply::Ended(Notice::Sent(0)), true, true, 64..=64),
        (Reply::Ended(Notice::Sent(1)), true, true, 43..=53),
        (Reply::Ended(Notice::Sent(2)), true, true, 0..=0),
        (left, true, true, 64..=64),
    ] {
        // Whatever the distance between the numbers of two turns.
        for stride in 1..10 {
            let asked = (0..64).filter(|turn| {
                let world = World::new(1);
                (0..turn * stride).for_each(|_| _ = world.numbers.next());
                let (mut world, waits) = ends_a_turn_in(world);
                if subscribed {
                    world.entry.subscription = Subscription::by(MasterSet::one(0));
                }
                let end = &mut world.flight[0];
                end.call.line =
                    line.then_some(Line { term, stays: term, again: false, polls: false, sharded: false });
                world.ran.insert(end.command_id, reply.clone());
                world.now += STEP;
                world.arrives();
                world.entry.queue.get(waits).is_some_and(|request| !request.is_asleep())
            });
            let asked = asked.count();
            assert!(asks.contains(&asked), "{reply:?}, {line}, {subscribed}: {asked} of 64");
        }
    }
}

/// In this order: 1. The end is sent. 2. The machine sleeps, or the answer is read late.
#[test]
fn others_go_first_for_a_moment_however_late_the_answer_is() {
    let (mut world, waits) = ends_a_turn();
    world.now += Duration::from_secs(3600);
    world.arrives();
    world.poll(world.asker(waits));
    assert_eq!(world.askers[world.asker(waits)].nap, Some(world.now + HEAD_PATIENCE));
}

#[test]
fn what_asks_is_not_made_to_wait_for_others() {
    let (mut world, waits) = ends_a_turn();
    world.entry.queue.get_mut(waits).unwrap().phase = WaiterState::Asking;
    world.arrives();
    assert_eq!(world.entry.queue.get(waits).unwrap().phase, WaiterState::Asking);
}

#[test]
fn others_go_first_where_the_time_ends_while_a_hold_is_offered() {
    let (mut world, waiting) = one_holds(2);
    assert!(world.offers(true));
    world.poll(world.asker(waiting[0]));
    world.pass(LONGEST - MOMENT);
    assert!(world.offers(true));
    world.now += MOMENT;
    world.poll(world.asker(waiting[1]));
    assert_eq!(world.is_sent(), [Action::END]);
    world.now += STEP;
    world.arrives();
    world.poll(world.asker(waiting[1]));
    let asker = &world.askers[world.asker(waiting[1])];
    assert_eq!((asker.nap, asker.asking.is_some()), (Some(world.now + 2 * STEP), false));
}

/// A hold that has not passed on ends like any other.
#[test]
fn who_has_not_been_passed_a_hold_does_not_let_others_go_first() {
    let (mut world, waiting) = one_holds(1);
    world.pass(LONGEST);
    assert!(!world.offers(true));
    world.now += STEP;
    world.arrives();
    world.poll(world.asker(waiting[0]));
    assert!(world.askers[world.asker(waiting[0])].asking.is_some());
}

/// In each of these states the hold ends instead of passing on: when it would be offered, and when it would
/// be taken.
#[test]
fn what_may_not_be_as_it_was_granted_does_not_pass_on() {
    type Doubt = fn(&mut Hold, Instant);
    let doubts: [(&str, Doubt); 10] = [
        ("unsettled", |hold, _| hold.unsettle()),
        ("a command under way", |hold, now| {
            hold.begin(Action::Renew { lease: hold.timing.lease }, Sender::Background, 900, now);
        }),
        ("a failure", |hold, _| hold.failures = 1),
        ("an end that may have run", |hold, _| hold.release_tried = true),
        ("a release that waits", |hold, _| {
            let left = hold.new_grant(7);
            hold.pending_releases.get_or_insert_default().push(left)
        }),
        ("lacking on a master", |hold, _| hold.copies.set_lacking(MasterSet::one(1))),
        ("more levels there", |hold, _| hold.server_count = 2),
        ("nearly over", |hold, now| hold.certain_until = now),
        ("too long", |hold, now| hold.valid_until = now + LEASE + MOMENT),
        ("perhaps too long", |hold, now| hold.maybe_until = Some((now + LEASE + MOMENT).into())),
    ];
    for (what, doubt) in doubts {
        let (mut world, _) = one_holds(1);
        let now = world.now;
        doubt(&mut world.entry.holds[0], now);
        assert!(!world.offers(true), "{what}");
    }
    for (what, doubt) in doubts {
        let (mut world, waiting) = one_holds(1);
        assert!(world.offers(true));
        let now = world.now;
        doubt(&mut world.entry.holds[0], now);
        world.poll(world.asker(waiting[0]));
        assert!(world.guards.is_empty(), "{what}");
        assert!(world.entry.holds.iter().all(|hold| !hold.is_offered()), "{what}");
    }
    let (mut world, _) = one_holds(1);
    world.entry.holds[0].offer = Offer::default();
    assert!(!world.offers(true), "no grant");
}

/// Otherwise it could pass on for as long again whenever an owner nests as its guard is dropped, and other
/// processes would wait for ever.
#[test]
fn a_nested_grant_that_finds_no_other_level_left_begins_no_new_time() {
    let (mut world, owner) = (World::new(1), Owner::new());
    world.faults = false;
    world.passes_on_for(LONGEST);
    let first = world.asks(&owner, true);
    world.answers(first);
    world.now += LONGEST - MOMENT;
    let nested = world.asks(&owner.child(), true);
    world.release_by(0, true);
    world.answers(nested);
    assert_eq!(world.guards.len(), 1);
    assert!(!world.entry.holds[0].offer.is_in_time(LONGEST, world.now + MOMENT));
}

/// A fixed lease is not renewed, and its client ends it: such a hold does not pass on, nor is a hold given to
/// a request for a fixed lease.
#[test]
fn a_hold_with_a_fixed_lease_or_for_one_does_not_pass_on() {
    let (mut world, _) = one_holds(1);
    world.entry.holds[0].levels[0].watched = false;
    assert!(!world.offers(true));

    let (mut world, _) = one_holds(0);
    world.begin(
        Owner::new(),
        true,
        Options { lease: LEASE, fixed: true, limit: None, single_attempt: false },
    );
    assert!(!world.offers(true));
}

/// Only the level's time is over. The next level might be taken for as long.
#[test]
fn a_release_after_its_max_hold_does_not_pass_on() {
    let moment = Duration::from_millis(1);
    let is_offered = |passes: Duration| {
        let mut world = World::new(1);
        world.faults = false;
        world.passes_on_for(LONGEST);
        world.begin(
            Owner::new(),
            true,
            Options { lease: LEASE, fixed: false, limit: Some(moment), single_attempt: false },
        );
        world.answer(0);
        world.asks(&Owner::new(), true);
        world.now += passes;
        world.offers(true)
    };
    assert!(is_offered(Duration::ZERO));
    assert!(!is_offered(moment));
}

#[test]
fn what_asks_or_lets_others_go_first_is_offered_nothing() {
    let (mut world, waiting) = one_holds(1);
    let soon = world.now + STEP;
    world.entry.pause_request(waiting[0], soon);
    assert!(!world.offers(true));

    let (mut world, waiting) = one_holds(1);
    world.entry.queue.get_mut(waiting[0]).unwrap().phase = WaiterState::Asking;
    assert!(!world.offers(true));
}

/// Signs that the hold may be gone, or that nobody may take it.
#[test]
fn what_is_offered_ends_where_it_may_be_gone() {
    type Sign = fn(&mut World);
    let signs: [(&str, Sign); 3] = [
        ("a message", |world| {
            world.entry.subscription = Subscription::by(MasterSet::one(0));
            world.entry.message(0, world.now);
        }),
        ("a reconnect", |world| world.entry.doubt_all(world.now)),
        ("a close", |world| world.entry.withdraw_offer(world.now)),
    ];
    for (what, sign) in signs {
        let (mut world, waiting) = one_holds(1);
        assert!(world.offers(true));
        sign(&mut world);
        world.poll(world.asker(waiting[0]));
        assert!(world.guards.is_empty(), "{what}");
        world.ends_it();
    }
}

/// In this order: 1. `try_lock` asks while the lock is held. 2. The hold is offered, and is released by
/// force. 3. The `try_lock` is granted.
#[test]
fn what_is_offered_is_gone_where_another_field_is_granted() {
    let (mut world, waiting) = one_holds(1);
    world.begin(
        Owner::new(),
        true,
        Options { lease: LEASE, fixed: false, limit: None, single_attempt: true },
    );
    let tries = world.askers.last().unwrap().id;
    assert!(world.offers(true));
    world.master.key = None;
    world.answers(tries);
    assert_eq!(world.guards.len(), 1);
    world.poll(world.asker(waiting[0]));
    assert_eq!(world.guards.len(), 1, "two hold it");
    world.look();
}

/// In this order: 1. A request is granted, and is not polled. 2. Its field is released by force. 3. Another
/// request is granted, and its hold is offered. 4. The first one is polled.
#[test]
fn a_grant_that_was_taken_away_is_no_hold_beside_an_offer() {
    let (mut world, _) = one_holds(1);
    let mut older = world.bygone();
    let (id, owner) = (world.number(), Owner::new());
    let hold = &mut world.entry.holds[0];
    hold.id += 1_000;
    world.guards[0].grant = hold.new_grant(hold.levels[0].id());
    hold.levels[0].grant = world.guards[0].grant.clone();
    let (keys, field, lease) = (world.entry.keys.clone(), older.call.field.clone(), world.timing.lease);
    let mut asked = Hold::new(older.hold, keys, field, world.timing, lease, world.now);
    older = asked.ask(lease, None, older.hold, world.now);
    world.entry.holds.insert(0, asked);
    world.entry.enter_alone(Waiter::new(id, owner, true, world.now)).unwrap();
    assert!(world.offers(true));
    let (new, now) = (NewLevel::watched(5_000, world.timing.lease), world.at());
    let granted = world.entry.granted(&Grantee::Waiter(id), &older, &new, Spread::default(), now);
    assert_eq!(granted.err(), Some(NotHeld::Taken));
    assert!(world.entry.holds.iter().all(|hold| !hold.is_offered()), "it is unknown which hold stands");
}

/// A master's answer after the verdict shows that it lacks the hold.
#[test]
fn what_a_master_turns_out_to_lack_does_not_pass_on() {
    let (mut world, waiting) = one_holds(1);
    assert!(world.offers(true));
    let mut acquire = world.bygone();
    acquire.hold = world.entry.holds[0].id;
    world.entry.straggled(&acquire, 2, LateAnswer::Missing, world.now);
    world.poll(world.asker(waiting[0]));
    assert!(world.guards.is_empty());
}

/// Nobody would renew or end such a hold.
#[test]
fn nothing_passes_on_after_a_close() {
    let (mut world, _) = one_holds(1);
    world.entry.is_open = false;
    assert!(!world.offers(true));

    let (mut world, waiting) = one_holds(1);
    assert!(world.offers(true));
    world.entry.is_open = false;
    world.poll(world.asker(waiting[0]));
    assert!(world.guards.is_empty());
}

/// In this order: 1. A hold is offered. 2. It becomes uncertain whether the hold stands. 3. The background
/// looks before anybody asks.
#[test]
fn what_is_offered_ends_at_once_where_its_state_is_in_doubt() {
    let (mut world, _) = one_holds(1);
    assert!(world.offers(true));
    world.entry.holds[0].unsettle();
    assert!(!world.entry.holds[0].is_offered());
    world.ends_it();
}

/// The end of a whole turn notified three others. After each release by one of them, one fewer goes first.
#[test]
fn others_go_first_until_each_of_them_had_a_turn() {
    let (mut world, next) = ends_a_turn();
    world.entry.subscription = Subscription::by(MasterSet::one(0));
    let end = world.flight[0].command_id;
    world.ran.insert(end, Reply::Ended(Notice::Sent(4)));
    world.arrives();
    for due in [2_u32, 1, 0, 0] {
        world.entry.queue.get_mut(next).unwrap().phase = WaiterState::Asleep { until: world.now + LEASE };
        world.entry.subscription.as_mut().map(|subscription| subscription.take_missed());
        world.entry.message(0, world.now);
        let until = world.now + due * Duration::from_micros(500);
        let phase = if due > 0 { WaiterState::Pausing { until } } else { WaiterState::Waiting };
        assert_eq!(world.entry.queue.get(next).unwrap().phase, phase, "{due}");
        assert!(world.is_woken(next), "at least to set its timer");
        let _ = world.entry.queue.get_mut(next).unwrap().polled(&Waker::noop().clone(), world.now);
    }
}

/// A turn is whole if the hold passed on for as long as it may; this one did not pass on at all. A hold that
/// was never granted was no turn, and changes nothing.
#[test]
fn who_has_not_had_a_whole_turn_lets_nobody_go_first() {
    for (granted, due) in [(true, 0), (false, 3)] {
        let (mut world, _) = one_holds(1);
        world.entry.subscription = Subscription::by(MasterSet::one(0));
        world.entry.others_due = 3;
        world.pass(LONGEST);
        assert!(!world.offers(true));
        if !granted {
            world.entry.holds[0].offer = Offer::default();
        }
        let end = world.flight[0].command_id;
        world.ran.insert(end, Reply::Ended(Notice::Sent(4)));
        world.arrives();
        assert_eq!(world.entry.others_due, due);
    }
}

/// In this order: 1. This process is granted the lock. 2. The message of the release before it arrives, while
/// this process holds the lock, offers it, or ends it. 3. A request that paused now would not be offered the
/// lock, and its end would not wake it.
#[test]
fn a_message_after_a_grant_makes_nobody_pause() {
    for when in ["held", "offered", "ending"] {
        let (mut world, waiting) = one_holds(1);
        if when == "ending" {
            world.entry.is_open = false;
        }
        if when != "held" {
            assert_eq!(world.offers(true), when == "offered");
        }
        (world.entry.others_due, world.entry.subscription) = (3, Subscription::by(MasterSet::one(0)));
        world.entry.message(0, world.now);
        let phase = world.entry.queue.get(waiting[0]).map(|request| request.phase);
        assert_eq!(phase, Some(WaiterState::Waiting), "{when}");
    }
}

/// In this order: 1. The head pauses. 2. A hold of this process ends. 3. The pause ends, before the end is
/// answered or after.
#[test]
fn who_pauses_while_a_hold_ends_asks_when_both_are_over() {
    for is_answered_first in [true, false] {
        let (mut world, waiting) = one_holds(1);
        let next = world.asker(waiting[0]);
        world.entry.is_open = false;
        assert!(!world.offers(true));
        let until = world.now + 2 * STEP;
        world.entry.pause_request(waiting[0], until);
        world.poll(next);
        assert_eq!((world.askers[next].nap, world.askers[next].asking.is_some()), (Some(until), false));
        if is_answered_first {
            world.arrives();
            world.now = until;
        } else {
            world.now = until;
            world.poll(next);
            assert!(world.askers[next].asking.is_none(), "it would meet the hold of its own process");
            world.arrives();
            assert!(world.is_woken(waiting[0]), "by the answer");
        }
        world.poll(next);
        assert!(world.askers[next].asking.is_some());
    }
}
