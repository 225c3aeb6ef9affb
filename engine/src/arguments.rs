// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use crab_api::paths;
use crab_config::Config;

use crate::endpoint::Claim;

/// Crab's host daemon: counts what sandboxes do.
#[derive(Debug, Parser)]
#[command(name = "crabd", version)]
pub(crate) struct Arguments {
    /// Socket to serve, its lock beside it; without this crabd.sock in the configured run_dir
    #[arg(long)]
    socket: Option<PathBuf>,

    /// Directory for the pinned programs; a BPF file system is mounted if it is on none
    #[arg(long, default_value = "/sys/fs/bpf/crab")]
    pub(crate) pin_dir: PathBuf,

    /// What to log to stderr: a level, or target=level,...; without this the configured log_level
    #[arg(long)]
    log: Option<String>,

    /// Unpin and exit after so many seconds without a sandbox; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle_exit: u64,

    /// Take the place of a crabd that is running, rather than leave it to that one
    #[arg(long)]
    take_over: bool,

    /// Tell metrics at http://ADDR/metrics, as Prometheus reads them: ADDR is an address
    /// of this host alone, as 127.0.0.1:9464; without this, the configured metrics.listen,
    /// and without that none
    #[arg(long, value_name = "ADDR", value_parser = loopback)]
    metrics: Option<SocketAddr>,

    /// Load and attach the programs, undo it, tell what came of it, and exit
    #[arg(long)]
    pub(crate) check: bool,
}

/// The address of a flag, or what it has to be.
fn loopback(text: &str) -> Result<SocketAddr, &'static str> {
    crab_config::loopback(text).ok_or(crab_config::LOOPBACK)
}

impl Arguments {
    pub(crate) fn socket(&self, config: &Config) -> PathBuf {
        let configured = || paths::crabd_socket(&config.run_dir);
        self.socket.clone().unwrap_or_else(configured)
    }

    pub(crate) fn log(&self, config: &Config) -> String {
        let configured = || config.log_level.as_str().to_owned();
        self.log.clone().unwrap_or_else(configured)
    }

    pub(crate) fn metrics(&self, config: &Config) -> Option<SocketAddr> {
        self.metrics.or(config.metrics.listen)
    }

    pub(crate) fn claim(&self) -> Claim {
        match self.take_over {
            true => Claim::TakeOver,
            false => Claim::Modest,
        }
    }

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
        assert_eq!(never.claim(), Claim::Modest);
    }

    #[test]
    fn what_is_not_said_comes_from_the_configuration() {
        let config = Config {
            run_dir: "/run/other".into(),
            log_level: crab_config::LogLevel::Debug,
            ..Config::default()
        };
        let silent = Arguments::parse_from(["crabd"]);
        assert_eq!(
            silent.socket(&config),
            PathBuf::from("/run/other/crabd.sock")
        );
        assert_eq!(silent.log(&config), "debug");
        let explicit = Arguments::parse_from(["crabd", "--socket", "/s", "--log", "warn"]);
        assert_eq!(explicit.socket(&config), PathBuf::from("/s"));
        assert_eq!(explicit.log(&config), "warn");
    }

    #[test]
    fn metrics_are_told_on_this_host_alone_and_only_if_asked_for() {
        let mut config = Config::default();
        let parse = |address| Arguments::try_parse_from(["crabd", "--metrics", address]);
        let silent = Arguments::parse_from(["crabd"]);
        assert_eq!(silent.metrics(&config), None);
        config.metrics.listen = crab_config::loopback("127.0.0.1:1");
        assert_eq!(silent.metrics(&config), config.metrics.listen);
        let explicit = parse("[::1]:9464").unwrap();
        let expected = "[::1]:9464".parse().unwrap();
        assert_eq!(explicit.metrics(&config), Some(expected));
        for wrong in [
            "0.0.0.0:9464",
            "192.0.2.1:80",
            "[::]:1",
            "9464",
            "localhost",
        ] {
            let said = parse(wrong).unwrap_err().to_string();
            assert!(said.contains("an address of this host alone"), "{said}");
        }
    }
}
