// SPDX-License-Identifier: Apache-2.0

//! Whoever works on a checkpoint is killed in the middle of it: the shim, the runtime, CRIU.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Census, Client, Counter, Crab, DEBIAN, RunOptions, Sandbox, State, Testbed, catch,
    forget_fifos, poll, processes,
};
use rustix::process::Signal;

use crate::LIMIT;

/// Where its checkpoints are.
fn packs(sandbox: &Sandbox) -> PathBuf {
    sandbox.store().join("packs")
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// When in a checkpoint.
type Moment = (&'static str, fn(&Sandbox, usize) -> bool);

/// From its first moment to its last.
const MOMENTS: [Moment; 4] = [
    ("a process image is begun", |sandbox, _| {
        sandbox.staging().exists()
    }),
    ("memory is written", |sandbox, _| {
        sandbox.staging().join("pages-1.img").exists()
    }),
    ("the process image is whole", |sandbox, _| {
        sandbox.staging().join("inventory.img").exists()
    }),
    ("it is being published", |sandbox, packs_before| {
        entries(&packs(sandbox)) > packs_before
    }),
];

fn kill_shim_in_a_checkpoint(client: Client, crab: &Crab, moment: &Moment) -> Result<()> {
    let (what, is_now) = moment;
    let sandbox = client.run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(crab, &sandbox, 48)?;
    let mut answers = BTreeMap::new();
    for _ in 0..2 {
        let (answer, turn) = counter.ask()?;
        ensure!(turn.published, "{turn:?}");
        answers.insert(turn.number(), answer);
    }
    let published = *answers.keys().max().context("no turn")?;
    answers.insert(published + 1, 3);

    let inside = sandbox.processes()?;
    let shim = sandbox.shim()?;
    let packs_before = entries(&packs(&sandbox));
    let exec = counter.ask_only()?;
    catch(what, LIMIT, || is_now(&sandbox, packs_before))?;
    processes::kill(shim)?;
    processes::wait_gone(shim, LIMIT)?;
    // Whatever became of it.
    let _ = exec.wait();
    sandbox.wait_until_cleaned_up(&inside)?;

    let turns = crab.turns(&sandbox)?;
    let head = turns.head.context("no checkpoint is left")?.0;
    ensure!(
        head == published || head == published + 1,
        "the newest checkpoint is {head}, not {published} or the next: {turns:?}"
    );
    crab.restore(&sandbox, None)?;
    assert_eq!(counter.in_file()?, answers[&head]);
    let (answer, turn) = counter.ask()?;
    assert_eq!(answer, answers[&head] + 1);
    assert!(turn.is_whole(), "{turn:?}");
    // An older one as well, and in the live sandbox.
    crab.rollback(&sandbox, published - 1)?;
    assert_eq!(counter.ask()?.0, answers[&(published - 1)] + 1);
    Ok(())
}

#[test]
fn a_shim_killed_in_the_middle_of_a_checkpoint_loses_no_published_one() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for moment in &MOMENTS {
        for client in testbed.clients() {
            let before = Census::take()?;
            kill_shim_in_a_checkpoint(client, &crab, moment)
                .with_context(|| format!("killed when {} ({})", moment.0, client.name()))?;
            forget_fifos()?;
            before.wait_for_nothing_left()?;
        }
    }
    Ok(())
}

/// What CRIU mounts beside its log while it restores, and runc beside its state.
fn mounted_for_a_restore() -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.matches("/run/crab/criu/").count() + table.matches("/criu-root ").count()
}

#[test]
fn a_shim_killed_in_the_middle_of_a_restore_leaves_no_mounts_and_is_restored() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 16)?;
    assert_eq!(counter.ask()?.0, 1);
    let inside = sandbox.crash()?;
    sandbox.wait_until_cleaned_up(&inside)?;
    let id = sandbox.sandbox_id();
    let restoring = crab.tool(&["restore", &id]).start()?;
    catch("CRIU mounts the cgroups", LIMIT, || {
        mounted_for_a_restore() > 2
    })?;
    processes::kill(sandbox.shim()?)?;
    // Whatever became of it.
    restoring.wait()?;
    sandbox.wait_until_cleaned_up(&[])?;
    assert_eq!(mounted_for_a_restore(), 0);
    if sandbox.state()? != State::Running {
        crab.restore(&sandbox, None)?;
    }
    assert_eq!(counter.ask()?.0, 2);
    Ok(())
}

