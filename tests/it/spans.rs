//! Spans of requests and of holds, and their fields.

mod recorder;

use std::future::IntoFuture;
use std::time::Duration;

use nestlock::{Locks, Memory, Owner};
use tokio::time::sleep;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Level, info_span};

use crate::support::server::Server;
use crate::support::{SECOND, eventually};
use recorder::record;

const ACQUIRE: &str = "nestlock.acquire";
const HELD: &str = "nestlock.held";

#[tokio::test(start_paused = true)]
async fn a_run_is_a_request_and_a_hold_in_which_its_work_stands() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let stock = Locks::in_memory().mutex("stock");
    let line = line!() + 2;
    let work = async { stock.run(async |_| tracing::info!("inner")).await };
    let outer = stock.run(|_| work).instrument(info_span!("request"));
    outer.await.unwrap().unwrap();
    tracing::info!("after");

    let [request, reentry] = &spans.named(ACQUIRE)[..] else { panic!("{:#?}", spans.all()) };
    let [held] = &spans.named(HELD)[..] else { panic!("{:#?}", spans.all()) };
    assert_eq!(spans.name(request.parent).as_deref(), Some("request"));
    assert_eq!(spans.name(held.parent).as_deref(), Some("request"), "not beside the request's span");
    assert_eq!(spans.name(reentry.parent).as_deref(), Some(HELD));
    assert_eq!((&*request.fields["nestlock.lock"], &*held.fields["nestlock.lock"]), ("stock", "stock"));
    assert_eq!((&*request.fields["nestlock.depth"], &*reentry.fields["nestlock.depth"]), ("1", "2"));
    assert_eq!(request.fields["nestlock.field"], held.fields["nestlock.field"]);
    assert_eq!(request.fields["code.line.number"], line.to_string());
    assert!(request.fields["code.file.path"].ends_with("spans.rs"));
    for absent in ["error.type", "db.system.name"] {
        assert!(!request.fields.contains_key(absent), "{request:?}");
    }
    assert!([request, reentry, held].iter().all(|span| span.is_closed));
    let in_span = |message: &str| {
        let events = spans.events();
        let event = events.iter().find(|event| event.message == message).unwrap();
        spans.name(event.span)
    };
    assert_eq!((in_span("inner").as_deref(), in_span("after")), (Some(HELD), None));
}

/// The first process has a span from the grant until the hold is handed over, the second has one from the resume on.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_handed_over_has_a_span_in_each_process() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let store = Memory::new();
    let connect = async || Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let (ours, theirs) = (connect().await, connect().await);
    let claim = ours.lock().await.unwrap().into_claim().await.unwrap();
    assert!(spans.named(HELD)[0].is_closed);
    let guard = theirs.resume(&claim).instrument(info_span!("job")).await.unwrap();
    let [_, resumed] = &spans.named(HELD)[..] else { panic!("{:#?}", spans.all()) };
    assert_eq!((&*resumed.fields["nestlock.field"], resumed.is_closed), (guard.hold_id(), false));
    assert_eq!(spans.name(resumed.parent).as_deref(), Some("job"));
    drop(guard);
    assert!(spans.named(HELD)[1].is_closed);
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_guard_ends_with_it_and_has_its_loss() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let store = Memory::new();
    let stock = Locks::builder(&store).connect().await.unwrap().mutex("stock");
    let guard = stock.lock().await.unwrap();
    let nested = stock.lock().await.unwrap();
    drop(nested);
    assert!(!spans.named(HELD)[0].is_closed);
    guard.release().await.unwrap();
    assert!(spans.named(HELD)[0].is_closed && !spans.named(HELD)[0].fields.contains_key("nestlock.loss"));
    let guard = stock.lock().await.unwrap();
    store.faults().lose("stock");
    guard.lost().await;
    drop(guard);
    let held = spans.named(HELD);
    assert_eq!((held.len(), &*held[1].fields["nestlock.loss"], held[1].is_closed), (2, "Gone", true));
    // The task is aborted during its work.
    let works = tokio::spawn(stock.run(|_| std::future::pending::<()>()));
    sleep(SECOND).await;
    assert!(!spans.named(HELD)[2].is_closed);
    works.abort();
    assert!(works.await.is_err());
    assert!(spans.all().iter().all(|span| span.is_closed), "{:#?}", spans.all());
}

/// This must not happen: 1. A request is granted. 2. The subscriber panics when that is recorded. 3. Nobody
/// has the guard, and the hold is renewed for ever.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_at_a_grant_leaves_no_hold() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let stock = Locks::in_memory().mutex("stock");
    spans.panics(true);
    let asks = stock.clone();
    let asks = tokio::spawn(async move { asks.lock().await });
    assert!(asks.await.unwrap_err().is_panic());
    spans.panics(false);
    assert!(stock.try_lock().await.unwrap().is_some());
}

/// A guard may be dropped while a panic unwinds, when a second panic would end the program.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_lets_a_guard_be_dropped() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let stock = Locks::in_memory().mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.force_release().await.unwrap();
    guard.lost().await;
    spans.panics(true);
    drop(guard);
    spans.panics(false);
    assert!(spans.all().iter().all(|span| span.is_closed), "{:#?}", spans.all());
}

