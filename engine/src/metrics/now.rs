// SPDX-License-Identifier: Apache-2.0
//! What is so at the moment: of the sandboxes that are watched, of the queue and its budgets, of the disk
//! and of crabd itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crab_config::Config;
use crab_schedule::{State, cpu_pressure};
use crab_store::Store;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::process::Process;
use crate::desk::{Desk, PRESSURE};
use crate::service::Service;

type Label = (&'static str, &'static str);
type Number = Gauge<u64, AtomicU64>;
type Real = Gauge<f64, AtomicU64>;

/// The least time between two looks at the sizes of all packs.
const SIZES: Duration = Duration::from_secs(5);
/// Such a look takes one part in so many of the time, at most.
const SIZES_SHARE: u32 = 1000;

/// The metrics, and where they come from.
pub(super) struct Now {
    service: Service,
    desk: Arc<Desk>,
    /// When the sizes of packs are looked at again.
    sizes: Option<Instant>,
    watched: Number,
    lost: Counter,
    jobs: Family<[Label; 1], Number>,
    held: Number,
    ended: Family<[Label; 1], Counter>,
    ungranted: Counter,
    dumps: Number,
    publications: Number,
    staging: Number,
    pressure: Real,
    store: Number,
    started: Real,
    resident: Number,
    cpu: Counter<f64, AtomicU64>,
}

/// A job's state.
const STATES: [State; 3] = [State::Queued, State::Capturing, State::Publishing];

impl Now {
    pub(super) fn new(
        registry: &mut Registry,
        config: &Config,
        service: Service,
        desk: Arc<Desk>,
    ) -> Self {
        let now = Self {
            service,
            desk,
            sizes: None,
            watched: Number::default(),
            lost: Counter::default(),
            jobs: Family::default(),
            held: Number::default(),
            ended: Family::default(),
            ungranted: Counter::default(),
            dumps: Number::default(),
            publications: Number::default(),
            staging: Number::default(),
            pressure: Real::default(),
            store: Number::default(),
            started: Real::default(),
            resident: Number::default(),
            cpu: Counter::default(),
        };
        now.register(registry);
        now.register_limits(registry, config);
        now
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "crab_sandboxes_watched",
            "Sandboxes whose effects are counted",
            self.watched.clone(),
        );
        registry.register(
            "crab_lost_events",
            "Effects that could not be counted for a sandbox, since the programs were loaded",
            self.lost.clone(),
        );
        registry.register(
            "crab_jobs",
            "Captures that have not ended, by how far they are",
            self.jobs.clone(),
        );
        registry.register(
            "crab_jobs_held",
            "Those for which an exec or input is held back",
            self.held.clone(),
        );
        registry.register(
            "crab_jobs_ended",
            "Captures that were scheduled, by how they ended",
            self.ended.clone(),
        );
        registry.register(
            "crab_captures_ungranted",
            "Captures that began without being scheduled",
            self.ungranted.clone(),
        );
        registry.register(
            "crab_dumps",
            "Sandboxes whose processes are being dumped",
            self.dumps.clone(),
        );
        registry.register(
            "crab_publications",
            "Checkpoints that are being stored",
            self.publications.clone(),
        );
        registry.register_with_unit(
            "crab_staging",
            "What is captured and not stored, or may be",
            Unit::Bytes,
            self.staging.clone(),
        );
        registry.register_with_unit(
            "crab_cpu_pressure",
            "Share of the last ten seconds in which a process waited for a processor",
            Unit::Other("ratio".into()),
            self.pressure.clone(),
        );
        registry.register_with_unit(
            "crab_store",
            "What the checkpoints of all sandboxes take of the disk",
            Unit::Bytes,
            self.store.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("crab_build", "This crabd", build);
        registry.register_with_unit(
            "process_start_time",
            "When crabd began, since the Unix epoch",
            Unit::Seconds,
            self.started.clone(),
        );
        registry.register_with_unit(
            "process_resident_memory",
            "What crabd has of the memory",
            Unit::Bytes,
            self.resident.clone(),
        );
        registry.register_with_unit(
            "process_cpu",
            "What crabd has had of the processors",
            Unit::Seconds,
            self.cpu.clone(),
        );
    }

