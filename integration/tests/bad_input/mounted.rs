// SPDX-License-Identifier: Apache-2.0

//! Mounts that are taken away again.

use anyhow::Result;
use crab_integration::Tool;

/// A mount that is taken away again.
pub(crate) struct Mounted(&'static str);

impl Mounted {
    /// By `mount` with these arguments before the place.
    pub(crate) fn new(args: &[&str], at: &'static str) -> Result<Self> {
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
