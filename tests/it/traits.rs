//! What the compiler checks for users: auto traits, and the sizes of futures.

use std::cell::Cell;
use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt::{Debug, Display};
use std::future::{Future, Ready};
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use nestlock::futures::{Request, Run, Scope};
use nestlock::testing::Faults;
use nestlock::{
    BareReentry, Builder, Claim, Credentials, Error, ErrorKind, Fenced, Guard, Guards, Hold, Kind, Locks,
    Loss, Master, Memory, Mutex, Mutexes, Owner, Plain, Server, Tls, scope,
};

fn is_shared<T: Debug + Send + Sync + Unpin + 'static>() {}
fn is_cloned<T: Clone>() {}
fn is_copied<T: Copy + Eq + Hash>() {}
fn is_moved<T: Debug + Send + Unpin + 'static>() {}
fn is_spawned<T: Future<Output: Send> + Send + 'static>(_: T) {}
fn is_sent<T: Send>(_: T) {}

/// It is enough that this compiles: it is never called.
#[expect(dead_code, reason = "what it asks is answered by the compiler")]
fn every_future_is_sent_where_its_work_is(
    mutex: &'static Mutex,
    fenced: &'static Mutex<Fenced>,
    locks: &'static Locks,
    guard: &'static Guard,
    several: (&'static Mutexes, &'static Guards),
) {
    is_spawned(several.0.lock().owner(&Owner::new()));
    is_spawned(several.0.try_lock().within(Duration::ZERO));
    is_spawned(several.0.run(async |_| 1));
    is_spawned(several.0.try_lock().run(async |_| 1));
    is_spawned(several.0.clone().fenced().run(async |holds| holds));
    is_spawned(several.1.lost());
    is_spawned(several.1.extend(Duration::MAX));
    is_spawned(several.1.check());
    is_spawned(several.1.scope(async { 1 }));
    is_spawned(async move { several.0.lock().await?.release().await });
    is_spawned(mutex.lock());
    is_spawned(mutex.lock().within(Duration::ZERO).fixed_lease(Duration::MAX).max_hold(Duration::MAX));
    is_spawned(mutex.try_lock().owner(&Owner::new()));
    is_spawned(mutex.run(async |_| 1));
    is_spawned(mutex.lock().run(async |_| 1));
    is_spawned(mutex.try_lock().run(async |_| 1));
    is_spawned(fenced.lock());
    is_spawned(fenced.try_lock().owner(&Owner::new()));
    is_spawned(fenced.run(async |hold| hold.token()));
    is_spawned(fenced.try_lock().run(|hold| async move { hold.token() }));
    is_spawned(scope(mutex.run(|_| mutex.run(async |_| {}))));
    is_spawned(Owner::current().child().scope(mutex.lock()));
    is_spawned(mutex.is_locked());
    is_spawned(mutex.remaining_lease());
    is_spawned(mutex.holder());
    is_spawned(fenced.holder());
    is_spawned(mutex.force_release());
    is_spawned(async move { mutex.resume(&mutex.lock().await?.into_claim().await?).await });
    is_spawned(mutex.run(async |hold| hold.extend(Duration::MAX).await));
    is_spawned(mutex.run(async |hold| hold.check().await));
    is_spawned(Locks::connect("redis://host"));
    is_spawned(Locks::builder(("host", 6379)).connect());
    is_spawned(locks.close());
    is_spawned(guard.lost());
    is_spawned(guard.extend(Duration::MAX));
    is_spawned(guard.check());
    is_spawned(guard.scope(async { 1 }));
    is_spawned(async move {
        let guard = mutex.lock().await?;
        guard.scope(async { tokio::task::yield_now().await }).await;
        guard.release().await
    });
    // Work that must stay on its thread is accepted too.
    let local = Rc::new(Cell::new(0));
    drop(mutex.run(async move |_| local.set(1)));
    // Borrowed values may be used in the work.
    let mut borrowed = 0;
    is_sent(mutex.run(async |_| borrowed += 1));
}

