// SPDX-License-Identifier: Apache-2.0
//! Named points at which a step can be made to fail, so that a test can walk through all of
//! them. Only in builds with debug assertions: in any other they are nothing.

use anyhow::Result;

use crate::sandbox::Container;

/// The file in the run directory that names the points at which the next step fails: a line
/// each, which is taken out by the failure. With `die` before the name the shim is killed there.
#[cfg(debug_assertions)]
const FILE: &str = "fail-at";

/// Fails if it was asked for.
#[cfg(debug_assertions)]
pub(crate) fn point(container: &Container, name: &str) -> Result<()> {
    let path = container.host.config.run_dir.join(FILE);
    let Ok(asked) = std::fs::read_to_string(&path) else {
        return Ok(());
    };
    let mut lines: Vec<&str> = asked.lines().collect();
    let named = |line: &&str| line.strip_prefix("die ").unwrap_or(line) == name;
    let Some(at) = lines.iter().position(named) else {
        return Ok(());
    };
    let line = lines.remove(at);
    std::fs::write(&path, lines.join("\n"))?;
    if line.starts_with("die ") {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    anyhow::bail!("failed on purpose at {name}")
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "it may fail in other builds")]
pub(crate) fn point(_: &Container, _: &str) -> Result<()> {
    Ok(())
}
