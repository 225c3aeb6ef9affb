// SPDX-License-Identifier: Apache-2.0

//! What is missing, broken or wrong is said in one line with what to do, and costs a
//! container nothing.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Client, Counter, Crab, DEBIAN, RunOptions, Sandbox, State, Swapped, Testbed, Tool,
    Turn, poll, processes,
};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);
const CONFIG: &str = "/etc/crab/config.toml";
const CRABD: &str = "/usr/local/bin/crabd";
const CRIU: &str = "/usr/sbin/criu";

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

#[test]
fn an_unknown_sandbox_or_turn_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let turn = crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let id = &sandbox.sandbox_id();
        for args in [
            &["turns", "no-such"][..],
            &["show", "no-such", "1"],
            &["checkpoint", "no-such"],
            &["rollback", "no-such", "--turn", "1"],
            &["restore", "no-such"],
            &["restore", "no-such", "--turn", "1"],
            &["turns", "no-such-namespace/x"],
        ] {
            let words = ["no-such", "crab ps"];
            refuses(&crab, args, NOT_FOUND, &words)?;
        }
        let words = ["77", "crab turns"];
        refuses(&crab, &["show", id, "77"], NOT_FOUND, &words)?;
        refuses(&crab, &["rollback", id, "--turn", "77"], NOT_FOUND, &words)?;
        let running = ["it is running", "crab rollback"];
        refuses(&crab, &["restore", id], REFUSED, &running)?;

        // Nothing was changed by any of it.
        lives(&sandbox)?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
        assert_eq!(crab.turns(&sandbox)?.head.map(|t| t.0), Some(turn.number()));

        sandbox.stop()?;
        // Docker deletes the task of what has stopped.
        let stopped = match client {
            Client::Docker => ["it is not running", "crab restore"],
            Client::Ctr { .. } => ["it has stopped", "crab restore"],
        };
        refuses(&crab, &["rollback", id, "--turn", "1"], REFUSED, &stopped)?;
        refuses(&crab, &["checkpoint", id], REFUSED, &stopped)?;
        let restore = ["restore", id, "--turn", "77"];
        refuses(&crab, &restore, NOT_FOUND, &words)?;
        assert_eq!(sandbox.state()?, State::Stopped);
        crab.restore(&sandbox, None)?;
        lives(&sandbox)?;

        // What has no container any more.
        let (id, turns) = (id.clone(), turn.number().to_string());
        sandbox.remove()?;
        let gone = ["not running", "crab restore"];
        refuses(&crab, &["rollback", &id, "--turn", &turns], REFUSED, &gone)?;
        refuses(&crab, &["checkpoint", &id], REFUSED, &gone)?;
        refuses(&crab, &["restore", &id], FAILED, &[])?;
    }
    Ok(())
}

#[test]
fn an_ambiguous_name_is_said_with_what_it_may_mean() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let one = ctr.run(BUSYBOX, RunOptions::new().id("ambiguous-1"))?;
    let two = ctr.run(BUSYBOX, RunOptions::new().id("ambiguous-2"))?;
    let words = ["ambiguous-1", "ambiguous-2"];
    let refusal = crab.refusal(&["checkpoint", "ambiguous"])?;
    for word in words {
        assert!(refusal.line.contains(word), "{}", refusal.line);
    }
    crab.run(&["checkpoint", "ambiguous-1"])?.ok()?;
    lives(&one)?;
    lives(&two)
}

#[test]
fn wrong_usage_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for args in [
        &[][..],
        &["undo"],
        &["ps", "--fast"],
        &["turns"],
        &["show", "x"],
        &["show", "x", "first"],
        &["rollback", "x"],
        &["rollback", "x", "--turn"],
        &["rollback", "x", "--turn", "-1"],
        &["restore", "x", "--turn", "99999999999999999999999"],
        &["checkpoint", "x", "y"],
    ] {
        refuses(&crab, args, USAGE, &["crab --help"]).with_context(|| format!("{args:?}"))?;
    }
    let nowhere = ["--store", "/no/such/store", "ps"];
    refuses(&crab, &nowhere, NOT_FOUND, &["/no/such/store"])?;
    let no_store = ["--store", "/etc", "ps"];
    refuses(&crab, &no_store, NOT_FOUND, &["/etc"])?;
    Ok(())
}

