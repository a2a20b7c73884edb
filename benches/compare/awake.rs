//! Cores that do not halt.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::sleep;

/// A loop that does nothing for as long as its parent lives.
const LOOP: &str =
    "while kill -0 \"$PPID\" 2>/dev/null; do n=0; while [ $n -lt 10000 ]; do n=$((n + 1)); done; done";

/// Loops that run only if nothing else does, one on each core that is measured on. They end when this is dropped.
pub(crate) struct Awake(Vec<Child>);

impl Awake {
    /// Starts loops on the cores in `BENCH_PINNED_CORES`, which `scripts/lab/bench` sets to those of the servers and of the client. Returns
    /// `None` if nothing is pinned, or the system has no such priority.
    pub(crate) async fn keep() -> Option<Awake> {
        let cores = env::var("BENCH_PINNED_CORES").ok()?;
        let mut awake = Awake(Vec::new());
        for core in cores.split_whitespace() {
            // Each program executes the next one in its own process, so that the loop itself is killed in the end.
            let idle = ["-c", core, "chrt", "--idle", "0", "sh", "-c", LOOP];
            let begun =
                Command::new("taskset").args(idle).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            awake.0.push(begun.ok()?);
        }
        // By now, a loop that can't run has ended.
        sleep(Duration::from_millis(200)).await;
        let running = awake.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)));
        (running && !awake.0.is_empty()).then_some(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
