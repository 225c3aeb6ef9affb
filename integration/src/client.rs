// SPDX-License-Identifier: Apache-2.0

//! The two clients that start containers: `ctr` and `docker`.

use std::{
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{Output, Tool},
    sandbox::Sandbox,
    testbed::CgroupMode,
};

/// A shim, by the name that clients know it under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Crab.
    Crab,
    /// containerd's own shim for runc.
    Stock,
}

impl Runtime {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crab => "io.containerd.crab.v1",
            Self::Stock => "io.containerd.runc.v2",
        }
    }

    /// Its name as a runtime handler of the CRI.
    pub fn handler(self) -> &'static str {
        match self {
            Self::Crab => "crab",
            Self::Stock => "runc",
        }
    }
}

/// How a container shall be.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub(crate) runtime: Runtime,
    pub(crate) id: Option<String>,
    /// A directory that is its root, instead of an image (`ctr` only).
    pub(crate) rootfs: Option<PathBuf>,
    /// Options of the client, before the image.
    pub(crate) flags: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            runtime: Runtime::Crab,
            id: None,
            rootfs: None,
            flags: Vec::new(),
            args: ["sleep", "infinity"].map(str::to_owned).to_vec(),
        }
    }
}

impl RunOptions {
    /// A container under Crab that is kept open by `sleep infinity`.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, and Python writes no byte code in it of its own accord: a turn that
    /// only runs a program changes no files.
    pub fn without_bytecode() -> Self {
        Self::new().env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// Has CRIU asked by the runtime: it is started when the sandbox stands still already.
    pub fn dumped_by_runtime(self) -> Self {
        self.flags(["--annotation", "dev.crab.runtime.ask_criu=false"])
    }

    /// Under another shim.
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self
    }

    /// Its id with `ctr`, its name with Docker; a unique one otherwise.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// With a directory as its root, whatever image is named (`ctr` only).
    pub fn rootfs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.rootfs = Some(dir.into());
        self
    }

    /// What runs in it.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Options that the client takes before the image, for what is the same for
    /// both, or for tests of one.
    pub fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// A directory of the host's, to be seen in it at this path.
    pub fn bind(self, client: Client, host: &Path, at: &str) -> Self {
        let host = host.display();
        match client {
            Client::Ctr { .. } => self.flags([
                "--mount".to_owned(),
                format!("type=bind,src={host},dst={at},options=rbind:rw"),
            ]),
            Client::Docker => self.flags(["-v".to_owned(), format!("{host}:{at}")]),
        }
    }

    /// A variable of its environment.
    pub fn env(self, name: &str, value: &str) -> Self {
        self.flags(["--env".to_owned(), format!("{name}={value}")])
    }
}

/// Who starts containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// containerd by `ctr`.
    Ctr {
        /// containerd's namespace.
        namespace: &'static str,
        /// Whether CPU shares have to be left out.
        no_cpu_shares: bool,
    },
    /// Docker.
    Docker,
}

impl Client {
    pub(crate) fn ctr(cgroup: CgroupMode, namespace: &'static str) -> Self {
        // In v2 mode the cpu controller may be bound to v1, and runc refuses.
        Self::Ctr {
            namespace,
            no_cpu_shares: cgroup == CgroupMode::V2,
        }
    }

    pub(crate) fn docker() -> Self {
        Self::Docker
    }

    /// Its name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ctr { .. } => "ctr",
            Self::Docker => "docker",
        }
    }

    /// containerd's namespace of the containers that it makes.
    pub fn namespace(self) -> &'static str {
        match self {
            Self::Ctr { namespace, .. } => namespace,
            Self::Docker => "moby",
        }
    }

    /// Its command line.
    pub fn tool<S: Into<String>>(self, args: impl IntoIterator<Item = S>) -> Tool {
        match self {
            Self::Ctr { .. } => Tool::new("ctr").args(["-n", self.namespace()]),
            Self::Docker => Tool::new("docker"),
        }
        .args(args)
    }

    fn image(self, image: &str) -> String {
        match self {
            Self::Ctr { .. } => reference(image),
            Self::Docker => format!("crab/{image}"),
        }
    }

    fn run_tool(self, image: &str, mode: &str, id: &str, options: &RunOptions) -> Tool {
        let tool = self
            .tool(["run", mode, "--runtime", options.runtime.name()])
            .args(options.flags.clone());
        match self {
            Self::Ctr { no_cpu_shares, .. } => {
                let shares: &[&str] = if no_cpu_shares {
                    &["--cpu-shares", "0"]
                } else {
                    &[]
                };
                let tool = tool.args(shares.iter().copied());
                match &options.rootfs {
                    Some(dir) => tool.args(["--rootfs", &dir.display().to_string(), id]),
                    None => tool.args([self.image(image), id.to_owned()]),
                }
            }
            Self::Docker => tool.args(["--name", id]).args([self.image(image)]),
        }
        .args(options.args.clone())
    }

    /// The name of a container to be made. One that is taken is somebody else's,
    /// whom a guard must not remove.
    fn free_name(self, prefix: &str, options: &RunOptions) -> Result<String> {
        let Some(name) = &options.id else {
            return Ok(unique(prefix));
        };
        let found = match self {
            Self::Ctr { .. } => self.tool(["container", "info", name]),
            Self::Docker => self.tool(["inspect", "--type", "container", name]),
        };
        if found.run()?.status == 0 {
            bail!("there is a container {name} already");
        }
        Ok(name.clone())
    }

    /// Starts a container in the background.
    pub fn run(self, image: &str, options: RunOptions) -> Result<Sandbox> {
        let name = self.free_name("t", &options)?;
        // What a failed start leaves is removed as well.
        let mut sandbox = Sandbox::new(self, options.runtime, &name);
        let started = self.run_tool(image, "-d", &name, &options).run()?.ok()?;
        if self == Self::Docker {
            let id = started.stdout.trim();
            if id.len() != 64 {
                bail!("docker run printed no id: {id:?} {}", started.stderr.trim());
            }
            sandbox.set_id(id);
        }
        Ok(sandbox)
    }

    /// The command line that runs a container in the foreground and removes it,
    /// and the guard of that container.
    pub fn run_rm_tool(self, image: &str, options: RunOptions) -> Result<(Tool, Sandbox)> {
        let name = self.free_name("r", &options)?;
        let guard = Sandbox::new(self, options.runtime, &name);
        Ok((self.run_tool(image, "--rm", &name, &options), guard))
    }

    /// Runs a container in the foreground and removes it.
    pub fn run_rm(self, image: &str, options: RunOptions) -> Result<Output> {
        let (tool, _guard) = self.run_rm_tool(image, options)?;
        tool.limit(Duration::from_secs(60))
            .run()
            .context("run a container in the foreground")
    }
}

/// An image of the tests, by the name that containerd has it under.
pub(crate) fn reference(image: &str) -> String {
    format!("docker.io/crab/{image}:latest")
}

/// A name that nothing else on this host has.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{}-{n}", process::id())
}
