//! Masters that answer at once, later, or not at all.

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::*;
use crate::base::{Lease, Mutex, Outcome, lock};
use crate::error::{Error, ErrorKind};

/// A master that grants everything, and records what it is asked.
#[derive(Debug, Default)]
struct Fake {
    young: bool,
    cut_off: bool,
    away: bool,
    portable: bool,
    fails: bool,
    /// Whether calls are under way.
    busy: bool,
    /// The answer waits for this.
    late: Mutex<Option<oneshot::Receiver<()>>>,
    asked: Mutex<Vec<&'static str>>,
}

impl Fake {
    fn note(&self, what: &'static str) {
        lock(&self.asked).push(what);
    }
}

impl Backend for Fake {
    fn run(self: Arc<Self>, call: Call) -> BoxFuture<CallResult> {
        self.note(call.name());
        let late = lock(&self.late).take();
        Box::pin(async move {
            if let Some(late) = late {
                late.await.expect("its answer comes");
            }
            let error = || Error::new(ErrorKind::Unavailable, "away");
            if self.fails {
                Err(Failure { outcome: Outcome::NotRun, error: error() })
            } else {
                Ok(Reply::Done)
            }
        })
    }

    fn run_all(self: Arc<Self>, _: Vec<Call>) -> BoxFuture<Vec<CallResult>> {
        Box::pin(std::future::pending())
    }

    fn is_unused(&self, _: &Keys) -> bool {
        !self.busy
    }

    fn begin(self: Arc<Self>, _: &Call) -> Option<BoxFuture<CallResult>> {
        self.note("begin");
        if self.busy { None } else { Some(Box::pin(ready(Ok(Reply::Ended(crate::wire::Notice::Sent(0)))))) }
    }

    fn run_last(&self, calls: Vec<Call>) {
        calls.iter().for_each(|_| self.note("last"));
    }

    fn is_younger_than(&self, _: Duration) -> bool {
        self.young
    }

    fn is_away(&self) -> bool {
        self.away
    }

    fn is_connected(&self, _: &Keys) -> bool {
        !self.cut_off
    }

    fn subscribe(&self, _: &str) {
        self.note("subscribe");
    }

    fn unsubscribe(&self, _: &str) {
        self.note("unsubscribe");
    }

    fn doubt_messages(&self) {
        self.note("doubt");
    }

    fn is_portable(&self) -> bool {
        self.portable
    }

    fn close(&self) {
        self.note("close");
    }
}

fn quorum<const N: usize>(masters: [Fake; N]) -> (Quorum, [Arc<Fake>; N]) {
    let masters = masters.map(Arc::new);
    let all = masters.iter().map(|master| master.clone() as Arc<dyn Backend>).collect();
    (Quorum::new(all, Some(Duration::from_secs(60))), masters)
}

fn command(action: Action) -> Pending {
    let call = Call {
        keys: Arc::new(Keys::new("", "stock")),
        field: "me:1".into(),
        action,
        fence: None,
        sharded: false,
        report_holder: false,
        from: None,
        end: Default::default(),
        line: None,
    };
    Pending { hold: 1, command_id: 1, call, masters: MasterSet::ALL, repeated: false, sent: Instant::now() }
}

fn acquire() -> Pending {
    command(Action::Acquire { count: 1, lease: Lease::DEFAULT })
}

#[test]
fn who_is_away_is_named_by_its_place() {
    let (quorum, _) = quorum([Fake::default(), Fake { away: true, ..Fake::default() }, Fake::default()]);
    assert_eq!((quorum.size(), quorum.away()), (3, MasterSet::one(1)));
}

#[test]
fn holds_are_known_to_stand_while_a_majority_is_connected_to() {
    let masters = |cut_off: &[bool]| {
        let masters = cut_off.iter().map(|cut_off| Fake { cut_off: *cut_off, ..Fake::default() });
        let masters = masters.map(|master| Arc::new(master) as Arc<dyn Backend>).collect();
        Quorum::new(masters, None).is_connected(&Keys::new("", "stock"))
    };
    let all = [
        (&[false][..], true),
        (&[true], false),
        (&[false, true], false),
        (&[false, false, true], true),
        (&[true, false, true], false),
        (&[true, true, false, false], false),
    ];
    for (cut_off, connected) in all {
        assert_eq!(masters(cut_off), connected, "{cut_off:?}");
    }
}

#[test]
fn each_master_is_notified_of_subscriptions_of_doubts_and_of_the_end() {
    let (quorum, masters) = quorum([(); 3].map(|()| Fake::default()));
    quorum.subscribe("channel", true);
    quorum.doubt_messages();
    quorum.subscribe("channel", false);
    quorum.close();
    for master in masters {
        assert_eq!(*lock(&master.asked), ["subscribe", "doubt", "unsubscribe", "close"]);
    }
}

