// SPDX-License-Identifier: Apache-2.0
//! The look at a boundary, and captures that need no freeze.

use std::{
    mem,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use crab_api::tracer::Effects;
use crab_fault::Point;
use crab_runtime::{files::Staged, procs::Set, system_v::Objects};
use crab_store::{Class, Cost, TurnEffects};

use super::{
    Baseline, Capture, Part, StagedCheckpoint, StagedProcesses, Taken, Times, micros, roots::Scans,
    unobserved,
};
use crate::{
    decide::{self, ProcessHalf, Seen},
    relevance::Verdict,
};

/// For whom it is looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nobody: a turn is over.
    Turn,
    /// Nobody either, but it is no turn unless something has changed: no change is ignored.
    Everything,
    /// Somebody means this very state: the same, and what is owed is tried for.
    Asked,
}

/// What a look has found so far.
pub(super) struct Look {
    /// When it began, but that waiting is no deciding: so much later.
    pub(super) start: Instant,
    /// When it began.
    pub(super) began: Instant,
    /// When it waited for its turn.
    pub(super) waited: Option<Part>,
    pub(super) seen: Seen,
    pub(super) half: ProcessHalf,
    /// It needs an image for nothing but that the newest checkpoint lacks one.
    pub(super) owes_image: bool,
    /// Memory-backed files may have changed with no trace.
    pub(super) reread: bool,
    /// Everything matters, whatever the rules say.
    pub(super) whole: bool,
    /// The counters at its beginning.
    pub(super) epoch: Option<Effects>,
}

/// What the roots differ in, and what that calls for.
pub(super) struct Judged {
    pub(super) scans: Scans,
    pub(super) verdict: Verdict,
    pub(super) class: Class,
}

/// The same, and what was captured of it.
pub(super) struct Files {
    pub(super) verdict: Verdict,
    pub(super) class: Class,
    pub(super) roots: Vec<(usize, Staged)>,
    /// See [`Scans::missed`].
    missed: Option<String>,
}

/// For how long a look may be old when a freeze begins: as long as it takes to get one ready.
const SOON: Duration = Duration::from_millis(20);

/// What came of a look.
enum Looked {
    /// Nothing has changed.
    Nothing(Box<Taken>),
    Something(Box<Something>),
}

/// Something may have changed.
struct Something {
    look: Look,
    set: Set,
    objects: Option<Objects>,
    /// Not everything rests, or can be known to.
    in_motion: bool,
}

/// Whether nothing that concerns files was counted in between.
pub(super) fn same_epoch(before: Option<&Effects>, after: Option<&Effects>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.instance == after.instance
                && before.lost == after.lost
                && before.files == after.files
                && before.mounts == after.mounts
        }
        // With no counters there is nothing that could tell.
        _ => false,
    }
}

impl Capture {
    /// Decides what the time since the newest capture needs, and takes it.
    pub(crate) fn take(&mut self, wish: Wish) -> Result<Taken> {
        let taken = self.take_if(true, wish)?;
        taken.context("a capture that may freeze was refused a freeze")
    }

    /// The same; nothing if it needs a freeze and must not have one.
    pub(super) fn take_if(&mut self, may_freeze: bool, wish: Wish) -> Result<Option<Taken>> {
        crab_fault::at(Point::CaptureLook);
        let looked = match self.observe(may_freeze, wish)? {
            None => return Ok(None),
            Some(Looked::Nothing(taken)) => return Ok(Some(*taken)),
            Some(Looked::Something(looked)) => looked,
        };
        let Something {
            look,
            set,
            objects,
            in_motion,
        } = *looked;
        // A write that is half done is counted only when it is over, and one to a
        // mapping never.
        let optimistic = self.container.config.checkpoints.optimistic;
        let running = if look.half.needs_freeze() || in_motion || !optimistic {
            Err(look)
        } else {
            self.take_running(look, &set)?
        };
        let taken = match running {
            Ok(taken) => {
                self.known.objects = objects;
                taken
            }
            Err(_) if !may_freeze => return Ok(None),
            Err(look) => self.take_in_turn(look, set, wish)?,
        };
        self.known.owed = false;
        self.known.reread = false;
        self.doubt = None;
        Ok(Some(taken))
    }

