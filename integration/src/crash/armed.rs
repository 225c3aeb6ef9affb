// SPDX-License-Identifier: Apache-2.0

//! Steps at which shims die or fail.

use std::fs;

use anyhow::{Context, Result, ensure};

/// Where a shim looks which.
const FILE: &str = "/run/crab/fail-at";

/// Steps that are asked for, once each, for as long as this is there.
#[derive(Debug)]
pub struct Armed(());

impl Armed {
    /// A line each, as [`crab_fault`] has them.
    pub fn with(lines: &[&str]) -> Result<Self> {
        fs::write(FILE, lines.join("\n")).context("arm steps")?;
        Ok(Self(()))
    }

    /// What was not met.
    pub fn left(&self) -> Result<String> {
        Ok(fs::read_to_string(FILE)?)
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
        let _ = fs::remove_file(FILE);
    }
}
