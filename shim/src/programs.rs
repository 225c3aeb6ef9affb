// SPDX-License-Identifier: Apache-2.0
//! Sealed copies of the runtime's program, lent by crabd.
//!
//! One is asked for when it is needed, kept, and looked at before each use: it has to be
//! of the file that is at the path now, sealed, and executable. Where crabd is not there
//! or slow, the plain program runs: nobody waits for it longer than [`LIMIT`]. The question stays
//! open meanwhile, for whoever comes next; what is of no use is not asked for again before
//! [`PAUSE`] is over.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crab_api::{
    paths,
    programs::{Identity, borrow},
};
use crab_runtime::sealed::Sealer;
use rustix::fs::{SealFlags, fcntl_get_seals};

/// How long one is waited for: crabd copies 11 MB if nobody has asked before.
const LIMIT: Duration = Duration::from_millis(300);

/// How long crabd may take to answer: on a busy host it waits for a processor.
const LATE: Duration = Duration::from_secs(30);

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
    /// Since when a question waits for its answer.
    open: Option<Instant>,
    not_before: Option<Instant>,
}

/// What has been asked for and lent, and a bell for when that changes.
#[derive(Default)]
struct Shelf {
    state: Mutex<State>,
    answered: Condvar,
}

impl Shelf {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole at any time: each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and takes note of the answer.
    fn ask(&self, socket: &Path, program: &Path) {
        let answer = borrow(socket, program, LATE).and_then(|(identity, copy)| {
            let lent = Lent {
                path: program.to_path_buf(),
                identity,
                copy: Arc::new(copy),
            };
            match lent.is_good(program, Identity::of(program)?) {
                true => Ok(lent),
                false => Err(io::Error::other(
                    "what was lent is not the program, or not sealed",
                )),
            }
        });
        let mut state = self.state();
        state.open = None;
        match answer {
            Ok(lent) => state.lent = Some(lent),
            // It is not there, or not yet, or has just gone.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::BrokenPipe
                        | io::ErrorKind::UnexpectedEof
                ) => {}
            Err(why) => {
                state.not_before = Some(Instant::now() + PAUSE);
                tracing::info!(program = %program.display(), error = %why, "crabd lends no copy");
            }
        }
        drop(state);
        self.answered.notify_all();
    }
}

/// The copies of one shim.
pub(crate) struct Programs {
    socket: PathBuf,
    shelf: Arc<Shelf>,
}

impl Programs {
    pub(crate) fn lent_by_crabd(run_dir: &Path) -> Self {
        Self {
            socket: paths::programs_socket(run_dir),
            shelf: Arc::default(),
        }
    }

    /// Asks on a thread of its own, which ends with the answer. Tells since when.
    fn ask(&self, program: &Path) -> io::Result<Instant> {
        let shelf = self.shelf.clone();
        let (socket, program) = (self.socket.clone(), program.to_owned());
        thread::Builder::new()
            .name("borrower".into())
            .stack_size(128 * 1024)
            .spawn(move || shelf.ask(&socket, &program))?;
        Ok(Instant::now())
    }
}

