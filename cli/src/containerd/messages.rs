// SPDX-License-Identifier: Apache-2.0

//! The messages of containerd's API that are used here, by the field numbers of its
//! `api/services` and `api/types`.
//!
//! A container's record is complete: it is copied, and what is not known here would be lost.
//! Requests have what is said, and answers what is read.

use std::collections::HashMap;

use prost::Message;

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Runtime {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) options: Option<Any>,
}

/// `containerd.services.containers.v1.Container`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(map = "string, string", tag = "2")]
    pub(crate) labels: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub(crate) image: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) runtime: Option<Runtime>,
    #[prost(message, optional, tag = "5")]
    pub(crate) spec: Option<Any>,
    #[prost(string, tag = "6")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "7")]
    pub(crate) snapshot_key: String,
    #[prost(message, optional, tag = "8")]
    pub(crate) created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "9")]
    pub(crate) updated_at: Option<Timestamp>,
    #[prost(map = "string, message", tag = "10")]
    pub(crate) extensions: HashMap<String, Any>,
    #[prost(string, tag = "11")]
    pub(crate) sandbox: String,
}

/// `GetContainerRequest`, `DeleteContainerRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ById {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

/// `CreateContainerRequest`, and the answers to Get and Create.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OneContainer {
    #[prost(message, optional, tag = "1")]
    pub(crate) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListContainers {
    #[prost(string, repeated, tag = "1")]
    pub(crate) filters: Vec<String>,
    /// Ids alone.
    #[prost(bool, tag = "2")]
    pub(crate) quiet: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

/// `containerd.types.Mount`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, tag = "3")]
    pub(crate) target: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PrepareSnapshot {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(string, tag = "3")]
    pub(crate) parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mounts {
    #[prost(message, repeated, tag = "1")]
    pub(crate) mounts: Vec<Mount>,
}

/// `StatSnapshotRequest`, `RemoveSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BySnapshot {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotStat {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<SnapshotInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateTask {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) rootfs: Vec<Mount>,
    #[prost(string, tag = "4")]
    pub(crate) stdin: String,
    #[prost(string, tag = "5")]
    pub(crate) stdout: String,
    #[prost(string, tag = "6")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "7")]
    pub(crate) terminal: bool,
}

/// Start, Pause, Resume, Get and Delete of a task.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ByContainer {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

/// `CreateTaskResponse` and `DeleteResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Created {
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Started {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KillTask {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) signal: u32,
    #[prost(bool, tag = "4")]
    pub(crate) all: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Exited {
    #[prost(uint32, tag = "1")]
    pub(crate) exit_status: u32,
}

/// `containerd.v1.types.Process`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Process {
    #[prost(string, tag = "5")]
    pub(crate) stdin: String,
    #[prost(string, tag = "6")]
    pub(crate) stdout: String,
    #[prost(string, tag = "7")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "8")]
    pub(crate) terminal: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OneProcess {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Process>,
}
