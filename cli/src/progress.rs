// SPDX-License-Identifier: Apache-2.0

//! How far something is that takes long: on standard error, if that is a terminal and no JSON
//! was asked for, once a second has passed, and gone again at the end.

use std::{
    cell::{Cell, RefCell},
    fmt,
    io::IsTerminal,
    pin::pin,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{interval, sleep};

use crate::{context::Context, output::visible};

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often what is only waited for shows that it is.
const TICK: Duration = Duration::from_millis(100);

const BYTES: &str = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";
const THINGS: &str = "{spinner} {msg} {wide_bar} {pos}/{len} {elapsed}";
const WAITING: &str = "{spinner} {msg} {elapsed}";

/// Whether anybody would see it.
fn is_seen(context: &Context) -> bool {
    !context.json && std::io::stderr().is_terminal()
}

/// Bytes that are done, of so many. Told by whoever does the work.
pub(crate) struct Bar {
    began: Instant,
    is_seen: bool,
    shown: Option<ProgressBar>,
    what: String,
}

impl Bar {
    /// `what` is told beside it.
    pub(crate) fn new(context: &Context, what: impl fmt::Display) -> Self {
        Self {
            began: Instant::now(),
            is_seen: is_seen(context),
            shown: None,
            what: visible(&what.to_string()),
        }
    }

    /// It goes on with something else.
    pub(crate) fn now(&mut self, what: impl fmt::Display) {
        self.what = visible(&what.to_string());
        if let Some(bar) = &self.shown {
            bar.set_message(self.what.clone());
        }
    }

    /// So much is done of so much.
    pub(crate) fn at(&mut self, done: u64, total: u64) {
        if !self.is_seen || self.began.elapsed() < PATIENCE {
            return;
        }
        let bar = self.shown.get_or_insert_with(|| {
            let bar = styled(ProgressBar::new(total), BYTES);
            bar.with_message(self.what.clone())
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

/// What is going on while something is waited for. Told by whoever knows.
pub(crate) struct Phase {
    what: RefCell<String>,
    /// How many things are done, of how many.
    count: Cell<Option<(u64, u64)>>,
}

impl Phase {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        let phase = Self {
            what: RefCell::default(),
            count: Cell::new(None),
        };
        phase.now(what);
        phase
    }

    /// It goes on with this.
    pub(crate) fn now(&self, what: impl fmt::Display) {
        self.what.replace(visible(&what.to_string()));
    }

    /// So many things are done, of so many.
    pub(crate) fn at(&self, done: usize, total: usize) {
        self.count.set(Some((done as u64, total as u64)));
    }
}

/// Shows that something is waited for, and what is going on.
pub(crate) async fn waiting<T>(
    context: &Context,
    phase: &Phase,
    work: impl Future<Output = T>,
) -> T {
    if !is_seen(context) {
        return work.await;
    }
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = sleep(PATIENCE) => {}
    }
    let spinner = Spinner::new();
    let mut ticks = interval(TICK);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => spinner.show(phase),
        }
    }
}

/// A line that turns.
struct Spinner {
    bar: ProgressBar,
    counts: Cell<bool>,
}

impl Spinner {
    fn new() -> Self {
        let bar = styled(ProgressBar::new_spinner(), WAITING);
        Self {
            bar: bar.with_elapsed(PATIENCE),
            counts: Cell::new(false),
        }
    }

    fn show(&self, phase: &Phase) {
        self.bar.set_message(phase.what.borrow().clone());
        if let Some((done, total)) = phase.count.get() {
            if !self.counts.replace(true) {
                self.bar.set_style(style(THINGS));
            }
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        self.bar.tick();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    bar.with_style(style(template))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
