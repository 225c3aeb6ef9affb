// SPDX-License-Identifier: Apache-2.0

//! A sandbox of which it is known what each of its checkpoints has to hold.

use std::{cmp::Ordering, collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use crab_store::{DEFAULT_ROOT, SandboxStore, Store};
use serde::{Deserialize, Serialize};

use super::state;
use crate::{
    client::{RunOptions, Runtime},
    command::{Running, Tool},
    counter::{self, Outside},
    crab::{Crab, Turns},
    processes,
    sandbox::{ExecOptions, Sandbox, State},
    testbed::{DEBIAN, Testbed, poll},
};

/// How long what was killed may take to be over.
const LIMIT: Duration = Duration::from_secs(30);

/// What a turn changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Files on disk and in memory.
    Files,
    /// The same, and the memory of a process.
    Full,
}

/// The sandbox. A server in it counts what it is asked, in memory.
#[derive(Debug)]
pub struct Subject {
    crab: Crab,
    sandbox: Sandbox,
    /// What the server had counted in each state; nothing if it was not there.
    counts: BTreeMap<u64, Option<u64>>,
    /// The state in each checkpoint, by its turn; nothing where who made it was killed in the
    /// middle of it.
    known: BTreeMap<u64, Option<u64>>,
    /// The state that it is in.
    now: u64,
    /// A number that no state has had.
    next: u64,
    lost: Vec<String>,
}

/// What of it outlasts this process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Noted {
    name: String,
    counts: BTreeMap<u64, Option<u64>>,
    known: BTreeMap<u64, Option<u64>>,
    now: u64,
    next: u64,
}

impl Subject {
    /// A new one, with a first state.
    pub fn start(testbed: &Testbed, options: RunOptions) -> Result<Self> {
        let mut subject = Self {
            crab: testbed.crab(),
            sandbox: testbed.ctr().run(DEBIAN, options)?,
            counts: BTreeMap::from([(0, None)]),
            known: BTreeMap::new(),
            now: 0,
            next: 1,
            lost: Vec::new(),
        };
        let zero = subject.crab.wait_for_turn(&subject.sandbox, 0)?;
        ensure!(zero.published, "{zero:?}");
        subject.known.insert(0, Some(0));
        subject.serve()?;
        Ok(subject)
    }

    /// All that is known of it, for who goes on after the machine was off.
    pub(super) fn noted(&self) -> Noted {
        Noted {
            name: self.sandbox.name().to_owned(),
            counts: self.counts.clone(),
            known: self.known.clone(),
            now: self.now,
            next: self.next,
        }
    }

    /// Goes on with what was noted. The sandbox need not run.
    pub(super) fn resume(testbed: &Testbed, noted: Noted) -> Self {
        Self {
            crab: testbed.crab(),
            sandbox: Sandbox::new(testbed.ctr(), Runtime::Crab, &noted.name),
            counts: noted.counts,
            known: noted.known,
            now: noted.now,
            next: noted.next,
            lost: Vec::new(),
        }
    }

    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// What is lost, a line each.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// The state that it is in.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The checkpoints whose states are known, oldest first.
    pub fn checkpoints(&self) -> Vec<u64> {
        let known = self.known.iter().filter(|(_, state)| state.is_some());
        known.map(|(turn, _)| *turn).collect()
    }

    fn lose(&mut self, what: String) {
        eprintln!("lost: {what}");
        self.lost.push(what);
    }

    /// Has the server run, as a turn, where it does not.
    pub fn serve(&mut self) -> Result<()> {
        if self.counts[&self.now].is_some() {
            return Ok(());
        }
        let number = self.take_number(Some(0));
        let script = format!("{}\n{}", state::script(number), counter::start(0));
        let (said, turn) = self.crab.turn(&self.sandbox, &["bash", "-c", &script])?;
        said.ok().context("start the server")?;
        ensure!(turn.is_whole(), "no checkpoint with the server: {turn:?}");
        self.enter(turn.number(), number);
        Ok(())
    }

    fn take_number(&mut self, count: Option<u64>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.counts.insert(number, count);
        number
    }

    fn enter(&mut self, turn: u64, number: u64) {
        self.known.insert(turn, Some(number));
        self.now = number;
    }

