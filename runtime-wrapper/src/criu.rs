// SPDX-License-Identifier: Apache-2.0
//! Process images: CRIU's image directories, in and out of the store.
//!
//! Whether CRIU works on this kernel, asking it for a dump, the directory it wrote as objects of
//! the store and back, and the reason it gives when it fails. Restores are asked for by the
//! OCI runtime, and dumps where [`Begun`] cannot be had.
//!
//! Two of its files are changed on the way back:
//!
//! * `timens-0.img` is left out under the boot of the dump. With it CRIU puts the
//!   restored processes into a new time namespace (its `timens.c`), so that clocks
//!   go on from the dump; later execs land in the host's, and the next dump of both
//!   together could not be restored. Under the same boot the clocks go on anyway.
//! * the archive of a tmpfs is replaced where the file image is newer than the
//!   process image.

mod another;
mod covered;
mod exchange;
mod left_out;
mod pages;
mod records;
mod remainder;
mod request;
mod session;
mod unlocked;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crab_store::{
    Earlier, ImageFile, ObjectReader, PackWriter, ProcessImage, ReadError, WriteError, earlier,
};
use thiserror::Error;

use self::pages::PageMap;
pub(crate) use self::request::Request;
pub use self::{
    another::{holds_connections, move_cgroups, rename_host},
    exchange::{lay_out, release_netns},
    left_out::{LeftOut, leave_out},
    remainder::Remainder,
    request::{DESCRIPTORS, Extent},
    session::{Begun, SessionError},
    unlocked::lock_nothing,
};
use crate::{
    program::find_program,
    reaper::{Limit, Reaper, signal_of},
};

/// The oldest CRIU that dumps on current kernels: earlier ones do not know
/// rseq, and fail on the vDSO of Linux 6.
const MINIMUM: (u32, u32) = (3, 17);

/// For how long `criu check` may take.
const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// For how long the answer is kept that it does not work: a host that has no memory or no
/// processes left for the check has some again.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);

/// The file without which no time namespace is made.
const TIMENS: &str = "timens-0.img";

/// What in an image directory is no image: logs and statistics.
fn is_scratch(name: &str) -> bool {
    name.ends_with(".log") || name.starts_with("stats-") || name.ends_with(".pid")
}

/// Why an image directory could not be stored or written back.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file of the directory.
    #[error("{verb} {path}: {source}")]
    Io {
        /// "read", "write", "link" or "remove".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Processes of another container were in a cgroup that is not below that container's.
    #[error(
        "its processes were in the cgroup {path:?} as well, which is not the container's: a copy cannot have it"
    )]
    Cgroup {
        /// In any hierarchy.
        path: String,
    },
    /// The store refused to write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The store could not read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

fn io_error<'a>(
    verb: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> ImageError + use<'a> {
    move |source| ImageError::Io {
        verb,
        path: path.to_path_buf(),
        source,
    }
}

/// The largest page map that is looked at, in bytes: of some millions of pages, none beside the
/// other.
const LARGEST_MAP: u64 = 64 << 20;

/// An image of the same sandbox that is in the store already.
#[derive(Clone, Copy)]
pub struct EarlierImage<'a> {
    /// It.
    pub image: &'a ProcessImage,
    /// Where it is read.
    pub reader: &'a ObjectReader,
}

impl EarlierImage<'_> {
    /// The windows of memory of which a page map of the same name tells there.
    fn windows(&self, page_map: &str) -> Earlier {
        let named = |name: &str| self.image.files.iter().find(|file| file.name == name);
        let read = || -> Option<Earlier> {
            let page_map = named(page_map)?;
            if page_map.size > LARGEST_MAP {
                return None;
            }
            let mut bytes = Vec::new();
            for segment in &page_map.content {
                bytes.extend(self.reader.get(segment.digest).ok()?);
            }
            let map = PageMap::of(&bytes, |file| Some(named(file)?.size))?;
            Some(earlier(named(&map.file)?, &map.windows))
        };
        // What cannot be read only makes the image larger.
        read().unwrap_or_default()
    }
}

