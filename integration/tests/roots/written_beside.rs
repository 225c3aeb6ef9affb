// SPDX-License-Identifier: Apache-2.0

//! What the host writes into such a root, and what somebody in it makes to do harm.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use anyhow::{Result, ensure};
use crab_integration::{RunOptions, Testbed, Tool, hostile::Canary};
use crab_store::Class;

use crate::place::{Place, directory, on_host};

#[test]
fn what_the_host_writes_is_found_whichever_way_it_comes() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let dir = directory()?;
    for place in [Place::Snapshotter("native"), Place::Directory(dir.path())] {
        let sandbox = place.run(&testbed, RunOptions::new())?;
        let host = on_host(place, &sandbox);
        let before = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo old >/root/f; echo old >/root/g",
        )?;
        crab.turn_of(&sandbox, Class::None, "true")?;

        // By the host's own name for it.
        fs::write(host.join("root/f"), "new\n")?;
        let found = crab.turn_of(&sandbox, Class::Files, "true")?;
        ensure!(found.record.changed[0].path == "/root/f", "{found:?}");
        fs::set_permissions(host.join("root/g"), Permissions::from_mode(0o600))?;
        crab.turn_of(&sandbox, Class::Files, "true")?;
        // By the sandbox's own, from without: as `nsenter` and `docker cp` do.
        let pid = sandbox.pid()?.to_string();
        let enter = ["-t", &pid, "-m", "--", "/bin/sh", "-c", "echo in >/root/in"];
        Tool::new("nsenter").args(enter).run()?.ok()?;
        fs::write(sandbox.root()?.join("root/over"), "x")?;
        let found = crab.turn_of(&sandbox, Class::Files, "true")?;
        ensure!(found.record.files_changed == 2, "{found:?}");
        // Not of it.
        fs::write(host.with_file_name("crab-test-beside"), "x")?;
        fs::remove_file(host.with_file_name("crab-test-beside"))?;
        crab.turn_of(&sandbox, Class::None, "true")?;

        // While nobody looks: it is not there when files have been put back.
        fs::write(host.join("root/late"), "x")?;
        crab.rollback_verified(&sandbox, before.number())?;
        ensure!(sandbox.sh_ok("cat /root/f /root/g; ls /root")? == "old\nold\nf\ng");
        let differs = || -> Result<bool> { Ok(crab.verify(&sandbox, None)?["same"] == false) };
        ensure!(!differs()?);
        fs::write(host.join("root/later"), "x")?;
        ensure!(differs()?);
    }
    Ok(())
}

#[test]
fn a_tree_that_is_made_to_harm_comes_back_and_leads_nowhere() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let mut canary = Canary::new()?;
    let to = canary.dir().display().to_string();
    let sandbox =
        Place::Snapshotter("native").run(&testbed, RunOptions::new().flags(["--privileged"]))?;
    let script = format!(
        "cd /root; ln -s {to} out; ln -s {to}/secret file; ln -s ../../../../../..{to} up; \
         ln -s /proc/1/root{to} magic; mknod null c 0 0; mknod disk b 254 0; mkfifo fifo; \
         echo x >a; ln a b; ln a c; mkdir d; touch d/.wh.a d/.wh..wh..opq; chmod 000 d; \
         truncate -s 1T sparse; printf 'x' >\"$(printf 'new\\nline\\033[2J')\""
    );
    let made = crab.turn_of(&sandbox, Class::Files, &script)?;
    canary.check("captured")?;
    let list = "cd /root; find . | sort; ls -lR . | sed 's/^total.*//' | md5sum; cat b c";
    let before = sandbox.sh_ok(list)?;
    ensure!(crab.verify(&sandbox, Some(made.number()))?["same"] == true);
    // Directories become links that lead out, where a capture or a rollback passes.
    let turned =
        format!("cd /root; rm -r *; ln -s {to} d; ln -s {to} a; mv /tmp /t; ln -s {to} /tmp");
    for cold in [false, true] {
        crab.turn_of(&sandbox, Class::Files, &turned)?;
        canary.check("turned over")?;
        match cold {
            true => crab.rollback_cold(&sandbox, made.number())?,
            false => crab.rollback(&sandbox, made.number())?,
        };
        canary.check("rolled back")?;
        let after = sandbox.sh_ok(list)?;
        ensure!(after == before, "cold {cold}: {before}\n{after}");
    }
    // What cannot be removed is in the way, and all is as it was.
    let locked = crab.turn_of(&sandbox, Class::Files, "echo x >/root/locked")?;
    let chattr = |flag: &str| -> Result<()> {
        let path = sandbox.bundle().join("rootfs/root/locked");
        let path = path.display().to_string();
        Tool::new("chattr")
            .args([flag, &path])
            .run()?
            .ok()
            .map(drop)
    };
    chattr("+i")?;
    let refusal = crab.rollback_refusal(&sandbox, made.number())?;
    ensure!(refusal.line.contains("root/locked"), "{refusal:?}");
    ensure!(crab.verify(&sandbox, Some(locked.number()))?["same"] == true);
    chattr("-i")?;
    sandbox.crash()?;
    crab.restore(&sandbox, Some(made.number()))?;
    canary.check("restored")?;
    ensure!(sandbox.sh_ok(list)? == before);
    canary.check_store(&sandbox)?;
    ensure!(canary.escapes().is_empty(), "{:?}", canary.escapes());
    Ok(())
}
