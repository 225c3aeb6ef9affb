// SPDX-License-Identifier: Apache-2.0

//! Files that are there whole or not at all, also after a crash.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, open},
    io::Errno,
};

use crate::error::FileError;

/// The end of the name of a file that is being written.
const TEMPORARY: &str = ".tmp";

/// Creates a file of our own that must not exist yet.
pub(crate) fn create_new(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(FileError::of("create", path))
}

/// Makes a directory and its missing parents, for root alone.
pub(crate) fn create_dir(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::of("create", path))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FileError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(FileError::of("sync", path))
}

/// Makes the content of a file durable.
pub(crate) fn sync_file(path: &Path) -> Result<(), FileError> {
    File::open(path)
        .and_then(|file| file.sync_data())
        .map_err(FileError::of("sync", path))
}

/// Removes a file; that it is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(FileError::of("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Puts a file in place of whatever is at `path`: temporary file, fsync,
/// rename, fsync of the directory. When this fails, the old file is still
/// there, or, if only the last step failed, either of the two.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace_and(path, bytes, || {}, || {})
}

/// The same, and tells when the temporary file is durable and when it has its name.
pub(crate) fn replace_and(
    path: &Path,
    bytes: &[u8],
    written: impl FnOnce(),
    renamed: impl FnOnce(),
) -> Result<(), FileError> {
    let temporary = temporary(path)?;
    let replaced = create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)
            .map_err(FileError::of("write", &temporary))?;
        file.sync_all().map_err(FileError::of("sync", &temporary))?;
        written();
        fs::rename(&temporary, path).map_err(FileError::of("publish", path))
    });
    if let Err(error) = replaced {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    renamed();
    sync_dir(parent(path))
}

/// A file that has no name before it is whole, where the file system has such files: a process that
/// is killed leaves nothing of it.
pub(crate) struct Nameless {
    file: File,
    /// The name that it has elsewhere.
    temporary: Option<PathBuf>,
}

impl Nameless {
    /// For what shall be at `path`.
    pub(crate) fn beside(path: &Path) -> Result<Self, FileError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match open(parent(path), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(Self {
                file: file.into(),
                temporary: None,
            }),
            // As file systems, and kernels, say that they have none.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let temporary = temporary(path)?;
                Ok(Self {
                    file: create_new(&temporary)?,
                    temporary: Some(temporary),
                })
            }
            Err(error) => Err(FileError::of("create", path)(error.into())),
        }
    }

    /// The file.
    pub(crate) fn file(&self) -> Result<File, FileError> {
        let file = self.file.try_clone();
        file.map_err(FileError::of("write", Path::new("a file without a name")))
    }

    /// Puts it, which has to be on the disk, in place of whatever is at `path`.
    pub(crate) fn publish(mut self, path: &Path) -> Result<(), FileError> {
        if self.temporary.is_none() {
            match self.link(path) {
                Ok(()) => return sync_dir(parent(path)),
                // Only a name can take another's place.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(FileError::of("publish", path)(error.into())),
            }
            let temporary = temporary(path)?;
            self.link(&temporary)
                .map_err(|error| FileError::of("publish", path)(error.into()))?;
            self.temporary = Some(temporary);
        }
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, path).map_err(FileError::of("publish", path))?;
            self.temporary = None;
        }
        sync_dir(parent(path))
    }

    fn link(&self, to: &Path) -> Result<(), Errno> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Nameless {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The first error is the one to report.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// The directory that a path is in.
fn parent(path: &Path) -> &Path {
    let parent = path.parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// A name beside `path` for what shall take its place. A writer that opens the sandbox
/// removes what is left under such names.
pub(crate) fn temporary(path: &Path) -> Result<PathBuf, FileError> {
    // No two processes or threads share a temporary file, or one of them might
    // publish what the other has not written yet.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{number}{TEMPORARY}", std::process::id()));
    let temporary = PathBuf::from(name);
    // One that a killed process with the same pid left.
    remove(&temporary)?;
    Ok(temporary)
}

/// Removes what killed writers left of [`replace`] in a directory.
pub(crate) fn remove_temporaries(dir: &Path) -> Result<(), FileError> {
    for name in names(dir)? {
        if name.ends_with(TEMPORARY) {
            remove(&dir.join(name))?;
        }
    }
    Ok(())
}

/// The UTF-8 names in a directory (we make no others), sorted; none if it does
/// not exist.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, FileError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(FileError::of("list", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(FileError::of("list", dir))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// A whole file, or nothing if it does not exist. Over `limit` is an error.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(FileError::of("open", path))?,
    };
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(FileError::of("read", path))?;
    if bytes.len() as u64 > limit {
        let error = io::Error::from(ErrorKind::FileTooLarge);
        return Err(FileError::of("read", path)(error));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_beside_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(dir.path().join("a.1.0.tmp"), "left by a killed writer").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"two");
        assert!(read(&path, 2).is_err());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        remove_temporaries(dir.path()).unwrap();
        assert_eq!(names(dir.path()).unwrap(), ["a"]);
    }
}
