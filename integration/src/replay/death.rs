// SPDX-License-Identifier: Apache-2.0

//! Everything dies at some turn, is brought back, and goes on to the end.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, bail};

use super::{
    drive::{Hand, Part},
    keep::{Keeper, Variant, Way},
    kill::Doomed,
    record::Crash,
    reference::{Reference, Tempo},
    state::Witness,
};
use crate::{proof::Chance, testbed::Testbed};

/// So long after the end of a turn everything dies at the latest, in milliseconds: captures are
/// cut off as well as over.
const WINDOW: u64 = 400;
/// So many differences are told.
const TOLD: usize = 8;

/// So many are brought back at once.
pub struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One of them. Free again when dropped.
struct Slot<'a>(&'a Slots);

impl Slots {
    /// All free.
    pub fn new(count: usize) -> Self {
        Self {
            free: Mutex::new(count),
            freed: Condvar::new(),
        }
    }

    fn take(&self) -> Slot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self
            .freed
            .wait_while(free, |free| *free == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// What was killed.
pub struct Dead<'a> {
    keeper: Keeper<'a>,
    reference: &'a Reference,
    turn: usize,
    begins: Vec<SystemTime>,
    /// Of the whole run.
    witness: Witness,
}

impl<'a> Dead<'a> {
    /// Plays so many turns, and kills everything at some moment of the wait that follows; what
    /// the client keeps, it has kept by then.
    pub fn after(
        testbed: &'a Testbed,
        part: &'a Part,
        way: Way,
        reference: &'a Reference,
        tempo: &Tempo,
        turn: usize,
        chance: &mut Chance,
    ) -> Result<Self> {
        let witness = Witness::new();
        let keeper = Keeper::start(testbed, part, way)?;
        let mut begins = Vec::new();
        let hand = Hand::set_up(part, keeper.sandbox())?;
        reference.marks.begin(&hand)?;
        let doomed = Doomed::of(keeper.sandbox())?;
        let moment = Duration::from_millis(chance.within(0..WINDOW));
        for n in 0..turn {
            tempo.wait(&part.trace, n);
            begins.push(hand.turn(n, &reference.marks.after(n))?.began);
            keeper.keep()?;
        }
        thread::sleep(moment);
        doomed.kill()?;
        drop(hand);
        Ok(Self {
            keeper,
            reference,
            turn,
            begins,
            witness,
        })
    }

    /// Brings it back, plays the rest, and compares: right then, and at the end.
    pub fn revive(self, tempo: &Tempo, slots: &Slots) -> Crash {
        let part = self.keeper.part();
        let mut crash = Crash::at(part, self.turn);
        match self.revived(tempo, slots, &mut crash) {
            Ok(()) => crash.recovered = crash.differences.is_empty(),
            Err(error) => crash.differences.push(format!("it broke off: {error:#}")),
        }
        crash.differences.truncate(TOLD);
        crash
    }

