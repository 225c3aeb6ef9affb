// SPDX-License-Identifier: Apache-2.0
//! Reading what others wrote. An image of a checkpoint comes from anywhere, and may hold a
//! FIFO, a link to a device without an end, or a file larger than memory.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The first bytes of a regular file, at most so many. Never waits for anybody.
///
/// # Errors
/// When it cannot be read, or is no regular file.
pub fn read_start(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The whole of a regular file.
///
/// # Errors
/// The same, or when it is larger than the limit.
pub fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let bytes = read_start(path, limit.saturating_add(1))?;
    if bytes.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_so_much_of_a_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "content").unwrap();
        assert_eq!(read_start(&at("file"), 3).unwrap(), b"con");
        assert_eq!(read(&at("file"), 7).unwrap(), b"content");
        let error = read(&at("file"), 6).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        symlink("/dev/zero", at("endless")).unwrap();
        assert!(read_start(&at("endless"), 3).is_err());
        mknodat(
            CWD,
            at("fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(read(&at("fifo"), 3).is_err());
    }
}
