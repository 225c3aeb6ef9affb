// SPDX-License-Identifier: Apache-2.0

//! How a strategy looks, the same everywhere: a colour that the colour-blind can tell from the
//! others (Okabe and Ito's, style.css has them) and a pattern of its line.

use crab_integration::replay::Kept;
use maud::{Markup, html};

/// In the order of the colours in style.css.
const KNOWN: [&str; COLOURS] = [
    "chat",
    "chat_files",
    "restart",
    "full",
    "crab",
    "crab_no_inspector",
    "crab_no_optimistic",
    "crab_no_schedule",
];

/// How many there are.
pub(super) const COLOURS: usize = 8;

/// A strategy, and the number of its colour.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) kept: &'a Kept,
    pub(super) colour: usize,
}

/// All of them, in order; one that is not known here takes a colour by its place.
pub(super) fn looks(strategies: &[Kept]) -> impl Iterator<Item = Look<'_>> {
    strategies.iter().enumerate().map(|(at, kept)| {
        let known = KNOWN.iter().position(|name| *name == kept.name);
        let colour = known.unwrap_or(at % COLOURS);
        Look { kept, colour }
    })
}

impl Look<'_> {
    /// The class that has the colour.
    pub(super) fn class(&self) -> String {
        format!("s{}", self.colour)
    }

    /// The strategy's name with its line before it, as the first cell of a row.
    pub(super) fn heading(&self) -> Markup {
        html! {
            th scope="row" {
                span.strategy {
                    svg.swatch viewBox="0 0 26 8" role="img" {
                        title { "line of " (self.kept.title) }
                        line class={ "line " (self.class()) } x1="0" y1="4" x2="26" y2="4" {}
                    }
                    span { (self.kept.title) }
                }
            }
        }
    }
}
