// SPDX-License-Identifier: Apache-2.0

//! Everything dies at some turn, is brought back, and goes on to the end.

use std::{
    ops::Range,
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, bail};

use super::{
    drive::{Done, Hand, Part},
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
        let hand = reference.marks.set_up(part, keeper.sandbox())?;
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
            begins,
            mut witness,
            ..
        } = self;
        let part = keeper.part();
        let keeper = bring_back(keeper, &begins, reference, slots, crash)?;
        let hand = Hand::on(part, keeper.sandbox())?;
        let init = keeper.sandbox().pid()?;
        let found = reference.compare(crash.back_at, &mut witness, init)?;
        crash.differ("at once", found);
        let turns = part.trace.turns.len();
        play(&hand, part, crash.back_at..turns, reference, tempo, crash)?;
        let found = reference.compare(turns, &mut witness, init)?;
        crash.differ("at the end", found);
        Ok(())
    }
}

/// Brings it back, and notes what that was and how long it took until the next command could be
/// given.
fn bring_back<'a>(
    keeper: Keeper<'a>,
    begins: &[SystemTime],
    reference: &Reference,
    slots: &Slots,
    crash: &mut Crash,
) -> Result<Keeper<'a>> {
    let _slot = slots.take();
    let part = keeper.part();
    let began = Instant::now();
    let back = keeper.bring_back(crash.turn, begins, reference.marks)?;
    drop(Hand::take_up(part, back.keeper.sandbox())?);
    crash.recover_ms = began.elapsed().as_secs_f64() * 1e3;
    crash.back_at = back.at;
    Ok(back.keeper)
}

/// Plays a turn, counted from 0, and notes how it ended otherwise.
fn step(
    hand: &Hand<'_>,
    part: &Part,
    n: usize,
    reference: &Reference,
    tempo: &Tempo,
    crash: &mut Crash,
) -> Result<Done> {
    tempo.wait(&part.trace, n);
    let done = hand.turn(n, &reference.marks.after(n))?;
    crash.differences.extend(reference.otherwise(n, done));
    Ok(done)
}

fn play(
    hand: &Hand<'_>,
    part: &Part,
    turns: Range<usize>,
    reference: &Reference,
    tempo: &Tempo,
    crash: &mut Crash,
) -> Result<()> {
    for n in turns {
        let done = step(hand, part, n, reference, tempo, crash)?;
        if done.was_killed() && reference.otherwise(n, done).is_some() {
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
    drop(reference.marks.set_up(part, keeper.sandbox())?);
    let mut begins: Vec<SystemTime> = Vec::new();
    let turns = part.trace.turns.len();
    for turn in 1..=turns {
        let mut crash = Crash::at(part, turn);
        // From where it is: a turn that was lost is played again.
        for n in begins.len()..turn {
            let hand = Hand::on(part, keeper.sandbox())?;
            let done = step(&hand, part, n, reference, tempo, &mut crash)?;
            begins.push(done.began);
        }
        let doomed = Doomed::of(keeper.sandbox())?;
        thread::sleep(Duration::from_millis(chance.within(0..WINDOW)));
        doomed.kill()?;
        keeper = bring_back(keeper, &begins, reference, slots, &mut crash)?;
        let init = keeper.sandbox().pid()?;
        let found = reference.compare(crash.back_at, &mut witness, init)?;
        crash.differences.extend(found);
        begins.truncate(crash.back_at);
        crashes.push(crash);
    }
    // What the last death has cost, and the end.
    let Some(last) = crashes.last_mut() else {
        return Ok(());
    };
    let hand = Hand::on(part, keeper.sandbox())?;
    play(&hand, part, begins.len()..turns, reference, tempo, last)?;
    let found = reference.compare(turns, &mut witness, keeper.sandbox().pid()?)?;
    last.differ("at the end", found);
    Ok(())
}