/// The counters of several masters that each begin at their own time would rarely agree. A store in this
/// process has no server's time.
#[test]
fn tokens_begin_at_the_time_of_a_server_that_is_the_only_master() {
    let master = |portable| Fake { portable, ..Fake::default() };
    let facts = |quorum: Quorum| (quorum.has_time(), quorum.is_portable());
    assert_eq!(facts(quorum([false].map(master)).0), (true, false));
    assert_eq!(facts(quorum([true].map(master)).0), (false, true));
    assert_eq!(facts(quorum([false; 3].map(master)).0), (false, false));
    assert_eq!(facts(quorum([true; 3].map(master)).0), (false, true));
    assert_eq!(facts(quorum([true, false, true].map(master)).0), (false, false));
}

/// A young master may have forgotten what it granted to another client. A hold that exists may be repaired
/// there.
#[tokio::test]
async fn a_young_master_is_asked_for_no_fresh_grant_and_for_all_else() {
    let (quorum, masters) = quorum([false, true, false].map(|young| Fake { young, ..Fake::default() }));
    let (verdict, _) = quorum.ask(&acquire()).await;
    assert_eq!((verdict.result.unwrap(), verdict.spread.lacking), (Reply::Done, MasterSet::one(1)));
    quorum.ask(&command(Action::Renew { lease: Lease::DEFAULT })).await;
    let asked = masters.map(|master| lock(&master.asked).clone());
    assert_eq!(asked, [vec!["acquire", "renew"], vec!["renew"], vec!["acquire", "renew"]]);
}

#[tokio::test]
async fn who_has_not_answered_before_the_verdict_can_be_waited_for() {
    let (answers, late) = oneshot::channel();
    let third = Fake { late: Mutex::new(Some(late)), ..Fake::default() };
    let (quorum, _) = quorum([Fake::default(), Fake::default(), third]);
    let (verdict, stragglers) = quorum.ask(&acquire()).await;
    assert_eq!(verdict.spread.unanswered, MasterSet::one(2));
    assert_eq!((stragglers.is_empty(), stragglers.masters()), (false, MasterSet::one(2)));
    answers.send(()).unwrap();
    let mut answered = Vec::new();
    stragglers.poll_all(|master, answer| answered.push((master, answer.unwrap()))).await;
    assert_eq!(answered, [(2, Reply::Done)]);
    let (_, stragglers) = quorum.ask(&acquire()).await;
    assert!(stragglers.is_empty(), "all have answered");
}

#[tokio::test]
async fn the_error_of_a_command_names_the_lock() {
    let (quorum, _) = quorum([(); 3].map(|()| Fake { fails: true, ..Fake::default() }));
    let error = quorum.ask(&acquire()).await.0.result.unwrap_err().error.to_string();
    assert!(error.contains("stock") && error.contains("away"), "{error}");
}

/// A copy has the ids and the sockets of its parent. It has its own copy of a store in this process.
#[tokio::test]
async fn a_copy_after_a_fork_asks_no_server() {
    async fn asks<const N: usize>(masters: [Fake; N]) -> (Vec<(Outcome, ErrorKind)>, usize) {
        let (mut quorum, masters) = quorum(masters);
        quorum.process = quorum.process.map(|_| 0);
        let one = quorum.ask(&acquire()).await.0;
        let end = [command(Action::Release { count: 0 })];
        // No answer comes to the pipeline of the masters that are asked.
        let many = timeout(Duration::from_secs(1), quorum.ask_all(&end)).await.map(|(many, _)| many);
        assert!(!quorum.is_unused(&end[0].call.keys));
        let begun = quorum.ask_begun(&end[0], quorum.begin(&end[0])).await.0;
        quorum.run_last(&end);
        let failed = |verdict: Verdict| verdict.result.err().map(|it| (it.outcome, it.error.kind()));
        let asked = masters.iter().map(|master| lock(&master.asked).len()).sum();
        ([one, begun].into_iter().chain(many.into_iter().flatten()).filter_map(failed).collect(), asked)
    }
    let refused = vec![(Outcome::NotRun, ErrorKind::Misuse); 3];
    assert_eq!(asks([Fake::default()]).await, (refused.clone(), 0));
    assert_eq!(asks([(); 3].map(|()| Fake::default())).await, (refused, 0));
}

/// A master that is away keeps no command from the others. A master with a call under way is asked once it
/// has answered that.
#[tokio::test]
async fn a_command_is_begun_at_once_where_no_other_one_is_under_way() {
    let busy = || Fake { busy: true, ..Fake::default() };
    let away = || Fake { busy: true, away: true, ..Fake::default() };
    let is_unused = |masters: [Fake; 3]| quorum(masters).0.is_unused(&Keys::new("", "stock"));
    assert!(is_unused([(); 3].map(|()| Fake::default())));
    assert!(is_unused([Fake::default(), away(), Fake::default()]));
    assert!(!is_unused([Fake::default(), busy(), Fake::default()]));
    assert!(!is_unused([away(), away(), away()]));
    let (quorum, masters) = quorum([Fake::default(), busy(), Fake::default()]);
    let end = command(Action::Release { count: 0 });
    let (verdict, _) = quorum.ask_begun(&end, quorum.begin(&end)).await;
    assert!(verdict.result.is_ok());
    assert_eq!(
        masters.map(|master| lock(&master.asked).clone()),
        [vec!["begin"], vec!["begin", "release"], vec!["begin"]]
    );
}
