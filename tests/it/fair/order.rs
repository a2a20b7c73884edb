//! Which process gets the lock next, and what that costs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::stream::{FuturesUnordered, StreamExt};
use nestlock::{Locks, Owner};

use super::{LINE, granted, holder, process, session, stand, tidy, waits};
use crate::support::line::alone;
use crate::support::sentinel::Group;
use crate::support::server::Server;
use crate::support::{eventually, soon};

/// Checks that these processes get the lock in the order in which they began to wait, this many times. After its turn each enters the line
/// at its end again.
async fn each_has_its_turn(server: &Server, processes: &[Locks], rounds: usize) {
    let last = processes.len() - 1;
    let mut waiters = FuturesUnordered::new();
    let mut order = VecDeque::new();
    let wait = |number: usize| {
        let request = waits(&processes[number]);
        async move { (number, granted(request).await) }
    };
    let mut holds = (last, processes[last].mutex("stock").lock().await.unwrap());
    for number in 0..last {
        waiters.push(wait(number));
        order.push_back(number);
        stand(server, order.len()).await;
    }
    let before = server.scripts_run().await;
    for _ in 0..rounds * processes.len() {
        let (number, guard) = holds;
        guard.release().await.unwrap();
        holds = soon("the next", waiters.next()).await.unwrap();
        assert_eq!(Some(holds.0), order.pop_front());
        waiters.push(wait(number));
        order.push_back(number);
        stand(server, order.len()).await;
    }
    let (grants, scripts) = (rounds * processes.len(), server.scripts_run().await - before);
    // A grant takes three scripts: a release, the attempt of the process that it wakes, and the first attempt of the process that begins to
    // wait again. On a busy machine a timer adds one now and then. If each release woke all processes, there would be nine.
    assert!(scripts <= grants as u64 * 5, "{scripts} scripts for {grants} grants");
    while let Some(next) = order.pop_front() {
        holds.1.release().await.unwrap();
        holds = soon("the next", waiters.next()).await.unwrap();
        assert_eq!(holds.0, next);
    }
    holds.1.release().await.unwrap();
    tidy(server).await;
}

#[tokio::test]
async fn eight_processes_get_it_in_the_order_in_which_they_began_to_wait() {
    let server = Server::start().await;
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(process(&server.url()).await);
    }
    each_has_its_turn(&server, &processes, 12).await;
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[tokio::test]
async fn the_same_over_tls() {
    let server = Server::tls().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(process(&format!("{}/#insecure", server.tls_url())).await);
    }
    each_has_its_turn(&server, &processes, 4).await;
}

#[tokio::test]
async fn the_same_of_a_master_that_sentinels_name() {
    let group = Group::start().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(super::fair(group.builder()).connect().await.unwrap());
    }
    each_has_its_turn(group.master().await, &processes, 4).await;
}

