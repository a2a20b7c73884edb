use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

#[derive(Default)]
struct Ends(AtomicUsize);

impl OwnerEnds for Ends {
    fn owner_ended(&self, _: &Arc<str>, _: &Owner) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn position(ends: &Arc<Ends>) -> Position {
    let ends: Arc<dyn OwnerEnds> = ends.clone();
    Position { session: Arc::downgrade(&ends), name: "stock".into() }
}

fn as_owner<R>(owner: &Owner, f: impl FnOnce() -> R) -> R {
    let _inside = inside(owner);
    f()
}

#[test]
fn an_owner_is_within_itself_and_its_ancestors_only() {
    let root = Owner::new();
    let (child, sibling) = (root.child(), root.child());
    let grandchild = child.child();
    for (who, whom) in [(&root, &root), (&child, &root), (&grandchild, &root), (&grandchild, &child)] {
        assert!(who.is_within(whom), "{who:?} within {whom:?}");
    }
    for (who, whom) in [(&root, &child), (&sibling, &child), (&grandchild, &sibling), (&Owner::new(), &root)]
    {
        assert!(!who.is_within(whom), "{who:?} within {whom:?}");
    }
}

#[test]
fn the_current_owner_is_that_of_the_innermost_scope() {
    let (outer, inner) = (Owner::new(), Owner::new());
    let thread = Owner::current();
    as_owner(&outer, || {
        assert_eq!(Owner::current(), outer);
        as_owner(&inner, || assert_eq!(Owner::current(), inner));
        assert_eq!(Owner::current(), outer);
    });
    assert_eq!(Owner::current(), thread);
    assert_ne!(std::thread::spawn(Owner::current).join().unwrap(), thread);
}

#[test]
fn a_panic_leaves_no_owner_behind() {
    let (thread, owner) = (Owner::current(), Owner::new());
    let panicked = std::panic::catch_unwind(|| as_owner(&owner, || std::panic::resume_unwind(Box::new(()))));
    assert!(panicked.is_err());
    assert_eq!(Owner::current(), thread);
}

#[test]
fn the_table_is_notified_when_the_last_scope_of_an_owner_ends() {
    let ends = Arc::<Ends>::default();
    let (position, child) = (position(&ends), Owner::new().child());
    child.enter();
    child.enter();
    let levels = [(); 2].map(|()| child.register_at(&position));
    assert_eq!(levels, [(); 2].map(|()| child.clone()));
    child.unregister_at(&position);
    child.clone().leave();
    assert_eq!(ends.0.load(SeqCst), 0, "one scope is still open");
    child.clone().leave();
    assert_eq!(ends.0.load(SeqCst), 1);
    child.enter();
    child.leave();
    assert_eq!(ends.0.load(SeqCst), 1, "it has no positions any more");
}

/// The owner has a request for each lock and each table.
#[test]
fn each_lock_and_each_table_is_notified_on_its_own() {
    let (one, other, child) = (Arc::<Ends>::default(), Arc::<Ends>::default(), Owner::new().child());
    let stock = position(&one);
    let order = Position { name: "order".into(), ..position(&one) };
    let elsewhere = Position { name: stock.name.clone(), ..position(&other) };
    let places = [stock, order, elsewhere];
    child.enter();
    for place in &places {
        child.register_at(place);
    }
    child.unregister_at(&places[1]);
    child.clone().leave();
    assert_eq!([one, other].map(|ends| ends.0.load(SeqCst)), [1, 1]);
}

#[tokio::test]
async fn outside_of_scopes_each_task_is_an_owner() {
    let here = Owner::current();
    assert_eq!(here, Owner::current());
    let [one, other] = [(); 2].map(|()| tokio::spawn(async { Owner::current() }));
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert!(one != here && other != here && one != other);
}

#[test]
fn equal_owners_have_equal_hashes_and_others_differ() {
    let (state, owner) = (RandomState::new(), Owner::new());
    let hashed = |owner: &Owner| state.hash_one(owner);
    assert_eq!(hashed(&owner), hashed(&owner.clone()));
    assert_ne!(hashed(&owner), hashed(&owner.child()));
}

#[test]
fn the_heir_of_an_ended_owner_is_its_nearest_live_ancestor() {
    let ends = Arc::<Ends>::default();
    let position = position(&ends);
    let root = Owner::new();
    let (middle, never) = (root.child(), root.child());
    let child = middle.child();
    for owner in [&root, &middle, &child] {
        owner.enter();
    }
    child.clone().leave();
    assert_eq!(child.register_at(&position), middle);
    middle.clone().leave();
    assert_eq!(child.register_at(&position), root);
    assert_eq!(never.register_at(&position), never, "an owner that never had a scope is live");
    root.clone().leave();
    assert_eq!(child.register_at(&position), root, "a root has no heir");
    middle.enter();
    assert_eq!(child.register_at(&position), middle, "the middle owner is live again");
    middle.leave();
}

#[test]
fn a_chain_of_a_million_owners_is_dropped_on_a_small_stack() {
    let drop = || (0..1_000_000).fold(Owner::new(), |owner, _| owner.child());
    let thread = std::thread::Builder::new().stack_size(64 * 1024).spawn(move || drop().depth());
    assert_eq!(thread.unwrap().join().unwrap(), 1_000_000);
}

/// Scopes of other owners may be in between.
#[tokio::test]
async fn an_owner_surrounds_what_runs_in_its_scopes_and_in_its_task() {
    let (task, outer, other) = (Owner::current(), Owner::new(), Owner::new());
    let inner = outer.child();
    let work = async {
        assert!([&task, &outer, &inner].iter().all(|owner| owner.surrounds()));
        assert!(!other.surrounds() && !outer.child().surrounds());
        other
            .scope(async { assert!([&task, &outer, &inner, &other].iter().all(|owner| owner.surrounds())) })
            .await;
        assert!(!other.surrounds());
        let (task, outer, other) = (task.clone(), outer.clone(), other.clone());
        let elsewhere = async move { (task.surrounds(), outer.surrounds(), other.surrounds()) };
        assert_eq!(tokio::spawn(elsewhere).await.unwrap(), (false, false, false));
    };
    // Two trees that alternate.
    let work = Owner::new().scope(inner.scope(work));
    outer.scope(Owner::new().scope(work)).await;
    assert!(task.surrounds() && !outer.surrounds() && !inner.surrounds());
    let beside = tokio::join!(outer.scope(async { outer.surrounds() }), async { outer.surrounds() });
    assert_eq!(beside, (true, false));
}
