// SPDX-License-Identifier: Apache-2.0

//! Reading traces, and refusing what is none.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Trace;

/// What a file may have at most, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// As many turns as a run may have.
const MAX_TURNS: usize = 10_000;
/// The longest argument that the kernel takes (`MAX_ARG_STRLEN`), its end included.
const MAX_COMMAND: usize = 128 << 10;
/// The longest wait, in milliseconds: an hour.
const MAX_WAIT: u64 = 3_600_000;

/// The project's own traces.
pub fn own() -> Result<Vec<Trace>> {
    // By the repository that this was built from where it is to be seen, which is so in a
    // test host.
    let root = env::var_os("TESTBED_SRC").map_or_else(|| PathBuf::from("/src"), PathBuf::from);
    let there = root.join("integration/traces");
    match there.is_dir() {
        true => folder(&there),
        false => folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")),
    }
}

/// Every trace of a folder, by name. A `.json` in it that has no `turns` is something else,
/// which is said; one that has, and is no trace, is an error.
pub fn folder(dir: &Path) -> Result<Vec<Trace>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("read {}", dir.display()))?
            .path();
        if path.extension().is_some_and(|ext| ext == "json") {
            files.push(path);
        }
    }
    files.sort();
    let mut traces = Vec::new();
    for file in files {
        match load(&file).with_context(|| file.display().to_string())? {
            Some(trace) => traces.push(trace),
            None => eprintln!("{} has no turns and is passed over", file.display()),
        }
    }
    ensure!(!traces.is_empty(), "{} holds no traces", dir.display());
    let ids: BTreeSet<&str> = traces.iter().map(|trace| trace.id.as_str()).collect();
    ensure!(ids.len() == traces.len(), "two traces have one id");
    Ok(traces)
}

/// One file; nothing if it is about something else.
fn load(file: &Path) -> Result<Option<Trace>> {
    let about = fs::metadata(file)?;
    ensure!(
        about.is_file() && about.len() <= MAX_FILE,
        "it is no file of at most {MAX_FILE} bytes"
    );
    parse(file, &fs::read_to_string(file)?)
}

fn parse(file: &Path, text: &str) -> Result<Option<Trace>> {
    let value: Value = serde_json::from_str(text).context("it is no JSON")?;
    if value.get("turns").is_none() {
        return Ok(None);
    }
    // By the text, so that a mistake has a line.
    let mut trace: Trace = serde_json::from_str(text).context("it is no trace")?;
    trace.file = file.to_owned();
    check(&trace)?;
    Ok(Some(trace))
}

/// What the types cannot say.
fn check(trace: &Trace) -> Result<()> {
    let stem = trace.file.file_stem().and_then(|stem| stem.to_str());
    ensure!(
        stem == Some(trace.id.as_str()),
        "its id is {:?}, and a trace is called like its file",
        trace.id
    );
    ensure!(
        trace.cwd.is_absolute(),
        "cwd {:?} is no absolute path",
        trace.cwd
    );
    ensure!(
        trace.agent_timeout_ms != Some(0),
        "an agent_timeout_ms of 0 lets no command run"
    );
    let turns = trace.turns.len();
    ensure!(
        (1..=MAX_TURNS).contains(&turns),
        "it has {turns} turns, and 1 to {MAX_TURNS} may be"
    );
    for (n, script) in trace.setup.iter().enumerate() {
        command(script).with_context(|| format!("setup {}", n + 1))?;
    }
    for (n, turn) in trace.turns.iter().enumerate() {
        let checked = || {
            command(&turn.command)?;
            ensure!(!turn.tool.is_empty(), "it names no tool");
            for (name, wait) in [
                ("llm_wait_ms", turn.llm_wait_ms),
                ("idle_before_ms", turn.idle_before_ms),
            ] {
                let wait = wait.unwrap_or(0);
                ensure!(wait <= MAX_WAIT, "{name} {wait} is more than an hour");
            }
            if let Some(exit) = turn.exit {
                ensure!((0..=255).contains(&exit), "{exit} is no exit status");
            }
            Ok(())
        };
        checked().with_context(|| format!("turn {}", n + 1))?;
    }
    Ok(())
}

