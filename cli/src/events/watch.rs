// SPDX-License-Identifier: Apache-2.0

//! When something may have come new in a store: inotify on the directories of namespaces and of
//! sandboxes. Where the host has no watch left to give, and until there is a store, by looking again
//! and again.

use std::{
    collections::HashMap,
    io::{self, Stdout},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use crab_store::{SandboxId, Store};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

/// How often is looked where nothing tells.
const PAUSE: Duration = Duration::from_millis(300);
/// As long as a burst of changes is waited out, so that it costs one look.
const BURST: Duration = Duration::from_millis(5);
const JOURNAL: &str = "journal";

/// What a change concerns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// These journals.
    Journals(Vec<SandboxId>),
    /// Which sandboxes there are, or nobody knows what.
    Anything,
    /// Nobody reads what is printed any more.
    Unread,
}

/// What is watched.
pub(crate) struct Watch {
    /// Nothing where the kernel has none to give.
    inotify: Option<OwnedFd>,
    /// Whose journal is in a directory; nothing for one of namespaces or of sandboxes.
    dirs: HashMap<i32, Option<SandboxId>>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok(),
            dirs: HashMap::new(),
        }
    }

    /// Watches all directories of a store. What was made before this is not told of: a look
    /// follows.
    pub(crate) fn cover(&mut self, store: &Store, sandboxes: &[SandboxId]) {
        let root = store.sandboxes_dir();
        let names = WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::DELETE;
        if !root.is_dir() {
            // Only until it is made: more than that happens there.
            self.add(store.root(), names, None);
        }
        self.add(&root, names, None);
        for namespace in subdirectories(&root) {
            self.add(&namespace, names, None);
        }
        let content = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        for sandbox in sandboxes {
            let dir = root.join(sandbox.namespace()).join(sandbox.id());
            self.add(&dir, content, Some(sandbox.clone()));
        }
    }

    fn add(&mut self, dir: &Path, flags: WatchFlags, sandbox: Option<SandboxId>) {
        let Some(inotify) = &self.inotify else { return };
        match inotify::add_watch(inotify, dir, flags | WatchFlags::ONLYDIR) {
            Ok(watch) => {
                self.dirs.insert(watch, sandbox);
            }
            // It is gone; that was told.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => {
                self.inotify = None;
                self.dirs.clear();
            }
        }
    }

    /// Waits until something has changed, or may have.
    pub(crate) fn wait(&mut self, stdout: &Stdout) -> io::Result<Changed> {
        let pause = match self.inotify.is_some() && !self.dirs.is_empty() {
            true => None,
            false => Some(PAUSE),
        };
        if is_unread(self.inotify.as_ref(), stdout, pause)? {
            return Ok(Changed::Unread);
        }
        if self.inotify.is_none() {
            return Ok(Changed::Anything);
        }
        std::thread::sleep(BURST);
        self.read()
    }

    fn read(&mut self) -> io::Result<Changed> {
        let Some(inotify) = &self.inotify else {
            return Ok(Changed::Anything);
        };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(inotify, &mut buffer);
        let (mut journals, mut is_other, mut is_any) = (Vec::new(), false, false);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            };
            is_any = true;
            match self.dirs.get(&event.wd()) {
                _ if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => is_other = true,
                _ if event.events().contains(ReadFlags::IGNORED) => {
                    self.dirs.remove(&event.wd());
                }
                Some(Some(sandbox)) => {
                    let name = event.file_name().map(|name| name.to_bytes());
                    if name == Some(JOURNAL.as_bytes()) && journals.last() != Some(sandbox) {
                        journals.push(sandbox.clone());
                    }
                }
                _ => is_other = true,
            }
        }
        journals.sort_unstable();
        journals.dedup();
        Ok(match is_other || !is_any {
            true => Changed::Anything,
            false => Changed::Journals(journals),
        })
    }
}

/// Waits for news, or so long; whether it is that nobody reads what is printed.
pub(crate) fn is_unread(
    inotify: Option<&OwnedFd>,
    stdout: &Stdout,
    pause: Option<Duration>,
) -> io::Result<bool> {
    let pause = pause.map(Timespec::try_from).transpose();
    let pause = pause.map_err(io::Error::other)?;
    // Of a pipe, the error is that its reader has gone. Nothing is asked of it but that.
    let mut fds = vec![PollFd::new(stdout, PollFlags::empty())];
    fds.extend(inotify.map(|inotify| PollFd::new(inotify, PollFlags::IN)));
    match poll(&mut fds, pause.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    Ok(fds[0].revents().intersects(gone))
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}
