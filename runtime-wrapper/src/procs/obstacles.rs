// SPDX-License-Identifier: Apache-2.0
//! What keeps CRIU from an image of the processes, or would have it do harm: as far as it can
//! be known before anything is frozen.

use std::{collections::BTreeSet, fs, os::unix::ffi::OsStrExt, path::Path};

use super::{
    Process, Set,
    holds::{IO_URING, targets},
    read::field,
};

/// Descriptors that CRIU cannot dump, by what they lead to (its `files.c`), and what a
/// person calls them.
const OPAQUE: [(&[u8], &str); 8] = [
    (IO_URING, "an io_uring"),
    (b"anon_inode:[userfaultfd]", "a userfaultfd"),
    (b"anon_inode:[perf_event]", "a performance counter"),
    (b"anon_inode:bpf-prog", "a BPF program"),
    (b"anon_inode:bpf_link", "a BPF link"),
    (b"anon_inode:[landlock-ruleset]", "a Landlock rule set"),
    (b"anon_inode:kvm-vm", "a virtual machine"),
    (b"/dev/fuse", "a FUSE file system that it serves"),
];

impl Set {
    /// Why no process image may be taken without harm or could not be restored, with
    /// process and reason; nothing if all seems well.
    pub fn obstacles(&self, init: i32) -> Vec<String> {
        let time_ns = |dir: &Path| fs::read_link(dir.join("ns/time")).ok();
        let init_time = time_ns(Path::new(&format!("/proc/{init}")));
        let pids: BTreeSet<i32> = self.processes.values().map(|process| process.pid).collect();
        let mut found = Vec::new();
        for process in self.processes.values() {
            let mut tell = |what: &str| {
                found.push(format!("process {} ({}) {what}", process.pid, process.comm));
            };
            if process.first_thread_has_ended() {
                tell("goes on without its first thread, which CRIU cannot dump");
            }
            let exe = fs::read_link(process.dir().join("exe")).unwrap_or_default();
            if is_busybox_sleep(&exe, &process.args) {
                tell("is busybox sleep, which a dump would end");
            }
            // One that is ending has none any more.
            let time = time_ns(&process.dir()).zip(init_time.as_ref());
            if time.is_some_and(|(its, of_init)| its != *of_init) {
                tell("is in another time namespace than the init");
            }
            // From outside it may be ourselves, or CRIU, for a capture that is under way.
            if tracer(process).is_some_and(|tracer| pids.contains(&tracer)) {
                tell("is traced by another, and has no place for CRIU");
            }
            let held: Vec<_> = targets(process).collect();
            for (target, what) in OPAQUE {
                if held
                    .iter()
                    .any(|held| held.as_os_str().as_bytes() == target)
                {
                    tell(&format!("holds {what}, which CRIU cannot dump"));
                }
            }
        }
        found
    }
}

/// `TracerPid` of proc_pid_status(5).
fn tracer(process: &Process) -> Option<i32> {
    let status = fs::read(process.dir().join("status")).ok()?;
    field(&status, "TracerPid:")?.parse().ok()
}

/// A dump interrupts system calls, and busybox's sleep does not sleep on.
fn is_busybox_sleep(exe: &Path, args: &[String]) -> bool {
    let base = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    base(exe).starts_with("busybox")
        && args
            .iter()
            .take(2)
            .any(|arg| base(Path::new(arg)) == "sleep")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn busybox_sleep_is_known_by_either_name() {
        assert!(is_busybox_sleep(
            Path::new("/bin/busybox"),
            &args("sleep 5")
        ));
        assert!(is_busybox_sleep(
            Path::new("/bin/busybox"),
            &args("busybox sleep 5")
        ));
        assert!(!is_busybox_sleep(
            Path::new("/usr/bin/sleep"),
            &args("sleep 5")
        ));
        assert!(!is_busybox_sleep(Path::new("/bin/busybox"), &args("sh")));
    }
}
