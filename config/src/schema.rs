// SPDX-License-Identifier: Apache-2.0

//! The list of all settings: the one place that knows their names, ranges and
//! purposes, and who may say them.

use std::{fmt, net::SocketAddr, path::PathBuf};

use crate::{
    patterns::PatternsOf,
    settings::{Config, Durability, LogFormat, LogLevel, Policy},
    value::{Kind, Value},
};

/// Who else than the host's file may say a setting.
///
/// The author of a pod or of an image is not the admin of the host. Only what
/// cannot hurt the host or another sandbox may be said by annotation: never a
/// program, a path, or how much of the host may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerSandbox {
    /// Nobody: it is the host's.
    No,
    /// A sandbox may switch it off for itself, not on.
    OnlyOff,
    /// A sandbox may say it for itself, but not more than so much.
    UpTo(u64),
    /// A sandbox may say it for itself, but not more than the host does; 0 is no limit.
    Less,
    /// A sandbox may say it for itself.
    Yes,
}

impl fmt::Display for PerSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => write!(f, "no"),
            Self::OnlyOff => write!(f, "may be switched off"),
            Self::UpTo(max) => write!(f, "up to {max}"),
            Self::Less => write!(f, "may be lowered"),
            Self::Yes => write!(f, "yes"),
        }
    }
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its section; empty for what stands above all sections.
    pub section: &'static str,
    /// Its name in that section.
    pub key: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it is for.
    pub what: &'static str,
    /// What holds where it has no default of its own and nothing is said.
    pub otherwise: &'static str,
    /// Whether a sandbox may say it for itself.
    pub per_sandbox: PerSandbox,
    field: Field,
}

/// Where in a [`Config`] it is.
#[derive(Debug)]
enum Field {
    Switch(fn(&mut Config) -> &mut bool),
    Number(fn(&mut Config) -> &mut u64),
    Level(fn(&mut Config) -> &mut LogLevel),
    Word {
        of: fn(&Config) -> &'static str,
        set: fn(&mut Config, &str),
    },
    Path(fn(&mut Config) -> &mut PathBuf),
    SomePath(fn(&mut Config) -> &mut Option<PathBuf>),
    SomeAddress(fn(&mut Config) -> &mut Option<SocketAddr>),
    Patterns(fn(&mut Config) -> &mut Vec<String>),
}

/// As the kernel has it.
const PATH_MAX: usize = 4095;

/// So that the address of every socket in the run directory fits into the 107
/// bytes that the kernel has for it.
const RUN_DIR_MAX: usize = 80;

