// SPDX-License-Identifier: Apache-2.0

//! `crab tree S`: the turns of a sandbox and of all that are copies of it, or of which it is
//! a copy, as one tree. Reads the store alone.

mod family;
mod graph;

use std::collections::{BTreeMap, BTreeSet};

use crab_store::{SandboxId, TurnId};
use serde::Serialize;

use self::family::{Line, Node, Parent, Place};
use crate::{
    context::Context,
    error::CliError,
    output::{cell, visible},
};

const WHAT: &str = "draw the tree of";
/// How much of a command is shown.
const MAX_COMMAND: usize = 60;

#[derive(Serialize)]
struct Tree {
    sandbox: SandboxId,
    /// Oldest first, each after the one that it goes on from.
    turns: Vec<Turn>,
}

#[derive(Serialize)]
struct Turn {
    sandbox: SandboxId,
    turn: TurnId,
    /// What it goes on from; nothing where history begins.
    parent: Option<Origin>,
    trigger: Option<&'static str>,
    class: Option<&'static str>,
    command: Option<String>,
    ended_ms: Option<u64>,
    /// Whether its checkpoint is in the store, or it needs none.
    kept: bool,
    /// The sandbox is in this state, or was last.
    head: bool,
    tags: Vec<String>,
    /// The history of its sandbox is gone.
    gone: bool,
}

#[derive(Serialize)]
struct Origin {
    sandbox: SandboxId,
    turn: TurnId,
}

pub(crate) fn run(context: &Context, text_of_id: &str) -> Result<String, CliError> {
    let of = context.sandbox(text_of_id)?.id().clone();
    let what = format!("cannot {WHAT} {of}");
    let store = context.store()?;
    let all = store
        .sandboxes()
        .map_err(|error| CliError::store(&what, error.into()))?;
    let mut lines = BTreeMap::new();
    for id in all {
        // One that has just been removed, or cannot be read, has no part in it; that of the
        // sandbox itself must be readable.
        let journal = match store.sandbox(&id).map(|sandbox| sandbox.journal()) {
            Ok(Ok(journal)) => journal,
            Ok(Err(error)) if id == of => return Err(CliError::store(&what, error.into())),
            _ => continue,
        };
        lines.insert(id, Line::of(journal.records));
    }
    let parents: BTreeMap<SandboxId, Parent> = lines
        .iter()
        .filter_map(|(id, line)| {
            let origin = line.origin.as_ref()?;
            Some((id.clone(), family::parent(id, origin, &lines)))
        })
        .collect();
    let related = family::family(&of, &parents);
    let nodes = family::nodes(&related, &lines, &parents);
    let mut kept = BTreeMap::new();
    for id in &related {
        kept.insert(id.clone(), Kept::of(context, id));
    }
    let turn = |node: &Node| turn(node, &nodes, &lines, &kept);
    let tree = Tree {
        turns: nodes.iter().map(turn).collect(),
        sandbox: of,
    };
    let above: Vec<Option<usize>> = nodes.iter().map(|node| node.parent).collect();
    context.answer(&tree, |tree| text(tree, &above))
}

/// What of a sandbox's turns can be brought back, and what they are called.
#[derive(Default)]
struct Kept {
    checkpoints: BTreeSet<TurnId>,
    tags: BTreeMap<TurnId, Vec<String>>,
}

impl Kept {
    fn of(context: &Context, id: &SandboxId) -> Self {
        let Ok(Ok(sandbox)) = context.store().map(|store| store.sandbox(id)) else {
            return Self::default();
        };
        let mut tags: BTreeMap<TurnId, Vec<String>> = BTreeMap::new();
        for (name, tag) in sandbox.tags().unwrap_or_default() {
            if let Ok(tag) = tag {
                tags.entry(tag.turn).or_default().push(name.to_string());
            }
        }
        Self {
            checkpoints: sandbox.checkpoints().unwrap_or_default(),
            tags,
        }
    }
}

fn turn(
    node: &Node,
    nodes: &[Node],
    lines: &BTreeMap<SandboxId, Line>,
    kept: &BTreeMap<SandboxId, Kept>,
) -> Turn {
    let (sandbox, turn) = node.place.clone();
    let parent = node.parent.map(|at| nodes[at].place.clone());
    let record = node.record;
    let known = kept.get(&sandbox);
    let checkpoint = record.and_then(|record| record.checkpoint);
    let is_kept = |turn: &TurnId| known.is_some_and(|it| it.checkpoints.contains(turn));
    let tags = known.and_then(|known| known.tags.get(&turn).cloned());
    Turn {
        parent: parent.map(|(sandbox, turn): Place| Origin { sandbox, turn }),
        trigger: record.map(|record| record.trigger.as_str()),
        class: record.map(|record| record.class.as_str()),
        command: record.map(|record| record.command.clone()),
        ended_ms: record.map(|record| record.ended_ms),
        kept: checkpoint.as_ref().is_some_and(is_kept),
        head: lines.get(&sandbox).and_then(|line| line.tip) == Some(turn),
        tags: tags.unwrap_or_default(),
        gone: record.is_none(),
        sandbox,
        turn,
    }
}

fn text(tree: &Tree, above: &[Option<usize>]) -> String {
    let mut text = String::new();
    for (line, node) in graph::lines(above) {
        let beside = node.map(|node| beside(&tree.turns[node]));
        let line = format!("{line}{}", beside.unwrap_or_default());
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn beside(turn: &Turn) -> String {
    let mut text = format!("{}@{}", turn.sandbox, turn.turn);
    if turn.gone {
        return text + "  (gone)";
    }
    let mut marks: Vec<&str> = turn.tags.iter().map(String::as_str).collect();
    if turn.head {
        marks.insert(0, "now");
    }
    if !turn.kept {
        marks.push("no checkpoint");
    }
    if !marks.is_empty() {
        text.push_str(&format!(" ({})", visible(&marks.join(", "))));
    }
    let command = turn
        .command
        .as_deref()
        .filter(|command| !command.is_empty());
    let what = command.or(turn.trigger).unwrap_or_default();
    let class = turn.class.unwrap_or_default();
    text + &format!("  {class}  {}", cell(what, MAX_COMMAND))
}
