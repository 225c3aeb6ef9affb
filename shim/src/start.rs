// SPDX-License-Identifier: Apache-2.0
//! `start`: leave a shim running and print its address.
//!
//! ```text
//! containerd --start--> this process --listens, forks--> the shim (fd 3: the socket)
//!            <--address--
//! ```
//! The socket listens before the address is printed, so that containerd's first
//! connection is queued even if the shim has not begun to accept.
//!
//! The containers of a pod have one shim, that of the first: see [`crate::pod`].

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, PermissionsExt},
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{args::Args, bundle::CONFIG, pod::Annotations, shim_cgroup};

/// The descriptor at which the shim finds its listening socket.
pub(crate) const LISTENER_FD: i32 = 3;

/// The file in the bundle that holds the shim's address; containerd and
/// `delete` read it.
pub(crate) const ADDRESS_FILE: &str = "address";

/// The name of a shim's socket. The same for the same group (or container) of the same
/// containerd, so that a second start finds the first's shim.
fn socket_name(args: &Args, group: &str) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [args.address.as_str(), &args.namespace, group] {
        hash.update(part.as_bytes());
        hash.update(b"\0");
    }
    format!("crab-{}", &hash.finalize().to_hex()[..40])
}

/// Listens on `path`. `None`: a living shim has it already.
fn listen(path: &Path) -> Result<Option<UnixListener>> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(dir)
            .with_context(|| format!("make {}", dir.display()))?;
    }
    match bind(path) {
        Ok(listener) => return Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        Err(error) => return Err(error).with_context(|| format!("listen on {}", path.display())),
    }
    if UnixStream::connect(path).is_ok() {
        return Ok(None);
    }
    // Left behind by a shim that was killed.
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    bind(path)
        .map(Some)
        .with_context(|| format!("listen on {}", path.display()))
}

/// Whoever can write to the socket is the container's master.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Starts a shim in the current directory, the bundle, unless its pod has one, and
/// tells the address. A new one goes to its cgroup, if one is named.
pub(crate) fn start(args: &Args, socket_dir: &Path, cgroup: &str) -> Result<String> {
    let config = match fs::read(CONFIG) {
        // containerd's sandbox API, in which a shim makes the surroundings of a pod by
        // itself. Otherwise containerd makes a pause container, and the files that a
        // pod's containers share: those nobody else could make.
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "there is no config.json in the bundle: pods run under Crab with a pause container, \
             so for this runtime leave out sandboxer = \"shim\" (containerd 1.7: sandbox_mode)"
        ),
        config => config.context("read config.json in the bundle")?,
    };
    let annotations = Annotations::of(&config);
    let group = annotations.group().unwrap_or(&args.id);
    let path = socket_dir.join(socket_name(args, group));
    let address = format!("unix://{}", path.display());
    fs::write(ADDRESS_FILE, &address).context("write the address into the bundle")?;
    let Some(listener) = listen(&path)? else {
        return Ok(address);
    };
    let program = std::env::current_exe().context("find the shim's own program")?;
    let mut command = Command::new(program);
    command.args(["-namespace", &args.namespace, "-id", &args.id]);
    command.args(["-address", &args.address]);
    if args.debug {
        command.arg("-debug");
    }
    command
        // As a service's main process containerd has it. `runc start` would wait for the
        // container to say there that it is ready, for ever.
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    inherit(&mut command, listener.into());
    let mut child = command.spawn().context("start the shim")?;
    if !cgroup.is_empty()
        && let Err(error) = shim_cgroup::join(child.id(), cgroup)
    {
        let _ = child.kill();
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    // Killing a shim ends its container: the kernel should pick others first.
    // Refused without CAP_SYS_RESOURCE; then it stays as containerd's own.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "-998");
    Ok(address)
}

/// Hands `fd` to the command as [`LISTENER_FD`].
fn inherit(command: &mut Command, fd: OwnedFd) {
    // SAFETY: between fork and exec only dup2 and fcntl are called, which are
    // async-signal-safe; `fd` is owned by the closure, so open until then.
    unsafe {
        command.pre_exec(move || {
            let raw = fd.as_raw_fd();
            let done = if raw == LISTENER_FD {
                // dup2 to itself would keep the close-on-exec flag.
                libc::fcntl(raw, libc::F_SETFD, 0)
            } else {
                libc::dup2(raw, LISTENER_FD)
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_shims_socket_is_taken_over_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s/x");
        let first = listen(&path).unwrap();
        assert!(first.is_some());
        assert!(listen(&path).unwrap().is_none(), "it lives");
        drop(first);
        assert!(listen(&path).unwrap().is_some(), "it is dead");
    }
}
