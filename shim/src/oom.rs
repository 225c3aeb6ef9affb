// SPDX-License-Identifier: Apache-2.0
//! Tells containerd when the kernel has killed something of a container for its memory.
//!
//! ```text
//! v1  memory.oom_control --eventfd--+
//! v2  memory.events --inotify-------+--> oom_kill larger than what was told? --> /tasks/oom
//! an exit is about to be told ------+
//! ```
//! The kernel's count decides, not how often it rings: nothing is told twice, and as each
//! exit has the count looked at first, the event never comes after the exit that it explains.
//! There is one inotify per shim: few are to be had, and the Go shim's, one per container,
//! have been used up on hosts with many.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result};
use containerd_shim_protos::events::task as events;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::inotify,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    publisher::{Event, Publisher},
    stats::Groups,
};

/// v1 rings before it kills: for so long after, the count is looked at.
const KILL_COMES: [u64; 7] = [0, 1, 2, 5, 10, 20, 50];

/// What is known of one container's kills.
struct Kills {
    id: String,
    publisher: Publisher,
    dir: PathBuf,
    unified: bool,
    /// The kernel's count when it was told last.
    told: Mutex<u64>,
}

impl Kills {
    /// The kernel's own count: of the whole tree in v2, of one directory in v1.
    fn count(&self) -> u64 {
        if self.unified {
            keyed(&self.dir.join("memory.events"), "oom_kill ")
        } else {
            count_below(&self.dir)
        }
    }

    /// Tells of what was killed since the last time. Whether there was anything.
    fn look(&self) -> bool {
        // Held until it is told: whoever comes second may tell an exit next.
        let mut told = lock(&self.told);
        let count = self.count();
        // A child cgroup that is gone takes its count along.
        let grown = count > std::mem::replace(&mut *told, count);
        if grown {
            self.tell();
        }
        grown
    }

    fn tell(&self) {
        self.publisher.publish(Event::Oom(events::TaskOOM {
            container_id: self.id.clone(),
            ..Default::default()
        }));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keyed(file: &Path, key: &str) -> u64 {
    fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        .unwrap_or(0)
}

fn count_below(dir: &Path) -> u64 {
    let children = fs::read_dir(dir).into_iter().flatten().flatten();
    let below: u64 = children
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| count_below(&entry.path()))
        .sum();
    below + keyed(&dir.join("memory.oom_control"), "oom_kill ")
}

/// Watches the containers of a shim.
#[derive(Default)]
pub(crate) struct OomWatcher {
    /// Made for the first container that needs it.
    inotify: Mutex<Option<Arc<Inotify>>>,
}

/// A watched container; dropped, it is not watched any more.
pub(crate) struct OomWatch {
    kills: Arc<Kills>,
    _bell: Bell,
}

/// What rings when it may be time to look.
enum Bell {
    V1(JoinHandle<()>),
    V2 { inotify: Arc<Inotify>, watch: i32 },
}

impl OomWatcher {
    /// Watches a container; none where its memory is not limited by a cgroup.
    pub(crate) fn watch(
        &self,
        id: &str,
        groups: &Groups,
        publisher: &Publisher,
    ) -> Result<Option<OomWatch>> {
        let unified = Groups::unified();
        let (controller, file) = match unified {
            true => ("", "memory.events"),
            false => ("memory", "memory.oom_control"),
        };
        let dir = groups.dir(controller);
        let Some(dir) = dir.filter(|dir| dir.join(file).exists()) else {
            return Ok(None);
        };
        let path = dir.join(file);
        let kills = Arc::new(Kills {
            id: id.into(),
            publisher: publisher.clone(),
            dir,
            unified,
            told: Mutex::default(),
        });
        let bell = match unified {
            true => self.inotify()?.watch(&path, &kills),
            false => ring_by_eventfd(&path, kills.clone()),
        };
        let bell = bell.with_context(|| format!("watch {}", path.display()))?;
        // A cgroup that was there before has a past.
        *lock(&kills.told) = kills.count();
        Ok(Some(OomWatch { kills, _bell: bell }))
    }

