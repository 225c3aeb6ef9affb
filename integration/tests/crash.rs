// SPDX-License-Identifier: Apache-2.0

//! SIGKILL to anything at any time: what was published comes back, no change is
//! missed, and no container dies or stands still for it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, Client, Counter, Crab, DEBIAN, ExecOptions, RunOptions, Sandbox, State,
    Swapped, Testbed, Turn, catch, forget_fifos, poll, processes, sleeper,
};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);

/// Where its checkpoints are.
fn packs(sandbox: &Sandbox) -> PathBuf {
    sandbox.store().join("packs")
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

fn changed(turn: &Turn) -> Vec<&str> {
    let paths = turn.record.changed.iter();
    paths.map(|changed| changed.path.as_str()).collect()
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
}

#[test]
fn a_crabd_killed_between_turns_is_replaced_and_nothing_is_missed() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let first = processes::kill_crabd()?;
        // Written while none runs: counted by the programs that are pinned.
        let turn = crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
        assert_eq!(changed(&turn), ["/root/f"]);
        assert_eq!(turn.record.unobserved, None);
        assert_ne!(processes::crabd().context("no crabd came")?, first);
        // Not even a write that is between two lives of crabd and two turns.
        processes::kill_crabd()?;
        fs::write(sandbox.root()?.join("root/f"), "from outside")?;
        let turn = crab.turn_of(&sandbox, Class::Files, "true")?;
        assert_eq!(changed(&turn), ["/root/f"]);
        processes::kill_crabd()?;
        let turn = crab.turn_of(&sandbox, Class::None, "cat /root/f")?;
        assert_eq!(turn.record.unobserved, None);
        assert_eq!(sandbox.state()?, State::Running);
        crab.rollback(&sandbox, 2)?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "2");
    }
    Ok(())
}

#[test]
fn a_crabd_killed_in_the_middle_of_a_turn_costs_no_change() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let script = "echo a >/root/a; until [ -e /root/go ]; do sleep 0.01; done; \
                      rm /root/go; echo b >/root/b";
        let exec = sandbox.exec_start(&["sh", "-c", script], &ExecOptions::new())?;
        let root = sandbox.root()?.join("root");
        poll("the turn has begun", LIMIT, || {
            Ok(root.join("a").exists().then_some(()))
        })?;
        processes::kill_crabd()?;
        fs::write(root.join("go"), "")?;
        exec.wait()?.ok()?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(turn.class(), Class::Files, "{}", turn.record.reason);
        assert_eq!(changed(&turn), ["/root/a", "/root/b"]);
        assert!(turn.published);
        crab.turn_of(&sandbox, Class::None, "cat /root/a /root/b")?;
        crab.turn_of(&sandbox, Class::Files, "rm /root/a")?;
        crab.rollback(&sandbox, 1)?;
        assert_eq!(sandbox.sh_ok("cat /root/a /root/b")?, "a\nb");
    }
    Ok(())
}

#[test]
fn a_crabd_killed_in_the_middle_of_a_checkpoint_costs_no_change() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 64)?;
    let last = crab.last_turn(&sandbox)?;
    let exec = counter.ask_only()?;
    catch("a process image", LIMIT, || sandbox.staging().exists())?;
    processes::kill_crabd()?;
    exec.wait()?.ok()?;
    let turn = crab.wait_for_turn_after(&sandbox, last)?;
    assert_eq!(turn.class(), Class::Full, "{}", turn.record.reason);
    assert!(turn.is_whole(), "{turn:?}");
    assert_eq!(changed(&turn), ["/root/count"]);
    // Nobody could say at the thaw that the server only woke: that costs one image.
    crab.turn_of(&sandbox, Class::Processes, "cat /root/count")?;
    crab.turn_of(&sandbox, Class::None, "cat /root/count")?;
    crab.turn_of(&sandbox, Class::Files, "rm /root/count")?;
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(counter.in_file()?, 1);
    assert_eq!(counter.ask()?.0, 2);
    Ok(())
}

