// SPDX-License-Identifier: Apache-2.0
//! The Task service: containerd's calls, translated.
//!
//! Every call is one method of [`Container`] or a look at its processes; here are
//! only the messages and the gRPC codes that the Go shim answers with.
//!
//! What changes a container is carried out to its end, whoever asked for it: see [`carry_out`].

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use containerd_shim_protos::{
    api::{
        CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
        CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest,
        PauseRequest, PidsRequest, PidsResponse, ProcessInfo, ResizePtyRequest, ResumeRequest,
        ShutdownRequest, StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest,
        StatsResponse, UpdateTaskRequest, WaitRequest, WaitResponse,
    },
    protobuf::{Message, MessageField, well_known_types::any::Any},
    shim::oci::ProcessDetails,
    shim_async::Task,
};
use serde_json::Value;
use tokio::sync::oneshot;
use ttrpc::{
    Code,
    r#async::TtrpcContext,
    error::{Error, Result, get_status},
};

use crate::{
    container::{INIT, Phase, Process, StateError, exited_at},
    containers::{Containers, Reserved},
    sandbox::{Container, CreateFailure, Host},
    serve::Dismissal,
    stdio::{Client, Owner, StdioPaths},
};

/// Turns an error into the status that the client sees, with its whole chain
/// of reasons on one line.
pub(crate) fn refuse(code: Code, error: impl std::fmt::Display) -> Error {
    Error::RpcStatus(get_status(code, format!("{error:#}")))
}

pub(crate) fn unknown(error: anyhow::Error) -> Error {
    refuse(Code::UNKNOWN, error)
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Self {
        let code = match error {
            StateError::NotFound { .. } => Code::NOT_FOUND,
            StateError::Exists { .. } => Code::ALREADY_EXISTS,
            StateError::Refused { .. } => Code::UNKNOWN,
            StateError::Precondition { .. } => Code::FAILED_PRECONDITION,
        };
        refuse(code, error)
    }
}

/// The Task service of one shim.
pub(crate) struct TaskService {
    pub(crate) host: Arc<Host>,
    pub(crate) containers: Containers,
    pub(crate) dismissal: Arc<Dismissal>,
}

fn paths(stdin: String, stdout: String, stderr: String, terminal: bool) -> StdioPaths {
    StdioPaths {
        stdin,
        stdout,
        stderr,
        terminal,
    }
}

/// Carries a call out to its end. A client may give up (its deadline is over) or hang up
/// (containerd is killed); then ttrpc drops what answers it, wherever that stands: a process
/// would be starting for ever, and the end of its container would wait for it.
async fn carry_out<T: Send + 'static>(
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(call)
        .await
        .unwrap_or_else(|e| Err(refuse(Code::UNKNOWN, format!("the call has panicked: {e}"))))
}

/// The OCI process of an exec, which has a terminal if the request says so.
fn exec_spec(spec: &[u8], terminal: bool) -> serde_json::Result<Vec<u8>> {
    let mut spec: serde_json::Map<String, Value> = serde_json::from_slice(spec)?;
    spec.insert("terminal".into(), terminal.into());
    serde_json::to_vec(&spec)
}

impl TaskService {
    /// Creates a container, for whoever waits for the answer. If nobody does any more, nobody
    /// will ever ask for the container: it goes again.
    fn creation(
        &self,
        reserved: Reserved,
        req: CreateTaskRequest,
        answer: oneshot::Sender<std::result::Result<Arc<Container>, CreateFailure>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (host, containers) = (self.host.clone(), self.containers.clone());
        let dismissal = self.dismissal.clone();
        async move {
            match Container::create(&host, req).await {
                Ok(container) if answer.is_closed() => {
                    tracing::warn!(id = %container.id, "created for nobody: it is deleted");
                    if let Err(error) = container.delete(INIT).await {
                        tracing::error!(%error, id = %container.id, "it is left behind");
                    }
                    drop(reserved);
                }
                Ok(container) => {
                    reserved.fill(container.clone());
                    let _ = answer.send(Ok(container));
                }
                Err(error) => {
                    drop(reserved);
                    let _ = answer.send(Err(error));
                }
            }
            if containers.should_go() {
                dismissal.dismiss();
            }
        }
    }
}

