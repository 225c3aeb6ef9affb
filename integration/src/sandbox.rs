// SPDX-License-Identifier: Apache-2.0

//! One container of a test, and what its client can do with it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    client::{Client, Runtime, unique},
    command::{Output, Running, Tool},
    testbed::{patient, poll},
};

/// How long a container may take to come up, stop or go.
const LIMIT: Duration = Duration::from_secs(20);

/// How a client says that a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It exists, and its program does not run yet.
    Created,
    /// It runs.
    Running,
    /// It is paused.
    Paused,
    /// Its program has ended.
    Stopped,
    /// There is no task (`ctr`), or no container (Docker).
    Gone,
}

/// A container. Dropping it kills and removes it, and nothing else.
#[derive(Debug)]
pub struct Sandbox {
    client: Client,
    runtime: Runtime,
    /// What the client calls it.
    name: String,
    /// What containerd calls it.
    id: String,
    keep: bool,
}

/// How an exec shall be, beyond its command.
#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    stdin: Option<Vec<u8>>,
    flags: Vec<String>,
    limit: Option<Duration>,
}

impl ExecOptions {
    /// An exec without a stdin.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it reads.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Options that the client takes before the container.
    pub fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// How long it may take.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The rest of an exec's command line; `interactive` is what tells the client to hand
    /// its stdin on, if it has to be told.
    pub(crate) fn complete(
        &self,
        tool: Tool,
        interactive: Option<&str>,
        container: &str,
        args: &[&str],
    ) -> Tool {
        let interactive = interactive.filter(|_| self.stdin.is_some());
        let tool = tool
            .args(interactive)
            .args(self.flags.clone())
            .args([container])
            .args(args.iter().copied())
            .stdin(self.stdin.clone().unwrap_or_default());
        match self.limit {
            Some(limit) => tool.limit(limit),
            None => tool,
        }
    }
}

impl Sandbox {
    pub(crate) fn new(client: Client, runtime: Runtime, name: &str) -> Self {
        Self {
            client,
            runtime,
            name: name.to_owned(),
            id: name.to_owned(),
            keep: false,
        }
    }

    /// A container that another client has made and removes, as containerd knows it.
    pub(crate) fn of_another(client: Client, runtime: Runtime, id: &str) -> Self {
        let mut sandbox = Self::new(client, runtime, id);
        sandbox.keep = true;
        sandbox
    }

    pub(crate) fn set_id(&mut self, id: &str) {
        self.id = id.to_owned();
    }

    /// Finds out what containerd calls it, where its client has not said so: it runs in the
    /// foreground.
    pub(crate) fn find_id(&mut self) -> Result<()> {
        if self.client == Client::Docker {
            let inspect = [
                "inspect",
                "--type",
                "container",
                "-f",
                "{{.Id}}",
                &self.name,
            ];
            self.id = self.client.tool(inspect).run()?.text()?;
        }
        Ok(())
    }

    /// Whose it is.
    pub fn client(&self) -> Client {
        self.client
    }

    /// What its client calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What `crab` calls it: `<namespace>/<id>`.
    pub fn sandbox_id(&self) -> String {
        format!("{}/{}", self.client.namespace(), self.id)
    }

    /// The command line of an exec.
    pub fn exec_tool(&self, args: &[&str], options: &ExecOptions) -> Tool {
        match self.client {
            Client::Ctr { .. } => {
                let tool = self.client.tool(["task", "exec", "--exec-id"]);
                // It always hands its stdin on.
                options.complete(tool.args([unique("e")]), None, &self.id, args)
            }
            Client::Docker => {
                let tool = self.client.tool(["exec"]);
                options.complete(tool, Some("-i"), &self.name, args)
            }
        }
    }

    /// Runs a command in it, and waits for its end.
    pub fn exec(&self, args: &[&str]) -> Result<Output> {
        self.exec_with(args, &ExecOptions::new())
    }

    /// Runs a shell script in it.
    pub fn sh(&self, script: &str) -> Result<Output> {
        self.exec(&["sh", "-c", script])
    }

    /// Runs a shell script in it that has to end well; gives what it printed.
    pub fn sh_ok(&self, script: &str) -> Result<String> {
        self.sh(script)?.text()
    }

    /// Runs a command in it with a stdin, or as another user, ...
    pub fn exec_with(&self, args: &[&str], options: &ExecOptions) -> Result<Output> {
        self.exec_tool(args, options).run()
    }

    /// Starts a command in it and does not wait for its end.
    pub fn exec_start(&self, args: &[&str], options: &ExecOptions) -> Result<Running> {
        self.exec_tool(args, options).start()
    }

    /// How its client says that it is.
    pub fn state(&self) -> Result<State> {
        if self.client != Client::Docker {
            return Ok(self.task()?.0);
        }
        let format = "{{.State.Status}}";
        let said = self
            .client
            .tool(["inspect", "--type", "container", "-f", format, &self.name])
            .run()?;
        if said.status != 0 && said.stderr.to_lowercase().contains("no such container") {
            return Ok(State::Gone);
        }
        state_of(&said.text()?)
    }

