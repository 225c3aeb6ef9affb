// SPDX-License-Identifier: Apache-2.0

//! What the host does to a sandbox's files past all its processes, as `docker cp` and its
//! like do: by paths through `/proc/<init>/root`.

use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use super::chance::Chance;

/// One such thing.
#[derive(Clone, Debug)]
pub enum Outside {
    /// A file with this content.
    Write(&'static str, u64),
    /// More of it.
    Append(&'static str, u64),
    /// It is gone.
    Remove(&'static str),
    /// Under another name.
    Rename(&'static str, &'static str),
    /// Another mode.
    Mode(&'static str, u32),
    /// A link to nowhere.
    Link(&'static str),
}

impl Outside {
    pub(super) fn by_chance(chance: &mut Chance, files: &[&'static str]) -> Self {
        let (one, other) = (chance.of(files), chance.of(files));
        match chance.within(0..6) {
            0 => Self::Write(one, chance.number()),
            1 => Self::Append(one, chance.number()),
            2 => Self::Remove(one),
            3 => Self::Rename(one, other),
            4 => Self::Mode(one, chance.of(&[0o600, 0o640, 0o755])),
            _ => Self::Link(one),
        }
    }

    /// Does it. What cannot be done (there is no such file) is no error: what comes of it
    /// is looked at.
    pub(super) fn act(&self, root: &Path) {
        let at = |path: &str| -> PathBuf { root.join(path.trim_start_matches('/')) };
        // A symlink there would lead to a file of the host.
        let is_plain = |path: &str| {
            fs::symlink_metadata(at(path)).is_ok_and(|file| file.file_type().is_file())
        };
        let _ = match self {
            Self::Write(path, seed) if is_plain(path) => fs::write(at(path), seed.to_string()),
            Self::Append(path, seed) if is_plain(path) => {
                let file = File::options().append(true).open(at(path));
                file.and_then(|mut file| file.write_all(&seed.to_le_bytes()))
            }
            Self::Mode(path, mode) if is_plain(path) => {
                fs::set_permissions(at(path), Permissions::from_mode(*mode))
            }
            Self::Write(..) | Self::Append(..) | Self::Mode(..) => Ok(()),
            Self::Remove(path) => fs::remove_file(at(path)),
            Self::Rename(from, to) => fs::rename(at(from), at(to)),
            Self::Link(path) => symlink("/nowhere", at(path)),
        };
    }
}
