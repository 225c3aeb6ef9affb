// SPDX-License-Identifier: Apache-2.0

//! Plays a trace in a sandbox: an exec per turn, with what it reads and prints in FIFOs as a
//! client has them, by calls straight to the shim. A client's program per exec would cost
//! more than the exec, and as many of them as there are sandboxes would be what is measured.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use containerd_shim_protos::{
    api::{
        CloseIORequest, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest,
        StartRequest, StartResponse, WaitRequest, WaitResponse,
    },
    protobuf::{Message, MessageField, well_known_types::any::Any},
};
use serde_json::{Value, json};

use super::{
    Trace,
    stdio::{Enough, Fifos},
};
use crate::{
    client::unique,
    sandbox::Sandbox,
    shim_client::{Denied, ShimClient},
    testbed::patient,
};

/// For how long a command may run where the agent had no limit of its own.
const LIMIT: Duration = Duration::from_secs(300);
/// For how long one of the setup may.
const SETUP_LIMIT: Duration = Duration::from_secs(120);
/// How a process ends by SIGKILL.
const KILLED: u32 = 137;
/// Where the FIFOs are.
const FIFOS: &str = "/run/crab-traces";

/// One sandbox, and the trace that it plays.
pub struct Player {
    shim: ShimClient,
    id: String,
    trace: Trace,
    /// That of the container's own process, without its command.
    process: Value,
    fifos: PathBuf,
}

/// A turn that was played.
#[derive(Clone, Debug)]
pub struct Played {
    /// From the beginning of the exec until its client knew that it runs: a gate is in it.
    pub started: Duration,
    /// From there until its client knew that it had ended.
    pub took: Duration,
    /// Its exit status.
    pub exit: u32,
    /// Whether it ran for longer than the agent waits, and was killed.
    pub timed_out: bool,
    /// What it printed, the last of it.
    pub output: Vec<u8>,
}

impl Played {
    /// Whether it came out as in the trace; also if that does not say.
    pub fn is_as(&self, recorded: Option<i32>) -> bool {
        recorded.is_none_or(|exit| u32::try_from(exit) == Ok(self.exit))
    }
}

