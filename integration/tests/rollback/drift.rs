// SPDX-License-Identifier: Apache-2.0

//! Checkpoints that hosts of other versions have taken, under other boots of the kernel: see
//! integration/golden. And what a host lacks for one is said.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, CgroupMode, RunOptions, Sandbox, State, Testbed, poll, skip, unique,
};
use crab_store::{DEFAULT_ROOT, Manifest, ProcessRef, Store};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::LIMIT;

/// Names the program when the archives are to be made anew.
const MAKE: &str = "CRAB_UPDATE_GOLDEN";

fn golden() -> PathBuf {
    let root = env::var("TESTBED_SRC").unwrap_or_else(|_| "/src".into());
    Path::new(&root).join("integration/golden")
}

/// A root with nothing in it but the program, removed with this.
struct Root(PathBuf);

impl Root {
    fn new(program: &[u8]) -> Result<Self> {
        let root = Self(PathBuf::from("/var/lib").join(unique("golden")));
        for dir in ["root", "proc", "sys", "dev", "run", "etc", "tmp"] {
            fs::create_dir_all(root.0.join(dir))?;
        }
        let counter = root.0.join("root/counter");
        fs::write(&counter, program)?;
        fs::set_permissions(&counter, fs::Permissions::from_mode(0o755))?;
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, root.0.join("root/ask"), FileType::Fifo, mode, 0)?;
        Ok(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(testbed: &Testbed, root: &Root) -> Result<Sandbox> {
    let options = RunOptions::new().rootfs(&root.0).args(["/root/counter"]);
    testbed.ctr().run(BUSYBOX, options)
}

/// Has it count once more.
fn ask(sandbox: &Sandbox) -> Result<u64> {
    let root = sandbox.root()?.join("root");
    let count = || -> Result<u64> {
        let text = fs::read_to_string(root.join("count")).unwrap_or_default();
        Ok(text.trim().parse().unwrap_or(0))
    };
    let before = count()?;
    fs::write(root.join("ask"), "x")?;
    poll("it has counted", LIMIT, || {
        // It is written anew: for a moment it is empty.
        Ok(Some(count()?).filter(|now| *now > before))
    })
}

/// Makes the archive of this host's suite.
fn make(testbed: &Testbed, program: &str) -> Result<()> {
    let crab = testbed.crab();
    let root = Root::new(&fs::read(program)?)?;
    let sandbox = run(testbed, &root)?;
    assert_eq!(ask(&sandbox)?, 1);
    assert_eq!(ask(&sandbox)?, 2);
    let taken = crab.checkpoint(&sandbox)?;
    ensure!(taken["degraded"].is_null(), "{taken}");
    let name = fs::read_to_string("/etc/os-release")?;
    let name = name
        .lines()
        .find_map(|it| it.strip_prefix("VERSION_CODENAME="));
    let file = golden().join(format!("{}.tar", name.context("no code name")?));
    let _ = fs::remove_file(&file);
    crab.json(&["export", sandbox.name(), "-o", &file.display().to_string()])?;
    Ok(())
}

/// A host may lack what the archive needs; then it says what: an older CRIU than that of forky, which
/// says for itself what it does not understand, or a feature of the processor.
fn is_explained(line: &str, suite: &str, mode: CgroupMode) -> Result<()> {
    // They were taken in cgroup v1 mode, and CRIU puts processes back where they were.
    if mode == CgroupMode::V2 && line.contains("CRIU: cg: ") {
        return skip(line);
    }
    if let Some((_, features)) = line.split_once("were taken on a processor with ") {
        let feature = features.split([',', ' ']).next().unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        ensure!(
            !cpuinfo.split_whitespace().any(|flag| flag == feature),
            "{line}"
        );
        return skip(line);
    }
    let of_newer_criu = suite == "forky"
        && line.contains("CRIU: ")
        && line.contains("the image was taken with")
        && line.contains("CRIU 4.2")
        && line.contains("and here is")
        && line.contains("CRIU 4.1");
    ensure!(of_newer_criu, "the archive of {suite}: {line}");
    Ok(())
}

#[test]
fn checkpoints_of_other_hosts_go_on_here() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    if let Ok(program) = env::var(MAKE) {
        return make(&testbed, &program);
    }
    for suite in ["trixie", "forky"] {
        let file = golden().join(format!("{suite}.tar"));
        let root = Root::new(&fs::read(golden().join("counter"))?)?;
        // One of which nothing is known, that the files fit.
        let sandbox = run(&testbed, &root)?;
        sandbox.stop()?;
        sandbox.client().tool(["task", "rm", sandbox.id()]).run()?;
        fs::remove_dir_all(sandbox.store())?;
        let id = sandbox.sandbox_id();
        crab.json(&["import", &file.display().to_string(), "--id", &id])?;
        let restored = match crab.restore(&sandbox, None) {
            Ok(restored) => restored,
            Err(error) => {
                is_explained(&format!("{error:#}"), suite, testbed.cgroup())?;
                // Nothing is left in the way of a start from the beginning.
                sandbox.start_again()?;
                assert_eq!(sandbox.state()?, State::Running);
                continue;
            }
        };
        ensure!(restored["processes"] == true, "{restored}");
        ensure!(sandbox.state()? == State::Running);
        assert_eq!(ask(&sandbox)?, 3, "{suite}: it has forgotten");
        // It has turns of its own from here on, with this host's CRIU.
        let taken = crab.checkpoint(&sandbox)?;
        ensure!(taken["degraded"].is_null(), "{taken}");
        assert_eq!(ask(&sandbox)?, 4);
        let turn = taken["turn"].as_u64().context("no turn")?;
        crab.rollback(&sandbox, turn)?;
        assert_eq!(ask(&sandbox)?, 4);
    }
    Ok(())
}

/// The newest checkpoint once more, as if it had been taken on a processor with one thing more.
fn of_a_better_processor(sandbox: &Sandbox) -> Result<u64> {
    let id = sandbox.sandbox_id().parse()?;
    let writer = Store::create(DEFAULT_ROOT)?.writer(&id)?;
    let store = writer.store().clone();
    let manifest = store.head()?.context("no checkpoint")?;
    let processes = manifest.processes.context("no processes")?;
    let mut image = store.reader(&manifest)?.process_image(processes.digest)?;
    let mut machine = image.machine().context("no machine")?;
    ensure!(machine == machine.clone().bounded() && !machine.runtime.is_empty());
    machine.cpu.insert("zzz_quantum".to_owned());
    image.set_machine(&machine);
    let turn = store.next_turn()?;
    let mut pack = writer.begin()?;
    let digest = pack.put_process_image(&image)?;
    pack.publish(Manifest {
        turn,
        processes: Some(ProcessRef {
            digest,
            ..processes
        }),
        ..manifest
    })?;
    Ok(turn.0)
}

#[test]
fn processes_of_a_processor_that_this_machine_has_not_are_refused_and_nothing_is_touched()
-> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let root = Root::new(&fs::read(golden().join("counter"))?)?;
    let sandbox = run(&testbed, &root)?;
    assert_eq!(ask(&sandbox)?, 1);
    let taken = crab.checkpoint(&sandbox)?["turn"]
        .as_u64()
        .context("no turn")?;
    sandbox.wait_until_cleaned_up(&sandbox.crash()?)?;
    let better = of_a_better_processor(&sandbox)?.to_string();
    let id = sandbox.sandbox_id();
    let why = "its processes were taken on a processor with zzz_quantum, which this one has not";
    let refused = |args: &[&str]| -> Result<()> {
        let refusal = crab.refusal(args)?;
        ensure!(refusal.line.contains(why), "{refusal:?}");
        Ok(())
    };
    refused(&["restore", &id])?;
    ensure!(matches!(sandbox.state()?, State::Gone | State::Stopped));
    let said = crab.run(&["restore", "--all"])?;
    ensure!(said.status == 1 && said.stdout.contains(why), "{said:?}");
    let shown = crab.run(&["show", &id, &better])?.text()?;
    ensure!(shown.contains(why), "{shown}");
    crab.restore(&sandbox, Some(taken))?;
    let pid = sandbox.pid()?;
    assert_eq!(ask(&sandbox)?, 2);
    refused(&["rollback", &id, "--turn", &better, "--cold"])?;
    assert_eq!((sandbox.pid()?, ask(&sandbox)?), (pid, 3));
    Ok(())
}