#[async_trait]
impl Task for TaskService {
    async fn create(&self, _: &TtrpcContext, req: CreateTaskRequest) -> Result<CreateTaskResponse> {
        let reserved = self.containers.reserve(&req.id)?;
        let (answer, created) = oneshot::channel();
        tokio::spawn(self.creation(reserved, req, answer));
        let created = created.await.map_err(|_| {
            let text = "the call has panicked";
            CreateFailure::Failed(anyhow::anyhow!(text))
        });
        let container = created.and_then(|done| done).map_err(|e| match e {
            CreateFailure::Argument(e) => refuse(Code::INVALID_ARGUMENT, e),
            CreateFailure::Failed(e) => unknown(e),
        })?;
        let pid = container.pid_to_tell(container.processes.init()?.pid()) as u32;
        Ok(CreateTaskResponse {
            pid,
            ..Default::default()
        })
    }

    async fn start(&self, _: &TtrpcContext, req: StartRequest) -> Result<StartResponse> {
        let container = self.containers.get(&req.id)?;
        container.processes.starting(&req.exec_id)?;
        let started = carry_out(async move {
            let pid = match req.exec_id.as_str() {
                INIT => container.start_init().await,
                exec => container.start_exec(exec).await,
            };
            pid.map_err(unknown)
        });
        let pid = started.await?;
        Ok(StartResponse {
            pid: pid as u32,
            ..Default::default()
        })
    }

    async fn exec(&self, _: &TtrpcContext, req: ExecProcessRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        let paths = paths(req.stdin, req.stdout, req.stderr, req.terminal);
        let owner = Owner {
            id: req.exec_id.clone(),
            ..container.stdio_owner.clone()
        };
        let client = Client::new(paths.clone(), owner);
        let mut process = Process::new(Phase::Created(None), paths, Some(client));
        let spec = req.spec.as_ref().map_or(&[][..], |any| &any.value);
        process.spec = exec_spec(spec, req.terminal)
            .map_err(|e| refuse(Code::UNKNOWN, format!("the exec's specification: {e}")))?;
        container.processes.add_exec(&req.exec_id, process)?;
        Ok(Empty::new())
    }

    async fn state(&self, _: &TtrpcContext, req: StateRequest) -> Result<StateResponse> {
        let container = self.containers.get(&req.id)?;
        let (phase, status, paths) = container.processes.look(&req.exec_id)?;
        let exit = phase.exit();
        let pid = match req.exec_id.as_str() {
            INIT => container.pid_to_tell(phase.pid()),
            _ => phase.pid(),
        };
        Ok(StateResponse {
            id: match req.exec_id.as_str() {
                INIT => req.id,
                exec => exec.into(),
            },
            bundle: container.bundle.dir().display().to_string(),
            pid: pid as u32,
            status: status.into(),
            stdin: paths.stdin,
            stdout: paths.stdout,
            stderr: paths.stderr,
            terminal: paths.terminal,
            exit_status: exit.map_or(0, |e| e.status),
            exited_at: exited_at(exit),
            ..Default::default()
        })
    }

