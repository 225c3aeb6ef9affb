// SPDX-License-Identifier: Apache-2.0

//! The ways to keep what an agent has done, each by what is there for it.
//!
//! | way | after each turn | after a crash |
//! | --- | --- | --- |
//! | chat | - | a fresh container, and the conversation goes on |
//! | chat + files | `docker commit`; `nerdctl commit` for containerd | a container of that image |
//! | restart | - | a fresh container, and every command again |
//! | full | `ctr container checkpoint --rw --task` | `ctr container restore --rw --live` |
//! | Crab | whatever Crab does | `crab restore` |
//!
//! A container of the first four runs under the stock shim.

use std::{
    cell::RefCell,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use crab_store::{Trigger, TurnId, TurnRecord};
use serde_json::Value;

use super::{
    drive::{Driver, Part},
    marks::Marks,
};
use crate::{
    checkpoints::CheckpointImage,
    client::{Client, Runtime, unique},
    command::Tool,
    journal::{store_of, turns_of},
    sandbox::Sandbox,
    testbed::{DEBIAN, Testbed},
};

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing is kept, and nothing brought back: what others are compared with.
    Nothing,
    /// What was said.
    Chat,
    /// That, and the files.
    ChatFiles,
    /// The commands.
    Restart,
    /// Everything, each time.
    Full,
    /// Crab's.
    Crab(Variant),
}

/// Crab, or Crab without one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it comes.
    Whole,
    /// No eBPF: each turn is looked at in full.
    NoInspector,
    /// Each capture freezes the sandbox.
    NoOptimistic,
    /// Captures in the order in which they come, as many at a time as there are.
    NoSchedule,
}

impl Way {
    /// Those that bring something back, in the order in which they are told.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::ChatFiles,
        Self::Restart,
        Self::Full,
        Self::Crab(Variant::Whole),
        Self::Crab(Variant::NoInspector),
        Self::Crab(Variant::NoOptimistic),
        Self::Crab(Variant::NoSchedule),
    ];

    /// As figures are called by it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "stock",
            Self::Chat => "chat",
            Self::ChatFiles => "chat_files",
            Self::Restart => "restart",
            Self::Full => "full",
            Self::Crab(Variant::Whole) => "crab",
            Self::Crab(Variant::NoInspector) => "crab_no_inspector",
            Self::Crab(Variant::NoOptimistic) => "crab_no_optimistic",
            Self::Crab(Variant::NoSchedule) => "crab_no_schedule",
        }
    }

    /// For people: its name, and what it is.
    pub fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::Nothing => ("nothing", "the stock shim, and nothing is kept"),
            Self::Chat => (
                "chat only",
                "nothing is kept but what was said; it goes on in a fresh container",
            ),
            Self::ChatFiles => (
                "chat + files",
                "the files after each turn, by docker commit or nerdctl commit",
            ),
            Self::Restart => (
                "restart",
                "every command again from the beginning, in a fresh container",
            ),
            Self::Full => (
                "full every turn",
                "files and processes after each turn, by ctr container checkpoint --rw --task",
            ),
            Self::Crab(Variant::Whole) => ("Crab", "Crab as it comes"),
            Self::Crab(Variant::NoInspector) => (
                "Crab without inspector",
                "no eBPF: each turn is looked at in full, and any process that may have run is imaged",
            ),
            Self::Crab(Variant::NoOptimistic) => (
                "Crab without optimistic capture",
                "each capture freezes the sandbox",
            ),
            Self::Crab(Variant::NoSchedule) => (
                "Crab without schedule",
                "captures as they come, with no order and no limit",
            ),
        }
    }

    /// Under which shim.
    pub fn runtime(self) -> Runtime {
        match self {
            Self::Crab(_) => Runtime::Crab,
            _ => Runtime::Stock,
        }
    }

    /// Whether there is such a way with a client: Docker does not let containerd's own tool
    /// checkpoint what it has made.
    pub fn is_for(self, client: Client) -> bool {
        self != Self::Full || client != Client::Docker
    }

    /// Whether a run without a fault takes longer for it, or may.
    pub fn costs_time(self) -> bool {
        !matches!(self, Self::Nothing | Self::Chat | Self::Restart)
    }

    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Crab's configuration for it.
    pub fn config(self) -> Option<&'static str> {
        let Self::Crab(variant) = self else {
            return None;
        };
        Some(match variant {
            Variant::Whole => "",
            Variant::NoInspector => "[inspector]\nenabled = false\n",
            Variant::NoOptimistic => "[checkpoints]\noptimistic = false\n",
            Variant::NoSchedule => "[schedule]\npolicy = \"fifo\"\ndumps = 1024\n",
        })
    }
}

