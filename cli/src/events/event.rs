// SPDX-License-Identifier: Apache-2.0

//! What happens in sandboxes, made of their journals' records. Pure.
//!
//! ```text
//! opened ---> turn-opened (of the start: sandbox-started)
//! queued ---> checkpoint-queued
//! captured -> turn-closed, checkpoint-captured
//! turn -----> checkpoint-durable; turn-closed, if it was not captured
//! ```
//! Journals of earlier versions have turns alone, of which the same is told at once.

use crab_store::{Class, JournalRecord, SandboxId, Step, StepRecord, Trigger, TurnId, TurnRecord};
use serde::Serialize;

use crate::output::{duration, rfc3339, size, visible};

/// One thing that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Event {
    /// In milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    pub(crate) sandbox: SandboxId,
    #[serde(flatten)]
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum What {
    SandboxStarted {
        turn: TurnId,
        command: String,
    },
    SandboxForked {
        from: SandboxId,
        from_turn: TurnId,
    },
    SandboxRestored(Back),
    SandboxEnded {
        exit: u32,
    },
    TurnOpened {
        turn: TurnId,
        trigger: &'static str,
        command: String,
    },
    TurnClosed {
        turn: TurnId,
        /// Not known of one whose capture failed.
        class: Option<Class>,
        exit: Option<i32>,
    },
    CheckpointQueued {
        turn: TurnId,
    },
    CheckpointCaptured {
        turn: TurnId,
        class: Class,
    },
    CheckpointDurable {
        turn: TurnId,
        class: Class,
        bytes_stored: u64,
        frozen_us: u64,
        /// For how long an agent was held back before this turn.
        gate_us: u64,
        /// What it lacks.
        #[serde(skip_serializing_if = "Option::is_none")]
        degraded: Option<String>,
    },
    CheckpointFailed {
        turn: TurnId,
        kind: &'static str,
        reason: String,
    },
    CheckpointsRemoved {
        turns: Vec<TurnId>,
        why: String,
    },
    RolledBack(Back),
}

/// Back to the end of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Back {
    /// The newest turn then.
    from_turn: TurnId,
    to_turn: TurnId,
    checkpoint: TurnId,
    warm: bool,
    took_us: u64,
}

/// What of a sandbox's turns has been told already.
#[derive(Debug, Default)]
pub(crate) struct Told {
    started: Option<TurnId>,
    closed: Option<TurnId>,
}

impl Told {
    /// What a record tells.
    pub(crate) fn events(&mut self, sandbox: &SandboxId, record: &JournalRecord) -> Vec<Event> {
        let event = |at_ms, what| Event {
            at_ms,
            sandbox: sandbox.clone(),
            what,
        };
        match record {
            JournalRecord::Step(record) => {
                let whats = self.step(record);
                let whats = whats.into_iter();
                whats.map(|what| event(record.at_ms, what)).collect()
            }
            JournalRecord::Turn(record) => {
                let whats = self.turn(record).into_iter();
                whats.map(|(at_ms, what)| event(at_ms, what)).collect()
            }
            JournalRecord::Rollback(back) | JournalRecord::Restore(back) => {
                let of = Back {
                    from_turn: back.from,
                    to_turn: back.asked,
                    checkpoint: back.checkpoint,
                    warm: back.warm,
                    took_us: back.took_us,
                };
                let what = match record {
                    JournalRecord::Rollback(_) => What::RolledBack(of),
                    _ => What::SandboxRestored(of),
                };
                vec![event(back.at_ms, what)]
            }
            JournalRecord::CaptureFailed(failed) => {
                let what = What::CheckpointFailed {
                    turn: failed.turn,
                    kind: failed.kind.as_str(),
                    reason: failed.reason.clone(),
                };
                vec![event(failed.at_ms, what)]
            }
            JournalRecord::Removed(removed) => {
                let what = What::CheckpointsRemoved {
                    turns: removed.turns.clone(),
                    why: removed.why.clone(),
                };
                vec![event(removed.at_ms, what)]
            }
            JournalRecord::Fork(fork) => {
                let what = What::SandboxForked {
                    from: fork.from.clone(),
                    from_turn: fork.turn,
                };
                vec![event(fork.at_ms, what)]
            }
            JournalRecord::Ended(ended) => {
                let what = What::SandboxEnded { exit: ended.exit };
                vec![event(ended.at_ms, what)]
            }
            // A step of the same start, or a restore, says it already.
            JournalRecord::Began(_) | JournalRecord::Unknown => Vec::new(),
        }
    }

    fn step(&mut self, record: &StepRecord) -> Vec<What> {
        let turn = record.turn;
        match &record.step {
            Step::Opened {
                trigger: Trigger::Start,
                command,
            } => {
                self.started = Some(turn);
                let command = command.clone();
                vec![What::SandboxStarted { turn, command }]
            }
            Step::Opened { trigger, command } => vec![What::TurnOpened {
                turn,
                trigger: trigger.as_str(),
                command: command.clone(),
            }],
            Step::Queued => vec![What::CheckpointQueued { turn }],
            Step::Captured { class, exit } => {
                let (class, exit) = (*class, *exit);
                let captured = What::CheckpointCaptured { turn, class };
                self.closed = Some(turn);
                if self.started == Some(turn) {
                    return vec![captured];
                }
                let class = Some(class);
                vec![What::TurnClosed { turn, class, exit }, captured]
            }
            Step::Other => Vec::new(),
        }
    }

