// SPDX-License-Identifier: Apache-2.0

//! Where a process can be made to die, so that tests can show what is left then.
//!
//! The environment variable `CRAB_CRASH_AT=<point>` kills the process at that point, by
//! SIGKILL, as the kernel would. `<point>:<n>` does so when it comes there for the nth
//! time. Without the variable a point costs one load.

use std::{
    env,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The environment variable.
const VARIABLE: &str = "CRAB_CRASH_AT";

macro_rules! points {
    ($($point:ident $name:literal $what:literal,)*) => {
        /// A step between two changes of the disk.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Point {
            $(#[doc = $what] $point,)*
        }

        /// The names of all points, in the order in which they come.
        pub const CRASH_POINTS: &[&str] = &[$($name,)*];

        impl Point {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

points! {
    PackCreated "publish.pack-created" "The new pack is there, empty.",
    PackWritten "publish.pack-written" "Its objects are written, its index is not.",
    PackSynced "publish.pack-synced" "The pack is durable, no manifest names it.",
    ManifestWritten "publish.manifest-written" "The manifest is durable under its temporary name.",
    ManifestRenamed "publish.manifest-renamed" "The manifest has its name, which is not durable.",
    Published "publish.done" "All of it is durable, the journal does not say so yet.",
    RemovalRecorded "gc.removal-recorded" "The journal says what is removed; all of it is there.",
    ManifestRemoved "gc.manifest-removed" "One manifest is gone, others are to follow.",
    ManifestsRemoved "gc.manifests-removed" "The manifests are gone for good, their packs are there.",
    PackRemoved "gc.pack-removed" "One pack is gone, others are to follow.",
    PackCopied "gc.pack-copied" "What is left of a pack is durable under a temporary name.",
    PackReplaced "gc.pack-replaced" "It has taken the pack's place, which is not durable.",
    Collected "gc.done" "All is done.",
}

/// Dies here, if that was asked for.
pub(crate) fn at(point: Point) {
    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);
    let asked = ASKED.get_or_init(|| {
        let text = env::var(VARIABLE).ok()?;
        match text.split_once(':') {
            Some((name, time)) => Some((name.to_owned(), time.parse().ok()?)),
            None => Some((text, 1)),
        }
    });
    let Some((name, time)) = asked else { return };
    if name == point.name() && TIMES.fetch_add(1, Ordering::Relaxed) + 1 == *time {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
