// SPDX-License-Identifier: Apache-2.0
//! Keeping this program's file from the containers (CVE-2019-5736).
//!
//! A process that enters a container is, until it runs the container's program, one whose
//! `/proc/<pid>/exe` is the host's file of this program, and the container's root could
//! write to it. So the program runs again from a mount of its own that is read-only and
//! nowhere attached: a reference through `/proc` is as read-only as that mount. It costs
//! two system calls; where the kernel has not got them (before Linux 5.12), it runs from
//! a sealed copy in memory.

use std::{
    ffi::{CString, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::fs::{
    MemfdFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, fcntl_get_seals, fstatvfs,
    memfd_create,
};

use super::{Failure, io_failure};

const SELF: &str = "/proc/self/exe";

/// Returns when this process's program cannot be written to through it: at once, or as
/// the same command line run again.
pub(super) fn protect() -> Result<(), Failure> {
    let path = Path::new(SELF);
    let program = File::open(path).map_err(io_failure("open", path))?;
    if is_protected(&program).map_err(io_failure("look at", path))? {
        return Ok(());
    }
    let again = read_only_mount()
        .or_else(|_| sealed_copy(program))
        .map_err(io_failure("protect", path))?;
    Err(io_failure("run", path)(run(&again)))
}

fn is_protected(program: &File) -> io::Result<bool> {
    if fcntl_get_seals(program).is_ok_and(|seals| seals.contains(SealFlags::WRITE)) {
        return Ok(true);
    }
    Ok(fstatvfs(program)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY))
}

/// `struct mount_attr` of Linux 5.12.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;

fn read_only_mount() -> io::Result<OwnedFd> {
    let path = CString::new(SELF)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: open_tree takes a path that ends with a NUL, and gives a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    let mount = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let attributes = MountAttributes {
        set: MOUNT_ATTR_RDONLY,
        ..MountAttributes::default()
    };
    let empty = c"";
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor; the structure lives
    // until the call returns, and its size is told.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mount)
}

fn sealed_copy(mut program: File) -> io::Result<OwnedFd> {
    let memory = memfd_create("crab-oci", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut copy = File::from(memory);
    io::copy(&mut program, &mut copy)?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&copy, all)?;
    Ok(copy.into())
}

/// Runs this process's command line and environment again, from that file. Returns only
/// to say why not.
fn run(program: &OwnedFd) -> io::Error {
    let words = |all: &mut dyn Iterator<Item = OsString>| -> Result<Vec<CString>, io::Error> {
        all.map(|word| Ok(CString::new(word.as_bytes())?)).collect()
    };
    let variables = &mut std::env::vars_os().map(|(name, value)| {
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        variable
    });
    let (args, variables) = match (words(&mut std::env::args_os()), words(variables)) {
        (Ok(args), Ok(variables)) => (args, variables),
        (Err(error), _) | (_, Err(error)) => return error,
    };
    let pointers = |words: &[CString]| -> Vec<*mut libc::c_char> {
        let all = words.iter().map(|word| word.as_ptr().cast_mut());
        all.chain([std::ptr::null_mut()]).collect()
    };
    let (args, variables) = (pointers(&args), pointers(&variables));
    // SAFETY: both lists end with a null pointer, and what they point to lives in `args`
    // and `variables` above until the call returns; nothing is written to.
    unsafe {
        libc::execveat(
            program.as_raw_fd(),
            c"".as_ptr(),
            args.as_ptr(),
            variables.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_copy_is_protected_and_the_file_itself_is_not() {
        let program = File::open("/bin/sh").unwrap();
        assert!(!is_protected(&program).unwrap());
        let copy = File::from(sealed_copy(program).unwrap());
        assert!(is_protected(&copy).unwrap());
    }
}
