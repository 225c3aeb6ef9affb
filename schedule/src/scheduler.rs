// SPDX-License-Identifier: Apache-2.0
//! The scheduler: what is asked, what is under way, and what may be next.
//!
//! Between two events at most one thing is worth a thought: whether something may go that could
//! not before. So every event is noted, and [`Scheduler::decide`] then tells all that follows.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crab_config::Policy;

use crate::{
    backoff::{Backoff, Hundredths},
    budget::{Budgets, Staging, TokenBucket},
    cost::Costs,
    job::{End, Ended, Job, JobId, JobView, Phase, Request, Stage},
    share::{Share, Virtual, by_weight},
    time::{Time, micros},
};

/// How many jobs are remembered after their end.
const REMEMBERED: usize = 64;

/// What a host is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How the next job is chosen.
    pub policy: Policy,
    /// What all may use together.
    pub budgets: Budgets,
    /// How long a sandbox of whole weight may ask for a capture until it comes before all
    /// others.
    pub patience: Duration,
    /// How long a capture may go on without a word.
    pub capture_limit: Duration,
    /// And a publication.
    pub publish_limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            budgets: Budgets {
                dumps: 2,
                publishers: 2,
                disk_bytes_per_s: None,
                staging_bytes: None,
            },
            patience: Duration::from_secs(10),
            capture_limit: Duration::from_secs(60),
            publish_limit: Duration::from_secs(600),
        }
    }
}

impl Settings {
    /// How long a sandbox of this weight that keeps asking waits at most for the grant of a
    /// capture, be it for one job or, where gates were held for too long, for several: where so
    /// many others ask as well, a capture takes `capture` at most, and what is captured is in
    /// the store `publish` later.
    ///
    /// After its patience it comes before all that became impatient later. Of those before it,
    /// each takes a capture; every second grant may go to what an agent waits for; and each of them
    /// may have to wait for the memory that the one before has.
    pub fn starvation_bound(
        &self,
        weight: u32,
        others: usize,
        capture: Duration,
        publish: Duration,
    ) -> Duration {
        let patience = Duration::from_micros(by_weight(micros(self.patience), weight));
        let grants = u32::try_from(others + 1).unwrap_or(u32::MAX);
        patience + (capture + publish).saturating_mul(2).saturating_mul(grants)
    }
}

/// What may go on, or is to be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The capture may begin.
    Capture(JobId),
    /// What was captured may be written.
    Publish(JobId),
    /// It has ended: something was held back for it as long as may be.
    GiveUp(JobId),
}

/// What has happened since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Captures that were granted.
    pub captures: u64,
    /// Publications that were.
    pub publications: u64,
    /// Captures that began without a grant.
    pub ungranted: u64,
    /// Jobs that ended in the store.
    pub durable: u64,
    /// That were taken back.
    pub void: u64,
    /// That came to nothing, those included that were given up.
    pub failed: u64,
    /// That were given up because of a gate.
    pub given_up: u64,
}

/// What is known of a sandbox beside its jobs.
#[derive(Debug, Default)]
pub(crate) struct Sandbox {
    pub(crate) share: Share,
    pub(crate) costs: Costs,
    /// Since when it has asked without being granted a capture.
    pub(crate) asking: Option<Time>,
}

/// See the module and the crate.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) next: u64,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) queued: BTreeSet<JobId>,
    /// Captured, and to be published.
    pub(crate) captured: BTreeSet<JobId>,
    pub(crate) sandboxes: BTreeMap<Arc<str>, Sandbox>,
    /// Captures that dump processes now.
    pub(crate) dumping: usize,
    /// Publications now.
    pub(crate) publishing: usize,
    pub(crate) staging: Staging,
    pub(crate) disk: Option<TokenBucket>,
    pub(crate) backoff: Backoff,
    pub(crate) shares: Virtual,
    /// The newest grant was one of impatience; the next one is an agent's that waits.
    pub(crate) was_impatient: bool,
    pub(crate) counts: Counts,
    pub(crate) ended: VecDeque<Ended>,
}