    /// The next state, and the script that makes it.
    pub(super) fn next(&mut self, kind: Kind) -> (u64, String) {
        let count = self.counts[&self.now];
        let (more, ask) = match (kind, count) {
            (Kind::Full, Some(_)) => (1, "; ask counter count"),
            _ => (0, ""),
        };
        let number = self.take_number(count.map(|count| count + more));
        (number, format!("{}{ask}", state::script(number)))
    }

    /// Goes on to the next state, as a turn whose checkpoint is published; tells its number.
    pub fn turn(&mut self, kind: Kind) -> Result<u64> {
        let (number, script) = self.next(kind);
        let (said, turn) = self.crab.turn(&self.sandbox, &["bash", "-c", &script])?;
        said.ok()?;
        ensure!(turn.published, "{turn:?}");
        self.enter(turn.number(), number);
        Ok(turn.number())
    }

    /// The same, and waits for nothing: the command, and the state to come.
    pub fn turn_only(&mut self, kind: Kind) -> Result<(Running, u64)> {
        let (number, script) = self.next(kind);
        Ok((self.begin(&script)?, number))
    }

    /// Begins a turn with such a script.
    pub(super) fn begin(&self, script: &str) -> Result<Running> {
        let args = ["bash", "-c", script];
        self.sandbox.exec_start(&args, &ExecOptions::new())
    }

    /// That a checkpoint is gone is no loss from now on.
    pub fn forget(&mut self, turn: u64) {
        self.known.remove(&turn);
    }

    /// The pack that a checkpoint has added.
    pub fn pack_of(&self, turn: u64) -> Result<PathBuf> {
        let store = self.store()?;
        let (mut own, mut older) = (Vec::new(), Vec::new());
        for (at, manifest) in store.manifests()? {
            match at.0.cmp(&turn) {
                Ordering::Less => older.extend(manifest?.packs),
                Ordering::Equal => own.extend(manifest?.packs),
                Ordering::Greater => {}
            }
        }
        own.retain(|pack| !older.contains(pack));
        let [pack] = own[..] else {
            bail!("checkpoint {turn} has added {own:?}");
        };
        Ok(self.sandbox.store().join(format!("packs/{pack}.pack")))
    }

    /// The state in a checkpoint.
    pub fn state_of(&self, turn: u64) -> Result<u64> {
        let known = self.known.get(&turn).copied().flatten();
        known.with_context(|| format!("what checkpoint {turn} holds is not known"))
    }

    /// The command line of `crab` for this sandbox, with a step at which it dies.
    pub fn crab_that_dies(&self, point: crab_fault::Point, verb: &[&str]) -> Tool {
        let id = self.sandbox.sandbox_id();
        Tool::new("env")
            .args([format!("{}={point}", crab_fault::CRASH_AT)])
            .args(["crab", verb[0], &id])
            .args(verb[1..].iter().copied())
            .limit(LIMIT)
    }

    /// `crab VERB` for this sandbox, which has to end well.
    pub fn crab(&self, verb: &[&str]) -> Result<serde_json::Value> {
        let id = self.sandbox.sandbox_id();
        self.crab.json(&[&[verb[0], &id], &verb[1..]].concat())
    }

    /// The same, whatever comes of it.
    pub fn crab_only(&self, verb: &[&str]) -> Tool {
        let id = self.sandbox.sandbox_id();
        self.crab.tool(&[&[verb[0], &id], &verb[1..]].concat())
    }

    /// Kills everything that it has, and waits until containerd has cleaned up.
    pub fn crash(&self) -> Result<()> {
        let inside = self.sandbox.crash()?;
        self.sandbox.wait_until_cleaned_up(&inside)
    }

    /// After its shim has died, or is about to: nothing is left of it but the store.
    pub fn wait_for_the_end(&self, shim: u32, inside: &[u32]) -> Result<()> {
        processes::wait_gone(shim, LIMIT)?;
        poll("containerd knows the end", LIMIT, || {
            let state = self.sandbox.state()?;
            Ok(matches!(state, State::Stopped | State::Gone).then_some(()))
        })?;
        self.sandbox.wait_until_cleaned_up(inside)
    }

    /// Nothing is damaged.
    pub fn fsck(&mut self) -> Result<()> {
        let said = self.crab_only(&["fsck", "--json"]).run()?;
        if said.status != 0 {
            self.lose(format!(
                "crab fsck ended with {}: {}{}",
                said.status, said.stdout, said.stderr
            ));
        }
        Ok(())
    }

