// SPDX-License-Identifier: Apache-2.0

//! A disk that fills up anywhere in a turn, a rollback or a restore.
//!
//! The store is on a disk of its own, on which there is room for a part of what is to be written,
//! by chance. Whether that was enough or not: the agent's command ends well, everything
//! published is what it was, and as soon as there is room, what was not captured is.

use anyhow::{Context, Result, ensure};
use crab_store::DEFAULT_ROOT;

use super::{Kind, Subject};
use crate::{
    client::RunOptions, command::Output, mounted::SmallDisk, proof::Chance, testbed::Testbed,
};

/// What removes older checkpoints, so that this is done on a full disk as well.
const KEEP: &str = "dev.crab.retention.keep=4";
/// What the store has, in MiB.
const DISK: u32 = 48;
/// More than a checkpoint of the sandbox takes, in bytes.
const ROOM: u64 = 600 << 10;
/// How `crab` ends that has failed, and that has refused.
const IN_VAIN: [i32; 2] = [1, 4];

/// What came of it.
#[derive(Debug, Default)]
pub struct Filled {
    /// How often the disk was full.
    pub rounds: usize,
    /// How often that kept something from being done.
    pub kept_out: usize,
    /// What is lost, a line each.
    pub lost: Vec<String>,
}

/// Fills the disk so often. The same seed gives the same choices.
pub fn full(testbed: &Testbed, rounds: usize, seed: u64) -> Result<Filled> {
    let disk = SmallDisk::new(DISK, DEFAULT_ROOT)?;
    let mut filled = Filled::default();
    {
        let options = RunOptions::without_bytecode().flags(["--annotation", KEEP]);
        let mut subject = Subject::start(testbed, options)?;
        let mut chance = Chance::new(seed);
        for round in 0..rounds {
            // Often next to nothing: then the journal cannot be written either.
            let room = match chance.once_in(4) {
                true => chance.within(0..16 << 10),
                false => chance.within(0..ROOM),
            };
            let kept_out = play(&mut subject, &disk, &mut chance, room)
                .with_context(|| format!("seed {seed}, round {round}, {room} bytes"))?;
            filled.kept_out += usize::from(kept_out);
            filled.rounds += 1;
        }
        filled.lost = subject.lost().to_vec();
    }
    // Whoever has the store open is gone, before its disk is.
    drop(disk);
    Ok(filled)
}

/// Whether anything was kept from being done.
fn play(subject: &mut Subject, disk: &SmallDisk, chance: &mut Chance, room: u64) -> Result<bool> {
    match chance.within(0..6) {
        0 => roll_back(subject, disk, chance, room),
        1 => restore(subject, disk, room),
        2 | 3 => turn(subject, disk, Kind::Files, room),
        _ => turn(subject, disk, Kind::Full, room),
    }
}

fn turn(subject: &mut Subject, disk: &SmallDisk, kind: Kind, room: u64) -> Result<bool> {
    let before = subject.newest()?;
    disk.fill_but(room)?;
    let done = act(subject, kind);
    disk.free()?;
    subject.settle(done?)?;
    // It was made up for when there was room.
    Ok(subject.newest()? != before + 1)
}

/// The agent's command, which ends well, and the next one, which is not held back for ever by
/// what cannot be written.
fn act(subject: &mut Subject, kind: Kind) -> Result<u64> {
    let (turn, number) = subject.turn_only(kind)?;
    turn.wait()?.ok().context("the agent's command")?;
    subject.sandbox().sh_ok("true")?;
    Ok(number)
}

fn roll_back(
    subject: &mut Subject,
    disk: &SmallDisk,
    chance: &mut Chance,
    room: u64,
) -> Result<bool> {
    let target = chance.of(&subject.checkpoints());
    disk.fill_but(room)?;
    let said = subject
        .crab_only(&["rollback", "--turn", &target.to_string()])
        .run();
    disk.free()?;
    let kept_out = in_vain(&said?)?;
    subject.fsck()?;
    if kept_out {
        subject.look()?;
    } else {
        subject.arrive(target)?;
    }
    subject.serve()?;
    Ok(kept_out)
}

fn restore(subject: &mut Subject, disk: &SmallDisk, room: u64) -> Result<bool> {
    let now = subject.now();
    subject.crash()?;
    disk.fill_but(room)?;
    let said = subject.crab_only(&["restore"]).run();
    disk.free()?;
    let kept_out = in_vain(&said?)?;
    subject.fsck()?;
    if kept_out {
        // Nothing of it has begun, or all of it is over.
        subject.check_store(&[now], false)?;
        subject.restore(&[now])?;
    } else {
        subject.look()?;
    }
    subject.serve()?;
    Ok(kept_out)
}

/// Whether a command was kept from being done; it has said why, in one line.
fn in_vain(said: &Output) -> Result<bool> {
    if said.status == 0 {
        return Ok(false);
    }
    let line = said.stderr.trim();
    ensure!(
        IN_VAIN.contains(&said.status) && line.lines().count() == 1 && line.contains("space"),
        "{}: {}: {line}",
        said.command,
        said.status
    );
    Ok(true)
}
