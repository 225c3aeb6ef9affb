// SPDX-License-Identifier: Apache-2.0

//! A turn's effects as lines: files, processes, sockets, what went out, and what was
//! ignored by which rule.

use crab_store::{
    Change, ChangedPath, ChangedProcess, Class, IgnoredBy, PathKind, ProcessChange, TurnRecord,
};

use crate::{
    output::{count, size, size_change},
    show::Sheet,
};

pub(crate) fn lines(sheet: &mut Sheet, record: &TurnRecord) {
    let effects = &record.effects;
    list(
        sheet,
        "changed",
        count(record.files_changed, "path", "paths"),
        record.changed.iter().map(path),
        record.files_changed,
    );
    list(
        sheet,
        "processes",
        format!("{} changed", effects.processes_changed),
        effects.processes.iter().map(process),
        effects.processes_changed,
    );
    for socket in &effects.listening {
        let protocol = &socket.protocol;
        let line = format!("on {protocol} {} by {}", socket.address, socket.comm);
        sheet.line("listens", line);
    }
    for (what, number) in &effects.external {
        sheet.line("went out", went_out(what, *number));
    }
    for by in &effects.ignored {
        sheet.line("ignored", ignored(by, record.class));
    }
}

/// A list under its number, and how many of it are not told.
fn list(
    sheet: &mut Sheet,
    name: &str,
    title: String,
    lines: impl ExactSizeIterator<Item = String>,
    number: u64,
) {
    if number == 0 {
        return;
    }
    sheet.line(name, title);
    let told = lines.len() as u64;
    for line in lines {
        sheet.line("", line);
    }
    let more = number.saturating_sub(told);
    if more > 0 {
        sheet.line("", format!("and {more} more"));
    }
}

fn path(changed: &ChangedPath) -> String {
    let sign = match changed.change {
        Change::Added => '+',
        Change::Changed => '~',
        Change::Removed => '-',
    };
    let what = match changed.kind {
        Some(PathKind::Dir) => " (directory)",
        Some(PathKind::Symlink) => " (symlink)",
        Some(PathKind::Special) => " (special file)",
        Some(PathKind::File | PathKind::Other) | None => "",
    };
    let size = match (changed.before, changed.size) {
        (Some(before), Some(now)) if before != now => {
            format!(" ({})", size_change(before, now))
        }
        (_, Some(only)) | (Some(only), None) => format!(" ({})", size(only)),
        (None, None) => String::new(),
    };
    format!("{sign} {}{what}{size}", changed.path)
}

fn process(changed: &ChangedProcess) -> String {
    let sign = match changed.change {
        ProcessChange::Started => '+',
        ProcessChange::Changed => '~',
        ProcessChange::Ended => '-',
    };
    let pid = changed.pid.map(|pid| format!("{pid} ")).unwrap_or_default();
    format!("{sign} {pid}{}: {}", changed.comm, changed.cmdline)
}

/// What no rollback undoes.
fn went_out(what: &str, number: u64) -> String {
    match what {
        "connected" => count(number, "connection begun", "connections begun"),
        "listened" => count(number, "socket listened at", "sockets listened at"),
        "sent_bytes" => format!("{} sent", size(number)),
        other => format!("{other}: {number}"),
    }
}

fn ignored(by: &IgnoredBy, class: Class) -> String {
    let number = match by.count {
        1 => by.first.clone(),
        more => format!("{} and {} more", by.first, more - 1),
    };
    let kept = if class == Class::None {
        "not saved"
    } else {
        "saved with the rest"
    };
    format!("by {} {}: {number}; {kept}", by.setting, by.rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_with_what_it_is_and_how_large() {
        let told = |change, kind, before, size| {
            path(&ChangedPath {
                change,
                path: "/a".into(),
                kind,
                size,
                before,
            })
        };
        let file = Some(PathKind::File);
        assert_eq!(told(Change::Added, file, None, Some(17)), "+ /a (17 B)");
        assert_eq!(
            told(Change::Changed, file, Some(17), Some(2048)),
            "~ /a (17 B -> 2.0 KiB)"
        );
        assert_eq!(told(Change::Changed, file, Some(1), Some(1)), "~ /a (1 B)");
        assert_eq!(told(Change::Removed, file, Some(17), None), "- /a (17 B)");
        let dir = Some(PathKind::Dir);
        assert_eq!(told(Change::Removed, dir, None, None), "- /a (directory)");
        assert_eq!(told(Change::Removed, None, None, None), "- /a");
    }
}
