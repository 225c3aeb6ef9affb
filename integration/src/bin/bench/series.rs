// SPDX-License-Identifier: Apache-2.0

//! Times of one thing, measured again and again.

use std::time::Duration;

use serde::Serialize;

/// Measured times, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Series(Vec<f64>);

/// A series in short, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// A tenth of the times are below.
    pub(crate) p10: f64,
    /// A tenth of the times are above.
    pub(crate) p90: f64,
    pub(crate) count: usize,
}

impl Series {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e3);
    }

    /// One that was measured by other clocks than ours.
    pub(crate) fn push_ms(&mut self, milliseconds: f64) {
        self.0.push(milliseconds);
    }

    /// Those of another as well.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// In milliseconds.
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        quantile(&sorted, q)
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Summary {
            median: rounded(quantile(&sorted, 0.5)),
            p10: rounded(quantile(&sorted, 0.1)),
            p90: rounded(quantile(&sorted, 0.9)),
            count: sorted.len(),
        }
    }
}

/// Between the two nearest values, in proportion.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = q * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

/// As many digits as mean something.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The median of some values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    rounded(quantile(&sorted, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_the_values_in_order() {
        let mut series = Series::default();
        for ms in [50, 10, 40, 20, 30] {
            series.push(Duration::from_millis(ms));
        }
        let summary = series.summary();
        assert_eq!((summary.median, summary.count), (30.0, 5));
        assert_eq!((summary.p10, summary.p90), (14.0, 46.0));
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
    }
}
