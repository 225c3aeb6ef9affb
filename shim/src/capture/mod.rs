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
//!     +-- yes --> start CRIU, freeze, dump beside scan and copy, thaw   (one freeze)
//! ```
//! Changes that a rule ignores are no change here, unless something else has the files
//! captured: see [`crate::relevance`].
//!
//! What comes out is staged: memory, unnamed files, CRIU's image directory. Writing
//! it to the store is [`crate::publish`]'s, while the sandbox runs again.
//!
//! Everything here blocks and runs on a thread of its own; the turns' task sees to it
//! that there is one at a time.

mod baseline;
mod dump;
mod effects;
mod evidence;
mod frozen;
mod lack;
mod lasting;
mod mark;
mod roots;
mod standing;
mod take;
mod times;
mod verify;
mod warm;

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    cgroup::Cgroup,
    criu::Remainder,
    files::Staged,
    procs::{Doubt, KeepAlive, Places, Portraits, Set},
};
use crab_store::{ChangedPath, Class, Cost, ProcessEntry, TmpfsImage, TurnEffects};
use tokio::runtime::Handle;

pub(crate) use self::mark::Known;
pub(crate) use self::roots::{Root, images_of, mount_table, open_roots};
pub(crate) use self::{
    baseline::Baseline,
    dump::{Purpose, can_dump, left_out},
    lasting::Lasting,
    take::Wish,
    times::{Part, Times, Wall},
    verify::{MountDifference, Verification},
    warm::{Warm, same_processes},
};
use crate::{
    decide::{self, ProcessEvidence, ProcessHalf, Seen},
    pipes::SharedPipe,
    relevance::Relevance,
    sandbox::Container,
    schedule::Schedule,
    tracer::Tracer,
};

/// For how long an init may take to be at rest again, and how often and for how long it is looked
/// for in one that begins while nothing else is to happen.
const REST: Duration = Duration::from_secs(2);
const REST_AGAIN: Duration = Duration::from_millis(250);
const BEGINNING: Duration = Duration::from_secs(30);

/// What a capture compares with.
pub(crate) struct Capture {
    pub(crate) container: Arc<Container>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) roots: Vec<Root>,
    /// Every tmpfs of the container, with the name of its archive in an image.
    pub(crate) tmpfs_images: Vec<TmpfsImage>,
    /// The superblock of the root, where that is this container's alone. Nobody can tell what
    /// happens to any other root: it is compared with its index each time.
    pub(crate) root_device: Option<u64>,
    /// The superblocks that are watched, the root's first.
    pub(crate) devices: Vec<u64>,
    pub(crate) cgroup: Cgroup,
    pub(crate) init: i32,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Why the init matters although its command says that it does not, until a capture has
    /// told it. It is over then where the rule is still there.
    pub(crate) doubt: Option<String>,
    pub(crate) known: Known,
    /// The mounts that the init sees, as of the newest look.
    pub(crate) mount_table: Vec<u8>,
    pub(crate) lasting: Lasting,
    /// What does not call for a checkpoint.
    pub(crate) relevance: Relevance,
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
    pub(crate) times: Times,
    pub(crate) files_changed: u64,
    pub(crate) changed: Vec<ChangedPath>,
    pub(crate) effects: TurnEffects,
    /// Nothing for class none.
    pub(crate) staged: Option<StagedCheckpoint>,
}

/// A checkpoint that is out of the sandbox's reach and not yet in the store.
pub(crate) struct StagedCheckpoint {
    /// By position in [`Capture::roots`]: the roots that changed.
    pub(crate) roots: Vec<(usize, Staged)>,
    pub(crate) processes: StagedProcesses,
}

impl StagedCheckpoint {
    /// How much of it there is to be stored.
    pub(crate) fn bytes(&self) -> u64 {
        let files: u64 = self.roots.iter().map(|(_, staged)| staged.bytes()).sum();
        let image = match &self.processes {
            StagedProcesses::Image(image) => image.bytes(),
            StagedProcesses::Kept | StagedProcesses::None => 0,
        };
        files.saturating_add(image)
    }
}

/// The process half of a staged checkpoint.
pub(crate) enum StagedProcesses {
    /// The older one's.
    Kept,
    /// None: the init alone, started again, is all.
    None,
    /// A new image.
    Image(Box<StagedImage>),
}

/// What CRIU wrote, and what a restore has to know beside it.
pub(crate) struct StagedImage {
    pub(crate) dir: PathBuf,
    /// What is to be done with it before it is stored.
    pub(crate) remainder: Remainder,
    pub(crate) processes: Vec<ProcessEntry>,
    pub(crate) places: Places,
    /// What a later look compares with.
    pub(crate) portraits: Option<Portraits>,
    pub(crate) pipes: Vec<SharedPipe>,
    pub(crate) criu: String,
}

impl StagedImage {
    /// What cannot be looked at counts nothing.
    fn bytes(&self) -> u64 {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        files
            .flat_map(|file| file.metadata())
            .map(|it| it.len())
            .sum()
    }
}

