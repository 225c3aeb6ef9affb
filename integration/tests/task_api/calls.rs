// SPDX-License-Identifier: Apache-2.0

//! The calls of the Task API, each for one container.

use std::{fmt, time::Duration};

use anyhow::{Error, Result, anyhow, ensure};
use containerd_shim_protos::{
    api::{
        CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest, CreateTaskResponse,
        DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest, PauseRequest,
        PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, ShutdownRequest, StartRequest,
        StartResponse, StateRequest, StateResponse, StatsRequest, StatsResponse, UpdateTaskRequest,
        WaitRequest, WaitResponse,
    },
    protobuf::{Message, MessageField, well_known_types::any::Any},
};
use crab_integration::{Denied, Sandbox, ShimClient};
use serde_json::json;

/// What a shim answers.
pub(crate) type Answer<T> = Result<Result<T, Denied>>;

/// A denial as the failure of a test.
pub(crate) fn denied(denied: Denied) -> Error {
    anyhow!("{}: {}", denied.code, denied.message)
}

/// A container's shim, asked about that container.
pub(crate) struct Calls {
    shim: ShimClient,
    /// The container.
    pub(crate) id: String,
}

impl Calls {
    /// Of a container.
    pub(crate) fn of(sandbox: &Sandbox) -> Result<Self> {
        Ok(Self {
            shim: ShimClient::of(sandbox)?,
            id: sandbox.id().to_owned(),
        })
    }

    /// Of a shim that is known otherwise.
    pub(crate) fn with(shim: ShimClient, id: &str) -> Self {
        Self {
            shim,
            id: id.to_owned(),
        }
    }

    pub(crate) fn create(&self, request: &CreateTaskRequest) -> Answer<CreateTaskResponse> {
        self.shim.call("Create", request)
    }

    /// Calls a method, and gives the call up before it can have been answered. `longer`: than
    /// this machine takes, as busy as it is, until the runtime is called.
    pub(crate) fn give_up(
        &self,
        method: &str,
        request: &impl Message,
        longer: Duration,
    ) -> Result<()> {
        let answer = self.shim.call_within::<Empty>(longer, method, request);
        ensure!(!matches!(answer, Ok(Ok(_))), "{method} was answered");
        Ok(())
    }

    /// The same shim, asked about a container that it does not have.
    pub(crate) fn of_another(sandbox: &Sandbox) -> Result<Self> {
        Ok(Self {
            id: "no-such-container".into(),
            ..Self::of(sandbox)?
        })
    }

    /// An exec without stdio.
    pub(crate) fn exec_request(&self, exec: &str, args: &[&str]) -> ExecProcessRequest {
        let spec = json!({
            "args": args,
            "cwd": "/",
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "user": {"uid": 0, "gid": 0},
        });
        ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            spec: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".into(),
                value: spec.to_string().into_bytes(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(crate) fn exec(&self, request: &ExecProcessRequest) -> Answer<Empty> {
        self.shim.call("Exec", request)
    }

    /// Adds an exec without stdio and starts it.
    pub(crate) fn run(&self, exec: &str, args: &[&str]) -> Answer<StartResponse> {
        match self.exec(&self.exec_request(exec, args))? {
            Ok(_) => self.start(exec),
            Err(no) => Ok(Err(no)),
        }
    }

    pub(crate) fn start(&self, exec: &str) -> Answer<StartResponse> {
        let request = StartRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.shim.call("Start", &request)
    }

    pub(crate) fn state(&self, exec: &str) -> Answer<StateResponse> {
        let request = StateRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.shim.call("State", &request)
    }

    pub(crate) fn wait(&self, exec: &str) -> Answer<WaitResponse> {
        let request = WaitRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.shim.call("Wait", &request)
    }

    pub(crate) fn kill(&self, exec: &str, signal: u32, all: bool) -> Answer<Empty> {
        let request = KillRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            signal,
            all,
            ..Default::default()
        };
        self.shim.call("Kill", &request)
    }

    pub(crate) fn delete(&self, exec: &str) -> Answer<DeleteResponse> {
        let request = DeleteRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.shim.call("Delete", &request)
    }

    pub(crate) fn pids(&self) -> Answer<PidsResponse> {
        let request = PidsRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Pids", &request)
    }

    pub(crate) fn pause(&self) -> Answer<Empty> {
        let request = PauseRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Pause", &request)
    }

    pub(crate) fn resume(&self) -> Answer<Empty> {
        let request = ResumeRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Resume", &request)
    }

    pub(crate) fn resize(&self, exec: &str, width: u32, height: u32) -> Answer<Empty> {
        let request = ResizePtyRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            width,
            height,
            ..Default::default()
        };
        self.shim.call("ResizePty", &request)
    }

    pub(crate) fn close_io(&self, exec: &str) -> Answer<Empty> {
        let request = CloseIORequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            stdin: true,
            ..Default::default()
        };
        self.shim.call("CloseIO", &request)
    }

    /// With resources as OCI JSON.
    pub(crate) fn update(&self, resources: &str) -> Answer<Empty> {
        let request = UpdateTaskRequest {
            id: self.id.clone(),
            resources: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".into(),
                value: resources.as_bytes().to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.shim.call("Update", &request)
    }

    pub(crate) fn update_nothing(&self) -> Answer<Empty> {
        let request = UpdateTaskRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Update", &request)
    }

    pub(crate) fn stats(&self) -> Answer<StatsResponse> {
        let request = StatsRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Stats", &request)
    }

    pub(crate) fn connect(&self) -> Answer<ConnectResponse> {
        let request = ConnectRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Connect", &request)
    }

    pub(crate) fn shutdown(&self) -> Answer<Empty> {
        let request = ShutdownRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.shim.call("Shutdown", &request)
    }
}

/// What was asked and answered, to be compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcript(Vec<String>);

impl Transcript {
    /// Notes an answer of which only matters whether it was a yes, and the code of a no.
    pub(crate) fn note<T>(&mut self, what: &str, answer: Answer<T>) -> Result<()> {
        self.note_as(what, answer, |_| String::new())
    }

    /// Notes an answer with what matters of it.
    pub(crate) fn note_as<T>(
        &mut self,
        what: &str,
        answer: Answer<T>,
        show: impl FnOnce(T) -> String,
    ) -> Result<()> {
        let said = match answer? {
            Ok(yes) => format!("ok {}", show(yes)),
            Err(no) => {
                // Shown where the test fails.
                println!("{what}: {}", no.message);
                no.code
            }
        };
        self.0.push(format!("{what}: {}", said.trim()));
        Ok(())
    }

    /// Notes something else.
    pub(crate) fn say(&mut self, line: impl fmt::Display) {
        self.0.push(line.to_string());
    }

    /// Without what only this container is called.
    pub(crate) fn without(self, id: &str) -> Self {
        let lines = self.0.into_iter();
        Self(lines.map(|line| line.replace(id, "<id>")).collect())
    }

    /// In an order of its own.
    pub(crate) fn sort(&mut self) {
        self.0.sort();
    }

    /// The lines.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl fmt::Display for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.0 {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}
