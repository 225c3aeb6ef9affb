// SPDX-License-Identifier: Apache-2.0
//! What crabd holds: the kernel's counting, and for whom.
//!
//! Every operation is a few system calls and waits for nobody, so a plain
//! mutex around it is held for microseconds.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crab_bpf::{
    AttendError, CgroupId, Changes, Device, Effects, EffectsError, OpenError, Spared, Tracer,
    WatchError,
};
use crab_config::Inspector;
use thiserror::Error;
use tracing::{error, info, warn};

use crate::cgroups;
use crate::mounts::Mounts;
use crate::registry::{Gone, Registry};
use crate::shim::{Shim, ShimError};

/// Why nothing is counted where that is the admin's wish.
const SWITCHED_OFF: &str = "the inspector is switched off in the configuration";

/// The longest for which a request has system calls counted.
const ATTENTION: Duration = Duration::from_secs(10);

/// Why a request is not met.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// Nothing is counted on this host.
    #[error("effects are not counted: {0}")]
    NotCounting(String),
    /// On its way out; the next crabd will answer.
    #[error("crabd is shutting down")]
    Closing,
    #[error("{0:?} is no sandbox (<namespace>/<id>)")]
    Name(String),
    #[error("sandbox {0} is not watched")]
    Unknown(String),
    #[error(transparent)]
    Shim(#[from] ShimError),
    #[error(transparent)]
    Watch(#[from] WatchError),
    #[error(transparent)]
    Effects(#[from] EffectsError),
    #[error(transparent)]
    Attend(#[from] AttendError),
}

/// What a sandbox did, and in which period of counting.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) period: String,
    pub(crate) effects: Effects,
}

/// For `crab` and the shims.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) programs: &'static str,
    pub(crate) reason: String,
    pub(crate) sandboxes: usize,
    pub(crate) uptime_ms: u64,
    pub(crate) lost: u64,
    /// Cheaper programs that the kernel does not take, and why.
    pub(crate) refused: Vec<String>,
}

#[derive(Debug)]
enum Counting {
    On(Box<Tracer>),
    /// The host cannot, or shall not and has programs of before that do not go: why, in one
    /// line.
    Off(String),
    /// It shall not.
    SwitchedOff,
    Closed,
}

#[derive(Debug)]
pub(crate) struct State {
    counting: Counting,
    registry: Registry<Shim>,
    /// Of the sandboxes, where the programs do not see mounts.
    mounts: HashMap<CgroupId, Mounts>,
    started: Instant,
}

impl State {
    /// A host that cannot trace, or shall not, is served too: shims learn why from it.
    pub(crate) fn open(pin_dir: &Path, inspector: &Inspector) -> Self {
        let started = Instant::now();
        let counting = match inspector.enabled {
            true => Counting::begin(pin_dir, started),
            false => Counting::switched_off(pin_dir),
        };
        let inherited = match &counting {
            Counting::On(tracer) => tracer.watched(),
            _ => Vec::new(),
        };
        Self {
            counting,
            registry: Registry::new(inherited, started),
            mounts: HashMap::new(),
            started,
        }
    }

    pub(crate) fn watch(
        &mut self,
        sandbox: &str,
        cgroup: CgroupId,
        devices: &[Device],
        shim: u32,
        init: u32,
    ) -> Result<Counted, Refusal> {
        self.registry.used(Instant::now());
        if matches!(self.counting, Counting::Closed) {
            return Err(Refusal::Closing);
        }
        if !matches!(sandbox.split_once('/'), Some((ns, id)) if !ns.is_empty() && !id.is_empty())
            || cgroup.0 == 0
        {
            return Err(Refusal::Name(sandbox.to_owned()));
        }
        let held = Shim::hold(shim)?;
        let tracer = match self.counting.tracer() {
            Ok(tracer) => tracer,
            Err(refusal) => {
                // It needs crabd nevertheless, which also says whose capture comes when: one
                // that goes forgets how long agents wait.
                self.registry.claim(sandbox, cgroup, held);
                return Err(refusal);
            }
        };
        tracer.watch(cgroup, devices)?;
        if !tracer.programs().counts_mounts()
            && !self.mounts.get(&cgroup).is_some_and(|m| m.are_of(init))
        {
            self.mounts.insert(cgroup, Mounts::of(init));
            // What a predecessor would have been told, nobody was.
            tracer.mounted(cgroup)?;
        }
        let known = self.registry.cgroup(sandbox) == Some(cgroup);
        if let Some(before) = self.registry.claim(sandbox, cgroup, held) {
            self.give_up(before);
        }
        if !known {
            info!(sandbox, %cgroup, devices = ?devices.iter().map(ToString::to_string).collect::<Vec<_>>(), shim, "watching");
        }
        self.counting.read(cgroup)
    }

    pub(crate) fn unwatch(&mut self, sandbox: &str) {
        self.registry.used(Instant::now());
        // That it is unknown is fine: its shim says so twice, or to a new crabd.
        if let Some(cgroup) = self.registry.drop(sandbox) {
            info!(sandbox, %cgroup, "no longer watching");
            self.give_up(cgroup);
        }
    }

    /// `calls`: for how long system calls are counted, too, but those of `spared`.
    pub(crate) fn effects(
        &mut self,
        sandbox: &str,
        calls: Duration,
        spared: &Spared,
    ) -> Result<Counted, Refusal> {
        self.registry.used(Instant::now());
        let tracer = self.counting.tracer()?;
        let cgroup = self
            .registry
            .cgroup(sandbox)
            .ok_or_else(|| Refusal::Unknown(sandbox.to_owned()))?;
        if calls > Duration::ZERO {
            tracer.attend(cgroup, spared, calls.min(ATTENTION))?;
        }
        if self.mounts.get(&cgroup).is_some_and(Mounts::changed) {
            tracer.mounted(cgroup)?;
        }
        self.counting.read(cgroup)
    }

    /// Which inodes of one of its superblocks changed since a mark.
    pub(crate) fn changes(
        &mut self,
        sandbox: &str,
        device: Device,
        mark: &str,
    ) -> Result<Changes, Refusal> {
        self.registry.used(Instant::now());
        let cgroup = self
            .registry
            .cgroup(sandbox)
            .ok_or_else(|| Refusal::Unknown(sandbox.to_owned()))?;
        Ok(self.counting.tracer()?.changes(cgroup, device, mark)?)
    }

    pub(crate) fn summary(&mut self) -> Summary {
        self.registry.used(Instant::now());
        self.look()
    }

    /// The same for who only looks on, for whom no crabd is kept.
    pub(crate) fn look(&self) -> Summary {
        let mut lost = 0;
        let mut refused = Vec::new();
        let (programs, reason) = match &self.counting {
            Counting::On(tracer) => {
                let named = |(programs, reason): &(_, _)| format!("{programs}: {reason}");
                refused = tracer.refused().iter().map(named).collect();
                match tracer.lost_anywhere() {
                    Ok(count) => {
                        lost = count;
                        (tracer.programs().name(), String::new())
                    }
                    Err(error) => (tracer.programs().name(), error.to_string()),
                }
            }
            Counting::Off(reason) => ("none", reason.clone()),
            Counting::SwitchedOff => ("off", SWITCHED_OFF.to_owned()),
            Counting::Closed => ("none", Refusal::Closing.to_string()),
        };
        Summary {
            programs,
            reason,
            sandboxes: self.registry.len(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            lost,
            refused,
        }
    }

    /// Unwatches the sandboxes that nobody stands for any more.
    pub(crate) fn sweep(&mut self, now: Instant) {
        if let Counting::On(tracer) = &mut self.counting
            && let Err(reason) = tracer.relax()
        {
            error!("{reason}");
        }
        for (cgroup, why) in self.registry.sweep(now, cgroups::populated) {
            match why {
                Gone::ShimDied { sandbox } => {
                    info!(sandbox, %cgroup, "no longer watching: its shim died");
                }
                Gone::Unclaimed => {
                    info!(%cgroup, "no longer watching: no shim renewed it, and it is empty")
                }
            }
            self.give_up(cgroup);
        }
    }

    fn give_up(&mut self, cgroup: CgroupId) {
        self.mounts.remove(&cgroup);
        if let Counting::On(tracer) = &mut self.counting
            && let Err(reason) = tracer.unwatch(cgroup)
        {
            error!("{reason}");
        }
    }

    /// Whether nobody has wanted anything for `limit`.
    pub(crate) fn is_idle(&self, limit: Duration, now: Instant) -> bool {
        self.registry.idle(now).is_some_and(|idle| idle >= limit)
    }

    /// Answers nobody any more, and removes the programs unless a sandbox
    /// needs them to count on until the next crabd.
    pub(crate) fn close(&mut self) {
        let watched = self.registry.len();
        let Counting::On(tracer) = std::mem::replace(&mut self.counting, Counting::Closed) else {
            return;
        };
        if watched > 0 {
            info!(watched, "leaving the programs to count");
        } else if let Err(reason) = tracer.close_and_unpin() {
            error!("{reason}");
        }
    }
}

impl Counting {
    fn begin(pin_dir: &Path, started: Instant) -> Self {
        match Tracer::open(pin_dir) {
            Ok(tracer) => {
                for (programs, reason) in tracer.refused() {
                    info!(%programs, reason, "the kernel does not take");
                }
                info!(
                    programs = %tracer.programs(),
                    instance = tracer.instance(),
                    watched = tracer.watched().len(),
                    took_ms = started.elapsed().as_millis(),
                    "counting"
                );
                Self::On(Box::new(tracer))
            }
            Err(reason) => {
                warn!("not counting: {reason}");
                if let OpenError::Program { source, .. } = &reason {
                    info!("in full: {source:?}");
                }
                Self::Off(reason.to_string())
            }
        }
    }

    /// The programs of an earlier crabd, which would go on for nobody, go.
    fn switched_off(pin_dir: &Path) -> Self {
        match Tracer::remove_left_behind(pin_dir) {
            Ok(removed) => {
                info!(removed, "not counting: {SWITCHED_OFF}");
                Self::SwitchedOff
            }
            Err(left) => {
                let reason = format!("{SWITCHED_OFF}, and earlier programs stay attached: {left}");
                warn!("not counting: {reason}");
                Self::Off(reason)
            }
        }
    }

    fn tracer(&mut self) -> Result<&mut Tracer, Refusal> {
        match self {
            Self::On(tracer) => Ok(tracer),
            Self::Off(reason) => Err(Refusal::NotCounting(reason.clone())),
            Self::SwitchedOff => Err(Refusal::NotCounting(SWITCHED_OFF.to_owned())),
            Self::Closed => Err(Refusal::Closing),
        }
    }

    fn read(&mut self, cgroup: CgroupId) -> Result<Counted, Refusal> {
        let tracer = self.tracer()?;
        Ok(Counted {
            period: tracer.period(cgroup).unwrap_or_default(),
            effects: tracer.effects(cgroup)?,
        })
    }
}
