//! The line that the server keeps: which requests stand in it, what a hint does, and how a request leaves it.

use super::*;
use crate::holder::Holder;
use crate::table::queue::HEAD_PATIENCE;
use crate::wire::{Hint, Line, Notice};

const TERM: Duration = Duration::from_secs(1);

impl World {
    /// A world whose locks have a line.
    fn fair() -> World {
        let mut world = World::new(1);
        let term = Lease::new("term", TERM, DRIFT).unwrap();
        world.timing.line = Some(Line { term, stays: term, again: false, polls: false, sharded: false });
        world.entry.timing = Arc::new(world.timing);
        world.entry.contended = true;
        world
    }

    fn sent(&self, id: u64) -> &Pending {
        self.askers[self.asker(id)].asking.as_ref().expect("it asks")
    }

    /// Whether the request asks by the field of this number.
    fn is_of(&self, id: u64, number: u64) -> bool {
        *self.sent(id).call.field == *format!("me:{number}")
    }

    /// The request is answered that it is in the line. Returns the number of its field.
    fn waits_in_line(&mut self, id: u64) -> u64 {
        let at = self.asker(id);
        let pending = self.askers[at].asking.take().expect("it asks");
        let holder = Box::new(Holder::new("another:1", 1, LEASE));
        let (reply, until) = (Reply::InLine(LEASE, holder, 1), self.now + LEASE);
        self.entry.conclude(&pending, Ok(&reply), Spread::default(), self.at());
        self.entry.refused(id, Refusal::until(until));
        self.poll(at);
        pending.call.field.rsplit_once(':').and_then(|(_, number)| number.parse().ok()).expect("a number")
    }

    /// The request is answered that another hold has the lock, without a mention of the line. Returns the
    /// number of its field.
    fn is_told_busy(&mut self, id: u64) -> u64 {
        let at = self.asker(id);
        let pending = self.askers[at].asking.take().expect("it asks");
        let until = self.now + LEASE;
        self.entry.conclude(&pending, Ok(&Reply::busy(LEASE)), Spread::default(), self.at());
        self.entry.refused(id, Refusal::until(until));
        self.poll(at);
        pending.hold
    }

    /// From now on, no hints reach this process.
    fn refuses_hints(&mut self) {
        self.timing.line = self.timing.line.map(|line| Line { polls: true, ..line });
    }

    /// The request is answered that it is in the line, and that `holder` has the lock. Returns how long it
    /// pauses before it asks again by itself.
    fn polls_after(&mut self, id: u64, holder: &str) -> Option<Duration> {
        let at = self.asker(id);
        let pending = self.askers[at].asking.take().expect("it asks");
        let reply = Reply::InLine(LEASE, Box::new(Holder::new(holder, 1, LEASE)), 1);
        self.entry.conclude(&pending, Ok(&reply), Spread::default(), self.at());
        let pause = self.entry.polls_after(&pending, &reply);
        let until = self.now + pause.unwrap_or(LEASE);
        self.entry.refused(id, Refusal::until(until));
        self.poll(at);
        pause
    }

    fn hint(&mut self, number: u64, wait: Option<Duration>) {
        self.entry.hinted(Hint { number, wait, key: "stock" }, self.now);
        self.wake();
    }

    /// Returns what the background sends now.
    fn background(&mut self) -> Vec<Pending> {
        self.check();
        std::mem::take(&mut self.flight)
    }
}

/// Otherwise the lock would be handed to a field that no process knows any more, and be idle for a term.
#[test]
fn what_may_have_entered_the_line_is_ended_for_as_long_as_it_may_stand_there() {
    let mut world = World::fair();
    let stays = Lease::new("stays", 2 * LEASE, DRIFT).unwrap();
    world.timing.line = world.timing.line.map(|line| Line { stays, ..line });
    world.entry.timing = Arc::new(world.timing);
    let id = world.asks(&Owner::new(), true);
    let pending = world.askers.remove(world.asker(id)).asking.expect("it asks");
    world.entry.conclude(&pending, Err(Outcome::Unknown), Spread::default(), world.at());
    let _gone = world.entry.leave_queue(id, world.now);
    for failed in 0..60 {
        for end in world.background() {
            world.entry.conclude(&end, Err(Outcome::Unknown), Spread::default(), world.at());
        }
        assert_eq!(world.entry.holds.len() + world.entry.orphans.ids().count(), 1, "{failed}");
        world.now += Duration::from_secs(1);
    }
}

