// SPDX-License-Identifier: Apache-2.0

//! A shim started by hand, with a bundle of the test's own: the only way to see a container
//! between Create and Start, and a shim's own answers to Create and Delete.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::{
    api::CreateTaskRequest,
    protobuf::{Message, MessageField, well_known_types::any::Any},
    shim::oci::Options,
};
use crab_integration::{BUSYBOX, Runtime, ShimClient, Testbed, Tool, processes};
use serde_json::{Value, json};

use crate::{LIMIT, Scratch, calls::Calls};

const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// A namespace in which containerd has nothing.
const NAMESPACE: &str = "crab-by-hand";

/// A shim and its one container.
pub(crate) struct Alone {
    pub(crate) calls: Calls,
    pub(crate) dir: Scratch,
    id: String,
    program: String,
    /// Held open, as containerd does.
    _log: File,
}

/// How the container shall be.
#[derive(Default)]
pub(crate) struct Wish<'a> {
    /// Its command; `sleep infinity` if there is none.
    pub(crate) args: &'a [&'a str],
    /// Runtime options, as the client names and encodes them.
    pub(crate) options: Option<Any>,
    /// Changes the specification.
    pub(crate) spec: Option<&'a dyn Fn(&mut Value)>,
    pub(crate) stdout: String,
}

/// The options of runc's shim, in their own message.
pub(crate) fn runc_options(options: &Options) -> Result<Any> {
    Ok(Any {
        type_url: "containerd.runc.v1.Options".into(),
        value: options.write_to_bytes()?,
        ..Default::default()
    })
}

fn program(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Crab => "containerd-shim-crab-v1",
        Runtime::Stock => "containerd-shim-runc-v2",
    }
}

impl Alone {
    /// Starts a shim for a bundle, and creates nothing yet.
    pub(crate) fn start(testbed: &Testbed, runtime: Runtime, wish: &Wish) -> Result<Self> {
        let dir = Scratch::new()?;
        let id = dir
            .path()
            .file_name()
            .and_then(|name| name.to_str())
            .context("no name")?
            .to_owned();
        let bundle = dir.path();
        let spec = Tool::new("runc").args(["spec", "--bundle"]);
        spec.args([path(bundle)?]).run()?.ok()?;
        let config = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&config)?)?;
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = match wish.args {
            [] => json!(["sleep", "infinity"]),
            args => json!(args),
        };
        spec["root"]["readonly"] = json!(false);
        spec["linux"]["cgroupsPath"] = json!(format!("/{NAMESPACE}/{id}"));
        if let Some(change) = wish.spec {
            change(&mut spec);
        }
        fs::write(&config, spec.to_string())?;
        fs::create_dir(bundle.join("rootfs"))?;
        let image = format!("docker.io/crab/{BUSYBOX}:latest");
        let mount = ["images", "mount", "--rw", &image];
        let root = bundle.join("rootfs");
        testbed.ctr().tool(mount).args([path(&root)?]).run()?.ok()?;
        let fifo = bundle.join("log");
        Tool::new("mkfifo").args([path(&fifo)?]).run()?.ok()?;
        let log = File::options().read(true).write(true).open(&fifo)?;
        let program = program(runtime).to_owned();
        let mut child = command(&program, &id, bundle)
            .arg("start")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            let options = wish.options.as_ref();
            stdin.write_all(&options.map_or(Ok(Vec::new()), Message::write_to_bytes)?)?;
        }
        let said = child.wait_with_output()?;
        ensure!(said.status.success(), "{program} start: {said:?}");
        let shim = ShimClient::started(&String::from_utf8(said.stdout)?)?;
        Ok(Self {
            calls: Calls::with(shim, &id),
            dir,
            id,
            program,
            _log: log,
        })
    }

    /// The request that creates the container.
    pub(crate) fn request(&self, wish: &Wish) -> Result<CreateTaskRequest> {
        Ok(CreateTaskRequest {
            id: self.id.clone(),
            bundle: path(self.dir.path())?,
            options: wish
                .options
                .clone()
                .map_or_else(MessageField::none, MessageField::some),
            stdout: wish.stdout.clone(),
            stderr: wish.stdout.clone(),
            ..Default::default()
        })
    }

    /// The same, and its container is created.
    pub(crate) fn created(testbed: &Testbed, runtime: Runtime, wish: &Wish) -> Result<Self> {
        let alone = Self::start(testbed, runtime, wish)?;
        let request = alone.request(wish)?;
        alone
            .calls
            .create(&request)?
            .map_err(crate::calls::denied)?;
        Ok(alone)
    }

    /// The same, and its container runs.
    pub(crate) fn running(testbed: &Testbed, runtime: Runtime, wish: &Wish) -> Result<Self> {
        let alone = Self::created(testbed, runtime, wish)?;
        alone.calls.start("")?.map_err(crate::calls::denied)?;
        Ok(alone)
    }

    /// Its bundle.
    pub(crate) fn bundle(&self) -> &Path {
        self.dir.path()
    }

    /// Its shim's process.
    pub(crate) fn shim(&self) -> Result<u32> {
        processes::shim_of(NAMESPACE, &self.id).context("the shim is gone")
    }

    /// What `delete` says once the shim is gone.
    pub(crate) fn clean_up(&self) -> Result<Vec<u8>> {
        // As containerd: beside the bundle for 1.x, with the bundle named.
        let said = command(&self.program, &self.id, self.dir.path())
            .args(["-bundle", &path(self.dir.path())?, "delete"])
            .output()?;
        ensure!(said.status.success(), "{} delete: {said:?}", self.program);
        Ok(said.stdout)
    }
}

fn path(path: &Path) -> Result<String> {
    Ok(path.to_str().context("not UTF-8")?.to_owned())
}

fn command(program: &str, id: &str, bundle: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["-namespace", NAMESPACE, "-id", id, "-address", CONTAINERD])
        .args(["-publish-binary", "/usr/bin/containerd"])
        .env("TTRPC_ADDRESS", format!("{CONTAINERD}.ttrpc"))
        .env("GRPC_ADDRESS", CONTAINERD)
        .env("NAMESPACE", NAMESPACE)
        .current_dir(bundle);
    command
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.calls.kill("", 9, true);
        let _ = self.calls.wait("");
        let _ = self.calls.delete("");
        let _ = self.calls.shutdown();
        if let Ok(shim) = self.shim()
            && processes::wait_gone(shim, LIMIT).is_err()
        {
            eprintln!("the shim of {} does not end", self.id);
            let _ = processes::kill(shim);
        }
        let _ = self.clean_up();
        let root: PathBuf = self.dir.path().join("rootfs");
        let unmount = Tool::new("ctr").args(["images", "unmount", "--rm"]);
        let said = unmount.args([root.display().to_string()]).run();
        if !said.is_ok_and(|said| said.status == 0) {
            eprintln!("{} stays mounted", root.display());
        }
    }
}
