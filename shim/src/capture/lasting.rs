// SPDX-License-Identifier: Apache-2.0
//! What a container holds beside files and processes: mounts that were made inside, and
//! System V IPC objects.
//!
//! They are gone when an init that only holds the container open is started again. So with
//! any of them it is a process that matters, like any other.

use std::path::PathBuf;

use crab_runtime::{
    mount,
    system_v::{Objects, SystemV},
};

use crate::bundle::Bundle;

/// Below these a runtime mounts what it thinks right.
const OF_THE_RUNTIME: [&str; 3] = ["/proc", "/sys", "/dev"];

/// What of this kind there is.
pub(crate) struct Lasting {
    /// Where something is mounted as a start makes it.
    own_mounts: Vec<PathBuf>,
    are_mounts_own: bool,
    /// Nothing where they are not the container's own.
    system_v: Option<SystemV>,
    are_objects_none: bool,
}

impl Lasting {
    /// Of a container whose init sees this table of mounts, right after it was created, or
    /// else restored with whatever was in its image; and the objects that it has then.
    pub(crate) fn of(
        bundle: &Bundle,
        init: i32,
        table: &[u8],
        fresh: bool,
    ) -> (Self, Option<Objects>) {
        let mounts = mount::points(table);
        let mut own_mounts = mounts.clone();
        if !fresh {
            let asked = bundle.mounts();
            own_mounts.retain(|point| {
                point.as_os_str() == "/"
                    || asked.contains(point)
                    || OF_THE_RUNTIME.iter().any(|dir| point.starts_with(dir))
            });
        }
        let system_v = bundle.has_own_ipc().then(|| SystemV::of(init));
        let system_v = system_v.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "System V IPC objects are not looked at");
            None
        });
        let objects = system_v.as_ref().and_then(|it| it.objects().ok());
        let lasting = Self {
            are_mounts_own: mounts == own_mounts,
            own_mounts,
            are_objects_none: objects.as_ref().is_none_or(Objects::is_empty),
            system_v,
        };
        (lasting, objects)
    }

    /// Whether it would be lost if the init were started again.
    pub(crate) fn is_there(&self) -> bool {
        !self.are_mounts_own || !self.are_objects_none
    }

    /// The mounts are others than before.
    pub(super) fn follow(&mut self, table: &[u8]) {
        self.are_mounts_own = mount::points(table) == self.own_mounts;
    }

    /// Lists the objects, and tells whether they may be others than those that are captured.
    pub(super) fn look(&mut self, captured: Option<&Objects>) -> (Option<Objects>, bool) {
        let Some(system_v) = &self.system_v else {
            return (None, false);
        };
        let objects = system_v.objects().ok();
        self.are_objects_none = objects.as_ref().is_some_and(Objects::is_empty);
        let may_differ = match (&objects, captured) {
            (Some(now), Some(before)) => now.may_differ_from(before),
            _ => true,
        };
        (objects, may_differ)
    }
}
