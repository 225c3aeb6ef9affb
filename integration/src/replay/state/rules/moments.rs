// SPDX-License-Identifier: Apache-2.0

//! Times that a run has written down.

use super::Window;

/// Forms, the longest first where one begins like another. `Y`, `M`, `D`, `h`, `m`, `s` stand
/// for a digit each of year, month, day, hour, minute and second; `B` for a month's name of
/// three letters, `W` for a day's, `d` for a day of one digit after a space; `T` for `T`, `_`,
/// `-` or a space; `Z` for a zone of letters. All else is itself. A fraction and an offset may
/// follow any of them.
const FORMS: [&str; 13] = [
    "YYYY-MM-DDThh:mm:ss",
    "YYYY/MM/DD hh:mm:ss",
    "YYYY-MM-DDThh:mm",
    "YYYYMMDDThhmmss",
    "YYYYMMDDhhmmss",
    "DD/B/YYYY:hh:mm:ss",
    "DD/B/YYYY hh:mm:ss",
    "W B DD hh:mm:ss Z YYYY",
    "W B d hh:mm:ss Z YYYY",
    "W B DD hh:mm:ss YYYY",
    "W B d hh:mm:ss YYYY",
    "W, DD B YYYY hh:mm:ss",
    "DD B YYYY hh:mm:ss",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Digits of a Unix time in seconds, milliseconds, microseconds and nanoseconds.
const UNIX: [(usize, i64); 4] = [(10, 1), (13, 1_000), (16, 1_000_000), (19, 1_000_000_000)];
/// What stands for a moment.
const TOLD: &[u8] = b"(time)";

/// Text in which each moment of the window is the same; nothing if it has none.
pub(super) fn text(text: &[u8], window: &Window) -> Option<Vec<u8>> {
    let mut ruled: Option<Vec<u8>> = None;
    let (mut at, mut done) = (0, 0);
    while at < text.len() {
        let starts = text[at].is_ascii_digit() || b"MTWFS".contains(&text[at]);
        let inner = at > 0 && is_inner(text[at - 1], text[at]);
        let moment = (starts && !inner).then(|| moment(&text[at..], window));
        let Some((length, is_of_run)) = moment.flatten() else {
            at += 1;
            continue;
        };
        if is_of_run {
            let ruled = ruled.get_or_insert_default();
            ruled.extend_from_slice(&text[done..at]);
            ruled.extend_from_slice(TOLD);
            done = at + length;
        }
        // The time of another day is no time of this one.
        at += length;
    }
    if let Some(ruled) = &mut ruled {
        ruled.extend_from_slice(&text[done..]);
    }
    ruled
}

/// Whether a number or a word goes on.
fn is_inner(before: u8, first: u8) -> bool {
    match first.is_ascii_digit() {
        true => before.is_ascii_digit() || before == b'.' || before == b':',
        false => before.is_ascii_alphanumeric(),
    }
}

/// The length of the moment with which a text begins, and whether it is one of the window.
fn moment(text: &[u8], window: &Window) -> Option<(usize, bool)> {
    for form in FORMS {
        let Some((found, length)) = Found::of(form, text) else {
            continue;
        };
        let (offset, end) = tail(text, length);
        if text.get(end).is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let Some(seconds) = found.seconds() else {
            continue;
        };
        let seconds = seconds - offset;
        // Without seconds it is any of that minute's.
        let last = seconds + if form.ends_with("mm") { 59 } else { 0 };
        return Some((end, window.meets(seconds, last)));
    }
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (_, unit) = UNIX.iter().find(|(length, _)| *length == digits)?;
    let number: i64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let (_, end) = fraction(text, digits);
    Some((end, window.meets(number / unit, number / unit)))
}

/// What may follow: a fraction, and an offset from UTC. Where all ends, and the offset in
/// seconds.
fn tail(text: &[u8], from: usize) -> (i64, usize) {
    let (_, at) = fraction(text, from);
    if text.get(at) == Some(&b'Z') {
        return (0, at + 1);
    }
    let space = usize::from(text.get(at) == Some(&b' '));
    let zone = &text[(at + space).min(text.len())..];
    for form in ["hh:mm", "hhmm"] {
        let sign = match zone.first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => break,
        };
        if let Some((found, length)) = Found::of(form, &zone[1..])
            && !zone.get(1 + length).is_some_and(u8::is_ascii_digit)
        {
            let offset = sign * (found.hour * 3600 + found.minute * 60);
            return (offset, at + space + 1 + length);
        }
    }
    (0, at)
}

