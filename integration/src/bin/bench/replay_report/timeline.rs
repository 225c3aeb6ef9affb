// SPDX-License-Identifier: Apache-2.0

//! Turn by turn what Crab added to its store: a row for each play, a bar for each turn. A bar's
//! height is the logarithm of the bytes, the same in all rows; its class is told by its colour
//! and by its form.

use std::collections::BTreeMap;

use crab_integration::replay::{Point, Record};
use maud::{Markup, html};

use super::units;

/// The classes with what they look like, for people.
const CLASSES: [(&str, &str); 4] = [
    ("none", "a dot, nothing had to be kept"),
    ("files", "a filled bar"),
    ("processes", "a hollow bar"),
    ("full", "processes and files, a bar with a lid"),
];

/// Of a row and of a turn in it, in the drawing's units. How wide a turn is on the page is up
/// to style.css.
const HEIGHT: f64 = 30.0;
const BAR: f64 = 8.0;

/// The rows.
pub(super) fn timeline(record: &Record) -> Markup {
    let rows = rows(&record.timeline);
    let longest = rows.iter().map(|(_, points)| points.len()).max();
    let scale = Scale::of(&record.timeline);
    html! {
        section #timeline {
            h2 { "Bytes per turn" }
            p {
                "What each turn added to Crab's store, from its first turn on the left. Where it was measured, a short stroke is at what saving everything wrote at the same turn. \
                 Heights are logarithmic, the same in all rows."
            }
            @if rows.is_empty() {
                p.absent { "Not measured." }
            } @else {
                (key(&scale))
                (by_class(&record.timeline))
                div.wide tabindex="0" role="region" aria-label="Bytes per turn, a row for each play" {
                    table.timeline style={ "--longest:" (longest.unwrap_or(1)) } {
                        thead {
                            tr {
                                th scope="col" { "play" }
                                th scope="col" { "turns" }
                                th.number scope="col" { "Crab" }
                                th.number scope="col" { "full" }
                            }
                        }
                        tbody {
                            @for (name, points) in &rows { (row(name, points, &scale)) }
                        }
                    }
                }
            }
        }
    }
}

/// Which play: its trace and its client.
type Name<'a> = (&'a str, &'a str);

