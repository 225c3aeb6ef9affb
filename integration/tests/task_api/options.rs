// SPDX-License-Identifier: Apache-2.0

//! The runtime options of runc's shim, and what a shim says of itself.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::{
    protobuf::{Message, well_known_types::any::Any},
    shim::oci::Options,
    types::introspection::RuntimeInfo,
};
use crab_integration::{BUSYBOX, CgroupMode, RunOptions, Runtime, Testbed, Tool, poll, processes};
use serde_json::Value;

use crate::{
    BOTH, LIMIT, Scratch,
    alone::{Alone, Wish, runc_options},
};

/// A runtime that notes how it was called, and is runc but for what cannot be had here.
struct Noted {
    dir: Scratch,
    program: PathBuf,
}

impl Noted {
    fn new() -> Result<Self> {
        let dir = Scratch::new()?;
        let program = dir.path().join("noted");
        let script = format!(
            r#"#!/bin/bash
echo "$*" >>{}/calls
args=()
for arg; do
    # There is no systemd, and the rootfs of the test host is no ramdisk.
    case $arg in
        --systemd-cgroup | --no-pivot) ;;
        *) args+=("$arg") ;;
    esac
done
exec runc "${{args[@]}}"
"#,
            dir.path().display()
        );
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir, program })
    }

    /// How a verb was called.
    fn call_of(&self, verb: &str) -> Result<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls"))?;
        let call = calls
            .lines()
            .rev()
            .find(|line| line.split(' ').any(|w| w == verb));
        Ok(call
            .with_context(|| format!("no {verb} in {calls}"))?
            .to_owned())
    }

    fn options(&self, more: Options) -> Result<Any> {
        runc_options(&Options {
            binary_name: self.program.display().to_string(),
            ..more
        })
    }
}

#[test]
fn the_runtime_its_root_and_its_flags_are_obeyed() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let noted = Noted::new()?;
        let root = noted.dir.path().join("root");
        let wish = Wish {
            options: Some(noted.options(Options {
                root: root.display().to_string(),
                systemd_cgroup: true,
                no_pivot_root: true,
                no_new_keyring: true,
                ..Default::default()
            })?),
            ..Wish::default()
        };
        let alone = Alone::running(&testbed, runtime, &wish)?;
        let create = noted.call_of("create")?;
        for flag in ["--systemd-cgroup", "--no-pivot", "--no-new-keyring"] {
            assert!(create.contains(flag), "{runtime:?}: {create}");
        }
        assert!(root.join("crab-by-hand").join(&alone.calls.id).is_dir());
    }
    Ok(())
}

/// The CRI makes such a path of a pod's slice, whoever manages the host's cgroups.
#[test]
fn a_unit_of_systemd_is_a_directory_where_no_systemd_runs() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    for runtime in BOTH {
        let path = format!("crab.slice:test:{}", runtime.handler());
        let options = RunOptions::new()
            .runtime(runtime)
            .flags(["--cgroup", &path]);
        let sandbox = client.run(BUSYBOX, options)?;
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.pid()?))?;
        ensure!(cgroups.contains(&path), "{runtime:?}: {cgroups}");
    }
    Ok(())
}

