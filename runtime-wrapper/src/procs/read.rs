// SPDX-License-Identifier: Apache-2.0
//! Reading one process from `/proc`.

use std::{collections::BTreeMap, fs, io, path::Path};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

use super::{Process, Thread};
use crate::stat::{self, Stat};

fn read_args(pid: i32) -> Vec<String> {
    let mut raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    raw.truncate(16 * 1024);
    raw.split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .filter(|arg| !arg.is_empty())
        .collect()
}

pub(super) fn read_process(pid: i32) -> Option<Process> {
    let stat = Stat::of(pid).filter(|stat| !stat.has_ended())?;
    let mut threads = BTreeMap::new();
    for (tid, dir) in stat::threads(pid).ok()? {
        let state = || Stat::read(&dir.join("stat")).map_or('X', |stat| stat.state);
        // Before the counters as well: one that has been woken, and was not counted yet, may be
        // asleep again right after.
        let before = state();
        // A thread that went while we looked makes a difference next time.
        let Some(ran) = stat::ran(&dir) else { continue };
        let place = fs::read_to_string(dir.join("syscall")).unwrap_or_default();
        let after = state();
        threads.insert(
            tid,
            Thread {
                ran,
                place: place.trim().to_string(),
                state: if before == 'R' { before } else { after },
            },
        );
    }
    let seat = if stat.first_has_ended() {
        let lives = |thread: &Thread| !matches!(thread.state, 'Z' | 'X');
        let living = threads.iter().find(|(_, thread)| lives(thread));
        living.map_or(pid, |(tid, _)| *tid)
    } else {
        pid
    };
    Some(Process {
        pid,
        parent: stat.parent,
        start: stat.start,
        comm: stat.comm,
        args: read_args(seat),
        ignored: None,
        threads,
        seat,
    })
}

/// The rest of a line of `/proc/<pid>/status`, with single blanks.
pub(super) fn field(status: &[u8], name: &str) -> Option<String> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    let line = String::from_utf8_lossy(line);
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The id in the innermost namespace.
pub(super) fn last_number(status: &[u8], name: &str) -> Option<u32> {
    field(status, name)?.rsplit(' ').next()?.parse().ok()
}

/// What the kernel knows of a file by itself. A file system whose server is in the sandbox, and
/// frozen, would have whoever asks it wait.
pub(super) fn look(path: &Path) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted)?)
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    /// A thread that was woken and has not had a CPU yet has the counters of before.
    #[test]
    fn a_process_that_waits_for_a_cpu_is_not_as_it_was() {
        let asleep = Thread {
            ran: (1, 1),
            place: "0 0x0".into(),
            state: 'S',
        };
        let woken = Thread {
            state: 'R',
            ..asleep.clone()
        };
        assert!(asleep.stood_still_since(&asleep));
        assert!(!woken.stood_still_since(&asleep));
        assert!(asleep.stood_still_since(&woken));
    }

    #[test]
    fn a_process_that_ran_is_seen_and_one_that_slept_is_not() {
        let mut busy = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = busy.id() as i32;
        // In its read, and off the CPU: its counters stand still.
        let rests = || {
            let process = read_process(pid).unwrap();
            thread::sleep(Duration::from_millis(5));
            let in_read = process.threads.values().all(|t| t.place.starts_with("0 "));
            in_read && read_process(pid).unwrap().rests_since(&process)
        };
        while !rests() {}
        let before = read_process(pid).unwrap();
        let again = read_process(pid).unwrap();
        assert!(again.rests_since(&before));
        use std::io::Write;
        busy.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        // At once: it has run, or it waits for a CPU.
        assert!(!read_process(pid).unwrap().rests_since(&before));
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(read_process(pid).is_none());
    }
}
