// SPDX-License-Identifier: Apache-2.0

//! A comparison as text for people.

use crab_store::{Change, ProcessChange};

use super::{
    Diff,
    compare::{Attribute, Difference},
    unified::Text,
};
use crate::output::{size, size_change, visible};

pub(super) fn text(diff: &Diff) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&visible(&text));
        out.push('\n');
    };
    if diff.same {
        let (a, b) = (diff.a.turn, diff.b.turn);
        line(format!("turns {a} and {b} end alike"));
    }
    for file in &diff.files {
        line(path(file));
    }
    for differs in &diff.processes {
        let sign = match differs.change {
            ProcessChange::Started => '+',
            ProcessChange::Changed => '~',
            ProcessChange::Ended => '-',
        };
        let process = &differs.process;
        line(format!(
            "{sign} process {} {}: {}",
            process.pid, process.comm, process.cmdline
        ));
    }
    for note in &diff.notes {
        line(format!("note: {note}"));
    }
    for file in &diff.files {
        match &file.text {
            None => {}
            Some(Text::None(why)) => {
                out.push_str(&format!("\n{}: {}\n", visible(&file.path), visible(why)));
            }
            Some(Text::Diff(text)) => {
                out.push('\n');
                out.push_str(&shown(text));
            }
        }
    }
    out
}

/// Lines of files without anything that a terminal would obey.
fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        for (number, part) in line.split('\t').enumerate() {
            if number > 0 {
                out.push('\t');
            }
            out.push_str(&visible(part));
        }
        out.push_str(end);
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn path(file: &Difference) -> String {
    let sign = match file.change {
        Change::Added => '+',
        Change::Changed => '~',
        Change::Removed => '-',
    };
    let mut parts = Vec::new();
    match (file.size_before, file.size) {
        (Some(before), Some(now)) if before != now => {
            parts.push(size_change(before, now));
        }
        (Some(only), None) | (None, Some(only)) if file.kind_before.is_none() => {
            parts.push(size(only));
        }
        _ => {}
    }
    if file.kind != "file" && file.kind_before.is_none() {
        parts.push(file.kind.to_owned());
    }
    parts.extend(file.attributes.iter().map(|attribute| match attribute {
        Attribute::Kind => {
            let before = file.kind_before.unwrap_or_default();
            format!("{before} -> {}", file.kind)
        }
        Attribute::Content { unsure: false } => "content".to_owned(),
        Attribute::Content { unsure: true } => "perhaps content".to_owned(),
        Attribute::Target { before, now } => format!("to {before} -> {now}"),
        Attribute::Device => "device number".to_owned(),
        Attribute::Mode { before, now } => format!("mode {before} -> {now}"),
        Attribute::Owner { before, now } => format!("owner {before} -> {now}"),
        Attribute::Time => "time".to_owned(),
        Attribute::Xattr { names } => format!("attributes {}", names.join(" ")),
    }));
    match parts.is_empty() {
        true => format!("{sign} {}", file.path),
        false => format!("{sign} {} ({})", file.path, parts.join(", ")),
    }
}
