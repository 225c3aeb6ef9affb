// SPDX-License-Identifier: Apache-2.0

//! A run under Crab without a fault, with a look before and after each turn: whether a turn of
//! which nothing was kept has left nothing, and whether Crab itself leaves anything.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use crab_store::{Class, TurnRecord};

use super::{
    drive::Part,
    keep::{Keeper, Variant, Way},
    reference::{Reference, Tempo},
    state::Witness,
};
use crate::{
    journal::turns_of,
    sandbox::Sandbox,
    testbed::{Testbed, poll},
};

/// How long a turn may take to be recorded.
const RECORDED: Duration = Duration::from_secs(30);
/// After that nothing of Crab's is at work in a sandbox any more.
const OVER: Duration = Duration::from_millis(250);

/// What came of it.
#[derive(Debug, Default)]
pub struct Judged {
    /// Turns of class `none` in which something changed, a line each.
    pub false_none: Vec<String>,
    /// How states differ from those of the run under the stock shim, a line each.
    pub unlike: Vec<String>,
    /// How many turns were compared.
    pub turns: usize,
}

impl Judged {
    /// Plays it.
    pub fn of(
        testbed: &Testbed,
        part: &Part,
        reference: &Reference,
        tempo: &Tempo,
    ) -> Result<Self> {
        let mut witness = Witness::new();
        let keeper = Keeper::start(testbed, part, Way::Crab(Variant::Whole))?;
        let sandbox = keeper.sandbox();
        let hand = reference.marks.set_up(part, sandbox)?;
        let init = sandbox.pid()?;
        let mut judged = Self::default();
        let mut told = BTreeSet::new();
        for n in 0..part.trace.turns.len() {
            tempo.wait(&part.trace, n);
            let before = witness.look(init)?;
            let done = hand.turn(n, &reference.marks.after(n))?;
            let records = recorded(sandbox, done.began)?;
            let after = witness.look(init)?;
            let turn = n + 1;
            let name = part.name();
            judged.turns += 1;
            if records.iter().all(says_nothing_changed) {
                let changed = after.changed_since(&before);
                // What runs on by itself may have done it after the turn was looked at.
                let again = witness.look(init)?;
                if !changed.is_empty() && again.changed_since(&after).is_empty() {
                    let changed = changed.join("; ");
                    judged
                        .false_none
                        .push(format!("{name} turn {turn}: {changed}"));
                }
            }
            let unlike = reference.compare(turn, &mut witness, init)?.into_iter();
            let unlike = unlike.chain(reference.otherwise(n, done));
            for line in unlike {
                // What goes on being so is told once.
                if told.insert(line.clone()) {
                    judged.unlike.push(format!("{name} turn {turn}: {line}"));
                }
            }
        }
        Ok(judged)
    }
}

/// Whether nothing had to be kept of a turn. One whose capture was given up is of class `none`,
/// too, but no checkpoint holds what it left.
fn says_nothing_changed(record: &TurnRecord) -> bool {
    record.class == Class::None && record.checkpoint.is_some()
}

/// The records of the turns since some time, as soon as the last of them is whole.
fn recorded(sandbox: &Sandbox, since: SystemTime) -> Result<Vec<TurnRecord>> {
    let since = since.duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let found = poll("the turn is recorded", RECORDED, || {
        let mut records = turns_of(sandbox)?;
        records.retain(|record| record.ended_ms >= since);
        Ok((!records.is_empty()).then_some(records))
    })?;
    thread::sleep(OVER);
    Ok(found)
}
