// SPDX-License-Identifier: Apache-2.0

//! What a sandbox's own annotations change of the host's configuration.
//!
//! The rule is that the user's container lives on: what is unknown, impossible or
//! not a sandbox's to say is passed over, the host's setting holds, and the fault
//! is told. Nothing of this refuses a container.

use std::fmt;

use crate::{
    Config,
    schema::{PerSandbox, SETTINGS, Setting},
    value::{Value, quoted},
};

/// With what the names of Crab's annotations begin; a setting's name follows.
pub const ANNOTATIONS: &str = "dev.crab.";

/// So many faults of one sandbox are told: its author can write thousands.
const TOLD: usize = 8;

/// An annotation that is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Its name, of any content.
    pub name: String,
    /// Why not.
    pub why: String,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = quoted(&self.name);
        write!(f, "{} is ignored: {}", name.trim_matches('"'), self.why)
    }
}

impl Config {
    /// The configuration of one sandbox: the host's, with what the sandbox's
    /// annotations may change and do; and what of them is not followed. Names that do not
    /// begin with [`ANNOTATIONS`] are somebody else's.
    pub fn for_sandbox<'a>(
        &self,
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> (Self, Vec<Ignored>) {
        let mut config = self.clone();
        let mut ignored = Vec::new();
        let mut untold = 0;
        for (name, text) in annotations {
            let Some(key) = name.strip_prefix(ANNOTATIONS) else {
                continue;
            };
            match value(self, key, text) {
                Ok((setting, value)) => setting.set(&mut config, value),
                Err(_) if ignored.len() == TOLD => untold += 1,
                Err(why) => ignored.push(Ignored {
                    name: name.into(),
                    why,
                }),
            }
        }
        if untold > 0 {
            ignored.push(Ignored {
                name: format!("{ANNOTATIONS}*"),
                why: format!("{untold} more are not understood"),
            });
        }
        (config, ignored)
    }
}

/// What an annotation sets, or why it does not.
fn value(host: &Config, key: &str, text: &str) -> Result<(&'static Setting, Value), String> {
    let setting = SETTINGS.iter().find(|setting| setting.name() == key);
    let Some(setting) = setting else {
        return Err(format!(
            "there is no such setting; a sandbox may say {}",
            own()
        ));
    };
    if setting.per_sandbox == PerSandbox::No {
        return Err(format!(
            "{key} is the host's to say, in its configuration; a sandbox may say {}",
            own()
        ));
    }
    let value = setting.kind.parse(text)?;
    match (setting.per_sandbox, &value) {
        (PerSandbox::UpTo(max), Value::Number(number)) if *number > max => Err(format!(
            "a sandbox may say {max} at most, and this is {number}"
        )),
        (PerSandbox::Less, Value::Number(number)) => {
            match setting.number(&mut host.clone()).unwrap_or(0) {
                0 => Ok((setting, value)),
                most if (1..=most).contains(number) => Ok((setting, value)),
                most => Err(format!(
                    "the host's configuration has {most}, and a sandbox may only say less"
                )),
            }
        }
        (PerSandbox::OnlyOff, Value::Switch(true)) if !setting.is_on(&mut host.clone()) => {
            Err("the host's configuration has it switched off".into())
        }
        _ => Ok((setting, value)),
    }
}

