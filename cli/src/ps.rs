// SPDX-License-Identifier: Apache-2.0

//! `crab ps`: the sandboxes of this host.

use std::sync::Arc;

use crab_config::Config;
use crab_store::{Client, JournalRecord, OpenError, SandboxId, SandboxStore, Spare, Store, TurnId};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    catalog::Catalog,
    context::Context,
    docker,
    error::{CliError, StoreError},
    jobs,
    live::{Live, NoAnswer},
    output::{NOTHING, ago, cell, now_ms, or_nothing, size, table},
};

/// Docker's ids are 64 characters; so many tell them apart.
const SHORT_ID: usize = 12;
const DOCKER_ID: usize = 64;

#[derive(Serialize)]
struct Ps {
    sandboxes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    sandbox: SandboxId,
    /// What its client calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// What its shim says; `gone` if it has none, `unknown` if that is deaf.
    state: String,
    pid: Option<u32>,
    /// The newest turn, and whether it is still open.
    turn: Option<TurnId>,
    turn_open: bool,
    /// How far its capture is, if one is under way or waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// The checkpoint that holds the newest state.
    checkpoint: Option<TurnId>,
    checkpoints: u64,
    bytes_stored: u64,
    last_ms: Option<u64>,
    client: Option<&'static str>,
    image: Option<String>,
    /// What is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// What of its configuration is not followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    config_faults: Vec<String>,
    #[serde(skip)]
    in_store: bool,
    /// It only holds its pod open.
    #[serde(skip)]
    pause: bool,
}

/// The state of a sandbox that has no shim.
const GONE: &str = "gone";

pub(crate) async fn run(context: &Context) -> Result<String, CliError> {
    let (store, sandboxes) = context.known()?;
    let mut names = docker::names(&sandboxes);
    let mut catalog = store.as_ref().map(Catalog::of);
    let mut rows = Vec::new();
    for id in &sandboxes {
        let known = store.as_ref().zip(catalog.as_mut());
        let known = known.and_then(|(store, catalog)| stored(store, catalog, id));
        let mut row = Row::of(id, known);
        row.name = names.remove(id).or(row.name);
        rows.push(row);
    }
    if let Some(catalog) = catalog {
        catalog.keep(&sandboxes);
    }
    // All shims at once: a deaf one must not hold up the others.
    let config = Arc::new(context.config.clone());
    let mut asked = JoinSet::new();
    for (number, id) in sandboxes.into_iter().enumerate() {
        let config: Arc<Config> = config.clone();
        asked.spawn(async move { (number, Live::find(&config, &id).await) });
    }
    while let Some(Ok((number, answer))) = asked.join_next().await {
        rows[number].answered(answer);
    }
    let mut jobs = jobs::states(&context.config).await;
    for row in &mut rows {
        if row.state == "paused"
            && let Some(spare) = spare(store.as_ref(), &row.sandbox)
        {
            row.add_note(format!("stands by for crab fork {}", spare.of));
        }
        row.job = jobs.remove(&row.sandbox.to_string());
    }
    // Of what is in neither store nor shim, only a directory was left.
    rows.retain(|row| (row.in_store || row.state != GONE) && !row.pause);
    context.answer(&Ps { sandboxes: rows }, text)
}

/// Of what a sandbox that stands still is a copy that is nobody's yet.
fn spare(store: Option<&Store>, id: &SandboxId) -> Option<Spare> {
    store?.sandbox(id).ok()?.spare().ok()?
}

/// What the store knows of a sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Summary {
    checkpoints: u64,
    bytes: u64,
    damaged: u64,
    head: Option<TurnId>,
    turn: Option<TurnId>,
    last_ms: Option<u64>,
    client: Option<Client>,
    name: Option<String>,
    image: Option<String>,
    config_faults: Vec<String>,
}

/// Nothing if the store does not have it.
fn stored(
    store: &Store,
    catalog: &mut Catalog,
    id: &SandboxId,
) -> Option<Result<Summary, StoreError>> {
    match store.sandbox(id) {
        Ok(sandbox) => Some(catalog.summary(&sandbox, read)),
        Err(OpenError::NoSandbox(_)) => None,
        Err(error) => Some(Err(error.into())),
    }
}