/// One sandbox that is played in, and what was kept of it.
pub(super) struct Keeper<'a> {
    way: Way,
    testbed: &'a Testbed,
    part: &'a Part,
    sandbox: Sandbox,
    kept: RefCell<Option<Image>>,
}

/// What was kept by a client, of the end of a turn.
enum Image {
    Everything(CheckpointImage),
    Files(Commit),
}

/// What came back.
pub(super) struct Back<'a> {
    /// What is played in now.
    pub keeper: Keeper<'a>,
    /// The turn whose end it is, from 1; 0 is the state before the first.
    pub at: usize,
}

impl<'a> Keeper<'a> {
    /// A fresh sandbox, to be kept in this way.
    pub(super) fn start(testbed: &'a Testbed, part: &'a Part, way: Way) -> Result<Self> {
        Ok(Self {
            way,
            testbed,
            part,
            sandbox: part.start(testbed, way.runtime())?,
            kept: RefCell::default(),
        })
    }

    /// What is played in.
    pub(super) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// What is played.
    pub(super) fn part(&self) -> &'a Part {
        self.part
    }

    /// Keeps what there is at the end of a turn, where that is the client's to do; how many bytes
    /// that took.
    pub(super) fn keep(&self) -> Result<u64> {
        let image = match (self.way, self.part.client) {
            (Way::ChatFiles, _) => Image::Files(Commit::of(&self.sandbox)?),
            (Way::Full, client) => Image::Everything(client.checkpoint(&self.sandbox)?),
            _ => return Ok(0),
        };
        let bytes = match &image {
            Image::Everything(image) => image.own_bytes()?,
            Image::Files(commit) => commit.bytes,
        };
        *self.kept.borrow_mut() = Some(image);
        Ok(bytes)
    }

    /// After everything has died that was there after `turn` turns, each begun at one of these
    /// times: what there is to bring back.
    pub(super) fn bring_back(
        self,
        turn: usize,
        begins: &[SystemTime],
        marks: Marks,
    ) -> Result<Back<'a>> {
        let Self {
            way,
            testbed,
            part,
            sandbox,
            kept,
        } = self;
        let again = |sandbox: Sandbox, at: usize| Back {
            keeper: Self {
                way,
                testbed,
                part,
                sandbox,
                kept: RefCell::default(),
            },
            at,
        };
        match (way, kept.into_inner()) {
            (Way::Nothing, _) => bail!("nothing was kept"),
            (Way::Crab(_), _) => {
                let turn = match part.driver {
                    Driver::Exec => before_what_was_cut(&turns_of(&sandbox)?),
                    _ => None,
                };
                let restored = testbed.crab().restore(&sandbox, turn)?;
                let at = held(&sandbox, &restored, begins)?;
                Ok(again(sandbox, at))
            }
            (_, Some(image)) => {
                sandbox.remove()?;
                let sandbox = match image {
                    Image::Everything(image) => image.restored()?,
                    Image::Files(commit) => commit.run(part, testbed, way)?,
                };
                Ok(again(sandbox, turn))
            }
            // Before the first turn nothing is kept either.
            _ => {
                sandbox.remove()?;
                let fresh = Self::start(testbed, part, way)?;
                let hand = marks.set_up(part, &fresh.sandbox)?;
                if way == Way::Restart {
                    for n in 0..turn {
                        hand.turn(n, &marks.after(n))?;
                    }
                }
                drop(hand);
                Ok(again(fresh.sandbox, turn))
            }
        }
    }
}

/// A command that waited for input, and had none, has ended a turn of Crab's, and not one of the
/// agent's. Who drives it by execs knows that it was cut off, and goes back to the turn before.
fn before_what_was_cut(turns: &[TurnRecord]) -> Option<u64> {
    let mut kept = turns.iter().rev().filter(|turn| turn.checkpoint.is_some());
    if !is_of_an_exec_that_went_on(kept.next()?) {
        return None;
    }
    let whole = kept.find(|turn| turn.exit.is_some())?;
    Some(whole.turn.0)
}

