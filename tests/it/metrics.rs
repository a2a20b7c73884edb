//! What is measured: each metric, and gauges that stay right, however futures and guards end.

mod recorder;

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::task::{Context, Waker};
use std::time::Duration;

use metrics::{LocalRecorderGuard, Unit};
use nestlock::{Builder, Locks, Loss, Memory, Owner};
use tokio::time::sleep;

use crate::support::server::Server;
use crate::support::{HOUR, SECOND, enlisted, eventually, soon};
use recorder::{Recorded, record};

const LEASE: Duration = Duration::from_secs(30);
const METRICS: [&str; 11] = [
    "nestlock_wait_seconds",
    "nestlock_held_seconds",
    "nestlock_line_length",
    "nestlock_waiting",
    "nestlock_held",
    "nestlock_nested_locally_total",
    "nestlock_lost_total",
    "nestlock_timeouts_total",
    "nestlock_renewals_late_total",
    "nestlock_unavailable_total",
    "nestlock_connected",
];

/// Locks in memory, and what they measure.
struct Measured {
    store: Memory,
    locks: Locks,
    recorded: Recorded,
    _recorder: LocalRecorderGuard<'static>,
}

async fn measured(options: impl FnOnce(Builder) -> Builder) -> Measured {
    let (recorded, _recorder) = record();
    let store = Memory::new();
    let locks = options(Locks::builder(&store).lease(LEASE)).connect().await.unwrap();
    Measured { store, locks, recorded, _recorder }
}

impl Measured {
    /// Returns the gauges of held and of waiting.
    fn now(&self) -> (f64, f64) {
        (self.recorded.value("nestlock_held"), self.recorded.value("nestlock_waiting"))
    }

    /// Returns how many samples of waits and of holds there are.
    fn samples(&self) -> (usize, usize) {
        let count = |name| self.recorded.samples(name).len();
        (count("nestlock_wait_seconds"), count("nestlock_held_seconds"))
    }

