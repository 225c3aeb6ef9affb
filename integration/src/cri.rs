// SPDX-License-Identifier: Apache-2.0

//! Pods and their containers, made by `crictl` as a kubelet would make them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    client::{Client, Runtime, reference, unique},
    command::{Output, Tool},
    processes,
    sandbox::{ExecOptions, Sandbox, State},
    testbed::{Testbed, has_client, poll},
};

/// containerd's namespace of the CRI.
const NAMESPACE: &str = "k8s.io";
/// How long the CRI may take to come up.
const READY: Duration = Duration::from_secs(30);

/// The CRI of containerd.
#[derive(Clone, Copy, Debug)]
pub struct Cri {
    ctr: Client,
}

/// How a pod shall be.
#[derive(Clone, Debug, Default)]
pub struct PodOptions {
    linux: Value,
    annotations: Value,
}

/// How a container of a pod shall be.
#[derive(Clone, Debug)]
pub struct ContainerOptions {
    command: Vec<String>,
    linux: Value,
    interactive: bool,
}

/// A pod. Dropping it removes it with all its containers.
#[derive(Debug)]
pub struct Pod {
    cri: Cri,
    runtime: Runtime,
    id: String,
    config: Value,
    /// Where its configuration and the logs of its containers are.
    dir: PathBuf,
    removed: bool,
}

/// A container of a pod, which goes with it.
#[derive(Debug)]
pub struct PodContainer {
    cri: Cri,
    sandbox: Sandbox,
}

impl Testbed {
    /// The CRI, once it is ready; none where crictl could not be built, and then the test
    /// is skipped.
    pub fn cri(&self) -> Result<Option<Cri>> {
        if !has_client("crictl")? {
            return Ok(None);
        }
        let cri = Cri {
            ctr: self.ctr_in(NAMESPACE),
        };
        poll("the CRI is ready", READY, || {
            let said = cri.tool(["info"]).run()?;
            if said.status != 0 {
                return Ok(None);
            }
            let info: Value = serde_json::from_str(&said.stdout)?;
            let conditions = info["status"]["conditions"].as_array();
            let is_ready =
                conditions.is_some_and(|all| all.iter().all(|one| one["status"] == true));
            Ok(is_ready.then_some(()))
        })?;
        Ok(Some(cri))
    }
}

impl PodOptions {
    /// A pod with a network of its own, and a process namespace for each container.
    pub fn new() -> Self {
        Self {
            linux: json!({}),
            annotations: json!({}),
        }
    }

    /// One process namespace for all of it.
    pub fn shared_processes(mut self) -> Self {
        // NamespaceMode.POD
        self.linux = json!({ "security_context": { "namespace_options": { "pid": 0 } } });
        self
    }

    /// An annotation.
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations[name] = value.into();
        self
    }
}

impl Default for ContainerOptions {
    fn default() -> Self {
        Self {
            command: ["sleep", "infinity"].map(str::to_owned).to_vec(),
            // NamespaceMode.CONTAINER
            linux: json!({ "security_context": { "namespace_options": { "pid": 1 } } }),
            interactive: false,
        }
    }
}

impl ContainerOptions {
    /// A container that is kept open by `sleep infinity`.
    pub fn new() -> Self {
        Self::default()
    }

    /// What runs in it.
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// In the process namespace of its pod.
    pub fn shared_processes(mut self) -> Self {
        self.linux = json!({ "security_context": { "namespace_options": { "pid": 0 } } });
        self
    }

    /// With a stdin, for `crictl attach`.
    pub fn interactive(mut self) -> Self {
        self.interactive = true;
        self
    }
}

impl Cri {
    /// Its command line.
    pub fn tool<S: Into<String>>(self, args: impl IntoIterator<Item = S>) -> Tool {
        Tool::new("crictl").args(["--timeout", "60s"]).args(args)
    }

    /// Runs a pod.
    pub fn pod(self, runtime: Runtime, options: PodOptions) -> Result<Pod> {
        let name = unique("pod");
        let dir = env::temp_dir().join(&name);
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let config = json!({
            "metadata": { "name": name, "uid": name, "namespace": "default", "attempt": 1 },
            "log_directory": dir,
            "annotations": options.annotations,
            "linux": options.linux,
        });
        let mut pod = Pod {
            cri: self,
            runtime,
            id: String::new(),
            config,
            dir,
            removed: false,
        };
        let file = pod.write("pod.json", &pod.config)?;
        let run = ["runp", "--runtime", runtime.handler(), &file];
        pod.id = self.tool(run).run()?.text()?;
        ensure!(pod.id.len() == 64, "crictl runp printed {:?}", pod.id);
        Ok(pod)
    }
}

impl Pod {
    /// Its id, which is that of its pause container as well.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its pause container, as containerd knows it.
    pub fn pause(&self) -> Sandbox {
        Sandbox::of_another(self.cri.ctr, self.runtime, &self.id)
    }

    /// The process id of its shim.
    pub fn shim(&self) -> Result<u32> {
        processes::shim_of(NAMESPACE, &self.id)
            .with_context(|| format!("the pod {} has no shim", self.id))
    }

    /// Its address in the network of pods.
    pub fn ip(&self) -> Result<String> {
        let said = self.cri.tool(["inspectp", "-o", "json", &self.id]).run()?;
        let status: Value = serde_json::from_str(&said.ok()?.stdout)?;
        let ip = status["status"]["network"]["ip"].as_str();
        Ok(ip.context("the pod has no address")?.to_owned())
    }

