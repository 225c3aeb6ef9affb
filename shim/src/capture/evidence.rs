// SPDX-License-Identifier: Apache-2.0
//! Whether processes did anything while they were frozen and thawed, or after they were
//! restored.
//!
//! A freeze wakes every thread for a moment, and it blocks again in the call in which it
//! was stopped: it has completed none. One that found a request waiting has. So crabd
//! counts the completed calls of the sandbox for a while. Where it cannot say, the
//! processes count as changed.
//!
//! A thread that was stopped on its way from one call to the next goes that way when it
//! is thawed, and would go it again from the image: without a call it learns nothing new.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    cgroup::Frozen,
    procs::{Content, ContentError, Places, Set},
};

use super::{Baseline, Capture};
use crate::{decide::ProcessHalf, still::Still, tracer::Attention};

/// For how long completed calls are counted: from before a freeze until it has taken
/// hold, or from the end of one until the threads have settled.
const ATTENTION: Duration = Duration::from_secs(3);

/// How many processes crabd passes over when it counts.
const MAX_SPARED: usize = 3;

/// How long thawed or restored threads may take to be back where they were, while nothing
/// goes on: until each has had a CPU for a moment, which on a crowded host may be long. They
/// are no longer waited for once one has completed a call.
const SETTLE: Duration = Duration::from_secs(1);

/// The counters at an instant since when completed calls are counted.
pub(super) struct Epoch {
    effects: Effects,
    asked: Instant,
}

impl Epoch {
    /// Whether nothing has been completed until these counters were read.
    pub(super) fn still_at(&self, now: &Effects) -> bool {
        let before = &self.effects;
        if self.asked.elapsed() > ATTENTION || now.instance != before.instance {
            return false;
        }
        now.calls == before.calls
    }
}

impl Epoch {
    /// The same, where it may not be known.
    pub(super) fn is_still(epoch: Option<&Self>, now: Option<&Effects>) -> bool {
        matches!((epoch, now), (Some(epoch), Some(now)) if epoch.still_at(now))
    }
}

impl Capture {
    /// Has completed calls counted from now on, but not those of processes in this set that
    /// are ignored; nothing if nobody can.
    pub(super) fn epoch(&self, set: &Set) -> Option<Epoch> {
        let asked = Instant::now();
        let mut spared = match self.keep_alive() {
            Some(keep_alive) => keep_alive.inner_pids(&self.cgroup).ok()?,
            None => Vec::new(),
        };
        let ignored = set.iter().filter(|process| process.ignored.is_some());
        spared.extend(ignored.filter_map(|process| process.inner_pid()));
        // Those that are too many for it count: their calls are taken for the others'.
        spared.truncate(MAX_SPARED);
        let namespace = fs::metadata(format!("/proc/{}/ns/pid", self.init)).ok()?;
        let attention = Attention {
            duration: ATTENTION,
            spared,
            pid_namespace: u32::try_from(namespace.ino()).ok()?,
        };
        let answer = self.tracer.effects_now(Some(&attention));
        let effects = self.async_runtime.block_on(answer)?;
        Some(Epoch { effects, asked })
    }

    /// The counters, from a crabd that answers at once.
    pub(super) fn effects_now(&self) -> Option<Effects> {
        let answer = self.tracer.effects_now(None);
        self.async_runtime.block_on(answer)
    }

    /// The processes once all are back in these places, if nothing was done since the
    /// epoch.
    pub(super) fn settle(&self, places: &Places, epoch: Option<&Epoch>) -> Result<Option<Set>> {
        if epoch.is_none() {
            return Ok(None);
        }
        let went_on = || !Epoch::is_still(epoch, self.effects_now().as_ref());
        let keep_alive = self.keep_alive();
        Ok(Set::settle(
            &self.cgroup,
            keep_alive,
            |process| self.relevance.rule_for_process(process),
            places,
            SETTLE,
            went_on,
        )?)
    }

    /// Holds the sandbox still.
    pub(super) fn freeze(&self) -> Result<(Still, Frozen)> {
        let still = Still::stand_when_entered(self.container.clone());
        let limit = self.container.config.runtime.freeze_timeout();
        Ok((still, self.cgroup.freeze(limit)?))
    }

