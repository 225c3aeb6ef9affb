// SPDX-License-Identifier: Apache-2.0

//! Names that users give to turns. A turn that has one keeps its checkpoint.
//!
//! ```text
//! tags/<name>.json    {"turn":7,"checkpoint":4,"tagged_ms":...}   (envelope.rs)
//! ```
//!
//! A file each, so that damage costs one. Whoever writes here needs no writer's lock: a
//! sandbox is tagged while it runs. The lock on `manifests/` (locks.rs) makes it certain that
//! the checkpoint is not removed at the same time.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    durable,
    envelope::Envelope,
    error::{FileError, ReadError, WriteError},
    id::TurnId,
    locks,
    sandbox::SandboxStore,
};

pub(crate) const TAG: Envelope = Envelope {
    magic: "crab-tag",
    version: 1,
};
const TAGS_DIR: &str = "tags";
pub(crate) const TAG_SUFFIX: &str = ".json";
/// Longest name of a tag, in bytes.
const MAX_TAG: usize = 64;

/// A name for a turn: not one that could be its number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TagName(String);

/// Why a text is no [`TagName`].
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "a tag has 1 to {MAX_TAG} letters, digits, '.', '_' and '-', begins with a letter or '_', and {0:?} does not fit"
)]
pub struct TagNameError(String);

impl FromStr for TagName {
    type Err = TagNameError;

    fn from_str(text: &str) -> Result<Self, TagNameError> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let first = |c: &u8| c.is_ascii_alphabetic() || *c == b'_';
        let fits = text.len() <= MAX_TAG
            && text.as_bytes().first().is_some_and(first)
            && text.bytes().all(allowed);
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(TagNameError(text.chars().take(MAX_TAG).collect()))
        }
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a tag stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The turn.
    pub turn: TurnId,
    /// The checkpoint that holds its state.
    pub checkpoint: TurnId,
    /// When it was given, in milliseconds since the Unix epoch.
    pub tagged_ms: u64,
}

/// Tags by name, with the reason for each that is damaged.
pub type Tags = Vec<(TagName, Result<Tag, ReadError>)>;

/// Why a tag could not be given or taken.
#[derive(Debug, Error)]
pub enum TagError {
    /// The name is another turn's.
    #[error("{name} is turn {turn} already")]
    Taken {
        /// The name.
        name: TagName,
        /// Whose it is.
        turn: TurnId,
    },
    /// The turn cannot be tagged, or what is there not read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<FileError> for TagError {
    fn from(error: FileError) -> Self {
        Self::Write(error.into())
    }
}

impl SandboxStore {
    pub(crate) fn tags_dir(&self) -> PathBuf {
        self.dir().join(TAGS_DIR)
    }

    pub(crate) fn tag_path(&self, name: &TagName) -> PathBuf {
        self.tags_dir().join(format!("{name}{TAG_SUFFIX}"))
    }

    /// All tags, by name.
    pub fn tags(&self) -> Result<Tags, ReadError> {
        let names = durable::names(&self.tags_dir())?.into_iter();
        let tags = names.filter_map(|file| {
            let name: TagName = file.strip_suffix(TAG_SUFFIX)?.parse().ok()?;
            let tag = TAG.load(&self.tag_path(&name)).transpose()?;
            Some((name, tag))
        });
        Ok(tags.collect())
    }

    /// What a name stands for; nothing if it is nobody's.
    pub fn tag(&self, name: &TagName) -> Result<Option<Tag>, ReadError> {
        TAG.load(&self.tag_path(name))
    }

    /// Gives a turn a name. Its checkpoint stays as long as it has one.
    pub fn set_tag(&self, name: &TagName, turn: TurnId, now_ms: u64) -> Result<Tag, TagError> {
        let _none_goes = locks::checkpoints(self)?;
        match self.tag(name) {
            Ok(Some(tag)) if tag.turn == turn => return Ok(tag),
            Ok(Some(tag)) => {
                return Err(TagError::Taken {
                    name: name.clone(),
                    turn: tag.turn,
                });
            }
            // What is damaged is given anew.
            Ok(None) | Err(ReadError::Damaged { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let tag = Tag {
            turn,
            checkpoint: self.checkpoint_of(turn)?.turn,
            tagged_ms: now_ms,
        };
        let dir = self.tags_dir();
        if !dir.is_dir() {
            durable::create_dir(&dir)?;
            durable::sync_dir(self.dir())?;
        }
        durable::remove_temporaries(&dir)?;
        let bytes = TAG.seal(&tag).map_err(|error| WriteError::Value {
            what: "tag",
            why: error.to_string(),
        })?;
        durable::replace(&self.tag_path(name), &bytes)?;
        Ok(tag)
    }

    /// Takes a name back. Whether it was given.
    pub fn delete_tag(&self, name: &TagName) -> Result<bool, TagError> {
        let path = self.tag_path(name);
        let was_there = path.exists();
        if was_there {
            durable::remove(&path)?;
            durable::sync_dir(&self.tags_dir())?;
        }
        Ok(was_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_neither_a_number_nor_a_path_nor_an_option() {
        for good in ["a", "before-the-fix", "_1", "v1.2", &"x".repeat(MAX_TAG)] {
            assert_eq!(good.parse::<TagName>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "1",
            "1a",
            "-a",
            ".",
            "..",
            "a/b",
            "a b",
            "ä",
            &"x".repeat(65),
        ] {
            assert!(bad.parse::<TagName>().is_err(), "{bad:?}");
        }
    }
}