    fn store(&self) -> Result<SandboxStore> {
        let id = self.sandbox.sandbox_id().parse()?;
        Ok(Store::open(DEFAULT_ROOT)?.sandbox(&id)?)
    }

    fn turns(&self) -> Result<Turns> {
        self.crab.turns(&self.sandbox)
    }

    /// Reads every checkpoint in the store. Each that is known has to be there and to hold what it
    /// did, unless the journal says that it was removed; one that is not has to hold one of
    /// these states. `unjudged`: or any.
    pub fn check_store(&mut self, states: &[u64], unjudged: bool) -> Result<()> {
        let store = self.store()?;
        let mut there = BTreeMap::new();
        for (turn, manifest) in store.manifests()? {
            let state = manifest
                .map_err(Into::into)
                .and_then(|manifest| state::of_checkpoint(&store, &manifest));
            there.insert(turn.0, state);
        }
        let turns = self.turns()?;
        let removed: Vec<u64> = turns.removed().collect();
        let gone = self.known.keys().filter(|turn| !there.contains_key(turn));
        for turn in gone.copied().collect::<Vec<_>>() {
            self.known.remove(&turn);
            if !removed.contains(&turn) {
                self.lose(format!("checkpoint {turn} is gone"));
            }
        }
        for (turn, found) in there {
            let fault = match (&found, self.known.get(&turn)) {
                (_, Some(None)) => None,
                (Ok(number), Some(Some(known))) => {
                    (number != known).then(|| format!("state {number} and not {known}"))
                }
                (Ok(number), None) if states.contains(number) => {
                    self.known.insert(turn, Some(*number));
                    None
                }
                (_, None) if unjudged => {
                    self.known.insert(turn, None);
                    None
                }
                (Ok(number), None) => Some(format!("state {number} and none of {states:?}")),
                (Err(error), _) => Some(format!("{error:#}")),
            };
            if let Some(fault) = fault {
                // Told once.
                self.known.insert(turn, None);
                self.lose(format!("checkpoint {turn} holds {fault}"));
            }
        }
        Ok(())
    }

    /// Brings it back as it was last. That has to be one of these states, and all of it there.
    pub fn restore(&mut self, states: &[u64]) -> Result<()> {
        let head = self.head(states)?;
        let back = match self.crab.restore(&self.sandbox, None) {
            Ok(back) => back,
            Err(error) => {
                self.lose(format!("checkpoint {head} is not restored: {error:#}"));
                self.crab.restore(&self.sandbox, None)?
            }
        };
        ensure!(back["checkpoint"] == head, "{head}: {back}");
        self.compare(head, back["processes"] == true)
    }

    /// The same by `crab restore --all`, of which it is one. Gives what that said.
    pub(super) fn restore_with_all(&mut self, states: &[u64]) -> Result<serde_json::Value> {
        let head = self.head(states)?;
        let said = self.crab.json(&["restore", "--all"])?;
        let id = self.sandbox.sandbox_id();
        let rows = said["sandboxes"].as_array().into_iter().flatten();
        let mut rows = rows.filter(|row| row["sandbox"] == id.as_str());
        let back = rows.next().with_context(|| format!("no {id} in {said}"))?;
        ensure!(back["outcome"] == "restored", "{said}");
        ensure!(back["checkpoint"] == head, "{head}: {said}");
        self.compare(head, back["processes"] == true)?;
        Ok(said)
    }

    /// Its newest checkpoint. That has to be of one of these states.
    fn head(&mut self, states: &[u64]) -> Result<u64> {
        let head = self.turns()?.head.context("it has no checkpoint")?.0;
        let state = self.known.get(&head).copied().flatten();
        if !state.is_some_and(|state| states.contains(&state)) {
            self.lose(format!(
                "its newest state is {state:?} and none of {states:?}"
            ));
        }
        Ok(head)
    }

    /// Brings it back as at a checkpoint.
    pub fn restore_to(&mut self, turn: u64) -> Result<()> {
        let back = self.crab.restore(&self.sandbox, Some(turn))?;
        self.compare(turn, back["processes"] == true)?;
        self.serve()
    }

    /// The newest checkpoint that holds the state of now.
    pub fn newest(&self) -> Result<u64> {
        let mut known = self.known.iter().rev();
        let found = known.find(|(_, state)| **state == Some(self.now));
        let (turn, _) = found.with_context(|| format!("state {} has no checkpoint", self.now))?;
        Ok(*turn)
    }

