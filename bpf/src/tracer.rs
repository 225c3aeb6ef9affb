// SPDX-License-Identifier: Apache-2.0
//! Which sandboxes are watched, and what they did.
//!
//! Owns the maps' contents: it is their only writer in user space. The list of
//! watches lives in the kernel too (`members`), so a tracer that takes over
//! knows them, and their counters go on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use aya::maps::{Array, HashMap, MapData, MapError};
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::changes::{Changes, Log, Words};
use crate::counters::{
    Counters, Effects, LOST, MOUNTS, Member, MemberWords, Spared, SparedWords, add,
};
use crate::ftrace;
use crate::ids::{CgroupId, Device};
use crate::misses::Misses;
use crate::pins::{self, CloseError, OpenError, Pins};
use crate::refusal::one_line;
use crate::sets::Programs;

/// How many superblocks one sandbox may call its own (`CRAB_MAX_DEVICES`).
pub const MAX_DEVICES: usize = 32;

/// What `patches` counts (`enum crab_patch`).
const BEGUN: u32 = 0;
const ENDED: u32 = 1;

/// Only if the key is new (BPF_NOEXIST).
const NO_EXIST: u64 = 1;

/// Why a sandbox is not watched.
#[derive(Debug, Error)]
pub enum WatchError {
    /// More superblocks than the kernel side has room for.
    #[error("cgroup {cgroup} has {count} devices, more than {MAX_DEVICES}")]
    TooManyDevices {
        /// Whose.
        cgroup: CgroupId,
        /// How many.
        count: usize,
    },
    /// A map refused; it is full, most likely.
    #[error("{verb} for cgroup {cgroup}: {}", one_line(.source))]
    Map {
        /// What was tried.
        verb: &'static str,
        /// For whom.
        cgroup: CgroupId,
        /// What the kernel said.
        source: MapError,
    },
}

