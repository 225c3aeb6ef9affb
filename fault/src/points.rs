// SPDX-License-Identifier: Apache-2.0

//! The list.

use std::fmt;

/// What a point is a step of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Looking at a sandbox and taking what has changed.
    Capture,
    /// Writing a checkpoint into the store.
    Publish,
    /// Removing checkpoints.
    Collect,
    /// Putting a damaged history right.
    Repair,
    /// Making room for another sandbox of the same name.
    Retire,
    /// Going back under living processes.
    Warm,
    /// Going back with other processes.
    Cold,
    /// A container that begins as a checkpoint.
    Restore,
}

macro_rules! points {
    ($($part:ident { $($point:ident $name:literal $what:literal,)* })*) => {
        /// A step between two changes of something that lasts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $($(#[doc = $what] $point,)*)*
        }

        impl Point {
            /// All of them, those of a part in the order in which they come.
            pub const ALL: &[Self] = &[$($(Self::$point,)*)*];

            /// What it is asked for by.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$point => $name,)*)*
                }
            }

            /// Of what it is a step.
            pub fn part(self) -> Part {
                match self {
                    $($(Self::$point => Part::$part,)*)*
                }
            }
        }
    };
}

points! {
    Capture {
        CaptureLook "capture.look" "The turn is over; nothing was looked at.",
        CaptureFrozen "capture.frozen" "The sandbox stands still; nothing was taken.",
        CaptureTaken "capture.taken" "Processes and files are staged, and the sandbox still stands still.",
        CaptureThawed "capture.thawed" "It runs on; what was taken is staged only.",
    }
    Publish {
        PublishBegun "publish.begun" "What is staged is about to be read; the store is as before.",
        PackCreated "publish.pack-created" "The new pack is there, empty.",
        PackWritten "publish.pack-written" "Its objects are written, its index is not.",
        PackSynced "publish.pack-synced" "The pack is durable, no manifest names it.",
        ManifestWritten "publish.manifest-written" "The manifest is durable under its temporary name.",
        ManifestRenamed "publish.manifest-renamed" "The manifest has its name, which is not durable.",
        Published "publish.done" "All of it is durable, the journal does not say so yet.",
    }
    Collect {
        RemovalRecorded "gc.removal-recorded" "The journal says what is removed; all of it is there.",
        ManifestRemoved "gc.manifest-removed" "One manifest is gone, others are to follow.",
        ManifestsRemoved "gc.manifests-removed" "The manifests are gone for good, their packs are there.",
        PackRemoved "gc.pack-removed" "One pack is gone, others are to follow.",
        PackCopied "gc.pack-copied" "What is left of a pack is durable under a temporary name.",
        PackReplaced "gc.pack-replaced" "It has taken the pack's place, which is not durable.",
        Collected "gc.done" "All is done.",
    }
    Repair {
        RepairPackAside "repair.pack-aside" "A damaged pack has a second name among what is put aside.",
        RepairPackCopied "repair.pack-copied" "What of it is sound is durable under a temporary name.",
        RepairPackReplaced "repair.pack-replaced" "That has taken its place.",
        RepairPacksAside "repair.packs-aside" "Packs that only lost checkpoints need are put aside.",
        RepairManifestAside "repair.manifest-aside" "A lost checkpoint is put aside, others are to follow.",
        RepairSmallAside "repair.small-aside" "A damaged tag, wish or record of the sandbox is put aside.",
        RepairJournalAside "repair.journal-aside" "The damaged journal has a second name among what is put aside.",
        RepairJournalReplaced "repair.journal-replaced" "Its whole records have taken its place; what is lost is not noted.",
        Repaired "repair.done" "All is done.",
    }
    Retire {
        Retired "retire.renamed" "A history has another name, which is not durable.",
    }
    Warm {
        WarmNote "warm-note" "The sandbox stands still, and the store does not say yet that files are to be put back.",
        WarmChange0 "warm-change-0" "The sandbox stands still, the files of its root are to be put back.",
        WarmChange1 "warm-change-1" "The files of its root are, those of a mount in memory are not.",
        WarmLook "warm-look" "All are, nothing was looked at.",
        WarmPutBack "warm-put-back" "That failed, and what was there before is to be put back.",
        WarmDone "warm-done" "It runs on with the files of before; the journal does not say so.",
    }
    Cold {
        ColdStage "cold-stage" "The state of now is a checkpoint; nothing else was done.",
        ColdKill "cold-kill" "All is staged, everything in the sandbox is about to be killed.",
        ColdForget "cold-forget" "It is, and the runtime knows it still.",
        ColdExchange "cold-exchange" "The runtime does not; the files are those of now.",
        ColdLaunch "cold-launch" "The files are those of before, and nothing runs.",
        ColdUndo "cold-undo" "That failed; the files of now are about to be put back.",
        ColdLook "cold-look" "The processes are there.",
        ColdLimit "cold-limit" "They are recorded, their limits are not theirs yet.",
        ColdStart "cold-start" "A new init is made, and not started.",
        ColdDone "cold-done" "All of it runs; the journal does not say so.",
    }
    Restore {
        RestoreStaged "restore.staged" "The images are staged; files and wish are as before.",
        RestoreExchanged "restore.exchanged" "The files are the checkpoint's; the wish is open still.",
        RestoreGranted "restore.granted" "The wish is taken, and nothing runs.",
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Point {
    /// The one that is asked for so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_point_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        for point in Point::ALL {
            assert_eq!(Point::named(point.name()), Some(*point));
        }
        assert_eq!(Point::named("nowhere"), None);
    }
}
