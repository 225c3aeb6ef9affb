// SPDX-License-Identifier: Apache-2.0

//! A containerd that does not hear the shims of the one before it, until it shall.
//!
//! A shim sends what has happened as soon as it reaches containerd's ttrpc socket. Who
//! wants to see it arrive has to have subscribed before, and can do so only when
//! containerd is up: this keeps that socket where older shims do not look for it.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context, Result};

use crate::testbed::Testbed;

/// Where shims were told that containerd listens.
const USUAL: &str = "/run/containerd/containerd.sock.ttrpc";
/// Where it listens instead.
const OTHER: &str = "/run/containerd/other.sock.ttrpc";

/// Such a containerd. Dropping it starts an ordinary one in its place.
#[derive(Debug)]
pub struct Deaf {
    testbed: Testbed,
}

impl Deaf {
    /// Starts it; none may be running.
    pub fn start(testbed: Testbed) -> Result<Self> {
        // Of the one that was killed.
        let _ = fs::remove_file(USUAL);
        let deaf = Self { testbed };
        let place = format!("TESTBED_TTRPC={OTHER}");
        testbed.service_with(&[&place], "start", "containerd")?;
        Ok(deaf)
    }

    /// From now on shims reach it.
    pub fn listen(&self) -> Result<()> {
        symlink(OTHER, USUAL).context("lead shims to containerd's socket")
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        if let Err(error) = self.testbed.service("restart", "containerd") {
            eprintln!("could not start containerd as it was: {error:#}");
        }
        if Path::new(OTHER).exists() {
            let _ = fs::remove_file(OTHER);
        }
    }
}
