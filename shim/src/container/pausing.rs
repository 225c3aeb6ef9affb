// SPDX-License-Identifier: Apache-2.0
//! Pause and resume, of the container as a whole.

use containerd_shim_protos::events::task as events;

use super::{INIT, Phase, Processes, StateError};
use crate::publisher::Event;

impl Processes {
    /// A pause begins: nothing is started in the container any more.
    pub(crate) fn pausing(&self) -> Result<(), StateError> {
        self.init_becomes("pause", None, |phase| match phase {
            Phase::Running(pid) => Some(Phase::Pausing(pid)),
            _ => None,
        })
    }

    /// Everything is frozen.
    pub(crate) fn paused(&self) -> Result<(), StateError> {
        let event = Event::Paused(events::TaskPaused {
            container_id: self.id.clone(),
            ..Default::default()
        });
        self.init_becomes("pause", Some(event), |phase| match phase {
            Phase::Pausing(pid) => Some(Phase::Paused(pid)),
            _ => None,
        })
    }

    /// The pause has failed, and nothing is frozen.
    pub(crate) fn pause_failed(&self) {
        // It may have ended meanwhile.
        let _ = self.init_becomes("resume", None, |phase| match phase {
            Phase::Pausing(pid) => Some(Phase::Running(pid)),
            _ => None,
        });
    }

    /// Whether the init may be resumed.
    pub(crate) fn resumable(&self) -> Result<(), StateError> {
        match self.init()? {
            Phase::Paused(_) => Ok(()),
            phase => Err(self.refused("resume", INIT, phase)),
        }
    }

    /// Everything is thawed.
    pub(crate) fn resumed(&self) -> Result<(), StateError> {
        let event = Event::Resumed(events::TaskResumed {
            container_id: self.id.clone(),
            ..Default::default()
        });
        self.init_becomes("resume", Some(event), |phase| match phase {
            Phase::Paused(pid) => Some(Phase::Running(pid)),
            _ => None,
        })
    }

    fn init_becomes(
        &self,
        verb: &'static str,
        event: Option<Event>,
        next: impl FnOnce(Phase) -> Option<Phase>,
    ) -> Result<(), StateError> {
        let mut table = self.table();
        let init = table.get_mut(INIT).ok_or_else(|| self.not_found(INIT))?;
        let Some(next) = next(init.phase) else {
            return Err(self.refused(verb, INIT, init.phase));
        };
        init.phase = next;
        if let Some(event) = event {
            self.publisher.publish(event);
        }
        Ok(())
    }
}
