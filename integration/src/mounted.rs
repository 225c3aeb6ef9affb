// SPDX-License-Identifier: Apache-2.0

//! Mounts that are taken away again, and disks that a test can fill.

use std::{fs, io, path::PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;

use crate::command::Tool;

/// A mount that is taken away again.
#[derive(Debug)]
pub struct Mounted(&'static str);

impl Mounted {
    /// By `mount` with these arguments before the place.
    pub fn new(args: &[&str], at: &'static str) -> Result<Self> {
        let mount = Tool::new("mount").args(args.iter().copied()).args([at]);
        mount.run()?.ok()?;
        Ok(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = Tool::new("umount").args([self.0]).run();
        if let Err(error) = umount.and_then(|said| said.ok()) {
            eprintln!("{error:#}");
        }
    }
}

/// A small file system of its own.
#[derive(Debug)]
pub struct SmallDisk(Mounted);

impl SmallDisk {
    /// Of so many MiB.
    pub fn new(mib: u32, at: &'static str) -> Result<Self> {
        fs::create_dir_all(at).with_context(|| format!("make {at}"))?;
        let size = format!("size={mib}m,mode=700");
        Ok(Self(Mounted::new(
            &["-t", "tmpfs", "-o", &size, "small"],
            at,
        )?))
    }

    /// Has so many MiB from now on.
    pub fn grow(&self, mib: u32) -> Result<()> {
        let option = format!("remount,size={mib}m");
        let mount = Tool::new("mount").args(["-o", &option, self.0.0]);
        mount.run()?.ok()?;
        Ok(())
    }

    /// Fills it, but for so many bytes (rounded up to pages), whatever else is written meanwhile.
    pub fn fill_but(&self, room: u64) -> Result<()> {
        let filling = self.filling();
        let file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&filling)
            .with_context(|| format!("open {}", filling.display()))?;
        loop {
            let disk = statvfs(self.0.0)?;
            let free = disk.f_bavail * disk.f_frsize;
            let more = free.saturating_sub(room) / disk.f_frsize * disk.f_frsize;
            if more == 0 {
                return Ok(());
            }
            let mut zeros = io::Read::take(io::repeat(0), more);
            match io::copy(&mut zeros, &mut &file) {
                Ok(_) => {}
                Err(error) => ensure!(error.kind() == io::ErrorKind::StorageFull, "{error}"),
            }
        }
    }

    /// Takes away what fills it.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.filling()).context("free the disk")
    }

    fn filling(&self) -> PathBuf {
        PathBuf::from(self.0.0).join("filling")
    }
}
