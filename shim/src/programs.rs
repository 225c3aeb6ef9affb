// SPDX-License-Identifier: Apache-2.0
//! Sealed copies of the runtime's program, lent by crabd.
//!
//! One is asked for when it is needed, kept, and looked at before each use: it has to be
//! of the file that is at the path now, sealed, and executable. Where crabd is not there
//! or slow, the plain program runs: nobody waits for it longer than [`LIMIT`], and not
//! again before [`PAUSE`] is over.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crab_api::{
    paths,
    programs::{Identity, borrow},
};
use crab_runtime::sealed::Sealer;
use rustix::fs::{SealFlags, fcntl_get_seals};

/// How long crabd may take: it copies 11 MB if nobody has asked before.
const LIMIT: Duration = Duration::from_millis(300);

/// For how long it is not asked again after it was silent, or gave what is of no use.
const PAUSE: Duration = Duration::from_secs(10);

/// The programs of which it is known that they leave out their own copy. Any other may
/// look for something beside its own program.
const KNOWN: &str = "runc";

/// What has been lent.
struct Lent {
    path: PathBuf,
    identity: Identity,
    copy: Arc<OwnedFd>,
}

impl Lent {
    fn is_good(&self, path: &Path, now: Identity) -> bool {
        self.path == path && self.identity == now && is_sealed(&self.copy)
    }
}

/// It can be run, and not be written to.
fn is_sealed(copy: &impl AsFd) -> bool {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    let runs = |copy: OwnedFd| {
        let file = File::from(copy).metadata();
        file.is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    fcntl_get_seals(copy).is_ok_and(|has| has.contains(seals))
        && copy.as_fd().try_clone_to_owned().is_ok_and(runs)
}

#[derive(Default)]
struct State {
    lent: Option<Lent>,
    not_before: Option<Instant>,
}

/// The copies of one shim.
pub(crate) struct Programs {
    socket: PathBuf,
    state: Mutex<State>,
}

impl Programs {
    pub(crate) fn lent_by_crabd(run_dir: &Path) -> Self {
        Self {
            socket: paths::programs_socket(run_dir),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Whole at any time: each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, path: &Path) -> io::Result<Lent> {
        let (identity, copy) = borrow(&self.socket, path, LIMIT)?;
        Ok(Lent {
            path: path.to_path_buf(),
            identity,
            copy: Arc::new(copy),
        })
    }
}

impl Sealer for Programs {
    fn sealed(&self, program: &Path) -> Option<Arc<OwnedFd>> {
        if program.file_name()? != KNOWN {
            return None;
        }
        let now = Identity::of(program).ok()?;
        // Held while crabd is asked: who comes meanwhile wants the same.
        let mut state = self.state();
        if let Some(lent) = &state.lent
            && lent.is_good(program, now)
        {
            return Some(lent.copy.clone());
        }
        state.lent = None;
        if state.not_before.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let why = match self.ask(program) {
            Ok(lent) if lent.is_good(program, now) => {
                let copy = lent.copy.clone();
                state.lent = Some(lent);
                return Some(copy);
            }
            Ok(_) => io::Error::other("what was lent is not the program, or not sealed"),
            // It is not there, or not yet.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return None;
            }
            Err(error) => error,
        };
        state.not_before = Some(Instant::now() + PAUSE);
        tracing::info!(program = %program.display(), error = %why, "crabd lends no copy");
        None
    }

    fn refuse(&self, program: &Path, why: &io::Error) {
        tracing::warn!(program = %program.display(), error = %why, "the sealed copy does not run");
        let mut state = self.state();
        state.lent = None;
        state.not_before = Some(Instant::now() + PAUSE);
    }
}
