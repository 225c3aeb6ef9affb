// SPDX-License-Identifier: Apache-2.0
//! At a boundary: decide, and take out of the sandbox's reach what is needed.
//!
//! ```text
//! counters --untouched--+
//!     | maybe           +--> processes as before? --> none
//!     v                 |
//!   scan --no change----+
//!     | changes             image needed?
//!     +-- no  --> copy, look at the counters again: moved? then frozen  (optimistic)
//!     +-- yes --> freeze, CRIU, scan, copy, thaw                        (one freeze)
//! ```
//! What comes out is staged: memory, unnamed files, CRIU's image directory. Writing
//! it to the store is [`crate::publish`]'s, while the sandbox runs again.
//!
//! Everything here blocks and runs on a thread of its own; the turns' task sees to it
//! that there is one at a time.

mod dump;
mod roots;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    cgroup::Cgroup,
    files::Staged,
    procs::{KeepAlive, Places, Set},
};
use crab_store::{ChangedPath, Class, Cost, ProcessEntry, TmpfsImage};
use tokio::runtime::Handle;

use self::dump::entries;
pub(crate) use self::dump::staging_dirs;
pub(crate) use self::roots::{Root, images_of, open_roots};
use crate::{
    decide::{self, ProcessEvidence, ProcessHalf, Seen},
    pipes::{self, SharedPipe},
    sandbox::Container,
    tracer::Tracer,
};

/// How long thawed or restored threads may take to be back where they were.
const SETTLE: Duration = Duration::from_millis(100);

/// What a capture compares with.
pub(crate) struct Capture {
    pub(crate) container: Arc<Container>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) roots: Vec<Root>,
    /// Every tmpfs of the container, with the name of its archive in an image.
    pub(crate) tmpfs_images: Vec<TmpfsImage>,
    /// The superblocks that are watched, the root's first.
    pub(crate) devices: Vec<u64>,
    pub(crate) cgroup: Cgroup,
    pub(crate) init: i32,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// The counters up to which everything is captured.
    pub(crate) base: Option<Effects>,
    /// The processes as of the newest capture; nothing if they were not
    /// recorded.
    pub(crate) baseline: Option<Set>,
    /// The newest capture holds processes, by an image or as missing.
    pub(crate) some_processes: bool,
    /// At the newest look, a process had the means to write with no system call.
    pub(crate) unseen: bool,
    /// A capture failed: files are looked at whatever the counters say.
    pub(crate) owed: bool,
    pub(crate) async_runtime: Handle,
}

/// What came out of one look.
pub(crate) struct Taken {
    pub(crate) class: Class,
    pub(crate) reason: String,
    pub(crate) unobserved: Option<String>,
    /// Why there is no process image although one was needed.
    pub(crate) degraded: Option<String>,
    pub(crate) cost: Cost,
    pub(crate) files_changed: u64,
    pub(crate) changed: Vec<ChangedPath>,
    /// Nothing for class none.
    pub(crate) staged: Option<StagedCheckpoint>,
}

/// A checkpoint that is out of the sandbox's reach and not yet in the store.
pub(crate) struct StagedCheckpoint {
    /// By position in [`Capture::roots`]: the roots that changed.
    pub(crate) roots: Vec<(usize, Staged)>,
    pub(crate) processes: StagedProcesses,
}

/// The process half of a staged checkpoint.
pub(crate) enum StagedProcesses {
    /// The older one's.
    Kept,
    /// None: the init alone, started again, is all.
    None,
    /// A new image.
    Image(StagedImage),
}

/// What CRIU wrote, and what a restore has to know beside it.
pub(crate) struct StagedImage {
    pub(crate) dir: PathBuf,
    pub(crate) processes: Vec<ProcessEntry>,
    pub(crate) places: Places,
    pub(crate) pipes: Vec<SharedPipe>,
    pub(crate) criu: String,
}

impl Capture {
    fn effects(&self) -> Result<Effects, String> {
        self.async_runtime.block_on(self.tracer.effects())
    }

    fn processes(&self) -> Result<Set> {
        Ok(Set::of(&self.cgroup, self.keep_alive.as_ref())?)
    }

    fn half(&self, now: &Set) -> ProcessHalf {
        decide::process_half(ProcessEvidence {
            none_now: now.is_empty(),
            some_before: self.some_processes,
            difference: self.baseline.as_ref().map(|before| now.since(before)),
        })
    }

