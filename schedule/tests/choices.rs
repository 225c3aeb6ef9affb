// SPDX-License-Identifier: Apache-2.0
//! Who is chosen, one rule after the other.

use std::{sync::Arc, time::Duration};

use crab_schedule::{
    Budgets, Class, Decision, End, Hundredths, JobId, Policy, Request, Scheduler, Settings, Stage,
    State, Time, WHOLE,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn scheduler(policy: Policy) -> Scheduler {
    scheduler_of(Settings {
        policy,
        budgets: Budgets {
            dumps: 1,
            publishers: 1,
            disk_bytes_per_s: None,
            staging_bytes: None,
        },
        ..Settings::default()
    })
}

fn scheduler_of(settings: Settings) -> Scheduler {
    Scheduler::new(settings, Time(0))
}

/// A full capture of a sandbox whose agent always waits for so long.
fn request(sandbox: &str, wait: Duration) -> Request {
    Request {
        sandbox: Arc::from(sandbox),
        turn: 1,
        class: Class::Full,
        bytes: 1000,
        weight: WHOLE,
        waits: [wait; 4].into_iter().collect(),
        waiting: Duration::ZERO,
        gated: None,
        gate_limit: MS(2000),
    }
}

fn at(ms: u64) -> Time {
    Time(ms * 1000)
}

fn ask(scheduler: &mut Scheduler, ms: u64, sandbox: &str, wait_ms: u64) -> JobId {
    scheduler.enter(at(ms), request(sandbox, MS(wait_ms)), Stage::Asks)
}

/// The order in which jobs are captured, each for 100 ms.
fn order(scheduler: &mut Scheduler, mut ms: u64) -> Vec<JobId> {
    let mut order = Vec::new();
    loop {
        let decisions = scheduler.decide(at(ms));
        let Some(job) = decisions.into_iter().find_map(|decision| match decision {
            Decision::Capture(job) => Some(job),
            _ => None,
        }) else {
            return order;
        };
        order.push(job);
        ms += 100;
        scheduler.captured(at(ms), job, 0);
        scheduler.end(at(ms), job, End::Durable);
    }
}

#[test]
fn fifo_takes_them_as_they_came_whoever_waits() {
    let mut scheduler = scheduler(Policy::Fifo);
    let first = ask(&mut scheduler, 0, "a", 9000);
    let second = ask(&mut scheduler, 1, "b", 10);
    scheduler.gate(at(2), second, true);
    assert_eq!(order(&mut scheduler, 3), [first, second]);
}

#[test]
fn reactive_takes_first_what_an_agent_waits_for() {
    let mut scheduler = scheduler(Policy::Reactive);
    let first = ask(&mut scheduler, 0, "a", 9000);
    let second = ask(&mut scheduler, 1, "b", 5000);
    let third = ask(&mut scheduler, 2, "c", 9000);
    scheduler.gate(at(3), third, true);
    assert_eq!(order(&mut scheduler, 4), [third, first, second]);
}

#[test]
fn predictive_takes_first_whose_agent_goes_on_soonest() {
    let mut scheduler = scheduler(Policy::Predictive);
    let slow = ask(&mut scheduler, 0, "a", 9000);
    let quick = ask(&mut scheduler, 1, "b", 400);
    let middling = ask(&mut scheduler, 2, "c", 3000);
    let waited_for = ask(&mut scheduler, 3, "d", 9000);
    scheduler.gate(at(4), waited_for, true);
    let expected = [waited_for, quick, middling, slow];
    assert_eq!(order(&mut scheduler, 5), expected);
}

#[test]
fn a_long_capture_has_to_begin_sooner_than_a_short_one() {
    let mut scheduler = scheduler(Policy::Predictive);
    let long = ask(&mut scheduler, 0, "long", 3000);
    scheduler.decide(at(0));
    scheduler.captured(at(1500), long, 1000);
    scheduler.end(at(1500), long, End::Durable);
    let short = ask(&mut scheduler, 2000, "short", 2900);
    let long = ask(&mut scheduler, 2000, "long", 3000);
    assert_eq!(order(&mut scheduler, 2000), [long, short]);
}

#[test]
fn who_has_waited_for_a_second_of_a_long_wait_is_not_urgent() {
    let mut scheduler = scheduler(Policy::Predictive);
    let mut slow = request("slow", MS(9000));
    slow.waiting = MS(1000);
    let slow = scheduler.enter(at(0), slow, Stage::Asks);
    let quick = ask(&mut scheduler, 0, "quick", 2000);
    assert_eq!(order(&mut scheduler, 0), [quick, slow]);
}

#[test]
fn a_gate_that_was_held_for_too_long_ends_a_capture_that_has_not_begun() {
    let mut scheduler = scheduler(Policy::Predictive);
    let running = ask(&mut scheduler, 0, "a", 100);
    assert_eq!(scheduler.decide(at(0)), [Decision::Capture(running)]);
    let waiting = ask(&mut scheduler, 0, "b", 100);
    scheduler.gate(at(100), waiting, true);
    assert_eq!(scheduler.decide(at(2099)), []);
    assert_eq!(scheduler.next(), Some(at(2100)));
    assert_eq!(scheduler.decide(at(2100)), [Decision::GiveUp(waiting)]);
    assert_eq!(scheduler.counts().given_up, 1);
    let ended = scheduler.ended().next().unwrap();
    assert_eq!(ended.end.state(), State::Failed);
    assert!(ended.end.reason().starts_with("given up"));
}

#[test]
fn a_gate_that_is_left_gives_nothing_up() {
    let mut scheduler = scheduler(Policy::Predictive);
    let running = ask(&mut scheduler, 0, "a", 100);
    let waiting = ask(&mut scheduler, 0, "b", 100);
    scheduler.decide(at(0));
    scheduler.gate(at(100), waiting, true);
    scheduler.gate(at(200), waiting, false);
    assert_eq!(scheduler.decide(at(5000)), []);
    scheduler.end(at(5000), running, End::Durable);
    assert_eq!(scheduler.decide(at(5000)), [Decision::Capture(waiting)]);
}

#[test]
fn files_that_are_captured_already_wait_for_no_dump() {
    let mut scheduler = scheduler(Policy::Predictive);
    let dump = ask(&mut scheduler, 0, "a", 100);
    assert_eq!(scheduler.decide(at(0)), [Decision::Capture(dump)]);
    let mut files = request("b", MS(100));
    files.class = Class::Files;
    let files = scheduler.enter(at(1), files, Stage::Captured(5));
    assert_eq!(scheduler.decide(at(1)), [Decision::Publish(files)]);
}

#[test]
fn publications_of_agents_that_are_held_back_come_first() {
    let mut scheduler = scheduler(Policy::Predictive);
    let captured = Stage::Captured(5);
    let first = scheduler.enter(at(0), request("a", MS(100)), captured);
    let second = scheduler.enter(at(0), request("b", MS(200)), captured);
    let third = scheduler.enter(at(0), request("c", MS(9000)), captured);
    scheduler.gate(at(1), third, true);
    assert_eq!(scheduler.decide(at(1)), [Decision::Publish(third)]);
    scheduler.end(at(2), third, End::Durable);
    assert_eq!(scheduler.decide(at(2)), [Decision::Publish(first)]);
    scheduler.end(at(3), first, End::Durable);
    assert_eq!(scheduler.decide(at(3)), [Decision::Publish(second)]);
}

#[test]
fn under_pressure_the_background_steps_back_and_agents_do_not() {
    let mut scheduler = scheduler_of(Settings {
        budgets: Budgets {
            dumps: 4,
            publishers: 4,
            disk_bytes_per_s: None,
            staging_bytes: None,
        },
        ..Settings::default()
    });
    (0..4).for_each(|_| scheduler.pressure(Hundredths(90_00)));
    let jobs: Vec<JobId> = (0..4)
        .map(|n| ask(&mut scheduler, 0, &format!("s{n}"), 3000))
        .collect();
    assert_eq!(scheduler.decide(at(0)), [Decision::Capture(jobs[0])]);
    scheduler.gate(at(1), jobs[3], true);
    assert_eq!(scheduler.decide(at(1)), [Decision::Capture(jobs[3])]);
}

#[test]
fn a_heavier_sandbox_has_more_of_the_captures() {
    let mut scheduler = scheduler(Policy::Predictive);
    let mut taken = [0, 0];
    let weights = [WHOLE, 3 * WHOLE];
    let names = ["light", "heavy"];
    let mut open = [None, None];
    let mut ms = 0;
    while ms < 200_000 {
        for side in 0..2 {
            if open[side].is_none() {
                let mut request = request(names[side], MS(3000));
                request.weight = weights[side];
                open[side] = Some(scheduler.enter(at(ms), request, Stage::Asks));
            }
        }
        for decision in scheduler.decide(at(ms)) {
            if let Decision::Capture(job) = decision {
                ms += 100;
                scheduler.captured(at(ms), job, 0);
                scheduler.end(at(ms), job, End::Durable);
                let side = usize::from(open[1] == Some(job));
                taken[side] += 1;
                open[side] = None;
            }
        }
    }
    let ratio = f64::from(taken[1]) / f64::from(taken[0]);
    assert!((2.5..3.5).contains(&ratio), "{taken:?}");
}

#[test]
fn a_job_of_which_nothing_is_heard_ends() {
    let mut scheduler = scheduler(Policy::Predictive);
    let silent = ask(&mut scheduler, 0, "a", 100);
    let other = ask(&mut scheduler, 0, "b", 100);
    assert_eq!(scheduler.decide(at(0)), [Decision::Capture(silent)]);
    assert_eq!(scheduler.next(), Some(at(60_000)));
    assert_eq!(scheduler.decide(at(60_000)), [Decision::Capture(other)]);
    assert_eq!(scheduler.counts().failed, 1);
    scheduler.captured(at(60_001), silent, 5);
    assert_eq!(scheduler.in_use().0, 1, "what ended is not heard again");
}

#[test]
fn a_shim_that_is_gone_leaves_nothing() {
    let mut scheduler = scheduler(Policy::Predictive);
    let dump = ask(&mut scheduler, 0, "a", 100);
    let mut more = request("a", MS(100));
    more.turn = 2;
    scheduler.enter(at(0), more, Stage::Captured(7));
    scheduler.decide(at(0));
    scheduler.gone(at(1), "a", "its shim ended");
    assert_eq!(scheduler.jobs().count(), 0);
    assert_eq!(scheduler.in_use(), (0, 0, 0));
    assert_eq!(scheduler.ended().next().unwrap().id, dump);
}

#[test]
fn what_was_captured_without_an_answer_counts_as_such() {
    let mut scheduler = scheduler(Policy::Predictive);
    let dump = ask(&mut scheduler, 0, "a", 100);
    let impatient = ask(&mut scheduler, 0, "b", 100);
    assert_eq!(scheduler.decide(at(0)), [Decision::Capture(dump)]);
    scheduler.captured(at(300), impatient, 5);
    assert_eq!(scheduler.counts().ungranted, 1);
    assert_eq!(scheduler.decide(at(300)), [Decision::Publish(impatient)]);
    assert_eq!(scheduler.in_use().0, 1, "the other one still dumps");
}
