// SPDX-License-Identifier: Apache-2.0

//! What confines a container of the built-in runtime.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, RunOptions, Testbed, Tool};

use crate::configured;

#[test]
fn an_exec_is_confined_as_the_init_is() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let _config = configured("builtin")?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let of = |pid: &str| {
            let script = format!("grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/{pid}/status");
            sandbox.sh_ok(&script)
        };
        assert_eq!(of("1")?, of("self")?, "{}", client.name());
        if client == testbed.docker() {
            // Docker has a profile for all containers.
            let status = of("self")?;
            ensure!(status.contains("Seccomp:\t2"), "{status}");
            let exec = [
                "exec",
                "-u",
                "1000",
                sandbox.name(),
                "cat",
                "/proc/self/status",
            ];
            let status = client.tool(exec).run()?.ok()?.stdout;
            for line in ["Seccomp:\t2", "CapEff:\t0000000000000000", "Uid:\t1000"] {
                ensure!(status.contains(line), "{status}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_device_is_used_by_those_who_may() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let _config = configured("builtin")?;
    let docker = testbed.docker();
    // The kernel's log: what it needs beside the device is given in both cases.
    let read = "mknod /log c 1 11 && dd if=/log bs=8k count=1 2>&1 >/dev/null";
    let run = |flags: &[&str]| {
        let options = RunOptions::new().flags(["--cap-add", "SYSLOG"]);
        let options = options
            .flags(flags.iter().copied())
            .args(["sh", "-c", read]);
        docker.run_rm(BUSYBOX, options)
    };
    run(&["--device-cgroup-rule", "c 1:11 r"])?.ok()?;
    let refused = run(&[])?;
    ensure!(refused.status != 0, "{}", refused.stdout);
    ensure!(
        refused.stdout.contains("Operation not permitted"),
        "{}",
        refused.stdout
    );
    Ok(())
}

#[test]
fn what_it_would_do_wrongly_it_refuses() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let made = by_hand(&sandbox.bundle(), "h1", |spec| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut();
        namespaces
            .context("namespaces")?
            .push(serde_json::json!({"type": "user"}));
        Ok(())
    })?;
    let said = made.create()?;
    ensure!(said.status != 0);
    let line = "the built-in runtime has no user namespaces; runc and crun have";
    assert_eq!(said.stderr.trim(), line);
    Ok(())
}

#[test]
fn its_own_program_cannot_be_written_to_through_a_container() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let made = by_hand(&sandbox.bundle(), "h2", |_| Ok(()))?;
    made.create()?.ok()?;
    let pid = fs::read_to_string(made.dir.join("pid"))?;
    // Created and not started: it still is the runtime, and inside.
    let exe = format!("/proc/{pid}/exe");
    let shim = fs::metadata("/usr/local/bin/containerd-shim-crab-v1")?;
    let program = fs::metadata(&exe)?;
    assert_eq!((program.dev(), program.ino()), (shim.dev(), shim.ino()));
    // As long as it runs, its file is busy; what keeps it afterwards is the mount.
    let read_only = |path: &str| -> Result<bool> {
        let file_system = rustix::fs::statvfs(path)?;
        Ok(file_system
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY))
    };
    ensure!(!read_only("/usr/local/bin/containerd-shim-crab-v1")?);
    ensure!(read_only(&exe)?, "the host's program can be written to");
    Ok(())
}

/// A container that the built-in runtime is asked for on its own command line.
struct ByHand {
    dir: std::path::PathBuf,
    id: &'static str,
}

/// From the bundle of a live one, changed.
fn by_hand(
    bundle: &Path,
    id: &'static str,
    change: impl FnOnce(&mut serde_json::Value) -> Result<()>,
) -> Result<ByHand> {
    let made = ByHand {
        dir: std::env::temp_dir().join(format!("crab-by-hand-{id}")),
        id,
    };
    fs::create_dir_all(made.dir.join("root"))?;
    let mut spec = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    change(&mut spec)?;
    spec["root"]["path"] = serde_json::json!(bundle.join("rootfs"));
    spec["linux"]["cgroupsPath"] = serde_json::json!(format!("/default/{id}"));
    fs::write(made.dir.join("config.json"), spec.to_string())?;
    Ok(made)
}

impl ByHand {
    fn tool(&self, args: &[&str]) -> Tool {
        let root = self.dir.join("root").display().to_string();
        Tool::new("containerd-shim-crab-v1")
            .args(["oci-runtime", "--root", &root])
            .args(args.iter().copied())
    }

    fn create(&self) -> Result<crab_integration::Output> {
        let (bundle, pid) = (self.dir.display().to_string(), self.dir.join("pid"));
        let pid = pid.display().to_string();
        self.tool(&["create", "--bundle", &bundle, "--pid-file", &pid, self.id])
            .run()
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let deleted = self.tool(&["delete", "--force", self.id]).run();
        if let Err(error) = deleted.and_then(crab_integration::Output::ok) {
            eprintln!("could not delete {}: {error:#}", self.id);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
