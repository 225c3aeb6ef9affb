// SPDX-License-Identifier: Apache-2.0

//! Curves over a logarithmic axis of time: what share of all took at most so long.
//!
//! `plotters` writes each element with a colour of its own. Ours are none that anybody sees:
//! each stands for a class of style.css, which it is replaced by.

use anyhow::{Result, anyhow};
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use super::{look::COLOURS, units};

/// Of the drawing, in its own units. `plotters` draws at whole ones, so they are many; strokes
/// are as wide as style.css has them, whatever a unit is.
const SIZE: (u32, u32) = (1920, 1080);

/// Of letters: large, so that they are readable on a phone's width. A digit is half as wide.
const TEXT: u32 = 62;

/// Of the dot at a curve's end.
const DOT: u32 = 12;

/// What a curve has at most of steps: more cannot be seen.
const STEPS: usize = 300;

/// No time is drawn beyond these, in milliseconds.
const LEAST: f64 = 0.01;
const MOST: f64 = 1e9;

/// One of them.
pub(super) struct Curve {
    /// The number of its colour.
    pub(super) colour: usize,
    /// In milliseconds and in order.
    pub(super) values: Vec<f64>,
}

/// Draws them; nothing where there are no values. `title` and `what` are read to who does not see it.
pub(super) fn shares(title: &str, what: &str, curves: &[Curve]) -> Option<Markup> {
    if curves.iter().all(|curve| curve.values.is_empty()) {
        return None;
    }
    let drawn = draw(curves);
    Some(html! {
        svg.plot viewBox={ "0 0 " (SIZE.0) " " (SIZE.1) } role="img" {
            title { (title) }
            desc { (what) }
            // Numbers, units and lines: nothing of it is from a trace.
            @match drawn {
                Ok(inside) => (PreEscaped(inside)),
                Err(error) => text x="8" y="24" { "not drawn: " (error) },
            }
        }
    })
}

fn draw(curves: &[Curve]) -> Result<String> {
    let all = || curves.iter().flat_map(|curve| &curve.values).copied();
    let from = decade(all().fold(MOST, f64::min), f64::floor);
    let to = decade(all().fold(LEAST, f64::max), f64::ceil).max(from * 10.0);
    // A mark that is the axis's end is left out otherwise.
    let (from, to) = (from * 0.999, to * 1.001);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(TEXT / 2)
            .margin_right(2 * TEXT)
            .x_label_area_size(2 * TEXT)
            .y_label_area_size(7 * TEXT / 2)
            .build_cartesian_2d((from..to).log_scale(), 0.0..100.0)
            .map_err(plain)?;
        chart
            .configure_mesh()
            .x_max_light_lines(0)
            .y_max_light_lines(0)
            .x_labels(7)
            .y_labels(6)
            .x_label_formatter(&|ms| units::duration(*ms))
            .y_label_formatter(&|share| format!("{share:.0} %"))
            .label_style(("sans-serif", TEXT))
            .set_all_tick_mark_size(TEXT / 3)
            .draw()
            .map_err(plain)?;
        for curve in curves.iter().filter(|curve| !curve.values.is_empty()) {
            let colour = stand_in(curve.colour);
            let points = points(&curve.values, from, to);
            let end = points.last().copied();
            let line = LineSeries::new(points, colour.stroke_width(2));
            chart.draw_series(line).map_err(plain)?;
            let end = end.map(|end| Circle::new(end, DOT, colour.filled()));
            chart.draw_series(end).map_err(plain)?;
        }
        area.present().map_err(plain)?;
    }
    classed(&svg)
}

/// The power of ten at one side of a time.
fn decade(ms: f64, round: fn(f64) -> f64) -> f64 {
    10f64.powf(round(ms.clamp(LEAST, MOST).log10()))
}