    /// The process id of its init on the host. containerd is asked, for Docker as
    /// well, which only remembers the one that it started first.
    pub fn pid(&self) -> Result<u32> {
        let (state, pid) = self.task()?;
        pid.with_context(|| format!("{} has no init, it is {state:?}", self.name))
    }

    /// What containerd says of its task.
    fn task(&self) -> Result<(State, Option<u32>)> {
        let list = Tool::new("ctr")
            .args(["-n", self.client.namespace(), "task", "ls"])
            .run()?
            .ok()?
            .stdout;
        let row = list
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|row| row.first() == Some(&self.id.as_str()));
        let Some(row) = row else {
            return Ok((State::Gone, None));
        };
        let [_, pid, state] = row[..] else {
            bail!("ctr task ls printed {row:?}");
        };
        Ok((state_of(state)?, pid.parse().ok().filter(|pid| *pid != 0)))
    }

    /// Waits until its client says that it is so.
    pub fn wait_for(&self, state: State) -> Result<()> {
        poll(&format!("{} is {state:?}", self.name), LIMIT, || {
            Ok((self.state()? == state).then_some(()))
        })
    }

    /// What its init printed (Docker only: `ctr` keeps no logs).
    pub fn logs(&self) -> Result<Output> {
        match self.client {
            Client::Docker => self.client.tool(["logs", &self.name]).run()?.ok(),
            Client::Ctr { .. } => bail!("ctr keeps no logs"),
        }
    }

    /// Sends its init a signal.
    pub fn kill(&self, signal: &str) -> Result<Output> {
        match self.client {
            Client::Ctr { .. } => self.client.tool(["task", "kill", "-s", signal, &self.id]),
            Client::Docker => self.client.tool(["kill", "-s", signal, &self.name]),
        }
        .run()
    }

    /// Kills its init and waits until it has stopped.
    pub fn stop(&self) -> Result<()> {
        self.kill("KILL")?.ok()?;
        self.wait_for(State::Stopped)
    }

    /// Starts it again after it has stopped.
    pub fn start_again(&self) -> Result<Output> {
        match self.client {
            Client::Ctr { .. } => {
                if self.state()? != State::Gone {
                    self.delete_task()?;
                }
                self.client
                    .tool(["task", "start", "-d", &self.id])
                    .run()?
                    .ok()
            }
            Client::Docker => self.client.tool(["start", &self.name]).run()?.ok(),
        }
    }

    /// `ctr task rm`: its exit status is that of the task.
    fn delete_task(&self) -> Result<()> {
        self.client.tool(["task", "rm", &self.id]).run()?;
        match self.state()? {
            State::Gone => Ok(()),
            state => bail!("ctr task rm {}: it is {state:?}", self.id),
        }
    }

    /// Removes it, whatever its state.
    pub fn remove(mut self) -> Result<()> {
        self.keep = true;
        self.clean_up()
    }

    /// Lets it be: dropping it no longer removes it.
    pub fn keep(mut self) {
        self.keep = true;
    }

    fn clean_up(&self) -> Result<()> {
        match self.client {
            Client::Docker => {
                let said = self.client.tool(["rm", "-f", "-v", &self.name]).run()?;
                if self.state()? != State::Gone {
                    said.ok()?;
                    bail!("docker rm left {}", self.name);
                }
                Ok(())
            }
            Client::Ctr { .. } => {
                let deadline = Instant::now() + patient(LIMIT);
                while self.state()? != State::Gone {
                    self.client
                        .tool(["task", "rm", "-f", &self.id])
                        .run()
                        .context("remove the task")?;
                    if Instant::now() > deadline {
                        bail!("the task {} cannot be removed", self.id);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                let removed = self.client.tool(["container", "rm", &self.id]).run()?;
                // There is none if its start failed.
                if removed.status != 0 && !removed.stderr.contains("not found") {
                    removed.ok()?;
                }
                Ok(())
            }
        }
    }

    /// Which shim it runs under.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }
}

/// A shell script that leaves a process behind which sleeps for so many seconds, and
/// ends when that one has begun to: until then it runs, and is another a moment later.
pub fn sleeper(seconds: u32) -> String {
    // 230 is clock_nanosleep.
    format!(
        "setsid sleep {seconds} </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done"
    )
}

pub(crate) fn state_of(word: &str) -> Result<State> {
    Ok(match word.to_lowercase().as_str() {
        "created" => State::Created,
        "running" => State::Running,
        "paused" | "pausing" => State::Paused,
        "stopped" | "exited" | "dead" => State::Stopped,
        _ => bail!("{word} is no state of a container"),
    })
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = self.clean_up() {
            eprintln!("could not remove {}: {error:#}", self.name);
        }
    }
}