#[test]
fn only_root_may() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
    let id = &sandbox.sandbox_id();
    for args in [
        &["ps"][..],
        &["turns", id],
        &["show", id, "1"],
        &["checkpoint", id],
        &["rollback", id, "--turn", "0"],
        &["restore", id],
    ] {
        let tool = Tool::new("setpriv").args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "crab",
        ]);
        let said = tool.args(args.iter().copied()).run()?;
        let lines: Vec<&str> = said.stderr.lines().collect();
        ensure!(
            said.status == REFUSED && said.stdout.is_empty(),
            "{} ended with {}: {} {}",
            said.command,
            said.status,
            said.stdout,
            said.stderr
        );
        let [line] = lines[..] else {
            anyhow::bail!("{} said {lines:?}", said.command);
        };
        assert!(
            line.starts_with("crab: ") && line.contains("as root"),
            "{line}"
        );
    }
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    Ok(())
}

#[test]
fn a_broken_configuration_starts_containers_and_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let config = Swapped::with(CONFIG, "# by hand\n[checkpoints]\nmax_gate = 5\n")?;
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let id = sandbox.sandbox_id();
        lives(&sandbox)?;
        let words = [CONFIG, ":3", "max_gate", "correct that line"];
        refuses(&crab, &["ps"], FAILED, &words)?;
        refuses(&crab, &["checkpoint", &id], FAILED, &words)?;
        sandbox.sh_ok("echo 1 >/root/f")?;
        drop(config);
        // The defaults were in force.
        let turn = poll("the turn is recorded", LIMIT, || {
            let mut turns = crab.turns(&sandbox)?.turns.into_iter();
            Ok(turns.find(|t| t.published && t.number() > 0 && t.class() == Class::Files))
        })?;
        crab.rollback(&sandbox, turn.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    }
    Ok(())
}

/// A CRIU that is not as it should be: what its file says, or that there is none, and
/// what has to be in the label.
struct BrokenCriu {
    what: &'static str,
    script: Option<&'static str>,
    says: &'static [&'static str],
}

const BROKEN_CRIUS: [BrokenCriu; 5] = [
    BrokenCriu {
        what: "missing",
        script: None,
        says: &["no CRIU", "install criu"],
    },
    BrokenCriu {
        what: "too old",
        script: Some("#!/bin/sh\necho Version: 3.10\n"),
        says: &["3.10 is too old", "3.17"],
    },
    BrokenCriu {
        what: "refused by the kernel",
        script: Some(
            "#!/bin/sh\n[ \"$1\" != check ] || { \
             echo 'Error (criu/cr-check.c:7): no such feature' >&2; exit 1; }\n\
             echo Version: 4.77\n",
        ),
        says: &["4.77 does not work on this kernel", "no such feature"],
    },
    BrokenCriu {
        what: "no CRIU at all",
        script: Some("#!/bin/sh\necho hello\n"),
        says: &["tells no version"],
    },
    BrokenCriu {
        what: "not a program",
        script: Some("\u{7f}garbage"),
        says: &["criu"],
    },
];

fn label(turn: &Turn) -> Result<&str> {
    let label = turn.record.degraded.as_deref();
    let label = label.with_context(|| format!("turn {} is not labelled", turn.number()))?;
    ensure!(label.starts_with("files only: "), "{label}");
    ensure!(!label.contains('\n'), "{label}");
    ensure!(turn.published, "{turn:?}");
    Ok(label)
}

