// SPDX-License-Identifier: Apache-2.0

//! The table of results as Markdown, and its place in a file: between two lines that say so.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use crab_integration::replay::{Kept, Record};

use super::{
    bars::recovered_of,
    delays::{quantile, recover_ms},
    units,
};

const BEGIN: &str = "<!-- replay:begin -->";
const END: &str = "<!-- replay:end -->";

/// The table, with where and how it came about above it.
pub(crate) fn table(record: &Record) -> String {
    let mut text = format!(
        "{}, {}, by {}: {} of recorded agents, seed {}.\n\n\
         | strategy | recovered | crash points | time ratio | bytes | recover p50 / p99 |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        cell(&record.machine),
        cell(&record.date),
        code(&record.command),
        units::count(record.plays.len(), "play", "plays"),
        record.seed,
    );
    for kept in &record.strategies {
        text.push_str(&row(kept));
    }
    text
}

fn row(kept: &Kept) -> String {
    const ABSENT: &str = "\u{2013}";
    let absent = || ABSENT.to_owned();
    let (recovered, all) = recovered_of(kept);
    let times = recover_ms(kept);
    let time = |q| units::duration(quantile(&times, q));
    format!(
        "| {} | {} | {} | {} | {} | {} |\n",
        cell(&kept.title),
        units::percent(recovered, all).unwrap_or_else(absent),
        match all {
            0 => absent(),
            all => units::number(all as f64),
        },
        kept.time_ratio().map_or_else(absent, units::ratio),
        kept.bytes.map_or_else(absent, units::bytes),
        match times.is_empty() {
            true => absent(),
            false => format!("{} / {}", time(0.5), time(0.99)),
        },
    )
}

/// Text that is nothing but text in a cell: no line, no bar, no markup.
fn cell(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.trim().chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            letter if letter.is_control() => safe.push(' '),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '#' | '~' | '!' | '$' => {
                safe.push('\\');
                safe.push(letter);
            }
            letter => safe.push(letter),
        }
    }
    safe
}

/// Text as code, between as many backticks as it needs.
fn code(text: &str) -> String {
    let text: String = text
        .trim()
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    let longest = text.split(|letter| letter != '`').map(str::len).max();
    let fence = "`".repeat(longest.unwrap_or(0) + 1);
    match text.starts_with('`') || text.ends_with('`') {
        true => format!("{fence} {text} {fence}"),
        false => format!("{fence}{text}{fence}"),
    }
}

/// Writes the table to its place. Fails where the file has no such place, or more than one, and
/// leaves the file as it is then.
pub(super) fn refresh(path: &Path, table: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let fresh = with(&text, table).with_context(|| path.display().to_string())?;
    if fresh != text {
        fs::write(path, fresh).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The same text with another table in its place.
fn with(text: &str, table: &str) -> Result<String> {
    let (before, _, after) = split(text)?;
    Ok(format!(
        "{before}{BEGIN}\n{}\n{END}{after}",
        table.trim_end()
    ))
}

/// What is before the two lines, between and after them.
fn split(text: &str) -> Result<(&str, &str, &str)> {
    // A mark counts only as a line: a table may tell of it.
    let lines = |mark: &str| {
        let starts = text.split_inclusive('\n').scan(0, |at, line| {
            let start = *at;
            *at += line.len();
            Some((start, line))
        });
        let marks = starts.filter(|(_, line)| line.trim_end() == mark);
        marks.map(|(start, _)| start).collect::<Vec<_>>()
    };
    match (&lines(BEGIN)[..], &lines(END)[..]) {
        (&[begin], &[end]) if begin < end => Ok((
            &text[..begin],
            text[begin + BEGIN.len()..end].trim(),
            &text[end + END.len()..],
        )),
        _ => bail!(
            "no place for the table: a line `{BEGIN}` and after it a line `{END}` are wanted, each once"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay_report::{
        load,
        sample::{empty, foreign, record},
    };

    /// What stands in the README as long as there is no record.
    const NONE_YET: &str = "There are no results yet.";

    #[test]
    fn the_readme_says_what_the_committed_record_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let readme = fs::read_to_string(root.join("README.md")).unwrap();
        let (_, between, _) = split(&readme).unwrap();
        let path = root.join("docs/results/crab-replay.json");
        match path.try_exists().unwrap() {
            false => assert_eq!(between, NONE_YET, "there is no {}", path.display()),
            true => {
                let table = table(&load(&path).unwrap());
                assert_eq!(
                    between,
                    table.trim(),
                    "run: scripts/bench report docs/results/crab-replay.json --readme README.md"
                );
            }
        }
    }

    #[test]
    fn a_row_has_what_was_measured_and_a_dash_for_what_was_not() {
        let table = table(&record());
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| Chat only | 33.3 % | 3 | \u{2013} | \u{2013} | 200 ms / 298 ms |",
                "| Crab | 100 % | 4 | 1.004 | 12.3 MB | 250 ms / 397 ms |",
                "| A way of one's own | \u{2013} | \u{2013} | \u{2013} | 0 B | \u{2013} |",
            ]
        );
        let first = table.lines().next().unwrap();
        assert_eq!(
            first,
            "Linux 6.18, 2 processors, 2026-11-30, by `scripts/bench replay --json`: 1 play of recorded agents, seed 7."
        );
    }

    #[test]
    fn foreign_text_stays_in_its_cell() {
        let table = table(&foreign());
        let outside_of_code: String = table.split('`').step_by(2).collect();
        assert!(!outside_of_code.contains('<'), "{table}");
        for row in table.lines().skip(2) {
            assert_eq!(row.matches('|').count(), 7, "{row}");
        }
        assert_eq!(cell("a|b\n`c` <d> \\"), "a\\|b \\`c\\` &lt;d&gt; \\\\");
        assert_eq!(code("`"), "`` ` ``");
        assert_eq!(code("a``b\n"), "```a``b```");
    }

    #[test]
    fn the_table_takes_its_place_and_nothing_else() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb {BEGIN}\n");
        let fresh = with(&text, &table(&record())).unwrap();
        assert!(fresh.starts_with(&format!("a\n{BEGIN}\nLinux")));
        assert!(fresh.ends_with(&format!(" |\n{END}\nb {BEGIN}\n")));
        let again = with(&fresh, &table(&record())).unwrap();
        assert_eq!(again, fresh, "made again, nothing moves");
        let mut tricky = empty();
        tricky.command = format!("x\n{END}\n");
        let fresh = with(&text, &table(&tricky)).unwrap();
        assert!(with(&fresh, "t").is_ok(), "{fresh}");
    }

    #[test]
    fn a_file_without_one_place_for_it_is_refused_and_left_alone() {
        for text in [
            String::new(),
            format!("{BEGIN}\n"),
            format!("{END}\n{BEGIN}\n"),
            format!("{BEGIN}\n{BEGIN}\n{END}\n"),
            format!("in a line {BEGIN} {END}\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("README.md");
            fs::write(&path, &text).unwrap();
            let refusal = format!("{:#}", refresh(&path, "table").unwrap_err());
            assert!(refusal.contains("no place for the table") && !refusal.contains('\n'));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
