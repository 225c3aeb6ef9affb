// SPDX-License-Identifier: Apache-2.0
//! Whole hosts with recorded waits, on a simulated clock.

use std::time::Duration;

use crab_schedule::{
    Policy,
    simulation::{Outcome, Setup, run},
};

fn host(policy: Policy, sandboxes: u32, turns: u64, seed: u64) -> Outcome {
    run(&Setup {
        sandboxes,
        turns,
        seed,
        // As busy as two dumps at a time can be.
        faster: 1.75,
        ..Setup::host(policy, 2)
    })
}

#[test]
fn a_thousand_sandboxes_and_a_hundred_thousand_turns_leave_nobody_behind() {
    let outcome = host(Policy::Predictive, 1000, 100_000, 1);
    assert_eq!(outcome.turns, 100_000);
    assert_eq!(outcome.starved, 0);
    assert_eq!(outcome.endless, 0);
    assert!(outcome.counts.captures > 5000, "{:?}", outcome.counts);
    let (dumps, publications, bytes) = outcome.most;
    assert!(dumps <= 2 && publications <= 4 && bytes <= 4 << 30);
    assert_eq!(outcome.exposed_at(50), Duration::ZERO);
    assert!(outcome.exposed_at(99) < Duration::from_millis(50));
}

#[test]
fn agents_are_held_back_less_the_more_is_known_of_them() {
    let exposed = |policy| {
        let seeds = 1..=3;
        let each = seeds.map(|seed| host(policy, 1000, 20_000, seed).exposed_in_all());
        each.sum::<Duration>()
    };
    let (fifo, reactive, predictive) = (
        exposed(Policy::Fifo),
        exposed(Policy::Reactive),
        exposed(Policy::Predictive),
    );
    assert!(reactive * 2 < fifo, "{reactive:?} against {fifo:?}");
    assert!(predictive < reactive, "{predictive:?} against {reactive:?}");
}

#[test]
fn the_same_seed_gives_the_same_host() {
    for policy in Policy::ALL {
        assert_eq!(host(policy, 50, 2000, 9), host(policy, 50, 2000, 9));
    }
}
