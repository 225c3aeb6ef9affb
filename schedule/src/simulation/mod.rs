// SPDX-License-Identifier: Apache-2.0
//! A host full of agents on a simulated clock, to see what a policy does to them.
//!
//! ```text
//!  exec ends --> [ wait for the model ] --> exec begins --> ...
//!      | nothing, or files: no grant is needed        | held back while its capture
//!      +-- processes: enter --> Capture --> captured   has not ended, or is given up
//!                                    +--> Publish --> durable
//! ```
//! A capture waits for the publication of the one before it, as a shim has it. What a host is slowed
//! down by captures is not in it: that is measured on real ones.

mod recorded;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
    time::Duration,
};

use self::recorded::{Habits, class, exec};
use crate::{
    Budgets, Class, Counts, Decision, End, JobId, Policy, Request, Scheduler, Settings, Stage,
    Time, WHOLE, Waits,
};

/// As the configuration has it if nothing is said.
const GATE_LIMIT: Duration = Duration::from_secs(2);

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// How many sandboxes there are.
    pub sandboxes: u32,
    /// How many turns they have together.
    pub turns: u64,
    /// The same one gives the same agents.
    pub seed: u64,
    /// By how much agents and models are faster than recorded.
    pub faster: f64,
    /// What a disk writes in a second.
    pub disk_bytes_per_s: u64,
    /// The scheduler's.
    pub settings: Settings,
}

