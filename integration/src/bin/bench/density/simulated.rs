// SPDX-License-Identifier: Apache-2.0

//! A thousand agents on a clock of their own: the code that decides in crabd, without a host.

use std::time::Duration;

use crab_schedule::{Policy, simulation};

use super::Plan;
use crate::figures::Measured;

const SANDBOXES: u32 = 1000;
const TURNS: u64 = 100_000;
const DUMPS: usize = 2;
/// By how much faster than recorded they are, so that so many dumps at a time are hardly enough.
const FASTER: f64 = 1.5;

/// Every policy once.
pub(super) fn measure(plan: &Plan, measured: &mut Measured) {
    let mut starved = 0;
    for policy in Policy::ALL {
        let outcome = simulation::run(&simulation::Setup {
            sandboxes: SANDBOXES,
            turns: TURNS,
            seed: plan.seed,
            faster: FASTER,
            ..simulation::Setup::host(policy, DUMPS)
        });
        // One that never came to an end waits for ever.
        starved += outcome.starved + outcome.endless as u64;
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let name = policy.as_str();
        for (what, value) in [
            ("turns", outcome.turns as f64),
            ("captures", outcome.counts.captures as f64),
            ("exposed, s in all", outcome.exposed_in_all().as_secs_f64()),
            ("exposed, ms p99", ms(outcome.exposed_at(99))),
            ("exposed, ms at most", ms(outcome.exposed_at(100))),
            ("longest asking, ms", ms(outcome.longest_asking)),
        ] {
            measured.detail(format!("simulated {name}: {what}"), value);
        }
    }
    measured.enter("sim_sandboxes", f64::from(SANDBOXES));
    measured.enter("starved", starved as f64);
}
