// SPDX-License-Identifier: Apache-2.0

//! When the parts of a turn's end took place, as bars below each other.

use crab_store::{Span, TurnRecord};

use crate::output::duration;

/// How wide the whole of it is.
const WIDTH: u64 = 40;

/// A row for each part, from the turn's end on; none where nothing is known.
pub(crate) fn rows(record: &TurnRecord) -> Vec<String> {
    let parts: Vec<(&str, Span)> = {
        let named = record.spans.named();
        named.map(|(name, _, span)| (name, span)).collect()
    };
    let ended_us = record.ended_ms.saturating_mul(1000);
    // The end is known to the millisecond only.
    let first = parts.iter().map(|(_, span)| span.at_us).min();
    let begin = first.map_or(ended_us, |first| first.min(ended_us));
    let end = parts.iter().map(|(_, span)| span.end_us()).max();
    let Some(whole) = end.map(|end| end.saturating_sub(begin).max(1)) else {
        return Vec::new();
    };
    let place = |us: u64| (u128::from(us) * u128::from(WIDTH) / u128::from(whole)) as usize;
    let width = WIDTH as usize;
    let rows = parts.into_iter().map(|(name, span)| {
        let at = span.at_us.saturating_sub(begin);
        let from = place(at).min(width - 1);
        // What took no time to be seen is seen nevertheless.
        let to = place(at.saturating_add(span.took_us)).clamp(from + 1, width);
        format!(
            "{name:<12} after {:>8}  {:>8}  |{}{}{}|",
            duration(at),
            duration(span.took_us),
            " ".repeat(from),
            "=".repeat(to - from),
            " ".repeat(width - to),
        )
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{Class, Spans, Trigger, TurnId};

    #[test]
    fn parts_are_bars_where_they_took_place() {
        let span = |at_us, took_us| Some(Span { at_us, took_us });
        let mut record = TurnRecord {
            began_ms: 1,
            ended_ms: 1000,
            class: Class::Full,
            ..TurnRecord::new(TurnId(1), Trigger::Exec)
        };
        assert!(rows(&record).is_empty(), "of an earlier version");
        record.spans = Spans {
            decide: span(1_000_000, 10_000),
            capture: span(1_010_000, 20_000),
            frozen: span(1_012_000, 10),
            publish: span(1_030_000, 10_000),
            ..Spans::default()
        };
        let expected = [
            "decide       after     0 us     10 ms  |==========                              |",
            "capture      after    10 ms     20 ms  |          ====================          |",
            "frozen       after    12 ms     10 us  |            =                           |",
            "publish      after    30 ms     10 ms  |                              ==========|",
        ];
        assert_eq!(rows(&record), expected);
        // A clock that was put back meanwhile makes it wrong, and nothing worse.
        record.spans.publish = span(5, u64::MAX);
        assert_eq!(rows(&record).len(), 4);
    }
}