    /// Decides what the time since the newest capture needs, and takes it.
    pub(crate) fn take(&mut self) -> Result<Taken> {
        let start = Instant::now();
        let now = self.effects();
        let set = self.processes()?;
        let unseen = set.writes_unseen();
        let seen = decide::seen(self.base.as_ref(), &now, unseen || self.unseen);
        self.unseen = unseen;
        let half = self.half(&set);
        let untouched = seen == Seen::FilesUntouched && !self.owed;
        if untouched && half == ProcessHalf::Unchanged {
            self.base = now.ok();
            return Ok(self.nothing(&seen, start));
        }
        if let (Some(before), Ok(now)) = (&self.base, &now)
            && before.mounts != now.mounts
        {
            self.follow_mounts()?;
        }
        let taken = match &half {
            ProcessHalf::Image(_) => self.take_frozen(&seen, half, start),
            _ => self.take_running(&seen, now.ok(), &set, half, start),
        };
        // What failed half way is looked at again, whatever the counters say.
        self.owed = taken.is_err();
        taken
    }

    /// Before the program runs for the first time: the files alone, all of them.
    pub(crate) fn take_initial(&mut self) -> Result<Taken> {
        let start = Instant::now();
        let scans = self.scan(&Set::default())?;
        let roots = self.stage(scans)?;
        Ok(Taken {
            class: Class::Files,
            reason: "the state before the start".into(),
            unobserved: None,
            degraded: None,
            cost: Cost {
                capture_us: micros(start.elapsed()),
                ..Cost::default()
            },
            files_changed: 0,
            changed: Vec::new(),
            staged: Some(StagedCheckpoint {
                roots,
                processes: StagedProcesses::None,
            }),
        })
    }

    /// The newest capture is void: what it saw must be looked at again.
    /// `holds_processes`: the checkpoint that still holds has an image.
    pub(crate) fn forget(&mut self, holds_processes: bool) {
        self.owed = true;
        let empty = self.baseline.as_ref().is_some_and(Set::is_empty);
        self.some_processes = holds_processes || (self.some_processes && !empty);
        if !empty {
            self.baseline = None;
        }
    }

    fn nothing(&self, seen: &Seen, start: Instant) -> Taken {
        Taken {
            class: Class::None,
            reason: decide::reason(seen, 0, &ProcessHalf::Unchanged),
            unobserved: unobserved(seen),
            degraded: None,
            cost: Cost {
                decide_us: micros(start.elapsed()),
                ..Cost::default()
            },
            files_changed: 0,
            changed: Vec::new(),
            staged: None,
        }
    }

    /// Without a freeze; falls back to one when something moved meanwhile.
    fn take_running(
        &mut self,
        seen: &Seen,
        epoch: Option<Effects>,
        set: &Set,
        half: ProcessHalf,
        start: Instant,
    ) -> Result<Taken> {
        if !set.at_rest() || self.unseen {
            // A write that is half done is counted only when it is over, and one to
            // a mapping never.
            return self.take_frozen(seen, half, start);
        }
        let scans = self.scan(set)?;
        let count = scans.count();
        if let Some(in_use) = self.held_change(&scans, set) {
            let half = ProcessHalf::Image(format!("{in_use} changed, which a process holds"));
            return self.take_frozen(seen, half, start);
        }
        let decided = start.elapsed();
        let class = decide::class(count > 0, &half);
        let changed = self.changed_paths(&scans);
        let torn = scans.torn;
        let capture = Instant::now();
        let staged = if torn { None } else { Some(self.stage(scans)?) };
        let after = self.effects().ok();
        // With no counters there is nothing that could tell of a write in
        // between: only a freeze can.
        let same = match (&epoch, &after) {
            (Some(before), Some(after)) => {
                before.instance == after.instance
                    && before.lost == after.lost
                    && before.files == after.files
                    && before.mounts == after.mounts
            }
            _ => false,
        };
        let staged =
            match staged.filter(|staged| same && staged.iter().all(|(_, s)| s.torn().is_empty())) {
                Some(staged) => staged,
                None => return self.take_frozen(seen, half, start),
            };
        self.base = epoch;
        let processes = match &half {
            ProcessHalf::Gone(_) => {
                self.baseline = Some(set.clone());
                self.some_processes = false;
                StagedProcesses::None
            }
            _ => StagedProcesses::Kept,
        };
        Ok(Taken {
            class,
            reason: decide::reason(seen, count, &half),
            unobserved: unobserved(seen),
            degraded: None,
            cost: Cost {
                decide_us: micros(decided),
                capture_us: micros(capture.elapsed()),
                ..Cost::default()
            },
            files_changed: count as u64,
            changed,
            staged: (class != Class::None).then_some(StagedCheckpoint {
                roots: staged,
                processes,
            }),
        })
    }

