// SPDX-License-Identifier: Apache-2.0

//! Recorded agents, killed with everything around them, in each way to keep their work; and that
//! the comparison tells what did not come back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Client, Testbed,
    proof::Chance,
    replay::{
        Dead, Driver, Judged, Marks, Part, Reference, Slots, Tempo, Variant, Way, every_turn,
        kill_daemons,
    },
    traces::{self, Pace},
};

const CRAB: Way = Way::Crab(Variant::Whole);

/// The first so many turns of one of the project's traces.
fn part(id: &str, turns: usize, client: Client, driver: Driver) -> Result<Part> {
    let all = traces::own()?;
    let trace = all.into_iter().find(|trace| trace.id == id);
    let mut trace = trace.with_context(|| format!("there is no trace {id}"))?;
    trace.turns.truncate(turns);
    Ok(Part {
        trace,
        client,
        driver,
        patience: 0.2,
    })
}

fn tempo() -> Tempo {
    Tempo {
        pace: Pace {
            scale: 0.02,
            seed: 1,
        },
        least: Duration::from_millis(250),
    }
}

/// Whether everything came back after so many turns, and how it differs if not.
fn came_back(
    testbed: &Testbed,
    part: &Part,
    way: Way,
    reference: &Reference,
    turn: usize,
) -> Result<(bool, String)> {
    let mut chance = Chance::new(turn as u64);
    let dead = Dead::after(testbed, part, way, reference, &tempo(), turn, &mut chance)?;
    kill_daemons(testbed)?;
    let crash = dead.revive(&tempo(), &Slots::new(1));
    Ok((crash.recovered, crash.differences.join("; ")))
}

#[test]
fn each_driver_of_each_client_goes_on_as_if_nothing_had_been() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for (id, client, driver) in [
        ("queue-service", testbed.ctr(), Driver::Exec),
        ("git-history", testbed.ctr(), Driver::Shell),
        ("git-history", testbed.docker(), Driver::Shell),
        ("repair-ring-buffer", testbed.docker(), Driver::Tmux),
    ] {
        let part = part(id, 6, client, driver)?;
        let reference = Reference::of(&testbed, &part, Marks::Some, &tempo())?;
        let (recovered, differences) = came_back(&testbed, &part, CRAB, &reference, 4)?;
        ensure!(
            recovered,
            "{} by {}: {differences}",
            part.name(),
            driver.name()
        );
    }
    Ok(())
}

#[test]
fn what_is_not_kept_is_told_to_be_missing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let part = part("queue-service", 6, testbed.ctr(), Driver::Exec)?;
    let reference = Reference::of(&testbed, &part, Marks::Some, &tempo())?;
    for (way, comes_back) in [(Way::Chat, false), (Way::Restart, true), (Way::Full, true)] {
        let (recovered, differences) = came_back(&testbed, &part, way, &reference, 4)?;
        ensure!(recovered == comes_back, "{}: {differences:?}", way.name());
    }
    Ok(())
}

#[test]
fn a_sandbox_that_dies_after_each_of_its_turns_ends_as_one_that_lived() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let part = part("orders-database", 6, testbed.ctr(), Driver::Exec)?;
    let reference = Reference::of(&testbed, &part, Marks::Some, &tempo())?;
    let mut chance = Chance::new(7);
    let slots = Slots::new(1);
    let crashes = every_turn(&testbed, &part, &reference, &tempo(), &mut chance, &slots);
    ensure!(crashes.len() == part.trace.turns.len(), "{crashes:?}");
    for crash in crashes {
        ensure!(
            crash.recovered,
            "turn {}: {:?}",
            crash.turn,
            crash.differences
        );
    }
    Ok(())
}

#[test]
fn a_turn_of_which_nothing_was_kept_has_left_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let part = part("disk-survey", 8, testbed.docker(), Driver::Exec)?;
    let reference = Reference::of(&testbed, &part, Marks::None, &tempo())?;
    let judged = Judged::of(&testbed, &part, &reference, &tempo())?;
    ensure!(judged.turns == 8, "{judged:?}");
    ensure!(
        judged.false_none.is_empty() && judged.unlike.is_empty(),
        "{judged:?}"
    );
    Ok(())
}