impl Scheduler {
    /// One that has heard of nobody.
    pub fn new(settings: Settings, now: Time) -> Self {
        let rate = settings.budgets.disk_bytes_per_s;
        Self {
            settings,
            now,
            next: 0,
            jobs: BTreeMap::new(),
            queued: BTreeSet::new(),
            captured: BTreeSet::new(),
            sandboxes: BTreeMap::new(),
            dumping: 0,
            publishing: 0,
            staging: Staging::new(settings.budgets.staging_bytes),
            disk: rate.map(|rate| TokenBucket::new(rate, now)),
            backoff: Backoff::default(),
            shares: Virtual::default(),
            was_impatient: false,
            counts: Counts::default(),
            ended: VecDeque::new(),
        }
    }

    /// What it was told to be like.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn at(&mut self, now: Time) {
        // A clock that goes back stands still.
        self.now = self.now.max(now);
    }

    /// A job that is new to the scheduler.
    pub fn enter(&mut self, now: Time, request: Request, stage: Stage) -> JobId {
        self.at(now);
        let id = JobId(self.next);
        self.next += 1;
        let sandbox = self.sandboxes.entry(request.sandbox.clone()).or_default();
        let cost = sandbox.costs.expected(request.class, request.bytes);
        let mut job = Job {
            phase: Phase::Queued,
            since: self.now,
            gated: request.gated.map(|held| self.now - held),
            cost,
            idle_since: self.now - request.waiting,
            deadline: Time(0),
            patient_until: Time(0),
            reserved: 0,
            request,
        };
        job.foretell(self.now);
        match stage {
            Stage::Asks => {
                let since = *sandbox.asking.get_or_insert(self.now);
                let patience = micros(self.settings.patience);
                let patience = by_weight(patience, job.request.weight);
                job.patient_until = since + Duration::from_micros(patience);
                self.queued.insert(id);
            }
            Stage::Captured(bytes) => {
                let granted = false;
                job.phase = Phase::Publishing { bytes, granted };
                job.reserved = self.staging.reserve(bytes);
                self.captured.insert(id);
            }
        }
        self.jobs.insert(id, job);
        id
    }

    pub(crate) fn begin_capture(&mut self, job: &mut Job) {
        job.phase = Phase::Capturing;
        job.since = self.now;
        job.reserved = self.staging.reserve(job.request.bytes);
        if job.request.class.dumps() {
            self.dumping += 1;
        }
        let share = |id| {
            let name = &self.jobs.get(id)?.request.sandbox;
            Some(self.sandboxes.get(name)?.share)
        };
        let others = self.queued.iter().filter_map(share).min();
        if let Some(sandbox) = self.sandboxes.get_mut(&job.request.sandbox) {
            sandbox.asking = None;
            let weight = job.request.weight;
            let share = &mut sandbox.share;
            self.shares.granted(share, job.cost, weight, others);
        }
    }

    /// Something of the sandbox's is held back for this job since now, or no longer is.
    pub fn gate(&mut self, now: Time, id: JobId, held: bool) {
        self.at(now);
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.gated = held.then(|| job.gated.unwrap_or(now));
        }
    }

    /// It is out of the sandbox's reach, and takes so many bytes of memory. The sandbox goes on.
    pub fn captured(&mut self, now: Time, id: JobId, bytes: u64) {
        self.at(now);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        match job.phase {
            Phase::Capturing => {
                let took = self.now.since(job.since);
                if job.request.class.dumps() {
                    self.dumping -= 1;
                }
                if let Some(sandbox) = self.sandboxes.get_mut(&job.request.sandbox) {
                    sandbox.costs.note(job.request.class, took, bytes);
                    sandbox.share.correct(job.cost, took, job.request.weight);
                }
            }
            Phase::Queued => {
                self.queued.remove(&id);
                self.counts.ungranted += 1;
                if let Some(sandbox) = self.sandboxes.get_mut(&job.request.sandbox) {
                    sandbox.asking = None;
                }
            }
            Phase::Publishing { .. } => return,
        }
        self.staging.release(job.reserved);
        job.reserved = self.staging.reserve(bytes);
        let granted = false;
        job.phase = Phase::Publishing { bytes, granted };
        job.since = self.now;
        job.gated = None;
        self.captured.insert(id);
    }

    pub(crate) fn begin_publication(&mut self, job: &mut Job, bytes: u64) {
        let granted = true;
        job.phase = Phase::Publishing { bytes, granted };
        job.since = self.now;
        self.publishing += 1;
    }

    /// A job has ended. One that is not known ended before.
    pub fn end(&mut self, now: Time, id: JobId, end: End) {
        self.at(now);
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        match job.phase {
            Phase::Queued => {
                self.queued.remove(&id);
            }
            Phase::Capturing => {
                if job.request.class.dumps() {
                    self.dumping -= 1;
                }
                if let Some(sandbox) = self.sandboxes.get_mut(&job.request.sandbox) {
                    let took = self.now.since(job.since);
                    sandbox.share.correct(job.cost, took, job.request.weight);
                }
            }
            Phase::Publishing { granted, .. } => {
                self.captured.remove(&id);
                self.publishing -= usize::from(granted);
            }
        }
        self.staging.release(job.reserved);
        match &end {
            End::Durable => self.counts.durable += 1,
            End::Void(_) => self.counts.void += 1,
            End::Failed(_) => self.counts.failed += 1,
            End::GivenUp => {
                self.counts.failed += 1;
                self.counts.given_up += 1;
            }
        }
        let queued = matches!(job.phase, Phase::Queued);
        if queued
            && !matches!(end, End::GivenUp)
            && let Some(sandbox) = self.sandboxes.get_mut(&job.request.sandbox)
        {
            // It does not want one any more. Who gave up does.
            sandbox.asking = None;
        }
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended {
            id,
            sandbox: job.request.sandbox,
            turn: job.request.turn,
            class: job.request.class,
            at: self.now,
            end,
        });
    }

    /// Nothing is heard of this sandbox again.
    pub fn gone(&mut self, now: Time, sandbox: &str, why: &str) {
        self.at(now);
        let of = |(id, job): (&JobId, &Job)| (*job.request.sandbox == *sandbox).then_some(*id);
        let jobs: Vec<JobId> = self.jobs.iter().filter_map(of).collect();
        for id in jobs {
            self.end(now, id, End::Failed(why.into()));
        }
        self.sandboxes.remove(sandbox);
    }

    /// How much processes of the host wait for a processor.
    pub fn pressure(&mut self, pressure: Hundredths) {
        self.backoff.read(pressure);
    }

    /// All jobs that have not ended, in the order in which they came.
    pub fn jobs(&self) -> impl Iterator<Item = JobView> {
        self.jobs.iter().map(|(id, job)| JobView {
            id: *id,
            sandbox: job.request.sandbox.clone(),
            turn: job.request.turn,
            class: job.request.class,
            state: job.state(),
            granted: match job.phase {
                Phase::Queued => false,
                Phase::Capturing => true,
                Phase::Publishing { granted, .. } => granted,
            },
            since: job.since,
            gated: job.gated,
            cost: job.cost,
            deadline: job.deadline,
            bytes: job.reserved.max(job.request.bytes),
            weight: job.request.weight,
        })
    }

    /// The newest that have, from the oldest on.
    pub fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter()
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Dumps and publications that are under way, and the memory that is spoken for.
    pub fn in_use(&self) -> (usize, usize, u64) {
        (self.dumping, self.publishing, self.staging.reserved())
    }
}