    /// Returns the number of losses of a kind.
    fn lost(&self, loss: &str) -> f64 {
        self.recorded.value(&format!("nestlock_lost_total{{loss={loss}}}"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_measured_once_whatever_its_levels() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    assert_eq!((measured.now(), measured.samples()), ((1.0, 0.0), (1, 0)));
    let nested = stock.lock().await.unwrap();
    stock.run(|_| sleep(SECOND)).await.unwrap();
    nested.release().await.unwrap();
    assert_eq!((measured.now(), measured.samples()), ((1.0, 0.0), (1, 0)));
    sleep(SECOND).await;
    drop(guard);
    assert_eq!((measured.now(), measured.samples()), ((0.0, 0.0), (1, 1)));
    let held = measured.recorded.samples("nestlock_held_seconds")[0];
    assert!((2.0..2.1).contains(&held), "{held}");
    // A lock's name does not appear as a label.
    let names = measured.recorded.names();
    assert!(names.iter().all(|name| !name.contains("stock") && !name.contains("lock=")), "{names:?}");
}

/// Otherwise the first event would be the first sample, and Prometheus would see no increase in it.
#[tokio::test(start_paused = true)]
async fn what_is_counted_is_there_at_zero_before_it_first_happens() {
    const COUNTERS: [&str; 4] = ["nested_locally", "timeouts", "renewals_late", "unavailable"];
    const LOSSES: [&str; 5] = ["expired", "fixed_lease", "gone", "max_hold", "suspended"];
    let expected = |group: &str| {
        let (alone, beside) = match group {
            "" => (String::new(), String::new()),
            group => (format!("{{lock={group}}}"), format!("lock={group},")),
        };
        let gauges = ["held", "waiting"].map(|name| format!("nestlock_{name}{alone}"));
        let counters = COUNTERS.map(|name| format!("nestlock_{name}_total{alone}"));
        let losses = LOSSES.map(|loss| format!("nestlock_lost_total{{{beside}loss={loss}}}"));
        gauges.into_iter().chain(counters).chain(losses).collect::<BTreeSet<_>>()
    };
    let known = |recorded: &Recorded| recorded.names().into_iter().collect::<BTreeSet<_>>();
    let all = measured(|builder| builder).await;
    assert_eq!(known(&all.recorded), expected(""));
    drop(all);
    // The groups are not known before the first request for a lock of each.
    let group =
        |builder: Builder| builder.metric_label(|name| name.split(':').next().unwrap_or_default().into());
    let grouped = measured(group).await;
    assert_eq!(known(&grouped.recorded), BTreeSet::new());
    grouped.store.faults().stall(HOUR);
    let error = grouped.locks.mutex("stock:1").try_lock().await.unwrap_err();
    assert_eq!(grouped.recorded.value("nestlock_unavailable_total{lock=stock}"), 1.0, "{error}");
    assert_eq!(known(&grouped.recorded), expected("stock"));
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_counted_until_the_grant_the_end_of_its_time_or_its_drop() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let waits = tokio::spawn(enlisted(&stock));
    let dropped = enlisted(&stock);
    let late = tokio::spawn(stock.lock().owner(&Owner::new()).within(SECOND));
    sleep(SECOND / 2).await;
    assert_eq!(measured.now(), (1.0, 3.0));
    drop(dropped);
    assert_eq!(measured.now(), (1.0, 2.0));
    assert_eq!(measured.recorded.value("nestlock_timeouts_total"), 0.0);
    assert!(late.await.unwrap().is_err());
    assert_eq!(measured.now(), (1.0, 1.0));
    assert_eq!(measured.recorded.value("nestlock_timeouts_total"), 1.0);
    sleep(SECOND).await;
    guard.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    assert_eq!((measured.now(), measured.samples()), ((1.0, 0.0), (2, 1)));
    let waited = measured.recorded.samples("nestlock_wait_seconds")[1];
    assert!((2.0..2.1).contains(&waited), "{waited}");
    guard.release().await.unwrap();
    assert_eq!(measured.now(), (0.0, 0.0));
}

/// This must not happen: 1. A request is granted. 2. The grant is counted, and the user's code panics.
/// 3. Nobody has the guard, and the hold is renewed for ever.
#[tokio::test(start_paused = true)]
async fn a_label_that_panics_loses_no_guard_and_no_renewal() {
    let measured = measured(|builder| builder.metric_label(|name| panic!("no label for {name}"))).await;
    let (locks, store) = (measured.locks.clone(), measured.store.clone());
    let guard = locks.mutex("stock").lock().await.unwrap();
    let others = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    sleep(3 * LEASE).await;
    assert!(!guard.is_lost() && others.try_lock().await.unwrap().is_none());
    assert_eq!(measured.recorded.value("nestlock_held{lock=}"), 1.0);
    guard.release().await.unwrap();
    let lost = locks.mutex("stock").lock().await.unwrap();
    store.faults().lose("stock");
    sleep(3 * LEASE).await;
    assert!(lost.is_lost());
    drop(lost);
    others.lock().await.unwrap().release().await.unwrap();
    assert!(locks.mutex("stock").try_lock().await.unwrap().is_some());
}

/// This must not happen: 1. A level is granted, which is counted. 2. The recorder panics. 3. Nobody has the
/// guard of the level, and the lock is never released.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_loses_no_guard_and_no_level() {
    let measured = measured(|builder| builder).await;
    let (stock, recorded) = (measured.locks.mutex("stock"), &measured.recorded);
    let others = Locks::builder(&measured.store).connect().await.unwrap().mutex("stock");
    recorded.panics(true);
    let guard = stock.lock().await.unwrap();
    assert_eq!(stock.run(async |_| stock.hold_count()).await.unwrap(), 2);
    assert!(stock.lock().owner(&Owner::new()).within(LEASE).await.is_err());
    sleep(3 * LEASE).await;
    assert_eq!((guard.is_lost(), stock.hold_count()), (false, 1));
    guard.release().await.unwrap();
    let lost = others.lock().await.unwrap();
    measured.store.faults().lose("stock");
    sleep(3 * LEASE).await;
    assert!(lost.is_lost());
    drop(lost);
    drop(stock.lock().await.unwrap());
    others.lock().await.unwrap().release().await.unwrap();
    recorded.panics(false);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_one_of_whoever_had_time() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let stranger = Owner::new();
    let timeouts = || measured.recorded.value("nestlock_timeouts_total");
    assert!(stock.try_lock().owner(&stranger).await.unwrap().is_none());
    assert_eq!(timeouts(), 0.0);
    assert!(stock.try_lock().owner(&stranger).within(SECOND).await.unwrap().is_none());
    assert_eq!(timeouts(), 1.0);
    assert!(stock.lock().owner(&stranger).within(Duration::ZERO).run(async |_| {}).await.is_err());
    assert_eq!(timeouts(), 2.0);
    let both = measured.locks.mutexes(["other", "stock"]);
    assert!(both.lock().owner(&stranger).within(SECOND).await.is_err());
    assert_eq!((timeouts(), measured.now()), (3.0, (1.0, 0.0)));
    // It asks for the second name several times.
    assert!(both.lock().owner(&stranger).within(Duration::ZERO).await.is_err());
    assert_eq!(timeouts(), 4.0);
    guard.release().await.unwrap();
}

/// Code that reads the metrics when it is notified of a loss finds the loss counted, whether it waits for the loss or asks at that very
/// moment.
#[tokio::test(start_paused = true)]
async fn a_loss_is_counted_before_anybody_learns_of_it() {
    /// Records how many losses are counted at the moment when it is woken.
    struct Woken(Recorded, std::sync::Mutex<Vec<f64>>);
    impl std::task::Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.1.lock().unwrap().push(self.0.value("nestlock_lost_total{lock=,loss=gone}"));
        }
    }
    let kept: &'static std::sync::OnceLock<nestlock::Guard> = Box::leak(Box::default());
    let early: &'static std::sync::Mutex<Vec<bool>> = Box::leak(Box::default());
    let look = move || {
        // The metrics call this right before they count anything.
        if let Some(guard) = kept.get().filter(|guard| guard.is_lost()) {
            let polled = std::pin::pin!(guard.lost()).poll(&mut Context::from_waker(Waker::noop()));
            early.lock().unwrap().push(polled.is_ready());
        }
    };
    let label = |builder: Builder| {
        builder.metric_label(move |_| {
            look();
            "".into()
        })
    };
    let measured = measured(label).await;
    let guard = measured.locks.mutex("stock").lock().await.unwrap();
    let guard = kept.get_or_init(|| guard);
    let woken = std::sync::Arc::new(Woken(measured.recorded.clone(), Default::default()));
    let mut waits = std::pin::pin!(guard.lost());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&woken.clone().into())).is_pending());
    measured.store.faults().lose("stock");
    sleep(LEASE).await;
    assert_eq!(woken.1.lock().unwrap().first(), Some(&1.0), "it was woken before the loss was counted");
    assert_eq!(early.lock().unwrap().first(), Some(&false), "the loss was reported before it was counted");
    assert_eq!(soon("the loss", waits).await, Loss::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_held_no_more_and_counted_with_its_reason() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let nested = stock.lock().await.unwrap();
    measured.store.faults().lose("stock");
    assert_eq!(guard.lost().await, Loss::Gone);
    assert_eq!((measured.now(), measured.samples(), measured.lost("gone")), ((0.0, 0.0), (1, 1), 1.0));
    drop(nested);
    assert!(guard.release().await.is_err());
    assert_eq!((measured.now(), measured.samples(), measured.lost("gone")), ((0.0, 0.0), (1, 1), 1.0));

    // The release finds this loss.
    let guard = stock.lock().await.unwrap();
    measured.store.faults().lose("stock");
    assert!(guard.release().await.is_err());
    assert_eq!((measured.now(), measured.samples(), measured.lost("gone")), ((0.0, 0.0), (2, 2), 2.0));

    // This end was asked for, so it counts as `fixed_lease` and not as `expired`.
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    drop(guard);
    assert_eq!(
        (measured.now(), measured.lost("expired"), measured.lost("fixed_lease")),
        ((0.0, 0.0), 0.0, 1.0)
    );

    let hung = stock.lock().max_hold(SECOND).run(|_| std::future::pending::<()>());
    assert_eq!(hung.await.unwrap_err().loss(), Some(Loss::MaxHold));
    assert_eq!((measured.now(), measured.samples(), measured.lost("max_hold")), ((0.0, 0.0), (4, 4), 1.0));
}

