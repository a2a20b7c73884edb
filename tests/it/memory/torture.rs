//! Half an hour of paused time with random faults, during which the promises of a hold are checked all the time.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use nestlock::{ErrorKind, Guard, Locks, Owner};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::{LEASE, MILLISECOND, SECOND, options, rest};
use crate::support::home::memory::Home;

const PROCESSES: usize = 3;
const TASKS: usize = 4;
const LONG: Duration = Duration::from_secs(1800);

/// The guards that were handed out and are not released yet: at most one of them may be valid.
#[derive(Default)]
struct Held(StdMutex<Vec<Arc<Guard>>>);

impl Held {
    fn taken(&self, guard: Guard) -> Arc<Guard> {
        let mut held = self.0.lock().unwrap();
        let good = held.iter().find(|other| !other.is_lost() && other.valid_until() > Instant::now());
        assert!(good.is_none(), "{guard:?} beside {good:?}");
        let guard = Arc::new(guard);
        held.push(guard.clone());
        guard
    }

    /// Removes the guard from the list before it is released.
    fn given(&self, guard: Arc<Guard>) -> Guard {
        self.0.lock().unwrap().retain(|held| !Arc::ptr_eq(held, &guard));
        Arc::try_unwrap(guard).expect("nobody else has it")
    }
}

fn some(random: &mut StdRng, longest: Duration) -> Duration {
    Duration::from_millis(random.random_range(0..=longest.as_millis() as u64))
}

/// Takes the lock in all ways, and ends its holds in all ways.
async fn user(locks: Locks, held: Arc<Held>, mut random: StdRng, end: Instant) -> (u32, u32) {
    let (mut taken, mut lost) = (0, 0);
    let stock = locks.mutex("stock");
    while Instant::now() < end {
        sleep(some(&mut random, SECOND)).await;
        let request = stock.lock().owner(&Owner::new());
        let request = match random.random_range(0..4) {
            0 => request.within(some(&mut random, 20 * SECOND)),
            1 => request.fixed_lease(SECOND + some(&mut random, LEASE)),
            _ => request,
        };
        // Sometimes the request is dropped before it completes.
        let limit =
            if random.random_range(0..4) == 0 { some(&mut random, 2 * SECOND) } else { Duration::MAX };
        let guard = match timeout(limit, request).await {
            Ok(Ok(guard)) => held.taken(guard),
            Ok(Err(error)) => {
                assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
                continue;
            }
            Err(_) => continue,
        };
        taken += 1;
        let inner = match random.random() {
            true => guard.scope(stock.lock()).await.ok(),
            false => None,
        };
        let longest = if random.random_range(0..8) == 0 { 2 * LEASE } else { SECOND };
        let stay = some(&mut random, longest);
        tokio::select! {
            _ = guard.lost() => lost += 1,
            () = sleep(stay) => {}
        }
        let (order, guard) = (random.random::<bool>(), held.given(guard));
        if order {
            drop(inner);
        }
        if random.random() {
            if let Err(error) = guard.release().await {
                assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable), "{error}");
            }
        } else {
            drop(guard);
        }
    }
    (taken, lost)
}

async fn trouble(home: &Home, mut random: StdRng, end: Instant) {
    while Instant::now() < end {
        sleep(some(&mut random, 20 * SECOND)).await;
        match random.random_range(0..8) {
            0 => home.stall(some(&mut random, 2 * LEASE)).await,
            1..=3 => home.stall(some(&mut random, 3 * SECOND)).await,
            _ => home.drop_replies(random.random_range(1..6)).await,
        }
    }
    home.stall(Duration::ZERO).await;
    home.drop_replies(0).await;
}

#[tokio::test(start_paused = true)]
async fn through_half_an_hour_of_trouble_no_two_hold_at_once_and_nothing_is_left() {
    let seed =
        std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("seed {seed}");
    let (home, held, end) = (Home::start().await, Arc::<Held>::default(), Instant::now() + LONG);
    let mut users = Vec::new();
    for process in 0..PROCESSES {
        let locks = options(&home).connect().await.unwrap();
        for task in 0..TASKS {
            let random = StdRng::seed_from_u64(seed ^ (process * TASKS + task + 1) as u64);
            users.push(tokio::spawn(user(locks.clone(), held.clone(), random, end)));
        }
    }
    trouble(&home, StdRng::seed_from_u64(seed), end).await;
    let (mut taken, mut lost) = (0, 0);
    // Each user may still keep the others waiting for two leases.
    let patience = 3 * LEASE * (PROCESSES * TASKS) as u32;
    for user in users {
        let (took, missed) = timeout(patience, user).await.expect("it ends").unwrap();
        (taken, lost) = (taken + took, lost + missed);
    }
    println!("taken {taken}, lost {lost}");
    assert!(taken > 150 && lost > 0, "taken {taken}, lost {lost}");
    sleep(LEASE + 5 * SECOND).await;
    assert!(home.keys().await.is_empty());
    let free = options(&home).connect().await.unwrap();
    let asked = Instant::now();
    free.mutex("stock").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    rest().await;
    assert!(asked.elapsed() <= 5 * MILLISECOND);
}