impl Setup {
    /// A host of 1,000 sandboxes with the disk and the memory of a server, on which so many dumps
    /// may be made at a time, and 100,000 turns.
    pub fn host(policy: Policy, dumps: usize) -> Self {
        Self {
            sandboxes: 1000,
            turns: 100_000,
            seed: 1,
            faster: 1.5,
            disk_bytes_per_s: 1_000_000_000,
            settings: Settings {
                policy,
                budgets: Budgets {
                    dumps,
                    publishers: 4,
                    disk_bytes_per_s: Some(800_000_000),
                    staging_bytes: Some(4 << 30),
                },
                ..Settings::default()
            },
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How many turns ended.
    pub turns: u64,
    /// For how long each was held back, the shortest first: zero for most.
    pub exposed: Vec<Duration>,
    /// What the scheduler counted.
    pub counts: Counts,
    /// Captures that were left because a publication held the agent back for too long.
    pub given_up_behind: u64,
    /// The longest time that a sandbox asked for a capture until it was granted one.
    pub longest_asking: Duration,
    /// How many asked for longer than the stated bound.
    pub starved: u64,
    /// The most that was in use at a time: dumps, publications, bytes of memory.
    pub most: (usize, usize, u64),
    /// Jobs that had no end when all else had.
    pub endless: usize,
}

impl Outcome {
    /// The delay that so many percent of the turns stay below.
    pub fn exposed_at(&self, percent: usize) -> Duration {
        let last = self.exposed.len().saturating_sub(1);
        let at = (self.exposed.len() * percent / 100).min(last);
        self.exposed.get(at).copied().unwrap_or_default()
    }

    /// All delays together.
    pub fn exposed_in_all(&self) -> Duration {
        self.exposed.iter().sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An exec of this sandbox ends.
    Ends(usize),
    /// Its model has answered.
    Answered(usize),
    /// Files have been copied, without holding anybody back.
    Copied(usize),
    Captured(usize, JobId),
    Published(usize, JobId),
    /// An exec has been held back since then behind a publication.
    HeldLong(usize, Time),
    /// The scheduler wanted to be asked.
    Due,
}

/// Where the newest capture of a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capture {
    None,
    /// The publication before it is not over.
    Behind(Class),
    /// Of files, beside the agent.
    Copies,
    Asked(JobId),
    Granted(JobId),
}

struct Agent {
    name: Arc<str>,
    habits: Habits,
    random: fastrand::Rng,
    waits: Waits,
    waits_since: Time,
    capture: Capture,
    publishes: Option<JobId>,
    /// What the newest capture holds.
    staged: u64,
    /// Since when the next exec is held back.
    held: Option<Time>,
    /// Since when it asks, and for how long it did before for what was given up.
    asks: Option<Time>,
    asked: Duration,
}

struct Host {
    setup: Setup,
    now: Time,
    scheduler: Scheduler,
    agents: Vec<Agent>,
    of_job: BTreeMap<JobId, usize>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    entered: u64,
    due: Option<Time>,
    left: u64,
    outcome: Outcome,
    longest_capture: Duration,
    longest_publication: Duration,
    captured_at: BTreeMap<JobId, Time>,
    askings: Vec<Duration>,
}

/// Runs it all.
pub fn run(setup: &Setup) -> Outcome {
    let mut host = Host::new(*setup);
    while let Some(Reverse((at, _, event))) = host.events.pop() {
        host.now = at;
        host.happens(event);
        host.follow();
    }
    host.finish()
}

impl Host {
    fn new(setup: Setup) -> Self {
        let mut random = fastrand::Rng::with_seed(setup.seed);
        let agents = (0..setup.sandboxes)
            .map(|number| {
                let mut random = random.fork();
                Agent {
                    name: format!("sim/{number}").into(),
                    habits: Habits::drawn(&mut random),
                    random,
                    waits: Waits::default(),
                    waits_since: Time(0),
                    capture: Capture::None,
                    publishes: None,
                    staged: 0,
                    held: None,
                    asks: None,
                    asked: Duration::ZERO,
                }
            })
            .collect::<Vec<_>>();
        let mut host = Self {
            setup,
            now: Time(0),
            scheduler: Scheduler::new(setup.settings, Time(0)),
            of_job: BTreeMap::new(),
            events: BinaryHeap::new(),
            entered: 0,
            due: None,
            left: setup.turns,
            outcome: Outcome {
                turns: 0,
                exposed: Vec::new(),
                counts: Counts::default(),
                given_up_behind: 0,
                longest_asking: Duration::ZERO,
                starved: 0,
                most: (0, 0, 0),
                endless: 0,
            },
            longest_capture: Duration::ZERO,
            longest_publication: Duration::ZERO,
            captured_at: BTreeMap::new(),
            askings: Vec::new(),
            agents,
        };
        for sandbox in 0..host.agents.len() {
            // They do not all begin at once.
            let begins = Duration::from_millis(random.u64(0..5000));
            host.after(begins, Event::Answered(sandbox));
        }
        host
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.entered += 1;
        self.events
            .push(Reverse((self.now + time, self.entered, event)));
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Answered(sandbox) => {
                if matches!(
                    self.agents[sandbox].capture,
                    Capture::None | Capture::Copies
                ) {
                    self.goes_on(sandbox, Duration::ZERO);
                    return;
                }
                self.agents[sandbox].held = Some(self.now);
                let (now, agent) = (self.now, &self.agents[sandbox]);
                if let Capture::Asked(job) | Capture::Granted(job) = agent.capture {
                    self.scheduler.gate(now, job, true);
                } else {
                    if let Some(job) = agent.publishes {
                        self.scheduler.gate(now, job, true);
                    }
                    self.after(GATE_LIMIT, Event::HeldLong(sandbox, now));
                }
            }
            Event::HeldLong(sandbox, since) => {
                let agent = &mut self.agents[sandbox];
                if agent.held == Some(since) && matches!(agent.capture, Capture::Behind(_)) {
                    agent.capture = Capture::None;
                    self.outcome.given_up_behind += 1;
                    self.let_go(sandbox);
                }
            }
            Event::Copied(sandbox) => self.copied(sandbox),
            Event::Ends(sandbox) => self.ends(sandbox),
            Event::Captured(sandbox, job) => {
                let agent = &mut self.agents[sandbox];
                agent.staged = agent.habits.image_bytes;
                agent.capture = Capture::None;
                agent.publishes = Some(job);
                self.scheduler.captured(self.now, job, agent.staged);
                self.captured_at.insert(job, self.now);
                self.let_go(sandbox);
            }
            Event::Published(sandbox, job) => {
                self.scheduler.end(self.now, job, End::Durable);
                self.of_job.remove(&job);
                if let Some(at) = self.captured_at.remove(&job) {
                    self.longest_publication = self.longest_publication.max(self.now.since(at));
                }
                self.agents[sandbox].publishes = None;
                if let Capture::Behind(class) = self.agents[sandbox].capture {
                    self.asks(sandbox, class);
                }
            }
            Event::Due if self.due == Some(self.now) => self.due = None,
            Event::Due => {}
        }
    }

    /// An exec is over.
    fn ends(&mut self, sandbox: usize) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.outcome.turns += 1;
        let agent = &mut self.agents[sandbox];
        agent.waits_since = self.now;
        let wait = agent
            .habits
            .wait(&mut agent.random)
            .div_f64(self.setup.faster);
        let class = class(&mut agent.random);
        agent.waits.note(wait);
        self.after(wait, Event::Answered(sandbox));
        let Some(class) = class else { return };
        let agent = &mut self.agents[sandbox];
        if agent.publishes.is_some() || agent.capture == Capture::Copies {
            agent.capture = Capture::Behind(class);
        } else {
            self.asks(sandbox, class);
        }
    }