    /// One freeze over both halves.
    fn take_frozen(
        &mut self,
        seen: &Seen,
        mut half: ProcessHalf,
        start: Instant,
    ) -> Result<Taken> {
        let mut wants_image = matches!(half, ProcessHalf::Image(_));
        // Whatever makes an image impossible is found before the freeze.
        let mut degraded = None;
        let mut criu = None;
        if wants_image {
            match self.can_dump() {
                Ok(version) => criu = Some(version),
                Err(reason) => degraded = Some(files_only(&reason)),
            }
        }
        let places = self.processes()?.places();
        let decide_us = micros(start.elapsed());
        let capture = Instant::now();
        let limit = self.container.host.config.runtime.freeze_timeout();
        let frozen = self.cgroup.freeze(limit)?;
        let mut set = self.processes()?;
        let mut image = None;
        let mut scans = None;
        if !wants_image {
            let found = self.scan(&set)?;
            if let Some(in_use) = self.held_change(&found, &set) {
                half = ProcessHalf::Image(format!("{in_use} changed, which a process holds"));
                wants_image = true;
                match self.can_dump() {
                    Ok(version) => criu = Some(version),
                    Err(reason) => degraded = Some(files_only(&reason)),
                }
            }
            scans = Some(found);
        }
        if let Some(criu) = criu {
            match self.dump(&set) {
                Ok(dir) => {
                    degraded = self.left_out();
                    image = Some(StagedImage {
                        dir,
                        processes: entries(&set),
                        places: places.clone(),
                        pipes: pipes::shared_with(&set, self.init),
                        criu: criu.version,
                    });
                }
                Err(error) => degraded = Some(files_only(&format!("{error:#}"))),
            }
        }
        // After CRIU, which works from inside the cgroup and is counted there;
        // nothing of the sandbox can have run since.
        let epoch = self.effects().ok();
        let scans = match scans {
            Some(scans) => scans,
            None => self.scan(&set)?,
        };
        let count = scans.count();
        let changed = self.changed_paths(&scans);
        let roots = self.stage(scans)?;
        let frozen_us = micros(frozen.thaw()?);
        let capture_us = micros(capture.elapsed());
        if wants_image {
            self.baseline = Set::settle(&self.cgroup, self.keep_alive.as_ref(), &places, SETTLE)?;
            self.some_processes = true;
        } else if let ProcessHalf::Gone(_) = half {
            set = self.processes()?;
            self.some_processes = !set.is_empty();
            self.baseline = Some(set);
        } else if let Some(before) = &self.baseline {
            // Not dumped, but woken: the same places are no progress.
            let settled = Set::settle(&self.cgroup, self.keep_alive.as_ref(), &places, SETTLE)?;
            if settled.as_ref().is_none_or(|now| {
                let moved = now.since(before);
                moved.started > 0 || moved.ended > 0
            }) {
                self.baseline = None;
            } else {
                self.baseline = settled;
            }
        }
        self.base = epoch;
        let class = decide::class(count > 0, &half);
        let processes = match (&half, image) {
            (ProcessHalf::Unchanged, _) => StagedProcesses::Kept,
            (_, Some(image)) => StagedProcesses::Image(image),
            (_, None) => StagedProcesses::None,
        };
        Ok(Taken {
            class,
            reason: decide::reason(seen, count, &half),
            unobserved: unobserved(seen),
            degraded,
            cost: Cost {
                decide_us,
                capture_us,
                frozen_us,
                ..Cost::default()
            },
            files_changed: count as u64,
            changed,
            staged: (class != Class::None).then_some(StagedCheckpoint { roots, processes }),
        })
    }
}

/// How a checkpoint is labelled that lacks its process image. On one line.
fn files_only(reason: &str) -> String {
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("files only: {}", words.join(" "))
}

fn unobserved(seen: &Seen) -> Option<String> {
    match seen {
        Seen::Unobserved(reason) => Some(reason.clone()),
        _ => None,
    }
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}