    fn turn(&mut self, record: &TurnRecord) -> Vec<(u64, What)> {
        let turn = record.turn;
        let mut whats = Vec::new();
        let is_start = match record.trigger {
            // Nothing has run yet: how it began is a record of its own.
            Trigger::Fork => return whats,
            Trigger::Start => true,
            _ => false,
        };
        if is_start && self.started != Some(turn) {
            self.started = Some(turn);
            let command = record.command.clone();
            whats.push((record.began_ms, What::SandboxStarted { turn, command }));
        }
        if !is_start && self.closed != Some(turn) {
            let is_known = record.class != Class::None || record.checkpoint.is_some();
            let closed = What::TurnClosed {
                turn,
                class: is_known.then_some(record.class),
                exit: record.exit,
            };
            whats.push((record.ended_ms, closed));
        }
        self.closed = Some(turn);
        if record.checkpoint == Some(turn) {
            let stored = record.spans.publish.map(|span| span.end_us() / 1000);
            let durable = What::CheckpointDurable {
                turn,
                class: record.class,
                bytes_stored: record.cost.bytes_stored,
                frozen_us: record.cost.frozen_us,
                gate_us: record.cost.gate_us,
                degraded: record.degraded.clone(),
            };
            whats.push((stored.unwrap_or(record.ended_ms), durable));
        }
        whats
    }
}

impl What {
    /// Its name, as JSON has it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::SandboxStarted { .. } => "sandbox-started",
            Self::SandboxForked { .. } => "sandbox-forked",
            Self::SandboxRestored(_) => "sandbox-restored",
            Self::SandboxEnded { .. } => "sandbox-ended",
            Self::TurnOpened { .. } => "turn-opened",
            Self::TurnClosed { .. } => "turn-closed",
            Self::CheckpointQueued { .. } => "checkpoint-queued",
            Self::CheckpointCaptured { .. } => "checkpoint-captured",
            Self::CheckpointDurable { .. } => "checkpoint-durable",
            Self::CheckpointFailed { .. } => "checkpoint-failed",
            Self::CheckpointsRemoved { .. } => "checkpoints-removed",
            Self::RolledBack(_) => "rolled-back",
        }
    }

    /// What there is to say of it.
    fn details(&self) -> String {
        match self {
            Self::SandboxStarted { turn, command } => format!("turn={turn} {command}"),
            Self::SandboxForked { from, from_turn } => format!("from={from}@{from_turn}"),
            Self::SandboxRestored(back) | Self::RolledBack(back) => format!(
                "from={} to={} checkpoint={} warm={} took={}",
                back.from_turn,
                back.to_turn,
                back.checkpoint,
                back.warm,
                duration(back.took_us).replace(' ', "")
            ),
            Self::SandboxEnded { exit } => format!("exit={exit}"),
            Self::TurnOpened {
                turn,
                trigger,
                command,
            } => format!("turn={turn} trigger={trigger} {command}"),
            Self::TurnClosed { turn, class, exit } => {
                let class = class.map_or("unknown", Class::as_str);
                let exit = exit.map(|exit| format!(" exit={exit}"));
                format!("turn={turn} class={class}{}", exit.unwrap_or_default())
            }
            Self::CheckpointQueued { turn } => format!("turn={turn}"),
            Self::CheckpointCaptured { turn, class } => format!("turn={turn} class={class}"),
            Self::CheckpointDurable {
                turn,
                class,
                bytes_stored,
                frozen_us,
                gate_us: _,
                degraded,
            } => format!(
                "turn={turn} class={class} stored={} frozen={} {}",
                size(*bytes_stored).replace(' ', ""),
                duration(*frozen_us).replace(' ', ""),
                degraded.as_deref().unwrap_or_default()
            ),
            Self::CheckpointFailed { turn, kind, reason } => {
                format!("turn={turn} kind={kind} {reason}")
            }
            Self::CheckpointsRemoved { turns, why } => {
                let turns: Vec<String> = turns.iter().map(ToString::to_string).collect();
                format!("turns={} {why}", turns.join(","))
            }
        }
    }
}

