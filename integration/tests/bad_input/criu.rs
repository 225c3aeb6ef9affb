// SPDX-License-Identifier: Apache-2.0

//! A CRIU that is missing or of no use: files are saved, and turns are labelled.

use std::fs;

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Counter, DEBIAN, RunOptions, Swapped, Testbed, Turn, processes::CRIU_PATH,
};
use crab_store::{Class, Trigger};

use crate::{lines_of_turns, lives};

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
                None => Swapped::hidden(CRIU_PATH)?,
                Some(script) => Swapped::with(CRIU_PATH, script)?,
            };
            let run = || -> Result<()> {
                // Kept open by its init: nothing is missing.
                let script = format!("echo {} >/root/f", broken.what);
                let turn = crab.turn_of(&idle, Class::Files, &script)?;
                ensure!(turn.is_whole(), "{turn:?}");
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
        assert!(whole.is_whole(), "{whole:?}");
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
    let _hidden = Swapped::hidden(CRIU_PATH)?;
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

/// How often CRIU fails from now on.
const FAILS: &str = "/run/criu-fails";

/// A CRIU that is sound, and fails as often as it is told to.
fn that_fails() -> Result<Swapped> {
    Swapped::wrapped(CRIU_PATH, |real| {
        let real = real.display();
        format!(
            "#!/bin/sh\ncase \"$*\" in *swrk*|*dump*)\n\
             n=$(cat {FAILS} 2>/dev/null || echo 0)\n\
             if [ $n -gt 0 ]; then echo $((n - 1)) >{FAILS}; exit 1; fi;; esac\n\
             exec {real} \"$@\"\n"
        )
    })
}

#[test]
fn an_image_that_could_not_be_had_is_made_up_for_though_nothing_changes() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().dumps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let criu = that_fails()?;
    let busy = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let counter = Counter::start(&crab, &busy, 1)?;
    // Asked directly, and then through the runtime.
    fs::write(FAILS, "2")?;
    let (answer, turn) = counter.ask()?;
    label(&turn)?;
    // Nobody does anything any more.
    let whole = crab.wait_for_turn_after(&busy, Some(turn.number()))?;
    ensure!(whole.record.trigger == Trigger::Retry, "{whole:?}");
    ensure!(
        whole.is_whole() && whole.class() == Class::Processes,
        "{whole:?}"
    );
    counter.ask()?;
    crab.rollback(&busy, whole.number())?;
    ensure!(counter.ask()?.0 == answer + 1);

    // The same where something was in the way, for whoever asks.
    drop(criu);
    fs::remove_file(FAILS)?;
    let away = Swapped::hidden(CRIU_PATH)?;
    label(&counter.ask()?.1)?;
    drop(away);
    let taken = crab.checkpoint(&busy)?;
    ensure!(taken["degraded"].is_null(), "{taken}");
    let whole = crab.turn_of(&busy, Class::None, "true")?;
    ensure!(whole.record.degraded.is_none(), "{whole:?}");
    counter.ask()?;
    crab.rollback(&busy, whole.number())?;
    ensure!(counter.ask()?.0 == answer + 3);
    Ok(())
}
