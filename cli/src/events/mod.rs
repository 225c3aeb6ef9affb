// SPDX-License-Identifier: Apache-2.0

//! `crab events [S]`: what has happened in sandboxes, or happens.
//!
//! The journals in the store are the source: they are there without a daemon and after the fact, and
//! what is in them is so. Following is waiting for them to grow.

mod event;
mod otlp;
mod watch;

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Write},
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use crab_store::{Follow, FollowFrom, JournalRecord, SandboxId, Step, Store, TurnId, Unreadable};

use self::{
    event::{Event, Told},
    watch::{Changed, Watch},
};
use crate::{
    context::Context,
    error::{CliError, Code, StoreError},
    named::TurnName,
    output::{now_ms, parse_utc},
    units,
};

/// How often it is looked whether there is a store by now.
const PAUSE: Duration = Duration::from_millis(500);

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line for people each
    Text,
    /// A JSON object each
    Json,
    /// Turns and rollbacks alone, as OpenTelemetry's traces: a line of OTLP JSON each, as
    /// a collector's otlpjsonfile receiver reads them
    Otlp,
}

/// From when on.
#[derive(Clone, Debug)]
pub(crate) enum Since {
    /// Milliseconds since the Unix epoch.
    At(u64),
    /// So many milliseconds ago.
    Ago(u64),
    Turn(TurnName),
}

impl FromStr for Since {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(at) = parse_utc(text) {
            return Ok(Self::At(at));
        }
        if let Ok(ago) = units::age_ms(text) {
            return Ok(Self::Ago(ago));
        }
        let wrong = "it is an age such as 10m or 2h, a time such as 2026-11-30T19:00:00Z, \
                     a turn's number or the name of a tag";
        text.parse().map(Self::Turn).map_err(|_| wrong)
    }
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) sandbox: Option<String>,
    pub(crate) follow: bool,
    pub(crate) since: Option<Since>,
    pub(crate) format: Format,
}

