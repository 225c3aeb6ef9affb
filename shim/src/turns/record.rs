// SPDX-License-Identifier: Apache-2.0
//! A boundary: have the sandbox looked at, and write down what came of it.
//!
//! A checkpoint that is taken is published behind the next turn; its record is
//! written when it is in the store, so that a record never promises what is not
//! there.

use std::{
    io,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, anyhow, bail};
use crab_runtime::{criu::ImageError, files::PersistError};
use crab_store::{
    CaptureFailed, Class, Cost, FailureKind, JournalRecord, Step, Trigger, TurnId, TurnRecord,
    WriteError,
};

use tracing::Instrument;

use super::{
    Checkpointed,
    task::{History, Open, Pending, Task},
};
use crate::{
    background,
    capture::{Taken, Wall, Wish},
    publish::{Publication, Published},
    sandbox::unix_ms,
    schedule::{End, NotNow},
};

/// How a boundary comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Before the container's program runs for the first time.
    Initial,
    /// A turn is over; it is written down whatever it needs.
    Turn,
    /// The same, and what is there is about to be replaced: nothing of it is ignored.
    Last,
    /// Somebody asked; where nothing has changed it is no turn, and nothing is ignored.
    OnDemand,
    /// What failed is tried again; where nothing is owed any more it is no turn.
    Again,
}

impl Way {
    /// Whether it is a turn whatever it needs.
    fn is_turn(self) -> bool {
        !matches!(self, Self::OnDemand | Self::Again)
    }
}

