// SPDX-License-Identifier: Apache-2.0

//! What is missing, broken or wrong is said in one line with what to do, and costs a
//! container nothing.

mod crabd;
mod criu;
mod mistakes;
mod storage;

use std::time::Duration;

use anyhow::{Result, ensure};
use crab_integration::{Crab, Sandbox, State};

const LIMIT: Duration = Duration::from_secs(20);

/// Where shims and `crab` look for what is configured.
const CONFIG: &str = "/etc/crab/config.toml";

// Exit codes of `crab`.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const REFUSED: i32 = 4;

/// `crab` has to refuse in its one line, with this code and these words in it.
fn refuses(crab: &Crab, args: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let refusal = crab.refusal(args)?;
    let line = &refusal.line;
    ensure!(
        refusal.code == code,
        "{args:?} ended with {} and not {code}: {line}",
        refusal.code
    );
    let what_to_do = line.split_once("; ").map_or("", |(_, advice)| advice);
    ensure!(!what_to_do.is_empty(), "it does not say what to do: {line}");
    for word in words {
        ensure!(line.contains(word), "{word:?} is not in: {line}");
    }
    Ok(())
}

/// It runs, and answers.
fn lives(sandbox: &Sandbox) -> Result<()> {
    ensure!(sandbox.state()? == State::Running);
    ensure!(sandbox.sh_ok("echo alive")? == "alive");
    Ok(())
}

/// The lines of `crab turns` that hold this text.
fn lines_of_turns(crab: &Crab, sandbox: &Sandbox, text: &str) -> Result<Vec<String>> {
    let said = crab.run(&["turns", &sandbox.sandbox_id()])?.ok()?.stdout;
    let lines = said.lines().filter(|line| line.contains(text));
    Ok(lines.map(str::to_owned).collect())
}
