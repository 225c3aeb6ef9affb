// SPDX-License-Identifier: Apache-2.0

//! containerd: who it is, whether it finds the shim, and whether the CRI names it.
//!
//! It is found by who listens on its socket, and what it goes by (PATH,
//! configuration) is read from that process, not guessed from files.

use std::{
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use tokio::{
    net::UnixStream,
    time::{Duration, timeout},
};

use super::{
    check::Check,
    program::{SearchPath, ask},
    version::Version,
};

const NAME: &str = "containerd";
const SHIM_CHECK: &str = "shim";
const CRI: &str = "containerd-cri";

/// Where it listens: by itself, for Docker alone, in k3s.
const SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
];

/// The oldest that Crab is tested with.
const OLDEST: Version = Version(1, 7);

/// The program that containerd looks for, by the runtime's name.
const SHIM: &str = "containerd-shim-crab-v1";
/// That name.
pub(crate) const RUNTIME: &str = "io.containerd.crab.v1";

/// How long a listening socket may take to be connected to.
const CONNECT: Duration = Duration::from_secs(5);

/// A containerd that runs.
pub(crate) struct Containerd {
    socket: &'static str,
    pid: i32,
    /// Where it, and so every shim, looks for programs.
    pub(crate) path: SearchPath,
}

impl Containerd {
    /// The one that runs on this host, the usual one first.
    pub(crate) async fn find() -> Option<Self> {
        for socket in SOCKETS {
            let Some(pid) = listener(Path::new(socket)).await else {
                continue;
            };
            let path = environment(pid, "PATH").unwrap_or_default();
            return Some(Self {
                socket,
                pid,
                path: SearchPath::new(path),
            });
        }
        None
    }

    fn program(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/exe", self.pid))
    }

    async fn checks(&self) -> Vec<Check> {
        let version = match ask(self.program(), &["--version"]).await {
            Ok(said) => judge(&said.stdout, self.socket),
            // It listens: that much is known of it.
            Err(_) => Check::ok(NAME, format!("listens on {}", self.socket)),
        };
        vec![version, shim(&self.path, true).await, self.cri().await]
    }

    /// By its own account of its configuration, imports and all.
    async fn cri(&self) -> Check {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let config = config_argument(&line);
        let mut args: Vec<&str> = config.iter().flat_map(|file| ["--config", file]).collect();
        args.extend(["config", "dump"]);
        match ask(self.program(), &args).await {
            Ok(said) if said.well => handler(&said.stdout),
            Ok(said) => Check::absent(
                CRI,
                format!("its configuration is not to be had: {}", said.why()),
            ),
            Err(why) => Check::absent(CRI, why),
        }
    }
}

/// `running` is what [`Containerd::find`] found.
pub(crate) async fn checks(running: Option<&Containerd>) -> Vec<Check> {
    if let Some(containerd) = running {
        return containerd.checks().await;
    }
    let path = SearchPath::own();
    let containerd = match path.find(Path::new("containerd")) {
        Some(program) => Check::warn(
            NAME,
            format!("{} does not run", program.display()),
            "start it: systemctl start containerd",
        ),
        None => Check::absent(NAME, "not installed"),
    };
    vec![containerd, shim(&path, false).await]
}

/// Who listens on a socket; none if nobody does.
pub(crate) async fn listener(socket: &Path) -> Option<i32> {
    let stream = timeout(CONNECT, UnixStream::connect(socket)).await;
    stream.ok()?.ok()?.peer_cred().ok()?.pid()
}

fn environment(pid: i32, name: &str) -> Option<std::ffi::OsString> {
    let block = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = variable(&block, name)?;
    Some(std::ffi::OsString::from_vec(value.to_vec()))
}

fn variable<'a>(block: &'a [u8], name: &str) -> Option<&'a [u8]> {
    block.split(|byte| *byte == 0).find_map(|entry| {
        entry
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
    })
}

/// The value of `--config` or `-c` on its command line.
fn config_argument(line: &[u8]) -> Option<String> {
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
        match flag.split_once('=') {
            Some(("config" | "c", value)) => Some(value.to_owned()),
            None if matches!(flag, "config" | "c") => words.get(at + 1).cloned(),
            _ => None,
        }
    })
}

fn judge(said: &str, socket: &str) -> Check {
    let Some((version, word)) = Version::find(said) else {
        return Check::ok(NAME, format!("listens on {socket}"));
    };
    let found = format!("{word}, listens on {socket}");
    match version < OLDEST {
        true => Check::warn(
            NAME,
            found,
            format!("install containerd {OLDEST} or newer: Crab is not tried with older ones"),
        ),
        false => Check::ok(NAME, found),
    }
}

