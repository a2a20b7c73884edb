use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::backend::{BoxFuture, ServerClock};
use crate::base::Failure;
use crate::base::telemetry::testing::Recorder;
use crate::wire::{Call, Reply};
use crate::{Locks, Master, Memory};

/// A master with this clock, or `None` if its clock must not be asked for.
#[derive(Debug)]
struct Clocked(Option<ServerClock>);

impl Backend for Clocked {
    fn run(self: Arc<Self>, _: Call) -> BoxFuture<std::result::Result<Reply, Failure>> {
        Box::pin(std::future::pending())
    }

    fn run_all(self: Arc<Self>, _: Vec<Call>) -> BoxFuture<Vec<std::result::Result<Reply, Failure>>> {
        Box::pin(std::future::pending())
    }

    fn is_younger_than(&self, _: Duration) -> bool {
        false
    }

    fn clock(&self) -> Option<ServerClock> {
        self.0
    }

    fn subscribe(&self, _: &str) {}

    fn unsubscribe(&self, _: &str) {}

    fn is_portable(&self) -> bool {
        true
    }

    fn close(&self) {}
}

#[test]
fn the_first_two_clocks_that_differ_by_more_than_a_quarter_of_the_lease_are_warned_of() {
    let now = Instant::now();
    let master = |seconds: Option<u64>| {
        let clock = seconds.map(|seconds| ServerClock::new(Duration::from_secs(seconds), now));
        Arc::new(Clocked(clock)) as Arc<dyn Backend>
    };
    let stores = [(); 3].map(|()| Memory::new());
    // A quarter of that lease is ten seconds.
    let builder = Locks::quorum(stores.each_ref().map(Master::memory)).lease(Duration::from_secs(40));
    let config = builder.check().unwrap();
    for (clocks, warnings) in [
        ([Some(100), Some(100), Some(100)], 0),
        ([Some(100), Some(105), Some(110)], 0),
        ([Some(100), Some(100), Some(111)], 1),
        ([Some(100), Some(200), Some(300)], 1),
        ([Some(100), None, Some(111)], 1),
        ([Some(100), None, None], 0),
    ] {
        let log = Recorder::start();
        compare_clocks(&config, &clocks.map(master));
        assert_eq!(log.count("the clocks of two masters differ"), warnings, "{clocks:?}");
    }
}