/// The settings that a sandbox may say.
fn own() -> String {
    let own = SETTINGS
        .iter()
        .filter(|setting| setting.per_sandbox != PerSandbox::No);
    let names: Vec<String> = own.map(Setting::name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: &Config, annotations: &[(&str, &str)]) -> (Config, Vec<String>) {
        let (config, ignored) = host.for_sandbox(annotations.iter().copied());
        let ignored: Vec<String> = ignored.iter().map(Ignored::to_string).collect();
        assert!(ignored.iter().all(|line| line.lines().count() == 1));
        (config, ignored)
    }

    #[test]
    fn a_sandbox_says_what_concerns_itself_alone() {
        let host = Config::default();
        let (config, ignored) = of(
            &host,
            &[
                ("io.kubernetes.cri.sandbox-id", "x"),
                ("dev.crab.checkpoints.max_gate_ms", "500"),
                ("dev.crab.runtime.freeze_timeout_ms", "100"),
                ("dev.crab.checkpoints.enabled", "false"),
            ],
        );
        assert_eq!(ignored, [""; 0]);
        assert_eq!(config.checkpoints.max_gate_ms, 500);
        assert_eq!(config.runtime.freeze_timeout_ms, 100);
        assert!(!config.checkpoints.enabled);
        assert_eq!(config.store, host.store);
    }

    #[test]
    fn what_a_sandbox_ignores_is_its_own_to_say_in_place_of_the_hosts() {
        let mut host = Config::default();
        host.ignore.paths = vec!["/a/**".into()];
        let of = |text| of(&host, &[("dev.crab.ignore.paths", text)]);
        let (config, ignored) = of("**/__pycache__/**  /root/.cache/**");
        assert_eq!(
            config.ignore.paths,
            ["**/__pycache__/**", "/root/.cache/**"]
        );
        assert_eq!(ignored, [""; 0]);
        let (config, ignored) = of("");
        assert_eq!(config.ignore.paths, [""; 0]);
        assert_eq!(ignored, [""; 0]);
        let (config, ignored) = of("/b/** c");
        assert_eq!(config, host);
        assert!(ignored[0].contains("the pattern \"c\" must begin with / or **/"));
    }

    #[test]
    fn what_is_the_hosts_stays_the_hosts() {
        let host = Config::default();
        for (name, text) in [
            ("dev.crab.runtime.binary", "/tmp/evil"),
            ("dev.crab.runtime.criu", "/tmp/evil/criu"),
            ("dev.crab.store", "/"),
            ("dev.crab.run_dir", "/"),
            ("dev.crab.crabd", "/tmp/evil"),
            ("dev.crab.log_level", "trace"),
            ("dev.crab.checkpoints.staging_dir", "/etc"),
            ("dev.crab.checkpoints.staging_bytes", "9223372036854775807"),
        ] {
            let (config, ignored) = of(&host, &[(name, text)]);
            assert_eq!(config, host, "{name}");
            assert!(ignored[0].contains("is the host's to say"), "{ignored:?}");
            assert!(ignored[0].contains("checkpoints.enabled"), "{ignored:?}");
        }
    }

    #[test]
    fn a_fault_leaves_the_hosts_setting_and_the_other_annotations_hold() {
        let mut host = Config::default();
        host.checkpoints.max_gate_ms = 7;
        let (config, ignored) = of(
            &host,
            &[
                ("dev.crab.checkpoints.max_gate_ms", "60001"),
                ("dev.crab.checkpoints.enabled", "no"),
                ("dev.crab.checkpoint.enabled", "false"),
                ("dev.crab.", "x"),
                ("dev.crab.runtime.freeze_timeout_ms", "50"),
            ],
        );
        assert_eq!(config.checkpoints.max_gate_ms, 7);
        assert!(config.checkpoints.enabled);
        assert_eq!(config.runtime.freeze_timeout_ms, 50);
        assert_eq!(ignored.len(), 4, "{ignored:?}");
        assert_eq!(
            ignored[0],
            "dev.crab.checkpoints.max_gate_ms is ignored: \
             a sandbox may say 60000 at most, and this is 60001"
        );
        assert!(ignored[1].ends_with("it must be true or false, and is \"no\""));
        assert!(ignored[2].contains("there is no such setting"));
    }

    #[test]
    fn a_sandbox_may_have_less_of_its_history_kept_and_not_more() {
        let mut host = Config::default();
        let keep = |host: &Config, text| {
            let (config, ignored) = of(host, &[("dev.crab.retention.keep", text)]);
            (config.retention.keep, ignored.len())
        };
        assert_eq!(keep(&host, "7"), (7, 0));
        host.retention.keep = 10;
        assert_eq!(keep(&host, "7"), (7, 0));
        assert_eq!(keep(&host, "11"), (10, 1));
        assert_eq!(keep(&host, "0"), (10, 1));
    }

    #[test]
    fn checkpoints_that_the_host_has_switched_off_stay_off() {
        let mut host = Config::default();
        host.checkpoints.enabled = false;
        let (config, ignored) = of(&host, &[("dev.crab.checkpoints.enabled", "true")]);
        assert!(!config.checkpoints.enabled);
        assert!(ignored[0].ends_with("the host's configuration has it switched off"));
        let (_, ignored) = of(&host, &[("dev.crab.checkpoints.enabled", "false")]);
        assert_eq!(ignored, [""; 0]);
    }

    #[test]
    fn thousands_of_wrong_annotations_are_counted() {
        let names: Vec<String> = (0..5000)
            .map(|n| format!("dev.crab.{n}\n{}", "x".repeat(1000)))
            .collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let (_, ignored) = of(&Config::default(), &all);
        assert_eq!(ignored.len(), TOLD + 1);
        assert!(ignored[TOLD].contains("4992 more"), "{ignored:?}");
        assert!(ignored.iter().map(String::len).sum::<usize>() < 4000);
    }
}
