// SPDX-License-Identifier: Apache-2.0
//! Tells containerd when the kernel has killed something of a container for its memory.
//!
//! ```text
//! v1  memory.oom_control --eventfd--+
//! v2  memory.events --poll----------+--> oom_kill larger than what was told? --> /tasks/oom
//! an exit is about to be told ------+
//! ```
//! The kernel's count decides, not how often it rings: nothing is told twice, and as each
//! exit has the count looked at first, the event never comes after the exit that it explains.
//! Where nothing rings, exits alone have it looked at.
//!
//! No inotify, which the kernel's documents name for v2: of those there are 128 for all of a
//! user's processes by default (`fs.inotify.max_user_instances`), and shims are root's.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use containerd_shim_protos::events::task as events;
use rustix::event::{EventfdFlags, eventfd};
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

/// A watched container; dropped, it is not watched any more.
pub(crate) struct OomWatch {
    kills: Arc<Kills>,
    /// What rings when it may be time to look.
    bell: Option<JoinHandle<()>>,
}

/// Watches a container; none where its memory is not limited by a cgroup.
pub(crate) fn watch(id: &str, groups: &Groups, publisher: &Publisher) -> Option<OomWatch> {
    let unified = Groups::unified();
    let (controller, file) = match unified {
        true => ("", "memory.events"),
        false => ("memory", "memory.oom_control"),
    };
    let dir = groups.dir(controller)?;
    let path = dir.join(file);
    if !path.exists() {
        return None;
    }
    let kills = Arc::new(Kills {
        id: id.into(),
        publisher: publisher.clone(),
        dir,
        unified,
        told: Mutex::default(),
    });
    let ringing = kills.clone();
    let bell = match unified {
        true => ring_by_poll(&path, move || {
            ringing.look();
        }),
        false => ring_by_eventfd(&path, ringing),
    };
    let bell = bell.inspect_err(|error| {
        // Worth no container's life.
        let path = path.display();
        tracing::warn!(%path, %error, "OOM events come with exits alone");
    });
    // A cgroup that was there before has a past.
    *lock(&kills.told) = kills.count();
    Some(OomWatch {
        kills,
        bell: bell.ok(),
    })
}

impl OomWatch {
    /// Before an exit is told: what explains it comes first.
    pub(crate) fn look(&self) {
        self.kills.look();
    }
}

impl Drop for OomWatch {
    fn drop(&mut self) {
        if let Some(bell) = &self.bell {
            bell.abort();
        }
    }
}

fn register<T: AsRawFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the descriptor is owned, stays the same one and stays open until the
    // registration is dropped together with it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(registered?)
}

/// Does something each time that a file of a v2 cgroup is changed by the kernel, until the
/// cgroup is gone. A change is an exceptional condition (`EPOLLPRI`) until it is read.
fn ring_by_poll(
    file: &Path,
    mut look: impl FnMut() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let file = register(File::open(file)?, Interest::PRIORITY)?;
    let mut byte = [0];
    // From here on changes ring.
    file.get_ref().read_at(&mut byte, 0)?;
    Ok(tokio::spawn(async move {
        while let Ok(mut rings) = file.ready(Interest::PRIORITY).await {
            // First: what changes after this rings again.
            rings.clear_ready();
            if file.get_ref().read_at(&mut byte, 0).is_err() {
                return;
            }
            look();
        }
    }))
}

fn ring_by_eventfd(control: &Path, kills: Arc<Kills>) -> io::Result<JoinHandle<()>> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let file = File::open(control)?;
    fs::write(
        control.with_file_name("cgroup.event_control"),
        format!("{} {}", bell.as_raw_fd(), file.as_raw_fd()),
    )?;
    let bell = register(bell, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
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
    }))
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
    use std::process::Command;

    use crab_runtime::reaper::Reaper;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// Whether something is in a cgroup is told by the same means as how much was killed, and
    /// needs no memory controller.
    #[tokio::test]
    async fn a_change_of_a_file_of_a_cgroup_rings_each_time() {
        let v2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let v2 = v2.iter().map(Path::new);
        let Some(v2) = v2.into_iter().find(|dir| dir.join("cgroup.procs").exists()) else {
            eprintln!("skipped: no cgroup v2 is mounted");
            return;
        };
        let dir = match tempfile::tempdir_in(v2) {
            Ok(dir) => dir.keep(),
            Err(error) => {
                eprintln!("skipped: no cgroup can be made: {error}");
                return;
            }
        };
        let (told, mut rings) = unbounded_channel();
        let watch = ring_by_poll(&dir.join("cgroup.events"), move || {
            let _ = told.send(());
        });
        let watch = watch.unwrap();
        for _ in 0..3 {
            // In it, and out of it as it ends.
            let mut inside = Command::new("sh");
            let script = "echo $$ >\"$0\"/cgroup.procs";
            inside.args(["-c", script]).arg(&dir);
            let run = move || Reaper::start()?.output(&mut inside, None);
            let ended = tokio::task::spawn_blocking(run).await.unwrap();
            let (status, said) = ended.unwrap();
            assert_eq!(status, 0, "{}", String::from_utf8_lossy(&said));
            let rung = tokio::time::timeout(Duration::from_secs(60), rings.recv());
            assert_eq!(rung.await, Ok(Some(())));
        }
        while fs::remove_dir(&dir).is_err() {
            sleep(Duration::from_millis(1)).await;
        }
        watch.abort();
    }

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
