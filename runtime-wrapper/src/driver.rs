// SPDX-License-Identifier: Apache-2.0
//! Which OCI runtime a program is, and what it can do beyond the life of a container.
//!
//! Creating, starting, executing and deleting is the same with all of them; process
//! images are not. What one cannot do is a value with the reason, known before anything
//! is frozen or killed.
//!
//! The program itself is asked (`--version`, and one that is not known to Crab also
//! `features` and `--help`), when an image is first wanted and not before: a container
//! that needs none costs no call. The answer is kept for as long as the file is the same; that
//! there was none is not.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crab_config::BUILT_IN;

use crate::{
    cgroup::path_of,
    program::find_program,
    reaper::{Limit, Reaper},
    sealed::Sealer,
};

/// How long a program may take to say what it is.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// The library through which crun asks CRIU, opened when it is first needed.
const LIBCRIU: &str = "libcriu.so.2";

/// An OCI runtime that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program: a name, to be found on PATH, or a path.
    File(PathBuf),
    /// This program, as [`crate::builtin`].
    BuiltIn,
}

impl Program {
    /// The one of this name; if none is said, runc where there is one.
    pub fn named(name: Option<&Path>) -> Self {
        match name {
            Some(name) if name == Path::new(BUILT_IN) => Self::BuiltIn,
            Some(name) => Self::File(name.to_path_buf()),
            None if find_program(Path::new("runc")).is_some() => Self::File("runc".into()),
            None => Self::BuiltIn,
        }
    }

    /// Its name, for [`Self::named`].
    pub fn name(&self) -> &Path {
        match self {
            Self::File(name) => name,
            Self::BuiltIn => Path::new(BUILT_IN),
        }
    }

    /// Where its file is; the built-in one has none of its own.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File(name) => find_program(name),
            Self::BuiltIn => None,
        }
    }

    /// The copy that a sealer has of its file.
    pub(crate) fn sealed(&self, sealer: &dyn Sealer) -> Option<Arc<OwnedFd>> {
        sealer.sealed(&self.path()?)
    }

    /// A call of it, without arguments as yet.
    pub fn command(&self) -> Command {
        match self {
            Self::File(name) => Command::new(name),
            Self::BuiltIn => {
                // As it is running, even if another is installed by now.
                let mut command = Command::new("/proc/self/exe");
                command.arg0("crab-oci").arg(crate::builtin::COMMAND);
                command
            }
        }
    }
}

/// Whether a runtime can do something, or why not, in one line for people.
pub type Support = Result<(), String>;

/// Whose options a program understands where they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// runc, and whatever is not known to differ.
    Runc,
    /// crun.
    Crun,
}

/// What is known of a runtime's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// As it calls itself: `runc 1.1.15`.
    pub name: String,
    /// How it is spoken to.
    pub dialect: Dialect,
    /// Images of processes, by CRIU.
    pub checkpoint: Support,
    /// Processes from such images.
    pub restore: Support,
}

impl Driver {
    /// What is known of this program.
    pub fn of(program: &Program, reaper: &Reaper) -> Arc<Self> {
        match program {
            Program::File(name) => Self::of_file(name, reaper),
            Program::BuiltIn => Arc::new(Self::without(
                "the built-in runtime".into(),
                "the built-in runtime has no process images; install runc or crun to keep processes",
            )),
        }
    }

