// SPDX-License-Identifier: Apache-2.0
//! That the sandbox runs, and how it ends: whoever finds a beginning without an end later knows
//! that the sandbox was lost ([`crab_store::Life`]).

use std::time::SystemTime;

use crab_runtime::{criu::boot_id, reaper::Exit};
use crab_store::{BeganRecord, EndedRecord, JournalRecord};
use tokio::task::{JoinHandle, spawn_blocking};

use super::task::Task;
use crate::{host_end::took_along, sandbox::unix_ms};

impl Task {
    /// Its init runs.
    pub(super) fn note_beginning(&mut self) {
        if let (Ok(history), Some((turn, anew))) = (&mut self.history, self.beginning.take()) {
            history.append(JournalRecord::Began(BeganRecord {
                at_ms: unix_ms(SystemTime::now()),
                boot: boot_id().unwrap_or_default(),
                turn,
                anew,
            }));
            self.sync_journal();
        }
    }

    /// Its init has ended.
    pub(super) async fn note_end(&mut self, exit: Exit, host_ends: JoinHandle<Option<bool>>) {
        let host_ends = host_ends.await.ok().flatten();
        // One that ended at once may be told of before its beginning.
        self.note_beginning();
        let Ok(history) = &mut self.history else {
            return;
        };
        history.append(JournalRecord::Ended(EndedRecord {
            at_ms: unix_ms(exit.at),
            exit: exit.status,
            with_host: took_along(host_ends, exit.status),
        }));
        self.sync_journal();
    }

    /// Behind everything else: a record that went with the power would leave a sandbox lost, or
    /// bring back one that had ended.
    fn sync_journal(&mut self) {
        let Ok(history) = &self.history else { return };
        let (writer, before) = (history.writer.clone(), self.syncing.take());
        self.syncing = Some(tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            let synced = spawn_blocking(move || writer.sync_journal()).await;
            if let Ok(Err(error)) = synced {
                tracing::warn!(%error, "the journal's end may be lost with the power");
            }
        }));
    }
}
