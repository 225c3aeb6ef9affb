// SPDX-License-Identifier: Apache-2.0

//! What a sandbox can put in front of Crab: names that drive terminals, symlinks that
//! lead out of it, more files than a record holds.

use std::{
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Crab, DEBIAN, RunOptions, Sandbox, Testbed, Turn};
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

/// A file of the host that no sandbox may get at, and how it was.
struct Canary {
    path: PathBuf,
    /// Nothing that compresses: in a pack, it is as it is.
    content: Vec<u8>,
    made: (u64, i64, i64, u32),
}

impl Canary {
    fn new(name: &str) -> Result<Self> {
        let path = PathBuf::from(format!("/etc/{name}"));
        let mut content = vec![0; 256];
        fs::File::open("/dev/urandom")?.read_exact(&mut content)?;
        fs::write(&path, &content)?;
        let made = Self::look(&path)?;
        Ok(Self {
            path,
            content,
            made,
        })
    }

    fn look(path: &Path) -> Result<(u64, i64, i64, u32)> {
        let meta = fs::metadata(path).with_context(|| format!("stat {}", path.display()))?;
        Ok((meta.ino(), meta.mtime(), meta.ctime_nsec(), meta.mode()))
    }

    fn is_as_it_was(&self) -> Result<()> {
        ensure!(Self::look(&self.path)? == self.made, "it was touched");
        ensure!(fs::read(&self.path)? == self.content);
        Ok(())
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether this is in a checkpoint of the sandbox.
fn is_stored(sandbox: &Sandbox, content: &[u8]) -> Result<bool> {
    // The middle of it, whatever is around it.
    let wanted = &content[100..132];
    for pack in fs::read_dir(sandbox.store().join("packs"))? {
        let bytes = fs::read(pack?.path())?;
        if bytes.windows(wanted.len()).any(|window| window == wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn no_symlink_leads_out_of_a_sandbox() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let canary = Canary::new("crab-canary")?;
        let secret = canary.path.display();
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        // That a text is found in the store if it is stored.
        let inside = Canary::new("crab-canary-inside")?;
        fs::write(sandbox.root()?.join("root/inside"), &inside.content)?;
        let script = "mkdir /dev/shm/d /root/d /root/t; echo inside >/dev/shm/d/crab-canary; \
                      echo inside >/root/d/crab-canary";
        let before = crab.turn_of(&sandbox, Class::Files, script)?;
        assert!(is_stored(&sandbox, &inside.content)?);

        let script = format!(
            "ln -s {secret} /dev/shm/x; ln -s {secret} /root/x; ln -s / /root/slash; \
             ln -s /proc/1/root{secret} /root/proc; ln -s ../../../../../..{secret} /root/up; \
             rm -r /dev/shm/d /root/d; ln -s /etc /dev/shm/d; ln -s /etc /root/d; \
             rm -r /tmp; ln -s / /tmp; mv /var /var.old; ln -s /etc /var"
        );
        let links = crab.turn_of(&sandbox, Class::Files, &script)?;
        // Not by name, and not through what looks like a directory of before.
        let touch = "touch -h /root/x /dev/shm/x; echo y >/root/y; echo y >/dev/shm/y";
        let later = crab.turn_of(&sandbox, Class::Files, touch)?;
        assert!(!is_stored(&sandbox, &canary.content)?);
        canary.is_as_it_was()?;

        for turn in [&before, &links, &before, &later] {
            crab.rollback(&sandbox, turn.number())?;
            canary.is_as_it_was()?;
        }
        let targets = "readlink /dev/shm/x /root/x /root/d /dev/shm/d /tmp /var; ls /root/t";
        assert_eq!(
            sandbox.sh_ok(targets)?,
            format!("{secret}\n{secret}\n/etc\n/etc\n/\n/etc")
        );
        sandbox.crash()?;
        crab.restore(&sandbox, Some(before.number()))?;
        canary.is_as_it_was()?;
        let files = "cat /dev/shm/d/crab-canary /root/d/crab-canary; test -d /tmp";
        assert_eq!(sandbox.sh_ok(files)?, "inside\ninside");
        assert!(!is_stored(&sandbox, &canary.content)?);
        inside.is_as_it_was()?;
    }
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
