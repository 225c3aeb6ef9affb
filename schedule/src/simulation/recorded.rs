// SPDX-License-Identifier: Apache-2.0
//! How agents behave, as distributions: quantiles at equal steps, taken from 3,400 turns of 170
//! recorded runs of coding agents.

use std::time::Duration;

use crate::Class;

/// The median time that the model of a run thinks, in milliseconds.
const MEDIAN_WAIT_MS: [f64; 11] = [
    2168.0, 2477.0, 2703.0, 2968.0, 3160.0, 3232.0, 3418.0, 3603.0, 3824.0, 4462.0, 5678.0,
];

/// One wait of a run, as a multiple of that.
const WAIT: [f64; 21] = [
    0.20, 0.56, 0.64, 0.70, 0.75, 0.78, 0.83, 0.87, 0.92, 0.97, 1.00, 1.04, 1.11, 1.20, 1.33, 1.51,
    1.85, 2.35, 3.57, 6.22, 51.21,
];

/// What an agent's command takes, in milliseconds.
const EXEC_MS: [f64; 21] = [
    5.0, 10.0, 12.0, 13.0, 14.0, 16.0, 17.0, 19.0, 21.0, 25.0, 32.0, 45.0, 69.0, 147.0, 328.0,
    837.0, 2282.0, 5743.0, 24284.0, 29878.0, 62067.0,
];

/// Of so many turns, so many leave nothing, files, processes.
const TURNS: u32 = 100;
const NOTHING: u32 = 55;
const FILES: u32 = 39;
const PROCESSES: u32 = 3;

fn drawn(quantiles: &[f64], random: &mut fastrand::Rng) -> f64 {
    let steps = quantiles.len() - 1;
    let at = random.f64() * steps as f64;
    let step = (at as usize).min(steps - 1);
    let (low, high) = (quantiles[step], quantiles[step + 1]);
    low + (high - low) * (at - step as f64)
}

fn ms(ms: f64) -> Duration {
    Duration::from_micros((ms * 1000.0) as u64)
}

/// One run's habits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    median_ms: f64,
    /// What a dump of its processes takes, and how much memory they hold.
    pub(super) dump: Duration,
    pub(super) image_bytes: u64,
}

impl Habits {
    pub(super) fn drawn(random: &mut fastrand::Rng) -> Self {
        // From a shell to a server with some hundred megabytes.
        let heavy = random.f64().powi(3);
        Self {
            median_ms: drawn(&MEDIAN_WAIT_MS, random),
            dump: ms(60.0 + 340.0 * heavy),
            image_bytes: (1_000_000.0 + 300_000_000.0 * heavy) as u64,
        }
    }

    pub(super) fn wait(&self, random: &mut fastrand::Rng) -> Duration {
        ms(self.median_ms * drawn(&WAIT, random))
    }

    pub(super) fn capture(&self, class: Class, random: &mut fastrand::Rng) -> (Duration, u64) {
        let spread = 0.8 + 0.4 * random.f64();
        if class.dumps() {
            (self.dump.mul_f64(spread), self.image_bytes)
        } else {
            (ms(4.0 * spread), 64_000)
        }
    }
}

pub(super) fn exec(random: &mut fastrand::Rng) -> Duration {
    ms(drawn(&EXEC_MS, random))
}

/// Nothing if a turn leaves nothing.
pub(super) fn class(random: &mut fastrand::Rng) -> Option<Class> {
    match random.u32(0..TURNS) {
        n if n < NOTHING => None,
        n if n < NOTHING + FILES => Some(Class::Files),
        n if n < NOTHING + FILES + PROCESSES => Some(Class::Processes),
        _ => Some(Class::Full),
    }
}
