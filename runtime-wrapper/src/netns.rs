// SPDX-License-Identifier: Apache-2.0
//! A network namespace that outlives the container's processes.
//!
//! runc makes a container's network namespace and the kernel drops it with the
//! last process in it: a rollback in place would lose the addresses and
//! interfaces that a CNI plugin or Docker moved in. So the shim makes it, keeps
//! it bound to a file, and names that file in the bundle's configuration. To CRIU
//! it is then an external namespace, which it neither dumps nor makes anew.
//!
//! A namespace that the client names itself (a pod's) is left as it is.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    net::{AddressFamily, SocketType, socket},
    thread::{LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space},
};
use thiserror::Error;

/// Why a network namespace could not be made or let go.
#[derive(Debug, Error)]
#[error("{verb} network namespace {path}: {source}")]
pub struct NetnsError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Makes a network namespace with its loopback interface up, and binds it to
/// `path`.
///
/// # Errors
/// When the kernel refuses (not root), or the path cannot be made.
pub fn create(path: &Path) -> Result<(), NetnsError> {
    let error = |verb: &'static str| {
        move |source: io::Error| NetnsError {
            verb,
            path: path.to_path_buf(),
            source,
        }
    };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(error("make the directory of"))?;
    }
    fs::File::create(path).map_err(error("make"))?;
    // A thread of its own: the namespace of the others must stay.
    let target = path.to_path_buf();
    let making = thread::Builder::new().spawn(move || -> io::Result<()> {
        unshare_net()?;
        loopback_up()?;
        mount_bind("/proc/thread-self/ns/net", &target)?;
        Ok(())
    });
    let panicked = |_| Err(io::Error::other("the thread that made it panicked"));
    let made = making.and_then(|making| making.join().unwrap_or_else(panicked));
    if let Err(source) = made {
        let _ = fs::remove_file(path);
        return Err(error("make")(source));
    }
    Ok(())
}

/// A thread of this process in a network namespace, for whoever knows a namespace only by a
/// process in it (`/proc/<id>/ns/net`), while none is. Gone when dropped.
#[derive(Debug)]
pub struct StandIn {
    id: i32,
    /// It stays until this is dropped.
    _stays: mpsc::Sender<()>,
}

impl StandIn {
    /// Has a thread enter the namespace that is bound to `path`.
    ///
    /// # Errors
    /// When there is none, or the kernel refuses.
    pub fn enter(path: &Path) -> Result<Self, NetnsError> {
        let namespace = path.to_path_buf();
        let (entered, wait) = mpsc::channel();
        let (stays, leave) = mpsc::channel::<()>();
        let entering = thread::Builder::new().spawn(move || {
            let enter = || -> io::Result<i32> {
                let namespace = fs::File::open(namespace)?;
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind)?;
                Ok(gettid().as_raw_nonzero().get())
            };
            let _ = entered.send(enter());
            // Until it is dropped.
            let _ = leave.recv();
        });
        let panicked = |_| Err(io::Error::other("the thread that enters it panicked"));
        let id = entering.and_then(|_| wait.recv().unwrap_or_else(panicked));
        let id = id.map_err(|source| NetnsError {
            verb: "enter",
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self { id, _stays: stays })
    }

    /// By which it is in `/proc`.
    pub fn id(&self) -> i32 {
        self.id
    }
}

/// Lets go of the namespace: the kernel drops it with its last process.
///
/// # Errors
/// When it cannot be unmounted. One that is not there is no error.
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    if !path.exists() {
        return Ok(());
    }
    match unmount(path, UnmountFlags::DETACH) {
        // Somebody else has let go of it, perhaps.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(source) => {
            return Err(NetnsError {
                verb: "unmount",
                path: path.to_path_buf(),
                source: source.into(),
            });
        }
    }
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(NetnsError {
            verb: "remove",
            path: path.to_path_buf(),
            source,
        }),
        _ => Ok(()),
    }
}

fn unshare_net() -> io::Result<()> {
    // SAFETY: unsharing the network namespace touches no memory and no file
    // descriptor table, and this thread ends right after using it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Into::into)
}

/// `ip link set lo up`, by the classic interface ioctls (netdevice(7)).
fn loopback_up() -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is a whole ifreq that lives over the call, and the
    // kernel only reads it for SIOCSIFFLAGS.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_lives_by_its_file_alone_and_goes_with_it() {
        if !rustix::process::getuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net");
        create(&path).unwrap();
        let out = std::process::Command::new("nsenter")
            .arg(format!("--net={}", path.display()))
            .args(["cat", "/proc/net/dev", "/sys/class/net/lo/operstate"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{out:?}");
        assert_eq!(
            text.lines().filter(|l| l.contains(':')).count(),
            1,
            "only loopback: {text}"
        );
        let stand_in = StandIn::enter(&path).unwrap();
        let seen = format!("/proc/{}/ns/net", stand_in.id());
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        assert_eq!(inode(Path::new(&seen)), inode(&path));
        assert_ne!(inode(Path::new("/proc/self/ns/net")), inode(&path));
        drop(stand_in);
        remove(&path).unwrap();
        assert!(!path.exists());
        remove(&path).unwrap();
    }
}
