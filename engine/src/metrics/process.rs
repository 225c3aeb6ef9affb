// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of this process.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// As `proc(5)` has it, in the units of Prometheus.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Process {
    /// Since the Unix epoch.
    pub(super) started_s: f64,
    pub(super) resident_bytes: u64,
    pub(super) cpu_s: f64,
}

/// `USER_HZ`, which is the same on every architecture.
const TICKS: f64 = 100.0;

impl Process {
    /// This one, now.
    pub(super) fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let statm = fs::read_to_string("/proc/self/statm").ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let page = rustix::param::page_size() as u64;
        Self::of(&stat, &statm, &uptime, now.as_secs_f64(), page)
    }

    fn of(stat: &str, statm: &str, uptime: &str, now_s: f64, page: u64) -> Option<Self> {
        // The name may hold anything, and ends with the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        // utime and stime are fields 14 and 15, counted from 1, and starttime is 22.
        let user: f64 = fields.nth(11)?.parse().ok()?;
        let system: f64 = fields.next()?.parse().ok()?;
        let start: f64 = fields.nth(6)?.parse().ok()?;
        let up: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
        let resident: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Self {
            started_s: now_s - up + start / TICKS,
            resident_bytes: resident * page,
            cpu_s: (user + system) / TICKS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 12300 999 5 0";
        let process = Process::of(stat, "100 25 3 1 0 9 0", "200.50 1.0", 1000.0, 4096).unwrap();
        assert_eq!(process.resident_bytes, 25 * 4096);
        assert_eq!(process.cpu_s, 2.0);
        assert_eq!(process.started_s, 1000.0 - 200.5 + 123.0);
        let own = Process::now().unwrap();
        assert!(own.resident_bytes > 0 && own.started_s > 1e9);
    }
}
