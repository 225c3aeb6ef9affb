// SPDX-License-Identifier: Apache-2.0

//! What is one value of each strategy: a row with a bar, or with a dot for each play.

use crab_integration::replay::{Kept, Record};
use maud::{Markup, html};

use super::{
    delays::quantile,
    look::{Look, looks},
    units,
};

/// From how many crashes each brought everything back.
pub(super) fn recovery(record: &Record) -> Markup {
    html! {
        section #recovery {
            h2 { "Recovery" }
            p {
                "Everything was killed after the end of a turn and brought back; then the remaining turns were played. A crash counts as recovered if the state \
                 that came back, and the one after the last turn, were those of the run without a fault."
            }
            div.wide tabindex="0" role="region" aria-label="Recovery by strategy" {
                table.bars {
                    thead {
                        tr {
                            th scope="col" { "strategy" }
                            th scope="col" aria-label="bar" {}
                            th scope="col" { "recovered" }
                            th scope="col" { "crash points" }
                        }
                    }
                    tbody {
                        @for look in looks(&record.strategies) { (recovered(&look)) }
                    }
                }
            }
        }
    }
}

/// How many of its crashes a strategy recovered from.
pub(super) fn recovered_of(kept: &Kept) -> (usize, usize) {
    let recovered = kept.crashes.iter().filter(|crash| crash.recovered).count();
    (recovered, kept.crashes.len())
}

fn recovered(look: &Look<'_>) -> Markup {
    let (recovered, all) = recovered_of(look.kept);
    html! {
        tr {
            (look.heading())
            @if let Some(percent) = units::percent(recovered, all) {
                (bar(look, 100.0 * recovered as f64 / all as f64))
                td { b { (percent) } }
                td { (units::number(recovered as f64)) " of " (units::number(all as f64)) }
            } @else {
                td {}
                td colspan="2" { span.absent { "not measured" } }
            }
        }
    }
}

/// How much each wrote.
pub(super) fn traffic(record: &Record) -> Markup {
    let most = record.strategies.iter().filter_map(|kept| kept.bytes).max();
    let full = record.strategies.iter().find(|kept| kept.name == "full");
    let full = full.and_then(|kept| kept.bytes).filter(|bytes| *bytes > 0);
    html! {
        section #traffic {
            h2 { "Traffic" }
            p { "What was written for all plays together; the bars are in proportion." }
            @if let Some(most) = most {
                div.wide tabindex="0" role="region" aria-label="Traffic by strategy" {
                    table.bars {
                        thead {
                            tr {
                                th scope="col" { "strategy" }
                                th scope="col" aria-label="bar" {}
                                th scope="col" { "written" }
                                th scope="col" { "of full" }
                            }
                        }
                        tbody {
                            @for look in looks(&record.strategies) { (written(&look, most, full)) }
                        }
                    }
                }
            } @else {
                p.absent { "Not measured." }
            }
        }
    }
}

fn written(look: &Look<'_>, most: u64, full: Option<u64>) -> Markup {
    html! {
        tr {
            (look.heading())
            @if let Some(bytes) = look.kept.bytes {
                (bar(look, 100.0 * bytes as f64 / most.max(1) as f64))
                td { b { (units::bytes(bytes)) } }
                td {
                    @if let Some(full) = full {
                        (format!("{:.1} %", 100.0 * bytes as f64 / full as f64))
                    }
                }
            } @else {
                td {}
                td colspan="2" { span.absent { "not measured" } }
            }
        }
    }
}

fn bar(look: &Look<'_>, percent: f64) -> Markup {
    html! {
        td.track {
            span class={ "bar " (look.class()) } style={ "width:" (format!("{percent:.2}")) "%" } {}
        }
    }
}

/// How long plays took beside the stock shim.
pub(super) fn overhead(record: &Record) -> Markup {
    let all: Vec<f64> = record.strategies.iter().flat_map(ratios).collect();
    let scale = Scale::of(&all);
    html! {
        section #overhead {
            h2 { "Overhead" }
            p {
                "The time of each play beside that of the same play under the stock shim with nothing kept. A dot is a play, the upright stroke all of them together; \
                 the line through all rows is at 1, the stock shim's time."
                @if scale.logarithmic { " The axis is logarithmic." }
            }
            @if all.is_empty() {
                p.absent { "Not measured." }
            } @else {
                div.wide tabindex="0" role="region" aria-label="Overhead by strategy" {
                    table.bars {
                        thead {
                            tr {
                                th scope="col" { "strategy" }
                                th.ends scope="col" {
                                    div { span { (units::ratio(scale.from)) } span { (units::ratio(scale.to)) } }
                                }
                                th scope="col" { "all" }
                                th scope="col" { "least" }
                                th scope="col" { "median" }
                                th scope="col" { "most" }
                            }
                        }
                        tbody {
                            @for look in looks(&record.strategies) { (spread(&look, &scale)) }
                        }
                    }
                }
            }
        }
    }
}

/// Of each play that has one, in order.
fn ratios(kept: &Kept) -> Vec<f64> {
    let ratios = kept.ratios.iter().map(|of| of.seconds / of.stock_seconds);
    units::in_order(ratios.filter(|ratio| *ratio >= 0.0))
}

fn spread(look: &Look<'_>, scale: &Scale) -> Markup {
    let ratios = ratios(look.kept);
    html! {
        tr {
            (look.heading())
            @if ratios.is_empty() {
                td {}
                td colspan="4" { span.absent { "not measured" } }
            } @else {
                td.track.dots {
                    span.one style=(scale.left(1.0)) {}
                    @for ratio in &ratios {
                        span class={ "dot " (look.class()) } style=(scale.left(*ratio)) {}
                    }
                    @if let Some(all) = look.kept.time_ratio() {
                        span.all style=(scale.left(all)) {}
                    }
                }
                td { b { (look.kept.time_ratio().map(units::ratio).unwrap_or_default()) } }
                @for q in [0.0, 0.5, 1.0] {
                    td { (units::ratio(quantile(&ratios, q))) }
                }
            }
        }
    }
}

/// Where a ratio is on the way from the least to the most; 1 is among them.
struct Scale {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(ratios: &[f64]) -> Self {
        let from = ratios.iter().copied().fold(1.0, f64::min);
        let to = ratios.iter().copied().fold(1.0, f64::max);
        let logarithmic = from > 0.0 && to / from > 20.0;
        Self {
            from,
            to,
            logarithmic,
        }
    }

    /// As a declaration of style.
    fn left(&self, ratio: f64) -> String {
        let place = match self.logarithmic {
            true => (ratio / self.from).ln() / (self.to / self.from).ln(),
            false => (ratio - self.from) / (self.to - self.from),
        };
        let place = if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.5
        };
        format!("left:{:.2}%", 100.0 * place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_lie_between_the_least_and_the_most_with_one_among_them() {
        let scale = Scale::of(&[1.5, 2.0]);
        assert_eq!((scale.from, scale.to, scale.logarithmic), (1.0, 2.0, false));
        assert_eq!(scale.left(1.5), "left:50.00%");
        let scale = Scale::of(&[0.01, 100.0]);
        assert!(scale.logarithmic);
        assert_eq!(scale.left(1.0), "left:50.00%");
        assert_eq!(scale.left(1e9), "left:100.00%");
    }

    #[test]
    fn without_a_spread_everything_is_in_the_middle() {
        assert_eq!(Scale::of(&[1.0]).left(1.0), "left:50.00%");
        assert_eq!(Scale::of(&[]).left(1.0), "left:50.00%");
        assert_eq!(Scale::of(&[0.0]).left(0.0), "left:0.00%");
    }
}
