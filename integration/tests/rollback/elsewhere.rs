// SPDX-License-Identifier: Apache-2.0

//! A checkpoint leaves its host as a file: another one's sandbox goes on from there, and other tools
//! can look into it.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Client, Crab, DEBIAN, RunOptions, Sandbox, State, Testbed, Tool, processes::CRIU_PATH, skip,
    unique,
};
use crab_store::Class;
use serde_json::Value;

use crate::server::{ask, ask_as_turn, start_server};

/// Where archives and other stores are, as long as this is there.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let dir = PathBuf::from("/tmp").join(unique("elsewhere"));
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self(dir))
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A container that nothing is known of: it has run, and its history is gone.
fn without_history(client: Client) -> Result<Sandbox> {
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    sandbox.stop()?;
    sandbox
        .wait_for(State::Stopped)
        .or_else(|_| sandbox.wait_for(State::Gone))?;
    if client != Client::Docker {
        client.tool(["task", "rm", sandbox.id()]).run()?;
    }
    fs::remove_dir_all(sandbox.store())?;
    Ok(sandbox)
}

/// A server that has counted to 1, files in the root and in memory; in a file, and gone.
fn exported(crab: &Crab, client: Client, file: &str) -> Result<Value> {
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    start_server(crab, &sandbox)?;
    ask_as_turn(crab, &sandbox, Class::Full)?;
    let turn = crab.turn_of(
        &sandbox,
        Class::Files,
        "echo one >/root/f; rm /etc/issue; truncate -s 1T /root/huge; echo m >/dev/shm/m",
    )?;
    crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
    let asked = turn.number().to_string();
    let told = crab.json(&["export", sandbox.name(), "--turn", &asked, "-o", file])?;
    let store = sandbox.store();
    sandbox.remove()?;
    fs::remove_dir_all(store)?;
    Ok(told)
}

#[test]
fn a_sandbox_goes_on_where_its_checkpoint_is_imported() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let place = Place::new()?;
        let file = place.text("file.tar");
        let told = exported(&crab, client, &file)?;
        ensure!(told["processes"] == true, "{told}");
        let digest = told["image"]["digest"].as_str().unwrap_or_default();
        ensure!(digest.starts_with("sha256:"), "{told}");
        let size = fs::metadata(&file)?.len();
        ensure!(size < 100 << 20, "{size} bytes");

        // A store that never knew of it.
        let store = place.text("store");
        let elsewhere = ["--store", &store];
        crab.json(&[&elsewhere[..], &["import", &file, "--id", "other/x"]].concat())?;
        crab.json(&[&elsewhere[..], &["fsck"]].concat())?;
        let refusal =
            crab.refusal(&[&elsewhere[..], &["import", &file, "--id", "other/x"]].concat())?;
        ensure!(refusal.code == 4, "{refusal:?}");
        if client != Client::Docker {
            // That namespace has no images.
            let said = crab.tool(&[&elsewhere[..], &["import", &file, "--id", "other/y"]].concat());
            let said = said.run()?.text()?;
            ensure!(
                said.contains("is not here") && said.contains(digest),
                "{said}"
            );
        }

        let sandbox = without_history(client)?;
        let imported = crab.json(&["import", &file, "--id", &sandbox.sandbox_id()])?;
        ensure!(imported["image_here"]["state"] == "present", "{imported}");
        crab.restore(&sandbox, None)?;
        let found = crab.verify(&sandbox, None)?;
        ensure!(found["same"] == true, "{found}");
        let list = "cat /root/f /dev/shm/m; ls /etc/issue 2>/dev/null; stat -c '%s %b' /root/huge";
        assert_eq!(sandbox.sh_ok(list)?, "one\nm\n1099511627776 0");
        assert_eq!(ask(&sandbox)?, 2, "the server has forgotten");
        // From here on it has turns as any other.
        let next = crab.turn_of(&sandbox, Class::Files, "echo three >/root/f")?;
        crab.turn_of(&sandbox, Class::Files, "echo four >/root/f")?;
        crab.rollback_verified(&sandbox, next.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "three");
    }
    Ok(())
}

#[test]
fn checkpointctl_shows_and_inspects_what_is_exported() -> Result<()> {
    let testbed = Testbed::here()?;
    if Tool::new("checkpointctl").args(["--help"]).run().is_err() {
        return skip("this host has no checkpointctl");
    }
    let crab = testbed.crab();
    let place = Place::new()?;
    let file = place.text("file.tar");
    let told = exported(&crab, testbed.ctr(), &file)?;
    let image = told["image"]["name"].as_str().unwrap_or_default();
    let checkpointctl = |args: &[&str]| {
        let tool = Tool::new("checkpointctl");
        tool.args(args.iter().copied()).args([&file]).run()?.text()
    };
    let shown = checkpointctl(&["show"])?;
    ensure!(shown.contains(image) && shown.contains("runc"), "{shown}");
    // All but CRIU's statistics of the dump, which are not kept.
    let all = ["--ps-tree-cmd", "--files", "--mounts", "--sockets"];
    let inspected = checkpointctl(&[&["inspect"][..], &all].concat())?;
    for what in ["/root/log", image] {
        ensure!(inspected.contains(what), "{what}: {inspected}");
    }
    // Out of the pages, whose map CRIU 4.2 writes otherwise.
    let shows = |what| inspected.contains(what);
    let has_commands = shows("sleep infinity") && shows("python3 /root/server.py server");
    let criu = Tool::new(CRIU_PATH).args(["--version"]).run()?.text()?;
    ensure!(
        has_commands || !criu.contains("Version: 4.1"),
        "{inspected}"
    );
    // One without processes, too.
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
    crab.json(&["export", sandbox.name(), "-o", &file])?;
    ensure!(checkpointctl(&["show"])?.contains(image));
    ensure!(checkpointctl(&["inspect"])?.contains(sandbox.name()));
    // containerd takes it for an image, whole.
    let ctr = |args: &[&str]| testbed.ctr().tool(args.iter().copied()).run()?.text();
    ctr(&["images", "import", "--no-unpack", &file])?;
    let name = format!("crab.local/{}:turn-1", sandbox.sandbox_id());
    let list = ctr(&["images", "ls", "-q"])?;
    ctr(&["images", "rm", &name])?;
    ensure!(list.contains(&name), "{list}");
    if !has_commands {
        return skip("this checkpointctl finds no command lines in images of this CRIU");
    }
    Ok(())
}
