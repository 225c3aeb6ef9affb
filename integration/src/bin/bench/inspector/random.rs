// SPDX-License-Identifier: Apache-2.0

//! Random turns, two sandboxes at a time: each turn's class beside what it changed.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Result, anyhow};
use crab_integration::{
    Testbed,
    proof::{TURNS_OF_A_LIFE, Tally},
};

use super::{Measured, Plan};

const AT_ONCE: usize = 2;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let began = Instant::now();
    let lives = plan.turns.div_ceil(TURNS_OF_A_LIFE);
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Tally::default());
    let work = || -> Result<()> {
        loop {
            let life = next.fetch_add(1, Ordering::Relaxed);
            if life >= lives {
                return Ok(());
            }
            let left = plan.turns - life * TURNS_OF_A_LIFE;
            let mut tally = Tally::default();
            let seed = plan.seed.wrapping_add(life as u64);
            let client = testbed.clients()[(seed / 2 % 2) as usize];
            tally.live(client, seed, left.min(TURNS_OF_A_LIFE))?;
            for wrong in &tally.missed {
                eprintln!("missed: {wrong}");
            }
            for wrong in &tally.needless {
                eprintln!("needless: {wrong}");
            }
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(tally);
            if all.turns % 1000 < TURNS_OF_A_LIFE {
                eprintln!(
                    "{} turns after {:.0} s: {} missed, {} needless",
                    all.turns,
                    began.elapsed().as_secs_f64(),
                    all.missed.len(),
                    all.needless.len()
                );
            }
        }
    };
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker
                .join()
                .map_err(|_| anyhow!("who lives the turns has panicked"))??;
        }
        Ok(())
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    measured.enter("random_turns", all.turns as f64);
    measured.enter("false_negatives", all.missed.len() as f64);
    measured.enter("false_positives_pct", all.needless_percent());
    measured.detail("random: unobserved turns", all.unobserved as f64);
    for (class, count) in &all.classes {
        measured.detail(format!("random: turns of class {class}"), *count as f64);
    }
    let rate = all.turns as f64 / began.elapsed().as_secs_f64();
    measured.detail("random: turns a second", rate);
    Ok(())
}
