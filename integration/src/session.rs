// SPDX-License-Identifier: Apache-2.0

//! A client that stays attached: what is said to it, and what it has said so far.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{Client, RunOptions, Sandbox, State, Tool, testbed::poll};

const LIMIT: Duration = Duration::from_secs(30);

/// A command whose stdin stays open. Killed when dropped.
#[derive(Debug)]
pub struct Session {
    child: Child,
    stdin: ChildStdin,
    command: String,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    /// Starts a command.
    pub fn start(tool: &Tool) -> Result<Self> {
        let words = tool.words();
        let command = words.join(" ");
        let (program, args) = words.split_first().context("a command without a word")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {command}"))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stdin = child.stdin.take().context("no stdin")?;
        collect(child.stdout.take(), &seen);
        collect(child.stderr.take(), &seen);
        Ok(Self {
            child,
            stdin,
            command,
            seen,
        })
    }

    /// Runs a container in the foreground, to whose program this talks.
    pub fn run(client: Client, image: &str, options: RunOptions) -> Result<(Self, Sandbox)> {
        let options = match client {
            Client::Docker => options.flags(["-i"]),
            // It always hands its stdin on.
            Client::Ctr { .. } => options,
        };
        let (tool, mut sandbox) = client.run_rm_tool(image, options)?;
        let session = Self::start(&tool)?;
        sandbox.wait_for(State::Running)?;
        sandbox.find_id()?;
        Ok((session, sandbox))
    }

    /// Says something to it.
    pub fn send(&mut self, text: &str) -> Result<()> {
        self.stdin
            .write_all(text.as_bytes())
            .and_then(|()| self.stdin.flush())
            .with_context(|| format!("say something to {}", self.command))
    }

    /// Everything that it has said so far, on stdout and stderr.
    pub fn seen(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Waits until it has said something in which this is found.
    pub fn find<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let what = format!("{} says {what}", self.command);
        poll(&what, LIMIT, || Ok(find(&self.seen())))
            .with_context(|| format!("it said {:?}", self.seen()))
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>, to: &Arc<Mutex<Vec<u8>>>) {
    let to = to.clone();
    thread::spawn(move || {
        let mut pipe = pipe;
        let mut block = [0; 4096];
        while let Some(Ok(read @ 1..)) = pipe.as_mut().map(|pipe| pipe.read(&mut block)) {
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            to.extend_from_slice(&block[..read]);
        }
    });
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
