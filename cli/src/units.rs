// SPDX-License-Identifier: Apache-2.0

//! Sizes and ages as users write them: `500M`, `12h`.

/// A number and the unit that follows it.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

/// A size in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, &'static str> {
    let parsed = split(text).and_then(|(number, unit)| {
        let shift = match unit.trim_end_matches("iB") {
            "" | "B" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return None,
        };
        number.checked_mul(1 << shift)
    });
    parsed.ok_or("a size is a number of bytes, or with K, M, G or T behind it")
}

/// An age in milliseconds.
pub(crate) fn age_ms(text: &str) -> Result<u64, &'static str> {
    let parsed = split(text).and_then(|(number, unit)| {
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return None,
        };
        number.checked_mul(seconds * 1000)
    });
    parsed.ok_or("an age is a number with s, m, h or d behind it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_have_units() {
        for (text, value) in [
            ("0", Some(0)),
            ("17B", Some(17)),
            ("2K", Some(2048)),
            ("3MiB", Some(3 << 20)),
            ("20G", Some(20 << 30)),
            ("99999999T", None),
            ("", None),
            ("K", None),
            ("-1", None),
            ("1.5G", None),
            ("1x", None),
        ] {
            assert_eq!(bytes(text).ok(), value, "{text}");
        }
        for (text, value) in [
            ("90m", Some(5_400_000)),
            ("30d", Some(2_592_000_000)),
            ("5", None),
            ("h", None),
        ] {
            assert_eq!(age_ms(text).ok(), value, "{text}");
        }
    }
}
