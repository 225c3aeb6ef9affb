// SPDX-License-Identifier: Apache-2.0

//! `crab verify S`: whether a live sandbox is as a checkpoint has it, and what differs.

use crab_api::{
    sandbox::{PathDifference, ProcessDifference, Verification, VerifyRequest},
    ttrpc::context,
};
use crab_store::{SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::CliError,
    live::{Live, WORK_TIMEOUT, refusal},
    named::TurnName,
    output::{count, duration, visible},
    progress::{Phase, waiting},
};

const WHAT: &str = "verify";

#[derive(Serialize)]
struct Asked {
    sandbox: SandboxId,
    #[serde(flatten)]
    compared: Compared,
}

/// What came of comparing a live sandbox with a checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    /// The turn whose checkpoint it was compared with.
    checkpoint: TurnId,
    pub(crate) same: bool,
    paths: u64,
    paths_differing: u64,
    /// The first of those.
    differences: Vec<Path>,
    processes: u64,
    process_differences: Vec<Process>,
    /// `same`, `differs`, or `not compared: ...`.
    memory: String,
    /// What the checkpoint itself lacks.
    degraded: Option<String>,
    frozen_us: u64,
    took_us: u64,
}

#[derive(Debug, Serialize)]
struct Path {
    path: String,
    change: String,
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    what: String,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    comm: String,
    change: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    what: Vec<String>,
}

impl From<Verification> for Compared {
    fn from(said: Verification) -> Self {
        let path = |it: PathDifference| Path {
            path: it.path,
            change: it.change,
            kind: it.kind,
            what: it.what,
        };
        let process = |it: ProcessDifference| Process {
            pid: it.pid,
            comm: it.comm,
            change: it.change,
            what: it.what,
        };
        Self {
            checkpoint: TurnId(said.checkpoint),
            same: said.same,
            paths: said.paths,
            paths_differing: said.paths_differing,
            differences: said.differences.into_iter().map(path).collect(),
            processes: said.processes,
            process_differences: said.process_differences.into_iter().map(process).collect(),
            memory: said.memory,
            degraded: Some(said.degraded).filter(|why| !why.is_empty()),
            frozen_us: said.frozen_us,
            took_us: said.took_us,
        }
    }
}

impl Compared {
    /// For people: a line that sums it up, and one for each difference.
    pub(crate) fn text(&self, sandbox: &SandboxId) -> String {
        let checkpoint = self.checkpoint;
        let looked_at = format!(
            "compared {}, {}, memory {}; {}",
            count(self.paths, "path", "paths"),
            count(self.processes, "process", "processes"),
            visible(&self.memory),
            duration(self.took_us)
        );
        let mut text = match self.same {
            true => format!("{sandbox} is as at checkpoint {checkpoint} ({looked_at})\n"),
            false => format!("{sandbox} has changed since checkpoint {checkpoint} ({looked_at})\n"),
        };
        if let Some(degraded) = &self.degraded {
            text.push_str(&format!("the checkpoint has {}\n", visible(degraded)));
        }
        for it in &self.differences {
            let mut line = format!("{} {}", sign(&it.change), visible(&it.path));
            if it.kind != "file" {
                line.push_str(&format!(" ({})", visible(&it.kind)));
            }
            if !it.what.is_empty() {
                line.push_str(&format!(": {}", visible(&it.what)));
            }
            text.push_str(&line);
            text.push('\n');
        }
        let untold = self
            .paths_differing
            .saturating_sub(self.differences.len() as u64);
        if untold > 0 {
            text.push_str(&format!("and {untold} more paths\n"));
        }
        for it in &self.process_differences {
            let (sign, comm) = (sign(&it.change), visible(&it.comm));
            text.push_str(&format!("{sign} process {} ({comm})", it.pid));
            if !it.what.is_empty() {
                let what: Vec<String> = it.what.iter().map(|thing| visible(thing)).collect();
                text.push_str(&format!(": {}", what.join("; ")));
            }
            text.push('\n');
        }
        text
    }
}

fn sign(change: &str) -> char {
    match change {
        "added" | "started" => '+',
        "removed" | "ended" => '-',
        _ => '~',
    }
}

/// The text, and whether it is the same.
pub(crate) async fn run(
    context: &Context,
    text_of_id: &str,
    turn: Option<&TurnName>,
) -> Result<(String, bool), CliError> {
    let id = context.sandbox_id(text_of_id)?;
    context.require_root(WHAT, &id)?;
    let sandbox = id.to_string();
    let turn = turn
        .map(|turn| turn.within(context, &sandbox))
        .transpose()?;
    let live = Live::require(&context.config, WHAT, &id).await?;
    let request = VerifyRequest {
        id: id.id().into(),
        has_turn: turn.is_some(),
        turn: turn.map_or(0, |turn| turn.0),
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let phase = Phase::new(format!("comparing {id}"));
    let said = waiting(context, &phase, live.client.verify(timeout, &request))
        .await
        .map_err(|error| refusal(WHAT, &id, &error))?;
    let asked = Asked {
        sandbox: id,
        compared: said.into(),
    };
    let text = context.answer(&asked, |asked| asked.compared.text(&asked.sandbox))?;
    Ok((text, asked.compared.same))
}