/// Who works on a checkpoint.
#[derive(Clone, Copy)]
enum Dumper {
    Runc,
    Criu,
}

impl Dumper {
    fn at_work(self) -> Vec<u32> {
        let all = processes::all().into_iter();
        all.filter(|(_, words)| match self {
            // As it calls itself then.
            Self::Criu => words[0].starts_with("criu: dump "),
            Self::Runc => words[0] == "runc" && words.iter().any(|word| word == "checkpoint"),
        })
        .map(|(pid, _)| pid)
        .collect()
    }

    /// Kills it in the middle of a dump, and tells whether it was met there.
    fn kill(self, sandbox: &Sandbox) -> Result<bool> {
        let pages = sandbox.staging().join("pages-1.img");
        let too_late = match self {
            // From here on its code runs in the processes, and who kills it then may kill one of
            // them (seen: one of 82). That is CRIU's.
            Self::Criu => pages.clone(),
            // Its last file; runc may end well at once.
            Self::Runc => sandbox.staging().join("inventory.img"),
        };
        let mut at_work = Vec::new();
        catch("a dump", LIMIT, || {
            if matches!(self, Self::Criu) || pages.exists() {
                at_work = self.at_work();
            }
            !at_work.is_empty()
        })?;
        let signal = |signal| -> Result<bool> {
            let mut is_there = true;
            for pid in &at_work {
                is_there &= processes::signal(*pid, signal)?;
            }
            Ok(is_there)
        };
        if !signal(Signal::STOP)? || too_late.exists() {
            signal(Signal::CONT)?;
            return Ok(false);
        }
        // With the first, others of them may go.
        signal(Signal::KILL)?;
        Ok(true)
    }
}

/// Has the image of a turn fail by killing who writes it; the container goes on.
fn kill_in_a_dump(client: Client, crab: &Crab, dumper: Dumper) -> Result<()> {
    // Where there is a runc to kill.
    let options = match dumper {
        Dumper::Criu => RunOptions::new(),
        Dumper::Runc => RunOptions::new().dumped_by_runtime(),
    };
    let sandbox = client.run(DEBIAN, options)?;
    let counter = Counter::start(crab, &sandbox, 48)?;
    assert_eq!(counter.ask()?.0, 1);
    let inside = sandbox.processes()?;
    let mut answers = 1;
    let turn = loop {
        let last = crab.last_turn(&sandbox)?;
        let exec = counter.ask_only()?;
        answers += 1;
        let killed = dumper.kill(&sandbox)?;
        exec.wait()?.ok()?;
        let turn = crab.wait_for_turn_after(&sandbox, last)?;
        if killed {
            break turn;
        }
        ensure!(answers < 20, "it is never met in the middle of a dump");
    };
    let why = turn.record.degraded.clone().context("it is whole")?;
    assert!(why.starts_with("files only: "), "{why}");
    assert!(turn.published, "{turn:?}");
    poll("nothing of the dump is left", LIMIT, || {
        let left = ["runc", "criu"].map(processes::named).concat();
        Ok((left.is_empty() && !sandbox.staging().exists()).then_some(()))
    })?;
    // Thawed, unharmed, and the next checkpoint is whole.
    assert_eq!(sandbox.state()?, State::Running);
    assert!(inside.iter().all(|pid| processes::is_alive(*pid)));
    let (answer, turn) = counter.ask()?;
    assert_eq!(answer, answers + 1);
    assert!(turn.is_whole(), "{turn:?}");
    assert_eq!(counter.ask()?.0, answers + 2);
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(counter.in_file()?, answers + 1);
    assert_eq!(counter.ask()?.0, answers + 2);
    Ok(())
}

#[test]
fn a_criu_killed_in_a_dump_labels_the_turn_and_harms_nobody() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        kill_in_a_dump(client, &testbed.crab(), Dumper::Criu).context(client.name())?;
    }
    Ok(())
}

#[test]
fn a_runc_killed_in_a_dump_labels_the_turn_and_harms_nobody() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        kill_in_a_dump(client, &testbed.crab(), Dumper::Runc).context(client.name())?;
    }
    Ok(())
}
