// SPDX-License-Identifier: Apache-2.0

//! What comes from outside of the sandbox's processes, between turns: it belongs to the next.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{BUSYBOX, Census, Client, RunOptions, Testbed, Tool, proof::Life};
use crab_store::Class;

use crate::turn_of;

#[test]
fn what_docker_copies_in_is_seen_and_what_it_copies_out_is_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let docker = testbed.docker();
    let host = tempfile::tempdir()?;
    fs::create_dir(host.path().join("tree"))?;
    fs::write(host.path().join("tree/file"), "from the host")?;
    let mut life = Life::begin(docker, RunOptions::new())?;
    let copy = |from: String, to: String| docker.tool(["cp", &from, &to]).run()?.ok();
    let name = life.sandbox().name().to_owned();
    let inside = |path: &str| format!("{name}:{path}");
    turn_of(&mut life, Class::None, "nothing")?;
    let tree = host.path().join("tree").display().to_string();
    for (from, to) in [
        // A new directory, a file in place of another, and one in memory.
        (tree.clone(), "/root/tree"),
        (format!("{tree}/file"), "/root/a"),
        (format!("{tree}/file"), "/dev/shm/file"),
    ] {
        copy(from, inside(to))?;
        turn_of(&mut life, Class::Files, "nothing")?;
        turn_of(&mut life, Class::None, "nothing")?;
    }
    copy(
        inside("/root/tree"),
        host.path().display().to_string() + "/back",
    )?;
    turn_of(&mut life, Class::None, "nothing")?;
    assert_eq!(fs::read(host.path().join("back/file"))?, b"from the host");
    Ok(())
}

#[test]
fn what_nerdctl_copies_in_is_seen() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    let crab = testbed.crab();
    let host = tempfile::tempdir()?;
    fs::write(host.path().join("file"), "from the host")?;
    let container = nerdctl.run(BUSYBOX, RunOptions::new().flags(["--network", "none"]))?;
    let sandbox = container.sandbox();
    crab.turn_of(sandbox, Class::None, "true")?;
    let from = host.path().display().to_string() + "/file";
    // Another text each time: the same one again within a second, and nothing has changed.
    for (text, to) in [
        ("first", "/root/new"),
        ("second", "/etc/hosts-of-mine"),
        ("third", "/root/new"),
    ] {
        fs::write(&from, text)?;
        let to = format!("{}:{to}", container.name());
        nerdctl.tool(["cp", &from, &to]).run()?.ok()?;
        crab.turn_of(sandbox, Class::Files, "true")?;
        crab.turn_of(sandbox, Class::None, "true")?;
    }
    assert_eq!(container.sh_ok("cat /root/new")?, "third");
    Ok(())
}

/// What is done in a mount namespace, with the names that it has there.
fn entered(life: &Life, script: &str) -> Result<()> {
    let pid = life.sandbox().pid()?.to_string();
    let nsenter = Tool::new("nsenter").args(["-t", &pid, "-m", "--", "/bin/busybox", "sh", "-c"]);
    nsenter.args([script]).run()?.ok().map(drop)
}

#[test]
fn what_enters_by_its_namespaces_is_seen() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let mut life = Life::begin(client, RunOptions::new())?;
        turn_of(&mut life, Class::None, "nothing")?;
        for script in [
            "echo x >/root/entered",
            "mv /root/entered /root/moved",
            "mkdir /root/dir",
            "chmod 600 /root/moved",
            "ln -s /nowhere /dev/shm/link",
            "rm -r /root/dir",
            "cp /bin/busybox /tmp/copy",
        ] {
            entered(&life, script)?;
            turn_of(&mut life, Class::Files, "nothing").context(script)?;
        }
        entered(
            &life,
            "cat /root/moved; ls -l /root; echo x >/tmp/x; rm /tmp/x",
        )?;
        turn_of(&mut life, Class::None, "nothing")?;
    }
    Ok(())
}

#[test]
fn a_second_mount_of_a_directory_hides_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let mut life = Life::begin(client, RunOptions::new())?;
        turn_of(&mut life, Class::Files, "mkdir /root/second")?;
        entered(&life, "mount -o bind /root/d /root/second")?;
        // Whatever a mount is taken for.
        life.turn("nothing".into())?;
        turn_of(&mut life, Class::None, "nothing")?;
        turn_of(&mut life, Class::Files, "write /root/second/new 1 100")?;
        turn_of(&mut life, Class::Files, "unlink /root/second/a")?;
        turn_of(&mut life, Class::None, "restored /root/second/b")?;
        turn_of(&mut life, Class::Files, "map /root/second/b 2 100")?;
        entered(&life, "umount /root/second")?;
        life.turn("nothing".into())?;
        turn_of(&mut life, Class::None, "look /root/second")?;
        turn_of(&mut life, Class::Files, "append /root/d/new 3 100")?;
    }
    Ok(())
}

#[test]
fn nothing_of_the_proof_is_left_on_the_host() -> Result<()> {
    let testbed = Testbed::here()?;
    let live = |client: Client| -> Result<()> {
        let mut life = Life::begin(client, RunOptions::new())?;
        life.turn("spawn one sits /root/a".into())?;
        turn_of(&mut life, Class::Processes, "kill one")
    };
    // What is made once for all containers is there after the first one.
    live(testbed.ctr())?;
    let before = Census::take()?;
    live(testbed.ctr())?;
    before.wait_for_nothing_left()
}
