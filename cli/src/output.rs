// SPDX-License-Identifier: Apache-2.0

//! Text for people: tables, sizes, durations.

use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A text as one line that a terminal only shows: what it would obey (control
/// characters, direction marks) becomes `\u{...}`. Much of what `crab` prints
/// was chosen by what runs in a sandbox.
pub(crate) fn visible(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if obeyed(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// A text as one cell of a table, so wide at most.
pub(crate) fn cell(text: &str, max: usize) -> String {
    let text = visible(text);
    if text.chars().count() <= max {
        return text;
    }
    let kept: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// What stands for nothing in a table.
pub(crate) const NOTHING: &str = "-";

/// A value, or what stands for nothing.
pub(crate) fn or_nothing<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// A table without lines; columns of these numbers are set to the right.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    right: &[usize],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

/// A size: `17 B`, `2.5 KiB`, `130 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    scaled(value, UNITS[unit])
}

/// How a size has become another: `17 B -> 2.5 KiB`; to the byte where that is what tells
/// them apart.
pub(crate) fn size_change(before: u64, now: u64) -> String {
    match (size(before), size(now)) {
        (was, is) if was == is => format!("{before} B -> {now} B"),
        (was, is) => format!("{was} -> {is}"),
    }
}

/// A duration: `850 us`, `2.5 ms`, `130 ms`, `12 s`, `3 min`.
pub(crate) fn duration(us: u64) -> String {
    let value = us as f64;
    match us {
        0..1_000 => format!("{us} us"),
        1_000..999_500 => scaled(value / 1e3, "ms"),
        999_500..120_000_000 => scaled(value / 1e6, "s"),
        _ => format!("{} min", us / 60_000_000),
    }
}

fn scaled(value: f64, unit: &str) -> String {
    if value < 9.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// How long ago a time is: `12 s ago`, `3 h ago`.
pub(crate) fn ago(ms: u64, now_ms: u64) -> String {
    let s = now_ms.saturating_sub(ms) / 1000;
    let (value, unit) = match s {
        0..120 => (s, "s"),
        120..7_200 => (s / 60, "min"),
        7_200..172_800 => (s / 3_600, "h"),
        _ => (s / 86_400, "days"),
    };
    format!("{value} {unit} ago")
}

/// A time as UTC: `2026-11-29 18:05:48Z`.
pub(crate) fn utc(ms: u64) -> String {
    let (date, time) = utc_parts(ms / 1000);
    format!("{date} {time}Z")
}

/// The same for programs, to the millisecond: `2026-11-29T18:05:48.999Z`.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (date, time) = utc_parts(ms / 1000);
    format!("{date}T{time}.{:03}Z", ms % 1000)
}

fn utc_parts(s: u64) -> (String, String) {
    let (days, of_day) = (s / 86_400, s % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970-01-01.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, min, s) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{h:02}:{min:02}:{s:02}"),
    )
}

/// What [`utc`] and [`rfc3339`] have written, in milliseconds since the Unix epoch.
pub(crate) fn parse_utc(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
    let numbers = |text: &str, mark: char| -> Option<[u64; 3]> {
        let mut parts = text.split(mark).map(|part| {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| digits)
        });
        let all = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(all)
    };
    let (time, ms) = match time.split_once('.') {
        Some((time, ms)) if ms.len() == 3 => (time, ms.parse::<u64>().ok()?),
        Some(_) => return None,
        None => (time, 0),
    };
    let [year, month, day] = numbers(date, '-')?;
    let [h, min, s] = numbers(time, ':')?;
    let is_one = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && h < 24
        && min < 60
        && s < 61;
    if !is_one {
        return None;
    }
    // Howard Hinnant's days_from_civil.
    let y = year - u64::from(month <= 2);
    let (era, yoe) = (y / 400, y % 400);
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    Some((days * 86_400 + h * 3_600 + min * 60 + s) * 1000 + ms)
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_have_two_or_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10_239, "10 KiB"),
            (1_048_575, "1.0 MiB"),
            (136_314_880, "130 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size_change(17, 2560), "17 B -> 2.5 KiB");
        assert_eq!(size_change(2050, 2051), "2050 B -> 2051 B");
        for (us, text) in [
            (0, "0 us"),
            (999, "999 us"),
            (1_000, "1.0 ms"),
            (130_400, "130 ms"),
            (999_999, "1.0 s"),
            (12_000_000, "12 s"),
            (180_000_000, "3 min"),
        ] {
            assert_eq!(duration(us), text);
        }
    }

    #[test]
    fn a_time_is_told_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(utc(1_795_975_548_999), "2026-11-29 18:05:48Z");
        for ms in [0, 951_782_400_000, 1_795_975_548_000, 4_102_444_799_000] {
            assert_eq!(parse_utc(&utc(ms)), Some(ms));
            assert_eq!(parse_utc(&rfc3339(ms + 7)), Some(ms + 7));
        }
        for wrong in [
            "",
            "2026-11-29",
            "2026-11-29T18:05:48",
            "2026-13-29T18:05:48Z",
            "2026-11-29T24:05:48Z",
            "2026-11-29T18:05:+8Z",
            "2026-11-29T18:05:48.5Z",
            "1969-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_utc(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let text = visible("a\u{1b}[2J\n\u{9b}\u{202e}ä");
        assert_eq!(text, r"a\u{1b}[2J\n\u{9b}\u{202e}ä");
        assert_eq!(cell("abcdef", 4), "abc…");
    }

    #[test]
    fn a_table_has_no_lines_and_no_blanks_at_the_end() {
        let rows = [
            ["1".to_owned(), "x".to_owned()],
            ["10".to_owned(), "yy".to_owned()],
        ];
        assert_eq!(
            table(["N", "NAME"], &[0], rows),
            " N  NAME\n 1  x\n10  yy\n"
        );
    }
}
