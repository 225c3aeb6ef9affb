// SPDX-License-Identifier: Apache-2.0
//! The Tracer service: requests in, answers out, nothing decided here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use crab_api::tracer::{
    Changes, ChangesRequest, Effects, EffectsRequest, Empty, TracerStatus, UnwatchRequest,
    WatchRequest,
};
use crab_api::tracer_ttrpc::Tracer;
use crab_api::ttrpc::r#async::TtrpcContext;
use crab_api::ttrpc::{self, Code};
use crab_bpf::{CgroupId, Device, Spared};

use crate::state::{Counted, Refusal, State};

#[derive(Clone, Debug)]
pub(crate) struct Service {
    state: Arc<Mutex<State>>,
}

impl Service {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Each operation leaves the state whole, also one that panics halfway:
        // at worst a cgroup stays watched until its shim dies.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Tracer for Service {
    async fn watch(&self, _: &TtrpcContext, request: WatchRequest) -> ttrpc::Result<Effects> {
        let devices: Vec<Device> = request
            .devices
            .iter()
            .map(|&st_dev| Device::from_st_dev(st_dev))
            .collect();
        self.state()
            .watch(
                &request.sandbox,
                CgroupId(request.cgroup_id),
                &devices,
                request.shim_pid,
                request.init_pid,
            )
            .map(answer)
            .map_err(status)
    }

    async fn unwatch(&self, _: &TtrpcContext, request: UnwatchRequest) -> ttrpc::Result<Empty> {
        self.state().unwatch(&request.sandbox);
        Ok(Empty::new())
    }

    async fn effects(&self, _: &TtrpcContext, request: EffectsRequest) -> ttrpc::Result<Effects> {
        self.state()
            .effects(
                &request.sandbox,
                Duration::from_millis(request.count_calls_ms.into()),
                &Spared {
                    pid_namespace: request.spared_pid_namespace,
                    pids: request.spared_pids,
                },
            )
            .map(answer)
            .map_err(status)
    }

    async fn changes(&self, _: &TtrpcContext, request: ChangesRequest) -> ttrpc::Result<Changes> {
        let device = Device::from_st_dev(request.device);
        let told = self
            .state()
            .changes(&request.sandbox, device, &request.mark)
            .map_err(status)?;
        let mut changes = Changes::new();
        changes.mark = told.mark;
        changes.complete = told.inodes.is_some();
        for changed in told.inodes.unwrap_or_default() {
            match changed.nameless {
                true => changes.nameless.push(changed.inode),
                false => changes.inodes.push(changed.inode),
            }
        }
        Ok(changes)
    }

    async fn status(&self, _: &TtrpcContext, _: Empty) -> ttrpc::Result<TracerStatus> {
        let summary = self.state().summary();
        let mut status = TracerStatus::new();
        status.programs = summary.programs.to_owned();
        status.reason = summary.reason;
        status.sandboxes = u32::try_from(summary.sandboxes).unwrap_or(u32::MAX);
        status.uptime_ms = summary.uptime_ms;
        status.lost = summary.lost;
        status.refused = summary.refused;
        Ok(status)
    }
}

fn answer(counted: Counted) -> Effects {
    let mut effects = Effects::new();
    effects.instance = counted.period;
    effects.files = counted.effects.files;
    effects.processes = counted.effects.processes;
    effects.mounts = counted.effects.mounts;
    effects.unseen = counted.effects.unseen;
    effects.lost = counted.effects.lost;
    effects.calls = counted.effects.calls;
    effects.connected = counted.effects.connected;
    effects.listened = counted.effects.listened;
    effects.sent = counted.effects.sent;
    effects
}

fn status(refusal: Refusal) -> ttrpc::Error {
    let code = match refusal {
        Refusal::NotCounting(_) => Code::FAILED_PRECONDITION,
        Refusal::Closing => Code::UNAVAILABLE,
        Refusal::Name(_) | Refusal::Shim(_) => Code::INVALID_ARGUMENT,
        Refusal::Unknown(_) => Code::NOT_FOUND,
        Refusal::Watch(_) => Code::RESOURCE_EXHAUSTED,
        Refusal::Effects(_) | Refusal::Attend(_) => Code::INTERNAL,
    };
    ttrpc::Error::RpcStatus(ttrpc::get_status(code, refusal.to_string()))
}
