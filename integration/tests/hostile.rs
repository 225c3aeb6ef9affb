// SPDX-License-Identifier: Apache-2.0

//! What a sandbox can put in front of Crab: names that drive terminals, symlinks that
//! lead out of it, more files than a record holds.

use std::fs;

use anyhow::{Result, ensure};
use crab_integration::{
    BUSYBOX, Crab, DEBIAN, RunOptions, Sandbox, Testbed, Turn,
    hostile::{self, Canary},
};
use crab_store::Class;

/// Everything that `crab` says of a sandbox, as text, has to be lines that a terminal only
/// shows.
fn is_only_shown(crab: &Crab, sandbox: &Sandbox, turns: &[u64]) -> Result<String> {
    let id = sandbox.sandbox_id();
    let mut all = String::new();
    let said = crab.run(&["turns", &id])?.ok()?.stdout;
    // A header, and one line for each turn.
    let lines = said.lines().count();
    let recorded = crab.turns(sandbox)?.turns.len();
    ensure!(
        lines == recorded + 1,
        "{recorded} turns on {lines} lines: {said:?}"
    );
    all.push_str(&said);
    for turn in turns {
        all.push_str(&crab.run(&["show", &id, &turn.to_string()])?.ok()?.stdout);
    }
    all.push_str(&crab.run(&["ps"])?.ok()?.stdout);
    let obeyed = all
        .chars()
        .find(|c| (c.is_control() && *c != '\n') || "\u{202e}\u{200f}\u{2066}".contains(*c));
    ensure!(obeyed.is_none(), "{obeyed:?} is in {all:?}");
    Ok(all)
}

#[test]
fn names_that_drive_a_terminal_are_only_shown() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let script = r#"cd /root
            touch $'two\nlines' $'\e[2J\e[31mred' $'bell\a\ttab' $'not \xff utf-8' 'back\slash' "quo'\"te" -- --flag
            ln -s $'\e]0;title\a' link
            mkdir $'dir\r'; touch $'dir\r/\xe2\x80\xaeright'"#;
        let files = crab.turn(&sandbox, &["bash", "-c", script])?;
        files.0.ok()?;
        assert_eq!(files.1.class(), Class::Files);
        assert_eq!(
            files.1.record.files_changed, 10,
            "{:?}",
            files.1.record.changed
        );
        // Commands, and names of processes.
        let evil = "true '\u{1b}[2J\n\u{7}\r \u{202e}'";
        let (said, command) = crab.turn(&sandbox, &["bash", "-c", evil])?;
        said.ok()?;
        let script = r#"p=$'/root/\e[31m\nevil'; cp /bin/sleep "$p"
            setsid "$p" 1000 </dev/null >/dev/null 2>&1 &"#;
        let (said, process) = crab.turn(&sandbox, &["bash", "-c", script])?;
        said.ok()?;
        assert_eq!(process.class(), Class::Full);
        let turns = [files.1.number(), command.number(), process.number()];
        let all = is_only_shown(&crab, &sandbox, &turns)?;
        for shown in ["two", "lines", "red", "slash", "evil"] {
            assert!(all.contains(shown), "{shown} is not in {all}");
        }

        // And they come back byte by byte.
        let list = "cd /root; find . -print0 | sort -z | od -c; readlink link | od -c";
        let before = sandbox.exec(&["bash", "-c", list])?.text()?;
        // A live process holds one of them.
        let removed = crab.turn_of(&sandbox, Class::Full, "rm -r /root; mkdir /root")?;
        is_only_shown(&crab, &sandbox, &[removed.number()])?;
        crab.rollback(&sandbox, process.number())?;
        assert_eq!(sandbox.exec(&["bash", "-c", list])?.text()?, before);
    }
    Ok(())
}

