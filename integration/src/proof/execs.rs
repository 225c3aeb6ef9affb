// SPDX-License-Identifier: Apache-2.0

//! Execs that cost little: straight to the shim, without a client's program and without
//! stdio.

use anyhow::{Error, Result, anyhow};
use containerd_shim_protos::{
    api::{
        DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, StartRequest, StartResponse,
        WaitRequest, WaitResponse,
    },
    protobuf::{MessageField, well_known_types::any::Any},
};
use serde_json::json;

use crate::{
    client::unique,
    sandbox::Sandbox,
    shim_client::{Denied, ShimClient},
};

/// The execs of one sandbox.
pub struct Execs {
    shim: ShimClient,
    id: String,
}

/// One that was started.
#[derive(Debug)]
pub struct Started {
    exec: String,
}

fn denied(denied: Denied) -> Error {
    anyhow!("{}: {}", denied.code, denied.message)
}

impl Execs {
    /// Those of a sandbox.
    pub fn of(sandbox: &Sandbox) -> Result<Self> {
        Ok(Self {
            shim: ShimClient::of(sandbox)?,
            id: sandbox.id().to_owned(),
        })
    }

    /// Starts a command.
    pub fn start(&self, args: &[String]) -> Result<Started> {
        let exec = unique("e");
        let spec = json!({
            "args": args,
            "cwd": "/",
            "env": ["PATH=/bin"],
            "user": {"uid": 0, "gid": 0},
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
            },
        });
        let add = ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.clone(),
            spec: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".into(),
                value: spec.to_string().into_bytes(),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.shim.call::<Empty>("Exec", &add)?.map_err(denied)?;
        let start = StartRequest {
            id: self.id.clone(),
            exec_id: exec.clone(),
            ..Default::default()
        };
        self.shim
            .call::<StartResponse>("Start", &start)?
            .map_err(denied)?;
        Ok(Started { exec })
    }

    /// Waits for its end, and gives its exit status.
    pub fn wait(&self, started: &Started) -> Result<u32> {
        let wait = WaitRequest {
            id: self.id.clone(),
            exec_id: started.exec.clone(),
            ..Default::default()
        };
        let ended: WaitResponse = self.shim.call("Wait", &wait)?.map_err(denied)?;
        Ok(ended.exit_status)
    }

    /// Forgets one that has ended.
    pub fn delete(&self, started: Started) -> Result<()> {
        let delete = DeleteRequest {
            id: self.id.clone(),
            exec_id: started.exec,
            ..Default::default()
        };
        let deleted = self.shim.call::<DeleteResponse>("Delete", &delete)?;
        deleted.map(drop).map_err(denied)
    }
}

/// Those that Docker and containerd give by default, as far as the agent needs them, and
/// that to set attributes which are root's.
const CAPABILITIES: [&str; 9] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_SETFCAP",
    "CAP_SYS_NICE",
    "CAP_SYS_ADMIN",
];