    /// What does not change while crabd lives.
    fn register_limits(&self, registry: &mut Registry, config: &Config) {
        let budgets = self.desk.inner().scheduler.settings().budgets;
        let number = |value: usize| {
            let gauge = Number::default();
            gauge.set(value as u64);
            gauge
        };
        let (help, dumps) = ("How many there may be", number(budgets.dumps));
        registry.register("crab_dumps_limit", help, dumps);
        let publishers = number(budgets.publishers);
        registry.register("crab_publications_limit", help, publishers);
        let bytes = [
            ("crab_staging_limit", budgets.staging_bytes),
            ("crab_store_limit", config.retention.host_bytes()),
        ];
        // One that is not there is no limit.
        for (name, limit) in bytes {
            if let Some(limit) = limit {
                let gauge = Number::default();
                gauge.set(limit);
                registry.register_with_unit(name, "How much there may be", Unit::Bytes, gauge);
            }
        }
        if let Some(rate) = budgets.disk_bytes_per_s {
            let gauge = Number::default();
            gauge.set(rate);
            let help = "How much may begin to be stored in a second";
            let unit = Unit::Other("bytes_per_second".into());
            registry.register_with_unit("crab_disk_limit", help, unit, gauge);
        }
        let programs = self.service.state().look().programs;
        registry.register(
            "crab_programs",
            "Which BPF programs count effects",
            Info::new([("programs", programs)]),
        );
    }

    /// Looks how everything is.
    pub(super) fn look(&mut self, store: Option<&Store>) {
        // Not as a question that keeps crabd from being idle.
        let seen = self.service.state().look();
        self.watched.set(seen.sandboxes as u64);
        set(&self.lost, seen.lost);
        self.queue();
        if let Ok(text) = std::fs::read_to_string(PRESSURE)
            && let Some(pressure) = cpu_pressure(&text)
        {
            self.pressure.set(f64::from(pressure.0) / 10_000.0);
        }
        if let Some(process) = Process::now() {
            self.started.set(process.started_s);
            self.resident.set(process.resident_bytes);
            let bits = process.cpu_s.to_bits();
            self.cpu.inner().store(bits, Ordering::Relaxed);
        }
        let now = Instant::now();
        if let Some(store) = store
            && self.sizes.is_none_or(|next| next <= now)
        {
            if let Ok(sandboxes) = store.sandboxes() {
                self.store.set(store.bytes_of(&sandboxes));
            }
            let took = now.elapsed();
            self.sizes = Some(now + SIZES.max(took * SIZES_SHARE));
        }
    }

    fn queue(&self) {
        let inner = self.desk.inner();
        let scheduler = &inner.scheduler;
        let mut states = [0; STATES.len()];
        let mut held = 0;
        for job in scheduler.jobs() {
            if let Some(at) = STATES.iter().position(|state| *state == job.state) {
                states[at] += 1;
            }
            held += u64::from(job.gated.is_some());
        }
        for (state, number) in STATES.iter().zip(states) {
            let label = ("state", state.as_str());
            self.jobs.get_or_create(&[label]).set(number);
        }
        self.held.set(held);
        let counts = scheduler.counts();
        for (end, count) in [
            ("durable", counts.durable),
            ("void", counts.void),
            ("failed", counts.failed - counts.given_up),
            ("given_up", counts.given_up),
        ] {
            set(&self.ended.get_or_create(&[("end", end)]), count);
        }
        set(&self.ungranted, counts.ungranted);
        let (dumps, publications, staging) = scheduler.in_use();
        self.dumps.set(dumps as u64);
        self.publications.set(publications as u64);
        self.staging.set(staging);
    }
}

/// What was counted elsewhere.
fn set(counter: &Counter, count: u64) {
    counter.inner().store(count, Ordering::Relaxed);
}
