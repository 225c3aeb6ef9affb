// SPDX-License-Identifier: Apache-2.0

//! Docker: what dockerd says of itself.
//!
//! Only one that runs is asked: where systemd holds its socket, a question alone would
//! start it.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

use super::{check::Check, containerd::RUNTIME, program::SearchPath};

const NAME: &str = "docker";
const RUNTIME_CHECK: &str = "docker-runtime";

const SOCKET: &str = "/run/docker.sock";
const PID_FILES: [&str; 2] = ["/run/docker.pid", "/var/run/docker.pid"];
const DAEMON_JSON: &str = "/etc/docker/daemon.json";

const LIMIT: Duration = Duration::from_secs(10);
/// What its answer may take.
const MAX_ANSWER: u64 = 8 << 20;

/// The part of `GET /info` that matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Info {
    server_version: String,
    driver: String,
    cgroup_driver: String,
    experimental_build: bool,
    runtimes: serde_json::Map<String, Value>,
}

pub(crate) fn checks() -> Vec<Check> {
    if !runs() {
        let installed = SearchPath::own().find(Path::new("dockerd")).is_some();
        return vec![Check::absent(
            NAME,
            match installed {
                true => "installed, and does not run",
                false => "not installed",
            },
        )];
    }
    match info() {
        Ok(info) => {
            let said = fs::read_to_string(DAEMON_JSON).unwrap_or_default();
            vec![judge(&info), runtime(&info, said.contains(RUNTIME))]
        }
        Err(error) => vec![Check::fail(
            NAME,
            format!("dockerd runs and does not answer on {SOCKET}: {error}"),
            "see its log (journalctl -u docker)",
        )],
    }
}

fn runs() -> bool {
    let pid = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u32>().ok();
    PID_FILES.iter().filter_map(|file| pid(file)).any(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "dockerd")
    })
}

/// HTTP/1.0: the answer ends with the connection.
fn info() -> io::Result<Info> {
    let mut stream = UnixStream::connect(SOCKET)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> io::Result<Info> {
    let status = answer.lines().next().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    match body {
        Some(body) if status.contains(" 200 ") => Ok(serde_json::from_str(body)?),
        _ => Err(io::Error::other(format!("it says {status:?}"))),
    }
}

fn judge(info: &Info) -> Check {
    let experimental = match info.experimental_build {
        true => "",
        // Crab needs it for nothing.
        false => "; `docker checkpoint` wants \"experimental\": true in its daemon.json",
    };
    let found = format!(
        "{}, {}, cgroups by {}{experimental}",
        info.server_version, info.driver, info.cgroup_driver
    );
    match info.driver.as_str() {
        "overlay2" | "overlayfs" => Check::ok(NAME, found),
        _ => Check::warn(
            NAME,
            format!("{found}: the whole root is compared after each turn, and stored once"),
            "use the storage driver overlay2",
        ),
    }
}

/// `written`: the file names it.
fn runtime(info: &Info, written: bool) -> Check {
    let is_crab = |value: &Value| {
        let kind = value.get("runtimeType").or_else(|| value.get("path"));
        let kind = kind.and_then(Value::as_str).unwrap_or_default();
        kind == RUNTIME || kind.ends_with("containerd-shim-crab-v1")
    };
    let named = info.runtimes.iter().find(|(_, value)| is_crab(value));
    // What dockerd tells of a runtime differs from version to version; the name stays.
    let name = match named {
        Some((name, _)) => Some(name.as_str()),
        None => info.runtimes.contains_key("crab").then_some("crab"),
    };
    match name {
        Some(name) => Check::ok(RUNTIME_CHECK, format!("--runtime {name}")),
        None if written => Check::warn(
            RUNTIME_CHECK,
            format!("{DAEMON_JSON} names Crab, and dockerd has not read it"),
            "have it do so: systemctl reload docker",
        ),
        None => Check::absent(
            RUNTIME_CHECK,
            format!(
                "no short name: docker run --runtime {RUNTIME} needs none (scripts/install --docker)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    fn info(text: &str) -> Info {
        parse(&format!("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{text}")).unwrap()
    }

    #[test]
    fn what_dockerd_answers_is_judged() {
        let good = info(
            r#"{"ServerVersion":"26.1.5","Driver":"overlay2","CgroupDriver":"systemd","X":1,
                "ExperimentalBuild":true,"Runtimes":{"runc":{"path":"runc"},
                "sandbox":{"runtimeType":"io.containerd.crab.v1"}}}"#,
        );
        let check = judge(&good);
        assert_eq!(
            check,
            Check::ok(NAME, "26.1.5, overlay2, cgroups by systemd")
        );
        assert_eq!(
            runtime(&good, true),
            Check::ok(RUNTIME_CHECK, "--runtime sandbox")
        );
        let vfs = info(r#"{"Driver":"vfs"}"#);
        assert_eq!(judge(&vfs).verdict, Verdict::Warn);
    }

    #[test]
    fn a_runtime_that_was_not_read_yet_is_told_from_none() {
        let none = info(r#"{"Runtimes":{"runc":{"path":"runc"}}}"#);
        assert_eq!(runtime(&none, true).verdict, Verdict::Warn);
        assert_eq!(runtime(&none, false).verdict, Verdict::Absent);
        let by_name = info(r#"{"Runtimes":{"crab":{}}}"#);
        assert_eq!(runtime(&by_name, false).verdict, Verdict::Ok);
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        assert!(parse("HTTP/1.0 500 Oops\r\n\r\n{}").is_err());
        assert!(parse("").is_err());
        assert!(parse("HTTP/1.0 200 OK\r\n\r\nno JSON").is_err());
    }
}
