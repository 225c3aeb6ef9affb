// SPDX-License-Identifier: Apache-2.0
//! What of a container's surroundings a process image holds, and how runtimes are told.
//!
//! The one table of these options. What the runtime would refuse only after CRIU has
//! begun is an error here, before anything is frozen.

use std::{ffi::OsString, fs, path::Path, path::PathBuf};

use thiserror::Error;

/// Why an option cannot be obeyed.
#[derive(Debug, Error)]
pub enum OptionError {
    /// A mode of which the OCI runtimes know nothing.
    #[error("cgroups mode {0:?}: it is one of soft, full, strict and ignore")]
    CgroupsMode(String),
    /// A namespace that cannot be restored empty.
    #[error("empty namespace {0:?}: only the network namespace can be restored empty")]
    EmptyNamespace(String),
    /// An earlier image that this one cannot build upon.
    #[error("parent path {path}: {why}")]
    Parent {
        /// As the client gave it.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// What CRIU does with the cgroups of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupsMode {
    /// Properties are restored where the restore makes the cgroup; the runtimes' default.
    Soft,
    /// Properties are always restored.
    Full,
    /// The cgroups must not be there.
    Strict,
    /// They are neither dumped nor restored.
    Ignore,
}

impl CgroupsMode {
    /// From the word that the API carries; nothing is the runtime's own default.
    ///
    /// # Errors
    /// When it is none of the four.
    pub fn parse(word: &str) -> Result<Option<Self>, OptionError> {
        Ok(Some(match word {
            "" => return Ok(None),
            "soft" => Self::Soft,
            "full" => Self::Full,
            "strict" => Self::Strict,
            "ignore" => Self::Ignore,
            _ => return Err(OptionError::CgroupsMode(word.into())),
        }))
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Full => "full",
            Self::Strict => "strict",
            Self::Ignore => "ignore",
        }
    }
}

/// What a process image may hold or leave out (`runc checkpoint`'s options).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Leave the container running.
    pub leave_running: bool,
    /// Keep established TCP connections.
    pub tcp_established: bool,
    /// Allow unix sockets whose other end is outside.
    pub ext_unix_sk: bool,
    /// Keep file locks.
    pub file_locks: bool,
    /// Allow a terminal whose master is outside.
    pub shell_job: bool,
    /// Restore the network namespace empty: its devices are not of the image.
    pub empty_network: bool,
    /// What becomes of the cgroups; the runtime's own choice if none is said.
    pub cgroups: Option<CgroupsMode>,
    /// An earlier image, relative to this one's directory, of which only the changes are
    /// to be written. Only for a checkpoint.
    pub parent: Option<PathBuf>,
}

impl CheckpointOptions {
    /// The command line of `checkpoint` and `restore` for them, as runc and crun
    /// understand it.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let flags = [
            (self.tcp_established, "--tcp-established"),
            (self.ext_unix_sk, "--ext-unix-sk"),
            (self.file_locks, "--file-locks"),
            (self.shell_job, "--shell-job"),
        ];
        let mut arguments: Vec<OsString> = flags
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .map(|(_, flag)| flag.into())
            .collect();
        let mut valued = |flag: &str, value: OsString| {
            arguments.push(flag.into());
            arguments.push(value);
        };
        if self.empty_network {
            valued("--empty-ns", "network".into());
        }
        if let Some(mode) = self.cgroups {
            valued("--manage-cgroups-mode", mode.word().into());
        }
        if let Some(parent) = &self.parent {
            valued("--parent-path", parent.into());
        }
        arguments
    }

    /// Takes note of the namespaces that shall be restored empty.
    ///
    /// # Errors
    /// When one is not the network namespace: CRIU knows no other, by either name that
    /// OCI and the kernel have for it.
    pub fn restore_empty(&mut self, namespaces: &[String]) -> Result<(), OptionError> {
        for name in namespaces {
            if !matches!(name.as_str(), "network" | "net") {
                return Err(OptionError::EmptyNamespace(name.clone()));
            }
            self.empty_network = true;
        }
        Ok(())
    }

    /// Has the image in `images` build upon an earlier one.
    ///
    /// # Errors
    /// When there is no image: CRIU would write a full one and not say so, or wait for
    /// what never comes.
    pub fn build_upon(&mut self, parent: &Path, images: &Path) -> Result<(), OptionError> {
        let refuse = |why: String| OptionError::Parent {
            path: parent.to_path_buf(),
            why,
        };
        if parent.is_absolute() {
            return Err(refuse("it has to be relative to the image path".into()));
        }
        let earlier = images.join(parent);
        let inventory = earlier.join("inventory.img");
        // Resolved by names: the image directory itself may not be there yet.
        let found = fs::metadata(&inventory).or_else(|error| {
            let base = images.parent().zip(parent.strip_prefix("..").ok());
            match base {
                Some((base, rest)) => fs::metadata(base.join(rest).join("inventory.img")),
                None => Err(error),
            }
        });
        match found {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(refuse(format!("{} is no file", inventory.display()))),
            Err(error) => {
                let why = format!("there is no image, {}: {error}", inventory.display());
                return Err(refuse(why));
            }
        }
        self.parent = Some(parent.to_path_buf());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_its_words() {
        let options = CheckpointOptions {
            leave_running: true,
            tcp_established: true,
            ext_unix_sk: true,
            file_locks: true,
            shell_job: true,
            empty_network: true,
            cgroups: Some(CgroupsMode::Full),
            parent: Some("../before".into()),
        };
        let words = "--tcp-established --ext-unix-sk --file-locks --shell-job --empty-ns network \
                     --manage-cgroups-mode full --parent-path ../before";
        let words: Vec<&str> = words.split_whitespace().collect();
        assert_eq!(options.arguments(), words);
        assert!(CheckpointOptions::default().arguments().is_empty());
    }

    #[test]
    fn only_what_a_runtime_knows_is_taken() {
        for word in ["soft", "full", "strict", "ignore"] {
            let mode = CgroupsMode::parse(word).unwrap().unwrap();
            assert_eq!(mode.word(), word);
        }
        assert_eq!(CgroupsMode::parse("").unwrap(), None);
        assert!(CgroupsMode::parse("Soft").is_err());
        let mut options = CheckpointOptions::default();
        assert!(options.restore_empty(&["pid".into()]).is_err());
        assert!(!options.empty_network);
        options.restore_empty(&["network".into()]).unwrap();
        assert!(options.empty_network);
    }

    #[test]
    fn a_parent_is_an_image_beside_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("now");
        let mut options = CheckpointOptions::default();
        let refused = |options: &mut CheckpointOptions, parent: &str| {
            let error = options.build_upon(Path::new(parent), &images).unwrap_err();
            assert_eq!(options.parent, None);
            error.to_string()
        };
        assert!(refused(&mut options, "../before").contains("there is no image"));
        let before = dir.path().join("before");
        fs::create_dir(&before).unwrap();
        assert!(refused(&mut options, "../before").contains("there is no image"));
        fs::write(before.join("inventory.img"), "").unwrap();
        let absolute = before.display().to_string();
        assert!(refused(&mut options, &absolute).contains("relative"));
        options.build_upon(Path::new("../before"), &images).unwrap();
        assert_eq!(options.parent.as_deref(), Some(Path::new("../before")));
    }
}
