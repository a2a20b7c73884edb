//! What happens in a run, printed as it happens if `FUZZ_TRACE` is set.

use std::cell::Cell;
use std::fmt::Display;

use tokio::time::Instant;

thread_local! {
    /// When the run of this thread began: each run has a thread of its own.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

pub(super) fn begin() {
    BEGAN.set(std::env::var_os("FUZZ_TRACE").map(|_| Instant::now()));
}

pub(super) fn note<T: Display>(what: impl FnOnce() -> T) {
    if let Some(began) = BEGAN.get() {
        println!("{:>10.3} {}", began.elapsed().as_secs_f64(), what());
    }
}
