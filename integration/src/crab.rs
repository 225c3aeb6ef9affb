// SPDX-License-Identifier: Apache-2.0

//! The `crab` command, by its JSON.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use crab_store::{Class, JournalRecord, Trigger, TurnId, TurnRecord};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    command::{Output, Tool},
    sandbox::Sandbox,
    testbed::poll,
};

/// How long a turn may take to be recorded after its exec has ended.
const RECORD_LIMIT: Duration = Duration::from_secs(30);
/// How long a shim expects a crabd that is late.
const LATE_LIMIT: Duration = Duration::from_secs(60);
/// How long shims may take to find a crabd again.
const OBSERVED_LIMIT: Duration = Duration::from_secs(40);
/// How long a checkpoint, a rollback or a restore may take.
const WORK_LIMIT: Duration = Duration::from_secs(120);

/// The command line of `crab`.
#[derive(Clone, Debug, Default)]
pub struct Crab {
    program: Option<String>,
}

/// `crab turns --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Turns {
    /// `<namespace>/<id>`
    pub sandbox: String,
    /// The checkpoint that holds the newest state.
    pub head: Option<TurnId>,
    /// The turn that is open.
    pub open: Option<TurnId>,
    /// The turns, as they were recorded.
    pub turns: Vec<Turn>,
    /// The other records.
    pub events: Vec<JournalRecord>,
    /// Damaged stretches of the journal.
    pub damaged: usize,
}

impl Turns {
    /// The turns whose checkpoints the journal says are removed.
    pub fn removed(&self) -> impl Iterator<Item = u64> {
        let removals = self.events.iter().filter_map(|event| match event {
            JournalRecord::Removed(removal) => Some(&removal.turns),
            _ => None,
        });
        removals.flatten().map(|turn| turn.0)
    }
}

/// A turn, as `crab turns` shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Turn {
    /// Its record.
    #[serde(flatten)]
    pub record: TurnRecord,
    /// Whether its checkpoint is in the store.
    pub published: bool,
    /// Whether a rollback left it.
    pub left: bool,
    /// Why its checkpoint could not be taken.
    pub failed: Option<String>,
}

impl Turn {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.record.turn.0
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.record.class
    }

    /// Whether its checkpoint is in the store and lacks nothing.
    pub fn is_whole(&self) -> bool {
        self.published && self.record.degraded.is_none()
    }

    /// Whether nothing about it can still change.
    fn is_final(&self) -> bool {
        self.record.class == Class::None || self.published || self.failed.is_some()
    }
}

/// One row of `crab ps --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct PsRow {
    /// `<namespace>/<id>`
    pub sandbox: String,
    /// The name that Docker gave it.
    pub name: Option<String>,
    /// `running`, `stopped`, `gone`, ...
    pub state: String,
    /// Its init.
    pub pid: Option<u32>,
    /// The newest turn.
    pub turn: Option<TurnId>,
    /// How far its capture is, if one is under way or waits.
    pub job: Option<String>,
    /// The checkpoint that holds the newest state.
    pub checkpoint: Option<TurnId>,
    /// How many checkpoints are in the store.
    pub checkpoints: u64,
    /// What they take in it.
    pub bytes_stored: u64,
    /// What is not as it should be.
    pub note: Option<String>,
    /// What of its configuration is not followed.
    #[serde(default)]
    pub config_faults: Vec<String>,
}

/// How `crab` refused or failed.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Its exit code.
    pub code: i32,
    /// Its one line.
    pub line: String,
}

impl Crab {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Another `crab` than the one on PATH.
    pub fn at(program: impl Into<String>) -> Self {
        Self {
            program: Some(program.into()),
        }
    }

    /// A command line of `crab`.
    pub fn tool(&self, args: &[&str]) -> Tool {
        Tool::new(self.program.as_deref().unwrap_or("crab"))
            .args(args.iter().copied())
            .limit(WORK_LIMIT)
    }

