// SPDX-License-Identifier: Apache-2.0

//! One line: `crab: <what>: <why>; <what to do>`, and an exit code.

use std::{fmt, process::ExitCode};

use crab_store::{
    Around, CollectError, FileError, OpenError, ReadError, SandboxId, TagError, WriteError,
};

use crate::output::visible;

/// How `crab` ends. The numbers are part of its interface; `--help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// It was tried and failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No such sandbox, turn or checkpoint.
    NotFound = 3,
    /// It cannot be done in this state, or by this user; nothing was changed.
    Refused = 4,
    /// Two states differ, and that was the question.
    Differ = 5,
    /// Something in the store is damaged.
    Damaged = 6,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        (code as u8).into()
    }
}

/// Why a command failed, and what its user can do about it.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) code: Code,
    what: String,
    why: String,
    advice: String,
}

impl CliError {
    pub(crate) fn new(
        code: Code,
        what: impl fmt::Display,
        why: impl fmt::Display,
        advice: impl fmt::Display,
    ) -> Self {
        Self {
            code,
            what: one_line(what),
            why: one_line(why),
            advice: one_line(advice),
        }
    }

    /// Why it failed, where what failed is said already.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    pub(crate) fn failed(
        what: impl fmt::Display,
        why: impl fmt::Display,
        advice: impl fmt::Display,
    ) -> Self {
        Self::new(Code::Failed, what, why, advice)
    }

    /// What went wrong with the store while doing `what`.
    pub(crate) fn store(what: impl fmt::Display, error: StoreError) -> Self {
        let (code, advice) = error.code_and_advice();
        Self::new(code, what, error, advice)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crab: {}: {}; {}", self.what, self.why, self.advice)
    }
}

/// Some of it comes from other programs, whose messages have lines.
fn one_line(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    visible(&words.join(" "))
}

/// Any error of the store's.
#[derive(Debug)]
pub(crate) enum StoreError {
    Open(OpenError),
    Read(ReadError),
    Write(WriteError),
    Collect(CollectError),
    Tag(TagError),
}

impl From<CollectError> for StoreError {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Read(error) => Self::Read(error),
            CollectError::Write(error) => Self::Write(error),
            error => Self::Collect(error),
        }
    }
}

impl From<TagError> for StoreError {
    fn from(error: TagError) -> Self {
        match error {
            TagError::Read(error) => Self::Read(error),
            TagError::Write(error) => Self::Write(error),
            error => Self::Tag(error),
        }
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Read(error) => Self::Read(error),
            error => Self::Open(error),
        }
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Read(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
            Self::Collect(error) => error.fmt(f),
            Self::Tag(error) => error.fmt(f),
        }
    }
}

const NEWER: &str = "update crab to the version that wrote it";
const NO_SPACE: &str = "free some space and try again";

impl StoreError {
    fn code_and_advice(&self) -> (Code, String) {
        let (code, advice) = match self {
            Self::Open(error) => match error {
                OpenError::NoStore(_) => (
                    Code::NotFound,
                    "run a container with the runtime io.containerd.crab.v1, or name the store with --store",
                ),
                OpenError::NotAStore(_) => (Code::Failed, "name the right directory with --store"),
                OpenError::NewerFormat { .. } => (Code::Failed, NEWER),
                OpenError::FormatChanged { .. } => {
                    (Code::Damaged, "write that line into it, and nothing else")
                }
                OpenError::NoSandbox(_) => (Code::NotFound, "`crab ps` lists the sandboxes"),
                OpenError::Locked(_) => (Code::Refused, "try again when its shim has ended"),
                OpenError::NoSpace(_) => (Code::Failed, NO_SPACE),
                OpenError::File(error) => return file(error),
                OpenError::Read(ReadError::Wanted(_)) => (
                    Code::Refused,
                    "try again when it has ended; what was done so far is done",
                ),
                OpenError::Read(_) => (Code::Failed, "see the store's directory"),
            },
            Self::Read(error) => match error {
                ReadError::NoTurn { sandbox, .. } => return (Code::NotFound, list(sandbox)),
                ReadError::NoCheckpoint { left, .. } if **left != Around::default() => {
                    return (Code::NotFound, around(left));
                }
                ReadError::NoCheckpoint { sandbox, .. } => return (Code::NotFound, list(sandbox)),
                ReadError::NewerFormat { .. } => (Code::Failed, NEWER),
                ReadError::File(error) => return file(error),
                ReadError::Wanted(_) => (Code::Refused, "try again when it has ended"),
                ReadError::Damaged { .. }
                | ReadError::NoPack { .. }
                | ReadError::NoObject(_)
                | ReadError::Malformed { .. }
                | ReadError::Target(_) => (
                    Code::Failed,
                    "use another turn's checkpoint; `crab fsck` says what is damaged",
                ),
            },
            Self::Write(WriteError::NoSpace(_)) => (Code::Failed, NO_SPACE),
            Self::Write(WriteError::File(error)) => return file(error),
            Self::Write(_) => (Code::Failed, "see the store's directory"),
            Self::Collect(CollectError::Damaged(_)) => (
                Code::Failed,
                "`crab fsck` says what is damaged, and with --repair puts it aside",
            ),
            Self::Collect(_) => (Code::Failed, "try again"),
            Self::Tag(_) => (
                Code::Refused,
                "take another name, or --delete this one first",
            ),
        };
        (code, advice.to_owned())
    }
}

/// Which checkpoints are left around a turn.
fn around(left: &Around) -> String {
    let before = left.before;
    let before = before.map(|it| format!("the newest checkpoint before it is that of turn {it}"));
    let after = left.after;
    let after = after.map(|it| format!("the next one after it is that of turn {it}"));
    let both: Vec<String> = before.into_iter().chain(after).collect();
    both.join(", ")
}

fn list(sandbox: &SandboxId) -> String {
    format!("`crab turns {sandbox}` lists the turns")
}

fn file(error: &FileError) -> (Code, String) {
    let denied = error.cause.kind() == std::io::ErrorKind::PermissionDenied;
    if denied && !rustix::process::geteuid().is_root() {
        (Code::Refused, "run crab as root".to_owned())
    } else {
        (Code::Failed, "see the store's directory".to_owned())
    }
}