/// The corners of a curve's steps. What lies outside of the axis lies on its end.
fn points(values: &[f64], from: f64, to: f64) -> Vec<(f64, f64)> {
    let steps = values.len().min(STEPS);
    let mut points = Vec::with_capacity(2 * steps);
    let mut share = 0.0;
    for step in 1..=steps {
        // The last of each step's values, and so the last of all.
        let upto = values.len() * step / steps;
        let ms = values[upto - 1].clamp(from, to);
        points.push((ms, share));
        share = 100.0 * upto as f64 / values.len() as f64;
        points.push((ms, share));
    }
    points
}

/// A colour that stands for a class.
fn stand_in(colour: usize) -> RGBColor {
    RGBColor(1, 2, colour as u8)
}

/// The drawing without its outermost element, with classes for colours and the page's own font.
fn classed(svg: &str) -> Result<String> {
    let unknown = || anyhow!("plotters writes another SVG than it used to");
    let (_, inside) = svg.split_once('>').ok_or_else(unknown)?;
    let (inside, _) = inside.rsplit_once("</svg>").ok_or_else(unknown)?;
    let mut inside = inside
        .replace(" font-family=\"sans-serif\"", "")
        .replace(" fill=\"#000000\"", " class=\"label\"")
        .replace(" stroke=\"#000000\"", " class=\"axis\"");
    for colour in 0..COLOURS {
        let RGBColor(red, green, blue) = stand_in(colour);
        let hex = format!("#{red:02X}{green:02X}{blue:02X}");
        inside = inside
            .replace(
                &format!(" stroke=\"{hex}\" stroke-width=\"2\""),
                &format!(" class=\"line s{colour}\""),
            )
            .replace(
                &format!(" fill=\"{hex}\""),
                &format!(" class=\"dot s{colour}\""),
            );
    }
    for width in ["1", "2"] {
        inside = inside.replace(&format!(" stroke-width=\"{width}\""), "");
    }
    match inside.contains("=\"#") {
        true => Err(unknown()),
        false => Ok(inside),
    }
}

fn plain(error: impl std::error::Error) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(values: &[&[f64]]) -> String {
        let curves: Vec<Curve> = (0..)
            .zip(values)
            .map(|(colour, values)| Curve {
                colour,
                values: units::in_order(values.iter().copied()),
            })
            .collect();
        let drawn = shares("t", "w", &curves).unwrap().into_string();
        assert!(!drawn.contains("not drawn"), "{drawn}");
        roxmltree::Document::parse(&drawn).unwrap();
        drawn
    }

    #[test]
    fn no_values_are_no_drawing() {
        assert!(shares("t", "w", &[]).is_none());
        let values = Vec::new();
        assert!(shares("t", "w", &[Curve { colour: 0, values }]).is_none());
    }

    #[test]
    fn each_curve_has_its_class_and_none_a_colour_of_its_own() {
        let all: Vec<&[f64]> = vec![&[1.0, 20.0]; COLOURS];
        let drawn = drawn(&all);
        for colour in 0..COLOURS {
            assert!(drawn.contains(&format!("class=\"line s{colour}\"")));
            assert!(drawn.contains(&format!("class=\"dot s{colour}\"")));
        }
        assert!(drawn.contains("100 %") && drawn.contains("10 ms"));
    }

    #[test]
    fn one_value_zero_and_beyond_all_bounds_are_drawn() {
        for values in [
            &[5.0][..],
            &[0.0],
            &[0.0, 0.0, 1.0],
            &[1.0],
            &[1e300],
            &[f64::MIN_POSITIVE, f64::MAX],
            &[-4.0],
        ] {
            drawn(&[values]);
        }
    }

    #[test]
    fn of_many_values_the_first_and_the_last_share_are_kept() {
        let values: Vec<f64> = (1..=10_007).map(f64::from).collect();
        let points = points(&values, 1.0, 100_000.0);
        assert_eq!(points.len(), 2 * STEPS);
        assert_eq!(points[0].1, 0.0);
        assert_eq!(points[2 * STEPS - 1], (10_007.0, 100.0));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }
}
