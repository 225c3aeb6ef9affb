// SPDX-License-Identifier: Apache-2.0

//! Calls of the Task API, straight to a shim: what containerd's own client would never ask.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use containerd_shim_protos::{
    protobuf::Message,
    shim_sync::Client,
    ttrpc::{self, proto::Request},
};
use serde_json::Value;

use crate::sandbox::Sandbox;

/// How long a call may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A shim's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The gRPC code: `NOT_FOUND`, ...
    pub code: String,
    /// In words.
    pub message: String,
}

/// A connection to a container's shim, Crab's or containerd's own.
pub struct ShimClient {
    client: Client,
    service: &'static str,
}

impl ShimClient {
    /// Connects to the shim of a container.
    pub fn of(sandbox: &Sandbox) -> Result<Self> {
        let bundle = sandbox.bundle();
        // That of containerd 2.x, and that of 1.x.
        let answer = fs::read_to_string(bundle.join("bootstrap.json"))
            .or_else(|_| fs::read_to_string(bundle.join("address")));
        let answer = answer.with_context(|| format!("find the shim of {}", sandbox.id()))?;
        Self::started(&answer)
    }

    /// Connects to a shim that was started, by what its `start` has printed.
    pub fn started(answer: &str) -> Result<Self> {
        let (address, version) = if answer.starts_with('{') {
            let params: Value = serde_json::from_str(answer)?;
            let address = params["address"].as_str().context("no address")?;
            (address.to_owned(), params["version"].as_u64())
        } else {
            (answer.trim().to_owned(), Some(2))
        };
        let service = match version {
            Some(2) => "containerd.task.v2.Task",
            Some(3) => "containerd.task.v3.Task",
            other => bail!("{other:?} is no version of the Task API"),
        };
        let client = Client::connect(&address).with_context(|| format!("connect to {address}"))?;
        Ok(Self { client, service })
    }

    /// Calls a method. What the shim denies is the inner error; the outer one is a call
    /// that had no answer.
    pub fn call<A: Message>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<Result<A, Denied>> {
        self.call_within(LIMIT, method, request)
    }

    /// The same with a deadline, which the shim is told.
    pub fn call_within<A: Message>(
        &self,
        limit: Duration,
        method: &str,
        request: &impl Message,
    ) -> Result<Result<A, Denied>> {
        let request = Request {
            service: self.service.to_owned(),
            method: method.to_owned(),
            timeout_nano: limit.as_nanos() as i64,
            payload: request.write_to_bytes()?,
            ..Default::default()
        };
        match self.client.request(request) {
            Ok(response) => Ok(Ok(A::parse_from_bytes(&response.payload)?)),
            Err(ttrpc::Error::RpcStatus(status)) => Ok(Err(Denied {
                code: format!("{:?}", status.code()),
                message: status.message().to_owned(),
            })),
            Err(error) => Err(error).with_context(|| format!("call {method}")),
        }
    }
}
