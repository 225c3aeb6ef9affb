// SPDX-License-Identifier: Apache-2.0

//! The configuration as the rest of Crab sees it, and the defaults.

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where checkpoints are kept.
    pub store: PathBuf,
    /// Where sockets and what lives only until the next boot are kept.
    pub run_dir: PathBuf,
    /// The crabd that a shim starts; see [`Config::crabd_binary`].
    pub crabd: Option<PathBuf>,
    /// How much is logged.
    pub log_level: LogLevel,
    /// The OCI runtime and CRIU.
    pub runtime: Runtime,
    /// What the kernel counts.
    pub inspector: Inspector,
    /// When and how checkpoints are taken.
    pub checkpoints: Checkpoints,
    /// Whose captures come when.
    pub schedule: Schedule,
    /// When turns end.
    pub turns: Turns,
    /// What does not matter for recovery.
    pub ignore: Ignore,
    /// How much of history is kept.
    pub retention: Retention,
    /// How it is logged.
    pub log: Log,
    /// Where crabd tells metrics.
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: "/var/lib/crab".into(),
            run_dir: "/run/crab".into(),
            crabd: None,
            log_level: LogLevel::Info,
            runtime: Runtime::default(),
            inspector: Inspector::default(),
            checkpoints: Checkpoints::default(),
            schedule: Schedule::default(),
            turns: Turns::default(),
            ignore: Ignore::default(),
            retention: Retention::default(),
            log: Log::default(),
            metrics: Metrics::default(),
        }
    }
}

/// What names the OCI runtime that is built into the shim.
pub const BUILT_IN: &str = "builtin";

/// For how long runc waits for cgroup v2's freezer (`waitFrozen` in its fs2/freezer.go): an
/// uninterruptible call of one process holds back the whole.
const RUNC_FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// The OCI runtime and CRIU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The OCI runtime: a name to be found on PATH, an absolute path, or [`BUILT_IN`]. If
    /// nothing is said, runc, and where there is none, the built-in one.
    pub binary: Option<PathBuf>,
    /// CRIU; the runtime's own choice (PATH) if nothing is said.
    pub criu: Option<PathBuf>,
    /// Whether CRIU is asked for process images directly, where the runtime is runc.
    pub ask_criu: bool,
    /// For how long a sandbox's freeze may take until it is given up.
    pub freeze_timeout_ms: u64,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            binary: None,
            criu: None,
            ask_criu: true,
            freeze_timeout_ms: 2000,
        }
    }
}

impl Runtime {
    /// `freeze_timeout_ms` as a duration.
    pub fn freeze_timeout(&self) -> Duration {
        Duration::from_millis(self.freeze_timeout_ms)
    }

    /// The same where a client has asked for the freeze itself, to pause a container or to dump
    /// it: no less than runc gives it.
    pub fn freeze_timeout_of_client(&self) -> Duration {
        self.freeze_timeout().max(RUNC_FREEZE_TIMEOUT)
    }
}

/// What the kernel counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspector {
    /// Whether crabd loads BPF programs that count what sandboxes do. If not, every turn is
    /// unobserved.
    pub enabled: bool,
}

impl Default for Inspector {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// When and how checkpoints are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// Whether each turn gets a checkpoint. If not, sandboxes run as under any
    /// other runtime.
    pub enabled: bool,
    /// Whether files alone are captured while the sandbox runs, and again with a freeze if it
    /// changed meanwhile. If not, every capture has a freeze.
    pub optimistic: bool,
    /// For how long a capture may hold back the next turn.
    pub max_gate_ms: u64,
    /// Where a process image is before it is in the store; see
    /// [`Config::staging_dir`].
    pub staging_dir: Option<PathBuf>,
    /// How much of it may be used, in bytes.
    pub staging_bytes: u64,
    /// Up to how much memory processes that ran are compared by what they hold.
    pub compare_bytes: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            enabled: true,
            optimistic: true,
            max_gate_ms: 2000,
            staging_dir: None,
            staging_bytes: 2 << 30,
            compare_bytes: 256 << 20,
        }
    }
}

impl Checkpoints {
    /// `max_gate_ms` as a duration.
    pub fn max_gate(&self) -> Duration {
        Duration::from_millis(self.max_gate_ms)
    }
}

