// SPDX-License-Identifier: Apache-2.0
//! What holds whatever happens: hosts whose sandboxes ask, are held back, take long, fail or
//! are killed, in any order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crab_schedule::{
    Budgets, Class, Decision, End, Hundredths, JobId, Policy, Request, Scheduler, Settings, Stage,
    State, Time, WHOLE,
};
use proptest::{collection::vec, prelude::*};

/// The longest capture and publication of these hosts.
const CAPTURE: Duration = Duration::from_millis(200);
const PUBLISH: Duration = Duration::from_millis(100);
const LIMIT: u64 = 1_000_000;
const RATE: u64 = 2_000_000;
const LARGEST: u64 = 3_000_000;

#[derive(Debug, Clone)]
enum Act {
    /// A sandbox without a job asks.
    Ask {
        sandbox: usize,
        class: Class,
        bytes: u64,
        held: bool,
    },
    /// Its agent waits for the job that it has.
    Hold(usize),
    /// Its job fails where it is.
    Fail(usize),
    Pressure(u32),
    Pass(Duration),
}

fn act(sandboxes: usize) -> impl Strategy<Value = Act> {
    let class = prop_oneof![
        Just(Class::Files),
        Just(Class::Processes),
        Just(Class::Full)
    ];
    prop_oneof![
        6 => (0..sandboxes, class, 0..LARGEST, any::<bool>())
            .prop_map(|(sandbox, class, bytes, held)| Act::Ask { sandbox, class, bytes, held }),
        2 => (0..sandboxes).prop_map(Act::Hold),
        1 => (0..sandboxes).prop_map(Act::Fail),
        1 => (0..10_000u32).prop_map(Act::Pressure),
        6 => (0..400_000u64).prop_map(|us| Act::Pass(Duration::from_micros(us))),
    ]
}

fn settings(policy: Policy, dumps: usize, disk: bool) -> Settings {
    Settings {
        policy,
        budgets: Budgets {
            dumps,
            publishers: 2,
            disk_bytes_per_s: disk.then_some(RATE),
            staging_bytes: Some(LIMIT),
        },
        patience: Duration::from_secs(1),
        ..Settings::default()
    }
}

/// A host that does what it is told, and checks what it is told.
struct Host {
    scheduler: Scheduler,
    now: Time,
    /// By when what goes on is over.
    busy: BTreeMap<JobId, (Time, State)>,
    jobs: BTreeMap<JobId, (usize, u64)>,
    of: BTreeMap<usize, JobId>,
    weights: Vec<u32>,
    /// Since when a sandbox asks, and for how long it did for what was given up.
    asks: BTreeMap<usize, (Duration, Time)>,
    longest: BTreeMap<usize, Duration>,
    /// What was granted to the disk, and when.
    written: Vec<(Time, u64)>,
    told: Vec<(Time, Decision)>,
    ended: BTreeSet<JobId>,
    random: fastrand::Rng,
}

impl Host {
    fn new(settings: Settings, weights: Vec<u32>) -> Self {
        Self {
            scheduler: Scheduler::new(settings, Time(0)),
            now: Time(0),
            busy: BTreeMap::new(),
            jobs: BTreeMap::new(),
            of: BTreeMap::new(),
            weights,
            asks: BTreeMap::new(),
            longest: BTreeMap::new(),
            written: Vec::new(),
            told: Vec::new(),
            ended: BTreeSet::new(),
            random: fastrand::Rng::with_seed(7),
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Ask {
                sandbox,
                class,
                bytes,
                held,
            } => self.ask(sandbox, class, bytes, held),
            Act::Hold(sandbox) => {
                if let Some(job) = self.of.get(&sandbox) {
                    self.scheduler.gate(self.now, *job, true);
                }
            }
            Act::Fail(sandbox) => {
                if let Some(job) = self.of.get(&sandbox).copied() {
                    self.end(job, End::Failed("it broke".into()));
                }
            }
            Act::Pressure(pressure) => self.scheduler.pressure(Hundredths(pressure)),
            Act::Pass(time) => {
                self.pass(time);
                return;
            }
        }
        self.follow();
    }

    fn ask(&mut self, sandbox: usize, class: Class, bytes: u64, held: bool) {
        if self.of.contains_key(&sandbox) {
            return;
        }
        let request = Request {
            sandbox: Arc::from(format!("s/{sandbox}")),
            turn: 1,
            class,
            bytes,
            weight: self.weights[sandbox],
            waits: [1, 2].map(Duration::from_secs).into_iter().collect(),
            waiting: Duration::ZERO,
            gated: held.then_some(Duration::ZERO),
            gate_limit: Duration::from_secs(2),
        };
        let job = self.scheduler.enter(self.now, request, Stage::Asks);
        self.jobs.insert(job, (sandbox, bytes));
        self.of.insert(sandbox, job);
        let asks = self.asks.entry(sandbox).or_default();
        asks.1 = self.now;
    }

    fn end(&mut self, job: JobId, end: End) {
        let gave_up = end == End::GivenUp;
        self.scheduler.end(self.now, job, end);
        self.busy.remove(&job);
        let (sandbox, _) = self.jobs[&job];
        self.of.remove(&sandbox);
        assert!(self.ended.insert(job), "{job:?} ended twice");
        if let Some(asks) = self.asks.get_mut(&sandbox) {
            asks.0 += self.now.since(asks.1);
            if !gave_up {
                self.asks.remove(&sandbox);
            }
        }
    }

