// SPDX-License-Identifier: Apache-2.0

//! What a turn needs to be recoverable.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What changed in a turn, and so what its checkpoint has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Nothing: an older checkpoint holds this turn's state.
    None,
    /// Files only.
    Files,
    /// Processes only.
    Processes,
    /// Both.
    Full,
}

impl Class {
    /// The class for a turn that needs these halves.
    pub fn of(files: bool, processes: bool) -> Self {
        match (files, processes) {
            (false, false) => Self::None,
            (true, false) => Self::Files,
            (false, true) => Self::Processes,
            (true, true) => Self::Full,
        }
    }

    /// Whether a new file image is needed.
    pub fn has_files(self) -> bool {
        matches!(self, Self::Files | Self::Full)
    }

    /// Whether a new process image is needed.
    pub fn has_processes(self) -> bool {
        matches!(self, Self::Processes | Self::Full)
    }

    /// The word that users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Files => "files",
            Self::Processes => "processes",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
