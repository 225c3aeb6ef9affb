// SPDX-License-Identifier: Apache-2.0
//! The programs and maps in the kernel, held by their pins.
//!
//! ```text
//! <pin dir>/                                    flocked by the one owner
//!   set-<hash of the object>-<instance>/        complete, by rename
//!     sandboxes devices members ...             maps
//!     prog_sched_process_... ...                programs
//!     link_sched_process_... ...                attached programs
//!   new-<instance>/                             being built; a leftover is swept
//! ```
//!
//! The cheapest set that the kernel takes is used. One of the same object is taken over
//! as it is, so counting goes on over a daemon's death. Any other is replaced, after its
//! successor is attached.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError};
use aya::pin::PinError;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{BtfError, EbpfError};
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

use crate::bpffs::{self, MountError};
use crate::load;
use crate::memory;
use crate::probe::{Unsupported, probe};
use crate::refusal::one_line;
use crate::sets::{Function, Programs, Set};

pub(crate) const SANDBOXES: &str = "sandboxes";
pub(crate) const DEVICES: &str = "devices";
pub(crate) const MEMBERS: &str = "members";
pub(crate) const LOST_ANYWHERE: &str = "lost_anywhere";
pub(crate) const ATTENTION: &str = "attention";
pub(crate) const SPARED: &str = "spared";
pub(crate) const PATCHES: &str = "patches";
/// Of a set that can tell which inodes change.
pub(crate) const CHANGES: &str = "changes";
/// Of every set.
pub(crate) const MAPS: [&str; 7] = [
    SANDBOXES,
    DEVICES,
    MEMBERS,
    LOST_ANYWHERE,
    ATTENTION,
    SPARED,
    PATCHES,
];

const SET: &str = "set-";
const NEW: &str = "new-";

