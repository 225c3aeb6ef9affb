// SPDX-License-Identifier: Apache-2.0
//! What is counted of turns, from the records of their journals.
//!
//! No metric names a sandbox: those come and go without an end, and everything that ever had one of its
//! own would stay with whoever scrapes. `crab events` and `crab turns` tell of single ones.

use std::time::Duration;

use crab_store::{Class, FailureKind, JournalRecord, Span, Step, Trigger, TurnRecord};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

type Label = (&'static str, &'static str);
type Counters<const N: usize> = Family<[Label; N], Counter>;
type Histograms = Family<[Label; 1], Histogram, fn() -> Histogram>;

/// The classes of turns.
const CLASSES: [Class; 4] = [Class::None, Class::Files, Class::Processes, Class::Full];

/// From a tenth of a millisecond to a minute.
const BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// The class of a turn whose capture failed.
const UNKNOWN: &str = "unknown";

/// What has become of a checkpoint that a turn needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Durable,
    /// It is, and lacks its process image.
    FilesOnly,
    Failed(FailureKind),
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Durable,
        Self::FilesOnly,
        Self::Failed(FailureKind::GivenUp),
        Self::Failed(FailureKind::Merged),
        Self::Failed(FailureKind::NoSpace),
        Self::Failed(FailureKind::Other),
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::FilesOnly => "files_only",
            Self::Failed(FailureKind::GivenUp) => "given_up",
            Self::Failed(FailureKind::Merged) => "merged",
            Self::Failed(FailureKind::NoSpace) => "no_space",
            Self::Failed(FailureKind::Other) => "failed",
        }
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// The metrics.
pub(super) struct History {
    turns: Counters<1>,
    checkpoints: Counters<2>,
    unobserved: Counter,
    sandboxes: Counters<1>,
    rollbacks: Counters<1>,
    removed: Counter,
    captured_bytes: Counter,
    stored_bytes: Counter,
    gate: Histogram,
    decide: Histogram,
    wait: Histogram,
    capture: Histograms,
    frozen: Histograms,
    publish: Histograms,
}

fn class(class: Class) -> [Label; 1] {
    [("class", class.as_str())]
}

