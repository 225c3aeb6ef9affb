// SPDX-License-Identifier: Apache-2.0

//! Values as text. None rounds up to more than it is: 99.96 % is not 100 %.

/// A share of all, as per cent and rounded down; nothing of nothing.
pub(super) fn percent(part: usize, all: usize) -> Option<String> {
    let tenths = (part as u128 * 1000).checked_div(all as u128)?;
    Some(match tenths % 10 {
        0 => format!("{} %", tenths / 10),
        rest => format!("{}.{rest} %", tenths / 10),
    })
}

/// Three digits that mean something, in units of a thousand each.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Of milliseconds: in what is read most easily.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() => "no time".to_owned(),
        ms if ms < 999.5 => format!("{} ms", three_digits(ms)),
        ms if ms < 999_500.0 => format!("{} s", three_digits(ms / 1e3)),
        ms => format!("{} s", number(ms / 1e3)),
    }
}

/// One time beside another.
pub(super) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() && ratio < 1000.0 {
        format!("{ratio:.3}")
    } else {
        number(ratio)
    }
}

/// Any value: whole ones in groups of three digits, others with three after the point.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "no number".to_owned();
    }
    if value.abs() >= 1e15 {
        return format!("{value:.3e}");
    }
    let text = format!("{:.3}", value.abs());
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let rest = rest.trim_end_matches('0');
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !rest.is_empty() {
        grouped.push('.');
        grouped.push_str(rest);
    }
    match value < 0.0 && grouped != "0" {
        true => format!("-{grouped}"),
        false => grouped,
    }
}

/// `1 crash`, `2 crashes`.
pub(super) fn count(count: usize, one: &str, more: &str) -> String {
    format!(
        "{} {}",
        number(count as f64),
        if count == 1 { one } else { more }
    )
}

fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.095 || v == 0.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Those of them that are numbers, in order.
pub(super) fn in_order(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_up_to_all() {
        assert_eq!(percent(2999, 3000).unwrap(), "99.9 %");
        assert_eq!(percent(3000, 3000).unwrap(), "100 %");
        assert_eq!(percent(1, 3).unwrap(), "33.3 %");
        assert_eq!(percent(0, 3).unwrap(), "0 %");
        assert_eq!(percent(0, 0), None);
        assert_eq!(percent(usize::MAX, usize::MAX).unwrap(), "100 %");
    }

    #[test]
    fn bytes_have_the_unit_that_makes_them_short() {
        for (value, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (12_345, "12.3 kB"),
            (999_499, "999 kB"),
            (999_600, "1 MB"),
            (56_000_000, "56 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn times_and_numbers_of_any_size_are_text() {
        for (ms, text) in [
            (0.0, "0 ms"),
            (0.004, "0.004 ms"),
            (0.1, "0.1 ms"),
            (1.0, "1 ms"),
            (12.34, "12.3 ms"),
            (999.6, "1 s"),
            (61_500.0, "61.5 s"),
            (1e7, "10,000 s"),
            (f64::NAN, "no time"),
        ] {
            assert_eq!(duration(ms), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (-0.0001, "0"),
            (-1234.5, "-1,234.5"),
            (1_000_000.0, "1,000,000"),
            (1.015, "1.015"),
            (1e300, "1.000e300"),
            (f64::INFINITY, "no number"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (ratio(1.0), ratio(1e6)),
            ("1.000".into(), "1,000,000".into())
        );
        assert_eq!(count(1, "crash", "crashes"), "1 crash");
        assert_eq!(count(1200, "crash", "crashes"), "1,200 crashes");
    }
}
