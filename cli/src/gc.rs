// SPDX-License-Identifier: Apache-2.0

//! `crab gc [S]`: removing what is not to be kept.
//!
//! Who writes to a sandbox's history removes from it. Of one that is live that is its shim,
//! which is asked; of one that is gone it is `crab` itself.

use std::collections::{BTreeMap, BTreeSet};

use crab_api::{sandbox::CollectRequest, ttrpc::context};
use crab_store::{Collected, Limits, OpenError, SandboxId, SandboxStore, Store, TurnId, Wanted};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::{
    context::Context,
    error::{CliError, StoreError},
    live::{Live, NoAnswer, WORK_TIMEOUT, refusal},
    output::{NOTHING, cell, count, now_ms, size, table, visible},
    progress::{Phase, waiting},
    stoppable::joined,
};

const WHAT: &str = "remove checkpoints of";

/// What the user says of limits.
pub(crate) struct Said {
    pub(crate) limits: Limits,
    pub(crate) dry_run: bool,
}

#[derive(Serialize)]
struct Gc {
    dry_run: bool,
    /// How many histories are gone that killed processes had left half made or half removed.
    swept: u64,
    sandboxes: Vec<Row>,
    /// Of all sandboxes.
    bytes_freed: u64,
}

#[derive(Serialize)]
struct Row {
    sandbox: SandboxId,
    #[serde(flatten)]
    done: Collected,
    /// Why nothing was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// The text to print, and whether everything was done.
pub(crate) async fn run(
    context: &Context,
    text_of_id: Option<&str>,
    said: &Said,
) -> Result<(String, bool), CliError> {
    let phase = Phase::new("looking at what is kept");
    let rows = rows(context, text_of_id, said, &phase);
    let (rows, swept) = waiting(context, &phase, rows).await?;
    let gc = Gc {
        dry_run: said.dry_run,
        swept,
        bytes_freed: rows.iter().map(|row| row.done.bytes_freed).sum(),
        sandboxes: rows,
    };
    let well = gc.sandboxes.iter().all(|row| row.failed.is_none());
    Ok((context.answer(&gc, text)?, well))
}

async fn rows(
    context: &Context,
    text_of_id: Option<&str>,
    said: &Said,
    phase: &Phase,
) -> Result<(Vec<Row>, u64), CliError> {
    let store = context.store()?;
    let mut rows = Vec::new();
    let mut swept = 0;
    match text_of_id {
        Some(text) => {
            let sandbox = context.sandbox(text)?;
            phase.now(sandbox.id());
            let done = collect(
                context,
                &store,
                &sandbox,
                said,
                limits(context, &sandbox, said),
            );
            rows.push(Row::of(sandbox.id(), Ok(done.await?)));
        }
        None => {
            if !said.dry_run && rustix::process::geteuid().is_root() {
                swept = sweep(&store);
            }
            let sandboxes = all(&store)?;
            for (number, sandbox) in sandboxes.iter().enumerate() {
                phase.now(sandbox.id());
                phase.at(number, sandboxes.len());
                let limits = limits(context, sandbox, said);
                let done = collect(context, &store, sandbox, said, limits).await;
                // One that cannot be read must not keep the others from being removed from.
                rows.push(Row::of(sandbox.id(), done));
            }
            phase.now("the limit of the host");
            phase.at(sandboxes.len(), sandboxes.len());
            host_limit(context, &store, said, &mut rows).await;
        }
    }
    Ok((rows, swept))
}

/// Removes what killed processes have left beside the sandboxes.
/// What cannot be removed is no reason not to remove anything else.
fn sweep(store: &Store) -> u64 {
    let (swept, failed) = store.sweep();
    if let Some(error) = failed {
        eprintln!("crab: what a killed process has left is still there: {error}");
    }
    swept
}

/// Every sandbox in the store.
pub(crate) fn all(store: &Store) -> Result<Vec<SandboxStore>, CliError> {
    let failed = |error: OpenError| CliError::store("cannot list the sandboxes", error.into());
    let ids = store.sandboxes().map_err(failed)?.into_iter();
    ids.filter_map(|id| match store.sandbox(&id) {
        // Removed just now.
        Err(OpenError::NoSandbox(_)) => None,
        found => Some(found.map_err(failed)),
    })
    .collect()
}

/// What is kept of a sandbox: as the user says, else the less of what it itself and the host
/// keep. The host may have become stricter since it began.
fn limits(context: &Context, sandbox: &SandboxStore, said: &Said) -> Limits {
    let host = &context.config.retention;
    let own = sandbox.meta().ok().flatten().map(|meta| meta.limits);
    let kept = own.unwrap_or_default().stricter(Limits {
        count: host.count(),
        age_ms: host.age_ms(),
        bytes: host.bytes(),
    });
    Limits {
        count: said.limits.count.or(kept.count),
        age_ms: said.limits.age_ms.or(kept.age_ms),
        bytes: said.limits.bytes.or(kept.bytes),
    }
}

async fn collect(
    context: &Context,
    store: &Store,
    sandbox: &SandboxStore,
    said: &Said,
    limits: Limits,
) -> Result<Collected, CliError> {
    let id = sandbox.id();
    let failed = |error: StoreError| CliError::store(format!("cannot {WHAT} {id}"), error);
    let wanted = Wanted {
        limits,
        now_ms: now_ms(),
        yields: true,
        ..Wanted::default()
    };
    if said.dry_run {
        let sandbox = sandbox.clone();
        let done = spawn_blocking(move || sandbox.would_collect(&wanted)).await;
        return joined(done).map_err(|error| failed(error.into()));
    }
    context.require_root(WHAT, id)?;
    match store.writer(id) {
        Ok(writer) => {
            let done = spawn_blocking(move || writer.collect(&wanted)).await;
            joined(done).map_err(|error| failed(error.into()))
        }
        Err(locked @ OpenError::Locked(_)) => {
            let live = match Live::find(&context.config, id).await {
                // By another `crab`, perhaps.
                Err(NoAnswer::Gone) => return Err(failed(locked.into())),
                Ok(live) => live,
                Err(NoAnswer::Deaf(_)) => Live::require(&context.config, WHAT, id).await?,
            };
            let request = CollectRequest {
                id: id.id().into(),
                keep: limits.count,
                max_age_ms: limits.age_ms,
                max_bytes: limits.bytes,
                ..Default::default()
            };
            let timeout = context::with_duration(WORK_TIMEOUT);
            let done = live.client.collect(timeout, &request).await;
            let done = done.map_err(|error| refusal(WHAT, id, &error))?;
            let removed = done.removed.into_iter();
            let removed: BTreeMap<TurnId, String> =
                removed.map(|it| (TurnId(it.turn), it.why)).collect();
            Ok(Collected {
                removed,
                kept: done.kept,
                bytes_before: done.bytes_before,
                bytes_freed: done.bytes_freed,
                packs_removed: done.packs_removed,
                packs_replaced: done.packs_replaced,
                postponed: Some(done.postponed).filter(|why| !why.is_empty()),
            })
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Has the sandboxes stay within what the host has for all of them.
async fn host_limit(context: &Context, store: &Store, said: &Said, rows: &mut [Row]) {
    let Some(most) = context.config.retention.host_bytes() else {
        return;
    };
    let taken = store.bytes_of(rows.iter().map(|row| &row.sandbox));
    // What would be freed is there still where it was only asked.
    let freed = |row: &Row| {
        if said.dry_run {
            row.done.bytes_freed
        } else {
            0
        }
    };
    let taken = taken.saturating_sub(rows.iter().map(freed).sum::<u64>());
    let mut over = crab_store::over(taken, most);
    if over == 0 {
        return;
    }
    let readable = rows.iter().filter(|row| row.failed.is_none());
    let ids: Vec<SandboxId> = readable.map(|row| row.sandbox.clone()).collect();
    let mut live = BTreeSet::new();
    for id in &ids {
        if Live::find(&context.config, id).await.is_ok() {
            live.insert(id);
        }
    }
    for sandbox in store.givers(&ids, |id| live.contains(id)) {
        if over == 0 {
            return;
        }
        let Some(row) = rows.iter_mut().find(|row| row.sandbox == *sandbox.id()) else {
            continue;
        };
        let mut limits = limits(context, &sandbox, said);
        let left = row.done.bytes_before.saturating_sub(row.done.bytes_freed);
        let Some(room) = sandbox.room(left, over, now_ms()) else {
            continue;
        };
        limits.bytes = Some(limits.bytes.map_or(room, |bytes| bytes.min(room)));
        match collect(context, store, &sandbox, said, limits).await {
            // Nothing has changed since the first time where it was only asked.
            Ok(done) if said.dry_run => {
                over = over.saturating_sub(done.bytes_freed.saturating_sub(row.done.bytes_freed));
                row.done = done;
            }
            Ok(done) => {
                over = over.saturating_sub(done.bytes_freed);
                // What is to be freed of this one is not taken from the next.
                let goes_on = done.postponed.is_some();
                row.add(done);
                if goes_on {
                    return;
                }
            }
            Err(error) => row.failed = Some(error.to_string()),
        }
    }
}

impl Row {
    fn of(sandbox: &SandboxId, done: Result<Collected, CliError>) -> Self {
        let (done, failed) = match done {
            Ok(done) => (done, None),
            Err(error) => (Collected::default(), Some(error.to_string())),
        };
        Self {
            sandbox: sandbox.clone(),
            done,
            failed,
        }
    }

    /// What was removed after that.
    fn add(&mut self, more: Collected) {
        self.done.removed.extend(more.removed);
        self.done.kept = more.kept;
        self.done.bytes_freed += more.bytes_freed;
        self.done.packs_removed += more.packs_removed;
        self.done.packs_replaced += more.packs_replaced;
        self.done.postponed = more.postponed;
    }

    fn note(&self) -> String {
        let notes: Vec<&str> = [&self.failed, &self.done.postponed]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        match notes[..] {
            [] => NOTHING.to_owned(),
            _ => visible(&notes.join(", ")),
        }
    }
}

const MAX_TURNS: usize = 40;

fn text(gc: &Gc) -> String {
    let rows = gc.sandboxes.iter().map(|row| {
        let removed: Vec<String> = row.done.removed.keys().map(TurnId::to_string).collect();
        let removed = match removed.is_empty() {
            true => NOTHING.to_owned(),
            false => cell(&removed.join(" "), MAX_TURNS),
        };
        [
            row.sandbox.to_string(),
            row.done.removed.len().to_string(),
            removed,
            row.done.kept.to_string(),
            size(row.done.bytes_before),
            size(row.done.bytes_freed),
            row.note(),
        ]
    });
    let header = [
        "SANDBOX", "REMOVED", "TURNS", "KEPT", "BEFORE", "FREED", "NOTE",
    ];
    let mut text = table(header, &[1, 3, 4, 5], rows);
    let sandboxes = count(gc.sandboxes.len() as u64, "sandbox", "sandboxes");
    let verb = if gc.dry_run {
        "would be freed"
    } else {
        "freed"
    };
    text.push_str(&format!("{} {verb} of {sandboxes}\n", size(gc.bytes_freed)));
    if gc.swept > 0 {
        let left = count(gc.swept, "history", "histories");
        text.push_str(&format!(
            "{left} removed that killed processes had left half done\n"
        ));
    }
    text
}