/// Whose captures come when, and what all of them may use together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How the next one is chosen.
    pub policy: Policy,
    /// Dumps of processes at a time; 0 is one per processor.
    pub dumps: u64,
    /// Bytes that may begin to be written in a second; 0 is no limit.
    pub disk_bytes_per_s: u64,
    /// Bytes between capture and store; 0 is a quarter of the host's memory.
    pub staging_bytes: u64,
    /// How much a sandbox counts, in hundredths.
    pub weight: u64,
    /// What becomes of a turn that would hold its agent back.
    pub durability: Durability,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            dumps: 0,
            disk_bytes_per_s: 0,
            staging_bytes: 0,
            weight: 100,
            durability: Durability::default(),
        }
    }
}

/// How the next capture is chosen (`crab-schedule` does it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Who came first.
    Fifo,
    /// What an agent is held back for.
    Reactive,
    /// The same, and then whose agent is expected to go on soonest.
    #[default]
    Predictive,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Reactive, Self::Predictive];
    pub(crate) const WORDS: [&'static str; 3] = ["fifo", "reactive", "predictive"];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == word)
    }

    /// The word that stands in the file.
    pub fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// What becomes of a turn whose capture would hold the agent back before it has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is captured nevertheless.
    #[default]
    EveryTurn,
    /// It is captured together with the next one.
    Latest,
}

impl Durability {
    const ALL: [Self; 2] = [Self::EveryTurn, Self::Latest];
    pub(crate) const WORDS: [&'static str; 2] = ["every-turn", "latest"];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|durability| durability.as_str() == word)
    }

    /// The word that stands in the file.
    pub fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// When turns end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turns {
    /// An exec that begins so soon after the last one ended belongs to its turn.
    pub merge_gap_ms: u64,
    /// For how long nothing must have been typed or printed before a program that waits
    /// for input ends its turn.
    pub settle_ms: u64,
    /// For how long an agent that runs inside must have waited for the network.
    pub quiet_ms: u64,
    /// For how long everything must have rested before a turn that a hint began ends
    /// without one.
    pub hint_timeout_ms: u64,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            merge_gap_ms: 150,
            settle_ms: 100,
            quiet_ms: 1000,
            hint_timeout_ms: 30_000,
        }
    }
}

impl Turns {
    /// `merge_gap_ms` as a duration.
    pub fn merge_gap(&self) -> Duration {
        Duration::from_millis(self.merge_gap_ms)
    }

    /// `settle_ms` as a duration.
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.settle_ms)
    }

    /// `quiet_ms` as a duration.
    pub fn quiet(&self) -> Duration {
        Duration::from_millis(self.quiet_ms)
    }

    /// `hint_timeout_ms` as a duration.
    pub fn hint_timeout(&self) -> Duration {
        Duration::from_millis(self.hint_timeout_ms)
    }
}

/// What does not matter for recovery: a turn that changed nothing else gets no
/// checkpoint. See [`crate::Patterns`] for what the patterns mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignore {
    /// Patterns of absolute paths in the container.
    pub paths: Vec<String>,
    /// Patterns of names or command lines of processes.
    pub processes: Vec<String>,
}

/// How much of history is kept. 0 is no limit, and the default: what goes cannot be brought
/// back, and only the host's admin knows what may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// So many checkpoints of a sandbox, beside those that always stay.
    pub keep: u64,
    /// Checkpoints that are at most so old.
    pub max_age_s: u64,
    /// The newest checkpoints of a sandbox that need no more disk than that together.
    pub max_bytes: u64,
    /// The same of all sandboxes of the host.
    pub host_max_bytes: u64,
}

impl Retention {
    /// `keep`, where it is a limit.
    pub fn count(&self) -> Option<u64> {
        Some(self.keep).filter(|count| *count > 0)
    }

    /// `max_age_s` in milliseconds, where it is a limit.
    pub fn age_ms(&self) -> Option<u64> {
        let age_ms = self.max_age_s.saturating_mul(1000);
        Some(age_ms).filter(|age_ms| *age_ms > 0)
    }

