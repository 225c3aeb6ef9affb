// SPDX-License-Identifier: Apache-2.0

//! How a user names a turn: by its number, or by a tag.

use std::{fmt, str::FromStr};

use crab_store::{SandboxId, SandboxStore, TagName, TurnId};

use crate::{
    context::Context,
    error::{CliError, Code},
};

#[derive(Clone, Debug)]
pub(crate) enum TurnName {
    Number(TurnId),
    Tag(TagName),
}

impl FromStr for TurnName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().map(Self::Number);
        number
            .or_else(|_| text.parse().map(Self::Tag))
            .map_err(|_| "a turn is a number, as `crab turns` lists them, or the name of a tag")
    }
}

impl fmt::Display for TurnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(turn) => turn.fmt(f),
            Self::Tag(name) => name.fmt(f),
        }
    }
}

/// No turn of this sandbox has that name.
pub(crate) fn unknown(what: String, id: &SandboxId) -> CliError {
    CliError::new(
        Code::NotFound,
        what,
        "no turn has that name",
        format!("`crab tag {id}` lists the names"),
    )
}

impl TurnName {
    /// The turn that is meant.
    pub(crate) fn of(&self, sandbox: &SandboxStore) -> Result<TurnId, CliError> {
        let name = match self {
            Self::Number(turn) => return Ok(*turn),
            Self::Tag(name) => name,
        };
        let id = sandbox.id();
        let what = format!("which turn {name} of {id}");
        match sandbox.tag(name) {
            Ok(Some(tag)) => Ok(tag.turn),
            Ok(None) => Err(unknown(what, id)),
            Err(error) => Err(CliError::store(what, error.into())),
        }
    }

    /// The same of a sandbox that is not looked up where a number says it all: it may be one
    /// without a history.
    pub(crate) fn within(&self, context: &Context, sandbox: &str) -> Result<TurnId, CliError> {
        match self {
            Self::Number(turn) => Ok(*turn),
            Self::Tag(_) => self.of(&context.sandbox(sandbox)?),
        }
    }
}
