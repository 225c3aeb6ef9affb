// SPDX-License-Identifier: Apache-2.0

//! crabd and its programs in the kernel: asked if it runs, tried out if it does not.

use std::{path::Path, time::Duration};

use crab_api::{
    paths,
    tracer::{Empty, TracerStatus},
    tracer_ttrpc::TracerClient,
    ttrpc::context,
};
use crab_config::{Config, Inspector};
use tokio::time::timeout;

use super::{check::Check, containerd::listener, program::ask};
use crate::output;

const NAME: &str = "crabd";
const BPF: &str = "bpf";

/// It answers in microseconds; on a host that is busy, later.
const LIMIT: Duration = Duration::from_secs(5);

const UNIT: &str = "/etc/systemd/system/crabd.service";
const SYSTEMD: &str = "/run/systemd/system";

/// What became of asking it.
enum Answer {
    Status(TracerStatus),
    /// Nobody listens.
    Nobody,
    /// This process listens, and says nothing, or nonsense.
    Silent(Option<i32>, String),
}

pub(crate) async fn checks(config: &Config) -> Vec<Check> {
    let socket = paths::crabd_socket(&config.run_dir);
    match status(&socket).await {
        Answer::Status(status) => {
            let up = output::duration(status.uptime_ms.saturating_mul(1000));
            let sandboxes = output::count(status.sandboxes.into(), "sandbox", "sandboxes");
            let found = format!("answers on {}, up {up}, {sandboxes}", socket.display());
            vec![Check::ok(NAME, found), counting(&status, &config.inspector)]
        }
        Answer::Silent(pid, why) => {
            let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            vec![Check::fail(
                NAME,
                format!("does not answer on {}{who}: {why}", socket.display()),
                match Path::new(UNIT).exists() && Path::new(SYSTEMD).exists() {
                    true => {
                        "restart it: systemctl restart crabd; what is counted goes on".to_owned()
                    }
                    false => format!(
                        "kill it{who}: the next one takes over, and what is counted goes on"
                    ),
                },
            )]
        }
        Answer::Nobody => not_running(config, &socket).await,
    }
}

async fn status(socket: &Path) -> Answer {
    let Ok(client) = crab_api::connect(socket).await else {
        return Answer::Nobody;
    };
    let client = TracerClient::new(client);
    let nothing = Empty::new();
    let asked = client.status(context::with_duration(LIMIT), &nothing);
    let why = match timeout(LIMIT, asked).await {
        Ok(Ok(status)) => return Answer::Status(status),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("nothing came within {} s", LIMIT.as_secs()),
    };
    Answer::Silent(listener(socket).await, why)
}

fn counting(status: &TracerStatus, inspector: &Inspector) -> Check {
    let now = match (status.programs.as_str(), inspector.enabled) {
        ("off", false) => return switched_off(),
        ("off", true) => Some(format!("{}, as crabd has read it", status.reason)),
        ("none", true) => return not_counting(&status.reason),
        ("none", false) => Some(status.reason.clone()),
        (programs, false) => Some(format!(
            "{programs} attached, which the configuration has switched off since"
        )),
        (_, true) => None,
    };
    if let Some(now) = now {
        let mend = "restart crabd: it reads the configuration when it starts";
        return Check::warn(BPF, now, mend);
    }
    let mut found = format!(
        "{} attached, {} lost",
        status.programs,
        output::count(status.lost, "event", "events")
    );
    // They cost each system call of the host something.
    for cheaper in &status.refused {
        found = format!("{found}; the kernel does not take {cheaper}");
    }
    if status.reason.is_empty() {
        return Check::ok(BPF, found);
    }
    Check::warn(BPF, format!("{found}: {}", status.reason), "restart crabd")
}

/// As somebody wanted it.
fn switched_off() -> Check {
    Check::absent(
        BPF,
        "switched off (inspector.enabled): turns are unobserved, each is looked at in full",
    )
}

fn not_counting(why: &str) -> Check {
    Check::warn(
        BPF,
        format!("programs cannot be used ({why}): turns are unobserved, each is looked at in full"),
        "boot a kernel with BTF that lets root load BPF programs, and see crabd's log",
    )
}

async fn not_running(config: &Config, socket: &Path) -> Vec<Check> {
    let Some(program) = config.crabd_binary() else {
        return vec![Check::fail(
            NAME,
            "the program is not found: neither beside crab nor on PATH",
            "run scripts/install, or name it as crabd in the configuration",
        )];
    };
    let crabd = match Path::new(UNIT).exists() && Path::new(SYSTEMD).exists() {
        true => Check::warn(
            NAME,
            format!(
                "its unit is installed, and nobody listens on {}",
                socket.display()
            ),
            "start it: systemctl enable --now crabd (journalctl -u crabd tells why it ended)",
        ),
        false => Check::ok(
            NAME,
            format!(
                "does not run; the first sandbox starts {}",
                program.display()
            ),
        ),
    };
    if !program.is_file() {
        return vec![Check::fail(
            NAME,
            format!("there is no {}", program.display()),
            "correct crabd in the configuration, or install it there",
        )];
    }
    if !config.inspector.enabled {
        return vec![crabd, switched_off()];
    }
    let bpf = match ask(&program, &["--check"]).await {
        Ok(said) if said.well => Check::ok(BPF, format!("{} can be attached", said.stdout.trim())),
        Ok(said) => not_counting(said.why().trim_start_matches("crabd: ")),
        Err(why) => return vec![Check::fail(NAME, why, "install it again")],
    };
    vec![crabd, bpf]
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    fn status(programs: &str, reason: &str, lost: u64) -> TracerStatus {
        TracerStatus {
            programs: programs.into(),
            reason: reason.into(),
            lost,
            ..Default::default()
        }
    }

    fn counting(status: &TracerStatus) -> Check {
        super::counting(status, &Inspector { enabled: true })
    }

    #[test]
    fn what_is_switched_off_is_no_fault_unless_crabd_does_otherwise() {
        let off = Inspector { enabled: false };
        let check = |programs, inspector| super::counting(&status(programs, "why", 0), inspector);
        let wanted = check("off", &off);
        assert_eq!(wanted, switched_off());
        assert_eq!(wanted.verdict, Verdict::Absent);
        for (programs, inspector, word) in [
            ("off", &Inspector::default(), "why"),
            ("none", &off, "why"),
            ("tp_btf:inodes", &off, "tp_btf:inodes attached"),
        ] {
            let check = check(programs, inspector);
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.found.contains(word), "{check:?}");
            assert!(check.mend.unwrap().starts_with("restart crabd"));
        }
    }

    #[test]
    fn what_counts_and_what_does_not_is_told() {
        let check = counting(&status("tp_btf", "", 3));
        assert_eq!(check, Check::ok(BPF, "tp_btf attached, 3 events lost"));
        let mut dearer = status("tp_btf", "", 0);
        dearer.refused = vec!["others: why".into()];
        let check = counting(&dearer);
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.found.ends_with("does not take others: why"));
        let check = counting(&status("none", "no BTF", 0));
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains("no BTF"));
        assert_eq!(counting(&status("tp_btf", "odd", 0)).verdict, Verdict::Warn);
    }
}