#[test]
fn after_a_dead_shim_the_options_are_known_from_the_bundle() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let noted = Noted::new()?;
        let root = noted.dir.path().join("root");
        let wish = Wish {
            options: Some(noted.options(Options {
                root: root.display().to_string(),
                systemd_cgroup: true,
                ..Default::default()
            })?),
            ..Wish::default()
        };
        let alone = Alone::running(&testbed, runtime, &wish)?;
        let kept: Value = serde_json::from_slice(&fs::read(alone.bundle().join("options.json"))?)?;
        assert_eq!(kept["systemd_cgroup"], true);
        assert_eq!(kept["root"], root.display().to_string());
        let shim = alone.shim()?;
        ensure!(processes::kill(shim)?);
        processes::wait_gone(shim, LIMIT)?;
        alone.clean_up()?;
        let delete = noted.call_of("delete")?;
        if runtime == Runtime::Crab {
            // The other one leaves that out, which runc forgives.
            assert!(delete.contains("--systemd-cgroup"), "{delete}");
        }
        let root = root.join("crab-by-hand").join(&alone.calls.id);
        poll("the runtime has forgotten it", LIMIT, || {
            Ok((!root.exists()).then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn the_pipes_belong_to_whom_the_client_says() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let dir = Scratch::new()?;
        let log = dir.path().join("log");
        let wish = Wish {
            args: &[
                "sh",
                "-c",
                "stat -L -c %u:%g /proc/self/fd/1 /proc/self/fd/2",
            ],
            options: Some(runc_options(&Options {
                io_uid: 1234,
                io_gid: 567,
                ..Default::default()
            })?),
            stdout: format!("file://{}", log.display()),
            ..Wish::default()
        };
        let alone = Alone::running(&testbed, runtime, &wish)?;
        let end = alone.calls.wait("")?.map_err(crate::calls::denied)?;
        assert_eq!(end.exit_status, 0);
        poll("the output is there", LIMIT, || {
            let text = fs::read_to_string(&log)?;
            // The user is the process's own, as runc sees to after.
            Ok((text == "0:567\n0:567\n").then_some(()))
        })
        .with_context(|| format!("{runtime:?}: {:?}", fs::read_to_string(&log)))?;
    }
    Ok(())
}

/// Removed when dropped, once nothing is in it.
struct Group(Vec<PathBuf>);

impl Group {
    fn new(testbed: &Testbed, name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let parents = match testbed.cgroup() {
            CgroupMode::V2 => vec![root.to_path_buf()],
            CgroupMode::V1 => ["pids", "memory"].map(|one| root.join(one)).to_vec(),
        };
        let dirs: Vec<_> = parents.iter().map(|dir| dir.join(name)).collect();
        for dir in &dirs {
            fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        Ok(Self(dirs))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for dir in &self.0 {
            let removed = poll(
                "the cgroup is empty",
                LIMIT,
                || Ok(fs::remove_dir(dir).ok()),
            );
            if let Err(error) = removed {
                eprintln!("{} is left: {error:#}", dir.display());
            }
        }
    }
}

#[test]
fn the_shim_goes_to_its_cgroup() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let group = Group::new(&testbed, "shims-of-a-test")?;
        let wish = Wish {
            options: Some(runc_options(&Options {
                shim_cgroup: "/shims-of-a-test".into(),
                ..Default::default()
            })?),
            ..Wish::default()
        };
        let alone = Alone::running(&testbed, runtime, &wish)?;
        let shim = alone.shim()?.to_string();
        for dir in &group.0 {
            let inside = fs::read_to_string(dir.join("cgroup.procs"))?;
            ensure!(
                inside.lines().any(|line| line == shim),
                "{runtime:?}: {} is not in {}",
                shim,
                dir.display()
            );
        }
        drop(alone);
    }
    Ok(())
}

#[test]
fn options_in_toml_are_obeyed_and_others_refused() -> Result<()> {
    let testbed = Testbed::here()?;
    let noted = Noted::new()?;
    let body = format!(
        "BinaryName = \"{}\"\nNoNewKeyring = true\n",
        noted.program.display()
    );
    // Fields 1 and 3 of runtimeoptions.v1.Options.
    let mut value = Vec::new();
    for (number, text) in [(1u8, "io.containerd.crab.v1.options"), (3, &body)] {
        value.extend([number << 3 | 2, u8::try_from(text.len())?]);
        value.extend(text.as_bytes());
    }
    let wish = Wish {
        options: Some(Any {
            type_url: "runtimeoptions.v1.Options".into(),
            value,
            ..Default::default()
        }),
        ..Wish::default()
    };
    let alone = Alone::running(&testbed, Runtime::Crab, &wish)?;
    let create = noted.call_of("create")?;
    assert!(create.contains("--no-new-keyring"), "{create}");
    drop(alone);

    let alone = Alone::start(&testbed, Runtime::Crab, &Wish::default())?;
    let mut request = alone.request(&Wish::default())?;
    request.options = Some(Any {
        type_url: "runsc.v1.Options".into(),
        value: vec![8, 1],
        ..Default::default()
    })
    .into();
    let no = alone.calls.create(&request)?.expect_err("it was created");
    assert_eq!(no.code, "INVALID_ARGUMENT");
    assert!(no.message.contains("runsc.v1.Options"), "{}", no.message);
    Ok(())
}

#[test]
fn info_tells_the_version_the_options_and_what_the_runtime_can() -> Result<()> {
    Testbed::here()?;
    let options = runc_options(&Options {
        binary_name: "runc".into(),
        ..Default::default()
    })?;
    let mut child = Command::new("containerd-shim-crab-v1")
        .arg("-info")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&options.write_to_bytes()?)?;
    }
    let said = child.wait_with_output()?;
    ensure!(said.status.success(), "{said:?}");
    let info = RuntimeInfo::parse_from_bytes(&said.stdout)?;
    assert_eq!(info.name, "io.containerd.crab.v1");
    assert!(!info.version.version.is_empty());
    assert_eq!(info.options.as_ref(), Some(&options));
    let features: Value = serde_json::from_slice(&info.features.value)?;
    let runc = Tool::new("runc").args(["features"]).run()?.text()?;
    assert_eq!(features, serde_json::from_str::<Value>(&runc)?);
    Ok(())
}