    /// With a freeze, when the sandbox's turn has come.
    fn take_in_turn(&mut self, mut look: Look, mut set: Set, wish: Wish) -> Result<Taken> {
        let begun = Instant::now();
        self.wait_for_its_turn(&look, &set)?;
        let waited = begun.elapsed();
        if waited > SOON {
            // Mounts, mappings and processes may have come and gone since.
            let Some(Looked::Something(again)) = self.observe(true, wish)? else {
                bail!("a look that is owed came to nothing");
            };
            let before = mem::replace(&mut look, again.look);
            set = again.set;
            // That one is owed is no reason beside another.
            if before.half.needs_image() && (!look.half.needs_image() || look.owes_image) {
                look.half = before.half;
                look.owes_image = before.owes_image;
            }
            (look.start, look.began) = (before.start, before.began);
        }
        // What is told as deciding is no waiting.
        look.start += waited;
        look.waited = Some((begun, waited));
        self.take_frozen(look, &set)
    }

    /// What the time since the newest capture may have changed; nothing if a freeze is needed,
    /// and there must not be one.
    fn observe(&mut self, may_freeze: bool, wish: Wish) -> Result<Option<Looked>> {
        let whole = wish != Wish::Turn;
        let start = Instant::now();
        let now = self.effects();
        let moved = match (&self.known.base, &now) {
            (Some(before), Ok(now)) => {
                before.mounts != now.mounts || before.instance != now.instance
            }
            _ => true,
        };
        if moved && !may_freeze {
            return Ok(None);
        }
        // What fails half way is looked at again, whatever the counters say.
        self.known.owed |= moved;
        let remounted = moved && self.follow_mounts()?;
        let (objects, other_objects) = self.lasting.look(self.known.objects.as_ref());
        let set = self.processes_with_evidence()?;
        let unseen = set.writes_unseen();
        let means = unseen || self.known.unseen;
        let uncertain = means || !self.watches_root();
        let seen = decide::seen(self.known.base.as_ref(), &now, uncertain);
        let mut half = match &self.doubt {
            Some(why) => ProcessHalf::Image(why.clone()),
            None => self.half(&set),
        };
        let mut owes_image = false;
        if !set.is_empty() && !half.needs_image() {
            // Both are in the process image.
            if remounted {
                half = ProcessHalf::Image("something was mounted or unmounted".into());
            } else if other_objects {
                half = ProcessHalf::Image("System V IPC objects changed".into());
            } else if let Some(why) = self.owed_image(wish == Wish::Asked) {
                half = ProcessHalf::Image(why);
                owes_image = true;
            }
        }
        let owed = self.known.owed || whole && self.known.passed_over;
        if seen == Seen::FilesUntouched && !owed && half == ProcessHalf::Unchanged {
            self.known.unseen = unseen;
            let now = now.ok();
            let nothing = self.nothing(&seen, &set, now.as_ref(), start);
            self.known.base = now;
            return Ok(Some(Looked::Nothing(Box::new(nothing))));
        }
        // A mapping that was made and is gone again counts, too.
        let made = match (&self.known.base, &now) {
            (Some(before), Ok(now)) => before.unseen != now.unseen,
            _ => true,
        };
        let look = Look {
            start,
            began: start,
            waited: None,
            seen,
            half,
            owes_image,
            reread: means || made || self.known.reread,
            whole,
            epoch: now.ok(),
        };
        self.known.owed = true;
        // Until a capture has done it.
        self.known.reread = look.reread;
        // A call that sleeps, and was begun in an earlier period of counting, may end
        // uncounted. A freeze has it begun anew.
        let uncounted = match (&self.known.base, &look.epoch) {
            (Some(before), Some(now)) => before.instance != now.instance,
            _ => true,
        };
        let in_motion = !set.at_rest() || unseen || uncounted && !set.is_empty();
        self.known.unseen = unseen;
        Ok(Some(Looked::Something(Box::new(Something {
            look,
            set,
            objects,
            in_motion,
        }))))
    }

