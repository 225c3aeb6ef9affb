// SPDX-License-Identifier: Apache-2.0
//! One freeze over both halves.

use std::time::{Duration, Instant};

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    criu::Criu,
    procs::{Places, Set},
};
use crab_store::{Class, Cost};

use super::{
    Capture, SETTLE, StagedCheckpoint, StagedImage, StagedProcesses, Taken, entries, files_only,
    micros,
    take::{Look, held},
    unobserved,
};
use crate::{
    decide::{self, ProcessHalf},
    pipes,
    still::Still,
};

/// For how long the system calls of a thawed sandbox are counted: until its threads are
/// back where they were, or it is given up.
const ATTENTION: Duration = Duration::from_secs(3);

/// The counters of a frozen sandbox, with its system calls counted from then on.
struct Epoch {
    effects: Effects,
    asked: Instant,
}

/// How far the process half has got.
#[derive(Default)]
struct Half {
    criu: Option<Criu>,
    image: Option<StagedImage>,
    degraded: Option<String>,
}

impl Capture {
    /// Whether an image can be taken, asked once.
    fn prepare(&self, half: &mut Half) {
        if half.criu.is_none() && half.degraded.is_none() {
            match self.can_dump() {
                Ok(criu) => half.criu = Some(criu),
                Err(reason) => half.degraded = Some(files_only(&reason)),
            }
        }
    }

    pub(super) fn take_frozen(&mut self, mut look: Look) -> Result<Taken> {
        // One set tells what ran and where all are blocked: a run between two sets
        // would be in neither.
        let set = self.processes()?;
        let places = set.places();
        if !matches!(look.half, ProcessHalf::Image(_)) {
            look.half = self.half(&set);
        }
        let mut half = Half::default();
        if matches!(look.half, ProcessHalf::Image(_)) {
            // Whatever makes an image impossible is found before the freeze.
            self.prepare(&mut half);
        }
        let decide_us = micros(look.start.elapsed());
        let capture = Instant::now();
        let still = Still::stand(self.container.clone());
        let limit = self.container.host.config.runtime.freeze_timeout();
        let frozen = self.cgroup.freeze(limit)?;
        let stopped = self.processes()?;
        let moved = stopped.since(&set);
        if moved.started + moved.ended > 0 && !matches!(look.half, ProcessHalf::Image(_)) {
            look.half = self.half(&stopped);
        }
        // Asked only of a crabd that answered just now: it must not keep the sandbox
        // frozen.
        let asked = look.epoch.is_some();
        let mut epoch = asked.then(|| self.epoch()).flatten();
        let mut scans = None;
        if !matches!(look.half, ProcessHalf::Image(_)) {
            let found = self.scan(&stopped, look.reread)?;
            match self.held_change(&found, &stopped) {
                Some(in_use) => look.half = held(&in_use),
                None => scans = Some(found),
            }
        }
        if matches!(look.half, ProcessHalf::Image(_)) {
            self.prepare(&mut half);
            self.image(&mut half, &stopped, &places);
            // After CRIU, which works from inside the cgroup and is counted there;
            // nothing of the sandbox can have run since.
            epoch = asked.then(|| self.epoch()).flatten();
        }
        let scans = match scans {
            Some(scans) => scans,
            None => self.scan(&stopped, look.reread)?,
        };
        let count = scans.count();
        let changed = self.changed_paths(&scans);
        let roots = self.stage(scans)?;
        let last = self.processes()?;
        let frozen_us = micros(frozen.thaw()?);
        drop(still);
        let capture_us = micros(capture.elapsed());
        self.record(&look.half, last, &places, epoch.as_ref())?;
        self.base = epoch.map(|epoch| epoch.effects);
        let class = decide::class(count > 0, &look.half);
        let processes = match (&look.half, half.image) {
            (ProcessHalf::Unchanged, _) => StagedProcesses::Kept,
            (_, Some(image)) => StagedProcesses::Image(image),
            (_, None) => StagedProcesses::None,
        };
        Ok(Taken {
            class,
            reason: decide::reason(&look.seen, count, &look.half),
            unobserved: unobserved(&look.seen),
            degraded: half.degraded,
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

    /// Has CRIU take the image, if it can.
    fn image(&self, half: &mut Half, set: &Set, places: &Places) {
        let Some(criu) = half.criu.take() else { return };
        match self.dump(set) {
            Ok(dir) => {
                half.degraded = self.left_out();
                half.image = Some(StagedImage {
                    dir,
                    processes: entries(set),
                    places: places.clone(),
                    pipes: pipes::shared_with(set, self.init),
                    criu: criu.version,
                });
            }
            Err(error) => half.degraded = Some(files_only(&format!("{error:#}"))),
        }
    }

    fn epoch(&self) -> Option<Epoch> {
        let asked = Instant::now();
        let answer = self.tracer.effects(ATTENTION);
        let effects = self.async_runtime.block_on(answer).ok()?;
        Some(Epoch { effects, asked })
    }

    /// Whether no process has done anything since: one that wakes from the freeze and
    /// blocks again in its interrupted call has completed none. One that found a request
    /// waiting has.
    fn only_woke_since(&self, epoch: &Epoch) -> bool {
        let Ok(now) = self.effects() else {
            return false;
        };
        let before = &epoch.effects;
        if epoch.asked.elapsed() > ATTENTION || now.instance != before.instance {
            return false;
        }
        if now.calls != before.calls {
            let calls = now.calls.saturating_sub(before.calls);
            tracing::info!(calls, "processes went on while they were thawed");
        }
        now.calls == before.calls
    }

    /// Takes note of the processes as they are after the thaw; `frozen` is the set
    /// right before it.
    fn record(
        &mut self,
        half: &ProcessHalf,
        frozen: Set,
        places: &Places,
        epoch: Option<&Epoch>,
    ) -> Result<()> {
        match half {
            ProcessHalf::Gone(_) => {
                self.some_processes = !frozen.is_empty();
                self.baseline = Some(frozen);
                return Ok(());
            }
            ProcessHalf::Image(_) => self.some_processes = true,
            // Nothing to be woken, or nothing known before.
            ProcessHalf::Unchanged if frozen.is_empty() || self.baseline.is_none() => {
                return Ok(());
            }
            ProcessHalf::Unchanged => {}
        }
        let keep_alive = self.keep_alive.as_ref();
        let settled = Set::settle(&self.cgroup, keep_alive, places, SETTLE)?;
        self.baseline = settled.filter(|_| epoch.is_some_and(|epoch| self.only_woke_since(epoch)));
        Ok(())
    }
}