/// Why there are no counts.
#[derive(Debug, Error)]
pub enum EffectsError {
    /// Nobody asked for this cgroup to be watched.
    #[error("cgroup {cgroup} is not watched")]
    NotWatched {
        /// Which.
        cgroup: CgroupId,
    },
    /// A map refused.
    #[error("read the counters of cgroup {cgroup}: {}", one_line(.source))]
    Map {
        /// Whose.
        cgroup: CgroupId,
        /// What the kernel said.
        source: MapError,
    },
    /// What was lost is not known.
    #[error(transparent)]
    Lost(#[from] LostError),
}

/// Whether system calls are counted could not be set.
#[derive(Debug, Error)]
pub enum AttendError {
    /// A map refused.
    #[error("count system calls: {}", one_line(.0))]
    Map(#[from] MapError),
    /// The program could not be attached.
    #[error("count system calls: {0}")]
    Attach(#[from] OpenError),
    /// Or not detached.
    #[error("count system calls no longer: {0}")]
    Detach(#[from] io::Error),
}

/// How many events were lost could not be read.
#[derive(Debug, Error)]
pub enum LostError {
    /// A map refused.
    #[error("read the count of lost events: {}", one_line(.0))]
    Map(#[from] MapError),
    /// The kernel's own count of events without a program could not be read.
    #[error("read the count of missed events: {0}")]
    Misses(#[from] io::Error),
}

/// The attached programs and their maps.
///
/// Dropping it leaves the programs counting, for the next one to take over.
pub struct Tracer {
    pins: Pins,
    sandboxes: HashMap<MapData, u64, Counters>,
    devices: HashMap<MapData, u64, Counters>,
    members: HashMap<MapData, u64, MemberWords>,
    lost: Array<MapData, u64>,
    attention: Array<MapData, u64>,
    spared: HashMap<MapData, u64, SparedWords>,
    patches: Array<MapData, u64>,
    /// Where the set has it.
    changes: Option<HashMap<MapData, u64, Words>>,
    misses: Vec<Misses>,
    /// What `members` holds.
    watched: BTreeMap<CgroupId, Member>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer")
            .field("instance", &self.instance())
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

impl Tracer {
    /// Takes over the programs pinned below `pin_dir`, if they are this
    /// build's; otherwise loads, attaches and pins them: the cheapest set that the
    /// kernel takes. Mounts a BPF file system there if it is on none.
    ///
    /// # Errors
    /// When the host cannot trace, another tracer owns `pin_dir`, or the
    /// kernel refuses a step.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Self::open_first_of(pin_dir, &Programs::BY_COST)
    }

    /// The same with the first of these sets that the kernel takes.
    ///
    /// # Errors
    /// As [`Tracer::open`].
    pub fn open_first_of(pin_dir: &Path, choice: &[Programs]) -> Result<Self, OpenError> {
        fn of<T: TryFrom<aya::maps::Map, Error = MapError>>(
            map: aya::maps::Map,
            name: &'static str,
        ) -> Result<T, OpenError> {
            T::try_from(map).map_err(|source| OpenError::Map { name, source })
        }
        fn typed<T: TryFrom<aya::maps::Map, Error = MapError>>(
            pins: &Pins,
            name: &'static str,
        ) -> Result<T, OpenError> {
            of(pins.map(name)?, name)
        }
        let pins = Pins::open(pin_dir, choice)?;
        let misses: Result<Vec<_>, _> = pins.may_miss().iter().map(|pin| Misses::of(pin)).collect();
        let mut tracer = Self {
            misses: misses.map_err(OpenError::Misses)?,
            sandboxes: typed(&pins, pins::SANDBOXES)?,
            devices: typed(&pins, pins::DEVICES)?,
            members: typed(&pins, pins::MEMBERS)?,
            lost: typed(&pins, pins::LOST_ANYWHERE)?,
            attention: typed(&pins, pins::ATTENTION)?,
            spared: typed(&pins, pins::SPARED)?,
            patches: typed(&pins, pins::PATCHES)?,
            changes: match pins.own_map(pins::CHANGES) {
                Some(map) => Some(of(map?, pins::CHANGES)?),
                None => None,
            },
            watched: BTreeMap::new(),
            pins,
        };
        tracer.recall().map_err(|source| OpenError::Map {
            name: pins::MEMBERS,
            source,
        })?;
        Ok(tracer)
    }

    /// For a host where nothing shall be counted: detaches what earlier tracers have left pinned
    /// below `pin_dir`, and removes it. Gives how many sets of programs that were.
    ///
    /// # Errors
    /// When a tracer owns `pin_dir`, or a pin cannot be removed.
    pub fn remove_left_behind(pin_dir: &Path) -> Result<usize, OpenError> {
        pins::clear(pin_dir)
    }

    /// Which set counts.
    #[must_use]
    pub fn programs(&self) -> Programs {
        self.pins.programs()
    }

    /// The cheaper sets that the kernel does not take, each with the reason in one line.
    #[must_use]
    pub fn refused(&self) -> &[(Programs, String)] {
        self.pins.refused()
    }

    /// Names this load of the programs: another one, another name.
    #[must_use]
    pub fn instance(&self) -> &str {
        self.pins.instance()
    }

    /// Names the period for which `cgroup` was counted without interruption:
    /// counters are comparable only within one. It differs between loads of
    /// the programs, between watches of the same cgroup with a gap between, and where
    /// the kernel may have let calls under way pass programs by. A call that began in
    /// an earlier period may end in this one uncounted.
    #[must_use]
    pub fn period(&self, cgroup: CgroupId) -> Option<String> {
        let member = self.watched.get(&cgroup)?;
        let patched = match (self.patches.get(&BEGUN, 0), self.patches.get(&ENDED, 0)) {
            (Ok(begun), Ok(ended)) if begun == ended && !self.is_switched_off() => {
                format!("{ended:x}")
            }
            // It goes on, or nothing is counted, for all we know: until that is over, no two
            // readings are of the same period.
            _ => format!("at {:x}", now(ClockId::Boottime)),
        };
        Some(format!("{}.{:x}.{patched}", self.instance(), member.period))
    }

    /// Whether the programs are attached and not run.
    fn is_switched_off(&self) -> bool {
        self.programs().set().is_at_functions() && ftrace::is_off()
    }

    /// The cgroups that are watched, those of an earlier tracer included.
    #[must_use]
    pub fn watched(&self) -> Vec<CgroupId> {
        self.watched.keys().copied().collect()
    }

    /// Counts for `cgroup` and its descendants, and what anyone does on
    /// `devices`. For one that is watched already its counters go on, and
    /// `devices` replaces the list it had.
    ///
    /// # Errors
    /// When there are too many devices, or the maps are full. A watch that was
    /// there is then as it was.
    pub fn watch(&mut self, cgroup: CgroupId, devices: &[Device]) -> Result<(), WatchError> {
        let wanted: BTreeSet<Device> = devices.iter().copied().filter(|d| d.0 != 0).collect();
        if wanted.len() > MAX_DEVICES {
            return Err(WatchError::TooManyDevices {
                cgroup,
                count: wanted.len(),
            });
        }
        let had = self.watched.get(&cgroup).cloned();
        let done = self
            .count_devices(&wanted)
            .and_then(|()| self.enlist(cgroup, &wanted));
        if let Err((verb, source)) = done {
            self.release(&wanted);
            if had.is_none() {
                let _ = self.sandboxes.remove(&cgroup.0);
            }
            return Err(WatchError::Map {
                verb,
                cgroup,
                source,
            });
        }
        if let Some(had) = had {
            self.release(&had.devices.into_iter().collect());
        }
        Ok(())
    }

    /// Stops counting for `cgroup`. False if it was not watched.
    ///
    /// # Errors
    /// When the maps refuse.
    pub fn unwatch(&mut self, cgroup: CgroupId) -> Result<bool, WatchError> {
        let Some(member) = self.watched.remove(&cgroup) else {
            return Ok(false);
        };
        // In this order: what is left by a death halfway, recall() completes.
        let removed = absent_is_fine(self.members.remove(&cgroup.0))
            .and_then(|()| absent_is_fine(self.sandboxes.remove(&cgroup.0)))
            .and_then(|()| absent_is_fine(self.spared.remove(&cgroup.0)));
        self.release(&member.devices.into_iter().collect());
        removed.map(|()| true).map_err(|source| WatchError::Map {
            verb: "remove the counters",
            cgroup,
            source,
        })
    }

    /// What the sandbox in `cgroup` did since its watch began: a handful of
    /// map lookups, a few microseconds.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn effects(&self, cgroup: CgroupId) -> Result<Effects, EffectsError> {
        let member = self
            .watched
            .get(&cgroup)
            .ok_or(EffectsError::NotWatched { cgroup })?;
        let mut sum = self
            .sum(cgroup, member)
            .map_err(|source| EffectsError::Map { cgroup, source })?;
        sum[LOST] = sum[LOST].saturating_add(self.lost_anywhere()?);
        Ok(Effects::from_words(&sum))
    }

    /// Which inodes in the upper directory of an overlay changed since an earlier answer, of
    /// which `mark` is, and a mark for the next question. What [`Tracer::effects`] told
    /// before is in it. To be asked first, with no mark, of whoever has looked at nothing yet:
    /// from then on it is noted down.
    ///
    /// It is not told where the set of programs cannot tell, the superblock is none of this
    /// cgroup's, the mark is too old or of another [`Tracer::period`], or an event was lost. A tmpfs
    /// has no such log: there an event comes before its change.
    ///
    /// # Errors
    /// When it is not watched, or a map refuses.
    pub fn changes(
        &mut self,
        cgroup: CgroupId,
        device: Device,
        mark: &str,
    ) -> Result<Changes, EffectsError> {
        let lost = self.effects(cgroup)?.lost;
        let member = self.watched.get(&cgroup);
        if !member.is_some_and(|member| member.devices.contains(&device)) {
            return Ok(Changes::default());
        }
        let Some(map) = &mut self.changes else {
            return Ok(Changes::default());
        };
        let log = Log::read(map, device, now(ClockId::Boottime))
            .map_err(|source| EffectsError::Map { cgroup, source })?;
        let (Some(log), Some(period)) = (log, self.period(cgroup)) else {
            return Ok(Changes::default());
        };
        if self.effects(cgroup)?.lost != lost {
            return Ok(Changes::default());
        }
        Ok(log.since(mark, &period, lost))
    }

    /// Counts a mount for `cgroup`, where the programs do not
    /// ([`Programs::counts_mounts`]).
    ///
    /// # Errors
    /// When it is not watched, or a map refuses.
    pub fn mounted(&mut self, cgroup: CgroupId) -> Result<(), EffectsError> {
        let member = self
            .watched
            .get_mut(&cgroup)
            .ok_or(EffectsError::NotWatched { cgroup })?;
        member.base[MOUNTS] = member.base[MOUNTS].saturating_add(1);
        self.members
            .insert(cgroup.0, member.to_words(), 0)
            .map_err(|source| EffectsError::Map { cgroup, source })
    }

    /// Events since the programs were loaded that could not be told whose they were;
    /// each counts as [`Effects::lost`] of every sandbox.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn lost_anywhere(&self) -> Result<u64, LostError> {
        let mut lost = self.lost.get(&0, 0)?;
        for program in &self.misses {
            lost = lost.saturating_add(program.count()?);
        }
        Ok(lost)
    }

    /// Counts completed system calls too ([`Effects::calls`]), in every sandbox, from
    /// now on and for so long; but not those of the processes that are `spared` in
    /// `cgroup`. It costs each call on the host a look at the clock, and each of a
    /// sandbox's another count. One that an earlier tracer began goes on.
    ///
    /// # Errors
    /// When a map refuses.
    pub fn attend(
        &mut self,
        cgroup: CgroupId,
        spared: &Spared,
        duration: Duration,
    ) -> Result<(), AttendError> {
        self.pins.attend()?;
        self.spared.insert(cgroup.0, spared.to_words(), 0)?;
        let until = now(ClockId::Monotonic) + duration.as_nanos() as u64;
        if self.attention.get(&0, 0)? < until {
            self.attention.set(0, until, 0)?;
        }
        Ok(())
    }

    /// Spares the host the looks at the clock once nobody wants them any more.
    ///
    /// # Errors
    /// When the map refuses.
    pub fn relax(&mut self) -> Result<(), AttendError> {
        let until = self.attention.get(&0, 0)?;
        if until != 0 && until < now(ClockId::Monotonic) {
            self.pins.relax()?;
            self.attention.set(0, 0, 0)?;
        }
        Ok(())
    }

    /// Detaches everything and removes every pin; a BPF file system that
    /// [`Tracer::open`] mounted at the pin directory itself goes too.
    ///
    /// # Errors
    /// When a pin cannot be removed. Programs are detached first.
    pub fn close_and_unpin(self) -> Result<(), CloseError> {
        let Self { pins, .. } = self;
        pins.close()
    }

    fn sum(&self, cgroup: CgroupId, member: &Member) -> Result<Counters, MapError> {
        let mut sum = member.base;
        add(&mut sum, &self.sandboxes.get(&cgroup.0, 0)?);
        for device in &member.devices {
            add(&mut sum, &self.devices.get(&device.0, 0)?);
        }
        Ok(sum)
    }

    fn count_devices(&mut self, wanted: &BTreeSet<Device>) -> Result<(), (&'static str, MapError)> {
        for device in wanted {
            exists_is_fine(self.devices.insert(device.0, Counters::default(), NO_EXIST))
                .map_err(|source| ("add a device", source))?;
        }
        Ok(())
    }

    fn enlist(
        &mut self,
        cgroup: CgroupId,
        wanted: &BTreeSet<Device>,
    ) -> Result<(), (&'static str, MapError)> {
        exists_is_fine(
            self.sandboxes
                .insert(cgroup.0, Counters::default(), NO_EXIST),
        )
        .map_err(|source| ("add counters", source))?;
        let mut member = self
            .watched
            .get(&cgroup)
            .cloned()
            .unwrap_or_else(|| Member {
                // Unique for a cgroup: nothing can be unwatched and watched in the
                // same nanosecond.
                period: now(ClockId::Boottime),
                ..Member::default()
            });
        for gone in member.devices.iter().filter(|d| !wanted.contains(d)) {
            let counted = self
                .devices
                .get(&gone.0, 0)
                .map_err(|source| ("read a device's counters", source))?;
            add(&mut member.base, &counted);
        }
        member.devices = wanted.iter().copied().collect();
        self.members
            .insert(cgroup.0, member.to_words(), 0)
            .map_err(|source| ("note the devices", source))?;
        self.watched.insert(cgroup, member);
        Ok(())
    }

    /// Drops those of `devices` that no watched sandbox has any more. One that
    /// cannot be dropped is swept by the next tracer, and harms nobody.
    fn release(&mut self, devices: &BTreeSet<Device>) {
        for device in devices {
            if !self.watched.values().any(|m| m.devices.contains(device)) {
                let _ = self.devices.remove(&device.0);
                if let Some(changes) = &mut self.changes {
                    let _ = changes.remove(&device.0);
                }
            }
        }
    }

    /// Learns what an earlier tracer watched, and completes what its death
    /// left half done.
    fn recall(&mut self) -> Result<(), MapError> {
        let mut half_done = Vec::new();
        for entry in self.members.iter() {
            let (cgroup, words) = entry?;
            self.watched
                .insert(CgroupId(cgroup), Member::from_words(&words));
        }
        for cgroup in self.sandboxes.keys() {
            let cgroup = cgroup?;
            if !self.watched.contains_key(&CgroupId(cgroup)) {
                half_done.push(cgroup);
            }
        }
        for cgroup in half_done {
            absent_is_fine(self.sandboxes.remove(&cgroup))?;
        }
        let spared: Vec<u64> = self.spared.keys().collect::<Result<_, _>>()?;
        for cgroup in spared {
            if !self.watched.contains_key(&CgroupId(cgroup)) {
                absent_is_fine(self.spared.remove(&cgroup))?;
            }
        }
        if let Some(changes) = &mut self.changes {
            for device in changes.keys().collect::<Result<Vec<_>, _>>()? {
                if self.devices.get(&device, 0).is_err() {
                    absent_is_fine(changes.remove(&device))?;
                }
            }
        }
        // The other way round (members without counters) has no meaning.
        let sandboxes = &self.sandboxes;
        self.watched
            .retain(|cgroup, _| sandboxes.get(&cgroup.0, 0).is_ok());
        let devices = self
            .devices
            .keys()
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .map(Device)
            .collect();
        self.release(&devices);
        Ok(())
    }
}

fn now(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn exists_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::AlreadyExists =>
        {
            Ok(())
        }
        other => other,
    }
}

fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        other => other,
    }
}
