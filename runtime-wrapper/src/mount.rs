// SPDX-License-Identifier: Apache-2.0
//! Mounting a container's root, and finding the memory-backed mounts in it.
//!
//! The client hands the shim a list of mounts in the form of fstab (type,
//! source, options); a root is usually one overlay.

mod table;

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, Mode, OFlags, open},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount,
        move_mount, unmount,
    },
};
use thiserror::Error;

pub use self::table::{MountPoint, mount_points};
use crate::in_root::{Links, open_in_root};

/// Why something could not be mounted or unmounted.
#[derive(Debug, Error)]
#[error("{verb} {target}: {source}")]
pub struct MountError {
    verb: &'static str,
    target: PathBuf,
    source: io::Error,
}

impl MountError {
    fn new(verb: &'static str, target: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            verb,
            target: target.to_path_buf(),
            source: source.into(),
        }
    }
}

/// One mount as a client describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountRequest {
    /// The file system's type, e.g. `overlay` or `bind`.
    pub kind: String,
    /// The source.
    pub source: String,
    /// Where below the root; empty for the root itself.
    pub target: String,
    /// Options as in fstab.
    pub options: Vec<String>,
}

/// Splits options into mount flags and what the file system itself gets.
fn split_options(options: &[String]) -> (MountFlags, Vec<&str>) {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options {
        match option.as_str() {
            "ro" => flags |= MountFlags::RDONLY,
            "rw" | "defaults" | "" | "async" | "suid" | "dev" | "exec" => {}
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "noatime" => flags |= MountFlags::NOATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "bind" => flags |= MountFlags::BIND,
            "rbind" => flags |= MountFlags::BIND | MountFlags::REC,
            other => data.push(other),
        }
    }
    (flags, data)
}

/// The kernel takes at most a page of options, and cuts off the rest in silence.
const PAGE: usize = 4096;

/// Mounts an overlay of so many layers that its options exceed a page: each layer is
/// told by itself (`lowerdir+`, Linux 6.5).
fn mount_long_overlay(
    request: &MountRequest,
    flags: MountFlags,
    data: &[&str],
    target: &Path,
) -> io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", request.source.as_str())?;
    for option in data {
        match option.split_once('=') {
            Some(("lowerdir", layers)) => {
                for layer in layers.split(':') {
                    fsconfig_set_string(&context, "lowerdir+", layer)?;
                }
            }
            Some((key, value)) => fsconfig_set_string(&context, key, value)?,
            None => fsconfig_set_flag(&context, *option)?,
        }
    }
    if flags.contains(MountFlags::RDONLY) {
        fsconfig_set_flag(&context, "ro")?;
    }
    fsconfig_create(&context)?;
    let of_the_mount = [
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
    ];
    let attributes = of_the_mount
        .into_iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .fold(MountAttrFlags::empty(), |all, (_, one)| all | one);
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&mounted, "", CWD, target, whole)?)
}

/// A place below a root whose links are an image's, and are followed as a process in that
/// root would: never out of it (containerd's `fs.RootPath`).
fn place(root: &Path, target: &str) -> io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(root, directory, Mode::empty())?;
    Ok(open_in_root(root, target, OFlags::PATH, Links::Followed)?)
}

/// The path of what is open here.
fn descriptor(place: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", place.as_raw_fd()).into()
}

fn unmapped() -> io::Error {
    io::Error::other(
        "layers mapped to another user are not supported: run the pod in the host's user namespace (hostUsers: true)",
    )
}

/// Mounts one request at `root` (or below it).
///
/// # Errors
/// When the kernel refuses.
pub fn mount_request(request: &MountRequest, root: &Path) -> Result<(), MountError> {
    let target = if request.target.is_empty() {
        root.to_path_buf()
    } else {
        root.join(request.target.trim_start_matches('/'))
    };
    let (flags, data) = split_options(&request.options);
    if data.iter().any(|o| o.starts_with("uidmap=")) {
        // containerd's own option for idmapped layers; the kernel knows none of that name.
        return Err(MountError::new("mount", &target, unmapped()));
    }
    let find = || match request.target.as_str() {
        "" => Ok((target.clone(), None)),
        below => place(root, below)
            .map(|place| (descriptor(&place), Some(place)))
            .map_err(|e| MountError::new("find", &target, e)),
    };
    let (at, _open) = find()?;
    let bind = flags.contains(MountFlags::BIND);
    if request.kind == "overlay" && data.iter().map(|o| o.len() + 1).sum::<usize>() >= PAGE {
        return mount_long_overlay(request, flags, &data, &at)
            .map_err(|e| MountError::new("mount", &target, e));
    }
    let data = std::ffi::CString::new(data.join(","))
        .map_err(|e| MountError::new("mount", &target, io::Error::other(e)))?;
    let kind = if bind { "" } else { request.kind.as_str() };
    mount(request.source.as_str(), &at, kind, flags, data.as_c_str())
        .map_err(|e| MountError::new("mount", &target, e))?;
    if bind && flags.contains(MountFlags::RDONLY) {
        // A bind ignores every flag but the recursion at first (mount(2)).
        let (at, _open) = find()?;
        rustix::mount::mount_remount(&at, flags, c"")
            .map_err(|e| MountError::new("make read-only", &target, e))?;
    }
    Ok(())
}

