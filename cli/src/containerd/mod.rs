// SPDX-License-Identifier: Apache-2.0

//! containerd's API, as far as `crab` makes containers by it.
//!
//! Everything else is left to the client that made a sandbox (`ctr`, `docker`): see
//! [`crate::starter`]. No command line of those makes a copy of a container.

mod messages;

use std::{io::ErrorKind, path::PathBuf, time::Duration};

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use self::messages::{
    ByContainer, ById, BySnapshot, Containers, CreateTask, Created, Empty, Exited, KillTask,
    ListContainers, Mounts, OneContainer, OneProcess, PrepareSnapshot, Process, SnapshotStat,
    Started,
};
pub(crate) use self::messages::{Container, Mount};

/// Where containerd listens, unless this variable names another place; as for `ctr`.
const SOCKET: &str = "/run/containerd/containerd.sock";
const SOCKET_VARIABLE: &str = "CONTAINERD_ADDRESS";
/// For how long a call may take. A start with much memory takes its time.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A specification may be that large.
const MAX_MESSAGE: usize = 16 << 20;

/// What containerd said, in one line.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: Code,
    said: String,
}

impl Refusal {
    /// There is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// Nobody is there to answer, or not yet.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.said
    }
}

/// What a start of a task needs beside the container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stdio {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

/// One of containerd's namespaces.
#[derive(Clone)]
pub(crate) struct Containerd {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

impl Containerd {
    pub(crate) async fn connect(namespace: &str) -> Result<Self, Refusal> {
        let named = std::env::var(SOCKET_VARIABLE).ok();
        let socket = named.as_deref().map_or(SOCKET, |named| {
            named.strip_prefix("unix://").unwrap_or(named)
        });
        Self::at(socket.into(), namespace).await
    }