impl Task {
    /// Looks at the sandbox, takes what is needed, and writes the turn down.
    pub(super) async fn boundary(&mut self, mut open: Open, way: Way) -> Result<Checkpointed> {
        // A command is waited for by whoever gave it.
        let is_asked = way == Way::Last || open.trigger == Trigger::Manual;
        self.schedule.turn_is_over(open.turn.0, open.over, is_asked);
        if way == Way::Again {
            self.schedule.may_be_in_vain();
        }
        self.collect(false).await;
        if is_asked {
            self.finish_pending_now().await;
        } else {
            self.finish_pending().await;
        }
        if way != Way::Initial {
            self.settle_watch().await;
        }
        let history = match &mut self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        open.look_begins();
        let record = open.record();
        let capture = history.capture.take();
        self.tell(|status| status.capturing = true);
        let taken = match capture {
            None => Err(anyhow!("the sandbox has not begun")),
            Some(mut capture) => {
                let span = tracing::Span::current();
                let worked = tokio::task::spawn_blocking(move || {
                    let _in = span.entered();
                    let taken = match way {
                        Way::Initial => capture.take_initial(),
                        Way::Turn | Way::Again => capture.take(Wish::Turn),
                        Way::Last | Way::OnDemand if is_asked => capture.take(Wish::Asked),
                        Way::Last | Way::OnDemand => capture.take(Wish::Everything),
                    };
                    (capture, taken)
                })
                .await;
                match worked {
                    Ok((capture, taken)) => {
                        if let Ok(history) = &mut self.history {
                            history.capture = Some(capture);
                        }
                        taken
                    }
                    Err(panic) => Err(anyhow!("the capture panicked: {panic}")),
                }
            }
        };
        self.tell(|status| status.capturing = false);
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.not_taken(record, &error);
                return Err(error);
            }
        };
        self.tell(|status| status.unobserved = taken.unobserved.clone());
        self.record(record, taken, way)
    }

    pub(super) fn record(
        &mut self,
        mut record: TurnRecord,
        taken: Taken,
        way: Way,
    ) -> Result<Checkpointed> {
        let Cost {
            gate_us,
            boundary_us,
            ..
        } = record.cost;
        record.class = taken.class;
        record.reason = taken.reason;
        record.unobserved = taken.unobserved;
        record.cost = Cost {
            gate_us,
            boundary_us,
            ..taken.cost
        };
        record.spans = taken.times.spans();
        record.files_changed = taken.files_changed;
        record.changed = taken.changed;
        record.effects = taken.effects;
        let history = match &mut self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        let mut answer = Checkpointed {
            turn: record.turn,
            class: record.class,
            degraded: taken.degraded.clone(),
            cost: record.cost,
        };
        if way.is_turn() || taken.staged.is_some() {
            history.next = history.next.max(record.turn.next());
        }
        let Some(staged) = taken.staged else {
            self.schedule
                .end(record.turn.0, End::Void, "nothing has changed");
            let version = history.version.as_ref();
            record.checkpoint = version.map(|v| v.turn);
            record.degraded = version.and_then(|v| v.degraded.clone());
            answer.degraded = record.degraded.clone();
            if way.is_turn() {
                history.append(JournalRecord::Turn(record));
            } else {
                // Not a turn: its number was not used.
                answer.turn = record.checkpoint.unwrap_or(record.turn);
            }
            self.settle_owed();
            return Ok(answer);
        };
        record.degraded = taken.degraded.clone();
        let Some(capture) = &history.capture else {
            bail!("the sandbox has not begun");
        };
        let class = job_class(record.class);
        let (turn, bytes) = (record.turn.0, staged.bytes());
        let publication = Publication {
            writer: history.writer.clone(),
            sandbox: self.container.id.clone(),
            turn: record.turn,
            class: record.class,
            degraded: taken.degraded,
            spec: self.container.bundle.original().to_vec(),
            runtime: self.container.runtime.program.name().display().to_string(),
            oci: self.container.runtime.clone(),
            parent: history.version.clone(),
            whole_root: capture.root_device.is_none(),
            roots: capture.root_trees(),
            tmpfs_images: capture.tmpfs_images.clone(),
            staged,
        };
        // One that is tried again may be so in vain.
        if way != Way::Again {
            history.note(
                record.turn,
                Step::Captured {
                    class: record.class,
                    exit: record.exit,
                },
            );
        }
        let schedule = self.schedule.clone();
        history.pending = Some(Pending {
            record,
            task: tokio::spawn(
                async move {
                    schedule.publish(turn, class, bytes).await;
                    background::run("publication", move || publication.publish()).await
                }
                .in_current_span(),
            ),
            started: Instant::now(),
            bytes,
        });
        Ok(answer)
    }

    /// Waits until the checkpoint that is on its way is in the store, or failed: then
    /// says why.
    pub(super) async fn finish_pending(&mut self) -> Option<String> {
        let task = match &mut self.history {
            Ok(History {
                pending: Some(pending),
                ..
            }) => &mut pending.task,
            _ => return None,
        };
        self.schedule.needed(true);
        let result = task.await;
        self.schedule.needed(false);
        self.settle_pending(result)
    }

    /// The same for somebody who waits for it.
    pub(super) async fn finish_pending_now(&mut self) -> Option<String> {
        self.schedule.hurry(true);
        let failed = self.finish_pending().await;
        self.schedule.hurry(false);
        failed
    }

    pub(super) fn settle_pending(
        &mut self,
        result: Result<Result<Published>, tokio::task::JoinError>,
    ) -> Option<String> {
        let Ok(history) = &mut self.history else {
            return None;
        };
        let pending = history.pending.take()?;
        let result = result
            .map_err(|panic| anyhow!("the publication panicked: {panic}"))
            .and_then(|published| published);
        let mut record = pending.record;
        match result {
            Ok(published) => {
                self.schedule.end(record.turn.0, End::Durable, "");
                tracing::info!(
                    turn = record.turn.0,
                    class = %record.class,
                    bytes = published.manifest.bytes_stored,
                    publish_ms = pending.started.elapsed().as_millis() as u64,
                    "checkpoint published"
                );
                if let Some(capture) = &mut history.capture {
                    for (at, index, tree) in published.indexes {
                        capture.roots[at].index = index;
                        capture.roots[at].tree = Some(tree);
                    }
                }
                let (wall, (begun, _)) = (Wall::now(), published.written);
                let queued = begun.saturating_duration_since(pending.started);
                record.spans.publish_wait = Some(wall.span((pending.started, queued)));
                record.spans.publish = Some(wall.span(published.written));
                record.checkpoint = Some(published.manifest.turn);
                record.degraded = published.manifest.degraded.clone();
                record.cost.bytes_stored = published.manifest.bytes_stored;
                record.cost.bytes_raw = published.manifest.bytes_raw;
                history.version = Some(published.manifest);
                let (checkpoint, bytes) = (record.checkpoint, record.cost.bytes_stored);
                let retried = (record.trigger == Trigger::Retry).then_some(record.turn.0);
                history.append(JournalRecord::Turn(record));
                self.tell(|status| {
                    status.checkpoint = checkpoint;
                    status.turn = status.turn.max(retried.unwrap_or(0));
                });
                self.retain(bytes);
                self.settle_owed();
                None
            }
            Err(error) => {
                let why = format!("{error:#}");
                tracing::error!(
                    turn = record.turn.0,
                    error = why,
                    "checkpoint not published"
                );
                self.failed(record, &error, pending.bytes);
                self.owe_after(pending.started.elapsed());
                Some(why)
            }
        }
    }

    /// A turn was not captured: because that failed, or because it was not to be waited for.
    fn not_taken(&mut self, record: TurnRecord, error: &anyhow::Error) {
        let (why, end, kind) = match error.downcast_ref() {
            // How much room it takes is not known.
            None => return self.failed(record, error, u64::MAX),
            Some(why @ NotNow::GivenUp) => (why, End::GivenUp, FailureKind::GivenUp),
            Some(why @ NotNow::Merged) => (why, End::Void, FailureKind::Merged),
        };
        self.schedule.end(record.turn.0, end, &why.to_string());
        self.give_up(record, error, kind);
    }

    /// A capture or a publication failed, for which so many bytes of room surely suffice.
    fn failed(&mut self, record: TurnRecord, error: &anyhow::Error, needed: u64) {
        let kind = kind_of(error);
        self.give_up(record, error, kind);
        if kind == FailureKind::NoSpace {
            self.owe_until_room(needed);
        }
    }

    /// A turn without a checkpoint: says so in the journal, and takes nothing for
    /// granted next time.
    fn give_up(&mut self, mut record: TurnRecord, error: &anyhow::Error, kind: FailureKind) {
        let reason = format!("{error:#}");
        // If it has not been said yet.
        self.schedule.end(record.turn.0, End::Failed, &reason);
        let Ok(history) = &mut self.history else {
            return;
        };
        let holds_processes = history
            .version
            .as_ref()
            .is_some_and(|v| v.processes.is_some());
        if let Some(capture) = &mut history.capture {
            capture.forget(holds_processes);
        }
        let turn = record.turn;
        if record.trigger == Trigger::Retry {
            self.tried_in_vain(turn, error);
            return;
        }
        // Not every way to a record has taken its number yet.
        history.next = history.next.max(TurnId(turn.0 + 1));
        record.checkpoint = None;
        record.reason = format!("no checkpoint: {reason}");
        history.append(JournalRecord::Turn(record));
        history.append(JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: unix_ms(SystemTime::now()),
            turn,
            reason,
            kind,
        }));
        if kind != FailureKind::Merged {
            self.owe();
        }
    }

    pub(super) async fn checkpoint(&mut self) -> Result<Checkpointed> {
        if self.late.is_some() {
            self.try_again().await;
        }
        self.history()?;
        let open = self.manual_open().context("the sandbox has not begun")?;
        let mut answer = self.boundary(open, Way::OnDemand).await?;
        let failed = self.finish_pending_now().await;
        let history = self.history()?;
        match &history.version {
            Some(version) if answer.class == Class::None || version.turn == answer.turn => {
                if version.turn == answer.turn && answer.class != Class::None {
                    answer.cost.bytes_stored = version.bytes_stored;
                }
                Ok(answer)
            }
            _ => bail!("no checkpoint: {}", failed.unwrap_or_default()),
        }
    }

    /// A turn that has the next number, without taking it: see [`Self::record`].
    pub(super) fn manual_open(&self) -> Option<Open> {
        let history = self.history.as_ref().ok()?;
        let (turn, command) = (history.next, String::new());
        Some(Open::new(turn, Trigger::Manual, command, Duration::ZERO))
    }
}