#[test]
fn without_a_sound_criu_files_are_saved_and_processes_are_said_to_be_missing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let idle = client.run(BUSYBOX, RunOptions::new())?;
        let busy = client.run(DEBIAN, RunOptions::new())?;
        let counter = Counter::start(&crab, &busy, 1)?;
        let mut answers = 0;
        for broken in &BROKEN_CRIUS {
            let criu = match broken.script {
                None => Swapped::hidden(CRIU)?,
                Some(script) => Swapped::with(CRIU, script)?,
            };
            let run = || -> Result<()> {
                // Kept open by its init: nothing is missing.
                let script = format!("echo {} >/root/f", broken.what);
                let turn = crab.turn_of(&idle, Class::Files, &script)?;
                ensure!(turn.record.degraded.is_none() && turn.published, "{turn:?}");
                crab.turn_of(&idle, Class::Files, "rm /root/f")?;
                crab.rollback(&idle, turn.number())?;
                ensure!(idle.sh_ok("cat /root/f")? == broken.what);

                let (answer, turn) = counter.ask()?;
                ensure!(answer == answers + 1, "{answer} after {answers}");
                let why = label(&turn)?;
                for word in broken.says {
                    ensure!(why.contains(word), "{word:?} is not in: {why}");
                }
                let lines = lines_of_turns(&crab, &busy, "files only")?;
                ensure!(!lines.is_empty(), "crab turns does not say it");
                // What a checkpoint lacks, one that builds on it lacks, too.
                let turn = crab.turn_of(&busy, Class::None, "ls /")?;
                ensure!(turn.record.degraded.is_some(), "{turn:?}");
                lives(&busy)
            };
            run().with_context(|| format!("CRIU is {} ({})", broken.what, client.name()))?;
            answers += 1;
            drop(criu);
        }
        // With a sound one, the next is whole again.
        let (answer, whole) = counter.ask()?;
        assert_eq!(answer, answers + 1);
        assert!(
            whole.published && whole.record.degraded.is_none(),
            "{whole:?}"
        );
        crab.rollback(&busy, whole.number())?;
        assert_eq!(counter.ask()?.0, answer + 1);
        // And a checkpoint without processes is restored without.
        let labelled = whole.number() - 2;
        let restored = crab.rollback(&busy, labelled)?;
        assert_eq!(restored["processes"], false);
        assert_eq!(
            busy.sh("cat /root/count; pgrep -c python3")?.stdout,
            "5\n0\n"
        );
    }
    Ok(())
}

#[test]
fn an_init_that_cannot_be_dumped_lives_on() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let _hidden = Swapped::hidden(CRIU)?;
    for client in testbed.clients() {
        let init = "while :; do sleep 1; done";
        let options = RunOptions::new().args(["sh", "-c", init]);
        let sandbox = client.run(BUSYBOX, options)?;
        let (_, turn) = crab.turn(&sandbox, &["sh", "-c", "echo 1 >/root/f"])?;
        assert_eq!(turn.class(), Class::Full);
        assert!(label(&turn)?.contains("no CRIU"));
        crab.turn(&sandbox, &["rm", "/root/f"])?.0.ok()?;
        crab.rollback(&sandbox, turn.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
        lives(&sandbox)?;
    }
    Ok(())
}

/// Ends crabd and what it has pinned: as on a host where it never ran.
fn forget_crabd() -> Result<()> {
    if let Some(crabd) = processes::crabd() {
        processes::kill(crabd)?;
        processes::wait_gone(crabd, LIMIT)?;
    }
    let pins = Path::new("/sys/fs/bpf/crab");
    if pins.exists() {
        fs::remove_dir_all(pins).context("remove the pins")?;
    }
    Ok(())
}

