// SPDX-License-Identifier: Apache-2.0

//! How far something is that takes long.

use std::{
    fmt,
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::visible;

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows on a terminal how far it is, once that takes long.
pub(crate) struct Bar {
    began: Instant,
    shown: Option<ProgressBar>,
    what: String,
}

impl Bar {
    /// `what` is told beside it.
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self {
            began: Instant::now(),
            shown: None,
            what: visible(&what.to_string()),
        }
    }

    /// So much is done of so much.
    pub(crate) fn at(&mut self, done: u64, total: u64) {
        if self.began.elapsed() < PATIENCE || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new(total).with_message(self.what.clone());
            let style = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";
            match ProgressStyle::with_template(style) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        bar.set_length(total);
        bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
