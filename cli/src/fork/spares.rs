// SPDX-License-Identifier: Apache-2.0

//! Copies that are made in advance (`--warm`), and taken by the next `crab fork`.
//!
//! ```text
//! --warm N: copies as any other, marked in the store, started and paused
//! fork:     mark taken away (by one alone) -> the container goes on
//! ```
//! A sandbox has spares of one state: those of another are removed when some of a new one are
//! made. They are containers as any other, which their clients show as paused.

use std::{sync::Arc, time::Instant};

use crab_config::Config;
use crab_store::{SandboxId, SandboxStore, Spare, TurnId};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    Origin, WHAT, Wish,
    copy::{self, Copied, Template, Until, micros},
    names,
};
use crate::{
    context::Context,
    error::CliError,
    live::{Live, NoAnswer},
    output::{duration, visible},
    progress::{Phase, waiting},
    rollback::with,
};

/// What `--warm` came to.
#[derive(Serialize)]
struct Warmed {
    sandbox: SandboxId,
    turn: TurnId,
    checkpoint: TurnId,
    processes: bool,
    degraded: Option<String>,
    /// How many spares of this state there are now.
    spares: usize,
    /// How many of another state, or too many of this one, were removed.
    removed: usize,
    took_us: u64,
    /// Those that were made, or were not.
    forks: Vec<Copied>,
}

/// Has as many spares of a state as is wished for. The text, and whether all were made.
pub(crate) async fn warm(context: &Context, wish: Wish) -> Result<(String, bool), CliError> {
    let began = Instant::now();
    let origin = Origin::find(context, &wish.point).await?;
    let template = origin.template(context).await?;
    let id = template.parent.id().clone();
    let failed = |why: String| CliError::failed(format!("cannot {WHAT} {id}"), why, "try again");
    let phase = Phase::new(format!("copies of {id} in advance"));
    let work = async {
        let wanted = Spare::of(&template.manifest);
        let (mut fit, mut rest) = (Vec::new(), Vec::new());
        for (sandbox, spare) in known(&template)? {
            let enough = fit.len() >= wish.count as usize;
            match stands_by(&context.config, &sandbox).await {
                Standing::By(_) if !enough && spare == wanted => fit.push(sandbox),
                Standing::By(_) | Standing::Dead => rest.push(sandbox),
                // Somebody has let it go on, and works in it.
                Standing::Goes => {
                    let _ = sandbox.take_spare();
                }
                Standing::Unknown => {}
            }
        }
        let mut removed = 0;
        for spare in rest {
            if spare.take_spare().map_err(|error| error.to_string())? {
                discard(&template, &spare).await?;
                removed += 1;
            }
        }
        let missing = wish.count - fit.len() as u32;
        let names = match &wish.name {
            Some(pattern) => {
                let taken = template.maker.taken().await?;
                let mut names = pattern.names(wish.count);
                names.retain(|name| !taken.contains(name));
                names.truncate(missing as usize);
                if names.len() < missing as usize {
                    return Err("containers have the names that --name gives".to_owned());
                }
                names
            }
            None => {
                let taken = template.maker.taken().await?;
                names::free(template.maker.name(), &taken, missing)
            }
        };
        let forks = copy::all(&template, names, Until::IsSpare, &phase).await;
        Ok((fit.len(), removed, forks))
    };
    let (kept, removed, forks) = waiting(context, &phase, work).await.map_err(failed)?;
    let made = forks.iter().filter(|fork| fork.error.is_none()).count();
    let whole = made == forks.len();
    let warmed = Warmed {
        sandbox: id,
        turn: template.turn,
        checkpoint: template.manifest.turn,
        processes: template.manifest.processes.is_some(),
        degraded: template.manifest.degraded.clone(),
        spares: kept + made,
        removed,
        took_us: micros(began.elapsed()),
        forks,
    };
    Ok((context.answer(&warmed, text)?, whole))
}

fn text(warmed: &Warmed) -> String {
    let mut text = format!(
        "{} copies of {} at turn {} (checkpoint {}, {}) stand by after {}",
        warmed.spares,
        warmed.sandbox,
        warmed.turn,
        warmed.checkpoint,
        with(warmed.processes),
        duration(warmed.took_us)
    );
    if warmed.removed > 0 {
        text.push_str(&format!("; {} others were removed", warmed.removed));
    }
    text.push('\n');
    if let Some(why) = &warmed.degraded {
        text.push_str(&format!("{}\n", visible(why)));
    }
    for fork in &warmed.forks {
        match &fork.error {
            Some(why) => text.push_str(&format!("  {} failed: {}\n", fork.name, visible(why))),
            None => text.push_str(&format!("  {}\n", fork.name)),
        }
    }
    text
}

/// How a spare is.
enum Standing {
    /// Its processes are there and stand still; the init's id.
    By(u32),
    /// They do not stand still.
    Goes,
    /// It has none.
    Dead,
    /// Its shim does not say.
    Unknown,
}