#[test]
fn without_any_crabd_turns_are_unobserved_and_right() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let in_docker = testbed.docker().run(DEBIAN, RunOptions::new())?;
    let hidden = Swapped::hidden(processes::CRABD_PATH)?;
    processes::kill_crabd()?;
    // One that never knew any.
    let started_without = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    for sandbox in [&sandbox, &in_docker, &started_without] {
        let unobserved = |class, script: &str| -> Result<()> {
            let turn = crab.turn_of(sandbox, class, script)?;
            let why = turn.record.unobserved.context("it was observed")?;
            ensure!(why.contains("crabd"), "{why}");
            ensure!(!why.contains('\n'), "{why}");
            Ok(())
        };
        unobserved(Class::None, "ls /")?;
        unobserved(Class::Files, "echo 1 >/root/f")?;
        unobserved(Class::None, "cat /root/f; echo x >/root/x; rm /root/x")?;
        unobserved(Class::Files, "echo 2 >/dev/shm/f")?;
        // At rest before the turn ends, and for good: it makes no progress of its own.
        unobserved(Class::Processes, &sleeper(1000))?;
        // With nobody to say that it only woke from the freeze, it counts as changed.
        unobserved(Class::Processes, "ls /")?;
        unobserved(
            Class::Full,
            "pkill -f '[s]leep 1000'; while pgrep -f '[s]leep 1000'; do :; done; rm /root/f",
        )?;
        let note = crab.ps_of(sandbox)?.note.context("no note")?;
        assert!(note.contains("unobserved"), "{note}");
        crab.rollback(sandbox, 4)?;
        assert_eq!(sandbox.sh_ok("cat /root/f /dev/shm/f")?, "1\n2");
        assert_eq!(sandbox.state()?, State::Running);
    }
    drop(hidden);
    for sandbox in [&sandbox, &in_docker, &started_without] {
        crab.wait_until_observed(sandbox)?;
        let turn = crab.turn_of(sandbox, Class::Files, "echo 3 >/root/f")?;
        assert_eq!(turn.record.unobserved, None);
        assert_eq!(changed(&turn), ["/root/f"]);
    }
    Ok(())
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

/// Nothing of a container that containerd has cleaned up may be left.
fn wait_until_cleaned_up(sandbox: &Sandbox, inside: &[u32]) -> Result<()> {
    for pid in inside {
        processes::wait_gone(*pid, LIMIT)?;
    }
    poll("the runtimes have ended", LIMIT, || {
        let left = ["runc", "criu"].map(processes::named).concat();
        Ok(left.is_empty().then_some(()))
    })?;
    poll("containerd has cleaned up", LIMIT, || {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let bundle = sandbox.bundle();
        let left = mounts.contains(&*bundle.to_string_lossy())
            || sandbox.staging().exists()
            || Path::new("/run/crab/sandboxes")
                .join(sandbox.sandbox_id())
                .exists();
        Ok((!left).then_some(()))
    })
}

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
    wait_until_cleaned_up(&sandbox, &inside)?;

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

