// SPDX-License-Identifier: Apache-2.0

//! `crab diff S A B`: how a sandbox differs between the ends of two turns.
//!
//! The store has what lies above the image; the image's layers are read where they lie, if
//! they still do. Where they do not, what the sandbox changed of the image cannot be told
//! from what it added, and that is said.

mod compare;
mod image;
mod processes;
mod text;
mod unified;
mod view;

use std::io;

use crab_store::{
    Digest, Manifest, ObjectReader, ReadError, SandboxId, SandboxStore, Tree, TurnId,
};
use serde::Serialize;

use self::{
    compare::{Comparison, Difference},
    image::Image,
    processes::ProcessDifference,
    unified::Budget,
    view::{Below, View},
};
use crate::{
    context::Context,
    error::{CliError, StoreError},
    named::TurnName,
};

#[derive(Serialize)]
struct Diff {
    sandbox: SandboxId,
    a: End,
    b: End,
    /// Whether nothing is known to differ.
    same: bool,
    files: Vec<Difference>,
    processes: Vec<ProcessDifference>,
    /// What could not be told.
    notes: Vec<String>,
}

/// The end of a turn, and what holds the state that the sandbox was in then.
#[derive(Serialize)]
struct End {
    turn: TurnId,
    checkpoint: TurnId,
}

/// One of the two states.
struct State {
    turn: TurnId,
    manifest: Manifest,
    reader: ObjectReader,
}

impl State {
    fn of(sandbox: &SandboxStore, turn: TurnId) -> Result<Self, ReadError> {
        let manifest = sandbox.checkpoint_of(turn)?;
        Ok(Self {
            turn,
            reader: sandbox.reader(&manifest)?,
            manifest,
        })
    }

    /// The tree of what is mounted there; empty where nothing was.
    fn tmpfs(&self, mount: &[u8]) -> Option<Digest> {
        self.manifest.files.tmpfs_at(mount)
    }

    fn end(&self) -> End {
        End {
            turn: self.turn,
            checkpoint: self.manifest.turn,
        }
    }

    fn view<'a>(
        &'a self,
        tree: Option<Digest>,
        below: Below<'a>,
        prefix: &'static [u8],
    ) -> Result<View<'a>, ReadError> {
        Ok(View {
            tree: match tree {
                Some(digest) => self.reader.tree(digest)?,
                None => Tree::default(),
            },
            reader: &self.reader,
            below,
            prefix,
        })
    }
}

/// Why two states could not be compared.
enum Failure {
    Store(Box<StoreError>),
    Image(io::Error),
}

impl<E: Into<StoreError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Store(Box::new(error.into()))
    }
}

/// The text to print, and whether the two differ.
pub(crate) fn run(
    context: &Context,
    text_of_id: &str,
    (a, b): (&TurnName, &TurnName),
    unified: bool,
) -> Result<(String, bool), CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    let (a, b) = (a.of(&sandbox)?, b.of(&sandbox)?);
    let diff = diff(&sandbox, a, b, unified).map_err(|failure| {
        let what = format!("cannot compare turns {a} and {b} of {}", sandbox.id());
        match failure {
            Failure::Store(error) => CliError::store(what, *error),
            Failure::Image(error) => CliError::failed(
                what,
                format!("a file could not be read: {error}"),
                "run crab as root, and see the layers of the image",
            ),
        }
    })?;
    let differ = !diff.same;
    Ok((context.answer(&diff, text::text)?, differ))
}

fn diff(sandbox: &SandboxStore, a: TurnId, b: TurnId, unified: bool) -> Result<Diff, Failure> {
    let (a, b) = (State::of(sandbox, a)?, State::of(sandbox, b)?);
    let mut files = Vec::new();
    let mut notes = Vec::new();
    let mut texts = unified.then(Budget::default);
    let mut compare = |comparison: Comparison<'_>, notes: &mut Vec<String>| {
        let compared = comparison.run(&mut texts, &mut files, notes);
        compared.map_err(Failure::Image)
    };

    let layers = sandbox.meta()?.and_then(|meta| meta.layers);
    // A root that is no overlay has none, and each of its trees is all of it.
    let is_whole = layers.as_ref().is_some_and(|it| it.dirs().next().is_none());
    let prefix = image::prefix(&layers.clone().unwrap_or_default());
    let image = layers.map(|layers| Image::open(&layers)).transpose();
    let image = image.unwrap_or_else(|why| {
        notes.push(format!("the image cannot be read: {why}"));
        None
    });
    let below = match &image {
        _ if is_whole => Below::Nothing,
        Some(image) => Below::Image(image),
        None => Below::Missing,
    };
    let upper = |state: &State| state.manifest.files.upper;
    if upper(&a) != upper(&b) {
        let comparison = Comparison {
            a: a.view(Some(upper(&a)), below, prefix)?,
            b: b.view(Some(upper(&b)), below, prefix)?,
            mount: b"",
        };
        compare(comparison, &mut notes)?;
    }

    let mut mounts: Vec<&[u8]> = [&a, &b]
        .into_iter()
        .flat_map(|state| &state.manifest.files.tmpfs)
        .map(|tmpfs| tmpfs.mount.as_slice())
        .collect();
    mounts.sort_unstable();
    mounts.dedup();
    for mount in mounts {
        let (before, now) = (a.tmpfs(mount), b.tmpfs(mount));
        if before != now {
            let comparison = Comparison {
                a: a.view(before, Below::Nothing, prefix)?,
                b: b.view(now, Below::Nothing, prefix)?,
                mount,
            };
            compare(comparison, &mut notes)?;
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let processes = processes::compare(&a, &b, &mut notes)?;
    Ok(Diff {
        sandbox: sandbox.id().clone(),
        a: a.end(),
        b: b.end(),
        same: files.is_empty() && processes.is_empty(),
        files,
        processes,
        notes,
    })
}