    /// Creates a container of this image in it, and starts it.
    pub fn run(&self, image: &str, options: ContainerOptions) -> Result<PodContainer> {
        let container = self.create(image, options)?;
        container.cri.tool(["start", container.id()]).run()?.ok()?;
        Ok(container)
    }

    /// The same without starting it.
    pub fn create(&self, image: &str, options: ContainerOptions) -> Result<PodContainer> {
        let name = unique("c");
        let config = json!({
            "metadata": { "name": name, "attempt": 1 },
            "image": { "image": reference(image) },
            "command": options.command,
            "log_path": format!("{name}.log"),
            "linux": options.linux,
            "stdin": options.interactive,
        });
        let file = self.write(&format!("{name}.json"), &config)?;
        let pod = self.dir.join("pod.json");
        let create = ["create", &self.id, &file, &pod.to_string_lossy()];
        let id = self.cri.tool(create).run()?.text()?;
        ensure!(id.len() == 64, "crictl create printed {id:?}");
        Ok(PodContainer {
            cri: self.cri,
            sandbox: Sandbox::of_another(self.cri.ctr, self.runtime, &id),
        })
    }

    /// Stops everything in it, and gives its network back.
    pub fn stop(&self) -> Result<()> {
        self.cri.tool(["stopp", &self.id]).run()?.ok().map(drop)
    }

    /// Stops and removes it with all its containers.
    pub fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.clean_up()
    }

    fn write(&self, name: &str, config: &Value) -> Result<String> {
        let path = self.dir.join(name);
        fs::write(&path, config.to_string())
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn clean_up(&self) -> Result<()> {
        // One whose start failed is known by its name only.
        let name = self.config["metadata"]["name"].as_str().unwrap_or_default();
        let list = ["pods", "-q", "--no-trunc", "--name", &format!("^{name}$")];
        let found = self.cri.tool(list).run()?.text()?;
        for id in found.lines() {
            self.cri.tool(["rmp", "-f", id]).run()?.ok()?;
        }
        let left = self.cri.tool(list).run()?.text()?;
        if !left.is_empty() {
            bail!("crictl rmp left {left}");
        }
        fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        if let Err(error) = self.clean_up() {
            eprintln!("could not remove the pod {}: {error:#}", self.id);
        }
    }
}

impl PodContainer {
    /// Its id.
    pub fn id(&self) -> &str {
        self.sandbox.id()
    }

    /// The same as containerd knows it, for `crab` and its processes. Its shim is the
    /// pod's.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Runs a command in it by the streaming server, as `kubectl exec` does.
    pub fn exec(&self, args: &[&str]) -> Result<Output> {
        self.exec_with(args, &ExecOptions::new())
    }

    /// The same with a stdin, ...
    pub fn exec_with(&self, args: &[&str], options: &ExecOptions) -> Result<Output> {
        let tool = self.cri.tool(["exec"]);
        options.complete(tool, Some("-i"), self.id(), args).run()
    }

    /// Runs a command in it in one call, as probes do.
    pub fn exec_sync(&self, args: &[&str]) -> Result<Output> {
        self.exec_with(args, &ExecOptions::new().flags(["--sync"]))
    }

    /// `crictl checkpoint`: into an archive, beside the container that goes on.
    pub fn checkpoint(&self, archive: &Path) -> Result<Output> {
        let export = format!("--export={}", archive.display());
        self.cri.tool(["checkpoint", &export, self.id()]).run()
    }

    /// What its init printed.
    pub fn logs(&self) -> Result<Output> {
        self.cri.tool(["logs", self.id()]).run()?.ok()
    }

    /// How the CRI says that it is.
    pub fn state(&self) -> Result<State> {
        Ok(match self.status()?["state"].as_str() {
            Some("CONTAINER_CREATED") => State::Created,
            Some("CONTAINER_RUNNING") => State::Running,
            Some("CONTAINER_EXITED") => State::Stopped,
            other => bail!("crictl inspect says that {} is {other:?}", self.id()),
        })
    }

    /// The exit status of its init, once it has one.
    pub fn exit_code(&self) -> Result<i64> {
        let code = self.status()?["exitCode"].as_i64();
        code.with_context(|| format!("{} has no exit status", self.id()))
    }

    /// How the CRI says that it is, whole.
    pub fn status(&self) -> Result<Value> {
        let said = self.cri.tool(["inspect", "-o", "json", self.id()]).run()?;
        let mut all: Value = serde_json::from_str(&said.ok()?.stdout)?;
        Ok(all["status"].take())
    }

    /// What it uses: the CRI's statistics.
    pub fn stats(&self) -> Result<Value> {
        let stats = ["stats", "-o", "json", "--id", self.id()];
        let mut all: Value = serde_json::from_str(&self.cri.tool(stats).run()?.ok()?.stdout)?;
        Ok(all["stats"][0].take())
    }

    /// Ends it as a kubelet does, and waits for that: SIGTERM, then SIGKILL after these
    /// seconds.
    pub fn stop(&self, grace: u32) -> Result<()> {
        let stop = ["stop", "--timeout", &grace.to_string(), self.id()];
        self.cri.tool(stop).run()?.ok().map(drop)
    }

    /// Removes it, whatever its state.
    pub fn remove(self) -> Result<()> {
        self.cri.tool(["rm", "-f", self.id()]).run()?.ok().map(drop)
    }
}
