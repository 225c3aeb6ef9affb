// SPDX-License-Identifier: Apache-2.0
//! What may go on now.

use crab_config::Policy;

use crate::{
    job::{End, Job, JobId, Phase},
    order::Place,
    scheduler::{Decision, Scheduler},
    time::Time,
};

impl Scheduler {
    /// Everything that follows from what was noted so far, in the order in which it is decided.
    pub fn decide(&mut self, now: Time) -> Vec<Decision> {
        self.at(now);
        let mut decisions = Vec::new();
        self.expire(&mut decisions);
        self.foretell_again();
        while let Some(id) = self.next_capture() {
            let Some(mut job) = self.jobs.remove(&id) else {
                break;
            };
            self.queued.remove(&id);
            self.counts.captures += 1;
            self.begin_capture(&mut job);
            self.jobs.insert(id, job);
            decisions.push(Decision::Capture(id));
        }
        while let Some((id, bytes)) = self.next_publication() {
            let Some(mut job) = self.jobs.remove(&id) else {
                break;
            };
            self.captured.remove(&id);
            self.counts.publications += 1;
            self.begin_publication(&mut job, bytes);
            self.jobs.insert(id, job);
            decisions.push(Decision::Publish(id));
        }
        decisions
    }

    /// When [`Self::decide`] has something to say although nothing has happened; nothing if
    /// only an event can change anything.
    pub fn next(&self) -> Option<Time> {
        let mut next: Option<Time> = None;
        let mut at = |time: Time| next = Some(next.map_or(time, |before| before.min(time)));
        for job in self.jobs.values() {
            match job.phase {
                Phase::Queued => {
                    if let Some(since) = job.gated {
                        at(since + job.request.gate_limit);
                    }
                }
                Phase::Capturing => at(job.since + self.settings.capture_limit),
                Phase::Publishing { granted: true, .. } => {
                    at(job.since + self.settings.publish_limit);
                }
                Phase::Publishing { .. } => {}
            }
        }
        if let Some(disk) = &self.disk
            && let Some((_, job, bytes)) = self.first_to_publish()
            && self.publishing < self.publishers(job)
        {
            at(self.now + disk.when(bytes, self.now));
        }
        next
    }

    /// Ends what has gone on for too long.
    fn expire(&mut self, decisions: &mut Vec<Decision>) {
        let (now, settings) = (self.now, self.settings);
        let mut over = Vec::new();
        for (id, job) in &self.jobs {
            let lasted = now.since(job.since);
            let silent = |what| Some(End::Failed(format!("nothing was heard of its {what}")));
            let end = match job.phase {
                Phase::Queued => {
                    let held = job.gated.map(|since| now.since(since));
                    held.is_some_and(|held| held >= job.request.gate_limit)
                        .then_some(End::GivenUp)
                }
                Phase::Capturing if lasted >= settings.capture_limit => silent("capture"),
                Phase::Publishing { granted: true, .. } if lasted >= settings.publish_limit => {
                    silent("publication")
                }
                Phase::Capturing | Phase::Publishing { .. } => None,
            };
            over.extend(end.map(|end| (*id, end)));
        }
        for (id, end) in over {
            if end == End::GivenUp {
                decisions.push(Decision::GiveUp(id));
            }
            self.end(now, id, end);
        }
    }

    /// An agent that should have gone on and has not is looked at anew.
    fn foretell_again(&mut self) {
        let now = self.now;
        for id in self.queued.iter().chain(&self.captured) {
            if let Some(job) = self.jobs.get_mut(id)
                && job.deadline <= now
                && job.gated.is_none()
            {
                job.foretell(now);
            }
        }
    }

    fn is_over_share(&self, job: &Job) -> bool {
        let sandbox = self.sandboxes.get(&job.request.sandbox);
        sandbox.is_some_and(|sandbox| self.shares.is_over(sandbox.share))
    }

    /// Nothing if nothing may go, or if what comes first does not fit yet.
    fn next_capture(&mut self) -> Option<JobId> {
        let budgets = &self.settings.budgets;
        let any_dump = self.dumping < budgets.dumps;
        let background = self.dumping < self.backoff.limit(budgets.dumps);
        let policy = self.settings.policy;
        let mut impatient: Option<(Time, JobId)> = None;
        let mut first: Option<(Place, JobId)> = None;
        let mut is_gated = false;
        for id in &self.queued {
            let Some(job) = self.jobs.get(id) else {
                continue;
            };
            let fits = self.staging.fits(job.request.bytes);
            if policy == Policy::Fifo {
                // Nobody overtakes the first one.
                let may = !job.request.class.dumps() || any_dump;
                return (fits && may).then_some(*id);
            }
            let until = job.patient_until;
            let slot = !job.request.class.dumps() || any_dump;
            if until <= self.now && slot {
                let candidate = (until, *id);
                impatient = Some(impatient.map_or(candidate, |before| before.min(candidate)));
            }
            let slot = !job.request.class.dumps()
                || if job.gated.is_some() {
                    any_dump
                } else {
                    background
                };
            if slot && fits {
                let over = policy == Policy::Predictive && self.is_over_share(job);
                let candidate = (Place::to_capture(policy, *id, job, over), *id);
                if first.is_none_or(|before| candidate < before) {
                    first = Some(candidate);
                    is_gated = job.gated.is_some();
                }
            }
        }
        if let Some((_, id)) = impatient {
            let fits = self
                .jobs
                .get(&id)
                .is_some_and(|job| self.staging.fits(job.request.bytes));
            if !fits {
                // All others wait until there is room for it: else small ones could keep it
                // out for ever.
                return None;
            }
            let agents_turn = self.was_impatient && is_gated;
            self.was_impatient = !agents_turn;
            if !agents_turn {
                return Some(id);
            }
        }
        first.map(|(_, id)| id)
    }

    /// With its bytes.
    fn first_to_publish(&self) -> Option<(JobId, &Job, u64)> {
        let policy = self.settings.policy;
        let (now, patience) = (self.now, self.settings.patience);
        let place = |id: JobId, job: &Job| {
            let is_patient = policy == Policy::Fifo || now.since(job.since) < patience;
            let waited_longest = if is_patient {
                Time(u64::MAX)
            } else {
                job.since
            };
            (waited_longest, Place::to_publish(policy, id, job))
        };
        self.captured
            .iter()
            .filter_map(|id| {
                let job = self.jobs.get(id)?;
                let Phase::Publishing { bytes, .. } = job.phase else {
                    return None;
                };
                Some((*id, job, bytes))
            })
            .min_by_key(|(id, job, _)| place(*id, job))
    }

    /// How many publications there may be at a time, if the next one is this.
    fn publishers(&self, job: &Job) -> usize {
        let most = self.settings.budgets.publishers;
        let impatient = self.now.since(job.since) >= self.settings.patience;
        if job.gated.is_some() || impatient {
            most
        } else {
            self.backoff.limit(most)
        }
    }

    fn next_publication(&mut self) -> Option<(JobId, u64)> {
        let (id, job, bytes) = self.first_to_publish()?;
        if self.publishing >= self.publishers(job) {
            return None;
        }
        let now = self.now;
        // What is first waits for the disk, and all others with it.
        let granted = self.disk.as_mut().is_none_or(|disk| disk.take(bytes, now));
        granted.then_some((id, bytes))
    }
}