    fn revived(self, tempo: &Tempo, slots: &Slots, crash: &mut Crash) -> Result<()> {
        let Self {
            keeper,
            reference,
            turn,
            begins,
            mut witness,
        } = self;
        let part = keeper.part();
        let slot = slots.take();
        let began = Instant::now();
        let back = keeper.bring_back(turn, &begins, reference.marks)?;
        let sandbox = back.keeper.sandbox();
        let hand = Hand::take_up(part, sandbox)?;
        crash.recover_ms = began.elapsed().as_secs_f64() * 1e3;
        drop(slot);
        let init = sandbox.pid()?;
        crash.back_at = back.at;
        let found = reference.compare(back.at, &mut witness, init)?;
        crash
            .differences
            .extend(found.into_iter().map(|line| format!("at once: {line}")));
        play(
            &hand,
            part,
            back.at..part.trace.turns.len(),
            reference,
            tempo,
            crash,
        )?;
        let found = reference.compare(part.trace.turns.len(), &mut witness, init)?;
        crash
            .differences
            .extend(found.into_iter().map(|line| format!("at the end: {line}")));
        Ok(())
    }
}

fn play(
    hand: &Hand<'_>,
    part: &Part,
    turns: std::ops::Range<usize>,
    reference: &Reference,
    tempo: &Tempo,
    crash: &mut Crash,
) -> Result<()> {
    for n in turns {
        tempo.wait(&part.trace, n);
        let done = hand.turn(n, &reference.marks.after(n))?;
        let otherwise = reference.otherwise(n, done);
        let hangs = otherwise.is_some() && done.was_killed();
        crash.differences.extend(otherwise);
        if hangs {
            // As do all that follow, each for as long as its agent has patience.
            bail!("turn {} hangs", n + 1);
        }
    }
    Ok(())
}

/// One run under Crab in which everything dies after every turn: a crash for each. The next turn is
/// played on what came back, and the end has to be as if nothing had been.
pub fn every_turn(
    testbed: &Testbed,
    part: &Part,
    reference: &Reference,
    tempo: &Tempo,
    chance: &mut Chance,
    slots: &Slots,
) -> Vec<Crash> {
    let mut crashes = Vec::new();
    if let Err(error) = die_often(testbed, part, reference, tempo, chance, slots, &mut crashes) {
        // What was not reached is not recovered from.
        for turn in crashes.len() + 1..=part.trace.turns.len() {
            crashes.push(Crash::failed(
                part,
                turn,
                format!("it broke off: {error:#}"),
            ));
        }
    }
    for crash in &mut crashes {
        crash.recovered = crash.differences.is_empty();
        crash.differences.truncate(TOLD);
    }
    crashes
}

fn die_often(
    testbed: &Testbed,
    part: &Part,
    reference: &Reference,
    tempo: &Tempo,
    chance: &mut Chance,
    slots: &Slots,
    crashes: &mut Vec<Crash>,
) -> Result<()> {
    let mut witness = Witness::new();
    let mut keeper = Keeper::start(testbed, part, Way::Crab(Variant::Whole))?;
    let hand = Hand::set_up(part, keeper.sandbox())?;
    reference.marks.begin(&hand)?;
    drop(hand);
    let mut begins: Vec<SystemTime> = Vec::new();
    let turns = part.trace.turns.len();
    for turn in 1..=turns {
        let mut crash = Crash::at(part, turn);
        // From where it is: a turn that was lost is played again.
        for n in begins.len()..turn {
            tempo.wait(&part.trace, n);
            let hand = Hand::on(part, keeper.sandbox())?;
            let done = hand.turn(n, &reference.marks.after(n))?;
            begins.push(done.began);
            crash.differences.extend(reference.otherwise(n, done));
        }
        let doomed = Doomed::of(keeper.sandbox())?;
        thread::sleep(Duration::from_millis(chance.within(0..WINDOW)));
        doomed.kill()?;
        let slot = slots.take();
        let began = Instant::now();
        let back = keeper.bring_back(turn, &begins, reference.marks)?;
        drop(Hand::take_up(part, back.keeper.sandbox())?);
        crash.recover_ms = began.elapsed().as_secs_f64() * 1e3;
        drop(slot);
        crash.back_at = back.at;
        keeper = back.keeper;
        crash.differences.extend(reference.compare(
            back.at,
            &mut witness,
            keeper.sandbox().pid()?,
        )?);
        begins.truncate(back.at);
        crashes.push(crash);
    }
    // What the last death has cost, and the end.
    let hand = Hand::on(part, keeper.sandbox())?;
    let mut last = Crash::at(part, turns);
    play(
        &hand,
        part,
        begins.len()..turns,
        reference,
        tempo,
        &mut last,
    )?;
    let init = keeper.sandbox().pid()?;
    let found = reference.compare(turns, &mut witness, init)?;
    if let Some(crash) = crashes.last_mut() {
        crash.differences.append(&mut last.differences);
        let found = found.into_iter();
        crash
            .differences
            .extend(found.map(|line| format!("at the end: {line}")));
    }
    Ok(())
}