/// Puts every image of a directory into a pack. Of memory, only what differs from an
/// earlier image is written.
///
/// # Errors
/// When a file cannot be read or the store not be written.
pub fn persist(
    dir: &Path,
    pack: &mut PackWriter,
    before: Option<EarlierImage>,
) -> Result<Vec<ImageFile>, ImageError> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map_err(io_error("read", dir))?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_file()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !is_scratch(name))
        .collect();
    names.sort();
    let mut maps: BTreeMap<String, (String, PageMap)> = BTreeMap::new();
    for name in names.iter().filter(|name| PageMap::is_named(name)) {
        let path = dir.join(name);
        let bytes = fs::read(&path).map_err(io_error("read", &path))?;
        let size = |file: &str| Some(fs::symlink_metadata(dir.join(file)).ok()?.len());
        if let Some(map) = PageMap::of(&bytes, size) {
            maps.insert(map.file.clone(), (name.clone(), map));
        }
    }
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let path = dir.join(&name);
        let file = File::open(&path).map_err(io_error("read", &path))?;
        let size = file.metadata().map_err(io_error("read", &path))?.len();
        let mut add = |content| {
            files.push(ImageFile {
                name: name.clone(),
                size,
                content,
            });
        };
        match maps.get(&name) {
            Some((page_map, map)) => {
                let windows = before.map_or_else(Earlier::new, |b| b.windows(page_map));
                let pages = pack.put_pages(&file, &map.windows, &windows)?;
                add(pages.windows);
                if !pages.changes.is_empty() {
                    add(pages.changes);
                }
            }
            None => add(pack.put_file(&file)?.segments),
        }
    }
    Ok(files)
}

/// Writes an image's files into an empty directory, ready for CRIU to read.
/// The image in the store is never what CRIU works on: a restore may change its
/// directory even when it fails.
///
/// # Errors
/// When the store cannot be read or a file not be written.
pub fn materialise(
    image: &ProcessImage,
    reader: &ObjectReader,
    dir: &Path,
) -> Result<(), ImageError> {
    let same_boot = boot_id().is_some_and(|now| now == image.boot_id);
    let mut written = BTreeSet::new();
    for file in &image.files {
        if same_boot && file.name == TIMENS {
            continue;
        }
        let path = dir.join(&file.name);
        if written.insert(&file.name) {
            let target = File::create_new(&path).map_err(io_error("write", &path))?;
            reader.read_segments(&file.content, file.size, &target)?;
        } else {
            let target = File::options().write(true).open(&path);
            let target = target.map_err(io_error("write", &path))?;
            reader.write_over(&file.content, file.size, &target)?;
        }
    }
    Ok(())
}

/// This boot of the kernel.
pub fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|text| text.trim().to_string())
}

/// CRIU's own reason for a failed dump, from its log in the work directory.
pub fn dump_error(work: &Path) -> Option<String> {
    first_error(&work.join("dump.log"))
}

/// CRIU's own reason for a failed restore.
pub fn restore_error(work: &Path) -> Option<String> {
    first_error(&work.join("restore.log"))
}

/// The first error is the cause, what follows its consequences: lines such as
/// `(00.012345) Error (criu/files.c:123): what`.
fn first_error(log: &Path) -> Option<String> {
    // It may hold names that are not UTF-8.
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut errors = text
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("Error (")?;
            let (_, what) = rest.split_once("): ")?;
            Some(what.trim())
        })
        // Refused by machines without CAP_SYS_RESOURCE, and harmless.
        .filter(|what| !what.contains("RLIMIT"))
        .peekable();
    let first = errors.peek().copied()?;
    // What a process died of may be told after its death.
    let cause = errors.find(|what| !SYMPTOMS.iter().any(|symptom| what.contains(symptom)));
    Some(cause.unwrap_or(first).to_string())
}

/// What CRIU says of any failure.
const SYMPTOMS: [&str; 4] = [
    "exited, status=",
    "killed by signal",
    "Restoring FAILED",
    "Dumping FAILED",
];

/// The CRIU of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Criu {
    /// Its version, as it prints it.
    pub version: String,
}

