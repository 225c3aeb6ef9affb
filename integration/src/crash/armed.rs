// SPDX-License-Identifier: Apache-2.0

//! Steps at which shims die or fail.

use std::fs;

use anyhow::{Context, Result, ensure};

/// Steps that are asked for, once each, for as long as this is there.
#[derive(Debug)]
pub struct Armed(());

impl Armed {
    /// Where a shim looks which.
    pub const FILE: &str = "/run/crab/fail-at";

    /// A line each, as [`crab_fault`] has them.
    pub fn with(lines: &[&str]) -> Result<Self> {
        fs::write(Self::FILE, lines.join("\n")).context("arm steps")?;
        Ok(Self(()))
    }

    /// What was not met.
    pub fn left(&self) -> Result<String> {
        Ok(fs::read_to_string(Self::FILE)?)
    }

    /// Each has to have been met.
    pub fn met(self) -> Result<()> {
        let left = self.left()?;
        ensure!(left.is_empty(), "never met: {}", left.replace('\n', ", "));
        Ok(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let _ = fs::remove_file(Self::FILE);
    }
}
