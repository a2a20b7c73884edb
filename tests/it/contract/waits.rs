//! What is logged about requests that wait for a long time.

use std::time::Duration;

use nestlock::Owner;
use tracing::Level;

use super::{Home, LONG, SECOND, without_timers};
use crate::support::{enlisted, eventually, log, soon};

fn is_wait(event: &log::Event, name: &str) -> bool {
    event.level == Level::WARN && event.mentions(name) && event.fields.contains_key("waited")
}

#[tokio::test]
async fn a_request_that_waits_is_reported_again_and_again_with_its_place_and_the_holder() {
    let home = Home::start().await;
    let name = home.unique("reported");
    let theirs = home.builder().lease(LONG).holder_name("billing@web-7").connect().await.unwrap();
    let ours = without_timers(&home).lease(LONG).warn_after(SECOND / 10).connect().await.unwrap();
    let guard = theirs.mutex(&name).lock().await.unwrap();
    let before = home.asked().await;
    let waits = tokio::spawn(ours.mutex(&name).lock());
    let line = line!() - 1;
    home.asleep(before).await;
    let asked = home.asked().await;
    let reports = || log::all(|event| is_wait(event, &name));
    eventually("ten reports", async || reports().len() >= 10).await;
    // On a busy machine a head may ask once more in the meantime.
    let asked = home.asked().await - asked;
    assert!(asked < 5, "they cost commands: {asked}");
    let report = reports().pop().unwrap();
    assert_eq!(report.fields["at"].split(':').nth(1), Some(&*line.to_string()), "{report:?}");
    assert!(report.fields["at"].ends_with(".rs") || report.fields["at"].contains("waits.rs:"), "{report:?}");
    assert_eq!(report.fields["waiting"], "1");
    for (field, text) in [("name", &*name), ("holder", "billing@web-7 for another "), ("held", " or longer")]
    {
        assert!(report.fields[field].contains(text) && !report.message.contains(text), "{field}: {report:?}");
    }
    assert!(report.fields["waited"].ends_with('s'), "{report:?}");
    // After the release another owner of this process has the lock.
    guard.release().await.unwrap();
    let ours_now = soon("the lock", waits).await.unwrap().unwrap();
    let known = reports().len();
    let second = tokio::spawn(enlisted(&ours.mutex(&name)));
    eventually("a report of the second one", async || reports().len() > known).await;
    let report = reports().pop().unwrap();
    assert!(report.fields["holder"].starts_with("another owner of this process, "), "{report:?}");
    assert!(report.fields["held"].starts_with("for ") && report.mentions("child"), "{report:?}");
    ours_now.release().await.unwrap();
    soon("the second one's turn", second).await.unwrap().unwrap().release().await.unwrap();
    let known = reports().len();
    tokio::time::sleep(SECOND / 4).await;
    assert_eq!(reports().len(), known, "nobody waits any more");
}

#[tokio::test]
async fn each_name_of_a_request_for_several_is_reported_while_it_is_waited_for() {
    let home = Home::start().await;
    let names = [home.unique("several-a"), home.unique("several-b")];
    let locks = home.builder().lease(LONG).warn_after(SECOND / 20).connect().await.unwrap();
    let guard = locks.mutex(&names[1]).lock().owner(&Owner::new()).await.unwrap();
    let waits = tokio::spawn(locks.mutexes(&names).lock());
    let report = log::recorded(|event| is_wait(event, &names[1])).await;
    assert!(report.fields["at"].contains("waits.rs:"), "{report:?}");
    guard.release().await.unwrap();
    soon("both", waits).await.unwrap().unwrap().release().await.unwrap();
    assert!(log::all(|event| is_wait(event, &names[0])).is_empty());
}

#[tokio::test]
async fn a_wait_is_not_reported_where_that_is_turned_off_nor_an_attempt_that_does_not_wait() {
    let home = Home::start().await;
    let name = home.unique("silent");
    let silent = home.builder().lease(LONG).warn_after(Duration::MAX).connect().await.unwrap();
    let loud = home.builder().lease(LONG).warn_after(SECOND / 1000).connect().await.unwrap();
    let guard = silent.mutex(&name).lock().await.unwrap();
    assert!(silent.mutex(&name).lock().owner(&Owner::new()).within(SECOND / 5).await.is_err());
    for _ in 0..20 {
        assert!(loud.mutex(&name).try_lock().await.unwrap().is_none());
    }
    assert!(log::all(|event| is_wait(event, &name)).is_empty());
    guard.release().await.unwrap();
}
