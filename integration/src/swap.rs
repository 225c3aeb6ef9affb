// SPDX-License-Identifier: Apache-2.0

//! Files of the host that are missing, or others, for the time of a test.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A file that is missing or another. As it was when dropped.
#[derive(Debug)]
pub struct Swapped {
    path: PathBuf,
    /// Where the real one is meanwhile; nothing if there was none.
    kept: Option<PathBuf>,
}

impl Swapped {
    /// Takes a file away.
    pub fn hidden(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let aside = beside(&path, ".hidden-by-a-test")?;
        let kept = match path.symlink_metadata() {
            Ok(_) => {
                fs::rename(&path, &aside).with_context(|| format!("hide {}", path.display()))?;
                Some(aside)
            }
            Err(_) => None,
        };
        Ok(Self { path, kept })
    }

    /// Puts another in its place, executable.
    pub fn with(path: impl AsRef<Path>, content: &str) -> Result<Self> {
        let swapped = Self::hidden(path)?;
        swapped.put(content)?;
        Ok(swapped)
    }

    /// Puts a program in its place that knows where the real one is.
    pub fn wrapped(path: impl AsRef<Path>, wrap: impl FnOnce(&Path) -> String) -> Result<Self> {
        let swapped = Self::hidden(path)?;
        let real = swapped.kept.as_ref().context("there is nothing to wrap")?;
        swapped.put(&wrap(real))?;
        Ok(swapped)
    }

    fn put(&self, content: &str) -> Result<()> {
        let dir = self.path.parent().context("a path with a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let new = beside(&self.path, ".new-by-a-test")?;
        // Never half written.
        let write = || -> std::io::Result<()> {
            fs::write(&new, content)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
            fs::rename(&new, &self.path)
        };
        write().with_context(|| format!("write {}", self.path.display()))
    }

    /// Where the real one is.
    pub fn real(&self) -> Option<&Path> {
        self.kept.as_deref()
    }
}

fn beside(path: &Path, suffix: &str) -> Result<PathBuf> {
    let mut name = path.file_name().context("a path with a name")?.to_owned();
    name.push(suffix);
    Ok(path.with_file_name(name))
}

impl Drop for Swapped {
    fn drop(&mut self) {
        let done = match &self.kept {
            Some(kept) => fs::rename(kept, &self.path),
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        if let Err(error) = done {
            eprintln!("could not put {} back: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_it_was_afterwards() {
        let dir = std::env::temp_dir().join(format!("crab-swap-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (old, new) = (dir.join("old"), dir.join("sub/new"));
        fs::write(&old, "old").unwrap();
        {
            let hidden = Swapped::hidden(&old).unwrap();
            assert!(!old.exists());
            assert_eq!(fs::read_to_string(hidden.real().unwrap()).unwrap(), "old");
        }
        {
            let _old = Swapped::with(&old, "other").unwrap();
            let _new = Swapped::with(&new, "other").unwrap();
            assert_eq!(fs::read_to_string(&old).unwrap(), "other");
            assert_eq!(fs::read_to_string(&new).unwrap(), "other");
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert!(!new.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
