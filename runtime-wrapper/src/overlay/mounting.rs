// SPDX-License-Identifier: Apache-2.0
//! Mounting an overlay again, as it was.

use std::{io, os::unix::ffi::OsStrExt, path::Path};

use rustix::{
    fs::CWD,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
    },
    thread::UnshareFlags,
};

use super::{OverlayMount, escape::escape};

impl OverlayMount {
    /// The options for `mount(2)`, paths relative to [`Self::base`] where there is one.
    pub(super) fn data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let short = |path: &Path| {
            let base = self.base.as_deref();
            let inside = base.and_then(|base| path.strip_prefix(base).ok());
            inside.unwrap_or(path).as_os_str().as_bytes().to_vec()
        };
        let mut separator: &[u8] = b"lowerdir=";
        for lower in &self.lowers {
            data.extend_from_slice(separator);
            data.extend(escape(&short(lower), b"\\,:"));
            separator = b":";
        }
        for lower in &self.data_lowers {
            data.extend_from_slice(b"::");
            data.extend(escape(&short(lower), b"\\,:"));
        }
        for (key, path) in [("upperdir", &self.upper), ("workdir", &self.work)] {
            data.extend_from_slice(format!(",{key}=").as_bytes());
            data.extend(escape(&short(path), b"\\,"));
        }
        for option in &self.options {
            data.push(b',');
            data.extend(escape(option.as_bytes(), b"\\,"));
        }
        data
    }

    /// Mounts it at `target`, as it was. `upper` and `work` may have been
    /// exchanged for others; they have to lie on one file system.
    pub fn mount_at(&self, target: &Path) -> io::Result<()> {
        let data = self.data();
        // The kernel cuts off what does not fit the page, silently.
        if data.len() >= rustix::param::page_size() {
            return self.mount_one_by_one(target);
        }
        let data = std::ffi::CString::new(data)?;
        let mounting = || mount(&*self.source, target, c"overlay", self.flags, &*data);
        let Some(base) = &self.base else {
            return Ok(mounting()?);
        };
        // Paths count from the current directory, which a thread can have for
        // itself only, as dockerd and containerd do it.
        std::thread::scope(|scope| -> io::Result<()> {
            let mounted = std::thread::Builder::new().spawn_scoped(scope, || {
                // SAFETY: only CLONE_FS is given up, which leaves the thread
                // with the same descriptors and memory; the thread runs nothing
                // after this function, so that no other code finds itself in
                // another directory.
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
                rustix::process::chdir(base)?;
                mounting()
            })?;
            let joined = mounted.join();
            Ok(joined.unwrap_or(Err(rustix::io::Errno::IO))?)
        })
    }

    /// For options that no page holds (Linux 6.8).
    fn mount_one_by_one(&self, target: &Path) -> io::Result<()> {
        let context = fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let fd = || &context;
        fsconfig_set_string(fd(), c"source", &*self.source)?;
        for lower in &self.lowers {
            fsconfig_set_string(fd(), c"lowerdir+", lower)?;
        }
        for lower in &self.data_lowers {
            fsconfig_set_string(fd(), c"datadir+", lower)?;
        }
        // Unlike the layers, these are unescaped by the kernel also here.
        let escaped = |path: &Path| escape(path.as_os_str().as_bytes(), b"\\");
        fsconfig_set_string(fd(), c"upperdir", escaped(&self.upper))?;
        fsconfig_set_string(fd(), c"workdir", escaped(&self.work))?;
        for option in &self.options {
            let option = option.as_bytes();
            match option.iter().position(|byte| *byte == b'=') {
                Some(at) => fsconfig_set_string(fd(), &option[..at], &option[at + 1..])?,
                None => fsconfig_set_flag(fd(), option)?,
            }
        }
        if self.flags.contains(MountFlags::RDONLY) {
            fsconfig_set_flag(fd(), c"ro")?;
        }
        fsconfig_create(fd())?;
        let mut attributes = MountAttrFlags::empty();
        for (flag, attribute) in [
            (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
            (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
        ] {
            attributes.set(attribute, self.flags.contains(flag));
        }
        let mounted = fsmount(fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(mounted, c"", CWD, target, flags)?)
    }
}