    async fn wait(&self, _: &TtrpcContext, req: WaitRequest) -> Result<WaitResponse> {
        let mut ended = self
            .containers
            .get(&req.id)?
            .processes
            .ended(&req.exec_id)?;
        let exit = ended
            .wait_for(Option::is_some)
            .await
            .map_err(|_| refuse(Code::NOT_FOUND, "the process was deleted"))?
            .ok_or_else(|| refuse(Code::UNKNOWN, "no exit status"))?;
        Ok(WaitResponse {
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at.into()),
            ..Default::default()
        })
    }

    async fn kill(&self, _: &TtrpcContext, req: KillRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        carry_out(async move {
            let signal = req.signal as i32;
            container.kill(&req.exec_id, signal, req.all).await?;
            Ok(Empty::new())
        })
        .await
    }

    async fn delete(&self, _: &TtrpcContext, req: DeleteRequest) -> Result<DeleteResponse> {
        let container = self.containers.get(&req.id)?;
        let containers = self.containers.clone();
        let gone = carry_out(async move {
            let gone = container.delete(&req.exec_id).await?;
            if req.exec_id == INIT {
                containers.remove(&req.id);
            }
            Ok(gone)
        });
        let (pid, exit) = gone.await?;
        Ok(DeleteResponse {
            pid: pid as u32,
            exit_status: exit.map_or(0, |exit| exit.status),
            exited_at: exited_at(exit),
            ..Default::default()
        })
    }

    async fn pids(&self, _: &TtrpcContext, req: PidsRequest) -> Result<PidsResponse> {
        let container = self.containers.get(&req.id)?;
        let pids = container
            .cgroup()
            .and_then(|cgroup| cgroup.processes().ok())
            .unwrap_or_default();
        let execs = container.processes.execs();
        let details = |pid: i32| -> Result<MessageField<Any>> {
            let Some(exec) = execs.get(&pid) else {
                return Ok(MessageField::none());
            };
            let details = ProcessDetails {
                exec_id: exec.clone(),
                ..Default::default()
            };
            Ok(MessageField::some(Any {
                type_url: "containerd.runc.v1.ProcessDetails".into(),
                value: details
                    .write_to_bytes()
                    .map_err(|e| refuse(Code::UNKNOWN, e))?,
                ..Default::default()
            }))
        };
        let process = |pid| {
            Ok(ProcessInfo {
                pid: pid as u32,
                info: details(pid)?,
                ..Default::default()
            })
        };
        Ok(PidsResponse {
            processes: pids.into_iter().map(process).collect::<Result<_>>()?,
            ..Default::default()
        })
    }

    async fn pause(&self, _: &TtrpcContext, req: PauseRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        carry_out(async move { container.pause().await }).await?;
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, req: ResumeRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        carry_out(async move { container.resume().await }).await?;
        Ok(Empty::new())
    }

    async fn checkpoint(&self, _: &TtrpcContext, req: CheckpointTaskRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        carry_out(async move { Ok(container.standard_checkpoint(&req).await?) }).await?;
        Ok(Empty::new())
    }

    async fn resize_pty(&self, _: &TtrpcContext, req: ResizePtyRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        let (phase, terminal) = container
            .processes
            .with(&req.exec_id, |p| (p.phase, p.terminal.clone()))?;
        if req.exec_id != INIT && phase.exit().is_some() {
            return Err(refuse(
                Code::UNKNOWN,
                format!("cannot resize exec {}: it has ended", req.exec_id),
            ));
        }
        if let Some(terminal) = terminal {
            let clamp = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
            terminal
                .resize(clamp(req.width), clamp(req.height))
                .map_err(|e| refuse(Code::UNKNOWN, e))?;
        }
        Ok(Empty::new())
    }

    async fn close_io(&self, _: &TtrpcContext, req: CloseIORequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        let client = container
            .processes
            .with(&req.exec_id, |p| p.client.clone())?;
        // As the Go shim: whatever the request says of stdin, there is nothing else to close.
        if let Some(client) = client {
            client.close_stdin();
        }
        Ok(Empty::new())
    }

    async fn update(&self, _: &TtrpcContext, req: UpdateTaskRequest) -> Result<Empty> {
        let container = self.containers.get(&req.id)?;
        let Some(resources) = req.resources.into_option() else {
            return Err(refuse(
                Code::INVALID_ARGUMENT,
                format!("update {}: no resources are given", req.id),
            ));
        };
        carry_out(async move { container.update(resources.value).await }).await?;
        Ok(Empty::new())
    }

    async fn stats(&self, _: &TtrpcContext, req: StatsRequest) -> Result<StatsResponse> {
        let container = self.containers.get(&req.id)?;
        let Some(groups) = container.groups() else {
            return Err(refuse(Code::NOT_FOUND, format!("{} has no cgroup", req.id)));
        };
        let stats = groups.metrics().map_err(unknown)?;
        Ok(StatsResponse {
            stats: MessageField::some(stats),
            ..Default::default()
        })
    }

    async fn connect(&self, _: &TtrpcContext, req: ConnectRequest) -> Result<ConnectResponse> {
        let pid = self
            .containers
            .get(&req.id)
            .ok()
            .and_then(|c| Some(c.pid_to_tell(c.processes.init().ok()?.pid())))
            .unwrap_or(0);
        Ok(ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: pid as u32,
            version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        })
    }

    async fn shutdown(&self, _: &TtrpcContext, _: ShutdownRequest) -> Result<Empty> {
        // A shim that still has a container stays.
        if self.containers.may_go() {
            self.dismissal.dismiss();
        }
        Ok(Empty::new())
    }
}