/// This must not happen: 1. The connection is lost. 2. The subscriber panics at the line which reports that
/// it was replaced. 3. The task that connects has ended, and every later command fails. The subscriber
/// connection and what the background sends are tested too.
#[tokio::test]
async fn a_subscriber_that_panics_at_each_line_ends_no_task() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let server = Server::start().await;
    let locks = Locks::connect(server.url()).await.unwrap();
    let (stock, hall) = (locks.mutex("stock"), locks.mutex("hall"));
    let (of_stock, of_hall) = (stock.lock().await.unwrap(), hall.lock().await.unwrap());
    let waits = tokio::spawn(hall.lock().owner(&Owner::new()).into_future());
    eventually("it waits", async || !server.channels().await.is_empty()).await;
    spans.panics(true);
    let logged = async |line: &str| {
        eventually(line, async || spans.events().iter().any(|event| event.message.starts_with(line))).await;
    };
    for kind in ["pubsub", "normal"] {
        server.ask::<u64>(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
    logged("subscriber connection to Redis lost").await;
    logged("reconnected to Redis").await;
    eventually("it is subscribed", async || !server.channels().await.is_empty()).await;
    server.set("min-replicas-to-write", 1).await;
    drop(of_stock);
    logged("a command in the background failed").await;
    server.set("min-replicas-to-write", 0).await;
    eventually("it is released", async || stock.holder().await.unwrap().is_none()).await;
    spans.panics(false);
    of_hall.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    locks.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_has_the_kind_of_its_error() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let locks = Locks::in_memory();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    let stranger = Owner::new();
    assert!(stock.lock().owner(&stranger).within(SECOND).await.is_err());
    assert!(stock.try_lock().owner(&stranger).await.unwrap().is_none());
    assert!(locks.mutex("").lock().await.is_err());
    guard.release().await.unwrap();
    let kinds: Vec<_> = spans
        .named(ACQUIRE)
        .iter()
        .map(|span| span.fields.get("error.type").cloned().unwrap_or_default())
        .collect();
    assert_eq!(kinds, ["", "Timeout", "", "InvalidInput"]);
}

/// The warning is logged by the background, not by the task that waits.
#[tokio::test(start_paused = true)]
async fn the_warning_of_a_long_wait_stands_in_the_span_of_its_request() {
    for (most, expected) in [(LevelFilter::DEBUG, ACQUIRE), (LevelFilter::INFO, "request")] {
        let (spans, _recorder) = record(most);
        let stock = Locks::in_memory().mutex("stock");
        let guard = stock.lock().await.unwrap();
        let waits = stock.lock().owner(&Owner::new()).within(Duration::from_secs(31));
        assert!(waits.instrument(info_span!("request")).await.is_err());
        let events = spans.events();
        let warning =
            events.iter().find(|event| event.message.starts_with("a request waits for a lock")).unwrap();
        assert_eq!((warning.level, spans.name(warning.span).as_deref()), (Level::WARN, Some(expected)));
        drop(guard);
        assert!(spans.all().iter().all(|span| span.is_closed), "{:#?}", spans.all());
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_no_span_where_nobody_is_interested() {
    let (spans, _recorder) = record(LevelFilter::INFO);
    let stock = Locks::in_memory().mutex("stock");
    let work = async { stock.run(async |_| {}).await };
    let outer = stock.run(|_| work).instrument(info_span!("request", error.r#type = tracing::field::Empty));
    outer.await.unwrap().unwrap();
    assert!(
        stock
            .lock()
            .fixed_lease(Duration::ZERO)
            .instrument(info_span!("request", error.r#type = 0))
            .await
            .is_err()
    );
    let names: Vec<_> = spans.all().into_iter().map(|span| (span.name, span.fields.len())).collect();
    assert_eq!(names, [("request".to_owned(), 0), ("request".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn several_names_have_a_span_each() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let accounts = Locks::in_memory().mutexes(["account:1", "account:2"]);
    accounts.run(async |_| tracing::info!("work")).await.unwrap();
    let held = spans.named(HELD);
    let names: Vec<_> = held.iter().map(|span| &*span.fields["nestlock.lock"]).collect();
    assert_eq!((names, spans.named(ACQUIRE).len()), (vec!["account:1", "account:2"], 2));
    let events = spans.events();
    let work = events.iter().find(|event| event.message == "work").unwrap().span.unwrap();
    assert_eq!(spans.all()[work].fields["nestlock.lock"], "account:1");
    assert!(spans.all().iter().all(|span| span.is_closed));
}

#[tokio::test]
async fn a_server_is_named_as_redis() {
    let (spans, _recorder) = record(LevelFilter::DEBUG);
    let server = Server::start().await;
    let locks = Locks::connect(server.url()).await.unwrap();
    locks.mutex("stock").run(async |_| {}).await.unwrap();
    for name in [ACQUIRE, HELD] {
        assert_eq!(spans.named(name)[0].fields["db.system.name"], "redis");
    }
}