    /// Runs it, whatever comes.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        self.tool(args).run()
    }

    /// Runs it with `--json`; it has to end well.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        self.parsed(args)
    }

    fn parsed<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        let said = self.tool(args).args(["--json"]).run()?.ok()?;
        serde_json::from_str(&said.stdout)
            .with_context(|| format!("{} printed {}", said.command, said.stdout))
    }

    /// Runs it; it has to fail, with nothing on stdout and one line of its form.
    pub fn refusal(&self, args: &[&str]) -> Result<Refusal> {
        let said = self.run(args)?;
        ensure!(
            said.status != 0,
            "{} did not fail: {}",
            said.command,
            said.stdout
        );
        ensure!(
            said.stdout.is_empty(),
            "{} printed {}",
            said.command,
            said.stdout
        );
        let line = said.stderr.trim_end_matches('\n');
        let one = line.starts_with("crab: ") && line.lines().count() == 1;
        ensure!(one, "{} said {line:?}", said.command);
        Ok(Refusal {
            code: said.status,
            line: line.to_owned(),
        })
    }

    /// `crab ps`.
    pub fn ps(&self) -> Result<Vec<PsRow>> {
        #[derive(Deserialize)]
        struct Ps {
            sandboxes: Vec<PsRow>,
        }
        Ok(self.parsed::<Ps>(&["ps"])?.sandboxes)
    }

    /// The row of one sandbox.
    pub fn ps_of(&self, sandbox: &Sandbox) -> Result<PsRow> {
        let id = sandbox.sandbox_id();
        let mut rows = self.ps()?.into_iter();
        rows.find(|row| row.sandbox == id)
            .with_context(|| format!("crab ps does not show {id}"))
    }

    /// `crab turns`.
    pub fn turns(&self, sandbox: &Sandbox) -> Result<Turns> {
        self.parsed(&["turns", &sandbox.sandbox_id()])
    }

    /// `crab show`.
    pub fn show(&self, sandbox: &Sandbox, turn: u64) -> Result<Value> {
        self.json(&["show", &sandbox.sandbox_id(), &turn.to_string()])
    }

    /// `crab checkpoint`.
    pub fn checkpoint(&self, sandbox: &Sandbox) -> Result<Value> {
        self.json(&["checkpoint", &sandbox.sandbox_id()])
    }

    /// `crab rollback`.
    pub fn rollback(&self, sandbox: &Sandbox, turn: u64) -> Result<Value> {
        self.json(&[
            "rollback",
            &sandbox.sandbox_id(),
            "--turn",
            &turn.to_string(),
        ])
    }

    /// `crab rollback --cold`: with other processes.
    pub fn rollback_cold(&self, sandbox: &Sandbox, turn: u64) -> Result<Value> {
        let (id, turn) = (sandbox.sandbox_id(), turn.to_string());
        let done = self.json(&["rollback", &id, "--turn", &turn, "--cold"])?;
        ensure!(done["warm"] == false, "{done}");
        Ok(done)
    }

    /// `crab rollback --verify`, which has to give what the checkpoint has.
    pub fn rollback_verified(&self, sandbox: &Sandbox, turn: u64) -> Result<Value> {
        let (id, turn) = (sandbox.sandbox_id(), turn.to_string());
        let done = self.json(&["rollback", &id, "--turn", &turn, "--verify"])?;
        ensure!(done["verified"]["same"] == true, "{done}");
        Ok(done)
    }

    /// `crab verify`: what differs from the end of a turn, or from the newest checkpoint.
    pub fn verify(&self, sandbox: &Sandbox, turn: Option<u64>) -> Result<Value> {
        let (id, turn) = (sandbox.sandbox_id(), turn.map(|turn| turn.to_string()));
        let mut args = vec!["verify", &id, "--json"];
        if let Some(turn) = &turn {
            args.extend(["--turn", turn]);
        }
        let said = self.run(&args)?;
        let found: Value = serde_json::from_str(&said.stdout)
            .with_context(|| format!("{} printed {}{}", said.command, said.stdout, said.stderr))?;
        let same = found["same"] == true;
        ensure!(
            said.status == if same { 0 } else { 5 },
            "{}: {found}",
            said.status
        );
        Ok(found)
    }

    /// `crab rollback`, which has to refuse.
    pub fn rollback_refusal(&self, sandbox: &Sandbox, turn: u64) -> Result<Refusal> {
        let (id, turn) = (sandbox.sandbox_id(), turn.to_string());
        self.refusal(&["rollback", &id, "--turn", &turn])
    }

    /// `crab restore`.
    pub fn restore(&self, sandbox: &Sandbox, turn: Option<u64>) -> Result<Value> {
        let id = sandbox.sandbox_id();
        match turn {
            None => self.json(&["restore", &id]),
            Some(turn) => self.json(&["restore", &id, "--turn", &turn.to_string()]),
        }
    }

    /// Waits until a turn is recorded and its checkpoint published, or failed.
    pub fn wait_for_turn(&self, sandbox: &Sandbox, turn: u64) -> Result<Turn> {
        let what = format!("turn {turn} of {} is recorded", sandbox.name());
        self.wait(sandbox, &what, |found| found.number() == turn)
    }

    /// The same for the first turn after one.
    pub fn wait_for_turn_after(&self, sandbox: &Sandbox, turn: Option<u64>) -> Result<Turn> {
        let what = format!("a turn after {turn:?} of {} is recorded", sandbox.name());
        self.wait(sandbox, &what, |found| Some(found.number()) > turn)
    }

    fn wait(&self, sandbox: &Sandbox, what: &str, is_it: impl Fn(&Turn) -> bool) -> Result<Turn> {
        poll(what, RECORD_LIMIT, || {
            let turns = self.turns(sandbox)?.turns;
            Ok(turns
                .into_iter()
                .find(|turn| is_it(turn) && turn.is_final()))
        })
    }

    /// The number of the newest turn that is recorded.
    pub fn last_turn(&self, sandbox: &Sandbox) -> Result<Option<u64>> {
        let turns = self.turns(sandbox)?.turns;
        Ok(turns.iter().map(Turn::number).max())
    }

    /// Runs one command as a turn of its own, and waits for the turn's record. No
    /// other exec may be running, or it would be part of that one's turn.
    pub fn turn(&self, sandbox: &Sandbox, args: &[&str]) -> Result<(Output, Turn)> {
        // By the clock: the turn before may not be recorded yet.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let said = sandbox.exec(args)?;
        let what = format!("the turn of {} is recorded", said.command);
        let turn = self.wait(sandbox, &what, |found| {
            // What is tried again may come in between.
            found.record.began_ms >= now && found.record.trigger != Trigger::Retry
        })?;
        Ok((said, turn))
    }

    /// Waits until turns are observed again: the shims try to, if not at once.
    pub fn wait_until_observed(&self, sandbox: &Sandbox) -> Result<()> {
        poll("turns are observed again", OBSERVED_LIMIT, || {
            let turn = self.turn_of(sandbox, Class::None, "true")?;
            Ok(turn.record.unobserved.is_none().then_some(()))
        })
    }

    /// Waits, without a turn that would ask for it, until a crabd that came late watches the
    /// sandbox.
    pub fn wait_until_watched(&self, sandbox: &Sandbox) -> Result<()> {
        let words = format!("watching sandbox={:?}", sandbox.sandbox_id());
        poll("crabd watches it", LATE_LIMIT, || {
            let log = fs::read_to_string("/run/crab/crabd.log").context("read crabd's log")?;
            Ok(log.contains(&words).then_some(()))
        })
    }

    /// A shell script as a turn of its own, which has to end well and to be of
    /// this class.
    pub fn turn_of(&self, sandbox: &Sandbox, class: Class, script: &str) -> Result<Turn> {
        let (said, turn) = self.turn(sandbox, &["sh", "-c", script])?;
        said.ok()?;
        if turn.class() != class {
            bail!(
                "turn {} ({script}) is {} and not {class}: {}",
                turn.number(),
                turn.class(),
                turn.record.reason
            );
        }
        Ok(turn)
    }
}
