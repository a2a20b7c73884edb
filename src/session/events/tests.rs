use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::backend::Backend;
use crate::backend::memory::InMemory;
use crate::base::{Lease, Spread};
use crate::config::Config;
use crate::memory::Memory;
use crate::owner::Owner;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::table::{AcquireParams, Admission, Refusal, Waiter};
use crate::wire::Reply;
use crate::wire::keys::Keys;

/// Each report reaches the locks that it is about, and no others.
#[tokio::test]
async fn what_a_master_reports_is_brought_to_the_entries_that_it_concerns() {
    let (store, relay) = (Memory::new(), Arc::<EventRelay>::default());
    let events = MasterEvents::of(relay.clone(), 0);
    // The store itself reports to nobody here.
    let backend = InMemory::join(&store, Duration::from_secs(1), Weak::<MasterEvents>::new());
    let (quorum, clock) = (Quorum::new(vec![backend as Arc<dyn Backend>], None), Clock::with(|| 0));
    let session = Session::new(Config::over(&store), quorum, "me".to_owned(), clock, vec![events.clone()]);
    relay.set(Arc::downgrade(&session)).unwrap();
    let [stock, other] = ["stock", "other"].map(|name| Arc::new(Keys::new("", name)));
    for keys in [&stock, &other] {
        session.visit(keys, |entry, at| {
            let (id, owner) = (session.numbers.next(), Owner::new());
            assert!(entry.enter_alone(Waiter::new(id, owner, false, at.now)).is_ok());
            drop(entry.polled(id, Waker::noop(), at.now));
            let lease = Lease::DEFAULT;
            let ask = AcquireParams::plain(session.numbers.next(), lease);
            let Admission::Ask(pending) = entry.admit(id, ask, at) else { panic!("it is its turn") };
            // Another process holds the lock, so the request sleeps.
            let (busy, until) = (Reply::Busy(Duration::from_secs(9), None), at.now + Duration::from_secs(9));
            entry.conclude(&pending, Ok(&busy), Spread::default(), at);
            entry.refused(id, Refusal::until(until));
        });
    }
    let is_asleep =
        |name| session.visit_known(name, |entry, _| entry.outer_front().is_some_and(Waiter::is_asleep));
    assert_eq!(["stock", "other"].map(is_asleep), [Some(true), Some(true)]);
    events.moved(&|key| key == "stock");
    assert_eq!(["stock", "other"].map(is_asleep), [Some(false), Some(true)]);
    let is_on = || {
        ["stock", "other"].map(|name| session.visit_known(name, |entry, _| entry.is_subscribed()).unwrap())
    };
    let ends: [fn(&dyn Events); 2] = [
        |events| events.not_subscribed("redisson_lock__channel:{stock}"),
        |events| events.subscriptions_lost(),
    ];
    for (end, left) in ends.into_iter().zip([true, false]) {
        for keys in [&stock, &other] {
            events.subscribed(keys.channel());
        }
        assert_eq!(is_on(), [true, true]);
        end(&*events);
        assert_eq!(is_on(), [false, left]);
    }
}
