// SPDX-License-Identifier: Apache-2.0

//! The crashes that were not recovered, each with what differed.

use crab_integration::replay::{Crash, Kept, Record};
use maud::{Markup, html};

use super::{bars::recovered_of, units};

/// All of them, by strategy.
pub(super) fn crashes(record: &Record) -> Markup {
    html! {
        section #crashes {
            h2 { "Not recovered" }
            p { "Each crash after which a state was not that of the run without a fault, with the first differences." }
            @for kept in &record.strategies { (of(kept)) }
        }
    }
}

fn of(kept: &Kept) -> Markup {
    let (recovered, all) = recovered_of(kept);
    html! {
        h3 { (kept.title) }
        @if all == 0 {
            p.absent { "Not measured." }
        } @else if recovered == all {
            p { "None: all " (units::number(all as f64)) " were recovered." }
        } @else {
            details {
                summary { (units::number((all - recovered) as f64)) " of " (units::count(all, "crash", "crashes")) }
                @for crash in kept.crashes.iter().filter(|crash| !crash.recovered) { (one(crash)) }
            }
        }
    }
}

fn one(crash: &Crash) -> Markup {
    html! {
        details.crash {
            summary {
                b { (crash.trace) } " under " (crash.client) ", killed after turn " (crash.turn)
                ", back at " (crash.back_at) ", " (units::count(crash.differences.len(), "difference", "differences"))
            }
            @if crash.differences.is_empty() {
                p { "No difference was noted." }
            } @else {
                ul {
                    @for difference in &crash.differences { li { code { (difference) } } }
                }
            }
        }
    }
}
