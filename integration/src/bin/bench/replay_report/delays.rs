// SPDX-License-Identifier: Apache-2.0

//! Of each strategy, times of one kind: as curves, and in figures below them.

use crab_integration::replay::{Kept, Record};
use maud::{Markup, html};

use super::{
    look::{Look, looks},
    plot::{self, Curve},
    units,
};
use crate::series::Series;

/// For how long turns were held back.
pub(super) fn exposed(record: &Record) -> Markup {
    let values = |kept: &Kept| units::in_order(kept.exposed_ms.iter().copied());
    html! {
        section #delay {
            h2 { "Exposed delay" }
            p {
                "For how long a turn that came too early was held back, or waited for the saving of the one before it; \
                 nothing for one that came late enough."
            }
            (times(record, "Exposed delay", "delays", values))
        }
    }
}

/// How long it took until agents could go on.
pub(super) fn recovery(record: &Record) -> Markup {
    html! {
        section #recover {
            h2 { "Time to recover" }
            p {
                "From the call for help to the moment at which the next turn could begin, whatever state was there then."
            }
            (times(record, "Time to recover", "crashes", recover_ms))
        }
    }
}

/// In milliseconds and in order, where anything came back.
pub(super) fn recover_ms(kept: &Kept) -> Vec<f64> {
    let times = kept.crashes.iter().map(|crash| crash.recover_ms);
    units::in_order(times.filter(|ms| *ms > 0.0))
}

/// A quantile of times in order.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut series = Series::default();
    values.iter().for_each(|ms| series.push_ms(*ms));
    series.quantile(q)
}

fn times(
    record: &Record,
    title: &str,
    counted: &str,
    values: impl Fn(&Kept) -> Vec<f64>,
) -> Markup {
    let looks: Vec<(Look<'_>, Vec<f64>)> = looks(&record.strategies)
        .map(|look| (look, values(look.kept)))
        .collect();
    let curves: Vec<Curve> = looks
        .iter()
        .map(|(look, values)| Curve {
            colour: look.colour,
            values: values.clone(),
        })
        .collect();
    let what = "A curve for each strategy: what share of all took at most so long. \
                The times are on a logarithmic axis. The table below has the figures.";
    html! {
        @if let Some(drawn) = plot::shares(&format!("{title}, by strategy"), what, &curves) {
            figure {
                (drawn)
                figcaption { "Share of all that took at most so long; logarithmic, what is beyond an end of the axis lies on it. A dot is at the longest." }
            }
            div.wide tabindex="0" role="region" aria-label={ (title) ", in figures" } {
                table.numbers {
                    thead {
                        tr {
                            th scope="col" { "strategy" }
                            th scope="col" { (counted) }
                            th scope="col" { "p50" }
                            th scope="col" { "p90" }
                            th scope="col" { "p99" }
                            th scope="col" { "longest" }
                        }
                    }
                    tbody {
                        @for (look, values) in &looks { (row(look, values)) }
                    }
                }
            }
        } @else {
            p.absent { "Not measured." }
        }
    }
}

fn row(look: &Look<'_>, values: &[f64]) -> Markup {
    html! {
        tr {
            (look.heading())
            @if values.is_empty() {
                td colspan="5" { span.absent { "not measured" } }
            } @else {
                td { (units::number(values.len() as f64)) }
                @for q in [0.5, 0.9, 0.99, 1.0] {
                    td { (units::duration(quantile(values, q))) }
                }
            }
        }
    }
}