    /// Decides by what they hold on processes that `ran`, and tells what that is, if it could
    /// be read. See [`Self::content`].
    pub(super) fn by_content(
        &self,
        frozen: &Frozen,
        before: &Set,
        set: &Set,
        ran: &str,
    ) -> Result<(ProcessHalf, Option<Content>)> {
        let baseline = self.known.baseline.as_ref();
        let earlier = baseline.and_then(Baseline::content);
        let now = self.content(frozen, before, set, earlier)?;
        let half = match baseline {
            Some(baseline) => baseline.compare(ran, &now),
            None => ProcessHalf::Image(ran.into()),
        };
        Ok((half, now.ok()))
    }

    /// What the processes hold, which are frozen and were in these states `before`; or why it
    /// is not known. See [`Content::of`] for what the `earlier` record is good for.
    ///
    /// # Errors
    /// When the sandbox is not frozen any more.
    pub(super) fn content(
        &self,
        frozen: &Frozen,
        before: &Set,
        set: &Set,
        earlier: Option<&Content>,
    ) -> Result<Result<Content, String>> {
        if before.holds_stopped() {
            return Ok(Err("a process is stopped".into()));
        }
        let limit = self.container.config.checkpoints.compare_bytes;
        if set.image_bytes() > limit {
            return Ok(Err(format!(
                "they hold more than the {limit} bytes that are compared"
            )));
        }
        match Content::of(&self.cgroup, frozen, set, earlier, limit) {
            Ok(content) => Ok(Ok(content)),
            Err(error @ ContentError::Hung) => Err(error.into()),
            Err(error) => {
                tracing::info!(%error, "the processes cannot be compared");
                Ok(Err(error.to_string()))
            }
        }
    }

    /// After a restore by CRIU: which processes there are.
    pub(crate) fn note_restored(&mut self) -> Result<()> {
        let set = self.processes()?;
        self.known.references = set.references_by_process();
        self.known.captured = Some(set);
        Ok(())
    }

    /// After a restore by CRIU: the processes are as in the image, if all are in its
    /// places. What one has done before the sandbox was watched again, milliseconds after
    /// it was resumed, is not known.
    pub(crate) fn settle_restored(&mut self, places: &Places) -> Result<()> {
        let epoch = self.epoch(&self.processes()?);
        let Some(set) = self.settle(places, epoch.as_ref())? else {
            return Ok(());
        };
        self.imaged(set.clone(), Some(set), places, epoch.as_ref(), None)?;
        Ok(())
    }

    /// Takes note of the processes of an image, which `rested` since, and of what they hold: in
    /// a freeze of its own, as a dump and a restore by CRIU interrupt the calls in which they
    /// were, and only then are they where they stay. Tells for how long they stood still.
    ///
    /// One that wakes up ever so often has done so by then. What was `held` right before the
    /// dump, where that is known, tells whether it is the same nevertheless.
    pub(super) fn imaged(
        &mut self,
        set: Set,
        rested: Option<Set>,
        places: &Places,
        epoch: Option<&Epoch>,
        held: Option<&Content>,
    ) -> Result<Duration> {
        self.known.baseline = None;
        let before = match (&rested, held) {
            (Some(rested), _) => rested,
            (None, Some(_)) => &set,
            (None, None) => {
                self.known.baseline = Some(Baseline::new(set, None, None));
                return Ok(Duration::ZERO);
            }
        };
        let limit = self.container.config.checkpoints.compare_bytes;
        if before.image_bytes() > limit {
            self.known.baseline = Some(Baseline::new(set, rested, None));
            return Ok(Duration::ZERO);
        }
        let (still, frozen) = self.freeze()?;
        // First, as calls are counted for a while only, and to compare memory takes long.
        let at_rest = rested.is_some() && Epoch::is_still(epoch, self.effects_now().as_ref());
        let now = self.processes()?;
        let content = self.content(&frozen, before, &now, held)?;
        let is_as_held = match (&content, held) {
            (Ok(content), Some(held)) => content.since(held).is_none(),
            _ => false,
        };
        let thawed = self.epoch(&now);
        let stood = frozen.thaw()?;
        drop(still);
        self.known.baseline = Some(if at_rest || is_as_held {
            let rested = self.settle(places, thawed.as_ref())?;
            Baseline::new(set, rested, content.ok())
        } else {
            Baseline::new(set, None, None)
        });
        Ok(stood)
    }
}