#[test]
fn what_stands_in_the_line_is_asked_for_again_by_its_field() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let field = world.sent(id).call.field.clone();
    assert_eq!(world.sent(id).call.line.map(|line| line.again), Some(false));
    let number = world.waits_in_line(id);
    assert!(!world.is_woken(id) && world.background().is_empty());
    world.hint(number, None);
    assert!(world.is_woken(id));
    world.poll(world.asker(id));
    assert_eq!(world.sent(id).call.field, field);
    assert_eq!(world.sent(id).call.line.map(|line| line.again), Some(true));
    world.answers(id);
    assert_eq!((world.granted, world.entry.is_in_line()), (1, false));
}

/// It keeps nobody of its own process waiting. Otherwise a process that is busy for a moment would lose its place
/// whenever its entry is looked at for another reason.
#[test]
fn a_request_that_waits_alone_keeps_its_place_though_it_is_polled_late() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let field = world.sent(id).call.field.clone();
    let number = world.waits_in_line(id);
    world.hint(number, None);
    world.now += HEAD_PATIENCE * 2;
    let sent = world.entry.check(world.at(), MasterSet::NONE, &world.numbers);
    assert!(sent.is_empty() && world.entry.is_in_line());
    world.poll(world.asker(id));
    assert_eq!(world.sent(id).call.field, field);
}

/// No process can send it a hint, so its field says that it polls, and the lock is handed to it all the same.
/// It asks again after an eighth of the time for which the present holder has had the lock, and the lock may
/// be idle until then.
#[test]
fn a_process_that_gets_no_hints_polls_in_the_line() {
    let mut world = World::fair();
    world.refuses_hints();
    let id = world.asks(&Owner::new(), true);
    let field = world.sent(id).call.field.clone();
    assert_eq!(*field, *format!("me:-{}", world.sent(id).hold));
    for (waited, pause) in [(0, 2), (80, 10), (3_920, 250)] {
        world.now += Duration::from_millis(waited);
        world.poll(world.asker(id));
        assert_eq!(world.sent(id).call.field, field);
        assert_eq!(world.polls_after(id, "another:1"), Some(Duration::from_millis(pause)));
    }
    world.now += Duration::from_secs(1);
    world.poll(world.asker(id));
    assert_eq!(world.polls_after(id, "another:2"), Some(Duration::from_millis(2)), "it changed hands");
}

/// The holder may not publish, just as it may not subscribe: no hint would be sent at the end of that hold.
#[test]
fn who_is_refused_by_one_that_polls_polls_too() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    for (holder, pause) in [("another:-1", Some(2)), ("another:-1", Some(250)), ("another:1", None)] {
        assert_eq!(world.polls_after(id, holder), pause.map(Duration::from_millis));
        world.now += Duration::from_secs(80);
        world.poll(world.asker(id));
    }
}

/// If it stood in the line as a process that gets hints, it would be passed over.
#[test]
fn who_gets_no_hints_any_more_enters_the_line_as_one_that_polls() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.refuses_hints();
    world.hint(number, None);
    world.poll(world.asker(id));
    assert_eq!(*world.sent(id).call.field, *format!("me:-{}", world.sent(id).hold));
    let [end] = &world.background()[..] else { panic!("one end") };
    assert_eq!((end.hold, end.call.action), (number, Action::END));
}

/// Requests that never wait pay nothing for the line.
#[test]
fn who_was_not_refused_says_nothing_of_the_line() {
    let mut world = World::fair();
    let says = |world: &World, id| world.sent(id).call.line.map(|line| line.again);
    let ends = |world: &mut World| {
        world.release_by(0, true);
        world.arrives_by(0, Net::Answers);
    };
    let lock = |world: &mut World, expected| {
        let id = world.asks(&Owner::new(), true);
        assert_eq!(says(world, id), expected);
        world.answers(id);
        ends(world);
    };
    // A request of this process was refused before; the next one enters the line at once, and is granted the
    // lock.
    lock(&mut world, Some(false));
    lock(&mut world, None);
    // Refused without a line, a request enters with its next attempt. So does the next request, even if
    // nothing is left of the entry.
    world.is_taken();
    let id = world.asks(&Owner::new(), true);
    assert_eq!(says(&world, id), None);
    world.answers(id);
    world.confirm();
    world.poll(world.asker(id));
    assert_eq!(says(&world, id), Some(false));
    let number = world.waits_in_line(id);
    world.master.key = None;
    world.hint(number, None);
    world.poll(world.asker(id));
    world.answers(id);
    ends(&mut world);
    assert!(world.entry.is_empty());
    world.entry.reset();
    lock(&mut world, Some(false));
}