fn command(text: &str) -> Result<()> {
    if text.trim().is_empty() {
        bail!("its command is empty");
    }
    ensure!(!text.contains('\0'), "its command has a NUL in it");
    ensure!(
        text.len() < MAX_COMMAND,
        "its command has {} bytes, and the kernel takes {} at most",
        text.len(),
        MAX_COMMAND - 1
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::traces::{Kind, Shell};

    fn minimal() -> Value {
        json!({
            "id": "x", "kind": "written", "cwd": "/case", "shell": "bash",
            "turns": [{"tool": "bash", "command": "true", "llm_wait_ms": 2000, "exit": 0}],
        })
    }

    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let mut value = minimal();
        change(&mut value);
        let parsed = parse(Path::new("/traces/x.json"), &value.to_string());
        format!("{:#}", parsed.expect_err("it was taken"))
    }

    #[test]
    fn every_trace_of_the_project_is_one() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        let all = folder(&dir).unwrap();
        assert!(all.len() >= 12, "{}", all.len());
        for trace in &all {
            assert_eq!(trace.kind, Kind::Written, "{}", trace.id);
            assert!((10..=25).contains(&trace.turns.len()), "{}", trace.id);
            // What it has to come to is known, as is each wait: they are compared.
            for (n, turn) in trace.turns.iter().enumerate() {
                assert!(turn.exit.is_some(), "{} turn {}", trace.id, n + 1);
                assert!(turn.llm_wait_ms.is_some(), "{} turn {}", trace.id, n + 1);
            }
        }
    }

    #[test]
    fn their_waits_are_spread_as_those_of_real_runs() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        let all = folder(&dir).unwrap();
        let turns = all.iter().flat_map(|trace| &trace.turns);
        let mut waits: Vec<u64> = turns.filter_map(|turn| turn.llm_wait_ms).collect();
        waits.sort_unstable();
        let at = |percent: usize| waits[waits.len() * percent / 100];
        assert!((2_800..=3_400).contains(&at(50)), "median {} ms", at(50));
        assert!((15_000..=19_000).contains(&at(90)), "p90 {} ms", at(90));
    }

    #[test]
    fn a_trace_needs_little() {
        let file = Path::new("/traces/x.json");
        let trace = parse(file, &minimal().to_string()).unwrap().unwrap();
        assert_eq!((trace.shell, trace.turns.len()), (Shell::Bash, 1));
        assert_eq!(trace.file(), file);
        assert_eq!(trace.turns[0].stdin, None);
        // Something else in the same folder.
        assert!(parse(file, r#"{"other": 1}"#).unwrap().is_none());
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_reason() {
        for (says, change) in [
            ("called like its file", |v: &mut Value| v["id"] = "y".into()),
            ("no absolute path", |v| v["cwd"] = "work".into()),
            ("unknown variant `fish`", |v| v["shell"] = "fish".into()),
            ("unknown field `turn`", |v| v["turn"] = 1.into()),
            ("0 turns", |v| v["turns"] = json!([])),
            ("turn 1: its command is empty", |v| {
                v["turns"][0]["command"] = " ".into();
            }),
            ("turn 1: its command has a NUL", |v| {
                v["turns"][0]["command"] = "a\0b".into();
            }),
            ("setup 1: its command is empty", |v| {
                v["setup"] = json!([""])
            }),
            ("turn 1: 256 is no exit status", |v| {
                v["turns"][0]["exit"] = 256.into();
            }),
            ("more than an hour", |v| {
                v["turns"][0]["llm_wait_ms"] = 3_600_001.into();
            }),
            ("invalid type: floating point", |v| {
                v["turns"][0]["llm_wait_ms"] = json!(1.5);
            }),
            ("lets no command run", |v| v["agent_timeout_ms"] = 0.into()),
            ("131072 bytes", |v| {
                v["turns"][0]["command"] = "x".repeat(131_072).into();
            }),
        ] as [(&str, fn(&mut Value)); 13]
        {
            let said = refused(change);
            assert!(said.contains(says), "{said:?} does not say {says:?}");
        }
        let said = parse(Path::new("x.json"), "{").expect_err("it was taken");
        assert!(format!("{said:#}").contains("no JSON"), "{said:#}");
    }
}
