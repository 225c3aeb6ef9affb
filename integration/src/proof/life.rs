// SPDX-License-Identifier: Apache-2.0

//! One sandbox's life: its turns one after the other, each with the truth before and after
//! it, and what Crab's journal says of it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crab_store::{JournalRecord, SandboxId, SandboxStore, Store, TurnRecord};

use super::{
    execs::{Execs, Started},
    judge::{Judgement, judge},
    plan::{Plan, Planner},
    truth::Truth,
};
use crate::{
    client::{Client, RunOptions},
    sandbox::Sandbox,
    testbed::{BUSYBOX, patient},
};

/// The program that acts.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));

/// How long a turn may take to be written down.
const LIMIT: Duration = Duration::from_secs(30);

/// A sandbox with the agent in it.
pub struct Life {
    sandbox: Sandbox,
    execs: Execs,
    store: SandboxStore,
    root: PathBuf,
    init: u32,
    newest: u64,
    before: Truth,
}

/// A turn and how it came out.
#[derive(Debug)]
pub struct Lived {
    /// What it did.
    pub plan: Plan,
    /// What Crab wrote down.
    pub record: TurnRecord,
    /// How long after the end of its last exec that could be read.
    pub recorded_after: Duration,
    /// Whether that is so.
    pub judgement: Judgement,
}

impl Life {
    /// Starts a sandbox.
    pub fn begin(client: Client, options: RunOptions) -> Result<Self> {
        let sandbox = client.run(BUSYBOX, options)?;
        let init = sandbox.pid()?;
        let root = PathBuf::from(format!("/proc/{init}/root"));
        let agent = root.join("agent");
        fs::write(&agent, AGENT).with_context(|| format!("write {}", agent.display()))?;
        fs::set_permissions(&agent, Permissions::from_mode(0o755))?;
        let id = SandboxId::new(sandbox.client().namespace(), sandbox.id())?;
        let mut life = Self {
            execs: Execs::of(&sandbox)?,
            store: Store::open("/var/lib/crab")?.sandbox(&id)?,
            root,
            init,
            newest: 0,
            before: Truth::of(init)?,
            sandbox,
        };
        life.turn(Planner::first())?;
        Ok(life)
    }

    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// How it is now, as of the end of the newest turn.
    pub fn truth(&self) -> &Truth {
        &self.before
    }

    /// Starts one of a turn's execs.
    pub fn start(&self, plan: &Plan, exec: usize) -> Result<Started> {
        let mut args = vec!["/agent".to_owned()];
        args.extend(plan.words(exec));
        self.execs.start(&args)
    }

    /// Lives one turn.
    pub fn turn(&mut self, plan: Plan) -> Result<Lived> {
        for outside in &plan.outside {
            outside.act(&self.root);
        }
        let started = (0..plan.execs.len()).map(|exec| self.start(&plan, exec));
        let started: Vec<Started> = started.collect::<Result<_>>()?;
        for exec in &started {
            let status = self.execs.wait(exec).with_context(|| plan.to_string())?;
            ensure!(status == 0, "the agent ended with {status}: {plan}");
        }
        let ended = Instant::now();
        let recorded = self.recorded(self.newest + 1);
        let record = recorded.with_context(|| plan.to_string())?;
        let recorded_after = ended.elapsed();
        self.newest = record.turn.0;
        for exec in started {
            self.execs.delete(exec)?;
        }
        let after = Truth::of(self.init)?;
        let judgement = judge(&record, &after.since(&self.before));
        self.before = after;
        Ok(Lived {
            plan,
            record,
            recorded_after,
            judgement,
        })
    }

    /// What the journal says of a turn, once it does.
    fn recorded(&self, turn: u64) -> Result<TurnRecord> {
        let deadline = Instant::now() + patient(LIMIT);
        loop {
            let records = self.store.journal()?.records;
            let of_turn = records.into_iter().rev().find_map(|record| match record {
                JournalRecord::Turn(record) if record.turn.0 >= turn => Some(record),
                _ => None,
            });
            match of_turn {
                Some(record) if record.turn.0 == turn => return Ok(record),
                Some(record) => bail!("turn {} follows turn {}", record.turn, turn - 1),
                None if Instant::now() > deadline => {
                    bail!("turn {turn} of {} is not recorded", self.sandbox.id());
                }
                None => thread::sleep(Duration::from_micros(300)),
            }
        }
    }
}
