// SPDX-License-Identifier: Apache-2.0

//! A shim without containerd: started and called as containerd does it, so that one call
//! can be timed alone.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use containerd_shim_protos::{
    api::{
        CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, KillRequest,
        Mount, ShutdownRequest, WaitRequest, WaitResponse,
    },
    protobuf::Message,
};
use crab_integration::{Denied, Runtime, Sandbox, ShimClient};
use serde_json::Value;

const CONTAINERD: &str = "/run/containerd/containerd.sock";
const NAMESPACE: &str = "bench";
/// Where containerd's bundles are: a shim finds there what it may expect of one.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task/bench";

/// What a container is made of: copied from one that containerd has made.
pub(crate) struct Recipe {
    spec: Value,
    lower: String,
    /// Beside the snapshotter's own, on a file system that can hold upper directories.
    layers: PathBuf,
}

impl Recipe {
    pub(crate) fn of(sandbox: &Sandbox) -> Result<Self> {
        let path = sandbox.bundle().join("config.json");
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let spec = serde_json::from_slice(&text)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let rootfs = sandbox.bundle().join("rootfs").display().to_string();
        let lower = mounts
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(&rootfs))
            .and_then(|line| line.rsplit(' ').next())
            .and_then(|options| options.split(',').find_map(|o| o.strip_prefix("lowerdir=")))
            .with_context(|| format!("{rootfs} is no overlay"))?
            .to_owned();
        let upper = sandbox.upper_dir()?;
        let layers = upper
            .ancestors()
            .nth(3)
            .context("no snapshotter's directory")?;
        Ok(Self {
            spec,
            lower,
            layers: layers.join("crab-bench"),
        })
    }
}

/// A shim with a bundle and a root of its own. Everything is removed by [`Shim::end`].
pub(crate) struct Shim {
    id: String,
    bundle: PathBuf,
    layers: PathBuf,
    client: ShimClient,
    /// The shim's log, read by nobody.
    _log: fs::File,
}

impl Shim {
    pub(crate) fn start(runtime: Runtime, recipe: &Recipe, id: &str) -> Result<Self> {
        let bundle = Path::new(BUNDLES).join(id);
        let layers = recipe.layers.join(id);
        for dir in [
            bundle.join("rootfs"),
            layers.join("fs"),
            layers.join("work"),
        ] {
            fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let mut spec = recipe.spec.clone();
        spec["linux"]["cgroupsPath"] = format!("/{NAMESPACE}/{id}").into();
        fs::write(bundle.join("config.json"), serde_json::to_vec(&spec)?)?;
        let log = bundle.join("log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &log, 0o700.into()).context("make the FIFO log")?;
        let log = fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(log)?;
        let program = match runtime {
            Runtime::Crab => "containerd-shim-crab-v1",
            Runtime::Stock => "containerd-shim-runc-v2",
        };
        let started = Command::new(program)
            .args(["-namespace", NAMESPACE, "-id", id, "-address", CONTAINERD])
            .args(["-publish-binary", "/usr/bin/containerd", "start"])
            .env("TTRPC_ADDRESS", format!("{CONTAINERD}.ttrpc"))
            .env("GRPC_ADDRESS", CONTAINERD)
            .env("NAMESPACE", NAMESPACE)
            .env("MAX_SHIM_VERSION", "2")
            .current_dir(&bundle)
            .output()
            .with_context(|| format!("run {program}"))?;
        let answer = String::from_utf8_lossy(&started.stdout).trim().to_owned();
        if !started.status.success() {
            let why = String::from_utf8_lossy(&started.stderr);
            bail!("{program} start: {}: {}", started.status, why.trim());
        }
        Ok(Self {
            id: id.to_owned(),
            bundle,
            layers,
            client: ShimClient::started(&answer)?,
            _log: log,
        })
    }

    fn call<A: Message>(&self, method: &str, request: &impl Message) -> Result<A> {
        let denied = |denied: Denied| anyhow!("{method}: {}: {}", denied.code, denied.message);
        self.client.call(method, request)?.map_err(denied)
    }

    /// Create alone, and what it took.
    pub(crate) fn create(&self, recipe: &Recipe) -> Result<Duration> {
        let layer = |name: &str| self.layers.join(name).display().to_string();
        let root = Mount {
            type_: "overlay".into(),
            source: "overlay".into(),
            options: vec![
                format!("workdir={}", layer("work")),
                format!("upperdir={}", layer("fs")),
                format!("lowerdir={}", recipe.lower),
            ],
            ..Default::default()
        };
        let request = CreateTaskRequest {
            id: self.id.clone(),
            bundle: self.bundle.display().to_string(),
            rootfs: vec![root],
            ..Default::default()
        };
        let start = Instant::now();
        let created: CreateTaskResponse = self.call("Create", &request)?;
        let took = start.elapsed();
        ensure!(created.pid > 0, "Create gave no process");
        Ok(took)
    }

    /// Kills what was created and removes everything.
    pub(crate) fn end(self) -> Result<()> {
        let id = &self.id;
        let kill = KillRequest {
            id: id.clone(),
            signal: 9,
            all: true,
            ..Default::default()
        };
        self.call::<Empty>("Kill", &kill)?;
        let wait = WaitRequest {
            id: id.clone(),
            ..Default::default()
        };
        self.call::<WaitResponse>("Wait", &wait)?;
        let delete = DeleteRequest {
            id: id.clone(),
            ..Default::default()
        };
        self.call::<DeleteResponse>("Delete", &delete)?;
        let shutdown = ShutdownRequest {
            id: id.clone(),
            now: true,
            ..Default::default()
        };
        // It may be gone before it has answered.
        let _ = self.call::<Empty>("Shutdown", &shutdown);
        for dir in [&self.bundle, &self.layers] {
            fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        Ok(())
    }
}