pub(crate) fn run(context: &Context, wish: &Wish) -> Result<(), CliError> {
    let sandbox = wish.sandbox.as_deref();
    let sandbox = sandbox.map(|text| context.sandbox(text)).transpose()?;
    let since_ms = match &wish.since {
        None => 0,
        Some(Since::At(at)) => *at,
        Some(Since::Ago(ago)) => now_ms().saturating_sub(*ago),
        Some(Since::Turn(turn)) => {
            let Some(sandbox) = &sandbox else {
                return Err(CliError::new(
                    Code::Usage,
                    "wrong usage",
                    format!("turn {turn} of which sandbox"),
                    "name one, or say --since with an age or a time",
                ));
            };
            let number = turn.of(sandbox)?;
            let journal = sandbox
                .journal()
                .map_err(|error| unreadable(error.into()))?;
            beginning(&journal.records, number).ok_or_else(|| {
                CliError::new(
                    Code::NotFound,
                    format!("no events of turn {number} of {}", sandbox.id()),
                    "there is no such turn",
                    format!("`crab turns {}` lists the turns", sandbox.id()),
                )
            })?
        }
    };
    let only = sandbox.map(|sandbox| sandbox.id().clone());
    let mut printer = Printer {
        format: wish.format,
        since_ms,
        told: HashMap::new(),
        stdout: io::stdout(),
    };
    let from = match wish.follow && wish.since.is_none() {
        true => FollowFrom::Now,
        false => FollowFrom::Beginning,
    };
    let done = match wish.follow {
        true => follow(context, only, from, &mut printer),
        false => history(context, only, &mut printer),
    };
    match done {
        // The reader has seen enough.
        Err(Stop::Unread) => Ok(()),
        Err(Stop::Failed(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// When a turn began, as a journal has it.
fn beginning(records: &[JournalRecord], turn: TurnId) -> Option<u64> {
    records.iter().find_map(|record| match record {
        JournalRecord::Turn(record) if record.turn == turn => Some(record.began_ms),
        JournalRecord::Step(record) if record.turn == turn => match record.step {
            Step::Opened { .. } => Some(record.at_ms),
            _ => None,
        },
        _ => None,
    })
}

fn unreadable(error: StoreError) -> CliError {
    CliError::store("cannot tell of events", error)
}

/// Why it ends.
enum Stop {
    /// Nobody reads it.
    Unread,
    Failed(CliError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::Unread,
            _ => Self::Failed(CliError::failed(
                "cannot write the output",
                error,
                "see where it goes to",
            )),
        }
    }
}

impl From<CliError> for Stop {
    fn from(error: CliError) -> Self {
        Self::Failed(error)
    }
}

/// Everything that there is, by its time.
fn history(context: &Context, only: Option<SandboxId>, printer: &mut Printer) -> Result<(), Stop> {
    let Some(store) = context.store_if_any()? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    let mut follow = begin(store, only, FollowFrom::Beginning)?;
    let faults = follow.look(&mut |id, record| printer.lines(id, &record, &mut lines));
    tell(faults.map_err(|error| unreadable(error.into()))?);
    lines.sort_by_key(|line| line.0);
    printer.print(&lines)
}

fn begin(store: Store, only: Option<SandboxId>, from: FollowFrom) -> Result<Follow, CliError> {
    Follow::begin(store, only, from).map_err(|error| unreadable(error.into()))
}

/// The same, and what happens from then on.
fn follow(
    context: &Context,
    only: Option<SandboxId>,
    mut from: FollowFrom,
    printer: &mut Printer,
) -> Result<(), Stop> {
    let store = loop {
        if let Some(store) = context.store_if_any()? {
            break store;
        }
        // All that is in one that is made later is new.
        from = FollowFrom::Beginning;
        if watch::is_unread(None, &printer.stdout, Some(PAUSE))? {
            return Err(Stop::Unread);
        }
    };
    let mut watch = Watch::new();
    let mut follow = begin(store.clone(), only.clone(), from)?;
    let mut changed = Changed::Anything;
    loop {
        let mut lines = Vec::new();
        let mut each = |id: &SandboxId, record: JournalRecord| {
            printer.lines(id, &record, &mut lines);
        };
        let mut faults = Vec::new();
        let mut look = || -> Result<(), crab_store::OpenError> {
            match &changed {
                Changed::Journals(sandboxes) => {
                    for id in sandboxes {
                        faults.extend(follow.look_at(id, &mut each)?);
                    }
                }
                _ => {
                    // Watched before it is looked at, so that nothing is missed in between.
                    let sandboxes = match &only {
                        Some(only) => vec![only.clone()],
                        None => store.sandboxes()?,
                    };
                    watch.cover(&store, &sandboxes);
                    faults.extend(follow.look(&mut each)?);
                }
            }
            Ok(())
        };
        look().map_err(|error| unreadable(error.into()))?;
        tell(faults);
        printer.print(&lines)?;
        changed = watch.wait(&printer.stdout)?;
        if changed == Changed::Unread {
            return Err(Stop::Unread);
        }
    }
}

/// What cannot be read costs its own events, and no other's.
fn tell(faults: Vec<Unreadable>) {
    for (id, error) in faults {
        let error = CliError::store(format!("no events of {id}"), error.into());
        eprintln!("{error}");
    }
}

/// What is printed, and when it happened.
type Line = (u64, String);

struct Printer {
    format: Format,
    since_ms: u64,
    told: HashMap<SandboxId, Told>,
    stdout: io::Stdout,
}

impl Printer {
    /// The lines that a record is worth.
    fn lines(&mut self, id: &SandboxId, record: &JournalRecord, lines: &mut Vec<Line>) {
        if self.format == Format::Otlp {
            let at_ms = record.at_ms().unwrap_or_default();
            if at_ms >= self.since_ms {
                lines.extend(otlp::line(id, record).map(|line| (at_ms, line)));
            }
            return;
        }
        let told = self.told.entry(id.clone()).or_default();
        let events = told.events(id, record).into_iter();
        for event in events.filter(|event| event.at_ms >= self.since_ms) {
            lines.push((event.at_ms, self.line(&event)));
        }
    }

    fn line(&self, event: &Event) -> String {
        match self.format {
            Format::Json => {
                // Texts and numbers cannot fail.
                let mut line = serde_json::to_string(event).unwrap_or_default();
                line.push('\n');
                line
            }
            _ => event::line(event),
        }
    }

    fn print(&mut self, lines: &[Line]) -> Result<(), Stop> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut stdout = io::BufWriter::new(self.stdout.lock());
        for (_, line) in lines {
            stdout.write_all(line.as_bytes())?;
        }
        Ok(stdout.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_an_age_a_time_or_a_turn() {
        assert!(matches!("10m".parse(), Ok(Since::Ago(600_000))));
        assert!(matches!(
            "2026-11-29T18:05:48.999Z".parse(),
            Ok(Since::At(1_795_975_548_999))
        ));
        assert!(matches!(
            "7".parse(),
            Ok(Since::Turn(TurnName::Number(TurnId(7))))
        ));
        assert!(matches!("good".parse(), Ok(Since::Turn(TurnName::Tag(_)))));
        assert!("2026-11-29".parse::<Since>().is_err());
    }
}