    fn inotify(&self) -> Result<Arc<Inotify>> {
        let mut inotify = lock(&self.inotify);
        match &*inotify {
            Some(inotify) => Ok(inotify.clone()),
            None => {
                let new = Inotify::start().context("make an inotify instance")?;
                Ok(inotify.insert(new).clone())
            }
        }
    }
}

impl OomWatch {
    /// Before an exit is told: what explains it comes first.
    pub(crate) fn look(&self) {
        self.kills.look();
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        match self {
            Self::V1(task) => task.abort(),
            Self::V2 { inotify, watch } => {
                lock(&inotify.watched).remove(watch);
                // It went by itself with the cgroup, perhaps.
                let _ = inotify::remove_watch(inotify.fd.get_ref(), *watch);
            }
        }
    }
}

/// The one inotify of this shim.
struct Inotify {
    fd: AsyncFd<OwnedFd>,
    watched: Mutex<HashMap<i32, Weak<Kills>>>,
}

impl Inotify {
    fn start() -> io::Result<Arc<Self>> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let fd = inotify::init(flags)?;
        let this = Arc::new(Self {
            fd: register(fd)?,
            watched: Mutex::default(),
        });
        let ringing = this.clone();
        // As long as the shim lives.
        tokio::spawn(async move { while ringing.ring().await.is_ok() {} });
        Ok(this)
    }

    fn watch(self: Arc<Self>, file: &Path, kills: &Arc<Kills>) -> io::Result<Bell> {
        let mut watched = lock(&self.watched);
        let watch = inotify::add_watch(self.fd.get_ref(), file, inotify::WatchFlags::MODIFY)?;
        watched.insert(watch, Arc::downgrade(kills));
        drop(watched);
        Ok(Bell::V2 {
            inotify: self,
            watch,
        })
    }

    async fn ring(&self) -> io::Result<()> {
        let mut ready = self.fd.readable().await?;
        let mut space = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.fd.get_ref().as_fd(), &mut space);
        loop {
            match events.next() {
                Ok(event) => {
                    let kills = lock(&self.watched).get(&event.wd()).cloned();
                    if let Some(kills) = kills.and_then(|kills| kills.upgrade()) {
                        kills.look();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, stays the same one and stays open until the
    // registration is dropped together with it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(registered?)
}

fn ring_by_eventfd(control: &Path, kills: Arc<Kills>) -> io::Result<Bell> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let file = File::open(control)?;
    fs::write(
        control.with_file_name("cgroup.event_control"),
        format!("{} {}", bell.as_raw_fd(), file.as_raw_fd()),
    )?;
    let bell = register(bell)?;
    Ok(Bell::V1(tokio::spawn(async move {
        while hear(&bell).await.is_ok() {
            let mut found = false;
            for pause in KILL_COMES {
                sleep(Duration::from_millis(pause)).await;
                found = kills.look();
                if found {
                    break;
                }
            }
            // Nothing is killed where that is switched off: all stand still.
            if !found && keyed(&kills.dir.join("memory.oom_control"), "under_oom ") > 0 {
                kills.tell();
            }
        }
    })))
}

async fn hear(bell: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut ready = bell.readable().await?;
        let read = ready.try_io(|fd| {
            let mut count = [0; 8];
            rustix::io::read(fd.as_fd(), &mut count).map_err(Into::into)
        });
        if let Ok(read) = read {
            return read.map(drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_of_child_cgroups_count_in_v1() {
        let dir = tempfile::tempdir().unwrap();
        let write = |dir: &Path, kills: u32| {
            let text = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
            fs::write(dir.join("memory.oom_control"), text).unwrap();
        };
        let child = dir.path().join("child");
        fs::create_dir(&child).unwrap();
        write(dir.path(), 2);
        write(&child, 3);
        assert_eq!(count_below(dir.path()), 5);
        fs::remove_dir_all(&child).unwrap();
        assert_eq!(count_below(dir.path()), 2);
    }
}
