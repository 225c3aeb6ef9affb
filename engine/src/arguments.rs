// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Crab's host daemon: counts what sandboxes do.
#[derive(Debug, Parser)]
#[command(name = "crabd", version)]
pub(crate) struct Arguments {
    /// Socket to serve; its lock lies beside it
    #[arg(long, default_value = "/run/crab/crabd.sock")]
    pub(crate) socket: PathBuf,

    /// Directory for the pinned programs; a BPF file system is mounted if it is on none
    #[arg(long, default_value = "/sys/fs/bpf/crab")]
    pub(crate) pin_dir: PathBuf,

    /// What to log to stderr: a level, or target=level,...
    #[arg(long, default_value = "info")]
    pub(crate) log: String,

    /// Unpin and exit after so many seconds without a sandbox; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle_exit: u64,
}

impl Arguments {
    pub(crate) fn idle_exit(&self) -> Option<Duration> {
        (self.idle_exit > 0).then(|| Duration::from_secs(self.idle_exit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let never = Arguments::parse_from(["crabd", "--idle-exit", "0"]);
        assert_eq!(never.idle_exit(), None);
    }
}