/// Has the image of a turn fail by killing who writes it; the container goes on.
fn kill_in_a_dump(client: Client, crab: &Crab, dumper: Dumper) -> Result<()> {
    let sandbox = client.run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(crab, &sandbox, 48)?;
    assert_eq!(counter.ask()?.0, 1);
    let last = crab.last_turn(&sandbox)?;
    let inside = sandbox.processes()?;
    let exec = counter.ask_only()?;
    let mut at_work = Vec::new();
    catch("a dump", LIMIT, || {
        if sandbox.staging().join("pages-1.img").exists() {
            at_work = dumper.at_work();
        }
        !at_work.is_empty()
    })?;
    for pid in at_work {
        processes::kill(pid)?;
    }
    exec.wait()?.ok()?;
    let turn = crab.wait_for_turn_after(&sandbox, last)?;
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
    assert_eq!(answer, 3);
    assert!(turn.is_whole(), "{turn:?}");
    assert_eq!(counter.ask()?.0, 4);
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(counter.in_file()?, 3);
    assert_eq!(counter.ask()?.0, 4);
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

#[test]
fn everything_killed_at_once_comes_back_with_its_processes() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let files = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo x >/dev/shm/x",
        )?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        let (answer, one) = counter.ask()?;
        assert_eq!(answer, 1);
        assert_eq!(counter.ask()?.0, 2);

        sandbox.crash()?;
        let restored = crab.restore(&sandbox, None)?;
        assert_eq!(restored["processes"], true);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(
            sandbox.sh_ok("cat /root/kept /root/count /dev/shm/x")?,
            "kept\n2\nx"
        );
        assert_eq!(counter.ask()?.0, 3);

        sandbox.crash()?;
        crab.restore(&sandbox, Some(one.number()))?;
        assert_eq!(counter.in_file()?, 1);
        assert_eq!(counter.ask()?.0, 2);

        sandbox.crash()?;
        let restored = crab.restore(&sandbox, Some(files.number()))?;
        assert_eq!(restored["processes"], false);
        let script = "cat /root/kept /dev/shm/x; ls /root; pgrep -c python3";
        assert_eq!(sandbox.sh(script)?.stdout, "kept\nx\nkept\n0\n");

        // History goes on, and what was left can be gone back to.
        let next = crab.turn_of(&sandbox, Class::Files, "echo on >/root/on")?;
        assert!(next.record.unobserved.is_none(), "{next:?}");
        crab.rollback(&sandbox, one.number())?;
        assert_eq!(counter.ask()?.0, 2);
        let ends = events.exits_of_init(&sandbox)?;
        sandbox.stop()?;
        assert_eq!(events.exits_of_init(&sandbox)?, ends + 1);
    }
    Ok(())
}

#[test]
fn everything_killed_at_once_comes_back_without_processes() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for n in 1..=3 {
            let script = format!("echo {n} >/root/n; echo {n} >>/root/all");
            crab.turn_of(&sandbox, Class::Files, &script)?;
        }
        // What is not over is not saved.
        let lost = ["sh", "-c", "echo 4 >/root/n; sleep 1000"];
        let exec = sandbox.exec_start(&lost, &ExecOptions::new())?;
        poll("the turn has begun", LIMIT, || {
            Ok((fs::read_to_string(sandbox.upper_dir()?.join("root/n"))? == "4\n").then_some(()))
        })?;
        sandbox.crash()?;
        drop(exec);
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "3\n1\n2\n3");

        sandbox.crash()?;
        crab.restore(&sandbox, Some(1))?;
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "1\n1");
        let turn = crab.turn_of(&sandbox, Class::Files, "rm /root/all")?;
        assert_eq!(changed(&turn), ["/root/all"]);

        // And where the client itself has stopped it.
        sandbox.stop()?;
        crab.restore(&sandbox, Some(2))?;
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "2\n1\n2");
    }
    Ok(())
}

#[test]
fn a_restarted_containerd_finds_its_containers_as_they_were() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let in_docker = testbed.docker().run(DEBIAN, RunOptions::new())?;
    for (sandbox, verb) in [(&sandbox, "restart"), (&in_docker, "kill")] {
        let counter = Counter::start(&crab, sandbox, 1)?;
        let (shim, pid) = (sandbox.shim()?, sandbox.pid()?);
        testbed.service(verb, "containerd")?;
        testbed.service("start", "containerd")?;
        // dockerd needs a moment to find it again.
        poll("an exec works", LIMIT, || {
            Ok((sandbox.sh("true")?.status == 0).then_some(()))
        })?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!((sandbox.shim()?, sandbox.pid()?), (shim, pid));
        assert_eq!(sandbox.sh("exit 7")?.status, 7);
        let (answer, turn) = counter.ask()?;
        assert_eq!(answer, 1);
        assert!(
            turn.published && turn.record.unobserved.is_none(),
            "{turn:?}"
        );
        crab.rollback(sandbox, turn.number())?;
        assert_eq!(counter.ask()?.0, 2);
        let events = testbed.events()?;
        sandbox.stop()?;
        assert_eq!(events.exits_of_init(sandbox)?, 1);
    }
    Ok(())
}
