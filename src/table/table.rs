//! All entries of one `Locks`, and when each has to be looked at.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::owner::{OwnerEnds, Position};
use crate::table::entry::{Effects, LockEntry};
use crate::table::hold::Hold;
use crate::table::terms::Terms;
use crate::wire::keys::Keys;

/// Changes only while locked, and never across an await.
#[derive(Debug)]
pub(crate) struct LockTable {
    entries: HashMap<Arc<str>, LockEntry>,
    /// The channels that are subscribed to, and the locks whose releases they report: as Redisson forms it, the channel of `x` is also that
    /// of `{x}`.
    channels: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// Each entry's next due time, in order.
    agenda: BTreeSet<(Instant, Arc<str>)>,
    numbers: u64,
    /// Renewal has ended, because the `Locks` was closed.
    pub(crate) closed: bool,
    /// Until when the watchdog sleeps; `None` while it is awake, and will look at the agenda before it sleeps.
    asleep: Option<Option<Instant>>,
    /// How long what is due may be left alone; `None`: for ever.
    takeover: Option<Duration>,
    terms: Terms,
    /// Since when something is due, and the background task has not looked. By the clock that no test pauses.
    unattended: Option<std::time::Instant>,
}

/// What a visit left to be done once the table is unlocked.
#[derive(Debug, Default)]
pub(crate) struct VisitEffects {
    pub(crate) out: Effects,
    /// Begin or end the subscription to the lock's releases.
    pub(crate) subscribe: Option<bool>,
    /// Something is due sooner than the watchdog knows.
    pub(crate) sooner: bool,
    /// The background task does not look at what is due.
    pub(crate) unattended: bool,
}

/// What a visitor left in an entry.
struct AfterVisit {
    out: Effects,
    subscribe: Option<bool>,
    before: Option<Instant>,
    due: Option<Instant>,
    empty: bool,
}

impl LockEntry {
    #[inline(never)]
    fn end_of_visit(&mut self, renews: bool, now: Instant) -> AfterVisit {
        self.orphans.tidy();
        let (subscribe, out, empty) =
            (self.subscription_change(), std::mem::take(&mut self.out), self.is_empty());
        let before = self.scheduled;
        // Only the look that it was due for moves it to a later time. 1. A grant makes a renewal due. 2. Its release is sent, which
        // is due to be given up later than that. 3. The background looks, and sleeps until then. 4. The next grant makes a renewal
        // due sooner than it knows. So each pair would wake it.
        let kept = before.filter(|before| *before > now && !empty);
        let due = self.due(renews).into_iter().chain(kept).min();
        self.scheduled = due;
        AfterVisit { out, subscribe, before, due, empty }
    }
}

impl LockTable {
    pub(crate) fn new(terms: Terms, takeover: Option<Duration>) -> LockTable {
        LockTable {
            entries: HashMap::new(),
            channels: HashMap::new(),
            agenda: BTreeSet::new(),
            numbers: 0,
            closed: false,
            asleep: None,
            terms,
            takeover,
            unattended: None,
        }
    }

    /// Whether the background task has not looked at what is due for too long. It is reported once.
    fn is_unattended(&mut self, now: Instant) -> bool {
        let Some(takeover) = self.takeover else { return false };
        if self.agenda.first().is_none_or(|(due, _)| *due > now) {
            self.unattended = None;
            return false;
        }
        let since = *self.unattended.get_or_insert_with(std::time::Instant::now);
        let late = since.elapsed() >= takeover;
        if late {
            self.unattended = None;
        }
        late
    }

    pub(crate) fn keys(&self) -> Vec<Arc<Keys>> {
        let mut keys: Vec<_> = self.entries.values().map(|entry| entry.keys.clone()).collect();
        // So that a simulation can be repeated.
        if cfg!(test) {
            keys.sort_by(|one, other| one.name.cmp(&other.name));
        }
        keys
    }

    /// The locks whose releases a channel reports.
    pub(crate) fn names_of(&self, channel: &str) -> Vec<Arc<str>> {
        self.channels.get(channel).cloned().unwrap_or_default()
    }