/// Of each play its turns in order; plays as they come first.
fn rows(timeline: &[Point]) -> Vec<(Name<'_>, Vec<&Point>)> {
    let mut rows: Vec<(Name<'_>, Vec<&Point>)> = Vec::new();
    let mut places = BTreeMap::new();
    for point in timeline {
        let name: Name<'_> = (&point.trace, &point.client);
        let place = *places.entry(name).or_insert_with(|| {
            rows.push((name, Vec::new()));
            rows.len() - 1
        });
        rows[place].1.push(point);
    }
    for (_, points) in &mut rows {
        points.sort_by_key(|point| point.turn);
    }
    rows
}

fn row((trace, client): &Name<'_>, points: &[&Point], scale: &Scale) -> Markup {
    let title = format!("{trace} under {client}: bytes per turn");
    html! {
        tr {
            th scope="row" { (trace) " " small { (client) } }
            td { (strip(&title, points, scale)) }
            td.number { (units::bytes(sum(points.iter().map(|point| point.bytes)))) }
            td.number {
                @match full(points) {
                    Some((bytes, measured)) if measured == points.len() => (units::bytes(bytes)),
                    Some((bytes, measured)) => {
                        (units::bytes(bytes)) br; small { (measured) " of " (points.len()) " turns" }
                    },
                    None => span.absent { "\u{2013}" },
                }
            }
        }
    }
}

/// What saving everything wrote, and at how many of the turns that was measured.
fn full(points: &[&Point]) -> Option<(u64, usize)> {
    let full = || points.iter().filter_map(|point| point.full_bytes);
    let measured = full().count();
    (measured > 0).then(|| (sum(full()), measured))
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// The bars of some turns, one beside the other.
fn strip(title: &str, points: &[&Point], scale: &Scale) -> Markup {
    let width = BAR * points.len() as f64;
    html! {
        svg.strip viewBox={ "0 0 " (width) " " (HEIGHT) } style={ "--turns:" (points.len()) } preserveAspectRatio="none" role="img" {
            title { (title) }
            desc { (what(points)) }
            line.base x1="0" x2=(width) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
            @for (place, point) in points.iter().enumerate() {
                (bar(BAR * place as f64, point, scale))
            }
        }
    }
}

/// A row, for who does not see it.
fn what(points: &[&Point]) -> String {
    let mut told = vec![units::count(points.len(), "turn", "turns")];
    for (class, _) in CLASSES {
        match points.iter().filter(|point| point.class == class).count() {
            0 => {}
            count => told.push(format!("{count} {class}")),
        }
    }
    told.join(", ")
}

fn bar(x: f64, point: &Point, scale: &Scale) -> Markup {
    let class = CLASSES.iter().find(|(name, _)| *name == point.class);
    let class = class.map_or("other", |(name, _)| *name);
    let wide = BAR * 0.75;
    let height = scale.height(point.bytes);
    let top = HEIGHT - 1.0 - height;
    html! {
        g class={ "turn c-" (class) } {
            title {
                "turn " (point.turn) ": " (point.class) ", " (units::bytes(point.bytes))
                @if let Some(full) = point.full_bytes { "; full " (units::bytes(full)) }
            }
            @match class {
                "none" if point.bytes == 0 => circle cx=(short(x + wide / 2.0)) cy=(HEIGHT - 3.5) r=(short(wide * 0.22)) {},
                _ => rect x=(short(x + 0.6)) y=(short(top)) width=(short(wide - 1.2)) height=(short(height)) {},
            }
            @if class == "full" {
                rect x=(short(x - 0.4)) y=(short(top - 0.5)) width=(short(wide + 0.8)) height="2.5" {}
            }
            @if let Some(full) = point.full_bytes {
                @let y = short(HEIGHT - 1.0 - scale.height(full));
                line.full x1=(short(x)) x2=(short(x + wide)) y1=(y) y2=(y) {}
            }
        }
    }
}

fn short(value: f64) -> String {
    format!("{value:.1}")
}

/// What the forms and the heights mean.
fn key(scale: &Scale) -> Markup {
    let example = |class: &str| Point {
        trace: String::new(),
        client: String::new(),
        turn: 1,
        class: class.to_owned(),
        bytes: if class == "none" { 0 } else { scale.middle() },
        full_bytes: None,
    };
    html! {
        ul.key {
            @for (class, looks) in CLASSES {
                @let point = example(class);
                li {
                    svg.strip viewBox={ "0 0 " (BAR) " " (HEIGHT) } role="img" {
                        title { "how a turn of class " (class) " looks" }
                        (bar(0.4, &point, scale))
                    }
                    span { b { (class) } ": " (looks) }
                }
            }
        }
        p.scale {
            "A bar of the whole height is " (units::bytes(scale.most())) ", half of it " (units::bytes(scale.middle()))
            ", the lowest " (units::bytes(scale.least())) " or less."
        }
    }
}

/// How many turns each class has, and what they added.
fn by_class(timeline: &[Point]) -> Markup {
    let mut others: Vec<&str> = timeline.iter().map(|point| point.class.as_str()).collect();
    others.sort_unstable();
    others.dedup();
    others.retain(|class| CLASSES.iter().all(|(known, _)| known != class));
    let classes = CLASSES.iter().map(|(class, _)| *class).chain(others);
    html! {
        div.wide tabindex="0" role="region" aria-label="Turns and bytes by class" {
            table.numbers {
                thead {
                    tr {
                        th scope="col" { "class" }
                        th scope="col" { "turns" }
                        th scope="col" { "of all" }
                        th scope="col" { "added" }
                    }
                }
                tbody {
                    @for class in classes {
                        @let of = || timeline.iter().filter(|point| point.class == class);
                        tr {
                            th scope="row" { (class) }
                            td { (units::number(of().count() as f64)) }
                            td { (units::percent(of().count(), timeline.len()).unwrap_or_default()) }
                            td { (units::bytes(sum(of().map(|point| point.bytes)))) }
                        }
                    }
                }
            }
        }
    }
}

/// Heights of bars: the powers of ten at the lower and at the upper end.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn of(timeline: &[Point]) -> Self {
        let all = || {
            let of = |point: &Point| [Some(point.bytes), point.full_bytes];
            timeline
                .iter()
                .flat_map(of)
                .flatten()
                .filter(|bytes| *bytes > 0)
        };
        let from = all()
            .min()
            .map_or(0.0, |least| (least as f64).log10().floor());
        let to = all().max().map_or(1.0, |most| (most as f64).log10().ceil());
        Self {
            from,
            to: to.max(from + 1.0),
        }
    }

    /// Of a bar; whatever was written can be seen.
    fn height(&self, bytes: u64) -> f64 {
        let share = ((bytes as f64).log10() - self.from) / (self.to - self.from);
        match bytes {
            0 => 0.5,
            _ => 1.5 + (HEIGHT - 4.5) * share.clamp(0.0, 1.0),
        }
    }

    fn least(&self) -> u64 {
        10f64.powf(self.from) as u64
    }

    fn middle(&self) -> u64 {
        10f64.powf((self.from + self.to) / 2.0) as u64
    }

    fn most(&self) -> u64 {
        10f64.powf(self.to) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay_report::sample::{point, record};

    #[test]
    fn turns_are_in_order_and_plays_apart() {
        let timeline = [
            point("b", 2, "files", 10),
            point("a", 1, "none", 0),
            point("b", 1, "none", 0),
        ];
        let rows = rows(&timeline);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].0.0, "b");
        assert_eq!(rows[0].1.iter().map(|p| p.turn).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn heights_are_within_the_row_whatever_the_bytes_are() {
        for bytes in [
            vec![],
            vec![0],
            vec![1],
            vec![0, u64::MAX],
            vec![5, 5],
            vec![100, 1_000_000],
        ] {
            let turns = (1..).zip(&bytes);
            let timeline: Vec<Point> = turns.map(|(n, b)| point("t", n, "full", *b)).collect();
            let scale = Scale::of(&timeline);
            for bytes in bytes.into_iter().chain([0, 1, u64::MAX]) {
                let height = scale.height(bytes);
                assert!((0.5..=HEIGHT - 3.0).contains(&height), "{bytes}: {height}");
            }
        }
    }

    #[test]
    fn each_class_has_a_form_of_its_own() {
        let scale = Scale::of(&[point("t", 1, "files", 5000)]);
        let forms = CLASSES.map(|(class, _)| {
            let bytes = if class == "none" { 0 } else { 5000 };
            bar(0.0, &point("t", 1, class, bytes), &scale).into_string()
        });
        assert!(forms[0].contains("<circle") && !forms[1].contains("<circle"));
        assert!(forms[2].contains("c-processes"), "hollow by style.css");
        assert_eq!(forms[3].matches("<rect").count(), 2);
    }

    #[test]
    fn what_saving_everything_wrote_is_summed_and_its_gaps_are_told() {
        let mut record = record();
        record.timeline = vec![point("t", 1, "files", 10), point("t", 2, "files", 10)];
        record.timeline[0].full_bytes = Some(2_000_000);
        let text = timeline(&record).into_string();
        assert!(text.contains("2 MB<br><small>1 of 2 turns"), "{text}");
        record.timeline[1].full_bytes = Some(1_000_000);
        assert!(timeline(&record).into_string().contains(">3 MB</td>"));
    }
}
