// SPDX-License-Identifier: Apache-2.0
//! Reading one process from `/proc`.

use std::{collections::BTreeMap, fs, io, path::Path};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

use super::{Process, Thread};
use crate::stat::{self, Stat, unless_gone};

fn read_args(pid: i32) -> io::Result<Vec<String>> {
    let raw = unless_gone(fs::read(format!("/proc/{pid}/cmdline")))?;
    let mut raw = raw.unwrap_or_default();
    raw.truncate(16 * 1024);
    Ok(raw
        .split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .filter(|arg| !arg.is_empty())
        .collect())
}

/// Where a thread is blocked; nothing where nobody may know (Yama's `ptrace_scope` 3).
fn read_place(thread: &Path) -> io::Result<String> {
    match unless_gone(fs::read_to_string(thread.join("syscall"))) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(String::new()),
        place => Ok(place?.unwrap_or_default().trim().to_string()),
    }
}

/// A process that lives, or nothing, for whom one that cannot be read does no harm as none.
pub(super) fn read_process(pid: i32) -> Option<Process> {
    look_at(pid).ok().flatten()
}

/// A process that lives; nothing if it is gone.
///
/// # Errors
/// When something of it cannot be read.
pub(super) fn look_at(pid: i32) -> io::Result<Option<Process>> {
    let Some(stat) = Stat::of(pid)?.filter(|stat| !stat.has_ended()) else {
        return Ok(None);
    };
    let mut threads = BTreeMap::new();
    let all = stat::threads(pid)?;
    if all.is_empty() {
        return Ok(None);
    }
    for (tid, dir) in all {
        let state =
            || io::Result::Ok(Stat::read(&dir.join("stat"))?.map_or('X', |stat| stat.state));
        // Before the counters as well: one that has been woken, and was not counted yet, may be
        // asleep again right after.
        let before = state()?;
        // A thread that went while we looked makes a difference next time.
        let Some(ran) = stat::ran(&dir)? else {
            continue;
        };
        let place = read_place(&dir)?;
        let after = state()?;
        threads.insert(
            tid,
            Thread {
                ran,
                place,
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
    Ok(Some(Process {
        pid,
        parent: stat.parent,
        start: stat.start,
        comm: stat.comm,
        args: read_args(seat)?,
        ignored: None,
        threads,
        seat,
    }))
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
    use std::{
        fs::File,
        process::{self, Command},
        thread,
        time::Duration,
    };

    use super::*;

    /// Tells a test that it runs in a process of its own that may hold few descriptors.
    const FEW: &str = "CRAB_TEST_FEW_DESCRIPTORS";

    #[test]
    fn a_process_that_cannot_be_read_is_not_gone() {
        const NAME: &str = "procs::read::tests::a_process_that_cannot_be_read_is_not_gone";
        if std::env::var_os(FEW).is_none() {
            let limited = "ulimit -n 64; exec \"$0\" --exact \"$1\"";
            let done = Command::new("sh")
                .args(["-euc", limited])
                .arg(std::env::current_exe().unwrap())
                .arg(NAME)
                .env(FEW, "1")
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && told.contains("1 passed"), "{told}");
            return;
        }
        let own = process::id() as i32;
        let mut open = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            open.push(file);
        }
        let looks = [
            Stat::of(own).map(drop),
            stat::threads(own).map(drop),
            look_at(own).map(drop),
        ];
        open.pop();
        let seen = look_at(own);
        drop(open);
        for look in looks {
            assert_eq!(look.unwrap_err().raw_os_error(), Some(libc::EMFILE));
        }
        // One descriptor at a time is enough: nothing is left out for want of a second.
        let seen = seen.unwrap().unwrap();
        assert_eq!(
            seen.threads.len(),
            look_at(own).unwrap().unwrap().threads.len()
        );
        assert!(!seen.args.is_empty());
    }

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