impl Criu {
    /// Finds CRIU and checks that it works with this kernel (`criu check`). That it does is kept
    /// in `cache` for this boot and program. That it does not, with its reason, is kept for
    /// a minute, and so is that it took too long to say; anything else that fails is not.
    ///
    /// # Errors
    /// One line for people: why no process image can be taken, and what to do.
    pub fn probe(program: &Path, cache: &Path, reaper: &Reaper) -> Result<Self, String> {
        let Some(program) = find_program(program) else {
            return Err(format!(
                "no CRIU: {} is not found; install criu to keep processes",
                program.display()
            ));
        };
        let key = identity(&program);
        if let Some(kept) = Self::kept(cache, &key) {
            return kept;
        }
        let version = version(&program, reaper)?;
        if parse_version(&version).is_some_and(|v| v < MINIMUM) {
            return Err(format!(
                "CRIU {version} is too old; {}.{} or newer is needed",
                MINIMUM.0, MINIMUM.1
            ));
        }
        let mut check = Command::new(&program);
        check.arg("check").stdout(Stdio::null());
        let start = Instant::now();
        let (status, text) = reaper
            .output(&mut check, Some(Limit::after(CHECK_LIMIT)))
            .map_err(|e| format!("run {}: {e}", program.display()))?;
        let took = start.elapsed();
        // Only a cache: without it the check is made again.
        let keep = |reason: &str| {
            let _ = fs::write(cache, format!("{key}\n{version}\n{reason}"));
        };
        if status == 0 {
            keep("");
            return Ok(Self { version });
        }
        let text = String::from_utf8_lossy(&text);
        let said = text.lines().find(|line| line.contains("Error"));
        let (reason, is_answer) = match (signal_of(status), said) {
            (Some(signal), _) => (
                format!(
                    "whether CRIU {version} works on this kernel is not known: its check was \
                     killed by signal {signal} after {} s; it is made again",
                    took.as_secs()
                ),
                // One that always takes so long is not worth it for every turn.
                took >= CHECK_LIMIT,
            ),
            (None, Some(said)) => (
                format!(
                    "CRIU {version} does not work on this kernel ({}); a newer criu may",
                    said.trim()
                ),
                true,
            ),
            (None, None) => (
                format!(
                    "whether CRIU {version} works on this kernel is not known: its check ended \
                     with {status} and gave no reason; it is made again"
                ),
                false,
            ),
        };
        if is_answer {
            keep(&reason);
        }
        Err(reason)
    }

    /// The answer that is in the cache for this program, if it still holds.
    fn kept(cache: &Path, key: &str) -> Option<Result<Self, String>> {
        let kept = fs::read_to_string(cache).ok()?;
        let (_, answer) = kept.split_once('\n').filter(|(of, _)| *of == key)?;
        let (version, reason) = answer.split_once('\n')?;
        if reason.is_empty() {
            let version = version.into();
            return Some(Ok(Self { version }));
        }
        // By a clock that may be set: one from the future is too old as well.
        let age = fs::metadata(cache).ok()?.modified().ok()?.elapsed().ok()?;
        (age < REFUSAL_KEPT).then(|| Err(reason.to_string()))
    }
}

impl Criu {
    /// Whether it can dump internet sockets on this kernel. Linux 6.16 refuses an
    /// option of theirs that CRIU before 4.2 asks for (SO_PASSCRED).
    pub fn dumps_inet_sockets(&self) -> bool {
        let kernel = rustix::system::uname();
        dumps_inet_sockets(&self.version, &kernel.release().to_string_lossy())
    }
}

fn dumps_inet_sockets(criu: &str, kernel: &str) -> bool {
    parse_version(criu).is_none_or(|v| v >= (4, 2))
        || parse_version(kernel).is_some_and(|v| v < (6, 16))
}

/// What tells this program, under this boot, from another.
fn identity(program: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let file = fs::metadata(program).map_or_else(
        |_| String::new(),
        |m| format!("{} {} {} {}", m.ino(), m.size(), m.mtime(), m.ctime_nsec()),
    );
    let boot = boot_id().unwrap_or_default();
    format!("{} {file} {boot}", program.display())
}

fn version(program: &Path, reaper: &Reaper) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--version");
    let (_, text) = reaper
        .answer(&mut command, Limit::after(CHECK_LIMIT))
        .map_err(|e| format!("run {}: {e}", program.display()))?;
    String::from_utf8_lossy(&text)
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))
        .map(|version| version.trim().to_string())
        .ok_or_else(|| format!("{} --version tells no version", program.display()))
}

fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_the_cause_and_rlimit_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("dump.log"),
            "(00.000021) Error (criu/util.c:1): Can't set RLIMIT_NOFILE: Operation not permitted\n\
             (00.020000) Warn  (criu/x.c:9): hm\n\
             (00.031000) Error (criu/files-ext.c:98): Can't dump file 5 of that type [600] (unknown /dev/fuse)\n\
             (00.040000) Error (criu/cr-dump.c:2098): Dumping FAILED.\n",
        )
        .unwrap();
        assert_eq!(
            dump_error(dir.path()).as_deref(),
            Some("Can't dump file 5 of that type [600] (unknown /dev/fuse)")
        );
        assert_eq!(restore_error(dir.path()), None);
    }

    #[test]
    fn old_criu_on_a_new_kernel_cannot_dump_internet_sockets() {
        assert!(!dumps_inet_sockets("4.1.1", "6.18.44-x"));
        assert!(dumps_inet_sockets("4.2", "6.18.44-x"));
        assert!(dumps_inet_sockets("4.1.1", "6.12.9-amd64"));
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(parse_version("4.1.1"), Some((4, 1)));
        assert_eq!(parse_version("3.17-2"), Some((3, 17)));
        assert!(parse_version("3.9").unwrap() < MINIMUM);
        assert_eq!(parse_version("git"), None);
    }
}