impl History {
    /// Registers them, each with all values that its labels can have: what has not happened is 0, and
    /// not unknown.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let per_class = || Histograms::new_with_constructor(histogram);
        let history = Self {
            turns: Counters::default(),
            checkpoints: Counters::default(),
            unobserved: Counter::default(),
            sandboxes: Counters::default(),
            rollbacks: Counters::default(),
            removed: Counter::default(),
            captured_bytes: Counter::default(),
            stored_bytes: Counter::default(),
            gate: histogram(),
            decide: histogram(),
            wait: histogram(),
            capture: per_class(),
            frozen: per_class(),
            publish: per_class(),
        };
        for of in CLASSES {
            history.turns.get_or_create_owned(&class(of));
        }
        for of in [Class::Files, Class::Processes, Class::Full] {
            for family in [&history.capture, &history.frozen, &history.publish] {
                family.get_or_create_owned(&class(of));
            }
        }
        for outcome in Outcome::ALL {
            if let Outcome::Failed(_) = outcome {
                history.outcome(UNKNOWN, outcome);
                continue;
            }
            for of in [Class::Files, Class::Processes, Class::Full] {
                history.outcome(of.as_str(), outcome);
            }
        }
        for event in ["started", "ended", "forked", "restored"] {
            history.sandboxes.get_or_create_owned(&[("event", event)]);
        }
        for kind in ["warm", "cold"] {
            history.rollbacks.get_or_create_owned(&[("kind", kind)]);
        }
        history.register(registry);
        history
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "crab_turns",
            "Turns that are over, by what they needed",
            self.turns.clone(),
        );
        registry.register(
            "crab_checkpoints",
            "Checkpoints that turns needed, by what became of them",
            self.checkpoints.clone(),
        );
        registry.register(
            "crab_turns_unobserved",
            "Turns for which the kernel's counters could not be used",
            self.unobserved.clone(),
        );
        registry.register(
            "crab_sandbox_events",
            "Sandboxes that started, ended, or began as copies or from a checkpoint",
            self.sandboxes.clone(),
        );
        registry.register(
            "crab_rollbacks",
            "Rollbacks, under living processes (warm) or with other ones (cold)",
            self.rollbacks.clone(),
        );
        registry.register(
            "crab_checkpoints_removed",
            "Checkpoints that were removed because nobody wanted to keep them",
            self.removed.clone(),
        );
        registry.register(
            "crab_captured_bytes",
            "What checkpoints gave to the store",
            self.captured_bytes.clone(),
        );
        registry.register(
            "crab_stored_bytes",
            "What they added to it, after equal content was found and the rest compressed",
            self.stored_bytes.clone(),
        );
        let mut times = |name, help, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        times(
            "crab_gate_delay",
            "For how long turns were held back before they began (exposed delay)",
            &self.gate,
        );
        times(
            "crab_decide",
            "From the look at a turn's end to its class",
            &self.decide,
        );
        times(
            "crab_capture_wait",
            "For how long captures waited for their turn among all sandboxes",
            &self.wait,
        );
        let mut times = |name, help, histograms: &Histograms| {
            registry.register_with_unit(name, help, Unit::Seconds, histograms.clone());
        };
        times(
            "crab_capture",
            "How long captures took, until they let go of the sandbox",
            &self.capture,
        );
        times(
            "crab_frozen",
            "For how long sandboxes stood still for a capture",
            &self.frozen,
        );
        times(
            "crab_publish",
            "How long it took to store what was captured",
            &self.publish,
        );
    }

    /// Counts what a record tells.
    pub(super) fn count(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Turn(record) => self.turn(record),
            JournalRecord::CaptureFailed(failed) => {
                self.outcome(UNKNOWN, Outcome::Failed(failed.kind)).inc();
            }
            JournalRecord::Rollback(back) => {
                let kind = if back.warm { "warm" } else { "cold" };
                self.rollbacks.get_or_create(&[("kind", kind)]).inc();
            }
            JournalRecord::Restore(_) => self.sandbox("restored"),
            JournalRecord::Fork(_) => self.sandbox("forked"),
            JournalRecord::Ended(_) => self.sandbox("ended"),
            JournalRecord::Removed(removed) => {
                self.removed.inc_by(removed.turns.len() as u64);
            }
            JournalRecord::Step(step) => {
                if let Step::Opened {
                    trigger: Trigger::Start,
                    ..
                } = step.step
                {
                    self.sandbox("started");
                }
            }
            // A step of the same start, or a restore, says it already.
            JournalRecord::Began(_) | JournalRecord::Unknown => {}
        }
    }

    fn sandbox(&self, event: &'static str) {
        self.sandboxes.get_or_create(&[("event", event)]).inc();
    }

    fn outcome(&self, class: &'static str, outcome: Outcome) -> Counter {
        let labels = [("class", class), ("outcome", outcome.as_str())];
        self.checkpoints.get_or_create_owned(&labels)
    }

    fn turn(&self, record: &TurnRecord) {
        // A copy's first turn is the original's.
        if record.trigger == Trigger::Fork {
            return;
        }
        let of = class(record.class);
        let cost = &record.cost;
        self.turns.get_or_create(&of).inc();
        self.gate.observe(seconds(cost.gate_us));
        self.decide.observe(seconds(cost.decide_us));
        if record.unobserved.is_some() {
            self.unobserved.inc();
        }
        if record.checkpoint != Some(record.turn) {
            return;
        }
        let outcome = match record.degraded {
            Some(_) => Outcome::FilesOnly,
            None => Outcome::Durable,
        };
        self.outcome(record.class.as_str(), outcome).inc();
        self.captured_bytes.inc_by(cost.bytes_raw);
        self.stored_bytes.inc_by(cost.bytes_stored);
        // Of a turn that was written down by another shim than took it nobody knows.
        if cost.capture_us > 0 {
            let (capture, frozen) = (seconds(cost.capture_us), seconds(cost.frozen_us));
            self.capture.get_or_create(&of).observe(capture);
            self.frozen.get_or_create(&of).observe(frozen);
        }
        let took = |span: Option<Span>| span.map(|span| seconds(span.took_us));
        if let Some(waited) = took(record.spans.wait) {
            self.wait.observe(waited);
        }
        if let Some(stored) = took(record.spans.publish) {
            self.publish.get_or_create(&of).observe(stored);
        }
    }
}

fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{CaptureFailed, Cost, EndedRecord, RollbackRecord, Spans, TurnId};
    use prometheus_client::encoding::{prometheus_text, text};

    fn turn(number: u64, class: Class) -> TurnRecord {
        TurnRecord {
            ended_ms: 1,
            class,
            checkpoint: (class != Class::None).then_some(TurnId(number)),
            cost: Cost {
                gate_us: 2000,
                frozen_us: 40_000,
                capture_us: 60_000,
                bytes_raw: 1000,
                bytes_stored: 100,
                ..Cost::default()
            },
            spans: Spans {
                wait: Some(Span {
                    at_us: 1,
                    took_us: 700_000,
                }),
                ..Spans::default()
            },
            ..TurnRecord::new(TurnId(number), Trigger::Exec)
        }
    }

    fn value(text: &str, series: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        let line = line.unwrap_or_else(|| panic!("no {series} in {text}"));
        line.trim().parse().unwrap()
    }

    #[test]
    fn records_become_counts_and_what_has_not_happened_is_zero() {
        let mut registry = Registry::default();
        let mut history = History::new(&mut registry);
        let mut lacking = turn(3, Class::Full);
        lacking.degraded = Some("files only: no criu".to_owned());
        let mut copy = turn(0, Class::Full);
        copy.trigger = Trigger::Fork;
        let mut lost = turn(4, Class::None);
        lost.checkpoint = None;
        for record in [
            JournalRecord::Turn(copy),
            JournalRecord::Turn(turn(1, Class::None)),
            JournalRecord::Turn(turn(2, Class::Full)),
            JournalRecord::Turn(lacking),
            JournalRecord::Turn(lost),
            JournalRecord::CaptureFailed(CaptureFailed {
                at_ms: 1,
                turn: TurnId(4),
                reason: String::new(),
                kind: FailureKind::GivenUp,
            }),
            JournalRecord::Rollback(RollbackRecord {
                at_ms: 1,
                from: TurnId(3),
                asked: TurnId(2),
                checkpoint: TurnId(2),
                processes: true,
                took_us: 1,
                warm: true,
            }),
            JournalRecord::Ended(EndedRecord {
                at_ms: 2,
                exit: 0,
                with_host: false,
            }),
            JournalRecord::Unknown,
        ] {
            history.count(&record);
        }
        let mut told = String::new();
        prometheus_text::encode(&mut told, &registry).unwrap();
        for (series, expected) in [
            (r#"crab_turns_total{class="none"}"#, 2.0),
            (r#"crab_turns_total{class="full"}"#, 2.0),
            (r#"crab_turns_total{class="files"}"#, 0.0),
            (
                r#"crab_checkpoints_total{class="full",outcome="durable"}"#,
                1.0,
            ),
            (
                r#"crab_checkpoints_total{class="full",outcome="files_only"}"#,
                1.0,
            ),
            (
                r#"crab_checkpoints_total{class="unknown",outcome="given_up"}"#,
                1.0,
            ),
            (
                r#"crab_checkpoints_total{class="unknown",outcome="no_space"}"#,
                0.0,
            ),
            (
                r#"crab_checkpoints_total{class="files",outcome="durable"}"#,
                0.0,
            ),
            (r#"crab_rollbacks_total{kind="warm"}"#, 1.0),
            (r#"crab_sandbox_events_total{event="ended"}"#, 1.0),
            ("crab_captured_bytes_total ", 2000.0),
            ("crab_stored_bytes_total ", 200.0),
            ("crab_gate_delay_seconds_count ", 4.0),
            (r#"crab_gate_delay_seconds_bucket{le="0.001"} "#, 0.0),
            (r#"crab_gate_delay_seconds_bucket{le="0.0025"} "#, 4.0),
            (r#"crab_frozen_seconds_sum{class="full"} "#, 0.08),
            (r#"crab_frozen_seconds_count{class="files"} "#, 0.0),
            ("crab_capture_wait_seconds_sum ", 1.4),
        ] {
            assert_eq!(value(&told, series), expected, "{series}");
        }
        let mut open = String::new();
        text::encode(&mut open, &registry).unwrap();
        assert!(open.ends_with("# EOF\n"));
    }
}
