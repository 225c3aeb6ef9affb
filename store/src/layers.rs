// SPDX-License-Identifier: Apache-2.0

//! Where the image of a sandbox lies on the host. The store holds what differs from it.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The layers below a sandbox's upper directory. They are containerd's or Docker's, and
/// may be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLayers {
    dirs: Vec<LayerDir>,
    /// Overlayfs keeps its attributes under `user.overlay.`, not `trusted.overlay.`.
    pub user_xattr: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LayerDir(#[serde(with = "crate::text")] Vec<u8>);

impl ImageLayers {
    /// These directories, the uppermost first.
    pub fn new<'a>(dirs: impl IntoIterator<Item = &'a Path>, user_xattr: bool) -> Self {
        let bytes = |dir: &Path| LayerDir(dir.as_os_str().as_bytes().to_vec());
        Self {
            dirs: dirs.into_iter().map(bytes).collect(),
            user_xattr,
        }
    }

    /// The directories, the uppermost first.
    pub fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs
            .iter()
            .map(|dir| OsString::from_vec(dir.0.clone()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_any_name_survives_json() {
        let odd = OsString::from_vec(b"/l/\xff\\".to_vec());
        let layers = ImageLayers::new([Path::new("/a"), Path::new(&odd)], true);
        let json = serde_json::to_string(&layers).unwrap();
        assert_eq!(json, r#"{"dirs":["/a","/l/\\xff\\\\"],"user_xattr":true}"#);
        let read: ImageLayers = serde_json::from_str(&json).unwrap();
        assert_eq!(read, layers);
        assert_eq!(read.dirs().nth(1), Some(odd.into()));
    }
}