    /// The locks that are due. If there are none, the watchdog sleeps from now on, until the time given, or until it is nudged.
    pub(crate) fn due(&mut self, now: Instant) -> (Vec<Arc<Keys>>, Option<Instant>) {
        self.unattended = None;
        let due = self.agenda.iter().take_while(|(at, _)| *at <= now);
        let keys = due
            .filter_map(|(_, name)| self.entries.get(name))
            .map(|entry| entry.keys.clone())
            .collect::<Vec<_>>();
        let next = self.agenda.first().map(|(at, _)| *at);
        self.asleep = keys.is_empty().then_some(next);
        (keys, next)
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&LockEntry> {
        self.entries.get(name)
    }

    /// Whether nothing is left that only this process can end: no hold, and no release that is not confirmed.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a release or a settle is waiting to be confirmed.
    pub(crate) fn has_unconfirmed_ends(&self) -> bool {
        self.entries.values().flat_map(|entry| &entry.holds).any(Hold::owes)
    }

    /// Visits an entry, made where there is none, and keeps the agenda true.
    pub(crate) fn visit<R>(
        &mut self,
        keys: &Arc<Keys>,
        session: &Weak<dyn OwnerEnds>,
        now: Instant,
        visit: impl FnOnce(&mut LockEntry, &mut dyn FnMut() -> u64) -> R,
    ) -> (R, VisitEffects) {
        let renews = !self.closed;
        let (entry, numbers) = self.begin_visit(keys, session);
        let result = visit(entry, &mut || {
            *numbers += 1;
            *numbers
        });
        let after = entry.end_of_visit(renews, now);
        let mut effects = self.end_visit(keys, after);
        effects.unattended = self.is_unattended(now);
        (result, effects)
    }

    // What stands around all visits is one piece of code: a copy for each kind of visit would have to be fetched anew for
    // each of a call's visits, which costs more than what it does.
    #[inline(never)]
    fn begin_visit(&mut self, keys: &Arc<Keys>, session: &Weak<dyn OwnerEnds>) -> (&mut LockEntry, &mut u64) {
        let name = &keys.name;
        let entry = self.entries.entry(name.clone()).or_insert_with(|| {
            let place = Position { session: session.clone(), name: name.clone() };
            LockEntry::new(keys.clone(), place, self.terms)
        });
        (entry, &mut self.numbers)
    }

    #[inline(never)]
    fn end_visit(&mut self, keys: &Keys, after: AfterVisit) -> VisitEffects {
        if after.empty {
            self.entries.remove(&keys.name);
        }
        let subscribe = after.subscribe.filter(|on| self.subscribe(keys, *on));
        let sooner = self.schedule(&keys.name, after.before, after.due);
        VisitEffects { out: after.out, subscribe, sooner, unattended: false }
    }

    /// Notes who needs a channel. Returns whether the backend has to change its subscription: it ends only when the last lock goes.
    fn subscribe(&mut self, keys: &Keys, on: bool) -> bool {
        let listening = self.channels.entry(keys.channel.clone()).or_default();
        listening.retain(|name| *name != keys.name);
        if on {
            // Also where it is subscribed to already: each entry waits for a confirmation of its own.
            listening.push(keys.name.clone());
            return true;
        }
        let last = listening.is_empty();
        if last {
            self.channels.remove(&keys.channel);
        }
        last
    }

    /// Moves an entry in the agenda. Whether the watchdog, asleep, has to be woken.
    fn schedule(&mut self, name: &Arc<str>, before: Option<Instant>, due: Option<Instant>) -> bool {
        if before == due {
            return false;
        }
        if let Some(before) = before {
            self.agenda.remove(&(before, name.clone()));
        }
        let Some(due) = due else { return false };
        self.agenda.insert((due, name.clone()));
        // Only for what is sooner than it knows: a lock that is taken and released again costs it nothing.
        let sooner = self.asleep.is_some_and(|until| until.is_none_or(|until| due < until));
        if sooner {
            self.asleep = None;
        }
        sooner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Fate;
    use crate::base::Spread;
    use crate::base::{Drift, Lease, Moment};
    use crate::owner::Owner;
    use crate::table::admission::{AcquireParams, Admission, NewLevel};
    use crate::table::queue::Waiter;
    use crate::wire::Reply;

    #[derive(Debug)]
    struct Nobody;

    impl OwnerEnds for Nobody {
        fn owner_ended(&self, _: &Arc<str>, _: &Owner) {}
    }

    fn terms(now: Instant) -> Terms {
        let drift = Drift { factor: 0.0, slack: Duration::ZERO };
        let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
        let (patience, retry) = (Duration::from_secs(60), Duration::from_millis(500));
        Terms { masters: 1, lease, drift, patience, retry, epoch: now }
    }

    /// As Redisson forms them, two names have one channel.
    #[test]
    fn a_channel_is_subscribed_to_until_no_lock_of_it_needs_it() {
        let mut table = LockTable::new(terms(Instant::now()), None);
        let [one, other] = ["x", "{x}"].map(|name| Keys::new("", name));
        assert_eq!(one.channel, other.channel);
        assert!(table.subscribe(&one, true) && table.subscribe(&other, true));
        assert_eq!(table.names_of(&one.channel), [one.name.clone(), other.name.clone()]);
        assert!(!table.subscribe(&one, false));
        assert_eq!(table.names_of(&one.channel), vec![other.name.clone()]);
        assert!(table.subscribe(&other, false));
        assert!(table.names_of(&one.channel).is_empty());
    }

    #[test]
    fn what_is_due_is_unattended_once_the_background_has_not_looked_for_so_long() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let is_unattended = |due, takeover| {
            let mut table = LockTable::new(terms(now), takeover);
            table.agenda.insert((due, "stock".into()));
            table.is_unattended(now)
        };
        assert!(is_unattended(now, Some(Duration::ZERO)));
        assert!(!is_unattended(now, Some(3600 * second)) && !is_unattended(now, None));
        assert!(!is_unattended(now + second, Some(Duration::ZERO)), "it is not due");
    }

    /// Where a release is due to be given up later than its hold is due to be renewed.
    #[test]
    fn pairs_of_grants_and_releases_wake_the_background_once() {
        let now = Instant::now();
        let terms = terms(now);
        let lease = terms.lease;
        let (mut table, keys) = (LockTable::new(terms, None), Arc::new(Keys::new("", "stock")));
        let nobody: Weak<dyn OwnerEnds> = Weak::<Nobody>::new();
        table.due(now);
        let mut woken = 0;
        for round in 0..10 {
            let at = Moment { now: now + Duration::from_millis(round), slept: Duration::ZERO };
            let mut visit = |visit: &mut dyn FnMut(&mut LockEntry, &mut dyn FnMut() -> u64)| {
                let ((), effects) = table.visit(&keys, &nobody, at.now, visit);
                woken += u32::from(effects.sooner);
            };
            let (mut pending, mut id, level, owner) = (None, 0, 1_000_000, Owner::new());
            visit(&mut |entry, number| {
                id = number();
                entry.enter(Waiter::new(id, owner.clone(), owner.clone(), true, at.now)).unwrap();
                let ask = AcquireParams { once: false, lease, terms, uuid: "me", fence: None };
                let Admission::Ask(asked) = entry.admit(id, number(), ask, at) else {
                    panic!("nobody is before it")
                };
                pending = Some(asked);
            });
            let pending = pending.unwrap();
            visit(&mut |entry, _| {
                let fate = Arc::<Fate>::default();
                let new = NewLevel { level, lease, fixed: false, max_hold: None, fate, token: None };
                assert!(entry.granted(id, &pending, &new, Spread::default(), at).is_ok());
            });
            let mut release = None;
            visit(&mut |entry, number| release = Some(entry.leave(pending.hold, level, Some(number()), at)));
            let Some(crate::table::outcome::ReleaseStep::Send(release)) = release else {
                panic!("it is held")
            };
            assert!(table.has_unconfirmed_ends());
            // The background looks while the release is under way, and sleeps until what is due then.
            table.due(at.now);
            let answered = |entry: &mut LockEntry, _: &mut dyn FnMut() -> u64| {
                entry.conclude(&release, Ok(&Reply::Done), Spread::default(), at);
            };
            let ((), effects) = table.visit(&keys, &nobody, at.now, answered);
            woken += u32::from(effects.sooner);
        }
        assert_eq!(woken, 1);
    }
}
