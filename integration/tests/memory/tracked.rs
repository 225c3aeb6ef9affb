// SPDX-License-Identifier: Apache-2.0

//! Why a process image is never only what the kernel tells as written since the one before. Should these fail on some kernel,
//! the decision may be another there. On kernels that track nothing they are skipped.

use anyhow::{Result, ensure};
use crab_integration::{
    DEBIAN, RunOptions, Testbed, Tool,
    counter::ASK,
    processes::{self, CRIU_PATH},
    skip,
};

use crate::{FIRST, REGIONS, SECOND, ask, start};

const UNTRACKED: &str = "this kernel does not track written pages";

#[test]
fn a_kernel_that_tracks_written_pages_does_not_see_every_change_and_keeps_what_it_saw() -> Result<()>
{
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    ensure!(sandbox.exec(&["bash", "-c", &start(0)])?.text()? == FIRST);
    let (said, turn) = testbed.crab().turn(&sandbox, &["ask", "regions", "mark"])?;
    if said.text()? == "untracked" {
        return skip(UNTRACKED);
    }
    ensure!(turn.is_whole(), "{turn:?}");
    // Whoever has asked for the marks still has them after Crab's image.
    let unmarked = ask(&sandbox, "unseen")?;
    assert_eq!(unmarked, "dropped moved toggled shared cleared");

    let unseen = ask(&sandbox, "track")?;
    println!("not seen: {unseen}");
    for region in ["moved", "shared", "cleared"] {
        ensure!(
            unseen.split(' ').any(|name| name == region),
            "{region} is not in {unseen:?}"
        );
    }
    // What it is made for.
    ensure!(!unseen.contains("written"), "{unseen}");
    ensure!(ask(&sandbox, "look")? == SECOND);
    Ok(())
}

/// The process, on the host itself.
struct OnHost;

impl OnHost {
    fn start() -> Result<Self> {
        let script = "setsid -f python3 -B -c \"$1\" on-host 0 </dev/null >/dev/null 2>&1";
        Tool::new("sh")
            .args(["-c", script, "sh", REGIONS])
            .run()?
            .ok()?;
        Ok(Self)
    }

    fn ask(&self, word: &str) -> Result<String> {
        Tool::new("python3")
            .args(["-c", ASK, "on-host", word])
            .run()?
            .text()
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.ask("pid")?.parse()?)
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        for (pid, words) in processes::all() {
            if words.iter().any(|word| word == REGIONS) {
                let _ = processes::kill(pid);
            }
        }
    }
}

#[test]
fn criu_restores_moved_memory_as_it_was_before_the_move_from_an_incremental_image() -> Result<()> {
    let _testbed = Testbed::here()?;
    let criu = |args: &[&str]| Tool::new(CRIU_PATH).args(args.iter().copied()).run();
    if criu(&["check", "--feature", "mem_dirty_track"])?.status != 0 {
        return skip(UNTRACKED);
    }
    let dir = tempfile::tempdir()?;
    let images = |name: &str| -> Result<String> {
        let path = dir.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let (whole, upon_it) = (images("whole")?, images("upon")?);
    let process = OnHost::start()?;
    ensure!(process.ask("look")? == FIRST);
    let pid = process.pid()?.to_string();
    let dump = ["dump", "--track-mem", "-t", &pid, "-o", "log", "-D"];
    let first = [&dump[..], &[&whole, "--leave-running"]].concat();
    criu(&first)?.ok()?;
    let moved = process.ask("move")?;
    ensure!(moved == FIRST.replace("moved=B", "moved=A"), "{moved}");
    let second = [&dump[..], &[&upon_it, "--prev-images-dir", "../whole"]].concat();
    criu(&second)?.ok()?;
    criu(&["restore", "-d", "-o", "log", "-D", &upon_it])?.ok()?;
    // It reports success.
    assert_eq!(process.ask("look")?, FIRST);
    Ok(())
}