    /// Without a freeze; gives the look back when one is needed, as something moved
    /// meanwhile.
    fn take_running(&mut self, mut look: Look, set: &Set) -> Result<Result<Taken, Look>> {
        let judged = self.judged(set, &look)?;
        if let Some(in_use) = self.held_change(&judged, set) {
            look.half = by_held_file(&in_use);
            return Ok(Err(look));
        }
        // Of a root that nobody watches, only that it was as before when it was looked at can be
        // told while it runs, and not that it stayed so.
        if !self.watches_root() && judged.class != Class::None {
            return Ok(Err(look));
        }
        let capture = Instant::now();
        let decide_us = micros(capture - look.start);
        let staged = match judged.scans.torn {
            true => None,
            false => Some(self.files(judged)?),
        };
        let after = self.effects().ok();
        let whole = same_epoch(look.epoch.as_ref(), after.as_ref());
        let is_torn = |files: &Files| files.roots.iter().any(|(_, s)| !s.torn().is_empty());
        let Some(mut files) = staged.filter(|files| whole && !is_torn(files)) else {
            return Ok(Err(look));
        };
        files.are_all()?;
        let ignored = std::mem::take(&mut files.verdict.ignored);
        let effects = self.effects_of_turn(&look.half, set, ignored, look.epoch.as_ref());
        self.known.base = look.epoch.take();
        self.known.passed_over = files.passes_over();
        let processes = match &look.half {
            ProcessHalf::Gone(_) => {
                self.known.baseline = Some(Baseline::untouched(set.clone()));
                self.known.captured = Some(set.clone());
                self.known.some_processes = false;
                self.known.lack = None;
                StagedProcesses::None
            }
            _ => StagedProcesses::Kept,
        };
        let took = capture.elapsed();
        let cost = Cost {
            decide_us,
            capture_us: micros(took),
            ..Cost::default()
        };
        let times = Times {
            decide: Some(look.until(capture)),
            capture: Some((capture, took)),
            ..Times::default()
        };
        Ok(Ok(look.taken(
            files,
            effects,
            processes,
            None,
            (cost, times),
        )))
    }

    /// Compares all roots, and judges what differs.
    pub(super) fn judged(&self, set: &Set, look: &Look) -> Result<Judged> {
        let scans = self.scan(set, look.reread)?;
        let verdict = self.judge(&scans, look.whole);
        let class = decide::class(verdict.relevant, verdict.passed_over, &look.half);
        Ok(Judged {
            scans,
            verdict,
            class,
        })
    }

    /// Captures what changed, if that is called for.
    pub(super) fn files(&mut self, judged: Judged) -> Result<Files> {
        let Judged {
            mut scans,
            verdict,
            class,
        } = judged;
        let missed = scans.missed.take();
        let roots = if class == Class::None {
            self.pass_over(scans);
            Vec::new()
        } else {
            self.stage(scans)?
        };
        Ok(Files {
            verdict,
            class,
            roots,
            missed,
        })
    }
}

impl Files {
    /// Fails if the kernel side has not told of something, where that was looked for.
    pub(super) fn are_all(&self) -> Result<()> {
        match &self.missed {
            None => Ok(()),
            Some(missed) => bail!("the kernel did not tell that this changed: {missed}"),
        }
    }

    /// Something has changed, and is left out.
    pub(super) fn passes_over(&self) -> bool {
        self.class == Class::None && self.verdict.passed_over > 0
    }
}

impl Look {
    /// All of it, up to a capture.
    pub(super) fn until(&self, capture: Instant) -> Part {
        (self.began, capture.saturating_duration_since(self.began))
    }

    /// What came out of it where only an image was owed, and cannot be had this time either.
    pub(super) fn in_vain(
        &self,
        effects: TurnEffects,
        again: &str,
        (cost, times): (Cost, Times),
    ) -> Taken {
        let as_before = decide::reason(&self.seen, 0, 0, &ProcessHalf::Unchanged);
        Taken {
            class: Class::None,
            reason: format!("{as_before}; again {again}"),
            unobserved: unobserved(&self.seen),
            degraded: None,
            cost,
            times,
            files_changed: 0,
            changed: Vec::new(),
            effects,
            staged: None,
        }
    }

    /// What came out of it.
    pub(super) fn taken(
        &self,
        files: Files,
        effects: TurnEffects,
        processes: StagedProcesses,
        degraded: Option<String>,
        (cost, times): (Cost, Times),
    ) -> Taken {
        let Files {
            verdict,
            class,
            roots,
            missed: _,
        } = files;
        Taken {
            class,
            reason: decide::reason(
                &self.seen,
                verdict.relevant,
                verdict.passed_over,
                &self.half,
            ),
            unobserved: unobserved(&self.seen),
            degraded,
            cost,
            times,
            files_changed: verdict.relevant as u64,
            changed: verdict.changed,
            effects,
            staged: (class != Class::None).then_some(StagedCheckpoint { roots, processes }),
        }
    }
}

/// Why a change of a file needs an image.
pub(super) fn by_held_file(path: &str) -> ProcessHalf {
    ProcessHalf::Image(format!(
        "{path} was changed or moved, which a process holds"
    ))
}