/// Why the tracer could not be brought up.
#[derive(Debug, Error)]
pub enum OpenError {
    /// This host cannot trace.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// There is no place for pins.
    #[error(transparent)]
    Bpffs(#[from] MountError),
    /// Another tracer owns the directory.
    #[error("{path} is in use by another tracer")]
    Busy {
        /// The pin directory.
        path: PathBuf,
    },
    /// The pin directory did not do as told.
    #[error("{verb} {path}: {source}")]
    Directory {
        /// What was tried.
        verb: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's type information cannot be read.
    #[error("read the kernel's BTF: {}", one_line(.0))]
    Btf(#[from] BtfError),
    /// The object was refused.
    #[error("load the programs: {}", one_line(.0))]
    Load(#[from] EbpfError),
    /// A program was refused.
    #[error("{verb} {name}: {}", one_line(.source))]
    Program {
        /// `load` or `attach`.
        verb: &'static str,
        /// Program and tracepoint.
        name: &'static str,
        /// What the kernel said.
        source: ProgramError,
    },
    /// The object lacks what this loader looks for in it.
    #[error("the object holds no {name}")]
    Missing {
        /// Program or map.
        name: &'static str,
    },
    /// What the kernel has cannot be told.
    #[error("look for the kernel's functions: {0}")]
    Symbols(#[source] io::Error),
    /// Programs at functions would be attached and never run.
    #[error("kernel.ftrace_enabled is 0: no function of the kernel calls a program")]
    FtraceOff,
    /// Nothing was to be tried.
    #[error("no set of programs was asked for")]
    NoPrograms,
    /// A pin was refused.
    #[error("pin {path}: {}", one_line(.source))]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: PinError,
    },
    /// What the kernel dropped cannot be counted.
    #[error("read what a program missed: {}", one_line(.0))]
    Misses(ProgramError),
    /// A map is not what it should be.
    #[error("open the map {name}: {}", one_line(.source))]
    Map {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        source: MapError,
    },
}

impl OpenError {
    pub(crate) fn program(verb: &'static str, name: &'static str, source: ProgramError) -> Self {
        Self::Program { verb, name, source }
    }

    /// Whether the kernel does not take these programs, while it may take others.
    fn refuses_programs(&self) -> bool {
        matches!(
            self,
            Self::Load(_)
                | Self::Program { .. }
                | Self::Missing { .. }
                | Self::Symbols(_)
                | Self::FtraceOff
        )
    }
}

/// Why the pins could not all be removed.
#[derive(Debug, Error)]
#[error("unpin {path}: {source}")]
pub struct CloseError {
    path: PathBuf,
    source: io::Error,
}

/// A complete set of pins, owned.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    set: PathBuf,
    instance: String,
    programs: Programs,
    /// Cheaper sets, and why the kernel does not take them.
    refused: Vec<(Programs, String)>,
    /// Keeps other tracers out.
    lock: File,
}

impl Pins {
    /// Takes over the set that is there, or makes one: the first of these that the
    /// kernel takes.
    pub(crate) fn open(directory: &Path, choice: &[Programs]) -> Result<Self, OpenError> {
        probe()?;
        bpffs::ensure(directory)?;
        let lock = lock(directory)?;
        let found = list(directory).map_err(|source| at("list", directory, source))?;
        let mut refused = Vec::new();
        let mut choice = choice.iter().copied().peekable();
        let (programs, set, instance) = loop {
            let programs = choice.next().ok_or(OpenError::NoPrograms)?;
            match take_over_or_build(directory, &programs.set(), &found) {
                Ok((set, instance)) => break (programs, set, instance),
                Err(reason) if reason.refuses_programs() && choice.peek().is_some() => {
                    refused.push((programs, reason.to_string()));
                }
                Err(reason) => return Err(reason),
            }
        };
        for name in found {
            let path = directory.join(name);
            if path != set {
                remove_old(&path)?;
            }
        }
        Ok(Self {
            directory: directory.to_path_buf(),
            set,
            instance,
            programs,
            refused,
            lock,
        })
    }

    pub(crate) fn programs(&self) -> Programs {
        self.programs
    }

    pub(crate) fn refused(&self) -> &[(Programs, String)] {
        &self.refused
    }

    /// Attaches what is attached only while there is attention. It stays so over the
    /// daemon's death: its successor would take what is not counted for none.
    pub(crate) fn attend(&self) -> Result<(), OpenError> {
        let Some(name) = self.programs.set().on_demand else {
            return Ok(());
        };
        if self.set.join(link_name(name)).exists() {
            return Ok(());
        }
        let mut program = BtfTracePoint::from_pin(self.set.join(program_name(name)))
            .map_err(|source| OpenError::program("open", name, source))?;
        let link = program.attach().and_then(|id| program.take_link(id));
        load::pin_link(&self.set, name, link.map(FdLink::from))
    }

    /// And detaches it.
    pub(crate) fn relax(&self) -> io::Result<()> {
        let Some(name) = self.programs.set().on_demand else {
            return Ok(());
        };
        match fs::remove_file(self.set.join(link_name(name))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Where the programs are pinned that may miss events.
    pub(crate) fn may_miss(&self) -> Vec<PathBuf> {
        let set = self.programs.set();
        let at = |name: &str| self.set.join(program_name(name));
        let tracepoints = set.may_miss.iter().map(|name| at(name));
        let functions = set.functions().map(|function| at(function.program));
        let functions = functions.filter(|pin| pin.exists());
        tracepoints.chain(functions).collect()
    }

    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<Map, OpenError> {
        MapData::from_pin(self.set.join(name))
            .and_then(Map::from_map_data)
            .map_err(|source| OpenError::Map { name, source })
    }

    /// One that not every set has.
    pub(crate) fn own_map(&self, name: &'static str) -> Option<Result<Map, OpenError>> {
        let has = self.programs.set().own_maps.contains(&name);
        has.then(|| self.map(name))
    }

    /// Detaches the programs by removing every pin.
    pub(crate) fn close(self) -> Result<(), CloseError> {
        let Self {
            directory,
            set,
            lock,
            ..
        } = self;
        remove(&set).map_err(|source| CloseError { path: set, source })?;
        drop(lock);
        bpffs::release(&directory).map_err(|source| CloseError {
            path: directory,
            source,
        })
    }
}

/// Detaches whatever is pinned there by removing it, with the directory. Gives how many sets
/// that were.
pub(crate) fn clear(directory: &Path) -> Result<usize, OpenError> {
    if !bpffs::holds(directory)? {
        return Ok(0);
    }
    let lock = lock(directory)?;
    let found = list(directory).map_err(|source| at("list", directory, source))?;
    for name in &found {
        remove_old(&directory.join(name))?;
    }
    drop(lock);
    bpffs::release(directory).map_err(|source| at("remove", directory, source))?;
    Ok(found.len())
}

fn at(verb: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Directory {
        verb,
        path: path.to_path_buf(),
        source,
    }
}

/// Makes this process the one owner, as long as it holds the file.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let lock = File::open(directory).map_err(|source| at("open", directory, source))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Busy {
            path: directory.to_path_buf(),
        }),
        Err(source) => Err(at("lock", directory, source.into())),
    }
}

fn remove_old(set: &Path) -> Result<(), OpenError> {
    remove(set).map_err(|source| at("remove the old pins in", set, source))
}

fn object_id(object: &[u8]) -> String {
    blake3::hash(object).to_hex()[..16].to_owned()
}

pub(crate) fn link_name(program: &str) -> String {
    format!("link_{program}")
}

pub(crate) fn program_name(program: &str) -> String {
    format!("prog_{program}")
}

/// The names of sets, whole or not; whatever else is there is not ours.
fn list(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && (name.starts_with(SET) || name.starts_with(NEW))
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// A set becomes visible complete, but removing one is not atomic.
fn is_whole(directory: &Path, set: &Set) -> bool {
    let on_demand = set.on_demand.iter();
    let mut maps = MAPS.iter().chain(set.own_maps);
    maps.all(|name| directory.join(name).exists())
        && set
            .tracepoints
            .iter()
            .all(|name| PinnedLink::from_pin(directory.join(link_name(name))).is_ok())
        && on_demand.chain(set.tracepoints).all(|name| {
            let pin = directory.join(program_name(name));
            pin.exists()
        })
        && set.functions().all(|Function { program, .. }| {
            // Neither is there of what the kernel has not. Links are removed first.
            !directory.join(program_name(program)).exists()
                || PinnedLink::from_pin(directory.join(link_name(program))).is_ok()
        })
}

fn take_over_or_build(
    directory: &Path,
    set: &Set,
    found: &[String],
) -> Result<(PathBuf, String), OpenError> {
    let prefix = format!("{SET}{}-", object_id(set.object));
    let whole = found.iter().find_map(|name| {
        let instance = name.strip_prefix(&prefix)?;
        let path = directory.join(name);
        is_whole(&path, set).then(|| (path, instance.to_owned()))
    });
    match whole {
        Some(whole) => Ok(whole),
        None => build(directory, set, &prefix),
    }
}

fn build(directory: &Path, set: &Set, prefix: &str) -> Result<(PathBuf, String), OpenError> {
    const UUID: &str = "/proc/sys/kernel/random/uuid";
    let instance = fs::read_to_string(UUID)
        .map_err(|source| at("read", Path::new(UUID), source))?
        .trim()
        .to_owned();
    let new = directory.join(format!("{NEW}{instance}"));
    let path = directory.join(format!("{prefix}{instance}"));
    fs::create_dir(&new).map_err(|source| at("create", &new, source))?;
    let loaded = load::into(&new, set);
    memory::give_back();
    if let Err(error) = loaded {
        // The next owner sweeps what this cannot.
        let _ = remove(&new);
        return Err(error);
    }
    fs::rename(&new, &path).map_err(|source| at("rename to", &path, source))?;
    Ok((path, instance))
}

/// Links first: what is left if this stops halfway is no longer counting, and
/// is not taken for whole.
fn remove(set: &Path) -> io::Result<()> {
    let mut pins = Vec::new();
    for entry in fs::read_dir(set)? {
        pins.push(entry?.path());
    }
    pins.sort_by_key(|pin| {
        !pin.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"link_"))
    });
    for pin in pins {
        fs::remove_file(pin)?;
    }
    fs::remove_dir(set)
}