async fn stands_by(config: &Config, spare: &SandboxStore) -> Standing {
    match Live::find(config, spare.id()).await {
        Ok(live) => Standing::of(&live),
        Err(NoAnswer::Gone) => Standing::Dead,
        Err(NoAnswer::Deaf(_)) => Standing::Unknown,
    }
}

impl Standing {
    fn of(live: &Live) -> Self {
        match live.status.state.as_str() {
            "paused" => Self::By(live.status.pid),
            "stopped" => Self::Dead,
            _ => Self::Goes,
        }
    }
}

/// The spares of a sandbox, whatever state of it they are of.
fn known(template: &Template) -> Result<Vec<(SandboxStore, Spare)>, String> {
    let store = &template.store;
    let mut found = Vec::new();
    for id in store.sandboxes().map_err(|error| error.to_string())? {
        // One that cannot be read is no spare.
        let Ok(sandbox) = store.sandbox(&id) else {
            continue;
        };
        let Ok(Some(spare)) = sandbox.spare() else {
            continue;
        };
        if spare.of == *template.parent.id() {
            found.push((sandbox, spare));
        }
    }
    // By the numbers at the ends of their names.
    found.sort_by_key(|(sandbox, _)| (sandbox.id().id().len(), sandbox.id().clone()));
    Ok(found)
}

/// Takes as many spares of the state as are there, and at most so many. With names that are wanted,
/// those only that can have them.
pub(super) async fn take(
    context: &Context,
    template: &Arc<Template>,
    count: u32,
    names: Option<&[String]>,
) -> Vec<Copied> {
    // What cannot be found out costs time only: all are made anew then.
    let Ok(known) = known(template) else {
        return Vec::new();
    };
    let wanted = Spare::of(&template.manifest);
    let fit = known.into_iter().filter(|(_, spare)| *spare == wanted);
    let fit = fit.map(|(spare, _)| spare);
    let pairs: Vec<(SandboxStore, Option<String>)> = match names {
        None => fit.map(|spare| (spare, None)).collect(),
        Some(names) if template.maker.can_rename() => {
            let names = names.iter().cloned().map(Some);
            fit.zip(names).collect()
        }
        Some(names) => fit
            .filter(|spare| names.iter().any(|name| name == spare.id().id()))
            .map(|spare| (spare, None))
            .collect(),
    };
    let mut taken = Vec::new();
    let mut pairs = pairs.into_iter();
    // One that turns out to be of no use is made up for by the next.
    while (taken.len() as u32) < count && pairs.len() > 0 {
        let missing = count as usize - taken.len();
        let mut tasks = JoinSet::new();
        for (number, (spare, name)) in pairs.by_ref().take(missing).enumerate() {
            let (template, config) = (template.clone(), context.config.clone());
            tasks.spawn(async move {
                let standing = stands_by(&config, &spare).await;
                (number, go_on(&template, standing, spare, name).await)
            });
        }
        let mut round = Vec::new();
        while let Some(Ok((number, copied))) = tasks.join_next().await {
            round.extend(copied.map(|copied| (number, copied)));
        }
        round.sort_by_key(|(number, _)| *number);
        taken.extend(round.into_iter().map(|(_, copied)| copied));
    }
    taken
}

/// Has a spare go on as somebody's copy. Nothing if it is none any more, or cannot: then it is
/// removed.
async fn go_on(
    template: &Template,
    standing: Standing,
    spare: SandboxStore,
    name: Option<String>,
) -> Option<Copied> {
    let began = Instant::now();
    if matches!(standing, Standing::Unknown) || !spare.take_spare().ok()? {
        return None;
    }
    let id = spare.id().clone();
    let pid = match standing {
        Standing::By(pid) => pid,
        // Somebody has let it go on, and works in it.
        Standing::Goes | Standing::Unknown => return None,
        Standing::Dead => {
            let _ = discard(template, &spare).await;
            return None;
        }
    };
    let named = match name {
        Some(name) => template.maker.rename(&id, &name).await.map(|()| name),
        None => template.maker.name_of(&id).await,
    };
    let name = match named {
        Ok(name) => name,
        Err(why) => {
            eprintln!("crab: {id} stands by in vain: {why}; another copy is made");
            let _ = spare.set_aside(&Spare::of(&template.manifest));
            return None;
        }
    };
    if let Err(why) = template.maker.resume(&id).await {
        eprintln!("crab: {id} stood by in vain: {why}; it is removed, and another copy is made");
        let _ = discard(template, &spare).await;
        return None;
    }
    Some(Copied {
        sandbox: Some(id),
        name,
        pid: Some(pid),
        warm: true,
        container_us: 0,
        history_us: 0,
        start_us: micros(began.elapsed()),
        took_us: micros(began.elapsed()),
        error: None,
    })
}

/// Removes a spare.
async fn discard(template: &Template, spare: &SandboxStore) -> Result<(), String> {
    let draft = template.maker.draft_of(spare.id());
    copy::take_back(template, &draft).await
}