/// An event as a line.
pub(crate) fn line(event: &Event) -> String {
    let details = visible(&event.what.details());
    let (at, sandbox, name) = (rfc3339(event.at_ms), &event.sandbox, event.what.name());
    format!("{at} {sandbox} {name} {}\n", details.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{CaptureFailed, Cost, EndedRecord, FailureKind, Span, Spans};

    fn turn(number: u64, trigger: Trigger, class: Class) -> TurnRecord {
        TurnRecord {
            command: "make\n".to_owned(),
            began_ms: 1000 * number,
            ended_ms: 1000 * number + 500,
            exit: Some(0),
            class,
            checkpoint: (class != Class::None).then_some(TurnId(number)),
            cost: Cost {
                bytes_stored: 2048,
                frozen_us: 3000,
                ..Cost::default()
            },
            spans: Spans {
                publish: Some(Span {
                    at_us: 1_000_000 * number + 600_000,
                    took_us: 50_000,
                }),
                ..Spans::default()
            },
            ..TurnRecord::new(TurnId(number), trigger)
        }
    }

    fn step(turn: u64, step: Step) -> JournalRecord {
        JournalRecord::Step(StepRecord {
            at_ms: 1000 * turn + 510,
            turn: TurnId(turn),
            step,
        })
    }

    fn lines(records: &[JournalRecord]) -> Vec<String> {
        let id = SandboxId::new("default", "demo").unwrap();
        let mut told = Told::default();
        let events = records.iter().flat_map(|record| told.events(&id, record));
        events.map(|event| line(&event)).collect()
    }

    fn opened(number: u64, trigger: Trigger) -> JournalRecord {
        let command = "make\n".to_owned();
        step(number, Step::Opened { trigger, command })
    }

    fn captured(number: u64, class: Class) -> JournalRecord {
        let exit = Some(0);
        step(number, Step::Captured { class, exit })
    }

    #[test]
    fn a_turn_is_told_step_by_step_and_each_step_once() {
        let mut none = turn(2, Trigger::Exec, Class::None);
        none.checkpoint = Some(TurnId(1));
        let told = lines(&[
            opened(0, Trigger::Start),
            captured(0, Class::Files),
            JournalRecord::Turn(turn(0, Trigger::Start, Class::Files)),
            opened(1, Trigger::Exec),
            step(1, Step::Queued),
            captured(1, Class::Full),
            JournalRecord::Turn(turn(1, Trigger::Exec, Class::Full)),
            opened(2, Trigger::Exec),
            JournalRecord::Turn(none),
            JournalRecord::Ended(EndedRecord {
                at_ms: 9000,
                exit: 137,
                with_host: false,
            }),
        ]);
        let at = |ms: &str, rest: &str| format!("1970-01-01T00:00:0{ms}Z default/demo {rest}\n");
        let expected = [
            at("0.510", r"sandbox-started turn=0 make\n"),
            at("0.510", "checkpoint-captured turn=0 class=files"),
            at(
                "0.650",
                "checkpoint-durable turn=0 class=files stored=2.0KiB frozen=3.0ms",
            ),
            at("1.510", r"turn-opened turn=1 trigger=exec make\n"),
            at("1.510", "checkpoint-queued turn=1"),
            at("1.510", "turn-closed turn=1 class=full exit=0"),
            at("1.510", "checkpoint-captured turn=1 class=full"),
            at(
                "1.650",
                "checkpoint-durable turn=1 class=full stored=2.0KiB frozen=3.0ms",
            ),
            at("2.510", r"turn-opened turn=2 trigger=exec make\n"),
            at("2.500", "turn-closed turn=2 class=none exit=0"),
            at("9.000", "sandbox-ended exit=137"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_journal_of_an_earlier_version_tells_the_same_of_its_turns() {
        let told = lines(&[
            JournalRecord::Turn(turn(0, Trigger::Start, Class::Files)),
            JournalRecord::Turn(turn(1, Trigger::Exec, Class::Full)),
        ]);
        let names: Vec<_> = told
            .iter()
            .map(|line| line.split(' ').nth(2).unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "sandbox-started",
                "checkpoint-durable",
                "turn-closed",
                "checkpoint-durable"
            ]
        );
    }

    #[test]
    fn a_capture_that_failed_has_no_class_and_says_of_what_kind_that_is() {
        let mut lost = turn(3, Trigger::Exec, Class::None);
        lost.checkpoint = None;
        let told = lines(&[
            JournalRecord::Turn(lost),
            JournalRecord::CaptureFailed(CaptureFailed {
                at_ms: 4000,
                turn: TurnId(3),
                reason: "write /x: No space left on device".to_owned(),
                kind: FailureKind::NoSpace,
            }),
        ]);
        assert!(told[0].ends_with("turn-closed turn=3 class=unknown exit=0\n"));
        assert!(told[1].ends_with(
            "checkpoint-failed turn=3 kind=no-space write /x: No space left on device\n"
        ));
    }

    #[test]
    fn an_event_is_one_flat_object_of_json() {
        let event = Event {
            at_ms: 4000,
            sandbox: SandboxId::new("default", "demo").unwrap(),
            what: What::TurnClosed {
                turn: TurnId(3),
                class: Some(Class::Files),
                exit: None,
            },
        };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"at_ms":4000,"sandbox":"default/demo","event":"turn-closed","turn":3,"class":"files","exit":null}"#
        );
        assert_eq!(event.what.name(), "turn-closed");
    }
}