impl Drop for StagedImage {
    fn drop(&mut self) {
        // They are in the store, or void.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Capture {
    /// Whether the counters say all that happens to the root.
    fn watches_root(&self) -> bool {
        self.root_device.is_some()
    }

    fn effects(&self) -> Result<Effects, String> {
        self.async_runtime.block_on(self.tracer.effects())
    }

    fn processes(&self) -> Result<Set> {
        Ok(self.that_matter(Set::of(&self.cgroup, None)?))
    }

    /// The same, after a look at whether the init still only holds the container open: if not,
    /// it matters from now on; if that could not be told, it does until the next capture.
    pub(crate) fn processes_with_evidence(&mut self) -> Result<Set> {
        let all = Set::of(&self.cgroup, None)?;
        // Otherwise it is looked at as any process, and a second look would wake it.
        if self.doubt.is_none() && !self.lasting.is_there() {
            self.judge_init(&all);
        }
        Ok(self.that_matter(all))
    }

    fn judge_init(&mut self, all: &Set) {
        let Some(rule) = &mut self.keep_alive else {
            return;
        };
        let why = match rule.look(&self.cgroup, all) {
            Ok(()) => return,
            Err(Doubt::Changed(why)) => {
                self.keep_alive = None;
                format!("the init does more than hold the container open: {why}")
            }
            Err(Doubt::Unknown(why)) => {
                format!("whether the init only holds the container open was not seen: {why}")
            }
        };
        tracing::info!("{why}");
        self.doubt = Some(why);
    }

    /// Looks whether the init still only holds the container open.
    pub(crate) fn look_at_init(&mut self) {
        if let Err(error) = self.processes_with_evidence() {
            tracing::info!(error = %format!("{error:#}"), "the init was not looked at");
        }
    }

    /// Takes the init as it is, where it only holds the container open: it has begun, or an
    /// image was made of it, which changes what is in it.
    ///
    /// Where many containers start at once, it may take long until one that begins has come to
    /// rest: that is waited for until something is done to it.
    pub(crate) fn settle_init(&mut self) {
        if self.lasting.is_there() {
            return;
        }
        if self.doubt.is_some() {
            // It was not looked at before the image: only as it was before does it hold open.
            match Set::of(&self.cgroup, None) {
                Ok(all) => self.judge_init(&all),
                Err(error) => tracing::info!(%error, "the init was not looked at"),
            }
            return;
        }
        let Some(rule) = &mut self.keep_alive else {
            return;
        };
        let start = Instant::now();
        let mut limit = REST;
        while let Err(why) = rule.settle(&self.cgroup, limit) {
            let begins = matches!(why, Doubt::Unknown(_)) && !rule.is_settled();
            if !begins || start.elapsed() > BEGINNING || self.schedule.is_waited_for() {
                tracing::info!(%why, "the init is not known to only hold the container open");
                return;
            }
            limit = REST_AGAIN;
            thread::sleep(REST_AGAIN);
        }
    }

    /// Those of all processes that need to be brought back, with the rules for them.
    fn that_matter(&self, all: Set) -> Set {
        let mut set = all.without(self.keep_alive());
        set.mark(|process| self.relevance.rule_for_process(process));
        set
    }

    /// Restored from an image, the init matters if it is one of these processes, which
    /// mattered then.
    pub(crate) fn init_matters_if_in(&mut self, processes: &[ProcessEntry]) {
        // Of a namespace of its own: others are not imaged.
        if processes.iter().any(|process| process.pid == 1) {
            self.keep_alive = None;
        }
    }

    /// The rule for processes that do not matter: starting them again brings back all that
    /// there is.
    fn keep_alive(&self) -> Option<&KeepAlive> {
        let rule = self.keep_alive.as_ref();
        rule.filter(|_| !self.lasting.is_there() && self.doubt.is_none())
    }

    fn half(&self, now: &Set) -> ProcessHalf {
        // Without any, something may have been there that is not on record.
        let only_ignored = self
            .known
            .baseline
            .as_ref()
            .is_some_and(Baseline::only_ignored);
        decide::process_half(ProcessEvidence {
            none_now: now.all_ignored(),
            others_now: !now.is_empty(),
            some_before: self.known.some_processes && !only_ignored,
            difference: self
                .known
                .baseline
                .as_ref()
                .map(|before| before.difference(now)),
        })
    }

    /// Before the program runs for the first time: the files alone, all of them.
    pub(crate) fn take_initial(&mut self) -> Result<Taken> {
        let start = Instant::now();
        let scans = self.scan(&Set::default(), false)?;
        let roots = self.stage(scans)?;
        let took = start.elapsed();
        Ok(Taken {
            class: Class::Files,
            reason: "the state before the start".into(),
            unobserved: None,
            degraded: None,
            cost: Cost {
                capture_us: micros(took),
                ..Cost::default()
            },
            times: Times {
                capture: Some((start, took)),
                ..Times::default()
            },
            files_changed: 0,
            changed: Vec::new(),
            effects: Default::default(),
            staged: Some(StagedCheckpoint {
                roots,
                processes: StagedProcesses::None,
            }),
        })
    }

    /// The newest capture is void: what it saw must be looked at again.
    /// `holds_processes`: the checkpoint that still holds has an image.
    pub(crate) fn forget(&mut self, holds_processes: bool) {
        self.known.owed = true;
        self.known.reread = true;
        let empty = self.known.baseline.as_ref().is_some_and(Baseline::is_empty);
        self.known.some_processes = holds_processes || (self.known.some_processes && !empty);
        if !empty {
            self.known.baseline = None;
        }
    }

    fn nothing(&self, seen: &Seen, set: &Set, now: Option<&Effects>, start: Instant) -> Taken {
        let effects = self.effects_of_turn(&ProcessHalf::Unchanged, set, Vec::new(), now);
        let took = start.elapsed();
        Taken {
            class: Class::None,
            reason: decide::reason(seen, 0, 0, &ProcessHalf::Unchanged),
            unobserved: unobserved(seen),
            degraded: None,
            cost: Cost {
                decide_us: micros(took),
                ..Cost::default()
            },
            times: Times {
                decide: Some((start, took)),
                ..Times::default()
            },
            files_changed: 0,
            changed: Vec::new(),
            effects,
            staged: None,
        }
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