#[test]
fn handles_guards_and_errors_are_shared_between_threads() {
    is_shared::<Locks>();
    is_shared::<Builder>();
    is_shared::<Credentials>();
    is_shared::<Server>();
    is_shared::<Master>();
    is_shared::<Memory>();
    is_shared::<Tls>();
    is_shared::<BareReentry>();
    is_shared::<Claim>();
    is_shared::<Faults>();
    is_shared::<nestlock::Holder>();
    is_shared::<nestlock::WaitingProcess>();
    is_shared::<nestlock::LockStatus>();
    is_shared::<Owner>();
    is_shared::<Error>();
    is_shared::<ErrorKind>();
    is_shared::<Loss>();
    of_either_kind::<Plain>();
    of_either_kind::<Fenced>();
}

fn of_either_kind<K: Kind>() {
    is_shared::<Mutex<K>>();
    is_cloned::<Mutex<K>>();
    is_shared::<Guard<K>>();
    is_shared::<Hold<K>>();
    is_cloned::<Hold<K>>();
    is_shared::<Mutexes<K>>();
    is_cloned::<Mutexes<K>>();
    is_shared::<Guards<K>>();
    is_moved::<Request<Guard<K>>>();
    is_moved::<Request<Option<Guard<K>>>>();
    is_moved::<Request<Guards<K>>>();
    is_moved::<Request<Option<Guards<K>>>>();
    is_moved::<Run<Guard<K>, fn(Hold<K>) -> Ready<()>>>();
    is_moved::<Run<Option<Guard<K>>, fn(Hold<K>) -> Ready<()>>>();
    is_moved::<Run<Guards<K>, fn(Vec<Hold<K>>) -> Ready<()>>>();
    is_moved::<Run<Option<Guards<K>>, fn(Vec<Hold<K>>) -> Ready<()>>>();
}

#[test]
fn scopes_can_be_moved_and_polled_by_reference() {
    fn is_unpin(_: impl Unpin) {}
    is_moved::<Scope<Ready<()>>>();
    let _checked: fn(&Guard) = |guard| is_unpin(guard.scope(std::future::ready(())));
}

#[test]
fn handles_are_cloned_and_kinds_copied() {
    is_cloned::<Locks>();
    is_cloned::<Builder>();
    is_cloned::<Server>();
    is_cloned::<Master>();
    is_cloned::<Memory>();
    is_cloned::<Owner>();
    is_copied::<ErrorKind>();
    is_copied::<Loss>();
    let displayed: fn(&Loss) -> &dyn Display = |loss| loss;
    assert!(!displayed(&Loss::Gone).to_string().is_empty());
    let (one, other) = (Owner::new(), Owner::new());
    assert_eq!(HashSet::from([one.clone(), one.clone(), other]).len(), 2);
}

#[test]
fn an_error_is_a_standard_error_of_one_machine_word() {
    fn is_error<T: StdError>() {}
    is_error::<Error>();
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Option<Error>>(), size_of::<usize>());
}

/// Work that keeps this many bytes.
async fn work(bytes: [u8; 1024]) -> u8 {
    tokio::task::yield_now().await;
    bytes[0]
}

const MOST: usize = 256;

/// Returns how many bytes each future adds to the work that it holds, alone and nested once more.
fn added(mutex: &Mutex) -> [usize; 6] {
    let run = || mutex.run(|_| work([0; 1024]));
    let tries = || mutex.try_lock().run(|_| work([0; 1024]));
    let scoped = || scope(work([0; 1024]));
    let bare = size_of_val(&work([0; 1024]));
    [
        size_of_val(&run()) - bare,
        size_of_val(&mutex.run(|_| run())) - size_of_val(&run()),
        size_of_val(&tries()) - bare,
        size_of_val(&mutex.try_lock().run(|_| tries())) - size_of_val(&tries()),
        size_of_val(&scoped()) - bare,
        size_of_val(&scope(scoped())) - size_of_val(&scoped()),
    ]
}

#[test]
fn each_nested_run_adds_at_most_256_bytes() {
    let added = added(&Locks::in_memory().mutex("stock"));
    assert!(added.iter().all(|bytes| *bytes <= MOST), "{added:?}");
}

#[tokio::test]
async fn each_nested_scope_of_a_guard_adds_at_most_256_bytes() {
    let guard = Locks::in_memory().mutex("stock").lock().await.unwrap();
    let bare = size_of_val(&work([0; 1024]));
    let twice = size_of_val(&guard.scope(guard.scope(work([0; 1024]))));
    assert!(twice - bare <= 2 * MOST, "{bare} and {twice}");
    guard.release().await.unwrap();
}
