// SPDX-License-Identifier: Apache-2.0

//! The figures, with what they shall be.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::units;
use crate::figures::Target;

/// Those that a replay has, in the order in which they are told, and what they are. The ways of
/// keeping are told by the strategies' names.
const FIGURES: &[(&str, &str)] = &[
    ("traces", "traces that were played"),
    (
        "turns",
        "turns of these; those of a trace that two clients play count twice",
    ),
    (
        "skipped_pct",
        "turns after which Crab had nothing to keep, of a hundred",
    ),
    (
        "crash_points",
        "Crab's crashes: turns after which everything was killed",
    ),
    (
        "recovery_pct_chat",
        "of a hundred crashes, those recovered with the transcript alone",
    ),
    (
        "recovery_pct_chat_files",
        "with the transcript and the files",
    ),
    ("recovery_pct_restart", "by playing everything again"),
    ("recovery_pct_full", "with everything saved after each turn"),
    ("recovery_pct_crab", "with Crab"),
    (
        "traffic_cut_pct",
        "what Crab writes less than everything after each turn",
    ),
    (
        "time_ratio_full",
        "time beside the stock shim's, everything saved after each turn",
    ),
    ("time_ratio_crab", "time beside the stock shim's, with Crab"),
    (
        "recover_ms_p50",
        "milliseconds until the next turn could begin, with Crab, median",
    ),
    ("recover_ms_p99", "the same, exceeded by one of a hundred"),
    (
        "false_none",
        "turns judged to have changed nothing whose state did differ",
    ),
];

/// What they shall be.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("recovery_pct_crab", Target::AtLeast(100.0)),
    ("traffic_cut_pct", Target::AtLeast(87.0)),
    ("time_ratio_crab", Target::AtMost(1.015)),
    ("false_none", Target::AtMost(0.0)),
];

/// As a table; of those that have a target, also what was not measured.
pub(super) fn figures(figures: &BTreeMap<String, f64>) -> Markup {
    let known = |name: &str| FIGURES.iter().any(|(of, _)| *of == name);
    let target_of = |name: &str| {
        let found = TARGETS.iter().find(|(of, _)| *of == name);
        found.map(|(_, target)| *target)
    };
    let others = figures.keys().filter(|name| !known(name));
    html! {
        section #figures {
            h2 { "Figures" }
            div.wide tabindex="0" role="region" aria-label="Figures" {
                table.figures {
                    thead {
                        tr {
                            th scope="col" { "figure" }
                            th scope="col" { "value" }
                            th scope="col" { "target" }
                        }
                    }
                    tbody {
                        @for (name, what) in FIGURES {
                            @let value = figures.get(*name).copied();
                            @let target = target_of(name);
                            @if value.is_some() || target.is_some() {
                                (row(name, what, value, target))
                            }
                        }
                        @for name in others {
                            (row(name, "", figures.get(name).copied(), None))
                        }
                    }
                }
            }
        }
    }
}

fn row(name: &str, what: &str, value: Option<f64>, target: Option<Target>) -> Markup {
    html! {
        tr {
            th scope="row" { code { (name) } div.what { (what) } }
            td {
                @match value {
                    Some(value) => b { (units::number(value)) },
                    None => span.absent { "not measured" },
                }
            }
            td {
                @if let Some(target) = target {
                    span.target { (target.to_string()) } " "
                    @match value {
                        Some(value) if target.is_met(value) => span.met { "\u{2713}\u{a0}met" },
                        Some(_) => span.missed { "\u{2717}\u{a0}missed" },
                        None => {},
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, value: f64) -> String {
        figures(&BTreeMap::from([(name.to_owned(), value)])).into_string()
    }

    #[test]
    fn a_target_is_met_or_missed_by_what_the_record_says() {
        assert!(told("recovery_pct_crab", 100.0).contains("met<"));
        let missed = told("recovery_pct_crab", 99.999);
        assert!(missed.contains("99.999") && missed.contains("missed<"));
        assert!(told("time_ratio_crab", 1.015).contains("met<"));
        assert!(told("false_none", 1.0).contains("missed<"));
        assert!(told("false_none", f64::NAN).contains("missed<"));
    }

    #[test]
    fn what_has_a_target_and_no_value_is_said_to_lack_it() {
        let text = figures(&BTreeMap::new()).into_string();
        assert_eq!(text.matches("not measured").count(), 4);
        assert!(!text.contains("met<") && !text.contains("recover_ms_p50"));
    }

    #[test]
    fn one_that_is_not_known_here_is_told_as_it_is() {
        let text = told("new<figure>", 3.0);
        assert!(text.contains("<code>new&lt;figure&gt;</code>"));
    }
}
