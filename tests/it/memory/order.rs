//! What is logged about locks that are taken in both orders.

use nestlock::{Builder, Guard, Locks, Mutex, Owner, scope};

use crate::support::home::memory::Home;
use crate::support::log::{self, Event};

/// Returns two locks whose names no other test uses.
async fn pair(home: &Home, options: impl FnOnce(Builder) -> Builder) -> (Locks, [Mutex; 2]) {
    let locks = options(home.builder()).connect().await.unwrap();
    let pair = ["a", "b"].map(|name| locks.mutex(home.unique(&format!("order-{name}"))));
    (locks, pair)
}

/// Returns the reports about these two.
fn reports([one, two]: &[Mutex; 2]) -> Vec<Event> {
    log::all(|event| {
        let named = ["held", "asked"].map(|field| event.fields.get(field).map(String::as_str));
        event.fields.contains_key("asked_at")
            && [one, two].iter().all(|lock| named.contains(&Some(lock.name())))
    })
}

async fn nested(outer: &Mutex, inner: &Mutex) {
    let outer = outer.lock().await.unwrap();
    let inner = inner.lock().await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test]
async fn both_orders_are_reported_once_with_their_places() {
    let home = Home::start().await;
    let (_locks, pair) = pair(&home, |builder| builder).await;
    let [a, b] = &pair;
    nested(a, b).await;
    assert!(reports(&pair).is_empty());
    let held = (line!(), b.lock().await.unwrap());
    let asked = (line!(), a.run(async |_| {}).await.unwrap());
    let found = reports(&pair);
    let [report] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*report.fields["held"], &*report.fields["asked"]), (b.name(), a.name()));
    for (field, line) in [("held_at", held.0), ("asked_at", asked.0)] {
        assert!(report.fields[field].contains(&format!("order.rs:{line}:")), "{field}: {report:?}");
    }
    for field in ["before_held_at", "before_asked_at"] {
        assert!(report.fields[field].contains("order.rs:"), "{field}: {report:?}");
    }
    drop(held);
    for _ in 0..3 {
        nested(b, a).await;
        nested(a, b).await;
    }
    assert_eq!(reports(&pair).len(), 1);
}

#[tokio::test]
async fn runs_scopes_and_children_on_other_tasks_are_nested() {
    let home = Home::start().await;
    for way in 0..4 {
        let (_locks, pair) = pair(&home, |builder| builder).await;
        let [a, b] = &pair;
        a.run(async |_| b.run(async |_| {}).await.unwrap()).await.unwrap();
        assert!(reports(&pair).is_empty());
        match way {
            0 => b.run(|_| a.run(async |_| {})).await.unwrap().unwrap(),
            1 => drop(b.run(|_| scope(a.lock())).await.unwrap().unwrap()),
            2 => {
                let (a, child) = (a.clone(), b.run(async |_| Owner::current().child()));
                // The run has ended: its child takes nothing under it.
                let child = child.await.unwrap();
                tokio::spawn(child.scope(async move { a.run(async |_| {}).await })).await.unwrap().unwrap();
                assert!(reports(&pair).is_empty());
                continue;
            }
            _ => {
                let guard: Guard = scope(b.lock()).await.unwrap();
                let a = a.clone();
                let there = async move { guard.scope(a.run(async |_| {})).await };
                tokio::spawn(there).await.unwrap().unwrap();
            }
        }
        assert_eq!(reports(&pair).len(), 1, "{way}");
    }
}

#[tokio::test]
async fn what_cannot_deadlock_is_not_reported() {
    let home = Home::start().await;
    let (locks, pair) = pair(&home, |builder| builder).await;
    let [a, b] = &pair;
    let both = locks.mutexes([a.name(), b.name()]);
    // Both together, whichever is waited for, and one by one after each other.
    let guard = a.lock().owner(&Owner::new()).await.unwrap();
    let waits = tokio::spawn(both.lock());
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    let guards = waits.await.unwrap().unwrap();
    guards.release().await.unwrap();
    nested(b, a).await;
    both.run(async |_| a.run(|_| b.run(async |_| {})).await).await.unwrap().unwrap().unwrap();
    a.lock().await.unwrap().release().await.unwrap();
    b.lock().await.unwrap().release().await.unwrap();
    assert!(reports(&pair).is_empty());
    // A `try_lock` doesn't wait, and nobody waits for what it hasn't got.
    let guard = a.lock().await.unwrap();
    drop(b.try_lock().await.unwrap().unwrap());
    let stranger = b.lock().owner(&Owner::new()).await.unwrap();
    assert!(reports(&pair).is_empty());
    drop((stranger, guard));
    // What is requested under its hold does count.
    let tried = a.try_lock().await.unwrap().unwrap();
    drop(b.lock().await.unwrap());
    assert_eq!(reports(&pair).len(), 1);
    drop(tried);
}

#[tokio::test]
async fn locks_of_a_group_are_one_and_it_can_be_turned_off() {
    let home = Home::start().await;
    for (on, expected) in [(true, 1), (false, 0)] {
        let groups = [home.unique("order-stock"), home.unique("order-bill")];
        let locks =
            home.builder().warn_lock_order(on).metric_label(|name| name.split(':').next().unwrap().into());
        let locks = locks.connect().await.unwrap();
        let name = |group: usize, id: u32| locks.mutex(format!("{}:{id}", groups[group]));
        nested(&name(0, 1), &name(1, 1)).await;
        nested(&name(0, 1), &name(0, 2)).await;
        nested(&name(0, 2), &name(0, 1)).await;
        let found =
            || log::all(|event| event.fields.contains_key("asked_at") && event.mentions(&groups[0])).len();
        assert_eq!(found(), 0);
        nested(&name(1, 7), &name(0, 9)).await;
        assert_eq!(found(), expected);
    }
}
