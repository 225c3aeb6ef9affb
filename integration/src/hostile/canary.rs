// SPDX-License-Identifier: Apache-2.0

//! A directory of the host that no sandbox may get at, and whether something did.

use std::{
    fs::{self, File},
    io::Read,
    mem::MaybeUninit,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::{
    fd::OwnedFd,
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};

use crate::{Sandbox, unique};

/// A directory with a file `secret` in it, watched for as long as this is there.
pub struct Canary {
    dir: PathBuf,
    /// Nothing that compresses: in a pack, it is as it is.
    content: Vec<u8>,
    made: Look,
    watch: OwnedFd,
    escapes: Vec<String>,
}

/// Inode, time, mode of either.
type Look = [(u64, i64, i64, u32, u64); 2];

impl Canary {
    /// A new one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self> {
        let dir = PathBuf::from(format!("/etc/{}", unique("canary")));
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let secret = dir.join("secret");
        let mut content = vec![0; 256];
        File::open("/dev/urandom")?.read_exact(&mut content)?;
        fs::write(&secret, &content)?;
        let made = look(&dir)?;
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        for path in [&dir, &secret] {
            inotify::add_watch(&watch, path, WatchFlags::ALL_EVENTS)?;
        }
        Ok(Self {
            dir,
            content,
            made,
            watch,
            escapes: Vec::new(),
        })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks whether anything got at it until now, and notes `when` if so.
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn check(&mut self, when: &str) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let what = format!("{when}: {:?} {:?}", event.events(), event.file_name());
                    self.escapes.push(what);
                }
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        if look(&self.dir).ok() != Some(self.made) {
            self.escapes.push(format!("{when}: it is another"));
        }
        Ok(())
    }

    /// Looks whether its content is in a checkpoint of the sandbox.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn check_store(&mut self, sandbox: &Sandbox) -> Result<()> {
        if self.is_stored(sandbox)? {
            self.escapes.push("its content is in the store".into());
        }
        Ok(())
    }

    /// Whether its content is in a checkpoint of the sandbox.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn is_stored(&self, sandbox: &Sandbox) -> Result<bool> {
        // The middle of it, whatever is around it.
        let wanted = &self.content[100..132];
        for pack in fs::read_dir(sandbox.store().join("packs"))? {
            let bytes = fs::read(pack?.path())?;
            if bytes.windows(wanted.len()).any(|window| window == wanted) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is in it, for who wants to see that it would be found.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// How something got at it.
    pub fn escapes(&self) -> &[String] {
        &self.escapes
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn look(dir: &Path) -> Result<Look> {
    let one = |path: &Path| -> Result<_> {
        let meta = fs::metadata(path)?;
        Ok((
            meta.ino(),
            meta.mtime_nsec(),
            meta.ctime_nsec(),
            meta.mode(),
            meta.size(),
        ))
    };
    Ok([one(dir)?, one(&dir.join("secret"))?])
}
