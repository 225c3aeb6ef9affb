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

use anyhow::{Context, Result, bail, ensure};
use containerd_shim_protos::{
    api::{
        CreateTaskRequest, CreateTaskResponse, DeleteRequest, KillRequest, Mount, ShutdownRequest,
        WaitRequest,
    },
    protobuf::Message,
};
use crab_api::ttrpc::{self, r#async::Client};
use crab_integration::{Runtime, Sandbox};
use serde_json::Value;
use tokio::time::timeout;

const CONTAINERD: &str = "/run/containerd/containerd.sock";
const NAMESPACE: &str = "bench";
/// Where containerd's bundles are: a shim finds there what it may expect of one.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task/bench";
/// As long as containerd gives a shim.
const LIMIT: Duration = Duration::from_secs(10);

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
    service: &'static str,
    client: Client,
    /// The shim's log, read by nobody.
    _log: fs::File,
}

fn socket_of(answer: &str) -> Result<(&'static str, String)> {
    if let Ok(parameters) = serde_json::from_str::<Value>(answer) {
        let address = parameters["address"].as_str().unwrap_or_default();
        let service = match parameters["version"].as_u64() {
            Some(2) => "containerd.task.v2.Task",
            _ => "containerd.task.v3.Task",
        };
        return Ok((service, address.to_owned()));
    }
    ensure!(answer.starts_with("unix://"), "the shim said {answer:?}");
    Ok(("containerd.task.v2.Task", answer.to_owned()))
}

impl Shim {
    pub(crate) async fn start(runtime: Runtime, recipe: &Recipe, id: &str) -> Result<Self> {
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
        let (service, address) = socket_of(&answer)?;
        Ok(Self {
            id: id.to_owned(),
            bundle,
            layers,
            service,
            client: crab_api::connect(Path::new(&address)).await?,
            _log: log,
        })
    }

    async fn call(&self, method: &str, request: &impl Message) -> Result<Vec<u8>> {
        let mut call = ttrpc::Request::new();
        call.service = self.service.into();
        call.method = method.into();
        call.payload = request.write_to_bytes()?;
        let answer = timeout(LIMIT, self.client.request(call)).await;
        let answer = answer.with_context(|| format!("{method}: no answer"))?;
        Ok(answer.with_context(|| method.to_owned())?.payload)
    }

    /// Create alone, and what it took.
    pub(crate) async fn create(&self, recipe: &Recipe) -> Result<Duration> {
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
        let answer = self.call("Create", &request).await?;
        let took = start.elapsed();
        let created = CreateTaskResponse::parse_from_bytes(&answer)?;
        ensure!(created.pid > 0, "Create gave no process");
        Ok(took)
    }

    /// Kills what was created and removes everything.
    pub(crate) async fn end(self) -> Result<()> {
        let id = &self.id;
        let kill = KillRequest {
            id: id.clone(),
            signal: 9,
            all: true,
            ..Default::default()
        };
        self.call("Kill", &kill).await?;
        let wait = WaitRequest {
            id: id.clone(),
            ..Default::default()
        };
        self.call("Wait", &wait).await?;
        let delete = DeleteRequest {
            id: id.clone(),
            ..Default::default()
        };
        self.call("Delete", &delete).await?;
        let shutdown = ShutdownRequest {
            id: id.clone(),
            now: true,
            ..Default::default()
        };
        // It may be gone before it has answered.
        let _ = self.call("Shutdown", &shutdown).await;
        for dir in [&self.bundle, &self.layers] {
            fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_tells_its_address_bare_or_with_its_version() {
        let bare = socket_of("unix:///run/s/1").unwrap();
        assert_eq!(bare, ("containerd.task.v2.Task", "unix:///run/s/1".into()));
        let told = socket_of(r#"{"version":3,"address":"unix:///run/s/2","protocol":"ttrpc"}"#);
        assert_eq!(
            told.unwrap(),
            ("containerd.task.v3.Task", "unix:///run/s/2".into())
        );
        assert!(socket_of("what?").is_err());
    }
}