    /// Lets time pass, with all that happens meanwhile.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let over = self.busy.values().map(|(at, _)| *at).min();
            let due = self
                .scheduler
                .next()
                .map(|at| at.max(self.now + Duration::from_micros(1)));
            match over.into_iter().chain(due).min() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            let now = self.now;
            let over = |(job, (at, state)): (&JobId, &(Time, State))| {
                (*at <= now).then_some((*job, *state))
            };
            let over: Vec<_> = self.busy.iter().filter_map(over).collect();
            for (job, state) in over {
                self.busy.remove(&job);
                match state {
                    State::Capturing => {
                        let (_, bytes) = self.jobs[&job];
                        self.scheduler.captured(self.now, job, bytes);
                    }
                    _ => self.end(job, End::Durable),
                }
            }
            self.follow();
        }
        self.now = until;
        self.follow();
    }

    fn follow(&mut self) {
        for decision in self.scheduler.decide(self.now) {
            self.told.push((self.now, decision));
            match decision {
                Decision::Capture(job) => {
                    let (sandbox, _) = self.jobs[&job];
                    if let Some((before, since)) = self.asks.remove(&sandbox) {
                        let asked = before + self.now.since(since);
                        let longest = self.longest.entry(sandbox).or_default();
                        *longest = asked.max(*longest);
                    }
                    let takes = CAPTURE.mul_f64(self.random.f64());
                    self.busy.insert(job, (self.now + takes, State::Capturing));
                }
                Decision::Publish(job) => {
                    let (_, bytes) = self.jobs[&job];
                    self.written.push((self.now, bytes));
                    let takes = PUBLISH.mul_f64(self.random.f64());
                    self.busy.insert(job, (self.now + takes, State::Publishing));
                }
                Decision::GiveUp(job) => self.end(job, End::GivenUp),
            }
        }
        let settings = self.scheduler.settings();
        let (dumps, publications, bytes) = self.scheduler.in_use();
        assert!(dumps <= settings.budgets.dumps);
        assert!(publications <= settings.budgets.publishers);
        assert!(bytes <= LIMIT, "{bytes} bytes are staged");
    }

    fn finish(&mut self) {
        self.pass(Duration::from_secs(3600));
        assert_eq!(self.scheduler.jobs().count(), 0, "a job has no end");
        assert_eq!(self.ended.len(), self.jobs.len());
        assert_eq!(self.scheduler.in_use(), (0, 0, 0));
        let counts = self.scheduler.counts();
        let ended = counts.durable + counts.void + counts.failed;
        assert_eq!(ended, self.jobs.len() as u64);
    }

    /// In no time more than comes in, beside what was saved up and the excess of one.
    fn assert_written_at_rate(&self) {
        for (first, (from, _)) in self.written.iter().enumerate() {
            let mut sum = 0;
            for (to, bytes) in &self.written[first..] {
                sum += bytes;
                let came = RATE as f64 * (to.since(*from).as_secs_f64() + 1.0);
                assert!(
                    sum as f64 <= came + LARGEST as f64 + 1.0,
                    "{sum} in {from:?}..{to:?}"
                );
            }
        }
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    (0..Policy::ALL.len()).prop_map(|at| Policy::ALL[at])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_budget_is_exceeded_and_every_job_ends(
        policy in policies(),
        dumps in 1..4usize,
        acts in vec(act(8), 1..150),
    ) {
        let mut host = Host::new(settings(policy, dumps, true), vec![WHOLE; 8]);
        acts.iter().for_each(|act| host.act(act));
        host.finish();
        host.assert_written_at_rate();
    }

    #[test]
    fn the_same_events_give_the_same_decisions(
        policy in policies(),
        acts in vec(act(6), 1..100),
    ) {
        let told = || {
            let mut host = Host::new(settings(policy, 1, true), vec![WHOLE; 6]);
            acts.iter().for_each(|act| host.act(act));
            host.finish();
            host.told
        };
        prop_assert_eq!(told(), told());
    }

    /// All but one ask as greedily as they can, small captures that agents wait for; the one
    /// asks for much memory, and nobody waits for it.
    #[test]
    fn no_sandbox_starves_beyond_the_bound(
        predictive in any::<bool>(),
        dumps in 1..4usize,
        weight in 25..400u32,
        others in 1..8usize,
        bytes in 0..LARGEST,
        acts in vec(act(8), 100..400),
    ) {
        let policy = if predictive { Policy::Predictive } else { Policy::Reactive };
        let mut weights = vec![WHOLE; 8];
        weights[0] = weight;
        let mut host = Host::new(settings(policy, dumps, false), weights);
        for act in &acts {
            host.ask(0, Class::Full, bytes, false);
            for sandbox in 1..=others {
                host.ask(sandbox, Class::Full, LIMIT / 3, true);
            }
            host.act(act);
        }
        host.finish();
        let settings = *host.scheduler.settings();
        // Publications wait for each other, two at a time.
        let publish = PUBLISH * 8;
        for (sandbox, asked) in &host.longest {
            let weight = host.weights[*sandbox];
            let bound = settings.starvation_bound(weight, 7, CAPTURE, publish);
            prop_assert!(*asked <= bound, "{} asked for {:?}, beyond {:?}", sandbox, asked, bound);
        }
    }
}
