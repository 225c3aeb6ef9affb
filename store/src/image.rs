// SPDX-License-Identifier: Apache-2.0

//! The two halves of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    id::TurnId,
    machine::{Lacks, Machine},
    tree::{Segment, segments_fit},
};

/// The files of a sandbox at the end of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileImage {
    /// The turn at whose end it was taken.
    pub turn: TurnId,
    /// The tree of the overlay's upper directory.
    pub upper: Digest,
    /// Whether `upper` is the whole root instead, of a container whose root is no overlay. One
    /// cannot be put where the other was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// The trees of the tmpfs mounts.
    #[serde(default)]
    pub tmpfs: Vec<TmpfsTree>,
}

impl FileImage {
    /// The tree of the tmpfs that is mounted there, if one is.
    pub fn tmpfs_at(&self, mount: &[u8]) -> Option<Digest> {
        let found = self.tmpfs.iter().find(|tmpfs| tmpfs.mount == mount);
        found.map(|tmpfs| tmpfs.tree)
    }
}

/// The files of one tmpfs mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsTree {
    /// Where it is mounted in the container.
    #[serde(with = "crate::text")]
    pub mount: Vec<u8>,
    /// Its tree.
    pub tree: Digest,
}

/// The processes of a sandbox at the end of a turn, as CRIU dumped them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessImage {
    /// The turn at whose end it was taken.
    pub turn: TurnId,
    /// The files of CRIU's image directory. A further one of the same name lies over what
    /// is before it: see [`crate::Pages`].
    #[serde(deserialize_with = "crate::budget::list")]
    pub files: Vec<ImageFile>,
    /// Which of them hold tmpfs mounts.
    #[serde(deserialize_with = "crate::budget::list")]
    pub tmpfs_images: Vec<TmpfsImage>,
    /// The processes in it.
    #[serde(deserialize_with = "crate::budget::list")]
    pub processes: Vec<ProcessEntry>,
    /// The boot of the kernel that it was taken under.
    pub boot_id: String,
    /// The CRIU that took it.
    pub criu_version: String,
    /// The OCI runtime that drove it.
    pub runtime: String,
    /// What else a restore has to know (stdio pipes, namespaces, ...).
    #[serde(deserialize_with = "crate::budget::map")]
    pub extra: BTreeMap<String, String>,
}

/// Where [`ProcessImage::extra`] has the machine, as JSON.
const MACHINE: &str = "machine";

impl ProcessImage {
    /// Notes where it was taken, and with which runtime.
    pub fn set_machine(&mut self, machine: &Machine) {
        if let Ok(text) = serde_json::to_string(machine) {
            self.extra.insert(MACHINE.to_owned(), text);
        }
    }

    /// Where it was taken; nothing of earlier versions, which did not note it.
    pub fn machine(&self) -> Option<Machine> {
        let text = self.extra.get(MACHINE)?;
        let machine: Machine = serde_json::from_str(text).ok()?;
        Some(machine.bounded())
    }

    /// What this machine lacks for it, as far as that is known: then no restore can be relied on.
    pub fn lacking(&self) -> Option<Lacks> {
        self.machine()?.lacking(&Machine::with_processor())
    }
}

/// One file of a CRIU image directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// Its name: one path component.
    pub name: String,
    /// Its length.
    pub size: u64,
    /// Its bytes; what no segment covers is a hole.
    #[serde(deserialize_with = "crate::budget::list")]
    pub content: Vec<Segment>,
}

/// The image file that holds a tmpfs mount's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsImage {
    /// Where it is mounted in the container.
    pub mount: Vec<u8>,
    /// The name of the image file.
    pub image: String,
}

/// A process of an image, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEntry {
    /// Its pid in the container's own pid namespace.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its command line (see [`crate::command_line`]).
    pub cmdline: String,
}

impl ProcessImage {
    /// What is wrong with it: a file name that would leave the image
    /// directory, or segments that do not fit.
    pub(crate) fn fault(&self) -> Option<String> {
        let files = self.files.iter().map(|file| &file.name);
        let mut names = files.chain(self.tmpfs_images.iter().map(|tmpfs| &tmpfs.image));
        if let Some(name) = names.find(|name| !is_name(name)) {
            return Some(format!("{name:?} is no name of an image file"));
        }
        let mut files = self.files.iter();
        let unfit = files.find(|file| !segments_fit(&file.content, file.size))?;
        Some(format!(
            "segments of {} overlap or exceed its size",
            unfit.name
        ))
    }

    /// Every segment of every file.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.files.iter().flat_map(|file| &file.content)
    }
}

/// Whether this is one component of a path, and neither the directory itself nor hidden in it.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(file: &str, tmpfs: &str) -> ProcessImage {
        ProcessImage {
            turn: TurnId(1),
            files: vec![ImageFile {
                name: file.into(),
                size: 0,
                content: Vec::new(),
            }],
            tmpfs_images: vec![TmpfsImage {
                mount: b"/m".to_vec(),
                image: tmpfs.into(),
            }],
            processes: Vec::new(),
            boot_id: String::new(),
            criu_version: String::new(),
            runtime: String::new(),
            extra: BTreeMap::new(),
        }
    }

    #[test]
    fn no_name_in_an_image_leads_out_of_its_directory() {
        assert_eq!(image("core-1.img", "tmpfs-dev-73.tar.gz.img").fault(), None);
        for name in ["/etc/passwd", "../up", "..", "", "a/b", "a\0b"] {
            assert!(image(name, "tmpfs.img").fault().is_some(), "{name:?}");
            assert!(image("core-1.img", name).fault().is_some(), "{name:?}");
        }
    }
}
