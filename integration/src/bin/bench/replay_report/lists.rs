// SPDX-License-Identifier: Apache-2.0

//! What a record says beside its results: strategies, plays, rules, remarks, details.

use crab_integration::replay::Record;
use maud::{Markup, html};

use super::{look::looks, units};

/// What was compared with what.
pub(super) fn strategies(record: &Record) -> Markup {
    html! {
        section #strategies {
            h2 { "Strategies" }
            p { "Ways of keeping what an agent has done, each put through the same crashes." }
            div.wide tabindex="0" role="region" aria-label="Strategies" {
                table {
                    thead {
                        tr { th scope="col" { "strategy" } th scope="col" { "what is kept" } }
                    }
                    tbody {
                        @for look in looks(&record.strategies) {
                            tr { (look.heading()) td.what { (look.kept.what) } }
                        }
                    }
                }
            }
            @if record.strategies.is_empty() { p.absent { "None was played." } }
        }
    }
}

/// What was played.
pub(super) fn plays(record: &Record) -> Markup {
    html! {
        section #plays {
            h2 { "Plays" }
            details {
                summary { (units::count(record.plays.len(), "play", "plays")) }
                div.wide tabindex="0" role="region" aria-label="Plays" {
                    table {
                        thead {
                            tr {
                                th scope="col" { "trace" }
                                th scope="col" { "agent" }
                                th scope="col" { "client" }
                                th scope="col" { "driver" }
                                th.number scope="col" { "turns" }
                            }
                        }
                        tbody {
                            @for play in &record.plays {
                                tr {
                                    th scope="row" { (play.trace) }
                                    td { (play.agent.as_deref().unwrap_or("\u{2013}")) }
                                    td { (play.client) }
                                    td { (play.driver) }
                                    td.number { (play.turns) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// By what rules states are compared.
pub(super) fn rules(record: &Record) -> Markup {
    html! {
        section #rules {
            h2 { "Rules of comparison" }
            p { "What is passed over where two states are compared, because it cannot be alike. Everything else has to be." }
            @if record.rules.is_empty() {
                p.absent { "None." }
            } @else {
                div.wide tabindex="0" role="region" aria-label="Rules of comparison" {
                    table {
                        thead {
                            tr { th scope="col" { "passed over" } th scope="col" { "why it cannot be alike" } }
                        }
                        tbody {
                            @for rule in &record.rules {
                                tr { th scope="row" { (rule.what) } td.what { (rule.why) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What went otherwise than it should.
pub(super) fn remarks(record: &Record) -> Markup {
    html! {
        section #remarks {
            h2 { "Remarks" }
            @if record.remarks.is_empty() {
                p.absent { "None." }
            } @else {
                ul.remarks {
                    @for remark in &record.remarks { li { (remark) } }
                }
            }
        }
    }
}

/// What stands behind the figures.
pub(super) fn details(record: &Record) -> Markup {
    html! {
        section #details {
            h2 { "Behind the figures" }
            details {
                summary { (units::count(record.details.len(), "value", "values")) }
                div.wide tabindex="0" role="region" aria-label="Behind the figures" {
                    table {
                        tbody {
                            @for (name, value) in &record.details {
                                tr { th scope="row" { code { (name) } } td.number { (units::number(*value)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