    /// A name is looked for on PATH.
    fn of_file(program: &Path, reaper: &Reaper) -> Arc<Self> {
        static KNOWN: Mutex<Option<HashMap<Identity, Arc<Driver>>>> = Mutex::new(None);
        let found = find_program(program);
        let identity = found.as_deref().and_then(Identity::of);
        let (Some(path), Some(identity)) = (found, identity) else {
            return Arc::new(Self::without(
                program.display().to_string(),
                &format!("{} is not found", program.display()),
            ));
        };
        let kept = |known: &Option<HashMap<Identity, Arc<Self>>>| {
            known.as_ref().and_then(|all| all.get(&identity).cloned())
        };
        // Held over the question: a second asker would only ask the same.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = kept(&known) {
            return driver;
        }
        match Self::ask(&path, reaper) {
            Ok(driver) => {
                let driver = Arc::new(driver);
                known
                    .get_or_insert_default()
                    .insert(identity, driver.clone());
                driver
            }
            // Asked again the next time.
            Err(error) => Arc::new(Self::without(
                path.display().to_string(),
                &format!("{} cannot be asked what it is: {error}", path.display()),
            )),
        }
    }

    /// Whether the processes of a container can be kept: dumped, and restored from that.
    ///
    /// # Errors
    /// The reason why not.
    pub fn process_images(&self) -> Support {
        self.dumps().and_then(|()| self.restore.clone())
    }

    /// Whether they can be dumped, into an image that perhaps only another host restores.
    ///
    /// # Errors
    /// The reason why not.
    pub fn dumps(&self) -> Support {
        self.checkpoint.clone()
    }

    /// Whether it is runc itself, of which Crab knows what it asks of CRIU.
    pub(crate) fn is_runc(&self) -> bool {
        self.dialect == Dialect::Runc && self.name.split(' ').next() == Some("runc")
    }

    fn without(name: String, reason: &str) -> Self {
        Self {
            name,
            dialect: Dialect::Runc,
            checkpoint: Err(reason.to_string()),
            restore: Err(reason.to_string()),
        }
    }

    fn ask(program: &Path, reaper: &Reaper) -> io::Result<Self> {
        let said = |word: &str| {
            let mut command = Command::new(program);
            command.arg(word);
            let (status, text) = reaper.answer(&mut command, Limit::after(ASK_LIMIT))?;
            Ok::<_, io::Error>((status, String::from_utf8_lossy(&text).into_owned()))
        };
        // One that cannot even say this has no memory or no threads, perhaps: by its path it
        // would be taken for another runtime.
        let (status, version) = said("--version")?;
        if status != 0 {
            let why = format!("--version ended with {status}");
            return Err(io::Error::other(why));
        }
        let name = name_of(&version, program);
        Ok(match name.split(' ').next().unwrap_or_default() {
            "runc" => Self {
                name,
                dialect: Dialect::Runc,
                checkpoint: Ok(()),
                restore: Ok(()),
            },
            "crun" => {
                let own = fs::read_to_string("/proc/self/cgroup")?;
                let v1_cpuset = path_of(&own, "cpuset").is_some();
                Self::crun(name, &version, has_library(LIBCRIU), v1_cpuset)
            }
            "runsc" => {
                let why = format!("{name} keeps images of its own kind, not CRIU's");
                Self::without(name, &why)
            }
            _ => {
                // Whoever does not know the one fails, and has the other.
                let (_, features) = said("features")?;
                let (_, help) = said("--help")?;
                Self::other(name, &features, &help)
            }
        })
    }

    /// `v1_cpuset`: the host has the controller cpuset as cgroup v1, mounted or not.
    fn crun(name: String, version: &str, has_libcriu: bool, v1_cpuset: bool) -> Self {
        let checkpoint = if !version.split_whitespace().any(|word| word == "+CRIU") {
            Err(format!("{name} was built without CRIU"))
        } else if !has_libcriu {
            Err(format!(
                "{name} asks CRIU through {LIBCRIU}, which is not installed \
                 (Debian's package libcriu2)"
            ))
        } else {
            Ok(())
        };
        // crun has CRIU make the container's directory in every hierarchy; in this one it
        // has no CPUs then, and nothing can be moved into it.
        let restore = if v1_cpuset {
            Err(format!(
                "{name} restores no processes on a host with the cgroup v1 controller cpuset"
            ))
        } else {
            Ok(())
        };
        Self {
            restore: checkpoint.clone().and(restore),
            checkpoint,
            dialect: Dialect::Crun,
            name,
        }
    }

    /// One that Crab knows nothing about: its own word decides.
    fn other(name: String, features: &str, help: &str) -> Self {
        let verb = |verb: &'static str| {
            if enables_checkpoints(features) || lists_verb(help, verb) {
                Ok(())
            } else {
                Err(format!(
                    "{name} is not known to {verb} processes: neither its features nor its help \
                     speak of it"
                ))
            }
        };
        Self {
            checkpoint: verb("checkpoint"),
            restore: verb("restore"),
            dialect: Dialect::Runc,
            name,
        }
    }
}

