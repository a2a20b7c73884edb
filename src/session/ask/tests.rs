use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::backend::Backend;
use crate::backend::memory::InMemory;
use crate::base::{Events, Lease, MasterSet, Spread};
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::memory::Memory;
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::events::{EventRelay, MasterEvents};
use crate::session::session::Stage;
use crate::wire::{Action, Call};

const TIMEOUT: Duration = Duration::from_millis(500);

fn session(stores: &[Memory]) -> Arc<Session> {
    let relay = Arc::<EventRelay>::default();
    let events: Vec<_> = (0..stores.len()).map(|master| MasterEvents::of(relay.clone(), master)).collect();
    let join = |(store, events): (&Memory, &Arc<dyn Events>)| {
        InMemory::join(store, TIMEOUT, Arc::downgrade(events)) as Arc<dyn Backend>
    };
    let quorum = Quorum::new(stores.iter().zip(&events).map(join).collect(), None);
    let (config, clock) = (Config::over(&stores[0]), Clock::with(|| 0));
    let session = Session::new(config, quorum, "me".to_owned(), clock, events);
    relay.set(Arc::downgrade(&session)).unwrap();
    session
}

/// Returns an acquire of a hold that its session doesn't know.
fn bygone(session: &Session) -> Pending {
    let (keys, action) =
        (Arc::new(Keys::new("", "stock")), Action::Acquire { count: 1, lease: Lease::DEFAULT });
    let call = Call {
        keys,
        field: "me:7".into(),
        action,
        fence: None,
        sharded: false,
        report_holder: false,
        from: None,
        end: Default::default(),
        line: None,
    };
    Pending {
        hold: 7,
        command_id: 7,
        call,
        masters: MasterSet::ALL,
        repeated: false,
        sent: session.moment().now,
    }
}

/// In this order: 1. The acquire waits for the third master. 2. All that was known of its hold is forgotten.
/// 3. The acquire runs there.
#[tokio::test(start_paused = true)]
async fn what_a_master_grants_late_is_ended_there_though_nothing_of_the_lock_is_left_here() {
    let stores = [(); 3].map(|()| Memory::new());
    let session = session(&stores);
    stores[2].faults().stall(TIMEOUT / 2);
    let (verdict, stragglers) = session.ask(&bygone(&session)).await;
    assert_eq!(verdict.result.unwrap(), Reply::Done);
    assert!(session.table(|table, _| table.is_empty()));
    drop(stragglers);
    sleep(4 * TIMEOUT).await;
    assert_eq!(stores.map(|store| store.visit(|store| store.size())), [1, 1, 0]);
}

/// A denied command says nothing about other commands, nor does the end of a hold, which nobody waits for.
#[tokio::test(start_paused = true)]
async fn the_commands_of_a_lock_fail_from_a_failure_until_an_answer() {
    let session = session(&[Memory::new()]);
    let pending = bygone(&session);
    let keys = &pending.call.keys;
    let end = Pending { call: Call { action: Action::END, ..pending.call.clone() }, ..pending.clone() };
    let failed = |pending: &Pending, kind| session.note_failure(pending, &Error::new(kind, "no"));
    let fails = || session.outage(keys, session.timing.patience).is_some();
    // From here on, the session has an entry of this lock.
    session.visit(keys, |entry, at| entry.straggled(&pending, 0, LateAnswer::Done, at.now));
    failed(&pending, ErrorKind::Denied);
    failed(&end, ErrorKind::Unavailable);
    assert!(!fails());
    failed(&pending, ErrorKind::Unavailable);
    assert!(fails());
    assert!(session.outage(&Keys::new("", "order"), Duration::MAX).is_none(), "another lock");
    let answered = |pending: &Pending| {
        session.visit(keys, |entry, at| {
            let _ = entry.conclude(pending, Ok(&Reply::Gone), Spread::default(), at);
            fails_there(entry)
        })
    };
    assert!(answered(&end));
    assert!(!answered(&pending));
}

fn fails_there(entry: &LockEntry) -> bool {
    entry.outage.last(Duration::MAX, tokio::time::Instant::now()).is_some()
}

#[tokio::test(start_paused = true)]
async fn a_session_is_open_until_it_is_closed() {
    let session = session(&[Memory::new()]);
    session.check_open().unwrap();
    let stages = [Stage::Closing, Stage::Closed, Stage::RuntimeEnded];
    for (stage, seen) in stages.into_iter().zip(stages).chain([(Stage::Open, Stage::RuntimeEnded)]) {
        session.advance(stage);
        assert_eq!(session.stage(), seen, "never backward");
        assert_eq!(session.check_open().unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// Competing requests ask again at different times, and less and less often. Once the pauses no longer grow,
/// they are still random.
#[test]
fn pauses_are_random_and_grow_up_to_a_second() {
    let session = session(&[Memory::new()]);
    let millis = Duration::from_millis;
    let bounds = [
        (0, 50..=250),
        (1, 100..=500),
        (2, 200..=1_000),
        (3, 400..=1_000),
        (4, 500..=1_000),
        (40, 500..=1_000),
    ];
    for (pauses, bounds) in bounds {
        let bounds = millis(*bounds.start())..=millis(*bounds.end());
        let drawn: Vec<_> = (0..50).map(|_| session.pause(pauses)).collect();
        assert!(drawn.iter().all(|pause| bounds.contains(pause)), "{pauses}: {drawn:?}");
        assert!(drawn.iter().collect::<BTreeSet<_>>().len() > 10, "{pauses}: {drawn:?}");
    }
}
