//! A master that refuses commands for some locks, and which requests that concerns.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backend::memory::InMemory;
use crate::backend::{Backend, BoxFuture};
use crate::base::{Failure, Outcome};
use crate::error::{Error, ErrorKind};
use crate::quorum::Quorum;
use crate::session::clock::Clock;
use crate::session::{EventRelay, MasterEvents, Session};
use crate::wire::{Action, Call, Reply};
use crate::{Locks, Memory, Owner};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// How long a request keeps trying.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store that refuses all calls for the lock `refused`, refuses the renewals and settles of the lock `kept`, and counts the refused
/// acquires.
#[derive(Debug)]
struct Refusing(Arc<InMemory>, Arc<AtomicUsize>);

impl Refusing {
    fn refused(&self, call: &Call) -> Result<(), Failure> {
        let keeps = matches!(call.action, Action::Renew { .. } | Action::Settle { .. });
        if call.key() != "refused" && !(call.key() == "kept" && keeps) {
            return Ok(());
        }
        if call.action.creates() {
            self.1.fetch_add(1, SeqCst);
        }
        let message = format!("the server refuses `{}` on key `{}`", call.name(), call.key());
        Err(Failure { outcome: Outcome::Unknown, error: Error::new(ErrorKind::Unavailable, message) })
    }
}

impl Backend for Refusing {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<Result<Reply, Failure>> {
        match self.refused(&call) {
            Ok(()) => self.0.clone().run(call),
            Err(failure) => Box::pin(async { Err(failure) }),
        }
    }

    fn run_all(self: Arc<Self>, calls: Vec<Call>) -> BoxFuture<Vec<Result<Reply, Failure>>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for call in calls {
                answers.push(self.clone().run(call).await);
            }
            answers
        })
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.0.is_younger_than(age)
    }

    fn subscribe(&self, channel: &str) {
        self.0.subscribe(channel);
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.unsubscribe(channel);
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {
        self.0.close();
    }
}

/// Makes a client of that store. Returns it with the number of acquires that were refused.
fn refusing(memory: &Memory) -> (Locks, Arc<AtomicUsize>) {
    let config = Locks::builder(memory).unavailable_after(PATIENCE).check().unwrap();
    let (relay, refused) = (Arc::new(EventRelay::default()), Arc::default());
    let events = MasterEvents::of(relay.clone(), 0);
    let store = InMemory::join(memory, config.node_timeout, Arc::downgrade(&events));
    let quorum = Quorum::new(vec![Arc::new(Refusing(store, Arc::clone(&refused)))], None);
    let session = Session::new(config, quorum, "ours".to_owned(), Clock::new(), vec![events]);
    (Locks::over(session, &relay), refused)
}

/// In this order: 1. A lock is held, and waited for. 2. The master refuses another lock. 3. The time of the
/// waiting request is over.
#[tokio::test(start_paused = true)]
async fn a_request_is_not_told_of_what_is_refused_to_another_lock() {
    let memory = Memory::new();
    let (ours, theirs) = (refusing(&memory).0, Locks::builder(&memory).connect().await.unwrap());
    let held = theirs.mutex("held").lock().await.unwrap();
    let patient = tokio::spawn(ours.mutex("held").lock().owner(&Owner::new()));
    let limited = tokio::spawn(ours.mutex("held").lock().within(SECOND).owner(&Owner::new()));
    sleep(SECOND - MILLISECOND).await;
    let refused = ours.mutex("refused").try_lock().await.unwrap_err();
    assert_eq!((refused.kind(), refused.lock()), (ErrorKind::Unavailable, Some("refused")));
    let error = limited.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Timeout, Some("held")), "{error}");
    // This goes on for longer than any request keeps trying.
    let began = Instant::now();
    while began.elapsed() < 2 * PATIENCE {
        ours.mutex("refused").try_lock().await.unwrap_err();
        sleep(SECOND / 10).await;
    }
    held.release().await.unwrap();
    patient.await.unwrap().unwrap().release().await.unwrap();
}

/// The error is the refusal of an acquire, whatever was refused last: the ends of what the requests leave are
/// sent, and refused, again and again.
#[tokio::test(start_paused = true)]
async fn all_requests_of_a_line_end_with_the_refusal_of_their_head() {
    let (ours, refused) = refusing(&Memory::new());
    let began = Instant::now();
    let asking = (0..100).map(|_| tokio::spawn(ours.mutex("refused").lock().owner(&Owner::new())));
    let asking: Vec<_> = asking.collect();
    let limited = ours.mutex("refused").lock().within(5 * SECOND).owner(&Owner::new()).await.unwrap_err();
    assert_eq!(limited.kind(), ErrorKind::Unavailable, "nobody held the lock: {limited}");
    for request in asking {
        let error = request.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some("refused")));
        assert!(error.to_string().contains("`acquire`"), "{error}");
    }
    assert!((PATIENCE..2 * PATIENCE).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(refused.load(SeqCst) < 60, "each request asked for itself: {refused:?}");
}

/// In this order: 1. A lock is held. 2. A command of its hold fails. 3. Another owner of the process makes a
/// single attempt, and a third one makes one meanwhile. 4. A fourth one waits until its time is over.
#[tokio::test(start_paused = true)]
async fn a_request_behind_a_hold_of_this_process_is_not_told_what_that_one_is_refused() {
    let ours = refusing(&Memory::new()).0;
    let kept = || ours.mutex("kept");
    let held = kept().lock().await.unwrap();
    let refused = async || assert_eq!(held.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    refused().await;
    let tries = || kept().try_lock().owner(&Owner::new()).into_future();
    let (asked, behind) = tokio::join!(tries(), tries());
    assert!(asked.unwrap().is_none() && behind.unwrap().is_none(), "who holds it is known");
    let waits = kept().lock().within(SECOND).owner(&Owner::new()).into_future();
    let (error, ()) = tokio::join!(waits, async {
        sleep(SECOND - MILLISECOND).await;
        refused().await;
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout, "who holds it is known");
    held.release().await.unwrap();
}