/// `theirs`: the path is containerd's own.
async fn shim(path: &SearchPath, theirs: bool) -> Check {
    let Some(program) = path.find(Path::new(SHIM)) else {
        let whose = if theirs {
            "containerd's PATH, "
        } else {
            "PATH, "
        };
        return Check::fail(
            SHIM_CHECK,
            format!("{SHIM} is not on {whose}{path}"),
            "run scripts/install, or put it into one of these directories",
        );
    };
    match ask(&program, &["-v"]).await {
        Ok(said) if said.well => {
            let own = env!("CARGO_PKG_VERSION");
            let version = said.stdout.split_whitespace().last().unwrap_or("?");
            let found = format!("{version}, {}", program.display());
            match version == own {
                true => Check::ok(SHIM_CHECK, found),
                false => Check::warn(
                    SHIM_CHECK,
                    format!("{found}, and crab is {own}"),
                    "install all three programs of one version",
                ),
            }
        }
        Ok(said) => Check::fail(
            SHIM_CHECK,
            format!("{} fails: {}", program.display(), said.why()),
            "install it again",
        ),
        Err(why) => Check::fail(SHIM_CHECK, why, "install it again"),
    }
}

/// systemd makes the cgroups of this runtime's containers.
fn by_systemd(runtime: &toml::Value) -> bool {
    let options = runtime.get("options");
    let said = options.and_then(|options| options.get("SystemdCgroup"));
    said.and_then(toml::Value::as_bool) == Some(true)
}

/// The CRI's runtimes in a configuration of version 2 and 3.
fn handler(config: &str) -> Check {
    let Ok(config) = config.parse::<toml::Table>() else {
        return Check::absent(CRI, "its configuration is no TOML");
    };
    let disabled = config
        .get("disabled_plugins")
        .and_then(|all| all.as_array());
    let is_off =
        |name: &str| disabled.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)));
    const PLUGINS: [&str; 2] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"];
    if is_off("cri") || PLUGINS.iter().any(|name| is_off(name)) {
        return Check::absent(CRI, "containerd runs without its CRI");
    }
    for plugin in PLUGINS {
        let runtimes = ["plugins", plugin, "containerd", "runtimes"]
            .iter()
            .try_fold(&config, |table, key| table.get(*key)?.as_table());
        let Some(runtimes) = runtimes else { continue };
        let is_crab = |runtime: &toml::Value| {
            runtime.get("runtime_type").and_then(toml::Value::as_str) == Some(RUNTIME)
        };
        let Some((name, crab)) = runtimes.iter().find(|(_, runtime)| is_crab(runtime)) else {
            continue;
        };
        // The kubelet has one cgroup driver for all.
        let theirs = runtimes.iter().find(|(_, runtime)| by_systemd(runtime));
        return match theirs {
            Some((other, _)) if !by_systemd(crab) => Check::warn(
                CRI,
                format!("the handler {name}, without SystemdCgroup, which {other} has"),
                format!(
                    "set SystemdCgroup = true in the options of {name}, too, and restart containerd"
                ),
            ),
            _ => Check::ok(CRI, format!("the handler {name}")),
        };
    }
    Check::absent(
        CRI,
        "no handler for Crab, which only Kubernetes and crictl need (scripts/install --containerd)",
    )
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    #[test]
    fn its_environment_and_command_line_are_read() {
        let block = b"A=1\0PATHX=/x\0PATH=/a:/b\0";
        assert_eq!(variable(block, "PATH"), Some(&b"/a:/b"[..]));
        assert_eq!(variable(block, "HOME"), None);
        let config = |line: &str| config_argument(line.replace(' ', "\0").as_bytes());
        assert_eq!(config("containerd"), None);
        assert_eq!(config("containerd --config /a"), Some("/a".into()));
        assert_eq!(
            config("containerd -c=/b --log-level warn"),
            Some("/b".into())
        );
        assert_eq!(
            config("containerd --config"),
            Some("".into()).filter(|_| false)
        );
    }

    #[test]
    fn old_ones_are_told() {
        let verdict = |said| judge(said, "/s").verdict;
        assert_eq!(
            verdict("containerd github.com/x 1.7.24~ds1 1.7"),
            Verdict::Ok
        );
        assert_eq!(verdict("containerd github.com/x v2.1.9 abc"), Verdict::Ok);
        assert_eq!(verdict("containerd github.com/x 1.6.20 abc"), Verdict::Warn);
        assert_eq!(verdict("?"), Verdict::Ok);
    }

    #[test]
    fn the_samples_make_a_handler_and_none_is_no_fault() {
        for sample in [
            include_str!("../../../config/samples/containerd-1.7.toml"),
            include_str!("../../../config/samples/containerd-2.toml"),
        ] {
            assert_eq!(handler(sample), Check::ok(CRI, "the handler crab"));
            let off = format!("disabled_plugins = ['io.containerd.grpc.v1.cri']\n{sample}");
            assert_eq!(handler(&off).verdict, Verdict::Absent);
            // As the samples say it for a kubelet that leaves cgroups to systemd.
            let systemd = |text: &str| {
                text.replace("\n#[", "\n[")
                    .replace("\n#  Systemd", "\n  Systemd")
            };
            assert_eq!(handler(&systemd(sample)).verdict, Verdict::Ok);
            let (one, _) = sample.rsplit_once("\n#[").unwrap();
            let check = handler(&systemd(one));
            assert_eq!(check.verdict, Verdict::Warn);
            assert!(check.found.ends_with("which runc has"), "{}", check.found);
        }
        assert_eq!(handler("version = 2").verdict, Verdict::Absent);
        assert_eq!(handler("= no").verdict, Verdict::Absent);
    }
}