/// A mount that is taken away again.
struct Mounted(&'static str);

impl Mounted {
    fn new(args: &[&str], at: &'static str) -> Result<Self> {
        let mount = Tool::new("mount").args(args.iter().copied()).args([at]);
        mount.run()?.ok()?;
        Ok(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = Tool::new("umount").args([self.0]).run();
        if let Err(error) = umount.and_then(|said| said.ok()) {
            eprintln!("{error:#}");
        }
    }
}

/// New and old sandboxes are right without anything being counted, and say why not.
fn unobserved_and_right(testbed: &Testbed, old: &Sandbox, words: &[&str]) -> Result<()> {
    let crab = testbed.crab();
    let new = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    for sandbox in [&new, old] {
        for (class, script) in [
            (Class::None, "ls /"),
            (Class::Files, "date +%N >/root/f"),
            (Class::None, "cat /root/f"),
        ] {
            let turn = crab.turn_of(sandbox, class, script)?;
            let why = turn.record.unobserved.context("it was observed")?;
            for word in words {
                ensure!(why.contains(word), "{word:?} is not in: {why}");
            }
            ensure!(!why.contains('\n'), "{why}");
        }
        let lines = lines_of_turns(&crab, sandbox, "unobserved: ")?;
        ensure!(lines.len() >= 3, "crab turns does not say it: {lines:?}");
        lives(sandbox)?;
    }
    Ok(())
}

#[test]
fn a_crabd_that_cannot_run_leaves_turns_unobserved_and_right() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    // Those of before know a good one.
    let old = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let crabd = Swapped::with(CRABD, "#!/bin/sh\necho broken >&2\nexit 3\n")?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &old, &["crabd ended with 3", "see its log"])?;
    drop(crabd);

    // On a host without BTF: of another sandbox, as the shims wait before they try again.
    let other = testbed.docker().run(BUSYBOX, RunOptions::new())?;
    let btf = Mounted::new(&["--bind", "/dev/null"], "/sys/kernel/btf/vmlinux")?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &other, &["BTF"])?;
    drop(btf);
    forget_crabd()?;

    // Where programs cannot be pinned.
    let kept = format!("{CRABD}.hidden-by-a-test");
    let script = format!("#!/bin/sh\nexec -a crabd {kept} --pin-dir /proc/crab \"$@\"\n");
    let script = script.replace("#!/bin/sh", "#!/bin/bash");
    let another = testbed.docker().run(BUSYBOX, RunOptions::new())?;
    let crabd = Swapped::with(CRABD, &script)?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &another, &["/proc/crab"])?;
    drop(crabd);
    forget_crabd()?;

    let crab = testbed.crab();
    for sandbox in [&old, &other, &another] {
        poll("turns are observed again", 2 * LIMIT, || {
            let turn = crab.turn_of(sandbox, Class::None, "true")?;
            Ok(turn.record.unobserved.is_none().then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_missing_socket_of_crabd_harms_nobody() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let old = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.turn_of(&old, Class::None, "true")?;
    fs::remove_file("/run/crab/crabd.sock").context("remove the socket")?;
    // One that is connected stays so; to a new one there is no way.
    let turn = crab.turn_of(&old, Class::Files, "echo 1 >/root/f")?;
    assert_eq!(turn.record.unobserved, None);
    let new = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let turn = crab.turn_of(&new, Class::Files, "echo 1 >/root/f")?;
    let why = turn.record.unobserved.context("it was observed")?;
    assert!(why.contains("crabd") && !why.contains('\n'), "{why}");
    let turn = crab.turn_of(&new, Class::None, "cat /root/f")?;
    assert!(turn.record.unobserved.is_some());
    // Until that crabd is gone.
    let crabd = processes::crabd().context("no crabd runs")?;
    processes::kill(crabd)?;
    processes::wait_gone(crabd, LIMIT)?;
    for sandbox in [&old, &new] {
        poll("turns are observed again", 2 * LIMIT, || {
            let turn = crab.turn_of(sandbox, Class::None, "true")?;
            Ok(turn.record.unobserved.is_none().then_some(()))
        })?;
        lives(sandbox)?;
    }
    Ok(())
}

#[test]
fn a_root_that_is_no_overlay_runs_and_has_no_checkpoints() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let native = RunOptions::new().flags(["--snapshotter", "native"]);
    let said = ctr.run_rm(
        BUSYBOX,
        native.clone().args(["sh", "-c", "echo out; exit 3"]),
    )?;
    assert_eq!((said.stdout.as_str(), said.status), ("out\n", 3));
    let sandbox = ctr.run(BUSYBOX, native)?;
    lives(&sandbox)?;
    sandbox.sh_ok("echo 1 >/root/f")?;
    let id = sandbox.sandbox_id();
    refuses(&crab, &["checkpoint", &id], REFUSED, &["overlay"])?;
    refuses(
        &crab,
        &["rollback", &id, "--turn", "0"],
        REFUSED,
        &["overlay"],
    )?;
    let row = crab.ps_of(&sandbox)?;
    assert_eq!(row.state, "running");
    assert!(row.note.context("no note")?.contains("overlay"));
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    sandbox.stop()
}

/// A store of its own on a small disk, for sandboxes that start while it lasts.
struct SmallStore {
    _config: Swapped,
    _disk: Mounted,
}

const SMALL: &str = "/mnt/small";

impl SmallStore {
    fn new(mib: u32) -> Result<Self> {
        fs::create_dir_all(SMALL)?;
        let size = format!("size={mib}m");
        let disk = Mounted::new(&["-t", "tmpfs", "-o", &size, "small"], SMALL)?;
        let config = format!("store = \"{SMALL}/store\"\n");
        Ok(Self {
            _disk: disk,
            _config: Swapped::with(CONFIG, &config)?,
        })
    }

    fn grow(&self, mib: u32) -> Result<()> {
        let option = format!("remount,size={mib}m");
        Tool::new("mount")
            .args(["-o", &option, SMALL])
            .run()?
            .ok()?;
        Ok(())
    }

    /// To the last byte.
    fn fill(&self) -> Result<()> {
        let to = format!("of={SMALL}/filling");
        let said = Tool::new("dd").args(["if=/dev/zero", &to, "bs=4k"]).run()?;
        ensure!(said.stderr.contains("No space left"), "{}", said.stderr);
        Ok(())
    }

    fn free(&self) -> Result<()> {
        fs::remove_file(format!("{SMALL}/filling")).context("free the disk")
    }
}

#[test]
fn a_full_disk_stops_checkpoints_and_nothing_else() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let disk = SmallStore::new(12)?;
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let id = sandbox.sandbox_id();
        let first = crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        // More than the disk has.
        let script = "echo 2 >/root/f; head -c 30000000 /dev/urandom >/root/big";
        let turn = crab.turn_of(&sandbox, Class::Files, script)?;
        let why = turn.failed.clone().context("it has a checkpoint")?;
        assert!(!turn.published && turn.record.checkpoint.is_none());
        assert!(why.to_lowercase().contains("no space"), "{why}");
        assert!(!why.contains('\n'), "{why}");
        let lines = lines_of_turns(&crab, &sandbox, "no checkpoint")?;
        assert_eq!(lines.len(), 1, "{lines:?}");
        lives(&sandbox)?;
        let full = ["no space", "free some"];
        refuses(&crab, &["checkpoint", &id], REFUSED, &["space"])?;
        refuses(
            &crab,
            &["rollback", &id, "--turn", "1"],
            REFUSED,
            &["space"],
        )?;
        let (said, turn) = crab.turn(&sandbox, &["sh", "-c", "cat /root/f; wc -c </root/big"])?;
        assert_eq!(said.text()?, "2\n30000000");
        // Tried again, in vain: nothing of it is left when the disk is filled.
        assert!(turn.failed.is_some(), "{turn:?}");

        // Not even the journal can be written.
        disk.fill()?;
        let said = sandbox.sh("echo 3 >/root/f; exit 7")?;
        assert_eq!(said.status, 7);
        refuses(&crab, &["checkpoint", &id], REFUSED, &["space"])?;
        lives(&sandbox)?;
        crab.run(&["turns", &id])?.ok()?;
        crab.run(&["ps"])?.ok()?;
        // The older checkpoint is still one, as soon as a wish for it can be noted.
        sandbox.stop()?;
        // With what the end has given back.
        disk.fill()?;
        refuses(&crab, &["restore", &id], FAILED, &full)?;
        disk.free()?;
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.sh_ok("cat /root/f; ls /root")?, "1\nf");

        // Enough for the next one: it is whole.
        let last = crab.last_turn(&sandbox)?;
        sandbox.sh_ok(script)?;
        let failed = crab.wait_for_turn_after(&sandbox, last)?;
        assert!(failed.failed.is_some(), "{failed:?}");
        disk.grow(200)?;
        let whole = crab.turn_of(&sandbox, Class::Files, "echo 4 >/root/g")?;
        assert!(whole.published && whole.failed.is_none(), "{whole:?}");
        crab.rollback(&sandbox, first.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f; ls /root")?, "1\nf");
        crab.rollback(&sandbox, whole.number())?;
        assert_eq!(
            sandbox.sh_ok("cat /root/f /root/g; wc -c </root/big")?,
            "2\n4\n30000000"
        );
    }
    Ok(())
}
