// SPDX-License-Identifier: Apache-2.0
//! Whether the host is going down: then what ends has not ended because anybody wanted it to.
//!
//! systemd is asked, where it is there. Anywhere else an end is what it looks like, and
//! only a host that is lost (no power, a panic) leaves sandboxes without an end.

use std::{
    fs, io,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crab_runtime::reaper::{Limit, Reaper};

/// Where systemd says that it runs the host: sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
/// What systemd's init becomes at the last, when nobody can be asked any more; as much of its
/// name as the kernel keeps.
const LAST: &str = "systemd-shutdow";
/// For how long it is asked. It answers in a few milliseconds; while the host goes down, with as
/// many shims that ask as there were sandboxes, it may take seconds. But whoever deletes the container
/// waits for it, Docker for two seconds.
const LIMIT: Duration = Duration::from_secs(2);
/// How often it is asked when it could not be reached, and after what time again.
const TRIES: usize = 5;
const AGAIN: Duration = Duration::from_millis(300);

/// 128 and SIGKILL, 128 and SIGTERM: as a host that goes down ends what runs.
const BY_SIGNAL: [u32; 2] = [137, 143];

/// Asks, blocking this thread. Nothing if nobody says.
pub(crate) fn is_near(reaper: &Reaper) -> Option<bool> {
    if !Path::new(BOOTED).is_dir() {
        return Some(false);
    }
    is_told(reaper, "systemctl", &["is-system-running"])
}

/// Whether a sandbox that ended with this status went with its host. Where nobody says, what a
/// host that goes down would have ended did: a sandbox too many can be stopped again, one too few
/// is missed.
pub(crate) fn took_along(is_near: Option<bool>, exit: u32) -> bool {
    is_near.unwrap_or_else(|| BY_SIGNAL.contains(&exit))
}

/// Whether this says so. It ends with a failure then, and says it nevertheless.
fn is_told(reaper: &Reaper, program: &str, arguments: &[&str]) -> Option<bool> {
    let start = Instant::now();
    let mut why = String::new();
    for _ in 0..TRIES {
        if fs::read_to_string("/proc/1/comm").is_ok_and(|name| name.trim_end() == LAST) {
            return Some(true);
        }
        let limit = Limit::after(LIMIT.saturating_sub(start.elapsed()));
        why = match reaper.answer(Command::new(program).args(arguments), limit) {
            Ok((status, said)) => match said.trim_ascii() {
                b"stopping" => return Some(true),
                // It could not be reached, or gave its own tool no answer.
                b"" | b"unknown" => format!("{program} ended with {status}"),
                _ => return Some(false),
            },
            // There is nobody to ask.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(false),
            Err(error) => error.to_string(),
        };
        if start.elapsed() >= LIMIT {
            break;
        }
        thread::sleep(AGAIN);
    }
    tracing::warn!(why, "systemd does not say whether the host is going down");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_says_is_heard_however_long_it_takes() {
        let reaper = Reaper::start().unwrap();
        let says = |script: &str| is_told(&reaper, "sh", &["-c", script]);
        assert_eq!(says("echo stopping; exit 1"), Some(true));
        assert_eq!(says("echo running"), Some(false));
        assert_eq!(is_told(&reaper, "/nothing", &[]), Some(false));
        assert_eq!(says("sleep 1; echo stopping; exit 1"), Some(true));
        // Not reached at first, and killed.
        let dir = tempfile::tempdir().unwrap();
        let tried = dir.path().join("tried");
        let script = |first: &str| {
            let tried = tried.display();
            format!("[ -e {tried} ] && echo stopping && exit 1; touch {tried}; {first}")
        };
        for first in ["exit 1", "echo unknown; exit 1", "kill -9 $$"] {
            assert_eq!(says(&script(first)), Some(true), "{first}");
            fs::remove_file(&tried).unwrap();
        }
    }

    #[test]
    fn where_nobody_says_a_kill_may_have_been_the_hosts() {
        assert!(took_along(None, 143) && took_along(None, 137));
        assert!(!took_along(None, 0) && !took_along(None, 1));
        assert!(!took_along(Some(false), 137) && took_along(Some(true), 0));
    }
}