/// Every setting, in the order of the sample and of the documentation.
pub const SETTINGS: &[Setting] = &[
    Setting {
        section: "",
        key: "store",
        kind: Kind::Path { max: PATH_MAX },
        what: "Where checkpoints are kept, in a directory for root alone: they hold what was in the sandboxes' memory.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Path(|config| &mut config.store),
    },
    Setting {
        section: "",
        key: "run_dir",
        kind: Kind::Path { max: RUN_DIR_MAX },
        what: "Where sockets and what lives only until the next boot are kept.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Path(|config| &mut config.run_dir),
    },
    Setting {
        section: "",
        key: "crabd",
        kind: Kind::Path { max: PATH_MAX },
        what: "The daemon that a shim starts if none is running.",
        otherwise: "beside the shim's own binary, else on PATH",
        per_sandbox: PerSandbox::No,
        field: Field::SomePath(|config| &mut config.crabd),
    },
    Setting {
        section: "",
        key: "log_level",
        kind: Kind::Level,
        what: "How much shims write to containerd's log, and crabd to its own.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Level(|config| &mut config.log_level),
    },
    Setting {
        section: "runtime",
        key: "binary",
        kind: Kind::Command,
        what: "The OCI runtime; `builtin` is the one in the shim (see drivers.md). A client that names one itself (`BinaryName`) has its own.",
        otherwise: "`runc` where there is one, else `builtin`",
        per_sandbox: PerSandbox::No,
        field: Field::SomePath(|config| &mut config.runtime.binary),
    },
    Setting {
        section: "runtime",
        key: "criu",
        kind: Kind::Path { max: PATH_MAX },
        what: "CRIU, for checkpoints of processes, in a file of that name. Without any, checkpoints hold files only, and say so.",
        otherwise: "on PATH",
        per_sandbox: PerSandbox::No,
        field: Field::SomePath(|config| &mut config.runtime.criu),
    },
    Setting {
        section: "runtime",
        key: "ask_criu",
        kind: Kind::Switch,
        what: "Whether CRIU is asked for a sandbox's process image directly where runc is the runtime, which keeps the sandbox standing still for a fraction of the time. Without, the runtime asks.",
        otherwise: "",
        per_sandbox: PerSandbox::OnlyOff,
        field: Field::Switch(|config| &mut config.runtime.ask_criu),
    },
    Setting {
        section: "runtime",
        key: "freeze_timeout_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 10,
            max: 60_000,
        },
        what: "For how long freezing a sandbox may take until the capture is given up. For a client's own pause or checkpoint it is 10000 at least, as with runc.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(10_000),
        field: Field::Number(|config| &mut config.runtime.freeze_timeout_ms),
    },
    Setting {
        section: "inspector",
        key: "enabled",
        kind: Kind::Switch,
        what: "Whether crabd, which reads this when it starts, has BPF programs count what sandboxes do. Without, every turn is *unobserved*: looked at in full, with a process image whenever something lives that may have run ([below](#parts-that-can-be-switched-off)).",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Switch(|config| &mut config.inspector.enabled),
    },
    Setting {
        section: "checkpoints",
        key: "enabled",
        kind: Kind::Switch,
        what: "Whether each turn gets a checkpoint. Without, a container runs as under any other runtime.",
        otherwise: "",
        per_sandbox: PerSandbox::OnlyOff,
        field: Field::Switch(|config| &mut config.checkpoints.enabled),
    },
    Setting {
        section: "checkpoints",
        key: "optimistic",
        kind: Kind::Switch,
        what: "Whether files are captured while the sandbox runs where no process image is needed, and once more with a freeze if it changed something meanwhile. Without, whatever the counters cannot exclude is looked at and captured with a freeze ([below](#parts-that-can-be-switched-off)).",
        otherwise: "",
        per_sandbox: PerSandbox::OnlyOff,
        field: Field::Switch(|config| &mut config.checkpoints.optimistic),
    },
    Setting {
        section: "checkpoints",
        key: "max_gate_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 0,
            max: 600_000,
        },
        what: "For how long a capture may hold back the next turn. One that has not begun by then is given up; past that the turn goes on regardless.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(60_000),
        field: Field::Number(|config| &mut config.checkpoints.max_gate_ms),
    },
    Setting {
        section: "checkpoints",
        key: "staging_dir",
        kind: Kind::Path { max: PATH_MAX },
        what: "Where a process image is before it is in the store. It should be in memory: the sandbox is frozen while it is written.",
        otherwise: "`staging` in `run_dir`",
        per_sandbox: PerSandbox::No,
        field: Field::SomePath(|config| &mut config.checkpoints.staging_dir),
    },
    Setting {
        section: "checkpoints",
        key: "staging_bytes",
        kind: Kind::Number {
            unit: "bytes",
            min: 16 << 20,
            max: i64::MAX as u64,
        },
        what: "How much of it one sandbox may use. A process image that may be larger, or for which it has no room, goes to a directory of the store instead.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.checkpoints.staging_bytes),
    },
    Setting {
        section: "checkpoints",
        key: "compare_bytes",
        kind: Kind::Number {
            unit: "bytes",
            min: 0,
            max: i64::MAX as u64,
        },
        what: "Up to how much memory the processes of a sandbox are compared by what they hold, to tell one that only woke up from one that changed. The sandbox is frozen while it is read. Those that hold more count as changed when they ran.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.checkpoints.compare_bytes),
    },
    Setting {
        section: "schedule",
        key: "policy",
        kind: Kind::Word(&Policy::WORDS),
        what: "Whose capture is next: who came first (`fifo`); what an agent is held back for (`reactive`); and then whose agent is expected to go on soonest (`predictive`).",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Word {
            of: |config| config.schedule.policy.as_str(),
            set: |config, word| {
                config.schedule.policy = Policy::parse(word).unwrap_or_default();
            },
        },
    },
    Setting {
        section: "schedule",
        key: "dumps",
        kind: Kind::Number {
            unit: "dumps",
            min: 0,
            max: 1024,
        },
        what: "How many sandboxes' processes are dumped at a time. 0: one per processor.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.schedule.dumps),
    },
    Setting {
        section: "schedule",
        key: "disk_bytes_per_s",
        kind: Kind::Number {
            unit: "bytes per second",
            min: 0,
            max: i64::MAX as u64,
        },
        what: "How much captured data may begin to be written in a second, over all sandboxes. 0: any amount.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.schedule.disk_bytes_per_s),
    },
    Setting {
        section: "schedule",
        key: "staging_bytes",
        kind: Kind::Number {
            unit: "bytes",
            min: 0,
            max: i64::MAX as u64,
        },
        what: "How much captured data of all sandboxes may wait to be stored at a time. 0: a quarter of the host's memory.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.schedule.staging_bytes),
    },
    Setting {
        section: "schedule",
        key: "weight",
        kind: Kind::Number {
            unit: "hundredths",
            min: 1,
            max: 10_000,
        },
        what: "How much a sandbox counts against others that want to be captured at the same time.",
        otherwise: "",
        per_sandbox: PerSandbox::Less,
        field: Field::Number(|config| &mut config.schedule.weight),
    },
    Setting {
        section: "schedule",
        key: "durability",
        kind: Kind::Word(&Durability::WORDS),
        what: "What becomes of a turn whose capture would hold the agent back before it has begun: it is captured nevertheless (`every-turn`), or with the next one (`latest`).",
        otherwise: "",
        per_sandbox: PerSandbox::Yes,
        field: Field::Word {
            of: |config| config.schedule.durability.as_str(),
            set: |config, word| {
                config.schedule.durability = Durability::parse(word).unwrap_or_default();
            },
        },
    },
    Setting {
        section: "turns",
        key: "merge_gap_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 0,
            max: 10_000,
        },
        what: "An exec that begins so soon after the last one ended belongs to the same turn: no model answers so fast.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(10_000),
        field: Field::Number(|config| &mut config.turns.merge_gap_ms),
    },
    Setting {
        section: "turns",
        key: "settle_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 10,
            max: 60_000,
        },
        what: "For how long nothing must have been typed or printed until a program that waits for input ends its turn.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(60_000),
        field: Field::Number(|config| &mut config.turns.settle_ms),
    },
    Setting {
        section: "turns",
        key: "quiet_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 100,
            max: 600_000,
        },
        what: "For how long an agent that runs inside must have waited for the network, with everything asleep, until its turn ends.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(600_000),
        field: Field::Number(|config| &mut config.turns.quiet_ms),
    },
    Setting {
        section: "turns",
        key: "hint_timeout_ms",
        kind: Kind::Number {
            unit: "milliseconds",
            min: 100,
            max: 3_600_000,
        },
        what: "For how long everything in a sandbox must have rested until a turn that was begun by `crab turn begin` ends without its `end`.",
        otherwise: "",
        per_sandbox: PerSandbox::UpTo(3_600_000),
        field: Field::Number(|config| &mut config.turns.hint_timeout_ms),
    },
    Setting {
        section: "ignore",
        key: "paths",
        kind: Kind::Patterns(PatternsOf::Paths),
        what: "What of the files does not matter for recovery ([below](#what-does-not-matter)). A turn that changed nothing else gets no checkpoint.",
        otherwise: "",
        per_sandbox: PerSandbox::Yes,
        field: Field::Patterns(|config| &mut config.ignore.paths),
    },
    Setting {
        section: "ignore",
        key: "processes",
        kind: Kind::Patterns(PatternsOf::Processes),
        what: "Which processes do not matter for recovery: their coming, their progress and their end alone call for no checkpoint.",
        otherwise: "",
        per_sandbox: PerSandbox::Yes,
        field: Field::Patterns(|config| &mut config.ignore.processes),
    },
    Setting {
        section: "retention",
        key: "keep",
        kind: Kind::Number {
            unit: "checkpoints",
            min: 0,
            max: 1_000_000,
        },
        what: "How many checkpoints of a sandbox are kept, the newest, beside those that always stay ([below](#what-is-kept)). 0: all of them.",
        otherwise: "",
        per_sandbox: PerSandbox::Less,
        field: Field::Number(|config| &mut config.retention.keep),
    },
    Setting {
        section: "retention",
        key: "max_age_s",
        kind: Kind::Number {
            unit: "seconds",
            min: 0,
            max: 3_153_600_000,
        },
        what: "How old a checkpoint may become. 0: any age.",
        otherwise: "",
        per_sandbox: PerSandbox::Less,
        field: Field::Number(|config| &mut config.retention.max_age_s),
    },
    Setting {
        section: "retention",
        key: "max_bytes",
        kind: Kind::Number {
            unit: "bytes",
            min: 0,
            max: i64::MAX as u64,
        },
        what: "How much disk the checkpoints of a sandbox may need together; the oldest go. 0: any amount.",
        otherwise: "",
        per_sandbox: PerSandbox::Less,
        field: Field::Number(|config| &mut config.retention.max_bytes),
    },
    Setting {
        section: "retention",
        key: "host_max_bytes",
        kind: Kind::Number {
            unit: "bytes",
            min: 0,
            max: i64::MAX as u64,
        },
        what: "How much disk the checkpoints of all sandboxes may need together; the oldest of those that are gone go first. crabd, which reads this when it starts, looks at it every few seconds, `crab gc` when it is called. 0: any amount.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Number(|config| &mut config.retention.host_max_bytes),
    },
    Setting {
        section: "log",
        key: "format",
        kind: Kind::Word(&LogFormat::WORDS),
        what: "For whom shims and crabd log: for people (`text`), or for programs (`json`): an object in each line ([watching.md](watching.md#logs)). How much they log is `log_level`.",
        otherwise: "",
        per_sandbox: PerSandbox::No,
        field: Field::Word {
            of: |config| config.log.format.as_str(),
            set: |config, word| {
                config.log.format = LogFormat::parse(word).unwrap_or_default();
            },
        },
    },
    Setting {
        section: "metrics",
        key: "listen",
        kind: Kind::Loopback,
        what: "Where crabd tells metrics to Prometheus ([watching.md](watching.md#metrics)), at `/metrics`. `crabd --metrics` goes before it.",
        otherwise: "nowhere",
        per_sandbox: PerSandbox::No,
        field: Field::SomeAddress(|config| &mut config.metrics.listen),
    },
];

