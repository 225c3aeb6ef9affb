// SPDX-License-Identifier: Apache-2.0

//! `crab turns S`: what happened, turn by turn.

use std::collections::BTreeSet;

use crab_store::{
    Class, Cost, Journal, JournalRecord, SandboxId, SandboxStore, TurnId, TurnRecord,
};
use serde::Serialize;

use crate::{
    context::Context,
    error::{CliError, StoreError},
    history::History,
    live::Live,
    output::{NOTHING, cell, count as count_of, duration, or_nothing, size, table, utc, visible},
};

#[derive(Serialize)]
struct Turns {
    sandbox: SandboxId,
    /// The checkpoint that holds the newest state.
    head: Option<TurnId>,
    /// The turn that is open right now.
    open: Option<TurnId>,
    turns: Vec<Turn>,
    /// Everything in the journal that is no turn, and no part of one, in its order.
    events: Vec<JournalRecord>,
    /// Damaged stretches of the journal: so many records or more are lost.
    damaged: usize,
    /// What of its configuration is not followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    config_faults: Vec<String>,
    #[serde(skip)]
    lines: Vec<Line>,
}

/// A turn and what the rest of history says of it.
#[derive(Clone, Serialize)]
pub(crate) struct Turn {
    #[serde(flatten)]
    pub(crate) record: TurnRecord,
    /// Whether the checkpoint that it names is in the store.
    pub(crate) published: bool,
    /// Whether a rollback left it.
    pub(crate) left: bool,
    /// Why its checkpoint could not be taken.
    pub(crate) failed: Option<String>,
    /// Why the checkpoint that it names is not in the store any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) removed: Option<String>,
    /// The names that it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
}

impl Turn {
    pub(crate) fn of(record: &TurnRecord, history: &History, published: &BTreeSet<TurnId>) -> Self {
        let in_store = |turn: TurnId| published.contains(&turn);
        let gone = record.checkpoint.filter(|turn| !in_store(*turn));
        Self {
            removed: gone.and_then(|turn| history.removed.get(&turn).cloned()),
            tags: Vec::new(),
            published: record.checkpoint.is_some_and(in_store),
            left: !history.branch.contains(&record.turn),
            failed: history.failed.get(&record.turn).cloned(),
            record: record.clone(),
        }
    }

    /// What a reader should know of it beyond the figures.
    fn note(&self, head: Option<TurnId>) -> String {
        let record = &self.record;
        let meta = record.meta.iter();
        let tags = self.tags.iter().map(|name| format!("tag {name}"));
        let mut notes: Vec<String> = tags
            .chain(meta.map(|(name, value)| format!("{name}={value}")))
            .collect();
        if let Some(why) = &self.failed {
            notes.push(format!("no checkpoint: {why}"));
        } else if let Some(why) = &self.removed {
            notes.push(format!("checkpoint removed: {why}"));
        } else if record.checkpoint.is_some() && !self.published {
            notes.push("not published yet".to_owned());
        }
        if let Some(why) = &record.degraded {
            notes.push(why.clone());
        }
        if let Some(why) = &record.unobserved {
            notes.push(format!("unobserved: {why}"));
        }
        if self.left {
            notes.push("left by a rollback".to_owned());
        }
        if self.published && head == Some(record.turn) {
            notes.push("newest checkpoint".to_owned());
        }
        notes.join(", ")
    }
}

/// A line of the table.
enum Line {
    Turn(usize),
    Event(usize),
}

pub(crate) async fn run(context: &Context, text_of_id: &str) -> Result<String, CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    let id = sandbox.id().clone();
    let read = || -> Result<_, StoreError> {
        let head = sandbox.head().ok().flatten().map(|manifest| manifest.turn);
        Ok((
            sandbox.journal()?,
            sandbox.checkpoints()?,
            head,
            sandbox.meta()?,
        ))
    };
    let (journal, published, head, meta) = read()
        .map_err(|error| CliError::store(format!("cannot read the history of {id}"), error))?;
    let mut turns = Turns::of(id, &journal, &published, head);
    turns.name(&sandbox);
    turns.config_faults = meta.map(|meta| meta.config_faults).unwrap_or_default();
    // A sandbox that does not answer has no open turn.
    if let Ok(live) = Live::find(&context.config, &turns.sandbox).await {
        turns.open = Some(TurnId(live.status.turn)).filter(|_| live.status.turn_open);
    }
    context.answer(&turns, text)
}

impl Turns {
    /// Adds the names that turns have. One that is damaged is told of by `crab tag`.
    fn name(&mut self, sandbox: &SandboxStore) {
        for (name, tag) in sandbox.tags().unwrap_or_default() {
            let Ok(tag) = tag else { continue };
            let of_it = self.turns.iter_mut();
            for turn in of_it.filter(|turn| turn.record.turn == tag.turn) {
                turn.tags.push(name.to_string());
            }
        }
    }

