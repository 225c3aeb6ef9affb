// SPDX-License-Identifier: Apache-2.0

//! The whole machine loses its power while a checkpoint is published.
//!
//! The kernel is told to start the machine anew at once: nothing that it has in memory gets to the
//! disks, no process hears of it. Who runs the machine (`scripts/testbed run --vm --boots N`)
//! starts it again with the disks as they are then, and the same test again, which goes on with
//! what it has noted. Nothing but the disks is left: not even what containerd and Docker have in
//! `/run`. `crab restore --all` brings back the sandbox, and those beside it.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crab_fault::Point;
use serde::{Deserialize, Serialize};

use super::{Armed, Kind, Subject, beside::Beside, subject::Noted};
use crate::{
    client::RunOptions,
    processes,
    proof::Chance,
    testbed::{Testbed, poll},
};

/// Where it is noted what was done and what is known: on the disk that loses its power as well.
const NOTES: &str = "/var/lib/crab-test-power.json";
/// The test machine's `/etc/machine-id`: see scripts/lib/testbed-vm.sh.
const MACHINE: &str = "6372616274657374626564000000766d";
const LIMIT: Duration = Duration::from_secs(60);

/// When the power goes.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// While the shim stands still at a step.
    At(Point),
    /// At an instant, by chance, of the time that a turn with its checkpoint takes.
    ByChance,
}

#[derive(Serialize, Deserialize)]
struct Notes {
    /// How many cuts there were, the one to come included.
    cuts: usize,
    /// The states that the sandbox may be in afterwards: that before the turn, and that after it.
    states: [u64; 2],
    /// How long a turn takes until its checkpoint is published, in milliseconds.
    turn_ms: u64,
    subject: Noted,
    beside: Beside,
}

impl Notes {
    /// What an earlier start of this machine has left.
    fn read() -> Result<Option<Self>> {
        if !Path::new(NOTES).exists() {
            return Ok(None);
        }
        let text = fs::read(NOTES)?;
        Ok(Some(serde_json::from_slice(&text).context(NOTES)?))
    }

    /// Durably, and before the turn begins: what is made durable later than that is to be so by
    /// Crab alone.
    fn write(&self) -> Result<()> {
        let mut file = File::create(NOTES).context(NOTES)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.sync_all()?)
    }
}

/// Goes through these cuts, one for each start of the machine; returns after the last. Tells what is lost,
/// a line each, as soon as anything is.
pub fn power(testbed: &Testbed, cuts: &[Cut], seed: u64) -> Result<Vec<String>> {
    // Anywhere else it would be the power of the machine that the tests run on.
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    ensure!(
        machine.trim() == MACHINE,
        "only in a machine of its own: scripts/testbed run --vm --boots N"
    );
    let (mut subject, beside, done, turn_ms) = match Notes::read()? {
        None => {
            let beside = Beside::start(testbed)?;
            let mut subject = Subject::start(testbed, RunOptions::without_bytecode())?;
            let began = Instant::now();
            subject.turn(Kind::Full)?;
            (subject, beside, 0, began.elapsed().as_millis() as u64)
        }
        Some(notes) => {
            let mut subject = Subject::resume(testbed, notes.subject);
            let cut = &cuts[notes.cuts - 1];
            let after = || format!("after the loss of power {cut:?}");
            let said = subject
                .recover_with_all(&notes.states)
                .with_context(after)?;
            notes.beside.came_back(testbed, &said).with_context(after)?;
            eprintln!("{cut:?}: state {} of {:?}", subject.now(), notes.states);
            (subject, notes.beside, notes.cuts, notes.turn_ms)
        }
    };
    if subject.lost().is_empty()
        && let Some(cut) = cuts.get(done)
    {
        let before = subject.now();
        let (after, script) = subject.next(Kind::Full);
        Notes {
            cuts: done + 1,
            states: [before, after],
            turn_ms,
            subject: subject.noted(),
            beside: beside.clone(),
        }
        .write()?;
        let chance = Chance::new(seed.wrapping_add(done as u64));
        lose_power(&subject, &script, *cut, turn_ms, chance)?;
    }
    fs::remove_file(NOTES)?;
    beside.remove(testbed)?;
    Ok(subject.lost().to_vec())
}

fn lose_power(
    subject: &Subject,
    script: &str,
    cut: Cut,
    turn_ms: u64,
    mut chance: Chance,
) -> Result<()> {
    let shim = subject.sandbox().shim()?;
    let _turn = match cut {
        Cut::At(point) => {
            let armed = Armed::with(&[&format!("hold {point}")])?;
            let turn = subject.begin(script)?;
            poll("its shim stands still", LIMIT, || {
                Ok(processes::is_stopped(shim).then_some(()))
            })?;
            armed.met()?;
            turn
        }
        Cut::ByChance => {
            let turn = subject.begin(script)?;
            thread::sleep(Duration::from_millis(chance.within(0..turn_ms.max(1))));
            turn
        }
    };
    // As `reboot -ff' is not: that tells the disks to write what they have.
    fs::write("/proc/sysrq-trigger", "b").context("cut the power")?;
    thread::sleep(LIMIT);
    bail!("the machine runs on")
}
