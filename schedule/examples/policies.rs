// SPDX-License-Identifier: Apache-2.0
//! What each policy does to 1,000 agents in 100,000 turns, as JSON.

use std::time::{Duration, Instant};

use crab_schedule::{Policy, simulation};
use serde_json::json;

fn main() {
    let argument = |at: usize, otherwise: u64| {
        let said = std::env::args().nth(at).and_then(|text| text.parse().ok());
        said.unwrap_or(otherwise)
    };
    let (sandboxes, turns, dumps) = (argument(1, 1000), argument(2, 100_000), argument(3, 3));
    for policy in Policy::ALL {
        let began = Instant::now();
        let outcome = simulation::run(&simulation::Setup {
            sandboxes: sandboxes as u32,
            turns,
            faster: argument(4, 150) as f64 / 100.0,
            ..simulation::Setup::host(policy, dumps as usize)
        });
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        println!(
            "{}",
            json!({
                "policy": policy.as_str(),
                "sandboxes": sandboxes,
                "turns": outcome.turns,
                "captures": outcome.counts.captures,
                "exposed_ms_p50": ms(outcome.exposed_at(50)),
                "exposed_ms_p99": ms(outcome.exposed_at(99)),
                "exposed_ms_max": ms(outcome.exposed_at(100)),
                "exposed_s_in_all": outcome.exposed_in_all().as_secs_f64(),
                "given_up": outcome.counts.given_up + outcome.given_up_behind,
                "longest_asking_ms": ms(outcome.longest_asking),
                "starved": outcome.starved,
                "most_dumps": outcome.most.0,
                "most_publications": outcome.most.1,
                "most_bytes": outcome.most.2,
                "endless": outcome.endless,
                "took_ms": ms(began.elapsed()),
            })
        );
    }
}
