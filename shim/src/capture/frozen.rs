// SPDX-License-Identifier: Apache-2.0
//! One freeze over both halves.

use std::{
    io,
    thread::{self, Builder, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use crab_fault::Point;
use crab_runtime::{
    criu::Criu,
    procs::{Content, Places, Portraits, Set},
};
use crab_schedule::Class;
use crab_store::Cost;

use super::{
    Baseline, Capture, StagedImage, StagedProcesses, Taken, Times,
    dump::{Dump, Dumped, entries, left_out},
    evidence::Epoch,
    files_only,
    lack::{Cause, Lack},
    micros,
    take::{Look, by_held_file},
};
use crate::{
    decide::{ProcessHalf, Seen},
    pipes,
    schedule::NotNow,
};

/// How far the process half has got.
#[derive(Default)]
struct Half {
    criu: Option<Criu>,
    dump: Option<Dump>,
    image: Option<StagedImage>,
    degraded: Option<String>,
    /// Why there is no image, if there is none.
    lacks: Option<Cause>,
}

impl Half {
    /// There is no image.
    fn lacks(&mut self, cause: Cause, reason: &str) {
        self.degraded = Some(files_only(reason));
        self.lacks = Some(cause);
    }
}

impl Capture {
    /// Finds out, once, whether there can be an image.
    fn ask(&self, half: &mut Half) {
        if half.criu.is_none() && half.degraded.is_none() {
            match self.can_dump() {
                Ok(criu) => half.criu = Some(criu),
                Err(reason) => half.lacks(Cause::Obstacle, &reason),
            }
        }
    }

    /// Gets an image ready to be taken, once, if there can be one.
    fn prepare(&self, half: &mut Half, set: &Set) {
        self.ask(half);
        if half.dump.is_some() || half.degraded.is_some() {
            return;
        }
        let Some(criu) = half.criu.clone() else {
            return;
        };
        match self.prepare_dump(criu, set) {
            Ok(dump) => half.dump = Some(dump),
            Err(error) => half.lacks(Cause::Failure, &format!("{error:#}")),
        }
    }

    /// Waits until the sandbox may be frozen, and dumped where there is something to dump.
    pub(super) fn wait_for_its_turn(&self, look: &Look, set: &Set) -> Result<(), NotNow> {
        let class = match &look.seen {
            _ if set.is_empty() && !look.half.needs_image() => Class::Files,
            Seen::FilesUntouched => Class::Processes,
            _ => Class::Full,
        };
        let bytes = set.image_bytes().saturating_add(set.nameless_bytes());
        let granted = self.schedule.capture(class, bytes);
        self.async_runtime.block_on(granted)
    }

    pub(super) fn take_frozen(&mut self, mut look: Look, set_before: &Set) -> Result<Taken> {
        let mut half = Half::default();
        if look.half.needs_image() || look.half.needs_freeze() && !self.known.woke_only {
            // It takes a while to be ready, and processes may run on meanwhile: before
            // anything is noted of them.
            self.prepare(&mut half, set_before);
        }
        // Asked only of a crabd that answered just now: it must not keep the sandbox
        // frozen.
        let watched = look.epoch.is_some();
        let mut running = None;
        if watched && !look.half.needs_image() {
            running = self.epoch(set_before);
        }
        // One set tells what ran and where all are blocked: a run between two sets
        // would be in neither.
        let set = self.processes()?;
        let places = set.places();
        if !look.half.needs_image() {
            look.half = self.half(&set);
        }
        if !set.is_empty() && !look.half.needs_image() {
            // Should one be needed after all: whether CRIU is sound is known then.
            let _ = self.container.criu();
        }
        if look.half.needs_freeze() {
            // Whatever makes an image impossible is found before the freeze.
            self.ask(&mut half);
        }
        let decide_us = micros(look.start.elapsed());
        let capture = Instant::now();
        let (still, frozen) = self.freeze()?;
        crab_fault::at(Point::CaptureFrozen);
        let all = Set::of(&self.cgroup, None)?;
        let stopped = self.that_matter(all.clone());
        let mut base = None;
        let mut judged = None;
        if !look.half.needs_image() {
            if watched {
                base = self.effects_now();
            }
            let moved = stopped.since(&set);
            if moved.started + moved.ended > 0 {
                look.half = self.half(&stopped);
            } else if !stopped.all_ignored() && !Epoch::is_still(running.as_ref(), base.as_ref()) {
                look.half = look.half.went_on();
            }
        }
        let mut held = None;
        if let ProcessHalf::Ran(ran) = &look.half {
            (look.half, held) = self.by_content(&frozen, &set, &stopped, ran)?;
            self.known.woke_only = !look.half.needs_image();
        }
        if !look.half.needs_image() {
            let found = self.judged(&stopped, &look)?;
            match self.held_change(&found, &stopped) {
                Some(in_use) => look.half = by_held_file(&in_use),
                None => judged = Some(found),
            }
        }
        let image = look.half.needs_image();
        let mut not_needed = None;
        if image {
            self.prepare(&mut half, &stopped);
        } else {
            // None was tried, whatever would have come of it.
            not_needed = std::mem::take(&mut half).dump;
        }
        let dump = half.dump.take().map(|dump| dump.confirmed(&all));
        let criu = dump.as_ref().map(|dump| dump.criu().version.clone());
        let beside = dump.as_ref().is_some_and(Dump::leaves_files_alone);
        let mut files = || match judged.take() {
            Some(judged) => self.files(judged),
            None => self.judged(&stopped, &look).and_then(|it| self.files(it)),
        };
        let (written, files) = thread::scope(|scope| {
            let write = |dump: Dump| Builder::new().spawn_scoped(scope, move || dump.write());
            let join = |writing: io::Result<ScopedJoinHandle<'_, _>>| match writing {
                Ok(writing) => writing.join(),
                Err(error) => Ok(Err(anyhow!("no thread for the dump: {error}"))),
            };
            let writing = dump.map(write);
            if beside {
                // CRIU looks at the processes, and this thread at the files.
                let files = files();
                (writing.map(join), files)
            } else {
                let written = writing.map(join);
                (written, files())
            }
        });
        if let Some((criu, written)) = criu.zip(written) {
            let written = written.unwrap_or_else(|_| Err(anyhow!("the dump broke off")));
            half.degraded = left_out(&all, self.init);
            self.image(&mut half, criu, written, &stopped, &places);
        }
        if image {
            // After CRIU, which works from inside the cgroup and is counted there;
            // nothing of the sandbox can have run since.
            self.known.references = stopped.references_by_process();
            let before = self.known.lack.take();
            let took = capture.elapsed();
            let lacking = |cause| Lack::after(before, cause, Instant::now(), took);
            self.known.lack = half.lacks.map(lacking);
            base = watched.then(|| self.effects_now()).flatten();
        }
        let mut files = files?;
        files.are_all()?;
        self.known.passed_over = files.passes_over();
        // CRIU leaves its traces there, too.
        self.known.objects = self.lasting.look(None).0;
        let last = self.processes()?;
        let mut thawed = None;
        if watched && !last.is_empty() {
            thawed = self.epoch(&last);
        }
        crab_fault::at(Point::CaptureTaken);
        let stood = frozen.thaw()?;
        let went_on = Instant::now();
        crab_fault::at(Point::CaptureThawed);
        let took = capture.elapsed();
        if let Some(dump) = not_needed {
            dump.give_up();
        }
        let ignored = std::mem::take(&mut files.verdict.ignored);
        let effects = self.effects_of_turn(&look.half, &stopped, ignored, base.as_ref());
        // Nothing is started meanwhile: what that does would be taken for what they do.
        let again = self.record(&look.half, last, &places, thawed.as_ref(), held.as_ref())?;
        drop(still);
        self.known.base = base;
        if let Some(StagedImage {
            portraits: Some(portraits),
            ..
        }) = &mut half.image
        {
            // None of them has gone on in between.
            let after = self.known.baseline.as_ref().and_then(Baseline::content);
            let held = held.as_ref().or(after);
            let unread = || "they ran on, or could not be compared".to_string();
            portraits.add_memory(held.ok_or_else(unread));
        }
        let processes = match (&look.half, half.image) {
            (ProcessHalf::Unchanged, _) => StagedProcesses::Kept,
            (_, Some(image)) => StagedProcesses::Image(Box::new(image)),
            (_, None) => StagedProcesses::None,
        };
        let cost = Cost {
            decide_us,
            capture_us: micros(took),
            frozen_us: micros(stood + again),
            ..Cost::default()
        };
        let times = Times {
            decide: Some(look.until(capture)),
            wait: look.waited,
            capture: Some((capture, took)),
            frozen: Some((went_on.checked_sub(stood).unwrap_or(capture), stood)),
        };
        if look.owes_image && half.lacks.is_some() && files.class == crab_store::Class::Processes {
            // As it was, but for one more try.
            let again = half.degraded.as_deref().unwrap_or_default();
            return Ok(look.in_vain(effects, again, (cost, times)));
        }
        Ok(look.taken(files, effects, processes, half.degraded, (cost, times)))
    }

    /// Takes note of the image that CRIU has written, if it has.
    fn image(
        &self,
        half: &mut Half,
        criu: String,
        written: Result<Dumped>,
        set: &Set,
        places: &Places,
    ) {
        match written {
            Ok(dumped) => {
                let portraits = Portraits::of(set).inspect_err(|error| {
                    tracing::warn!(%error, "what the image holds cannot be compared later");
                });
                half.image = Some(StagedImage {
                    dir: dumped.dir,
                    remainder: dumped.remainder,
                    processes: entries(set),
                    places: places.clone(),
                    portraits: portraits.ok(),
                    pipes: pipes::shared_with(set, self.init),
                    criu,
                });
            }
            Err(error) => half.lacks(Cause::Failure, &format!("{error:#}")),
        }
    }

    /// Takes note of the processes as they are after the thaw; `frozen` is the set
    /// right before it. Tells for how long they stood still again for that.
    fn record(
        &mut self,
        half: &ProcessHalf,
        frozen: Set,
        places: &Places,
        epoch: Option<&Epoch>,
        held: Option<&Content>,
    ) -> Result<Duration> {
        if *half != ProcessHalf::Unchanged {
            self.known.captured = Some(frozen.clone());
        }
        match half {
            ProcessHalf::Gone(_) => {
                self.known.some_processes = !frozen.is_empty();
                self.known.lack = None;
                self.known.baseline = Some(Baseline::untouched(frozen));
            }
            ProcessHalf::Image(_) | ProcessHalf::Ran(_) => {
                self.known.some_processes = true;
                let rested = self.settle(places, epoch)?;
                let again = self.imaged(frozen, rested, places, epoch, held);
                self.settle_init();
                return again;
            }
            // Nothing to be woken.
            ProcessHalf::Unchanged if frozen.is_empty() => {}
            ProcessHalf::Unchanged => {
                let rested = self.settle(places, epoch)?;
                if let Some(baseline) = &mut self.known.baseline {
                    baseline.rests(rested);
                }
            }
        }
        Ok(Duration::ZERO)
    }
}