/// Unmounts whatever is mounted at `target`, all of it; nothing there is no
/// error. Lazily if it is busy: then what still uses it keeps it alive.
///
/// # Errors
/// When the kernel refuses.
pub fn unmount_all(target: &Path) -> Result<(), MountError> {
    loop {
        match unmount(target, UnmountFlags::empty()) {
            Ok(()) => {}
            // Not a mount point, or nothing there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(rustix::io::Errno::BUSY) => detach(target)?,
            Err(error) => return Err(MountError::new("unmount", target, error)),
        }
    }
}

/// Unmounts lazily what was mounted there a moment ago; somebody else may have done so since.
fn detach(target: &Path) -> Result<(), MountError> {
    match unmount(target, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(MountError::new("unmount", target, error)),
    }
}

/// For how long somebody on the host may use a mount who only looks at it: a `statfs` of a
/// monitor, the walk of a path through it. That takes microseconds.
const PASSING: Duration = Duration::from_secs(2);

/// Unmounts with these flags, again for as long as whoever uses it may only pass.
fn unmount_when_free(target: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    let start = Instant::now();
    loop {
        match unmount(target, flags) {
            Err(rustix::io::Errno::BUSY) if start.elapsed() < PASSING => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Whether nothing uses the mount at `target` beside the mount itself, so that it
/// could be unmounted now. (The first expiring unmount only marks the mount, and tells
/// whether it is in use: umount(2).) Who only looks at it is waited for.
///
/// # Errors
/// When it stays in use, or is no mount point.
pub fn check_unused(target: &Path) -> Result<(), MountError> {
    match unmount_when_free(target, UnmountFlags::EXPIRE) {
        Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(MountError::new("unmount", target, error)),
        // Marked by somebody else before: gone now.
        Ok(()) => Err(MountError::new(
            "keep mounted",
            target,
            io::Error::other("somebody else was unmounting it"),
        )),
    }
}

/// Unmounts the one mount at `target`, or fails if something still uses it. Who only looks at it
/// is waited for.
///
/// # Errors
/// When it stays busy or is no mount point.
pub fn unmount_strict(target: &Path) -> Result<(), MountError> {
    unmount_when_free(target, UnmountFlags::empty())
        .map_err(|e| MountError::new("unmount", target, e))
}

/// Unmounts whatever is mounted below a directory: what a killed CRIU has left, which mounts the
/// host's cgroups below its working directory while it restores (`.criu.cgyard.*`).
///
/// # Errors
/// When the kernel refuses.
pub fn unmount_below(dir: &Path) -> Result<(), MountError> {
    let table = Path::new("/proc/self/mountinfo");
    let table = fs::read(table).map_err(|e| MountError::new("read", table, e))?;
    let below = points(&table).into_iter().rev();
    below
        .filter(|point| point.starts_with(dir))
        .try_for_each(|point| detach(&point))
}

/// Removes a directory with all that is in it, but nothing of what is mounted there: that is
/// unmounted first.
///
/// # Errors
/// When the kernel refuses; nothing was removed if it did not let go of a mount.
pub fn remove_tree(dir: &Path) -> Result<(), MountError> {
    unmount_below(dir)?;
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(MountError::new("remove", dir, error))
        }
        _ => Ok(()),
    }
}

/// A writable tmpfs of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tmpfs {
    /// Where, in the container, e.g. `/dev/shm`.
    pub path: PathBuf,
    /// Its superblock's device number, as `stat` tells it.
    pub device: u64,
}

impl Tmpfs {
    /// The name of the file in which CRIU keeps this mount's content
    /// (`tmpfs-dev-%u.tar.gz` in its image-desc.c; the number is the kernel's
    /// encoding of the device).
    pub fn criu_image(&self) -> String {
        criu_image(self.device)
    }
}

/// The same of any tmpfs.
pub(crate) fn criu_image(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("tmpfs-dev-{}.tar.gz.img", (major << 20) | minor)
}

/// The writable tmpfs mounts that are a container's own: those that a process of it
/// sees and we do not. One that is mounted here, too, is a bind of the host's or of
/// another container's (`/dev/shm` with `--ipc=host`, a pod's memory volume): what is
/// written there is an effect outside, which no rollback may undo.
///
/// # Errors
/// When the process is gone.
pub fn tmpfs_of(pid: i32) -> Result<Vec<Tmpfs>, MountError> {
    let path = PathBuf::from(format!("/proc/{pid}/mountinfo"));
    let read = |path: &Path| fs::read(path).map_err(|e| MountError::new("read", path, e));
    let ours = devices_in(&read(Path::new("/proc/self/mountinfo"))?);
    let mut found = tmpfs_in(&read(&path)?);
    found.retain(|tmpfs| !ours.contains(&tmpfs.device));
    Ok(found)
}

