// SPDX-License-Identifier: Apache-2.0
//! The programs and maps in the kernel, held by their pins.
//!
//! ```text
//! <pin dir>/                                    flocked by the one owner
//!   set-<hash of the object>-<instance>/        complete, by rename
//!     sandboxes devices members ...             maps
//!     link_sys_exit link_sched_process_...      attached programs
//!   new-<instance>/                             being built; a leftover is swept
//! ```
//!
//! A set of the same object is taken over as it is, so counting goes on over a
//! daemon's death. Any other is replaced, after its successor is attached.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError};
use aya::pin::PinError;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, BtfError, EbpfError, EbpfLoader, include_bytes_aligned};
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

use crate::bpffs::{self, MountError};
use crate::memory;
use crate::probe::{Unsupported, probe};
use crate::refusal::one_line;

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/effects.bpf.o"));

pub(crate) const SANDBOXES: &str = "sandboxes";
pub(crate) const DEVICES: &str = "devices";
pub(crate) const MEMBERS: &str = "members";
pub(crate) const LOST_ANYWHERE: &str = "lost_anywhere";
pub(crate) const ATTENTION: &str = "attention";
pub(crate) const SPARED: &str = "spared";
const MAPS: [&str; 6] = [
    SANDBOXES,
    DEVICES,
    MEMBERS,
    LOST_ANYWHERE,
    ATTENTION,
    SPARED,
];

/// Each program has the name of its tracepoint.
const TRACEPOINTS: [&str; 4] = [
    "sys_exit",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
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
    /// A pin was refused.
    #[error("pin {path}: {}", one_line(.source))]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: PinError,
    },
    /// A map is not what it should be.
    #[error("open the map {name}: {}", one_line(.source))]
    Map {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        source: MapError,
    },
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
    /// Keeps other tracers out.
    lock: File,
}

impl Pins {
    /// Takes over the set that is there, or makes one.
    pub(crate) fn open(directory: &Path) -> Result<Self, OpenError> {
        probe()?;
        bpffs::ensure(directory)?;
        let at = |verb, source: io::Error| OpenError::Directory {
            verb,
            path: directory.to_path_buf(),
            source,
        };
        let lock = File::open(directory).map_err(|source| at("open", source))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::Busy {
                    path: directory.to_path_buf(),
                });
            }
            Err(source) => return Err(at("lock", source.into())),
        }

        let ours = format!("{SET}{}-", object_id());
        let found = list(directory).map_err(|source| at("list", source))?;
        let (set, instance) = match found.iter().find_map(|name| {
            let instance = name.strip_prefix(&ours)?;
            let set = directory.join(name);
            is_whole(&set).then(|| (set, instance.to_owned()))
        }) {
            Some(whole) => whole,
            None => build(directory, &ours)?,
        };
        for name in found {
            let path = directory.join(name);
            if path != set {
                remove(&path).map_err(|source| OpenError::Directory {
                    verb: "remove the old pins in",
                    path,
                    source,
                })?;
            }
        }
        Ok(Self {
            directory: directory.to_path_buf(),
            set,
            instance,
            lock,
        })
    }

    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<Map, OpenError> {
        MapData::from_pin(self.set.join(name))
            .and_then(Map::from_map_data)
            .map_err(|source| OpenError::Map { name, source })
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

fn object_id() -> String {
    blake3::hash(OBJECT).to_hex()[..16].to_owned()
}

fn link_name(tracepoint: &str) -> String {
    format!("link_{tracepoint}")
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
fn is_whole(set: &Path) -> bool {
    MAPS.iter().all(|name| set.join(name).exists())
        && TRACEPOINTS
            .iter()
            .all(|name| PinnedLink::from_pin(set.join(link_name(name))).is_ok())
}

fn build(directory: &Path, prefix: &str) -> Result<(PathBuf, String), OpenError> {
    const UUID: &str = "/proc/sys/kernel/random/uuid";
    let at = |verb, path: &Path, source| OpenError::Directory {
        verb,
        path: path.to_path_buf(),
        source,
    };
    let instance = fs::read_to_string(UUID)
        .map_err(|source| at("read", Path::new(UUID), source))?
        .trim()
        .to_owned();
    let new = directory.join(format!("{NEW}{instance}"));
    let set = directory.join(format!("{prefix}{instance}"));
    fs::create_dir(&new).map_err(|source| at("create", &new, source))?;
    let loaded = load_into(&new);
    memory::give_back();
    if let Err(error) = loaded {
        // The next owner sweeps what this cannot.
        let _ = remove(&new);
        return Err(error);
    }
    fs::rename(&new, &set).map_err(|source| at("rename to", &set, source))?;
    Ok((set, instance))
}

fn load_into(new: &Path) -> Result<(), OpenError> {
    let btf = Btf::from_sys_fs()?;
    let mut object = EbpfLoader::new().btf(Some(&btf)).load(OBJECT)?;
    for name in MAPS {
        let path = new.join(name);
        object
            .map(name)
            .ok_or(OpenError::Missing { name })?
            .pin(&path)
            .map_err(|source| OpenError::Pin { path, source })?;
    }
    for name in TRACEPOINTS {
        let failed = |verb| move |source| OpenError::Program { verb, name, source };
        let program: &mut BtfTracePoint = object
            .program_mut(name)
            .ok_or(OpenError::Missing { name })?
            .try_into()
            .map_err(failed("load"))?;
        program.load(name, &btf).map_err(failed("load"))?;
        let link = program
            .attach()
            .and_then(|id| program.take_link(id))
            .map_err(failed("attach"))?;
        let path = new.join(link_name(name));
        FdLink::from(link)
            .pin(&path)
            .map_err(|source| OpenError::Pin { path, source })?;
    }
    Ok(())
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