fn fraction(text: &[u8], from: usize) -> (usize, usize) {
    let digits = match text.get(from) {
        Some(b'.' | b',') => text[from + 1..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count(),
        _ => 0,
    };
    match digits {
        1..=9 => (digits, from + 1 + digits),
        _ => (0, from),
    }
}

#[derive(Debug, Default)]
struct Found {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Found {
    /// Reads a form at the beginning of a text, and how long it is.
    fn of(form: &str, text: &[u8]) -> Option<(Self, usize)> {
        let mut found = Self::default();
        let mut at = 0;
        for part in form.bytes() {
            let byte = *text.get(at)?;
            let digit = || byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
            let name = |names: &[&str]| {
                let name = text.get(at..at + 3)?;
                names.iter().position(|known| known.as_bytes() == name)
            };
            let mut length = 1;
            match part {
                b'Y' => found.year = found.year * 10 + digit()?,
                b'M' => found.month = found.month * 10 + digit()?,
                b'D' => found.day = found.day * 10 + digit()?,
                b'h' => found.hour = found.hour * 10 + digit()?,
                b'm' => found.minute = found.minute * 10 + digit()?,
                b's' => found.second = found.second * 10 + digit()?,
                b'T' if b"T_- ".contains(&byte) => {}
                b'T' => return None,
                b'B' => (found.month, length) = (name(&MONTHS)? as i64 + 1, 3),
                b'W' => (_, length) = (name(&DAYS)?, 3),
                b'd' if byte == b' ' => {
                    let digit = text.get(at + 1).filter(|byte| byte.is_ascii_digit())?;
                    (found.day, length) = (i64::from(digit - b'0'), 2);
                }
                b'd' => return None,
                b'Z' => {
                    let letters = text[at..]
                        .iter()
                        .take_while(|byte| byte.is_ascii_uppercase());
                    length = letters.count();
                    if !(3..=5).contains(&length) {
                        return None;
                    }
                }
                _ if part == byte => {}
                _ => return None,
            }
            at += length;
        }
        Some((found, at))
    }

    /// Since the epoch; nothing if there is no such time.
    fn seconds(&self) -> Option<i64> {
        let clock = self.hour < 24 && self.minute < 60 && self.second < 61;
        let time = self.hour * 3600 + self.minute * 60 + self.second;
        let date = (1..=12).contains(&self.month) && (1..=31).contains(&self.day);
        // Days since the epoch (Howard Hinnant's days_from_civil).
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let of_era = year.rem_euclid(400);
        let of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        let day = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        (clock && date).then_some((era * 146_097 + day - 719_468) * 86_400 + time)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::hour, *};

    fn of(line: &str) -> String {
        let ruled = text(line.as_bytes(), &hour());
        String::from_utf8(ruled.unwrap_or_else(|| line.into())).unwrap()
    }

    #[test]
    fn moments_of_the_run_are_alike() {
        for moment in [
            "2026-11-30 22:10:00",
            "2026-11-30T22:10:00Z",
            "2026-11-30T22:10:00.123456+00:00",
            "2026-11-30 23:40:00,123 +0130",
            "2026-11-30 22:10",
            "2026/11/30 22:10:00",
            "20261130-221000",
            "20261130221000",
            "30/Nov/2026:22:10:00 +0000",
            "30/Nov/2026 22:10:00",
            "Mon Nov 30 22:10:00 2026",
            "Mon Nov 30 22:10:00 UTC 2026",
            "Mon, 30 Nov 2026 22:10:00",
            "1796076600",
            "1796076600.123",
            "1796076600123",
        ] {
            assert_eq!(of(&format!("a {moment} b")), "a (time) b", "{moment}");
            assert_eq!(of(moment), "(time)");
        }
        assert_eq!(of("copy-20261130_221000.tar"), "copy-(time).tar");
    }

    #[test]
    fn all_other_times_and_numbers_count() {
        for other in [
            "2025-11-30 22:10:00",
            "2026-11-29T22:10:00Z",
            "2026-11-30T22:10:00+05:00",
            "2026-11-30",
            "20261130",
            "30/Nov/2026:21:10:00 +0000",
            "Mon Nov 30 21:10:00 UTC 2026",
            "22:10:00",
            "99:99:99",
            "10.0.0.22:10:00:1",
            "1796070000",
            "17960766001",
            "x11796076600",
            "2026-13-30 22:10:00",
        ] {
            assert_eq!(of(other), other);
        }
        assert_ne!(of("a 2026-11-30 22:10:00 b"), of("a 2026-11-30 22:10:00 c"));
    }

    #[test]
    fn days_are_counted_as_calendars_do() {
        let seconds = |text: &str| {
            let (found, _) = Found::of("YYYY-MM-DDThh:mm:ss", text.as_bytes()).unwrap();
            found.seconds().unwrap()
        };
        assert_eq!(seconds("1970-01-01 00:00:00"), 0);
        assert_eq!(seconds("2000-02-29 12:00:00"), 951_825_600);
        assert_eq!(seconds("2026-11-30 22:00:00"), 1_796_076_000);
    }
}