/// Where the mounts of a mountinfo table are, in the order of the paths; as often as something
/// is mounted there.
pub fn points(table: &[u8]) -> Vec<PathBuf> {
    let points = mount_points(table).into_iter();
    let mut points: Vec<PathBuf> = points.map(|point| point.at).collect();
    points.sort();
    points
}

/// The device numbers of everything in a mountinfo table.
fn devices_in(table: &[u8]) -> BTreeSet<u64> {
    let points = mount_points(table).into_iter();
    points.map(|point| point.device).collect()
}

fn tmpfs_in(table: &[u8]) -> Vec<Tmpfs> {
    let mut found: Vec<Tmpfs> = Vec::new();
    for point in mount_points(table) {
        // A later mount at the same place hides the earlier one.
        found.retain(|tmpfs| tmpfs.path != point.at);
        let below = |dir: &str| point.at.starts_with(dir);
        let writable = !point.read_only && !point.sealed;
        if point.kind == "tmpfs" && point.whole && writable && !below("/proc") && !below("/sys") {
            found.push(Tmpfs {
                path: point.at,
                device: point.device,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_tmpfs_of_the_container_itself_counts() {
        let table = b"\
1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a\n\
2 1 0:51 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k\n\
3 2 0:52 / /dev/shm rw - tmpfs shm rw\n\
4 1 0:53 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs rw\n\
5 1 0:54 / /proc/acpi ro - tmpfs tmpfs ro\n\
6 1 0:55 / /run\\040x rw shared:5 - tmpfs tmpfs rw\n\
7 1 0:24 /host /mnt rw - tmpfs tmpfs rw\n\
8 3 0:56 / /dev/shm rw - tmpfs shm2 rw\n\
9 1 8:1 / /data rw - ext4 /dev/sda rw\n";
        let found = tmpfs_in(table);
        let paths: Vec<_> = found.iter().map(|t| t.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/dev", "/run x", "/dev/shm"]);
        assert_eq!(found[2].device, rustix::fs::makedev(0, 56));
        assert_eq!(found[2].criu_image(), "tmpfs-dev-56.tar.gz.img");
        let points = points(table);
        assert_eq!(points.len(), 9);
        assert_eq!(points[7..], ["/run x", "/sys/fs/cgroup"].map(PathBuf::from));
    }

    #[test]
    fn what_is_mounted_here_too_is_not_the_containers_own() {
        let ours = devices_in(b"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / /dev/shm rw - tmpfs b rw\n");
        assert!(ours.contains(&rustix::fs::makedev(0, 9)));
        assert!(!ours.contains(&rustix::fs::makedev(0, 8)));
    }

    #[test]
    fn layers_that_are_to_be_mapped_are_refused_with_what_to_do() {
        let request = MountRequest {
            kind: "overlay".into(),
            options: vec!["lowerdir=/l".into(), "uidmap=0:65536:65536".into()],
            ..Default::default()
        };
        let error = mount_request(&request, Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().starts_with("mount /nowhere: layers"));
        assert!(error.to_string().contains("hostUsers: true"));
    }

    #[test]
    fn links_of_an_image_lead_nowhere_out_of_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc/x")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("absolute")).unwrap();
        std::os::unix::fs::symlink("../../../etc", root.join("up")).unwrap();
        for target in ["/absolute/x", "up/x", "/etc/x", "../etc/x"] {
            let place = place(&root, target).unwrap();
            let found = fs::read_link(descriptor(&place)).unwrap();
            assert_eq!(
                found,
                root.canonicalize().unwrap().join("etc/x"),
                "{target}"
            );
        }
        assert!(place(&root, "/absolute/passwd").is_err());
    }

    #[test]
    fn who_only_looks_at_a_mount_holds_up_no_unmount() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root mounts");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        mount("crab-test", at, "tmpfs", MountFlags::empty(), None).unwrap();
        let used_for_a_while = |then: fn(&Path) -> Result<(), MountError>| {
            let looks = fs::File::open(at).unwrap();
            let until = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                drop(looks);
            });
            then(at).unwrap();
            until.join().unwrap();
        };
        used_for_a_while(check_unused);
        used_for_a_while(unmount_strict);
        // Nothing is mounted there any more: somebody else was quicker.
        assert!(unmount_strict(at).is_err());
        detach(at).unwrap();
        detach(&at.join("gone")).unwrap();
    }

    #[test]
    fn flags_and_data_are_told_apart() {
        let options: Vec<String> = ["ro", "nosuid", "lowerdir=/a:/b", "index=off"]
            .map(String::from)
            .to_vec();
        let (flags, data) = split_options(&options);
        assert_eq!(flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(data, ["lowerdir=/a:/b", "index=off"]);
    }
}
