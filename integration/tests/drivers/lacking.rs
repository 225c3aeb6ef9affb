// SPDX-License-Identifier: Apache-2.0

//! Runtimes without process images: turns are labelled, and what would need an image is
//! refused before anything is touched.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    CgroupMode, Counter, DEBIAN, RunOptions, Sandbox, State, Testbed, Tool, processes,
};
use crab_store::Class;

use crate::{STRANGE, configured, strange};

/// The library through which crun asks CRIU, not where the dynamic linker finds it. It
/// knows libraries by what is in them, whatever they are called.
struct WithoutLibcriu(Vec<(PathBuf, PathBuf)>);

impl WithoutLibcriu {
    fn now() -> Result<Self> {
        let (dir, aside) = (
            Path::new("/usr/lib/x86_64-linux-gnu"),
            Path::new("/usr/lib/aside"),
        );
        fs::create_dir_all(aside)?;
        let mut away = Self(Vec::new());
        for entry in fs::read_dir(dir)?.flatten() {
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with("libcriu.so.2")
            {
                let to = aside.join(entry.file_name());
                fs::rename(entry.path(), &to)?;
                away.0.push((entry.path(), to));
            }
        }
        ensure!(!away.0.is_empty(), "{} has no libcriu", dir.display());
        Tool::new("ldconfig").run()?.ok()?;
        Ok(away)
    }
}

impl Drop for WithoutLibcriu {
    fn drop(&mut self) {
        for (from, to) in &self.0 {
            if let Err(error) = fs::rename(to, from) {
                eprintln!("could not put {} back: {error}", from.display());
            }
        }
        let _ = Tool::new("ldconfig").run();
    }
}

/// Files are kept and brought back, processes are said to be missing.
fn holds_files_only(testbed: &Testbed, binary: &str, says: &str) -> Result<()> {
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let config = configured(binary)?;
    let sandbox = ctr.run(DEBIAN, RunOptions::without_bytecode())?;
    drop(config);
    let idle = crab.turn_of(&sandbox, Class::Files, "echo idle >/root/f")?;
    ensure!(
        idle.is_whole(),
        "with a keep-alive init nothing is missing: {idle:?}"
    );
    crab.turn_of(&sandbox, Class::None, "true")?;

    let counter = Counter::start(&crab, &sandbox, 1)?;
    let (answer, turn) = counter.ask()?;
    let label = turn.record.degraded.as_deref();
    let label = label.with_context(|| format!("turn {} is not labelled", turn.number()))?;
    ensure!(
        label.starts_with("files only: ") && label.contains(says),
        "{label}"
    );
    // Nobody has asked CRIU.
    ensure!(!sandbox.staging().exists());
    let dumps = sandbox.run_dir().join("dump");
    ensure!(!dumps.exists(), "{} was made", dumps.display());
    // The server does not notice.
    assert_eq!(counter.ask()?.0, answer + 1);

    refuses_images(&sandbox, says)?;

    let restored = crab.rollback(&sandbox, turn.number())?;
    assert_eq!(restored["processes"], false);
    assert_eq!(counter.in_file()?, answer);
    crab.rollback(&sandbox, idle.number())?;
    assert_eq!(
        sandbox.sh_ok("cat /root/f; pgrep -c python3 || true")?,
        "idle\n0"
    );
    Ok(())
}

/// The standard checkpoint: a plain no, and the container goes on.
fn refuses_images(sandbox: &Sandbox, says: &str) -> Result<()> {
    let inside = sandbox.processes()?;
    let ctr = sandbox.client();
    let said = ctr.tool(["task", "checkpoint", sandbox.id()]).run()?;
    ensure!(said.status != 0, "{} did not fail", said.command);
    ensure!(said.stderr.contains(says), "{}", said.stderr);
    assert_eq!(sandbox.state()?, State::Running);
    assert_eq!(sandbox.processes()?, inside);
    assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    Ok(())
}

#[test]
fn the_built_in_runtime_keeps_files_and_says_that_processes_are_missing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    holds_files_only(
        &testbed,
        "builtin",
        "the built-in runtime has no process images",
    )
}

#[test]
fn an_unknown_runtime_is_used_and_not_trusted_with_processes() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let _strange = strange()?;
    holds_files_only(
        &testbed,
        STRANGE,
        "strange 7 is not known to checkpoint processes",
    )
}

#[test]
fn crun_without_its_library_keeps_files() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    if testbed.cgroup() == CgroupMode::V1 {
        // Refused on a hybrid host: see `chosen`.
        return Ok(());
    }
    let _without = WithoutLibcriu::now()?;
    holds_files_only(&testbed, "crun", "libcriu.so.2, which is not installed")
}

#[test]
fn processes_are_not_given_to_a_runtime_that_cannot_restore_them() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let sandbox = ctr.run(DEBIAN, RunOptions::without_bytecode())?;
    let counter = Counter::start(&crab, &sandbox, 1)?;
    let (answer, turn) = counter.ask()?;
    ensure!(turn.is_whole(), "{turn:?}");
    processes::kill(sandbox.pid()?)?;
    sandbox.wait_for(State::Stopped)?;
    {
        let _config = configured("builtin")?;
        let id = sandbox.sandbox_id();
        let refusal = crab.refusal(&["restore", &id])?;
        for words in [
            "holds processes",
            "the built-in runtime has no process images",
        ] {
            ensure!(refusal.line.contains(words), "{}", refusal.line);
        }
    }
    // Nothing is lost by it.
    crab.restore(&sandbox, None)?;
    assert_eq!(counter.ask()?.0, answer + 1);
    Ok(())
}