impl Player {
    /// Gets ready to play a trace in a sandbox.
    pub fn new(sandbox: &Sandbox, trace: &Trace) -> Result<Self> {
        let path = sandbox.bundle().join("config.json");
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let mut spec: Value = serde_json::from_slice(&text)?;
        let process = spec["process"].take();
        ensure!(process.is_object(), "{} has no process", path.display());
        let fifos = Path::new(FIFOS).join(sandbox.id());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&fifos)
            .with_context(|| format!("make {}", fifos.display()))?;
        Ok(Self {
            shim: ShimClient::of(sandbox)?,
            id: sandbox.id().to_owned(),
            trace: trace.clone(),
            process,
            fifos,
        })
    }

    /// What it plays.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Makes the files that the agent found.
    pub fn set_up(&self) -> Result<()> {
        for (n, script) in self.trace.setup.iter().enumerate() {
            let played = self.exec(script, None, Path::new("/"), SETUP_LIMIT)?;
            if played.exit != 0 {
                bail!(
                    "setup {} of {} ended with {}: {}",
                    n + 1,
                    self.trace.id,
                    played.exit,
                    String::from_utf8_lossy(&played.output).trim()
                );
            }
        }
        Ok(())
    }

    /// Plays a turn, counted from 0, without the wait before it.
    pub fn turn(&self, n: usize) -> Result<Played> {
        let turn = self.trace.turns.get(n);
        let turn = turn.with_context(|| format!("{} has no turn {}", self.trace.id, n + 1))?;
        let limit = self.trace.agent_timeout_ms.map(Duration::from_millis);
        self.exec(
            &turn.command,
            turn.stdin.as_deref(),
            &self.trace.cwd,
            limit.unwrap_or(LIMIT),
        )
        .with_context(|| format!("turn {} of {}", n + 1, self.trace.id))
    }

    fn exec(
        &self,
        command: &str,
        stdin: Option<&str>,
        cwd: &Path,
        limit: Duration,
    ) -> Result<Played> {
        let exec = unique("x");
        let mut process = self.process.clone();
        process["args"] = json!([self.trace.shell.name(), "-c", command]);
        process["cwd"] = cwd.to_str().context("a path that is no text")?.into();
        process["terminal"] = false.into();
        let (fifos, enough) = Fifos::new(&self.fifos, &exec, stdin.is_some())?;
        let path = |path: &Path| path.display().to_string();
        let add = ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.clone(),
            stdin: fifos.stdin.as_deref().map(path).unwrap_or_default(),
            // One and the same, as with a terminal: in the order in which it was printed.
            stdout: path(&fifos.output),
            stderr: path(&fifos.output),
            spec: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".into(),
                value: process.to_string().into_bytes(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let began = Instant::now();
        self.call::<Empty>("Exec", &add)?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| fifos.collect());
            let ran = self.run(&exec, &fifos, enough, stdin, limit, began);
            let output = reader
                .join()
                .map_err(|_| anyhow!("who reads its output panicked"));
            Ok(Played {
                output: output??,
                ..ran?
            })
        })
    }

    /// Runs an exec that was added, and forgets it.
    fn run(
        &self,
        exec: &str,
        fifos: &Fifos,
        // Dropped, and so said, by whatever way this ends.
        mut enough: Enough,
        stdin: Option<&str>,
        limit: Duration,
        began: Instant,
    ) -> Result<Played> {
        let start = StartRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call::<StartResponse>("Start", &start)?;
        let started = began.elapsed();
        let (exit, timed_out) = thread::scope(|scope| {
            if let Some(text) = stdin {
                scope.spawn(move || {
                    let close = CloseIORequest {
                        id: self.id.clone(),
                        exec_id: exec.to_owned(),
                        stdin: true,
                        ..Default::default()
                    };
                    let fed = fifos.feed(text.as_bytes());
                    // It may have ended without reading it all.
                    let _ = fed.and_then(|()| self.call::<Empty>("CloseIO", &close));
                });
            }
            let waited = self.wait(exec, limit);
            enough.say();
            waited
        })?;
        let took = began.elapsed().saturating_sub(started);
        let delete = DeleteRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call::<DeleteResponse>("Delete", &delete)?;
        Ok(Played {
            started,
            took,
            exit,
            timed_out,
            output: Vec::new(),
        })
    }

    /// Waits for its end; kills it, and it alone as agents do, when that takes too long.
    fn wait(&self, exec: &str, limit: Duration) -> Result<(u32, bool)> {
        let wait = WaitRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        let began = Instant::now();
        let ended = self
            .shim
            .call_within::<WaitResponse>(patient(limit), "Wait", &wait);
        match ended {
            Ok(Ok(ended)) => return Ok((ended.exit_status, false)),
            // No answer in time is an error of the call, or the shim's own.
            _ if began.elapsed() >= patient(limit) => {}
            Ok(Err(denied)) => return Err(denial("Wait", denied)),
            Err(error) => return Err(error),
        }
        let kill = KillRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            signal: 9,
            ..Default::default()
        };
        // It may have ended just now.
        let _ = self.call::<Empty>("Kill", &kill);
        let ended: WaitResponse = self.call("Wait", &wait)?;
        Ok((ended.exit_status, ended.exit_status == KILLED))
    }

    fn call<A: Message>(&self, method: &str, request: &impl Message) -> Result<A> {
        let answer = self.shim.call(method, request)?;
        answer.map_err(|denied| denial(method, denied))
    }
}

fn denial(method: &str, denied: Denied) -> anyhow::Error {
    anyhow!("{method}: {}: {}", denied.code, denied.message)
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.fifos);
    }
}