fn read(sandbox: &SandboxStore) -> Result<Summary, StoreError> {
    let manifests = sandbox.manifests()?;
    let journal = sandbox.journal()?;
    let meta = sandbox.meta()?;
    let good = || {
        manifests
            .iter()
            .filter_map(|(_, manifest)| manifest.as_ref().ok())
    };
    // What was removed or failed, and how far a turn has come, is nothing that it did.
    let counts = |record: &&JournalRecord| {
        !matches!(
            record,
            JournalRecord::CaptureFailed(_) | JournalRecord::Removed(_) | JournalRecord::Step(_)
        )
    };
    let ended = journal.records.iter().filter(counts);
    let ended = ended.filter_map(JournalRecord::at_ms);
    let next = sandbox.next_turn()?;
    Ok(Summary {
        checkpoints: good().count() as u64,
        bytes: good().map(|manifest| manifest.bytes_stored).sum(),
        damaged: (manifests.len() - good().count()) as u64,
        head: sandbox.head().ok().flatten().map(|manifest| manifest.turn),
        turn: next.0.checked_sub(1).map(TurnId),
        last_ms: ended.max().or(meta.as_ref().map(|meta| meta.created_ms)),
        client: meta.as_ref().map(|meta| meta.client),
        name: meta.as_ref().and_then(|meta| meta.name.clone()),
        image: meta.as_ref().and_then(|meta| meta.image.clone()),
        config_faults: meta.map(|meta| meta.config_faults).unwrap_or_default(),
    })
}

impl Row {
    fn of(id: &SandboxId, stored: Option<Result<Summary, StoreError>>) -> Self {
        let mut row = Self {
            in_store: stored.is_some(),
            sandbox: id.clone(),
            name: None,
            state: GONE.to_owned(),
            pid: None,
            turn: None,
            turn_open: false,
            job: None,
            checkpoint: None,
            checkpoints: 0,
            bytes_stored: 0,
            last_ms: None,
            client: None,
            image: None,
            note: None,
            pause: false,
            config_faults: Vec::new(),
        };
        match stored {
            None => {}
            Some(Ok(stored)) => {
                row.turn = stored.turn;
                row.checkpoint = stored.head;
                row.checkpoints = stored.checkpoints;
                row.bytes_stored = stored.bytes;
                row.last_ms = stored.last_ms;
                row.client = stored.client.map(Client::as_str);
                row.name = stored.name;
                row.image = stored.image;
                row.config_faults = stored.config_faults;
                if stored.damaged > 0 {
                    row.note = Some(format!("{} damaged checkpoints", stored.damaged));
                }
            }
            // One sandbox that cannot be read must not hide the others.
            Some(Err(error)) => row.note = Some(error.to_string()),
        }
        row
    }

    fn answered(&mut self, answer: Result<Live, NoAnswer>) {
        match answer {
            Ok(Live { status, .. }) => {
                self.state = status.state;
                self.pid = Some(status.pid).filter(|pid| *pid != 0);
                self.turn = Some(TurnId(status.turn)).max(self.turn);
                self.turn_open = status.turn_open;
                self.pause = status.pause;
                // What the store has may be of an earlier start.
                self.config_faults = status.config_faults;
                if !status.unobserved.is_empty() {
                    self.add_note(format!("unobserved: {}", status.unobserved));
                }
            }
            Err(NoAnswer::Gone) => {}
            Err(NoAnswer::Deaf(why)) => {
                self.state = "unknown".to_owned();
                self.add_note(why);
            }
        }
    }

    /// All that is not as it should be.
    fn notes(&self) -> String {
        let notes: Vec<&str> = self
            .note
            .iter()
            .chain(&self.config_faults)
            .map(String::as_str)
            .collect();
        match notes[..] {
            [] => NOTHING.to_owned(),
            _ => notes.join(", "),
        }
    }

    fn add_note(&mut self, note: String) {
        self.note = Some(match self.note.take() {
            Some(before) => format!("{before}, {note}"),
            None => note,
        });
    }
}

/// The id of a sandbox as one cell of a table.
pub(crate) fn short(id: &SandboxId) -> String {
    let hex = id.id().bytes().all(|byte| byte.is_ascii_hexdigit());
    match id.id().get(..SHORT_ID) {
        Some(short) if hex && id.id().len() == DOCKER_ID => {
            format!("{}/{short}", id.namespace())
        }
        _ => id.to_string(),
    }
}

fn text(ps: &Ps) -> String {
    let now = now_ms();
    let rows = ps.sandboxes.iter().map(|row| {
        let state = match &row.job {
            Some(job) => format!("{} ({job})", row.state),
            None => row.state.clone(),
        };
        let turn = or_nothing(row.turn) + if row.turn_open { " (open)" } else { "" };
        [
            short(&row.sandbox),
            cell(row.name.as_deref().unwrap_or(NOTHING), 30),
            cell(&state, 30),
            turn,
            or_nothing(row.checkpoint),
            size(row.bytes_stored),
            or_nothing(row.last_ms.map(|ms| ago(ms, now))),
            cell(row.image.as_deref().unwrap_or(NOTHING), 40),
            cell(&row.notes(), 100),
        ]
    });
    let header = [
        "SANDBOX",
        "NAME",
        "STATE",
        "TURN",
        "CHECKPOINT",
        "BYTES",
        "ACTIVE",
        "IMAGE",
        "NOTE",
    ];
    table(header, &[3, 4, 5], rows)
}