    fn of(
        sandbox: SandboxId,
        journal: &Journal,
        published: &BTreeSet<TurnId>,
        head: Option<TurnId>,
    ) -> Self {
        let history = History::of(&journal.records);
        let mut all = Self {
            sandbox,
            head,
            open: None,
            turns: Vec::new(),
            events: Vec::new(),
            damaged: journal.damaged,
            config_faults: Vec::new(),
            lines: Vec::new(),
        };
        let recorded: BTreeSet<TurnId> = journal
            .records
            .iter()
            .filter_map(|record| match record {
                JournalRecord::Turn(record) => Some(record.turn),
                _ => None,
            })
            .collect();
        for record in &journal.records {
            if let JournalRecord::Turn(record) = record {
                all.lines.push(Line::Turn(all.turns.len()));
                all.turns.push(Turn::of(record, &history, published));
                continue;
            }
            // What turns came through is `crab events`' to tell.
            if matches!(record, JournalRecord::Step(_)) {
                continue;
            }
            // A failure is a note on its turn's line, if that has one.
            let noted = matches!(record, JournalRecord::CaptureFailed(failed)
                if recorded.contains(&failed.turn));
            // That it began, its turn of the start says, or its restore.
            let said = matches!(record, JournalRecord::Began(_));
            if !noted && !said {
                all.lines.push(Line::Event(all.events.len()));
            }
            all.events.push(record.clone());
        }
        all
    }
}

const HEADER: [&str; 11] = [
    "TURN",
    "TRIGGER",
    "COMMAND",
    "EXIT",
    "CLASS",
    "CHECKPOINT",
    "FILES",
    "BYTES",
    "CAPTURE",
    "FROZEN",
    "NOTE",
];
const RIGHT: [usize; 7] = [0, 3, 5, 6, 7, 8, 9];
const MAX_COMMAND: usize = 44;
const MAX_NOTE: usize = 100;

fn text(turns: &Turns) -> String {
    let rows = turns.lines.iter().map(|line| match line {
        Line::Turn(number) => turn_row(&turns.turns[*number], turns.head),
        Line::Event(number) => event_row(&turns.events[*number]),
    });
    let mut text = table(HEADER, &RIGHT, rows);
    for fault in &turns.config_faults {
        text.push_str(&format!("note: {}\n", visible(fault)));
    }
    if let Some(open) = turns.open {
        text.push_str(&format!("turn {open} is open\n"));
    }
    if turns.damaged > 0 {
        text.push_str("the journal is damaged: some records are missing\n");
    }
    text
}

/// Figures of a checkpoint; nothing where none was taken.
fn cost(class: Class, cost: &Cost) -> [String; 3] {
    if class == Class::None
        && *cost
            == (Cost {
                boundary_us: cost.boundary_us,
                decide_us: cost.decide_us,
                ..Cost::default()
            })
    {
        return [NOTHING; 3].map(str::to_owned);
    }
    [
        size(cost.bytes_stored),
        duration(cost.capture_us),
        duration(cost.frozen_us),
    ]
}

fn turn_row(turn: &Turn, head: Option<TurnId>) -> [String; 11] {
    let record = &turn.record;
    let [bytes, capture, frozen] = cost(record.class, &record.cost);
    [
        record.turn.to_string(),
        record.trigger.as_str().to_owned(),
        cell(&record.command, MAX_COMMAND),
        or_nothing(record.exit),
        record.class.to_string(),
        or_nothing(
            record
                .checkpoint
                .filter(|_| turn.published || (turn.failed.is_none() && turn.removed.is_none())),
        ),
        record.files_changed.to_string(),
        bytes,
        capture,
        frozen,
        cell(&turn.note(head), MAX_NOTE),
    ]
}

fn event_row(record: &JournalRecord) -> [String; 11] {
    let mut row = [const { String::new() }; 11];
    match record {
        JournalRecord::Rollback(back) | JournalRecord::Restore(back) => {
            let verb = match record {
                JournalRecord::Rollback(_) => "rollback",
                _ => "restore",
            };
            row[1] = verb.to_owned();
            row[2] = format!("back to turn {}", back.asked);
            row[5] = back.checkpoint.to_string();
            let with = if back.warm {
                "files under its processes"
            } else if back.processes {
                "files and processes"
            } else {
                "files"
            };
            row[10] = format!("{with}, in {}", duration(back.took_us));
        }
        JournalRecord::CaptureFailed(failed) => {
            row[0] = failed.turn.to_string();
            row[10] = cell(&format!("no checkpoint: {}", failed.reason), MAX_NOTE);
        }
        JournalRecord::Removed(removal) => {
            row[1] = "removed".to_owned();
            let count = removal.turns.len() as u64;
            row[2] = count_of(count, "checkpoint", "checkpoints");
            row[10] = cell(&removal.why, MAX_NOTE);
        }
        JournalRecord::Fork(fork) => {
            row[1] = "fork".to_owned();
            row[2] = format!("of {} at turn {}", fork.from, fork.turn);
        }
        JournalRecord::Ended(ended) => {
            row[1] = "ended".to_owned();
            row[3] = ended.exit.to_string();
            let with = if ended.with_host {
                ", with its host"
            } else {
                ""
            };
            row[10] = format!("at {}{with}", utc(ended.at_ms));
        }
        JournalRecord::Turn(_)
        | JournalRecord::Began(_)
        | JournalRecord::Step(_)
        | JournalRecord::Unknown => {
            row[10] = "a record of a later version of crab".to_owned();
        }
    }
    row
}
