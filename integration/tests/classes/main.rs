// SPDX-License-Identifier: Apache-2.0

//! What each kind of turn is taken for: `none`, `files`, `processes` or `full`.

mod beside_turns;
mod cases;
mod files;
mod idle;
mod init;
mod lasting;
mod nothing;
mod processes;
mod unusual_writes;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