/// No process pauses for the others: each asks again right after its release.
#[tokio::test]
async fn none_starves_where_all_take_it_again_and_again() {
    const TURNS: usize = 40;
    let server = Server::start().await;
    let counts: [AtomicUsize; 8] = Default::default();
    let inside = AtomicUsize::new(0);
    let mut all = FuturesUnordered::new();
    for count in &counts {
        let locks = process(&server.url()).await;
        let inside = &inside;
        all.push(async move {
            let stock = locks.mutex("stock");
            while count.load(SeqCst) < TURNS {
                let guard = stock.lock().await.unwrap();
                alone(inside).await;
                count.fetch_add(1, SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    // The lock is held until all processes wait. Otherwise one of them could have most of its turns while the others still subscribe.
    let guard = process(&server.url()).await.mutex("stock").lock().await.unwrap();
    let begin = async {
        stand(&server, counts.len()).await;
        guard.release().await.unwrap();
    };
    let first = soon("the first that is done", async { tokio::join!(all.next(), begin).0 }).await;
    assert_eq!(first, Some(()));
    let shares: Vec<_> = counts.iter().map(|count| count.load(SeqCst)).collect();
    assert!(shares.iter().all(|share| share * 2 >= TURNS), "{shares:?}");
    soon("the others", all.for_each(async |()| ())).await;
    tidy(&server).await;
}

#[tokio::test]
async fn an_attempt_never_stands_in_the_line() {
    let server = Server::start().await;
    let (holds, tries) = (process(&server.url()).await, process(&server.url()).await);
    let guard = holds.mutex("stock").lock().await.unwrap();
    // This wait subscribes the process to the messages of its lines.
    let waiter = waits(&tries);
    stand(&server, 1).await;
    waiter.abort();
    stand(&server, 0).await;
    let stock = tries.mutex("stock");
    for _ in 0..3 {
        assert!(stock.try_lock().owner(&Owner::new()).await.unwrap().is_none());
        assert!(tries.mutexes(["stock"]).try_lock().await.unwrap().is_none());
        assert!(!server.all_keys().await.contains(&LINE.to_owned()));
    }
    guard.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn several_names_wait_in_one_line_at_a_time() {
    let server = Server::start().await;
    let (holds, all) = (process(&server.url()).await, process(&server.url()).await);
    let mut guards = Vec::new();
    for name in ["c", "b", "a"] {
        guards.push((name, holds.mutex(name).lock().await.unwrap()));
    }
    let request = tokio::spawn(all.mutexes(["a", "b", "c"]).lock());
    let lines = async || {
        let mut keys = server.all_keys().await;
        keys.retain(|key| key.starts_with("nestlock_line:"));
        assert!(keys.len() <= 1, "{keys:?}");
        keys
    };
    while let Some((name, guard)) = guards.pop() {
        eventually("its line", async || lines().await == [format!("nestlock_line:{{{name}}}")]).await;
        guard.release().await.unwrap();
    }
    let all = soon("all of them", request).await.unwrap().unwrap();
    assert_eq!(server.all_keys().await, ["a", "b", "c"]);
    all.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn locks_that_have_one_channel_have_each_their_line() {
    let server = Server::start().await;
    let (holds, waiter) = (process(&server.url()).await, process(&server.url()).await);
    let (plain, braced) = (["stock", "{stock}"], ["{stock}", "stock"]);
    for [freed, held] in [plain, braced] {
        let guards = (holds.mutex(freed).lock().await.unwrap(), holds.mutex(held).lock().await.unwrap());
        // First the process begins to wait for the lock that stays held.
        let other = tokio::spawn(waiter.mutex(held).lock());
        let lines = async || server.all_keys().await.iter().filter(|key| key.contains("_line:")).count();
        eventually("the first line", async || lines().await == 1).await;
        let request = tokio::spawn(waiter.mutex(freed).lock());
        eventually("the second line", async || lines().await == 2).await;
        guards.0.release().await.unwrap();
        soon("the lock that was freed", request).await.unwrap().unwrap().release().await.unwrap();
        assert!(!other.is_finished());
        guards.1.release().await.unwrap();
        soon("the other one", other).await.unwrap().unwrap().release().await.unwrap();
    }
    tidy(&server).await;
}

#[tokio::test]
async fn a_lock_that_is_freed_by_force_is_the_first_ones() {
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let guard = holds.mutex("stock").lock().await.unwrap();
    let (first, second) = (process(&server.url()).await, process(&server.url()).await);
    let first = waits(&first);
    stand(&server, 1).await;
    let second = waits(&second);
    stand(&server, 2).await;
    let line = super::line(&server).await;
    assert!(holds.mutex("stock").force_release().await.unwrap());
    let first = granted(first).await;
    assert_eq!((session(&first), super::line(&server).await), (&*line[0], vec![line[1].clone()]));
    assert_eq!(holder(&server).await, Some((line[0].clone(), 1)));
    guard.release().await.unwrap_err();
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn a_lock_that_was_kept_for_a_time_is_the_first_ones_afterwards() {
    const TIME: std::time::Duration = std::time::Duration::from_millis(800);
    let server = Server::start().await;
    let holds = process(&server.url()).await;
    let asked = tokio::time::Instant::now();
    let guard = holds.mutex("stock").lock().at_least(TIME).await.unwrap();
    let (one, two) = (process(&server.url()).await, process(&server.url()).await);
    let first = waits(&one);
    stand(&server, 1).await;
    let second = waits(&two);
    stand(&server, 2).await;
    let line = super::line(&server).await;
    guard.release().await.unwrap();
    let first = granted(first).await;
    assert!(asked.elapsed() > TIME - TIME / 10);
    assert_eq!(session(&first), line[0]);
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    tidy(&server).await;
}

#[tokio::test]
async fn tokens_grow_from_one_to_the_next() {
    let server = Server::start().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(process(&server.url()).await);
    }
    let wait = |locks: &Locks| tokio::spawn(locks.mutex("stock").fenced().lock());
    let mut guard = processes[0].mutex("stock").fenced().lock().await.unwrap();
    let mut waiters = VecDeque::new();
    for locks in &processes[1..] {
        waiters.push_back(wait(locks));
        stand(&server, waiters.len()).await;
    }
    for turn in 0..9 {
        let before = guard.token();
        guard.release().await.unwrap();
        guard = soon("the next", waiters.pop_front().unwrap()).await.unwrap().unwrap();
        assert!(guard.token() > before, "{} after {before}", guard.token());
        waiters.push_back(wait(&processes[turn % 3]));
        stand(&server, waiters.len()).await;
    }
    while let Some(waiter) = waiters.pop_front() {
        let before = guard.token();
        guard.release().await.unwrap();
        guard = soon("the next", waiter).await.unwrap().unwrap();
        assert!(guard.token() > before);
    }
    guard.release().await.unwrap();
    tidy(&server).await;
}
