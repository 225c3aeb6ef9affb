// SPDX-License-Identifier: Apache-2.0

//! What the demo prints: a story and a table for people, one object for programs.

use crab_integration::Turn;
use crab_store::Class;
use serde::Serialize;

use crate::session::Step;

/// Where the story goes: beside the object, if one was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Story {
    pub(crate) to_stderr: bool,
}

impl Story {
    pub(crate) fn line(&self, line: impl AsRef<str>) {
        if self.to_stderr {
            eprintln!("{}", line.as_ref());
        } else {
            println!("{}", line.as_ref());
        }
    }

    pub(crate) fn title(&self, title: impl AsRef<str>) {
        self.line(format!("\n== {}", title.as_ref()));
    }

    /// A thing that has to be so.
    pub(crate) fn check(&self, ok: bool, what: impl AsRef<str>) {
        let sign = if ok { "ok  " } else { "FAIL" };
        self.line(format!("  {sign}  {}", what.as_ref()));
    }
}

/// A turn that was to be of a class.
pub(crate) struct Row {
    pub(crate) step: Step,
    pub(crate) turn: Turn,
}

impl Row {
    pub(crate) fn is_right(&self) -> bool {
        self.turn.class() == self.step.class
    }
}

const HEADER: [&str; 11] = [
    "TURN", "TRIGGER", "WHAT", "COMMAND", "EXIT", "CLASS", "EXPECTED", "DECIDE", "CAPTURE",
    "FROZEN", "BYTES",
];
const RIGHT: [usize; 6] = [0, 4, 7, 8, 9, 10];
const MAX_COMMAND: usize = 44;

/// The table of turns.
pub(crate) fn table(story: Story, rows: &[Row]) {
    let mut lines = vec![HEADER.map(str::to_owned)];
    lines.extend(rows.iter().map(line));
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| {
                if RIGHT.contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        story.line(cells.join("  ").trim_end());
    }
}

fn line(row: &Row) -> [String; 11] {
    let record = &row.turn.record;
    let cost = &record.cost;
    let expected = if row.is_right() {
        row.step.class.to_string()
    } else {
        format!("{} !", row.step.class)
    };
    [
        record.turn.to_string(),
        record.trigger.as_str().to_owned(),
        row.step.what.to_owned(),
        short(row.step.script),
        record.exit.map_or("-".to_owned(), |exit| exit.to_string()),
        record.class.to_string(),
        expected,
        ms(cost.decide_us),
        ms(cost.capture_us),
        ms(cost.frozen_us),
        size(cost.bytes_stored),
    ]
}

fn short(script: &str) -> String {
    let line = script.lines().next().unwrap_or_default();
    if line == script && line.chars().count() <= MAX_COMMAND {
        return line.to_owned();
    }
    let kept: String = line.chars().take(MAX_COMMAND - 1).collect();
    format!("{kept}…")
}

/// Microseconds as milliseconds.
pub(crate) fn ms(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1024 / 1024),
    }
}

/// The object that `--json` prints.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) turns: usize,
    pub(crate) none: usize,
    pub(crate) files: usize,
    pub(crate) processes: usize,
    pub(crate) full: usize,
    pub(crate) misclassified: usize,
    pub(crate) rollback_ok: u8,
    pub(crate) restore_ok: u8,
    pub(crate) docker_ok: u8,
    pub(crate) bytes_crab: u64,
    pub(crate) bytes_full_every_turn: u64,
    pub(crate) decide_none_ms_p50: f64,
}

impl Figures {
    /// Counts the turns of the session.
    pub(crate) fn count(&mut self, rows: &[Row]) {
        let of = |class| rows.iter().filter(|row| row.turn.class() == class).count();
        self.turns = rows.len();
        self.none = of(Class::None);
        self.files = of(Class::Files);
        self.processes = of(Class::Processes);
        self.full = of(Class::Full);
        let mut decided: Vec<u64> = rows
            .iter()
            .filter(|row| row.turn.class() == Class::None)
            .map(|row| row.turn.record.cost.decide_us)
            .collect();
        decided.sort_unstable();
        let p50 = decided.get(decided.len() / 2).copied().unwrap_or_default();
        self.decide_none_ms_p50 = p50 as f64 / 1e3;
    }

    /// Whether everything was as it has to be.
    pub(crate) fn all_good(&self) -> bool {
        self.turns > 0
            && self.bytes_full_every_turn > 0
            && self.misclassified == 0
            && [self.rollback_ok, self.restore_ok, self.docker_ok] == [1; 3]
    }
}

#[derive(Serialize)]
struct Object<'a> {
    name: &'static str,
    figures: &'a Figures,
}

/// The one line of `--json`.
pub(crate) fn object(figures: &Figures) -> serde_json::Result<String> {
    serde_json::to_string(&Object {
        name: "demo",
        figures,
    })
}