    fn asks(&mut self, sandbox: usize, class: Class) {
        let agent = &mut self.agents[sandbox];
        let (took, bytes) = agent.habits.capture(class, &mut agent.random);
        agent.staged = bytes;
        if !class.dumps() {
            // Taken before anybody could say no.
            agent.capture = Capture::Copies;
            self.after(took, Event::Copied(sandbox));
            self.let_go(sandbox);
            return;
        }
        agent.asks = Some(self.now);
        let request = self.request(sandbox, class);
        let job = self.scheduler.enter(self.now, request, Stage::Asks);
        self.of_job.insert(job, sandbox);
        self.agents[sandbox].capture = Capture::Asked(job);
    }

    fn request(&self, sandbox: usize, class: Class) -> Request {
        let agent = &self.agents[sandbox];
        // The wait that goes on is not known yet.
        let known = agent.waits.iter().count().saturating_sub(1);
        Request {
            sandbox: agent.name.clone(),
            turn: self.outcome.turns,
            class,
            bytes: agent.staged,
            weight: WHOLE,
            waits: agent.waits.iter().take(known).collect(),
            waiting: self.now.since(agent.waits_since),
            gated: agent.held.map(|since| self.now.since(since)),
            gate_limit: GATE_LIMIT,
        }
    }

    fn copied(&mut self, sandbox: usize) {
        let request = self.request(sandbox, Class::Files);
        let bytes = request.bytes;
        let job = self
            .scheduler
            .enter(self.now, request, Stage::Captured(bytes));
        self.of_job.insert(job, sandbox);
        self.captured_at.insert(job, self.now);
        let agent = &mut self.agents[sandbox];
        agent.publishes = Some(job);
        if agent.capture == Capture::Copies {
            agent.capture = Capture::None;
        }
    }

    /// A capture does not hold the sandbox any more.
    fn let_go(&mut self, sandbox: usize) {
        if let Some(since) = self.agents[sandbox].held.take() {
            self.goes_on(sandbox, self.now.since(since));
        }
    }

    fn goes_on(&mut self, sandbox: usize, exposed: Duration) {
        self.outcome.exposed.push(exposed);
        let takes = exec(&mut self.agents[sandbox].random).div_f64(self.setup.faster);
        self.after(takes, Event::Ends(sandbox));
    }

    /// What the scheduler makes of it.
    fn follow(&mut self) {
        for decision in self.scheduler.decide(self.now) {
            match decision {
                Decision::Capture(job) => {
                    let sandbox = self.of_job[&job];
                    let agent = &mut self.agents[sandbox];
                    agent.capture = Capture::Granted(job);
                    if let Some(since) = agent.asks.take() {
                        let before = std::mem::take(&mut agent.asked);
                        self.askings.push(before + self.now.since(since));
                    }
                    let (took, _) = agent.habits.capture(Class::Full, &mut agent.random);
                    self.longest_capture = self.longest_capture.max(took);
                    self.after(took, Event::Captured(sandbox, job));
                }
                Decision::Publish(job) => {
                    let sandbox = self.of_job[&job];
                    let bytes = self.agents[sandbox].staged;
                    let per_us = self.setup.disk_bytes_per_s / 1_000_000;
                    let took = Duration::from_micros(5_000 + bytes / per_us.max(1));
                    self.after(took, Event::Published(sandbox, job));
                }
                Decision::GiveUp(job) => {
                    if let Some(sandbox) = self.of_job.remove(&job) {
                        let agent = &mut self.agents[sandbox];
                        agent.capture = Capture::None;
                        if let Some(since) = agent.asks.take() {
                            agent.asked += self.now.since(since);
                        }
                        self.let_go(sandbox);
                    }
                }
            }
        }
        let (dumps, publications, bytes) = self.scheduler.in_use();
        let most = &mut self.outcome.most;
        *most = (
            most.0.max(dumps),
            most.1.max(publications),
            most.2.max(bytes),
        );
        if let Some(at) = self.scheduler.next()
            && self.due.is_none_or(|due| due > at)
        {
            let after = at.since(self.now).max(Duration::from_micros(1));
            self.due = Some(self.now + after);
            self.after(after, Event::Due);
        }
    }

    fn finish(mut self) -> Outcome {
        let bound = self.setup.settings.starvation_bound(
            WHOLE,
            self.agents.len() - 1,
            self.longest_capture,
            self.longest_publication,
        );
        let last = self.now;
        let still = self.agents.iter().map(|agent| {
            let now = agent.asks.map(|since| last.since(since));
            agent.asked + now.unwrap_or_default()
        });
        self.askings.extend(still);
        self.outcome.starved = self.askings.iter().filter(|it| **it > bound).count() as u64;
        self.outcome.longest_asking = self.askings.iter().copied().max().unwrap_or_default();
        self.outcome.endless = self.scheduler.jobs().count();
        self.outcome.counts = self.scheduler.counts();
        self.outcome.exposed.sort_unstable();
        self.outcome
    }
}