    /// The one that listens there.
    pub(crate) async fn at(socket: PathBuf, namespace: &str) -> Result<Self, Refusal> {
        let failed = |code, why: &dyn std::fmt::Display| Refusal {
            code,
            said: format!("cannot reach containerd at {}: {why}", socket.display()),
        };
        // Tried here, because the channel's error does not say why.
        UnixStream::connect(&socket)
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    failed(Code::Unavailable, &error)
                }
                _ => failed(Code::Unknown, &error),
            })?;
        let to = socket.clone();
        let connector = service_fn(move |_: Uri| {
            let to = to.clone();
            async move { UnixStream::connect(to).await.map(TokioIo::new) }
        });
        // The address is the connector's; the name is never looked up.
        let channel = Endpoint::from_static("http://containerd")
            .timeout(TIMEOUT)
            .connect_with_connector(connector)
            .await
            .map_err(|error| failed(Code::Unavailable, &error))?;
        let namespace = namespace.parse().map_err(|_| Refusal {
            code: Code::InvalidArgument,
            said: format!("{namespace:?} is no namespace of containerd"),
        })?;
        Ok(Self { channel, namespace })
    }

    async fn call<Q, A>(&self, method: &'static str, message: Q) -> Result<A, Refusal>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let refusal = |status: Status| Refusal {
            code: status.code(),
            said: status.message().to_owned(),
        };
        let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        client.ready().await.map_err(|error| Refusal {
            code: Code::Unavailable,
            said: format!("containerd has gone: {error}"),
        })?;
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("containerd-namespace", self.namespace.clone());
        let path = PathAndQuery::from_static(method);
        let answer = client.unary(request, path, ProstCodec::<Q, A>::default());
        Ok(answer.await.map_err(refusal)?.into_inner())
    }

    /// A container's record.
    pub(crate) async fn container(&self, id: &str) -> Result<Container, Refusal> {
        let request = ById { id: id.into() };
        let method = "/containerd.services.containers.v1.Containers/Get";
        let found: OneContainer = self.call(method, request).await?;
        found.container.ok_or_else(|| Refusal {
            code: Code::NotFound,
            said: format!("container {id} has no record"),
        })
    }

    /// The ids of all containers.
    pub(crate) async fn container_ids(&self) -> Result<Vec<String>, Refusal> {
        let request = ListContainers {
            filters: Vec::new(),
            quiet: true,
        };
        let method = "/containerd.services.containers.v1.Containers/List";
        let all: Containers = self.call(method, request).await?;
        Ok(all.containers.into_iter().map(|it| it.id).collect())
    }

    pub(crate) async fn create_container(&self, container: Container) -> Result<(), Refusal> {
        let request = OneContainer {
            container: Some(container),
        };
        let method = "/containerd.services.containers.v1.Containers/Create";
        self.call::<_, OneContainer>(method, request).await?;
        Ok(())
    }

    pub(crate) async fn delete_container(&self, id: &str) -> Result<(), Refusal> {
        let method = "/containerd.services.containers.v1.Containers/Delete";
        let request = ById { id: id.into() };
        self.call::<_, Empty>(method, request).await?;
        Ok(())
    }

    /// The snapshot that another one is made on.
    pub(crate) async fn parent_of_snapshot(
        &self,
        snapshotter: &str,
        key: &str,
    ) -> Result<String, Refusal> {
        let request = BySnapshot {
            snapshotter: snapshotter.into(),
            key: key.into(),
        };
        let method = "/containerd.services.snapshots.v1.Snapshots/Stat";
        let stat: SnapshotStat = self.call(method, request).await?;
        Ok(stat.info.unwrap_or_default().parent)
    }

    /// A new writable snapshot, and how it is mounted.
    pub(crate) async fn prepare_snapshot(
        &self,
        snapshotter: &str,
        key: &str,
        parent: &str,
    ) -> Result<Vec<Mount>, Refusal> {
        let request = PrepareSnapshot {
            snapshotter: snapshotter.into(),
            key: key.into(),
            parent: parent.into(),
        };
        let method = "/containerd.services.snapshots.v1.Snapshots/Prepare";
        Ok(self.call::<_, Mounts>(method, request).await?.mounts)
    }

    /// How a writable snapshot is mounted.
    pub(crate) async fn mounts(&self, snapshotter: &str, key: &str) -> Result<Vec<Mount>, Refusal> {
        let request = BySnapshot {
            snapshotter: snapshotter.into(),
            key: key.into(),
        };
        let method = "/containerd.services.snapshots.v1.Snapshots/Mounts";
        Ok(self.call::<_, Mounts>(method, request).await?.mounts)
    }

    pub(crate) async fn remove_snapshot(
        &self,
        snapshotter: &str,
        key: &str,
    ) -> Result<(), Refusal> {
        let request = BySnapshot {
            snapshotter: snapshotter.into(),
            key: key.into(),
        };
        let method = "/containerd.services.snapshots.v1.Snapshots/Remove";
        self.call::<_, Empty>(method, request).await?;
        Ok(())
    }

    /// How a task is connected; nothing if there is no task.
    pub(crate) async fn process(&self, id: &str) -> Result<Option<Process>, Refusal> {
        let method = "/containerd.services.tasks.v1.Tasks/Get";
        match self.call::<_, OneProcess>(method, of_task(id)).await {
            Ok(found) => Ok(found.process),
            Err(refusal) if refusal.is_not_found() => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    pub(crate) async fn create_task(
        &self,
        id: &str,
        rootfs: Vec<Mount>,
        stdio: Stdio,
    ) -> Result<(), Refusal> {
        let request = CreateTask {
            container_id: id.into(),
            rootfs,
            stdin: stdio.stdin,
            stdout: stdio.stdout,
            stderr: stdio.stderr,
            terminal: stdio.terminal,
        };
        let method = "/containerd.services.tasks.v1.Tasks/Create";
        self.call::<_, Created>(method, request).await?;
        Ok(())
    }

    /// Starts a task; gives its process.
    pub(crate) async fn start_task(&self, id: &str) -> Result<u32, Refusal> {
        let method = "/containerd.services.tasks.v1.Tasks/Start";
        Ok(self.call::<_, Started>(method, of_task(id)).await?.pid)
    }

    /// Stops a task's processes where they are.
    pub(crate) async fn pause_task(&self, id: &str) -> Result<(), Refusal> {
        let method = "/containerd.services.tasks.v1.Tasks/Pause";
        self.call::<_, Empty>(method, of_task(id)).await?;
        Ok(())
    }

    /// Lets them go on.
    pub(crate) async fn resume_task(&self, id: &str) -> Result<(), Refusal> {
        let method = "/containerd.services.tasks.v1.Tasks/Resume";
        self.call::<_, Empty>(method, of_task(id)).await?;
        Ok(())
    }

    /// Ends a task, if there is one, and removes it.
    pub(crate) async fn end_task(&self, id: &str) -> Result<(), Refusal> {
        let kill = KillTask {
            container_id: id.into(),
            signal: sigkill(),
            all: true,
        };
        // One that has ended, or has never run, cannot be killed.
        let method = "/containerd.services.tasks.v1.Tasks/Kill";
        if self.call::<_, Empty>(method, kill).await.is_ok() {
            let method = "/containerd.services.tasks.v1.Tasks/Wait";
            let _ = self.call::<_, Exited>(method, of_task(id)).await;
        }
        let method = "/containerd.services.tasks.v1.Tasks/Delete";
        match self.call::<_, Created>(method, of_task(id)).await {
            Err(refusal) if refusal.is_not_found() => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

fn of_task(id: &str) -> ByContainer {
    ByContainer {
        container_id: id.into(),
    }
}

fn sigkill() -> u32 {
    rustix::process::Signal::KILL.as_raw().unsigned_abs()
}
