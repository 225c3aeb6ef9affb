// SPDX-License-Identifier: Apache-2.0
//! Reading one process from `/proc` (proc_pid_stat(5), proc_pid_schedstat).

use std::{collections::BTreeMap, fs, path::Path};

use super::{Process, Thread};

/// `pid (comm) state ppid ...`; the name may hold anything, also brackets.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let comm = head.split_once(" (")?.1.to_string();
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // `state` is field 3, the start time field 22.
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        comm,
        state,
        parent,
        start,
    })
}

/// What is read of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    comm: String,
    state: char,
    parent: i32,
    start: u64,
}

fn read_stat(path: &Path) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&fs::read(path).ok()?))
}

fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    let run = fields.next()?.parse().ok()?;
    let slices = fields.nth(1)?.parse().ok()?;
    Some((run, slices))
}

fn read_args(pid: i32) -> Vec<String> {
    let mut raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    raw.truncate(16 * 1024);
    raw.split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .filter(|arg| !arg.is_empty())
        .collect()
}

pub(super) fn read_process(pid: i32) -> Option<Process> {
    let Stat {
        comm,
        state,
        parent,
        start,
    } = read_stat(Path::new(&format!("/proc/{pid}/stat")))?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let dir = entry.path();
        let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let ran = fs::read_to_string(dir.join("schedstat"))
            .ok()
            .and_then(|text| parse_schedstat(&text));
        // A thread that went while we looked makes a difference next time.
        let Some(ran) = ran else { continue };
        let place = fs::read_to_string(dir.join("syscall")).unwrap_or_default();
        threads.insert(
            tid,
            Thread {
                ran,
                place: place.trim().to_string(),
                rests: read_stat(&dir.join("stat")).is_some_and(|stat| stat.state == 'S'),
            },
        );
    }
    Some(Process {
        pid,
        parent,
        start,
        comm,
        args: read_args(pid),
        threads,
    })
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_stat_line() {
        let stat = "42 (a) S (b) S 1 42 42 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        let expected = Stat {
            comm: "a) S (b".into(),
            state: 'S',
            parent: 1,
            start: 777,
        };
        assert_eq!(parse_stat(stat), Some(expected));
    }

    #[test]
    fn a_process_that_ran_is_seen_and_one_that_slept_is_not() {
        let mut busy = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = busy.id() as i32;
        let blocked = || {
            let process = read_process(pid).unwrap();
            process.threads.values().all(|t| t.place.starts_with("0 "))
        };
        while !blocked() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        let before = read_process(pid).unwrap();
        let again = read_process(pid).unwrap();
        assert!(again.rests_since(&before));
        use std::io::Write;
        busy.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(!read_process(pid).unwrap().rests_since(&before));
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(read_process(pid).is_none());
    }
}
