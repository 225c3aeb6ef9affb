// SPDX-License-Identifier: Apache-2.0

//! What a replay has found, for people: a page that needs nothing but itself, and the table in
//! the README. Both come from a [`Record`] and from nothing else, so that they can be made again
//! from its file, on any machine.
//!
//! ```text
//! load      a file, to a record of this version or one line that says why not
//! page      the page: its head, its sections in order, its style (style.css)
//! figures   the figures with what they shall be
//! bars      of each strategy: recovery, traffic, times beside the stock shim
//! delays    of each strategy: times held back, times to recover, as shares of all
//! timeline  turn by turn, a row for each play
//! crashes   those that were not recovered, with what differed
//! lists     plays, rules, remarks, what stands behind the figures
//! readme    the table, and its place between two lines of a file
//! look, units, plot   strategies' colours, values as text, axes and curves
//! ```
//! Text in a record is foreign: commands and paths of traces. It gets into the page only through
//! `maud`, which escapes what is not marked otherwise; what is marked are this folder's style
//! and the curves, which hold numbers. The page may load nothing and run nothing, and forbids
//! both to the browser.
//!
//! Curves on a logarithmic axis are drawn by `plotters`: where ticks go and how data comes to
//! them is what a library is for. It knows neither two colour schemes nor names for those who
//! do not see, so its colours are replaced by classes (`plot`). Bars and dots are rows of tables
//! with a length in per cent: they need no drawing, fit any width, and can be read aloud.

mod bars;
mod crashes;
mod delays;
mod figures;
mod lists;
mod load;
mod look;
mod page;
mod plot;
mod readme;
#[cfg(test)]
mod sample;
mod timeline;
mod units;

pub(crate) use self::{figures::TARGETS, load::load, page::page, readme::table};

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

/// What is to be made of a record.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The file of the record.
    pub(crate) record: PathBuf,
    /// Where the page shall be.
    pub(crate) html: Option<PathBuf>,
    /// A file with the place for the table.
    pub(crate) readme: Option<PathBuf>,
}

/// Makes it; if nothing is to be written, the table is what is said.
pub(crate) fn report(plan: &Plan) -> Result<()> {
    let record = load(&plan.record)?;
    if let Some(path) = &plan.html {
        fs::write(path, page(&record)).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &plan.readme {
        readme::refresh(path, &table(&record))?;
    }
    if plan.html.is_none() && plan.readme.is_none() {
        print!("{}", table(&record));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_a_page_and_a_table_or_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let text = "<!-- replay:begin -->\n<!-- replay:end -->\n";
        fs::write(at("README.md"), text).unwrap();
        fs::write(at("record.json"), "{}").unwrap();
        let mut plan = Plan {
            record: at("record.json"),
            html: Some(at("page.html")),
            readme: Some(at("README.md")),
        };
        assert!(report(&plan).is_err());
        assert!(!at("page.html").exists());
        assert_eq!(fs::read_to_string(at("README.md")).unwrap(), text);

        let record = sample::record();
        fs::write(&plan.record, serde_json::to_vec(&record).unwrap()).unwrap();
        report(&plan).unwrap();
        let written = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(written("page.html"), page(&record));
        assert!(written("README.md").contains(table(&record).trim()));

        plan.record = at("nothing.json");
        let refusal = format!("{:#}", report(&plan).unwrap_err());
        assert!(refusal.contains("read") && refusal.contains("nothing.json"));
    }
}