/// Two requests of this process wait for another process. In this order: 1. The first one takes the lock,
/// which is free. 2. It is released, and another process gets it. 3. The second one, which no confirmation of
/// a subscription wakes, would wait outside the line.
#[test]
fn who_waits_behind_one_that_took_a_free_lock_enters_the_line() {
    let mut world = World::fair();
    world.entry.contended = false;
    world.is_taken();
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    world.answers(first);
    world.confirm();
    world.master.key = None;
    world.poll(world.asker(first));
    world.answers(first);
    assert!(!world.entry.contended);
    world.release_by(0, true);
    world.arrives_by(0, Net::Answers);
    world.poll(world.asker(second));
    assert_eq!(world.sent(second).call.line.map(|line| line.again), Some(false));
}

/// A hint on another connection may overtake the answer.
#[test]
fn a_hint_that_comes_while_its_request_asks_is_one_more_ask() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.sent(id).hold;
    world.hint(number, None);
    world.waits_in_line(id);
    assert_eq!(world.sent(id).call.line.map(|line| line.again), Some(true));
}

#[test]
fn who_is_the_first_of_the_line_asks_when_the_lock_may_be_free() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hint(number, Some(TERM));
    assert!(world.is_woken(id));
    world.poll(world.asker(id));
    let nap = world.askers[world.asker(id)].nap.expect("it sleeps");
    assert!((world.now + TERM..world.now + 2 * TERM).contains(&nap));
    world.now = nap;
    world.poll(world.asker(id));
    assert!(world.is_of(id, number));
}

/// The answer that it gets may be older than the hint.
#[test]
fn who_is_told_when_to_ask_while_it_asks_asks_once_more() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hint(number, None);
    world.poll(world.asker(id));
    world.hint(number, Some(TERM));
    world.waits_in_line(id);
    assert!(world.is_of(id, number));
}

#[test]
fn a_request_that_goes_leaves_the_line_by_the_end_of_its_field() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.go(world.asker(id));
    let [end] = &world.background()[..] else { panic!("one end") };
    assert_eq!((end.hold, end.call.action, end.call.line.is_some()), (number, Action::END, true));
    world.entry.conclude(end, Ok(&Reply::Gone), Spread::default(), world.at());
    assert!(world.entry.is_empty());
}

/// A process has one place in the line, no matter which of its requests is the head.
#[test]
fn the_next_request_of_a_process_has_the_place_of_the_one_before() {
    let mut world = World::fair();
    let [first, second] = [Owner::new(), Owner::new()].map(|owner| world.asks(&owner, true));
    let number = world.waits_in_line(first);
    world.go(world.asker(first));
    assert!(world.background().is_empty());
    world.poll(world.asker(second));
    assert!(world.is_of(second, number));
    // A third request, which does not wait, has a field of its own, and does not enter the line.
    world.waits_in_line(second);
    let owner = Owner::new();
    let lease = world.timing.lease.duration();
    world.begin(owner, true, Options { lease, fixed: false, limit: None, single_attempt: true });
    let tries = world.askers.last().and_then(|asker| asker.asking.as_ref()).expect("it asks");
    assert!(*tries.call.field != *format!("me:{number}") && tries.call.line.is_none());
}

/// In this order: 1. A request waits in the line. 2. Another request of this process gets the lock by a
/// single attempt. 3. That hold's key is deleted. 4. The lock is handed to the first in the line.
#[test]
fn a_hint_that_shows_that_a_hold_is_gone_makes_its_process_ask_for_it() {
    let mut world = World::fair();
    let waits = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(waits);
    let lease = world.timing.lease.duration();
    world.begin(Owner::new(), true, Options { lease, fixed: true, limit: None, single_attempt: true });
    world.answers(world.askers.last().expect("it asks").id);
    assert!(world.granted == 1 && world.background().is_empty());
    world.hint(number, None);
    let [asks] = &world.background()[..] else { panic!("it asks for the hold") };
    assert!(matches!(asks.call.action, Action::Settle { count: 1, .. }), "{asks:?}");
}

/// Another process may have the field by now, as a claim.
#[test]
fn a_hint_for_what_nobody_here_knows_ends_nothing() {
    let mut world = World::fair();
    for wait in [Some(TERM), None] {
        world.hint(7, wait);
        assert!(world.background().is_empty() && world.entry.is_empty());
    }
}

/// A field that nobody waits for any more may be the holder for a time, and nobody else would be notified of
/// that.
#[test]
fn whoever_waits_asks_after_a_hint_for_what_nobody_here_knows() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hint(number + 1, Some(TERM));
    assert!(world.askers[world.asker(id)].asking.is_none(), "it does not ask before that time");
    world.now += TERM + Duration::from_millis(20);
    world.poll(world.asker(id));
    assert!(world.is_of(id, number));
    world.waits_in_line(id);
    world.hint(number + 1, None);
    world.poll(world.asker(id));
    assert!(world.is_of(id, number));
}

