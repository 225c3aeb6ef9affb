// SPDX-License-Identifier: Apache-2.0
//! One call of the OCI runtime: its command line, its log, and what the log says of a
//! failure. The one place where the runtime's text is read.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::oci::OciError;

/// What the log of a call is named, with what tells it from the others.
pub(crate) const LOG_PREFIX: &str = "runtime-log-";

/// One call's log: several may run at once. Removed with it.
pub(crate) struct Log(PathBuf);

impl Log {
    pub(crate) fn new(bundle: &Path) -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{LOG_PREFIX}{}-{call}", std::process::id());
        let log = Self(bundle.join(name));
        // Of an earlier shim with the same id, perhaps.
        log.empty();
        log
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn empty(&self) {
        // Mostly it is not there.
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.empty();
    }
}

/// A call of the runtime that is about to be made.
pub(crate) struct Call {
    pub(crate) verb: &'static str,
    pub(crate) command: Command,
    /// The copy that the command runs, if it does.
    pub(crate) sealed: Option<Arc<OwnedFd>>,
    pub(crate) log: Log,
}

impl Call {
    pub(crate) fn failed(&self, status: u32, stderr: &[u8]) -> OciError {
        let reason = logged_errors(&self.log.0)
            .or_else(|| {
                let text = String::from_utf8_lossy(stderr);
                text.lines()
                    .rev()
                    .find(|l| !l.trim().is_empty())
                    .map(str::to_string)
            })
            .unwrap_or_else(|| "it gave no reason".into());
        OciError::Failed {
            verb: self.verb,
            status,
            reason,
        }
    }
}

/// How often a runtime runs that cannot seal its program. Each try waits 150 ms in the
/// kernel.
pub(crate) const SEAL_TRIES: u32 = 5;

/// Before it enters any namespace of the container, a runtime copies its own program into
/// a memfd and seals that against writing (CVE-2019-5736). The kernel refuses the seal with
/// EBUSY while anything else has a reference on one of the copy's pages
/// (`memfd_wait_for_pins`), be it its own reclaim: seen with Linux 6.18 and DAMON in one of
/// some thousand calls. Nothing of the container has run then, and the runtime has undone
/// its preparations: to begin again is as safe as to begin. What it printed about that on
/// its stderr has reached the client's by then: it is the container's, too.
pub(crate) fn was_not_sealed(error: &OciError) -> bool {
    let OciError::Failed { reason, .. } = error else {
        return false;
    };
    let reason = reason.to_ascii_lowercase();
    let seals = ["cloned binary", "seal fd", "memory file descriptor"];
    reason.contains("resource busy") && seals.iter().any(|text| reason.contains(text))
}

/// What the runtime logged as errors: the last is its own word for the failure; those
/// before it tell what the container's first process died of, which the last often
/// only calls a broken connection. Of a log that is not JSON, the last line.
fn logged_errors(log: &Path) -> Option<String> {
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let entries: Vec<serde_json::Value> = lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    if entries.is_empty() {
        return lines().next_back().map(|line| line.trim().to_string());
    }
    let mut errors: Vec<String> = entries.iter().filter_map(error_of).collect();
    let last = errors.pop()?;
    errors.retain(|earlier| !last.contains(earlier.as_str()));
    errors.dedup();
    if errors.is_empty() {
        return Some(last);
    }
    Some(format!("{last} (before: {})", errors.join("; ")))
}

/// The message of a log's entry, if it is an error's. runc, crun and runsc write `level`
/// and `msg`; youki, in capitals, `level` and `fields.message`.
fn error_of(entry: &serde_json::Value) -> Option<String> {
    let level = entry.get("level")?.as_str()?.to_ascii_lowercase();
    let message = entry
        .get("msg")
        .or_else(|| entry.pointer("/fields/message"))?
        .as_str()?;
    matches!(level.as_str(), "error" | "fatal" | "panic").then(|| message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_the_log_are_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.json");
        fs::write(
            &log,
            concat!(
                r#"{"level":"error","msg":"first","time":"t"}"#,
                "\n",
                r#"{"level":"error","msg":"exec failed: no such file","time":"t"}"#,
                "\n",
                r#"{"level":"info","msg":"bye","time":"t"}"#,
                "\nnot json\n"
            ),
        )
        .unwrap();
        assert_eq!(
            logged_errors(&log).as_deref(),
            Some("exec failed: no such file (before: first)")
        );
        assert_eq!(logged_errors(&dir.path().join("none")), None);
    }

    #[test]
    fn the_log_of_every_known_runtime_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        for (runtime, text, reason) in [
            (
                "crun 1.21",
                "{\"msg\":\"executable file `nosuch` not found in $PATH: No such file or directory\",\
                 \"level\":\"error\",\"time\":\"2026-11-30T00:17:21.099722Z\"}\n",
                "executable file `nosuch` not found in $PATH: No such file or directory",
            ),
            (
                "youki 0.5",
                "{\"timestamp\":\"2026-11-30T00:17:21Z\",\"level\":\"DEBUG\",\"fields\":{\"message\":\"x\"}}\n\
                 {\"timestamp\":\"2026-11-30T00:17:21Z\",\"level\":\"ERROR\",\
                 \"fields\":{\"message\":\"failed to exec\"},\"target\":\"youki\"}\n",
                "failed to exec",
            ),
            (
                "one without JSON",
                "starting\nno such container\n\n",
                "no such container",
            ),
        ] {
            fs::write(&log, text).unwrap();
            assert_eq!(logged_errors(&log).as_deref(), Some(reason), "{runtime}");
        }
        fs::write(&log, "{\"level\":\"info\",\"msg\":\"fine\"}\n").unwrap();
        assert_eq!(logged_errors(&log), None);
    }
}
