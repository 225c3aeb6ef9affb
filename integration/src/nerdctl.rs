// SPDX-License-Identifier: Apache-2.0

//! nerdctl: containers of containerd with names, logs and networks of nerdctl's own.
//! `Sandbox` is what containerd itself knows of one.

use anyhow::{Result, bail, ensure};

use crate::{
    client::{Client, RunOptions, reference, unique},
    command::{Output, Tool},
    sandbox::{ExecOptions, Sandbox, State, state_of},
    testbed::{Testbed, has_client},
};

/// nerdctl, in containerd's namespace `default`.
#[derive(Clone, Copy, Debug)]
pub struct Nerdctl {
    ctr: Client,
}

/// A container. Dropping it kills and removes it.
#[derive(Debug)]
pub struct NerdctlContainer {
    nerdctl: Nerdctl,
    name: String,
    sandbox: Sandbox,
    removed: bool,
}

impl Testbed {
    /// nerdctl; none where it could not be built, and then the test is skipped.
    pub fn nerdctl(&self) -> Result<Option<Nerdctl>> {
        Ok(has_client("nerdctl")?.then(|| Nerdctl { ctr: self.ctr() }))
    }
}

impl Nerdctl {
    /// Its command line.
    pub fn tool<S: Into<String>>(self, args: impl IntoIterator<Item = S>) -> Tool {
        Tool::new("nerdctl").args(args)
    }

    fn run_tool(self, image: &str, mode: &str, name: &str, options: &RunOptions) -> Tool {
        self.tool(["run", mode, "--pull", "never", "--runtime"])
            .args([options.runtime.name(), "--name", name])
            .args(options.flags.clone())
            .args([reference(image)])
            .args(options.args.clone())
    }

    /// Starts a container in the background. It has a network of its own: the bridge of
    /// nerdctl, unless the options say `--network none`.
    pub fn run(self, image: &str, options: RunOptions) -> Result<NerdctlContainer> {
        let name = options.id.clone().unwrap_or_else(|| unique("n"));
        let runtime = options.runtime;
        // What a failed start leaves is removed as well.
        let mut container = NerdctlContainer {
            nerdctl: self,
            sandbox: Sandbox::of_another(self.ctr, runtime, &name),
            name,
            removed: false,
        };
        let tool = self.run_tool(image, "-d", &container.name, &options);
        let said = tool.run()?.ok()?;
        let id = said.stdout.trim();
        ensure!(id.len() == 64, "{} printed no id: {id:?}", said.command);
        container.sandbox = Sandbox::of_another(self.ctr, runtime, id);
        Ok(container)
    }

    /// Runs a container in the foreground and removes it.
    pub fn run_rm(self, image: &str, options: RunOptions) -> Result<Output> {
        let name = options.id.clone().unwrap_or_else(|| unique("n"));
        let _guard = NerdctlContainer {
            nerdctl: self,
            sandbox: Sandbox::of_another(self.ctr, options.runtime, &name),
            name: name.clone(),
            removed: false,
        };
        self.run_tool(image, "--rm", &name, &options).run()
    }
}

impl NerdctlContainer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same as containerd knows it, for `crab`, its shim and its processes.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Runs a command in it, and waits for its end.
    pub fn exec(&self, args: &[&str]) -> Result<Output> {
        self.exec_with(args, &ExecOptions::new())
    }

    /// Runs a shell script in it that has to end well; gives what it printed.
    pub fn sh_ok(&self, script: &str) -> Result<String> {
        self.exec(&["sh", "-c", script])?.text()
    }

    /// Runs a command in it with a stdin, or as another user, ...
    pub fn exec_with(&self, args: &[&str], options: &ExecOptions) -> Result<Output> {
        let tool = self.nerdctl.tool(["exec"]);
        options.complete(tool, Some("-i"), &self.name, args).run()
    }

    /// What its init printed.
    pub fn logs(&self) -> Result<Output> {
        self.nerdctl.tool(["logs", &self.name]).run()?.ok()
    }

    /// Ends it as `nerdctl stop` does, and waits for that: SIGTERM, then SIGKILL.
    pub fn stop(&self) -> Result<()> {
        let tool = self.nerdctl.tool(["stop", "--time", "1", &self.name]);
        tool.run()?.ok().map(drop)
    }

    /// `nerdctl checkpoint create`, and lets it run on: nerdctl tells only runc's own shim
    /// that it shall not.
    pub fn checkpoint(&self, name: &str) -> Result<()> {
        let create = ["checkpoint", "create", "--leave-running", &self.name, name];
        self.nerdctl.tool(create).run()?.ok().map(drop)
    }

    /// `nerdctl checkpoint ls`: their names.
    pub fn checkpoints(&self) -> Result<Vec<String>> {
        let said = self.nerdctl.tool(["checkpoint", "ls", &self.name]).run()?;
        // After the heading.
        let lines = said.ok()?.stdout;
        let names = lines.lines().skip(1).map(|line| line.trim().to_owned());
        Ok(names.collect())
    }

    /// `nerdctl checkpoint rm`.
    pub fn forget_checkpoint(&self, name: &str) -> Result<()> {
        let remove = ["checkpoint", "rm", &self.name, name];
        self.nerdctl.tool(remove).run()?.ok().map(drop)
    }

    /// `nerdctl start --checkpoint`, of one that has stopped.
    pub fn start_from(&self, name: &str) -> Result<()> {
        let start = ["start", "--checkpoint", name, &self.name];
        self.nerdctl.tool(start).run()?.ok().map(drop)
    }

    /// Starts it again after it has stopped.
    pub fn start_again(&self) -> Result<()> {
        self.nerdctl.tool(["start", &self.name]).run()?.ok()?;
        Ok(())
    }

    /// How nerdctl says that it is.
    pub fn state(&self) -> Result<State> {
        match self.inspect("{{.State.Status}}")? {
            Some(word) => state_of(&word),
            None => Ok(State::Gone),
        }
    }

    /// The exit status of its init.
    pub fn exit_code(&self) -> Result<i32> {
        match self.inspect("{{.State.ExitCode}}")? {
            Some(code) => Ok(code.parse()?),
            None => bail!("there is no container {}", self.name),
        }
    }

    fn inspect(&self, format: &str) -> Result<Option<String>> {
        let inspect = ["inspect", "--type", "container", "--format", format];
        let said = self.nerdctl.tool(inspect).args([&self.name]).run()?;
        if said.status != 0 && said.stderr.contains("no such object") {
            return Ok(None);
        }
        said.text().map(Some)
    }

    /// Removes it, whatever its state.
    pub fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.clean_up()
    }

    fn clean_up(&self) -> Result<()> {
        let said = self.nerdctl.tool(["rm", "-f", "-v", &self.name]).run()?;
        match self.state()? {
            State::Gone => Ok(()),
            state => bail!("nerdctl rm left {} {state:?}: {said:?}", self.name),
        }
    }
}

impl Drop for NerdctlContainer {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        if let Err(error) = self.clean_up() {
            eprintln!("could not remove {}: {error:#}", self.name);
        }
    }
}
