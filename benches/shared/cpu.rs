//! Processor time, of this process and of the server.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::server::Result;
use crate::stats::Stats;

/// Returns the processor time of this process, for all threads together.
pub(crate) fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the processor time of the server, as it reports it.
pub(crate) async fn servers(stats: &mut Stats) -> Result<Duration> {
    let mut sum = 0.0;
    for name in ["used_cpu_user", "used_cpu_sys"] {
        let seconds =
            stats.fact("cpu", name).await?.ok_or("the server does not report its processor time")?;
        sum += seconds.parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(sum))
}
