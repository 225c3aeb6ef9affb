// SPDX-License-Identifier: Apache-2.0
//! The states in which a process can be, and what is refused in them.

use containerd_shim_protos::{
    protobuf::{MessageField, well_known_types::timestamp::Timestamp},
    types::task::Status as TaskStatus,
};
use crab_runtime::reaper::Exit;

/// "Never", as Go says it.
const NEVER: i64 = -62_135_596_800;

/// When a process ended, as containerd is told.
pub(crate) fn exited_at(exit: Option<Exit>) -> MessageField<Timestamp> {
    MessageField::some(match exit {
        Some(exit) => exit.at.into(),
        None => Timestamp {
            seconds: NEVER,
            ..Default::default()
        },
    })
}

/// The life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It exists, its program does not run. For an init, what `create` leaves;
    /// a restored one has no pid until it is started.
    Created(Option<i32>),
    /// A start is under way.
    Starting,
    Running(i32),
    /// It is being frozen.
    Pausing(i32),
    Paused(i32),
    /// A rollback is exchanging the init's process for another.
    Replacing(i32),
    Stopped(i32, Exit),
}

impl Phase {
    /// The pid, 0 where there is none.
    pub(crate) fn pid(self) -> i32 {
        match self {
            Self::Created(pid) => pid.unwrap_or(0),
            Self::Starting => 0,
            Self::Running(pid)
            | Self::Pausing(pid)
            | Self::Paused(pid)
            | Self::Replacing(pid)
            | Self::Stopped(pid, _) => pid,
        }
    }

    /// What containerd calls it.
    pub(crate) fn status(self) -> TaskStatus {
        match self {
            Self::Created(_) | Self::Starting => TaskStatus::CREATED,
            Self::Running(_) | Self::Replacing(_) => TaskStatus::RUNNING,
            Self::Pausing(_) => TaskStatus::PAUSING,
            Self::Paused(_) => TaskStatus::PAUSED,
            Self::Stopped(..) => TaskStatus::STOPPED,
        }
    }

    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Created(_) => "created",
            Self::Starting => "starting",
            Self::Running(_) => "running",
            Self::Pausing(_) => "pausing",
            Self::Paused(_) => "paused",
            Self::Replacing(_) => "rolling-back",
            Self::Stopped(..) => "stopped",
        }
    }

    pub(crate) fn exit(self) -> Option<Exit> {
        match self {
            Self::Stopped(_, exit) => Some(exit),
            _ => None,
        }
    }
}

/// Why a change of state is refused; each maps to one gRPC code.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum StateError {
    #[error("{what} {id}: not found")]
    NotFound { what: &'static str, id: String },
    #[error("{what} {id}: already exists")]
    Exists { what: &'static str, id: String },
    /// The Go shim has no code of its own for most of these, and clients know it so.
    #[error("cannot {verb} {id}: it is {state}")]
    Refused {
        verb: &'static str,
        id: String,
        state: &'static str,
    },
    #[error("cannot {verb} {id}: it is {state}")]
    Precondition {
        verb: &'static str,
        id: String,
        state: &'static str,
    },
}