    /// `max_bytes`, where it is a limit.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.max_bytes).filter(|bytes| *bytes > 0)
    }

    /// `host_max_bytes`, where it is a limit.
    pub fn host_bytes(&self) -> Option<u64> {
        Some(self.host_max_bytes).filter(|bytes| *bytes > 0)
    }
}

/// How it is logged; how much is [`Config::log_level`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// For whom.
    pub format: LogFormat,
}

/// For whom it is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: a JSON object in each line.
    Json,
}

impl LogFormat {
    const ALL: [Self; 2] = [Self::Text, Self::Json];
    pub(crate) const WORDS: [&'static str; 2] = ["text", "json"];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == word)
    }

    /// The word that stands in the file.
    pub fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

/// Where crabd tells metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// An address of the host's own network interface to itself; none if nothing is said.
    pub listen: Option<SocketAddr>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// And what is not as it should be.
    Warn,
    /// And what happens to sandboxes.
    Info,
    /// And why.
    Debug,
    /// And each step.
    Trace,
}

impl LogLevel {
    const ALL: [Self; 5] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }

    /// The word that stands in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// Where a process image is before it is in the store: in memory, unless
    /// configured otherwise, because the sandbox is frozen while it is written.
    pub fn staging_dir(&self) -> PathBuf {
        let configured = self.checkpoints.staging_dir.clone();
        configured.unwrap_or_else(|| self.run_dir.join("staging"))
    }

    /// The crabd to start: the configured one, else the one beside the running
    /// binary, else the one on PATH.
    pub fn crabd_binary(&self) -> Option<PathBuf> {
        let beside = env::current_exe().ok();
        let path = env::var_os("PATH").unwrap_or_default();
        self.crabd_beside(beside.as_deref(), env::split_paths(&path))
    }

    fn crabd_beside(
        &self,
        exe: Option<&Path>,
        path: impl Iterator<Item = PathBuf>,
    ) -> Option<PathBuf> {
        if self.crabd.is_some() {
            return self.crabd.clone();
        }
        let beside = exe.and_then(Path::parent).map(Path::to_owned);
        // A relative PATH entry would be looked up in whatever directory
        // containerd gave the shim.
        let path = path.filter(|dir| dir.is_absolute());
        let mut found = beside.into_iter().chain(path).map(|dir| dir.join("crabd"));
        found.find(|crabd| crabd.is_file())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn crabd_is_found_beside_the_shim_before_path() {
        let dir = tempfile::tempdir().unwrap();
        let (beside, path) = (dir.path().join("a"), dir.path().join("b"));
        for dir in [&beside, &path] {
            fs::create_dir(dir).unwrap();
        }
        let exe = beside.join("containerd-shim-crab-v1");
        let find = |config: &Config| {
            let path = ["rel".into(), path.clone()].into_iter();
            config.crabd_beside(Some(&exe), path)
        };
        let mut config = Config::default();
        assert_eq!(find(&config), None);
        fs::write(path.join("crabd"), "").unwrap();
        assert_eq!(find(&config), Some(path.join("crabd")));
        fs::write(beside.join("crabd"), "").unwrap();
        assert_eq!(find(&config), Some(beside.join("crabd")));
        config.crabd = Some("/opt/crabd".into());
        assert_eq!(find(&config), Some("/opt/crabd".into()));
    }

    #[test]
    fn a_clients_own_freeze_may_take_as_long_as_with_runc() {
        let mut runtime = Runtime::default();
        assert_eq!(runtime.freeze_timeout(), Duration::from_secs(2));
        assert_eq!(runtime.freeze_timeout_of_client(), Duration::from_secs(10));
        runtime.freeze_timeout_ms = 30_000;
        assert_eq!(runtime.freeze_timeout_of_client(), Duration::from_secs(30));
    }

    #[test]
    fn staging_follows_the_run_directory() {
        let mut config = Config::default();
        assert_eq!(config.staging_dir(), Path::new("/run/crab/staging"));
        config.run_dir = "/run/other".into();
        assert_eq!(config.staging_dir(), Path::new("/run/other/staging"));
        config.checkpoints.staging_dir = Some("/fast".into());
        assert_eq!(config.staging_dir(), Path::new("/fast"));
    }
}
