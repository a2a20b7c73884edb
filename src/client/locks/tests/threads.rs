//! What another thread does in between, although this one would usually be first.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::sleep;

use crate::base::Task;
use crate::base::testing::simulation::{Simulation, simulate};
use crate::{Locks, Memory};

thread_local! {
    /// A master that answers, and one that is slow.
    static SLOW: RefCell<Option<[Memory; 2]>> = const { RefCell::new(None) };
}

fn is_held(store: &Memory) -> bool {
    format!("{store:?}") != "Memory { locks: {} }"
}

/// Polls the task that waits for the slow master, whose answer is there, before its spawner continues, as
/// another thread might.
fn on_another_thread(mut task: Task) -> Task {
    let ended = |[quick, _]: &mut [Memory; 2]| !is_held(quick);
    let Some([_, slow]) = SLOW.with_borrow_mut(|slow| slow.take_if(ended)) else { return task };
    slow.faults().stall(Duration::ZERO);
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(()) => Box::pin(async {}),
        Poll::Pending => task,
    }
}

/// The release is sent by a guard, and by the background. The verdict counts the slow master among those that
/// are still to answer: if that were noted after the answer, it would keep the hold for a lease.
#[tokio::test(start_paused = true)]
async fn what_answers_right_after_the_verdict_counts_after_it() {
    for releases in [true, false] {
        let stores = [Memory::new(), Memory::new(), Memory::new()];
        let builder = Locks::quorum(&stores);
        let locks = builder.lease(Duration::from_secs(60)).connect().await.unwrap();
        let guard = locks.mutex("stock").lock().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        stores[2].faults().stall(Duration::from_millis(300));
        SLOW.set(Some([stores[0].clone(), stores[2].clone()]));
        simulate(Some(Simulation { gate: on_another_thread, time_of_day: || 1, chance: || 0 }));
        match releases {
            true => guard.release().await.unwrap(),
            false => drop(guard),
        }
        sleep(Duration::from_secs(2)).await;
        simulate(None);
        assert!(SLOW.take().is_none(), "nothing waited for the slow one");
        assert!(!stores.iter().any(is_held), "{stores:?}");
        assert!(locks.handle.table(|table, _| table.is_empty()), "kept for a lease");
    }
}