impl Sealer for Programs {
    fn sealed(&self, program: &Path) -> Option<Arc<OwnedFd>> {
        if program.file_name()? != KNOWN {
            return None;
        }
        let now = Identity::of(program).ok()?;
        let mut state = self.shelf.state();
        let mut is_asked = false;
        loop {
            if let Some(lent) = &state.lent {
                if lent.is_good(program, now) {
                    return Some(lent.copy.clone());
                }
                state.lent = None;
            }
            if state.not_before.is_some_and(|until| Instant::now() < until) {
                return None;
            }
            let since = match state.open {
                Some(since) => since,
                // There is none, or not yet.
                None if is_asked => return None,
                None => self.ask(program).ok()?,
            };
            // Who comes meanwhile wants the same.
            state.open = Some(since);
            is_asked = true;
            let left = LIMIT.saturating_sub(since.elapsed());
            if left.is_zero() {
                return None;
            }
            let waited = self.shelf.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn refuse(&self, program: &Path, why: &io::Error) {
        tracing::warn!(program = %program.display(), error = %why, "the sealed copy does not run");
        let mut state = self.shelf.state();
        state.lent = None;
        state.not_before = Some(Instant::now() + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        io::Write,
        os::unix::{fs::PermissionsExt, net::UnixListener},
        sync::mpsc::{Receiver, Sender, channel},
    };

    use crab_api::programs::{answer, question};
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    /// Longer than any answer takes that comes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A run directory with a program in it, and whoever lends copies of that: one for each word
    /// that it is sent. It tells of each question.
    fn lender() -> (tempfile::TempDir, PathBuf, Sender<()>, Receiver<()>) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(KNOWN);
        fs::write(&program, "program").unwrap();
        let listener = UnixListener::bind(paths::programs_socket(dir.path())).unwrap();
        let (answers, may_answer) = channel();
        let (asked, questions) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let path = question(&stream, PATIENCE).unwrap();
                let _ = asked.send(());
                if may_answer.recv().is_err() {
                    return;
                }
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let mut copy = File::from(memfd_create(KNOWN, flags).unwrap());
                copy.write_all(&fs::read(&path).unwrap()).unwrap();
                copy.set_permissions(Permissions::from_mode(0o555)).unwrap();
                let seals =
                    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
                fcntl_add_seals(&copy, seals).unwrap();
                let _ = answer(&stream, Ok((Identity::of(&path).unwrap(), &copy)));
            }
        });
        (dir, program, answers, questions)
    }

    fn until_lent(programs: &Programs, program: &Path) -> Arc<OwnedFd> {
        let start = Instant::now();
        loop {
            if let Some(copy) = programs.sealed(program) {
                return copy;
            }
            assert!(start.elapsed() < PATIENCE, "none comes");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_copy_that_comes_late_is_there_for_the_next() {
        let (dir, program, answers, questions) = lender();
        let programs = Programs::lent_by_crabd(dir.path());
        assert!(programs.sealed(&program).is_none());
        // Nor is it waited for again, or asked for.
        let start = Instant::now();
        for _ in 0..100 {
            assert!(programs.sealed(&program).is_none());
        }
        assert!(start.elapsed() < LIMIT * 50);
        answers.send(()).unwrap();
        let copy = until_lent(&programs, &program);
        let again = programs.sealed(&program).unwrap();
        assert!(Arc::ptr_eq(&copy, &again));
        assert_eq!(questions.try_iter().count(), 1);
    }

    #[test]
    fn a_program_that_was_replaced_is_asked_for_anew() {
        let (dir, program, answers, questions) = lender();
        let programs = Programs::lent_by_crabd(dir.path());
        answers.send(()).unwrap();
        let copy = until_lent(&programs, &program);
        fs::write(&program, "another").unwrap();
        answers.send(()).unwrap();
        let another = until_lent(&programs, &program);
        assert!(!Arc::ptr_eq(&copy, &another));
        assert_eq!(questions.try_iter().count(), 2);
    }

    #[test]
    fn one_that_does_not_run_is_not_asked_for_again_soon() {
        let (dir, program, answers, questions) = lender();
        let programs = Programs::lent_by_crabd(dir.path());
        answers.send(()).unwrap();
        until_lent(&programs, &program);
        programs.refuse(&program, &io::ErrorKind::PermissionDenied.into());
        answers.send(()).unwrap();
        assert!(programs.sealed(&program).is_none());
        assert_eq!(questions.try_iter().count(), 1);
    }

    #[test]
    fn a_crabd_that_is_not_there_is_asked_when_it_has_come() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(KNOWN);
        fs::write(&program, "program").unwrap();
        let programs = Programs::lent_by_crabd(dir.path());
        assert!(programs.sealed(&program).is_none());
        assert!(programs.shelf.state().not_before.is_none());
        // One that goes away without an answer.
        let listener = UnixListener::bind(paths::programs_socket(dir.path())).unwrap();
        thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(programs.sealed(&program).is_none());
        assert!(programs.shelf.state().not_before.is_none());
    }
}