    /// Looks at it where it goes on: the store is whole, and it is what its newest checkpoint
    /// says.
    pub fn look(&mut self) -> Result<()> {
        self.fsck()?;
        let now = self.now;
        self.check_store(&[now], false)?;
        let newest = self.newest()?;
        let processes = self.counts[&now].is_some();
        self.compare(newest, processes)
    }

    /// Waits for the turn that was begun after `last`, and enters what it made.
    pub fn wait_for(&mut self, last: Option<u64>, number: u64) -> Result<()> {
        let turn = self.crab.wait_for_turn_after(&self.sandbox, last)?;
        ensure!(turn.published, "{turn:?}");
        self.enter(turn.number(), number);
        Ok(())
    }

    /// The newest turn that is recorded.
    pub fn last_turn(&self) -> Result<Option<u64>> {
        self.crab.last_turn(&self.sandbox)
    }

    /// After a command whose turn may have no checkpoint: it has one now, or the next one has it.
    pub(super) fn settle(&mut self, number: u64) -> Result<()> {
        let before = self.now;
        self.now = number;
        self.crab(&["checkpoint"])?;
        self.fsck()?;
        self.check_store(&[before, number], false)?;
        let newest = self.newest()?;
        self.compare(newest, self.counts[&number].is_some())
    }

    /// After a rollback that was over.
    pub(super) fn arrive(&mut self, turn: u64) -> Result<()> {
        let now = self.now;
        self.check_store(&[now], false)?;
        let state = self.known.get(&turn).copied().flatten();
        let processes = state.is_some_and(|state| self.counts[&state].is_some());
        self.compare(turn, processes)
    }

    /// Rolls back to a checkpoint, and compares.
    pub fn roll_back(&mut self, turn: u64) -> Result<()> {
        let back = self.crab.rollback(&self.sandbox, turn)?;
        let now = self.now;
        self.check_store(&[now], false)?;
        self.compare(turn, back["processes"] == true)
    }

    /// Whether the live sandbox is what a checkpoint, with or without processes, has to hold.
    pub fn compare(&mut self, checkpoint: u64, processes: bool) -> Result<()> {
        let verified = self.crab.verify(&self.sandbox, Some(checkpoint))?;
        if verified["same"] != true {
            self.lose(format!("crab verify of {checkpoint}: {verified}"));
        }
        let found = state::of_live(&self.sandbox.root()?);
        let Some(number) = self.known.get(&checkpoint).copied().flatten() else {
            // Whatever it is now.
            self.now = self.take_number(None);
            return Ok(());
        };
        match found {
            Ok(found) if found == number => {}
            found => self.lose(format!(
                "back at checkpoint {checkpoint} it holds {found:?} and not {number}"
            )),
        }
        self.now = number;
        if !processes {
            self.counts.insert(number, None);
        } else if let Some(count) = self.counts[&number] {
            let answer = self.ask();
            if !matches!(answer, Ok(answer) if answer == count) {
                self.lose(format!(
                    "back at checkpoint {checkpoint} its server says {answer:?} and not {count}"
                ));
            }
        }
        Ok(())
    }

    /// What the server has counted, asked past all turns.
    fn ask(&self) -> Result<u64> {
        Outside::of(&self.sandbox)?.tell("hello")?.answer()
    }

    /// After the death of all that there is: the same, of all at once. Gives what `crab restore --all`
    /// said.
    pub(super) fn recover_with_all(&mut self, states: &[u64]) -> Result<serde_json::Value> {
        self.fsck()?;
        self.check_store(states, false)?;
        let said = self.restore_with_all(states)?;
        self.serve()?;
        Ok(said)
    }

    /// After a death: the store is whole, holds what it has to, and gives it back.
    pub fn recover(&mut self, states: &[u64]) -> Result<()> {
        self.fsck()?;
        self.check_store(states, false)?;
        self.restore(states)?;
        // Its history has the turn at which it came back.
        let turns = self.turns()?;
        let head = turns.head.context("it has no checkpoint")?;
        ensure!(
            turns.turns.iter().any(|turn| turn.record.turn == head),
            "it came back at turn {head}, which its journal does not have"
        );
        self.serve()
    }
}
