// SPDX-License-Identifier: Apache-2.0
//! Hints: whoever drives the agent says where a turn begins and ends.
//!
//! Between the two nothing else closes the turn, neither an exec's end nor a program that
//! waits to be told more. An agent that dies in between would leave it open for ever: it ends when
//! everything in the sandbox has rested for `turns.hint_timeout_ms`.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, bail};
use crab_store::{Trigger, TurnId};

use super::{
    quiescence::{Before, Quiescence},
    stdin::ticks_since_boot,
    task::{Open, Task},
};

/// What a hint says of its turn, in the words of whoever gives it.
pub(crate) type Meta = BTreeMap<String, String>;

impl Task {
    /// A turn begins; one that is open and was not begun by a hint is that turn.
    pub(super) async fn hint_begin(&mut self, meta: Meta, at: Instant) -> Result<TurnId> {
        if self.open.as_ref().is_some_and(|open| open.hinted) {
            // Whoever began it has not lived to end it.
            self.hint_over(Instant::now()).await;
        }
        let history = match &mut self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        let open = self.open.get_or_insert_with(|| {
            let turn = history.next;
            history.next = turn.next();
            Open::new(turn, Trigger::Hint, String::new(), at.elapsed())
        });
        open.hinted = true;
        open.meta.extend(meta);
        let turn = open.turn;
        self.tell(|status| {
            status.turn = turn.0;
            status.open = true;
        });
        let timeout = self.container.config.turns.hint_timeout();
        let before = Before::Start(ticks_since_boot());
        self.watch(
            Quiescence::of_hint(Instant::now(), timeout, before),
            timeout,
        );
        Ok(turn)
    }

    /// The turn that was begun by a hint is over; its end is looked at behind the answer.
    pub(super) fn hint_end(&mut self, meta: Meta) -> Result<(TurnId, Open)> {
        if let Err(reason) = &self.history {
            bail!("{reason}");
        }
        if !self.open.as_ref().is_some_and(|open| open.hinted) {
            bail!("no turn was begun with crab turn begin");
        }
        let Some(mut open) = self.take_open() else {
            bail!("no turn is open");
        };
        open.meta.extend(meta);
        open.over_since(Instant::now());
        Ok((open.turn, open))
    }

    /// Nobody has ended it.
    pub(super) async fn hint_over(&mut self, since: Instant) {
        if let Some(mut open) = self.take_open() {
            open.over_since(since);
            self.close_now(open).await;
        }
    }
}