/// What tells a program's file from another.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    path: PathBuf,
    inode: u64,
    mtime: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self {
            path: path.to_path_buf(),
            inode: file.ino(),
            mtime: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// The first line of `--version`, `runc version 1.1.15+ds1`, without the word; the file's
/// name if there is none.
fn name_of(version: &str, program: &Path) -> String {
    let line = version.lines().map(str::trim).find(|line| !line.is_empty());
    let words: Vec<&str> = line
        .unwrap_or_default()
        .split_whitespace()
        .filter(|word| !word.trim_end_matches(':').eq_ignore_ascii_case("version"))
        .take(3)
        .collect();
    if words.is_empty() {
        return program.display().to_string();
    }
    words.join(" ")
}

/// `features` of the OCI specification: runc's annotation, which others took over under
/// names of their own.
fn enables_checkpoints(features: &str) -> bool {
    let Ok(features) = serde_json::from_str::<serde_json::Value>(features) else {
        return false;
    };
    let annotations = features["annotations"].as_object();
    annotations
        .into_iter()
        .flatten()
        .any(|(name, value)| name.ends_with("checkpoint.enabled") && value.as_str() == Some("true"))
}

/// A line of a help text that begins with the verb.
fn lists_verb(help: &str, verb: &str) -> bool {
    help.lines()
        .any(|line| line.split_whitespace().next() == Some(verb))
}

/// Whether the dynamic linker would find a library: in its cache, or where it looks
/// without one.
fn has_library(name: &str) -> bool {
    // Names and paths, each with a NUL after it; a name may be stored as its path's end.
    let cached = fs::read("/etc/ld.so.cache").is_ok_and(|cache| {
        cache.split(|byte| *byte == 0).any(|entry| {
            entry
                .strip_suffix(name.as_bytes())
                .is_some_and(|before| before.is_empty() || before.ends_with(b"/"))
        })
    });
    let dirs = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
    cached || dirs.iter().any(|dir| Path::new(dir).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRUN: &str = "crun version 1.21\ncommit: 10269840\nrundir: /run/crun\nspec: 1.0.0\n\
                        +SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF +CRIU +WASM:wasmedge +YAJL\n";

    #[test]
    fn a_program_is_named_by_the_first_line_of_its_version() {
        for (version, name) in [
            ("runc version 1.1.15+ds1\ncommit: x\n", "runc 1.1.15+ds1"),
            (CRUN, "crun 1.21"),
            (
                "runsc version release-20250101.0\nspec: 1.1.0\n",
                "runsc release-20250101.0",
            ),
            ("youki version: 0.5.5\n", "youki 0.5.5"),
            ("\n\n", "/opt/x"),
        ] {
            assert_eq!(name_of(version, Path::new("/opt/x")), name);
        }
    }

    #[test]
    fn crun_needs_criu_built_in_and_its_library() {
        let whole = Driver::crun("crun 1.21".into(), CRUN, true, false);
        assert_eq!(whole.process_images(), Ok(()));
        let lacks = Driver::crun("crun 1.21".into(), CRUN, false, true);
        assert_eq!(lacks.dialect, Dialect::Crun);
        assert!(lacks.process_images().unwrap_err().contains("libcriu2"));
        let without = Driver::crun(
            "crun 1.9".into(),
            "crun version 1.9\n+SYSTEMD +CAP\n",
            true,
            false,
        );
        let reason = without.process_images().unwrap_err();
        assert_eq!(reason, "crun 1.9 was built without CRIU");
        let half = Driver::crun("crun 1.21".into(), CRUN, true, true);
        assert_eq!(half.checkpoint, Ok(()));
        assert!(half.process_images().unwrap_err().contains("cpuset"));
        assert_eq!(half.dumps(), Ok(()));
    }

    #[test]
    fn an_unknown_runtime_is_believed_what_it_says_of_itself() {
        let of = |features: &str, help: &str| Driver::other("x 1".into(), features, help);
        let feature = r#"{"annotations": {"org.opencontainers.runc.checkpoint.enabled": "true"}}"#;
        assert_eq!(of(feature, "").process_images(), Ok(()));
        assert!(
            of(&feature.replace("true", "false"), "")
                .checkpoint
                .is_err()
        );
        let both = "COMMANDS:\n   checkpoint  checkpoint it\n   restore     and back\n";
        assert_eq!(of("no such verb", both).process_images(), Ok(()));
        // youki: images that nothing reads are none.
        let half = of(
            "",
            "COMMANDS:\n  checkpoint  Checkpoint a running container\n",
        );
        assert_eq!(half.checkpoint, Ok(()));
        let reason = half.process_images().unwrap_err();
        assert!(
            reason.starts_with("x 1 is not known to restore"),
            "{reason}"
        );
        assert!(of("", "it cannot checkpoint").checkpoint.is_err());
    }

    #[test]
    fn the_dynamic_linkers_libraries_are_found() {
        assert!(has_library("libc.so.6"));
        assert!(!has_library("libc.so.66"));
    }
}