/// The sections, in that order.
pub(crate) const SECTIONS: [&str; 9] = [
    "runtime",
    "inspector",
    "checkpoints",
    "schedule",
    "turns",
    "ignore",
    "retention",
    "log",
    "metrics",
];

impl Setting {
    /// The setting `key` of `section`.
    pub(crate) fn find(section: &str, key: &str) -> Option<&'static Self> {
        SETTINGS
            .iter()
            .find(|setting| setting.section == section && setting.key == key)
    }

    /// `section.key`.
    pub fn name(&self) -> String {
        match self.section {
            "" => self.key.into(),
            section => format!("{section}.{}", self.key),
        }
    }

    /// Its default as it would stand in the file, if it has one.
    pub fn default(&self) -> Option<String> {
        self.shown(&mut Config::default())
    }

    fn shown(&self, config: &mut Config) -> Option<String> {
        let quoted = |path: &PathBuf| format!("{:?}", path.display().to_string());
        match self.field {
            Field::Switch(of) => Some(of(config).to_string()),
            Field::Number(of) => Some(of(config).to_string()),
            Field::Level(of) => Some(format!("{:?}", of(config).as_str())),
            Field::Word { of, .. } => Some(format!("{:?}", of(config))),
            Field::Path(of) => Some(quoted(of(config))),
            Field::SomePath(of) => of(config).as_ref().map(quoted),
            Field::SomeAddress(of) => of(config).map(|address| format!("\"{address}\"")),
            Field::Patterns(of) => Some(format!("{:?}", of(config))),
        }
    }

    /// Puts a value of its kind into a configuration.
    pub(crate) fn set(&self, config: &mut Config, value: Value) {
        match (&self.field, value) {
            (Field::Switch(of), Value::Switch(value)) => *of(config) = value,
            (Field::Number(of), Value::Number(value)) => *of(config) = value,
            (Field::Level(of), Value::Level(value)) => *of(config) = value,
            (Field::Word { set, .. }, Value::Word(value)) => set(config, value),
            (Field::Path(of), Value::Path(value)) => *of(config) = value,
            (Field::SomePath(of), Value::Path(value)) => *of(config) = Some(value),
            (Field::SomeAddress(of), Value::Address(value)) => *of(config) = Some(value),
            (Field::Patterns(of), Value::Patterns(value)) => *of(config) = value,
            (field, value) => unreachable!("{field:?} is not of the kind of {value:?}"),
        }
    }

    /// What it is in a configuration, if it is a number.
    pub(crate) fn number(&self, config: &mut Config) -> Option<u64> {
        match self.field {
            Field::Number(of) => Some(*of(config)),
            _ => None,
        }
    }

    /// What it is in a configuration, if it is a switch.
    pub(crate) fn is_on(&self, config: &mut Config) -> bool {
        matches!(self.field, Field::Switch(of) if *of(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a file may say is documented, with what the code does.
    #[test]
    fn the_documentation_lists_every_setting_as_it_is() {
        let mut table = String::from(
            "| setting | default | value | what it is for | per sandbox |\n\
             | --- | --- | --- | --- | --- |\n",
        );
        for setting in SETTINGS {
            let default = match setting.default() {
                Some(default) => format!("`{default}`"),
                None => setting.otherwise.into(),
            };
            table.push_str(&format!(
                "| `{}` | {default} | {} | {} | {} |\n",
                setting.name(),
                setting.kind,
                setting.what,
                setting.per_sandbox,
            ));
        }
        let docs = include_str!("../../docs/configuration.md");
        let begin = "<!-- all settings, as config/src/schema.rs has them -->\n";
        let (_, rest) = docs.split_once(begin).expect("no table of settings");
        let (written, _) = rest.split_once("<!-- end -->").expect("no end of it");
        assert_eq!(
            written, table,
            "write this into docs/configuration.md:\n{table}"
        );
    }

    #[test]
    fn each_setting_takes_a_value_of_its_kind() {
        for setting in SETTINGS {
            let text = match setting.kind {
                Kind::Switch => "false".into(),
                Kind::Number { max, .. } => max.to_string(),
                Kind::Level => "trace".into(),
                Kind::Word(words) => {
                    let default = setting.default();
                    let is_other = |word: &&&str| Some(format!("{word:?}")) != default;
                    words.iter().find(is_other).unwrap().to_string()
                }
                Kind::Path { .. } | Kind::Command | Kind::Patterns(_) => "/x/y".into(),
                Kind::Loopback => "[::1]:9464".into(),
            };
            let value = setting.kind.parse(&text).unwrap();
            let mut config = Config::default();
            setting.set(&mut config, value);
            assert_ne!(config, Config::default(), "{}", setting.name());
            let is_known = setting.section.is_empty() || SECTIONS.contains(&setting.section);
            assert!(is_known, "{}", setting.section);
        }
    }

    /// The rule of [`PerSandbox`], whatever is added.
    #[test]
    fn no_sandbox_may_name_a_program_or_a_path_or_take_more_of_the_host() {
        for setting in SETTINGS {
            match setting.kind {
                Kind::Path { .. } | Kind::Command | Kind::Level | Kind::Loopback => {
                    assert_eq!(setting.per_sandbox, PerSandbox::No, "{}", setting.name());
                }
                Kind::Number { unit: "bytes", .. } => {
                    let no_more = matches!(setting.per_sandbox, PerSandbox::No | PerSandbox::Less);
                    assert!(no_more, "{}", setting.name());
                }
                Kind::Number { .. } | Kind::Switch | Kind::Word(_) | Kind::Patterns(_) => {}
            }
        }
    }
}
