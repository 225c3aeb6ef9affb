// SPDX-License-Identifier: Apache-2.0

//! The figures of a benchmark, and what they shall be.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display, Write},
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::series::rounded;

/// The figures by name: what `--json` prints. One that could not be computed is absent,
/// and standard error says why.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    name: &'static str,
    machine: String,
    /// Of what was chosen by chance, if anything was.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    figures: BTreeMap<&'static str, Figure>,
    /// What stands behind the figures.
    details: BTreeMap<String, f64>,
    #[serde(skip)]
    targets: &'static [(&'static str, Target)],
}

/// The value of one.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Figure {
    Number(f64),
    Verdict(bool),
}

/// What a figure shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    True,
}

impl Target {
    /// Whether a number is as it shall be.
    pub(crate) fn is_met(self, value: f64) -> bool {
        self.is_met_by(Figure::Number(value))
    }

    fn is_met_by(self, figure: Figure) -> bool {
        match (self, figure) {
            (Self::AtMost(limit), Figure::Number(value)) => value <= limit,
            (Self::AtLeast(limit), Figure::Number(value)) => value >= limit,
            (Self::True, Figure::Verdict(verdict)) => verdict,
            _ => false,
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::True => f.write_str("true"),
        }
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => f.pad(&value.to_string()),
            Self::Verdict(verdict) => f.pad(&verdict.to_string()),
        }
    }
}

impl Measured {
    /// None yet, of the benchmark `name`.
    pub(crate) fn new(
        name: &'static str,
        machine: String,
        seed: Option<u64>,
        targets: &'static [(&'static str, Target)],
    ) -> Self {
        Self {
            name,
            machine,
            seed,
            figures: BTreeMap::new(),
            details: BTreeMap::new(),
            targets,
        }
    }

    /// A figure.
    pub(crate) fn enter(&mut self, name: &'static str, value: f64) {
        self.figures.insert(name, Figure::Number(rounded(value)));
        eprintln!("{name}: {}", rounded(value));
    }

    /// A figure that is a yes or a no.
    pub(crate) fn enter_verdict(&mut self, name: &'static str, verdict: bool) {
        self.figures.insert(name, Figure::Verdict(verdict));
        eprintln!("{name}: {verdict}");
    }

    /// The figures that are numbers.
    pub(crate) fn numbers(&self) -> BTreeMap<String, f64> {
        let numbers = self
            .figures
            .iter()
            .filter_map(|(name, figure)| match figure {
                Figure::Number(value) => Some(((*name).to_owned(), *value)),
                Figure::Verdict(_) => None,
            });
        numbers.collect()
    }

    /// What stands behind the figures.
    pub(crate) fn details(&self) -> &BTreeMap<String, f64> {
        &self.details
    }

    /// What stands behind a figure.
    pub(crate) fn detail(&mut self, name: impl Into<String>, value: f64) {
        self.details.insert(name.into(), rounded(value));
    }
}

/// The parts of a benchmark that `list` names, separated by commas.
pub(crate) fn parts_of(
    list: &str,
    known: &'static [&'static str],
) -> Result<BTreeSet<&'static str>> {
    let part = |name: &str| {
        let part = known.iter().copied().find(|part| *part == name);
        part.with_context(|| format!("{name} is no part; {known:?} are"))
    };
    list.split(',').map(part).collect()
}

/// Measures those of the parts that are wanted, in their order.
pub(crate) fn each_wanted(
    parts: &'static [&'static str],
    wanted: &BTreeSet<&'static str>,
    mut measure: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    for part in parts {
        if wanted.contains(part) {
            measure(part)?;
        } else {
            eprintln!("{part}: not asked for, so its figures are absent");
        }
    }
    Ok(())
}

/// For people.
pub(crate) fn table(measured: &Measured) -> String {
    let seed = measured.seed.map(|seed| format!(", seed {seed}"));
    let seed = seed.unwrap_or_default();
    let mut text = format!(
        "{}{seed}\n\n{:<28}{:>10}  TARGET\n",
        measured.machine, "FIGURE", "VALUE"
    );
    for (name, figure) in &measured.figures {
        let target = measured.targets.iter().find(|(of, _)| of == name);
        let target = target.map(|(_, target)| match target.is_met_by(*figure) {
            true => target.to_string(),
            false => format!("{target}  MISSED"),
        });
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<28}{figure:>10}  {}",
            target.unwrap_or_default()
        );
    }
    let _ = writeln!(text, "\n{:<56}{:>14}", "DETAIL", "VALUE");
    for (name, value) in &measured.details {
        let _ = writeln!(text, "{name:<56}{value:>14.3}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_misses_its_target_is_marked() {
        const TARGETS: &[(&str, Target)] = &[
            ("fast", Target::AtMost(5.0)),
            ("many", Target::AtLeast(3.0)),
            ("right", Target::True),
        ];
        let mut measured = Measured::new("test", "here".into(), Some(1), TARGETS);
        measured.enter("fast", 5.001);
        measured.enter("many", 3.0);
        measured.enter_verdict("right", false);
        let text = table(&measured);
        let line = |name| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("fast").ends_with("<= 5  MISSED"), "{text}");
        assert!(line("many").ends_with(">= 3"), "{text}");
        assert!(line("right").ends_with("true  MISSED"), "{text}");
    }

    #[test]
    fn a_part_that_is_none_is_refused() {
        const PARTS: &[&str] = &["files", "store"];
        assert_eq!(parts_of("store", PARTS).unwrap(), ["store"].into());
        assert!(parts_of("store,disk", PARTS).is_err());
    }
}