#[test]
fn no_symlink_leads_out_of_a_sandbox() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let mut canary = Canary::new()?;
        let dir = canary.dir().display().to_string();
        let secret = format!("{dir}/secret");
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        // That a text is found in the store if it is stored.
        let inside = Canary::new()?;
        fs::write(sandbox.root()?.join("root/inside"), inside.content())?;
        let script = "mkdir /dev/shm/d /root/d /root/t; echo inside >/dev/shm/d/secret; \
                      echo inside >/root/d/secret";
        let before = crab.turn_of(&sandbox, Class::Files, script)?;
        assert!(inside.is_stored(&sandbox)?);

        let script = format!(
            "ln -s {secret} /dev/shm/x; ln -s {secret} /root/x; ln -s / /root/slash; \
             ln -s /proc/1/root{secret} /root/proc; ln -s ../../../../../..{secret} /root/up; \
             rm -r /dev/shm/d /root/d; ln -s {dir} /dev/shm/d; ln -s {dir} /root/d; \
             rm -r /tmp; ln -s / /tmp; mv /var /var.old; ln -s /etc /var"
        );
        let links = crab.turn_of(&sandbox, Class::Files, &script)?;
        // Not by name, and not through what looks like a directory of before.
        let touch = "touch -h /root/x /dev/shm/x; echo y >/root/y; echo y >/dev/shm/y";
        let later = crab.turn_of(&sandbox, Class::Files, touch)?;
        canary.check("captured")?;

        for turn in [&before, &links, &before, &later] {
            crab.rollback(&sandbox, turn.number())?;
            canary.check("rolled back")?;
        }
        let targets = "readlink /dev/shm/x /root/x /root/d /dev/shm/d /tmp /var; ls /root/t";
        assert_eq!(
            sandbox.sh_ok(targets)?,
            format!("{secret}\n{secret}\n{dir}\n{dir}\n/\n/etc")
        );
        sandbox.crash()?;
        crab.restore(&sandbox, Some(before.number()))?;
        canary.check("restored")?;
        let files = "cat /dev/shm/d/secret /root/d/secret; test -d /tmp";
        assert_eq!(sandbox.sh_ok(files)?, "inside\ninside");
        canary.check_store(&sandbox)?;
        assert_eq!(canary.escapes(), [] as [String; 0]);
    }
    Ok(())
}

#[test]
fn trees_that_are_made_to_harm_come_back_exactly_and_lead_nowhere() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let mut canary = Canary::new()?;
    for case in hostile::cases(400) {
        let inexact = case.there_and_back(testbed.ctr(), &crab, &mut canary)?;
        assert_eq!(inexact, [] as [String; 0], "{}", case.name());
        assert_eq!(canary.escapes(), [] as [String; 0]);
    }
    Ok(())
}

#[test]
fn a_directory_that_becomes_a_link_under_a_capture_leads_nowhere() -> Result<()> {
    let testbed = Testbed::here()?;
    let mut canary = Canary::new()?;
    let back = hostile::race(testbed.ctr(), &testbed.crab(), &mut canary, 2)?;
    println!("{back} of 2 rollbacks went on while the host raced");
    assert_eq!(canary.escapes(), [] as [String; 0]);
    Ok(())
}

#[test]
fn thousands_of_files_are_one_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let script = "mkdir /root/many; cd /root/many; \
                      for i in $(seq 5000); do echo $i >file-with-a-rather-long-name-$i; done";
        let many: Turn = crab.turn_of(&sandbox, Class::Files, script)?;
        assert_eq!(many.record.files_changed, 5001);
        let listed = many.record.changed.len();
        assert!((1..=64).contains(&listed), "{listed} are listed");
        is_only_shown(&crab, &sandbox, &[many.number()])?;
        let removed = crab.turn_of(&sandbox, Class::Files, "rm -r /root/many")?;
        assert_eq!(removed.record.files_changed, 5001);
        crab.rollback(&sandbox, many.number())?;
        let check = "cd /root/many; ls | wc -l; cat * | sort -n | md5sum; seq 5000 | md5sum";
        let said = sandbox.sh_ok(check)?;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "5000");
        assert_eq!(lines[1], lines[2]);
        crab.turn_of(&sandbox, Class::None, "ls /root/many")?;
    }
    Ok(())
}