#[tokio::test(start_paused = true)]
async fn several_names_are_a_hold_and_a_wait_each() {
    let measured = measured(|builder| builder).await;
    let accounts = measured.locks.mutexes(["account:1", "account:2", "account:3"]);
    let guards = accounts.lock().await.unwrap();
    assert_eq!((measured.now(), measured.samples()), ((3.0, 0.0), (3, 0)));
    let waits = tokio::spawn(measured.locks.mutexes(["account:0", "account:2"]).lock());
    sleep(SECOND).await;
    assert_eq!(measured.now(), (4.0, 1.0), "it should hold the first name and wait for the second");
    waits.abort();
    assert!(waits.await.is_err());
    assert_eq!(measured.now(), (3.0, 0.0));
    drop(guards);
    assert_eq!((measured.now(), measured.samples()), ((0.0, 0.0), (4, 4)));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_passes_on_is_one_of_each_owner() {
    let measured = measured(|builder| builder.local_handoff(HOUR)).await;
    let stock = measured.locks.mutex("stock");
    let tasks: Vec<_> = (0..5).map(|_| tokio::spawn(stock.run(async |_| sleep(SECOND).await))).collect();
    sleep(SECOND / 2).await;
    assert_eq!(measured.now(), (1.0, 4.0));
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!((measured.now(), measured.samples()), ((0.0, 0.0), (5, 5)));
    let held = measured.recorded.samples("nestlock_held_seconds");
    assert!(held.iter().all(|held| (1.0..1.1).contains(held)), "{held:?}");
}

/// The time in each process is counted separately.
#[tokio::test(start_paused = true)]
async fn a_claimed_hold_is_held_by_the_process_that_goes_on_with_it() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    sleep(SECOND).await;
    let claim = guard.into_claim().await.unwrap();
    assert_eq!((measured.now(), measured.samples()), ((0.0, 0.0), (1, 1)));
    let guard = stock.resume(&claim).await.unwrap();
    assert_eq!(measured.now(), (1.0, 0.0));
    guard.release().await.unwrap();
    assert_eq!((measured.now(), measured.samples()), ((0.0, 0.0), (1, 2)));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_in_its_work_or_while_it_asks_leaves_nothing_counted() {
    let measured = measured(|builder| builder).await;
    let stock = measured.locks.mutex("stock");
    let works = tokio::spawn(stock.run(|_| sleep(HOUR)));
    sleep(SECOND).await;
    let waits = tokio::spawn(stock.run(|_| sleep(HOUR)));
    sleep(SECOND).await;
    assert_eq!(measured.now(), (1.0, 1.0));
    for task in [waits, works] {
        task.abort();
        assert!(task.await.is_err());
    }
    assert_eq!(measured.now(), (0.0, 0.0));
    measured.store.faults().stall(HOUR);
    let asks = enlisted(&stock);
    assert_eq!(measured.now(), (0.0, 0.0), "no answer has arrived yet");
    drop(asks);
    assert_eq!(measured.now(), (0.0, 0.0));
}

/// A forgotten guard is renewed, and keeps others out until renewal ends.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_forgotten_is_held() {
    let measured = measured(|builder| builder).await;
    std::mem::forget(measured.locks.mutex("stock").lock().await.unwrap());
    sleep(HOUR).await;
    assert_eq!(measured.now(), (1.0, 0.0));
    let _ = measured.locks.close().await;
    sleep(2 * LEASE).await;
    assert_eq!((measured.now(), measured.lost("expired")), ((0.0, 0.0), 1.0));
}

