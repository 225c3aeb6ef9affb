// SPDX-License-Identifier: Apache-2.0
//! Whether the host is going down: then what ends has not ended because anybody wanted it to.
//!
//! systemd is asked, where it is there. Anywhere else an end is what it looks like, and
//! only a host that is lost (no power, a panic) leaves sandboxes without an end.

use std::{fs, path::Path, process::Command, time::Duration};

use crab_runtime::reaper::{Limit, Reaper};

/// Where systemd says that it runs the host: sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
/// What systemd's init becomes at the last, when nobody can be asked any more; as much of its
/// name as the kernel keeps.
const LAST: &str = "systemd-shutdow";
/// It answers in a few milliseconds, or is busy with worse.
const LIMIT: Duration = Duration::from_secs(2);

/// Asks, blocking this thread.
pub(crate) fn is_near(reaper: &Reaper) -> bool {
    if !Path::new(BOOTED).is_dir() {
        return false;
    }
    if fs::read_to_string("/proc/1/comm").is_ok_and(|name| name.trim_end() == LAST) {
        return true;
    }
    is_told(reaper, Command::new("systemctl").arg("is-system-running"))
}

/// Whether this says so. It ends with a failure then, and says it nevertheless.
fn is_told(reaper: &Reaper, ask: &mut Command) -> bool {
    match reaper.answer(ask, Limit::after(LIMIT)) {
        Ok((_, said)) => said.trim_ascii() == b"stopping",
        Err(error) => {
            tracing::warn!(%error, "systemd does not say whether the host is going down");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_says_is_heard() {
        let reaper = Reaper::start().unwrap();
        let says = |script: &str| is_told(&reaper, Command::new("sh").args(["-c", script]));
        assert!(says("echo stopping; exit 1"));
        assert!(!says("echo running"));
        assert!(!says("echo stopping >&2; exit 1"));
        assert!(!is_told(&reaper, &mut Command::new("/nothing")));
    }
}
