// SPDX-License-Identifier: Apache-2.0
//! What the kernel holds of a process beside its memory and its descriptors, as far as it
//! tells: credentials, signals, limits, where in the tree of files it is.

use std::{fs, io, path::Path};

use super::{super::read::look, digests::Hash};

/// Of `/proc/<pid>/status` (proc_pid_status(5)): what is no counter, no measure, and not
/// the tracer's.
const TOLD: [&[u8]; 23] = [
    b"Name:",
    b"Umask:",
    b"Tgid:",
    b"Pid:",
    b"PPid:",
    b"Uid:",
    b"Gid:",
    b"Groups:",
    b"NSpid:",
    b"NSpgid:",
    b"NSsid:",
    b"SigPnd:",
    b"ShdPnd:",
    b"SigBlk:",
    b"SigIgn:",
    b"SigCgt:",
    b"CapInh:",
    b"CapPrm:",
    b"CapEff:",
    b"CapBnd:",
    b"CapAmb:",
    b"NoNewPrivs:",
    b"Seccomp",
];
/// And on which CPUs and memory it may be, and what it has asked of both.
const TOLD_OF_PLACE: [&[u8]; 4] = [
    b"Cpus_allowed:",
    b"Mems_allowed:",
    b"CoreDumping:",
    b"THP_enabled:",
];

/// Of `/proc/<pid>/stat`, counted from 1 (proc_pid_stat(5)): parent, group, session,
/// terminal and its foreground group; priorities; where program, stack, heap, arguments and
/// environment are; the signal of its end; scheduling policy.
const FIELDS: [usize; 20] = [
    4, 5, 6, 7, 8, 18, 19, 26, 27, 28, 38, 40, 41, 45, 46, 47, 48, 49, 50, 51,
];

/// Files that tell one thing each.
const WHOLE: [&str; 8] = [
    "limits",
    "timers",
    "personality",
    "coredump_filter",
    "oom_score_adj",
    "cgroup",
    "uid_map",
    "gid_map",
];

/// Of all threads of the process whose directory in `/proc` this is.
pub(super) fn read(proc: &Path, tids: &[i32], hash: &mut Hash) -> io::Result<()> {
    for name in WHOLE {
        hash.text(&fs::read(proc.join(name))?);
    }
    // By name: its inode in an overlay is another once its file was copied up, for a mode or
    // an owner. One that is replaced is "(deleted)".
    hash.text(
        fs::read_link(proc.join("exe"))?
            .as_os_str()
            .as_encoded_bytes(),
    );
    for name in ["cwd", "root"] {
        let link = proc.join(name);
        hash.text(fs::read_link(&link)?.as_os_str().as_encoded_bytes());
        let file = look(&link)?;
        hash.word(super::device(&file));
        hash.word(file.stx_ino);
    }
    for name in [
        "cgroup",
        "ipc",
        "mnt",
        "net",
        "pid",
        "pid_for_children",
        "time",
        "user",
        "uts",
    ] {
        let link = fs::read_link(proc.join("ns").join(name))?;
        hash.text(link.as_os_str().as_encoded_bytes());
    }
    for tid in tids {
        let thread = proc.join(format!("task/{tid}"));
        hash.word(*tid as u64);
        let status = fs::read(thread.join("status"))?;
        told(&status).for_each(|line| hash.text(line));
        let stat = fs::read(thread.join("stat"))?;
        fields(&stat).for_each(|field| hash.text(field));
    }
    Ok(())
}

fn told(status: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = status.split(|byte| *byte == b'\n');
    lines.filter(|line| {
        let mut names = TOLD.iter().chain(&TOLD_OF_PLACE);
        names.any(|name| line.starts_with(name))
    })
}

fn fields(stat: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A name may hold brackets and spaces; after the last one there are none.
    let after = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
    let words: Vec<&[u8]> = stat[after..].split(|byte| *byte == b' ').collect();
    // The bracket is of field 2.
    FIELDS
        .iter()
        .map(move |number| words.get(number - 2).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_the_tracer_are_not_told() {
        let status =
            b"Name:\ta\nState:\tt (tracing stop)\nTracerPid:\t5\nSigBlk:\t0\nVmRSS:\t7 kB\n\
                       Seccomp_filters:\t1\nvoluntary_ctxt_switches:\t9\n";
        let lines: Vec<&[u8]> = told(status).collect();
        assert_eq!(
            lines,
            [&b"Name:\ta"[..], b"SigBlk:\t0", b"Seccomp_filters:\t1"]
        );
    }

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = b"42 (a) S) t 7 8 9 34816 8 4194560 0";
        let found: Vec<&[u8]> = fields(stat).take(5).collect();
        assert_eq!(found, [&b"7"[..], b"8", b"9", b"34816", b"8"]);
    }
}
