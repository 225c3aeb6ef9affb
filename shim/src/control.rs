// SPDX-License-Identifier: Apache-2.0
//! The Sandbox service: what `crab` asks of a shim.

mod verification;

use std::collections::HashMap;

use async_trait::async_trait;
use crab_api::{
    sandbox::{
        BeginTurnRequest, CheckpointRequest, CheckpointResponse, CollectRequest, CollectResponse,
        DryRunRequest, DryRunResponse, EndTurnRequest, RollbackRequest, RollbackResponse,
        SandboxStatus, StatusRequest, TurnHinted, Verification, VerifyRequest,
        collect_response::Removed,
    },
    sandbox_ttrpc::Sandbox,
};
use crab_store::{Limits, MAX_META, MAX_META_NAME, MAX_META_VALUE, TurnId};
use ttrpc::{Code, r#async::TtrpcContext, error::Result};

use crate::{
    capture::micros,
    container::Phase,
    containers::Containers,
    dry_run::DryRun,
    sandbox::{Container, blocking},
    task::refuse,
    turns::{Meta, RollbackWish, Turns},
};

/// The Sandbox service of one shim.
pub(crate) struct Control {
    pub(crate) containers: Containers,
}

fn turns(container: &Container) -> Result<&Turns> {
    container
        .turns()
        .ok_or_else(|| refuse(Code::FAILED_PRECONDITION, "the container is being created"))
}

fn running(container: &Container) -> Result<()> {
    match container.processes.init()? {
        Phase::Running(_) => Ok(()),
        phase => Err(refuse(
            Code::FAILED_PRECONDITION,
            format!("the sandbox is {:?}, not running", phase.status()).to_lowercase(),
        )),
    }
}

/// What a hint says, if it is within its bounds.
fn meta(said: HashMap<String, String>) -> Result<Meta> {
    let refused = |why: String| Err(refuse(Code::INVALID_ARGUMENT, why));
    if said.len() > MAX_META {
        return refused(format!("more than {MAX_META} entries of metadata"));
    }
    for (name, value) in &said {
        if name.is_empty() || name.len() > MAX_META_NAME || value.len() > MAX_META_VALUE {
            return refused(format!(
                "a name of metadata has 1 to {MAX_META_NAME} bytes, and a value {MAX_META_VALUE} at most"
            ));
        }
    }
    Ok(said.into_iter().collect())
}

/// What a task's answer becomes that is an error.
fn failed(error: anyhow::Error) -> ttrpc::Error {
    refuse(Code::FAILED_PRECONDITION, format!("{error:#}"))
}

fn hinted(turn: anyhow::Result<TurnId>) -> Result<TurnHinted> {
    let turn = turn.map_err(failed)?;
    Ok(TurnHinted {
        turn: turn.0,
        ..Default::default()
    })
}

#[async_trait]
impl Sandbox for Control {
    async fn status(&self, _: &TtrpcContext, req: StatusRequest) -> Result<SandboxStatus> {
        let container = self.containers.named(&req.id)?;
        let status = turns(&container)?.status();
        let phase = container.processes.init()?;
        Ok(SandboxStatus {
            sandbox: container.id.to_string(),
            state: phase.word().into(),
            pid: phase.pid() as u32,
            turn: status.turn,
            turn_open: status.open,
            capturing: status.capturing,
            checkpoint: status.checkpoint.map_or(0, |turn| turn.0),
            has_checkpoint: status.checkpoint.is_some(),
            unobserved: status.unobserved.unwrap_or_default(),
            bundle: container.bundle.dir().display().to_string(),
            pause: container.bundle.is_pause(),
            config_faults: container.config_faults.clone(),
            ..Default::default()
        })
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        req: CheckpointRequest,
    ) -> Result<CheckpointResponse> {
        let container = self.containers.named(&req.id)?;
        running(&container)?;
        let done = turns(&container)?.checkpoint().await.map_err(failed)?;
        Ok(CheckpointResponse {
            turn: done.turn.0,
            class: done.class.to_string(),
            degraded: done.degraded.unwrap_or_default(),
            bytes: done.cost.bytes_stored,
            capture_us: done.cost.capture_us,
            ..Default::default()
        })
    }

    async fn dry_run(&self, _: &TtrpcContext, req: DryRunRequest) -> Result<DryRunResponse> {
        let container = self.containers.named(&req.id)?;
        running(&container)?;
        let turns = turns(&container)?;
        let found = async {
            turns.can_checkpoint().await?;
            let container = container.clone();
            blocking(move || DryRun::of(&container)).await
        };
        let found = found.await.map_err(failed)?;
        Ok(DryRunResponse {
            class: found.class.to_string(),
            reason: found.reason,
            obstacles: found.obstacles,
            left_out: found.left_out.unwrap_or_default(),
            ..Default::default()
        })
    }

    async fn rollback(&self, _: &TtrpcContext, req: RollbackRequest) -> Result<RollbackResponse> {
        let container = self.containers.named(&req.id)?;
        running(&container)?;
        let done = turns(&container)?
            .roll_back(RollbackWish {
                turn: TurnId(req.turn),
                verify: req.verify,
                cold: req.cold,
            })
            .await
            .map_err(failed)?;
        Ok(RollbackResponse {
            checkpoint: done.checkpoint.0,
            processes: done.processes,
            pid: done.pid as u32,
            took_us: micros(done.took),
            warm: done.cold_because.is_none(),
            cold_because: done.cold_because.unwrap_or_default(),
            secured_us: micros(done.secured),
            stood_us: micros(done.stood),
            verification: done.verified.map(verification::told).into(),
            ..Default::default()
        })
    }

    async fn verify(&self, _: &TtrpcContext, req: VerifyRequest) -> Result<Verification> {
        let container = self.containers.named(&req.id)?;
        running(&container)?;
        let turn = req.has_turn.then_some(TurnId(req.turn));
        let done = turns(&container)?.verify(turn).await.map_err(failed)?;
        Ok(verification::told(done))
    }

    async fn begin_turn(&self, _: &TtrpcContext, req: BeginTurnRequest) -> Result<TurnHinted> {
        let container = self.containers.named(&req.id)?;
        running(&container)?;
        hinted(turns(&container)?.hint_begin(meta(req.meta)?).await)
    }

    async fn end_turn(&self, _: &TtrpcContext, req: EndTurnRequest) -> Result<TurnHinted> {
        let container = self.containers.named(&req.id)?;
        hinted(turns(&container)?.hint_end(meta(req.meta)?).await)
    }

    async fn collect(&self, _: &TtrpcContext, req: CollectRequest) -> Result<CollectResponse> {
        let container = self.containers.named(&req.id)?;
        let own = container.retention();
        let limits = Limits {
            count: req.keep.or(own.count),
            age_ms: req.max_age_ms.or(own.age_ms),
            bytes: req.max_bytes.or(own.bytes),
        };
        let done = turns(&container)?.collect(limits).await.map_err(failed)?;
        let removed = done.removed.into_iter().map(|(turn, why)| Removed {
            turn: turn.0,
            why,
            ..Default::default()
        });
        Ok(CollectResponse {
            removed: removed.collect(),
            kept: done.kept,
            bytes_before: done.bytes_before,
            bytes_freed: done.bytes_freed,
            packs_removed: done.packs_removed,
            packs_replaced: done.packs_replaced,
            postponed: done.postponed.unwrap_or_default(),
            ..Default::default()
        })
    }
}
