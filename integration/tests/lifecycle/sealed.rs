// SPDX-License-Identifier: Apache-2.0

//! The runtime enters containers from a sealed copy of its program that crabd holds.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use crab_integration::{
    BUSYBOX, Driver, ExecOptions, RunOptions, Sandbox, Swapped, Testbed, poll, processes, skip,
};

use crate::LIMIT;

/// Where runc is.
const RUNC: &str = "/usr/sbin/runc";

/// From which file a runtime runs that starts an exec: its name and inode.
fn seen_in_exec(sandbox: &Sandbox) -> Result<(PathBuf, u64)> {
    let bundle = sandbox.bundle().display().to_string();
    // It lives for some milliseconds, which a busy machine lets pass in between.
    poll("a runtime is seen at work", LIMIT, || {
        let mut exec = sandbox.exec_start(&["true"], &ExecOptions::new())?;
        let mut seen = None;
        while seen.is_none() && !exec.has_ended()? {
            seen = processes::all().into_iter().find_map(|(pid, words)| {
                let is_it = words.first().is_some_and(|word| word == "runc")
                    && words.iter().any(|word| word.starts_with(&bundle));
                let link = Path::new("/proc").join(format!("{pid}/exe"));
                let inode = || Some(fs::metadata(&link).ok()?.ino());
                Some((is_it.then(|| fs::read_link(&link).ok())??, inode()?))
            });
        }
        exec.wait()?.ok()?;
        Ok(seen)
    })
}

/// Waits until it runs from a sealed copy, and not from that one: crabd makes one when it is
/// asked for the first time, for which nobody waits longer than an exec may take. Tells its inode.
fn runs_from_copy(sandbox: &Sandbox, not: Option<u64>) -> Result<u64> {
    poll("the runtime runs from a sealed copy", LIMIT, || {
        let (name, inode) = seen_in_exec(sandbox)?;
        let is_copy = name == Path::new("/memfd:runc (deleted)");
        Ok((is_copy && Some(inode) != not).then_some(inode))
    })
}

#[test]
fn the_runtime_runs_from_one_sealed_copy_as_long_as_its_program_is_the_same() -> Result<()> {
    let testbed = Testbed::here()?;
    if testbed.driver() != Driver::Runc {
        return skip("crabd lends copies of runc alone");
    }
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let one = ctr.run(BUSYBOX, RunOptions::new())?;
    let two = ctr.run(BUSYBOX, RunOptions::new())?;
    let inode = runs_from_copy(&one, None)?;
    assert_eq!(runs_from_copy(&two, None)?, inode, "one copy for all");

    // As a package manager replaces it.
    let next = Path::new("/usr/sbin/runc.next");
    fs::copy(RUNC, next)?;
    fs::rename(next, RUNC)?;
    // At once not from the copy of what is gone, and soon from another.
    let (_, inode_now) = seen_in_exec(&one)?;
    ensure!(inode_now != inode, "the program before still runs");
    runs_from_copy(&one, Some(inode))?;
    Ok(())
}

#[test]
fn without_crabd_the_program_itself_runs() -> Result<()> {
    let testbed = Testbed::here()?;
    if testbed.driver() != Driver::Runc {
        return skip("crabd lends copies of runc alone");
    }
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let before = ctr.run(BUSYBOX, RunOptions::new())?;
    let inode = runs_from_copy(&before, None)?;
    let away = Swapped::hidden(processes::CRABD_PATH)?;
    processes::kill_crabd()?;
    assert_eq!(seen_in_exec(&before)?.1, inode, "what was lent stays");
    let after = ctr.run(BUSYBOX, RunOptions::new())?;
    assert_eq!(seen_in_exec(&after)?.0, Path::new(RUNC));
    drop(away);
    Ok(())
}