/// What of the kinds that programs want to know a failure is.
fn kind_of(error: &anyhow::Error) -> FailureKind {
    // The store's, or the directory for what is staged.
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(
            io,
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        ) || refused_by_store(cause).is_some_and(WriteError::is_no_space)
    };
    match error.chain().any(is_full) {
        true => FailureKind::NoSpace,
        false => FailureKind::Other,
    }
}

/// What the store said, be it in the words of whoever wrote to it: those are no cause of theirs.
fn refused_by_store<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a WriteError> {
    if let Some(PersistError::Store(refused)) = cause.downcast_ref() {
        return Some(refused);
    }
    if let Some(ImageError::Write(refused)) = cause.downcast_ref() {
        return Some(refused);
    }
    cause.downcast_ref()
}

/// As what a checkpoint is scheduled.
fn job_class(class: Class) -> crab_schedule::Class {
    match class {
        Class::None | Class::Files => crab_schedule::Class::Files,
        Class::Processes => crab_schedule::Class::Processes,
        Class::Full => crab_schedule::Class::Full,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// What a pack says that is written to a full disk.
    fn full() -> WriteError {
        let error = io::Write::write(&mut File::create("/dev/full").unwrap(), b"x");
        WriteError::NoSpace(crab_store::FileError {
            verb: "write",
            path: "/dev/full".into(),
            cause: error.unwrap_err(),
        })
    }

    #[test]
    fn a_full_disk_is_known_whoever_tells_of_it() {
        for error in [
            anyhow::Error::from(full()),
            PersistError::from(full()).into(),
            ImageError::from(full()).into(),
            anyhow::Error::from(io::Error::from(io::ErrorKind::QuotaExceeded)).context("stage"),
        ] {
            assert_eq!(kind_of(&error), FailureKind::NoSpace, "{error:#}");
        }
        let torn = PersistError::Torn { path: "f".into() };
        assert_eq!(kind_of(&torn.into()), FailureKind::Other);
    }
}
