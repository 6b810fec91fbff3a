// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a run costs.

use std::time::Duration;

use anyhow::Result;
use rustix::time::{clock_gettime, ClockId};

/// CPU time of this thread so far. A run is alone in its thread, so this is its own cost, whatever
/// else the machine does.
pub fn time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Most memory that this process had in GiB; Linux only.
pub fn peak_gib() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or_default();
    let kib = line.trim().trim_end_matches(" kB");
    Ok(kib.parse::<f64>()? / (1 << 20) as f64)
}