/// In this order: 1. A request asks, and is dropped. 2. Its end runs, and then its acquire, which enters the
/// line. 3. The lock is handed to that field, and the hint overtakes the answer to the end.
#[test]
fn what_is_handed_over_after_its_end_is_ended_once_more() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.go(world.asker(id));
    let [end] = &world.background()[..] else { panic!("one end") };
    world.hint(number, None);
    world.entry.conclude(end, Ok(&Reply::Gone), Spread::default(), world.at());
    let [again] = &world.background()[..] else { panic!("one more end") };
    assert_eq!((again.hold, again.call.action), (number, Action::END));
    world.entry.conclude(again, Ok(&Reply::Done), Spread::default(), world.at());
    world.background();
    assert!(world.entry.is_empty());
}

/// The command may have run, or may still run, so its field is never asked for again.
#[test]
fn an_ask_in_the_line_without_an_answer_leaves_it() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hint(number, None);
    world.poll(world.asker(id));
    world.answer_by(world.asker(id), Net::CommandLost);
    let [end] = &world.background()[..] else { panic!("one end") };
    assert_eq!((&*end.call.field, end.call.action), (&*format!("me:{number}"), Action::END));
    world.entry.conclude(end, Ok(&Reply::Gone), Spread::default(), world.at());
    world.now += TERM;
    world.poll(world.asker(id));
    assert!(!world.is_of(id, number));
}

#[test]
fn an_ask_in_the_line_that_was_not_sent_keeps_its_place() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hint(number, None);
    world.poll(world.asker(id));
    world.answer_by(world.asker(id), Net::Refused);
    assert!(world.background().is_empty() && world.entry.is_in_line());
    world.now += TERM;
    world.poll(world.asker(id));
    assert!(world.is_of(id, number));
}

#[test]
fn a_close_leaves_the_line() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.entry.is_open = false;
    world.entry.withdraw_offer(world.now);
    let [end] = &world.background()[..] else { panic!("one end") };
    assert_eq!((end.hold, end.call.action), (number, Action::END));
}

/// Otherwise scripts would pass the field over each time, and the process would never have its turn.
#[test]
fn who_may_not_get_hints_any_more_leaves_the_line() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    let number = world.waits_in_line(id);
    world.hints_refused = true;
    world.entry.hints_change(world.now);
    world.wake();
    world.poll(world.asker(id));
    assert!(!world.is_of(id, number), "by a fresh field");
    let [end] = &world.background()[..] else { panic!("one end") };
    assert_eq!((end.hold, end.call.action), (number, Action::END));
}

/// The answer is to an attempt without a line.
#[test]
fn who_asks_while_hints_begin_asks_once_more_before_it_sleeps() {
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    world.entry.hints_change(world.now);
    world.is_told_busy(id);
    assert!(world.askers[world.asker(id)].asking.is_some());
}

/// A release leaves the lock to clients that do not know the line. Otherwise the next request of this process
/// would always be there before them.
#[test]
fn a_process_that_left_the_lock_to_others_asks_for_it_after_them() {
    const TIME: Duration = Duration::from_millis(1);
    let mut world = World::fair();
    let id = world.asks(&Owner::new(), true);
    world.answers(id);
    world.release_by(0, true);
    let command_id = world.flight[0].command_id;
    world.ran.insert(command_id, Reply::Ended(Notice::LeftToOthers(TIME)));
    world.arrives();
    let until = world.now + 4 * TIME;
    let id = world.asks(&Owner::new(), true);
    assert!(world.askers[world.asker(id)].asking.is_none());
    assert_eq!(world.askers[world.asker(id)].nap, Some(until));
    // During that time, messages wake no request.
    world.entry.message(0, world.now);
    world.poll(world.asker(id));
    assert!(world.askers[world.asker(id)].asking.is_none());
    world.now = until;
    world.poll(world.asker(id));
    assert!(world.askers[world.asker(id)].asking.is_some());
}

/// A hint tells the first in the line when to ask.
#[test]
fn who_stands_in_the_line_sleeps_on_where_the_lock_is_left_to_others() {
    const TIME: Duration = Duration::from_millis(1);
    for stands in [true, false] {
        let mut world = World::fair();
        let id = world.asks(&Owner::new(), true);
        let at = world.asker(id);
        let number = if stands { world.waits_in_line(id) } else { world.is_told_busy(id) };
        world.entry.subscription = Subscription::by(MasterSet::one(0));
        world.entry.left_to_others(0, world.now);
        world.wake();
        assert_eq!(world.is_woken(id), !stands);
        if stands {
            world.hint(number, Some(TIME));
            world.poll(at);
            assert_eq!(world.askers[at].nap, Some(world.now + 2 * TIME));
        }
    }
}
