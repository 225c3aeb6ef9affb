// SPDX-License-Identifier: Apache-2.0

//! What processes hold of the machine's memory.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::processes;
use serde::Serialize;

use crate::series::rounded;

/// Resident memory in MiB.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Memory {
    /// As `ps` shows it: every page that is mapped, the shared ones of the program's file
    /// included.
    pub(crate) rss: f64,
    /// Of it, what is the process's own: memory, no file.
    pub(crate) anonymous: f64,
    /// Shared pages divided among those who share them.
    pub(crate) pss: f64,
    pub(crate) threads: f64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let status = Table::read(format!("/proc/{pid}/status"))?;
        let shares = Table::read(format!("/proc/{pid}/smaps_rollup"))?;
        Ok(Self {
            rss: status.get("VmRSS")? / 1024.0,
            anonymous: status.get("RssAnon")? / 1024.0,
            pss: shares.get("Pss")? / 1024.0,
            threads: status.get("Threads")?,
        })
    }

    /// Of every process of these programs together, divided by a number of containers.
    pub(crate) fn per_container(programs: &[&str], containers: usize) -> Result<Self> {
        let mut sum = Self::default();
        for pid in programs.iter().flat_map(|name| processes::named(name)) {
            let one = Self::of(pid)?;
            sum.rss += one.rss;
            sum.anonymous += one.anonymous;
            sum.pss += one.pss;
            sum.threads += one.threads;
        }
        let share = |all: f64| rounded(all / containers as f64);
        Ok(Self {
            rss: share(sum.rss),
            anonymous: share(sum.anonymous),
            pss: share(sum.pss),
            threads: share(sum.threads),
        })
    }
}

/// A file of `Name:   number [kB]` lines.
struct Table {
    path: String,
    text: String,
}

impl Table {
    fn read(path: String) -> Result<Self> {
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Ok(Self { path, text })
    }

    fn get(&self, name: &str) -> Result<f64> {
        self.text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("{} has no {name}", self.path))
    }
}