#[test]
fn a_guard_that_outlives_its_runtime_is_held_until_it_goes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (measured, guard, waits) = runtime.block_on(async {
        let measured = measured(|builder| builder).await;
        let guard = measured.locks.mutex("stock").lock().await.unwrap();
        let waits = tokio::spawn(enlisted(&measured.locks.mutex("stock")));
        sleep(SECOND / 50).await;
        (measured, guard, waits)
    });
    assert_eq!(measured.now(), (1.0, 1.0));
    drop(runtime);
    assert_eq!(measured.now(), (1.0, 0.0));
    drop((guard, waits));
    assert_eq!(measured.now(), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_is_counted_and_so_is_each_command_without_an_answer() {
    let measured = measured(|builder| builder).await;
    let guard = measured.locks.mutex("stock").lock().await.unwrap();
    assert_eq!(measured.recorded.value("nestlock_unavailable_total"), 0.0);
    measured.store.faults().stall(LEASE / 2);
    sleep(LEASE).await;
    assert_eq!(measured.recorded.value("nestlock_renewals_late_total"), 1.0);
    let unavailable = measured.recorded.value("nestlock_unavailable_total");
    assert!((1.0..20.0).contains(&unavailable), "{unavailable}");
    guard.release().await.unwrap();
    assert_eq!(measured.now(), (0.0, 0.0));
}

#[tokio::test]
async fn names_are_labels_as_they_are_mapped() {
    let group =
        |builder: Builder| builder.metric_label(|name| name.split(':').next().unwrap_or_default().into());
    let measured = measured(group).await;
    let (one, two) = (measured.locks.mutex("stock:1"), measured.locks.mutex("stock:2"));
    let (first, second) = (one.lock().await.unwrap(), two.lock().await.unwrap());
    let late = one.lock().owner(&Owner::new()).within(SECOND / 50);
    assert!(late.await.is_err());
    assert_eq!(measured.recorded.value("nestlock_held{lock=stock}"), 2.0);
    measured.store.faults().lose("stock:1");
    assert!(first.release().await.is_err());
    drop(second);
    assert_eq!(measured.recorded.value("nestlock_held{lock=stock}"), 0.0);
    assert_eq!(measured.recorded.value("nestlock_lost_total{lock=stock,loss=gone}"), 1.0);
    let names = measured.recorded.names();
    assert!(names.iter().all(|name| name.contains("{lock=stock")), "{names:?}");
    for name in ["wait_seconds", "held_seconds", "waiting", "held", "timeouts_total"] {
        assert!(names.contains(&format!("nestlock_{name}{{lock=stock}}")), "{name}: {names:?}");
    }
}

#[tokio::test]
async fn a_redis_server_is_measured_too() {
    let (recorded, _recorder) = record();
    let server = Server::start().await;
    let connected = format!("nestlock_connected{{server=127.0.0.1:{}}}", server.port());
    let is_connected = async |count: f64| {
        eventually("the count of connections", async || recorded.value(&connected) == count).await;
    };
    let locks = Locks::connect(server.url()).await.unwrap();
    is_connected(1.0).await;
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let waits = tokio::spawn(enlisted(&stock));
    eventually("it waits", async || recorded.value("nestlock_waiting") == 1.0).await;
    guard.release().await.unwrap();
    let guard = soon("its turn", waits).await.unwrap().unwrap();
    assert_eq!((recorded.value("nestlock_waiting"), recorded.value("nestlock_held")), (0.0, 1.0));
    // The second client is another process: it waits in the line on the server.
    let others = Locks::connect(server.url()).await.unwrap();
    let theirs = tokio::spawn(others.mutex("stock").lock());
    eventually("a line", async || recorded.samples("nestlock_line_length").contains(&1.0)).await;
    theirs.abort();
    is_connected(2.0).await;
    others.close().await.unwrap();
    is_connected(1.0).await;
    server.kill();
    let _ = guard.release().await;
    is_connected(0.0).await;
    assert!(recorded.value("nestlock_unavailable_total") >= 1.0);
    assert_eq!(recorded.value("nestlock_held"), 0.0);
}

#[tokio::test]
async fn each_metric_is_described_with_its_unit() {
    let measured = measured(|builder| builder).await;
    let described = measured.recorded.described();
    assert_eq!(described.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(METRICS));
    for (name, unit) in described {
        let seconds = name.ends_with("_seconds");
        assert_eq!(unit, Some(if seconds { Unit::Seconds } else { Unit::Count }), "{name}");
    }
}

/// A panel would stay empty if its metric did not exist.
#[test]
fn the_dashboard_the_alerts_and_the_guide_name_all_metrics_and_no_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, names_all) in [
        ("docs/dashboards/grafana.json", true),
        ("docs/dashboards/alerts.yml", false),
        ("docs/operations.md", true),
    ] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        // Lines with a user's rights contain names of keys and channels, not of metrics.
        let text: Vec<_> = text.lines().filter(|line| !line.starts_with("ACL ")).collect();
        let text = text.join("\n").replace("nestlock_line:", "").replace("nestlock_wake:", "");
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let named: BTreeSet<_> = words
            .filter(|word| word.starts_with("nestlock_"))
            .map(|word| word.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count"))
            .collect();
        assert!(!named.is_empty() && named.is_subset(&BTreeSet::from(METRICS)), "{file}: {named:?}");
        assert!(!names_all || named.len() == METRICS.len(), "{file}: {named:?}");
    }
}