fn is_of_an_exec_that_went_on(turn: &TurnRecord) -> bool {
    turn.trigger == Trigger::Exec && turn.exit.is_none()
}

/// How many of the turns that began at these times are in what Crab has restored.
fn held(sandbox: &Sandbox, restored: &Value, begins: &[SystemTime]) -> Result<usize> {
    let turn = restored["turn"].as_u64();
    let turn = turn.with_context(|| format!("crab restore tells no turn: {restored}"))?;
    let all = turns_of(sandbox)?;
    let ended = match all.iter().rposition(|record| record.turn.0 == turn) {
        Some(at) => {
            // Turns that left nothing are held by the checkpoint before them.
            let held = |record: &&TurnRecord| record.checkpoint == Some(TurnId(turn));
            let same = all[at + 1..].iter().take_while(held);
            let whole = same.filter(|record| !is_of_an_exec_that_went_on(record));
            whole.last().unwrap_or(&all[at]).ended_ms
        }
        // It died when its checkpoint was whole and the turn not yet in the journal.
        None => {
            let manifest = store_of(sandbox)?.checkpoint_of(TurnId(turn))?;
            manifest.created_ms
        }
    };
    Ok(ended_before(begins, ended))
}

/// How many of these times are not later.
pub(super) fn ended_before(begins: &[SystemTime], milliseconds: u64) -> usize {
    let is_before = |began: &&SystemTime| {
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        began.as_millis() <= u128::from(milliseconds)
    };
    begins.iter().filter(is_before).count()
}

/// What `docker commit`, or `nerdctl commit` for containerd, has made. Removed when dropped.
struct Commit {
    client: Client,
    name: String,
    bytes: u64,
}

impl Commit {
    fn of(sandbox: &Sandbox) -> Result<Self> {
        let client = sandbox.client();
        let name = format!("crab/{}", unique("commit"));
        committing(client, &["commit", sandbox.name(), &name])?;
        let mut commit = Self {
            client,
            name,
            bytes: 0,
        };
        // Beside the image that was there before.
        let size = |of: &str| -> Result<u64> {
            let text = committing(client, &["image", "inspect", "-f", "{{.Size}}", of])?;
            text.parse()
                .with_context(|| format!("the size of {of}: {text}"))
        };
        let base = size(&format!("crab/{DEBIAN}"))?;
        commit.bytes = size(&commit.name)?.saturating_sub(base);
        Ok(commit)
    }

    fn run(&self, part: &Part, testbed: &Testbed, way: Way) -> Result<Sandbox> {
        let image = self.name.trim_start_matches("crab/");
        let options = part.options(testbed, way.runtime());
        part.client.run(image, options)
    }
}

/// What the client says that can commit: ctr cannot.
fn committing(client: Client, args: &[&str]) -> Result<String> {
    let tool = match client {
        Client::Docker => Tool::new("docker"),
        Client::Ctr { namespace, .. } => Tool::new("nerdctl").args(["-n", namespace]),
    };
    tool.args(args.iter().copied()).run()?.text()
}

impl Drop for Commit {
    fn drop(&mut self) {
        // Only its name where a container is of it, which then goes with that.
        let _ = committing(self.client, &["image", "rm", "-f", &self.name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_was_cut_off_is_not_what_is_gone_back_to() {
        let turn = |number, exit, checkpoint: Option<u64>| TurnRecord {
            exit,
            checkpoint: checkpoint.map(TurnId),
            ..TurnRecord::new(TurnId(number), Trigger::Exec)
        };
        let whole = [turn(1, Some(0), Some(1)), turn(2, Some(1), Some(1))];
        assert_eq!(before_what_was_cut(&whole), None);
        let waits = turn(3, None, Some(3));
        let cut = [&whole[..], std::slice::from_ref(&waits)].concat();
        assert_eq!(before_what_was_cut(&cut), Some(2));
        let over = [&cut[..], &[turn(4, Some(137), Some(4))]].concat();
        assert_eq!(before_what_was_cut(&over), None);
        // The one that followed has no checkpoint.
        let lost = [&cut[..], &[turn(4, Some(137), None)]].concat();
        assert_eq!(before_what_was_cut(&lost), Some(2));
        assert_eq!(before_what_was_cut(&[waits]), None);
    }
}
