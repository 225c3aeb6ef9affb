// SPDX-License-Identifier: Apache-2.0
//! The overlay mount that is a container's root: its directories, and how to
//! mount it again.
//!
//! The truth is `/proc/<pid>/mountinfo`, since Docker mounts the root before it
//! calls the shim and containerd lets the shim do it. Three ways of writing the
//! options occur:
//!
//! * absolute paths in `lowerdir=a:b`, where a path escapes `:` and `\` with a
//!   backslash, and the kernel escapes comma, blank and backslash once more, in octal;
//! * the same relative to a directory that the mounter had changed to, because
//!   all together would not fit the page that `mount(2)` takes: Docker (upper,
//!   work and lowers, from `.../overlay2`) and containerd (lowers only, from
//!   `.../snapshots`);
//! * `lowerdir+=a,lowerdir+=b`, one by one through `fsconfig(2)`, without
//!   escapes of overlayfs' own.
//!
//! Refuses a root that is no overlay of its own: it never looks at the parent
//! of a directory to find one.

mod escape;
mod mounting;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::{fs::makedev, mount::MountFlags};

pub(crate) use self::escape::unescape_octal;
use self::escape::{split_lowers, unescape};

/// An overlay as it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayMount {
    /// Where.
    pub mount_point: PathBuf,
    /// Its device number, as `stat` gives it for its directories.
    pub dev: u64,
    /// The directory that holds what the container wrote. Absolute.
    pub upper: PathBuf,
    /// The directory that overlayfs works in, beside it. Absolute.
    pub work: PathBuf,
    /// The layers below, the uppermost first. Absolute.
    pub lowers: Vec<PathBuf>,
    /// Layers that only hold data for other layers' metadata (`::`).
    pub data_lowers: Vec<PathBuf>,
    /// Overlayfs keeps its attributes under `user.overlay.`.
    pub user_xattr: bool,
    /// Its source, a free text.
    pub source: OsString,
    /// The options of the mount point.
    pub flags: MountFlags,
    /// All other options.
    pub options: Vec<OsString>,
    /// What relative paths are relative to, if any were.
    pub base: Option<PathBuf>,
}

/// Why a root has no overlay to work with.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The table of mounts cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// Which.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// Another kind of file system.
    #[error("rootfs {} is {fstype}, not overlay", path.display())]
    NotOverlay {
        /// The root.
        path: PathBuf,
        /// What it is on.
        fstype: String,
    },
    /// It lies in an overlay that is something else's.
    #[error("rootfs {} is a directory of a file system ({fstype}) mounted at {}, not an overlay of its own", path.display(), mount_point.display())]
    NotMounted {
        /// The root.
        path: PathBuf,
        /// Where the file system is mounted.
        mount_point: PathBuf,
        /// What it is.
        fstype: String,
    },
    /// Nothing can be written to it.
    #[error("rootfs {} is a read-only overlay: it has no upper directory", .0.display())]
    NoUpper(PathBuf),
    /// Relative paths lead nowhere.
    #[error("overlay at {}: cannot find what {} is relative to", mount_point.display(), path.display())]
    NoBase {
        /// Where it is mounted.
        mount_point: PathBuf,
        /// The path.
        path: PathBuf,
    },
    /// A line that the kernel does not write.
    #[error("mountinfo: {0:?} is no mount")]
    Malformed(String),
}

/// What one line of mountinfo says.
struct Line<'a> {
    dev: u64,
    mount_point: Vec<u8>,
    flags: &'a [u8],
    fstype: &'a [u8],
    source: Vec<u8>,
    options: &'a [u8],
}

impl OverlayMount {
    /// Finds the overlay that is mounted at `mount_point` in the mount
    /// namespace of process `pid`. Paths are understood in the caller's.
    pub fn find(pid: u32, mount_point: &Path) -> Result<Self, OverlayError> {
        let path = format!("/proc/{pid}/mountinfo");
        let table = std::fs::read(&path).map_err(|source| OverlayError::Read { path, source })?;
        Self::parse(&table, mount_point)?.absolute(|path| path.symlink_metadata().is_ok())
    }

    /// Finds it in a mountinfo table. Its paths are as the options have them.
    fn parse(table: &[u8], at: &Path) -> Result<Self, OverlayError> {
        let mut best: Option<Line<'_>> = None;
        for line in table.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            let malformed = || OverlayError::Malformed(String::from_utf8_lossy(line).into_owned());
            let line = Line::parse(line).ok_or_else(malformed)?;
            let here = Path::new(OsStr::from_bytes(&line.mount_point));
            // The later of two at one place covers the other.
            if at.starts_with(here)
                && best
                    .as_ref()
                    .is_none_or(|best| line.mount_point.len() >= best.mount_point.len())
            {
                best = Some(line);
            }
        }
        let line = best.ok_or_else(|| OverlayError::Malformed(String::new()))?;
        let fstype = String::from_utf8_lossy(line.fstype).into_owned();
        let mount_point = PathBuf::from(OsString::from_vec(line.mount_point));
        if fstype != "overlay" {
            return Err(OverlayError::NotOverlay {
                path: at.into(),
                fstype,
            });
        }
        if mount_point != at {
            return Err(OverlayError::NotMounted {
                path: at.into(),
                mount_point,
                fstype,
            });
        }
        let mut found = Self {
            dev: line.dev,
            upper: PathBuf::new(),
            work: PathBuf::new(),
            lowers: Vec::new(),
            data_lowers: Vec::new(),
            user_xattr: false,
            source: OsString::from_vec(line.source),
            flags: mount_flags(line.flags),
            options: Vec::new(),
            base: None,
            mount_point,
        };
        for option in line.options.split(|byte| *byte == b',') {
            found.take_option(option);
        }
        if found.upper.as_os_str().is_empty() {
            return Err(OverlayError::NoUpper(found.mount_point));
        }
        Ok(found)
    }

    fn take_option(&mut self, option: &[u8]) {
        let (key, value) = match option.iter().position(|byte| *byte == b'=') {
            // `lowerdir+=` has its sign in the key.
            Some(equals) => (&option[..equals], &option[equals + 1..]),
            None => (option, &b""[..]),
        };
        let path = || PathBuf::from(OsString::from_vec(unescape_octal(value)));
        // The kernel shows these two as it was given them.
        let escaped_path = || {
            let shown = unescape_octal(value);
            PathBuf::from(OsString::from_vec(unescape(&shown)))
        };
        match key {
            b"upperdir" => self.upper = escaped_path(),
            b"workdir" => self.work = escaped_path(),
            b"lowerdir+" => self.lowers.push(path()),
            b"datadir+" => self.data_lowers.push(path()),
            b"lowerdir" => {
                for (layer, data) in split_lowers(value) {
                    let layers = if data {
                        &mut self.data_lowers
                    } else {
                        &mut self.lowers
                    };
                    layers.push(OsString::from_vec(layer).into());
                }
            }
            b"rw" => {}
            b"ro" => self.flags |= MountFlags::RDONLY,
            _ => {
                self.user_xattr |= key == b"userxattr";
                let text = OsString::from_vec(unescape_octal(option));
                self.options.push(text);
            }
        }
    }

    /// Finds what relative paths are relative to: the directory that holds the
    /// container's own layer.
    fn absolute(mut self, exists: impl Fn(&Path) -> bool) -> Result<Self, OverlayError> {
        let all = |found: &Self| {
            let dirs = [&found.upper, &found.work].into_iter();
            dirs.chain(&found.lowers)
                .chain(&found.data_lowers)
                .filter(|path| path.is_relative())
                .cloned()
                .collect::<Vec<_>>()
        };
        let relative = all(&self);
        let Some(first) = relative.first() else {
            return Ok(self);
        };
        let above = |path: &Path| path.parent()?.parent().map(Path::to_owned);
        let absolute = [&self.upper, &self.work].into_iter().chain(&self.lowers);
        let candidates = std::iter::once(&self.mount_point)
            .chain(absolute.filter(|path| path.is_absolute()))
            .filter_map(|path| above(path));
        let base = candidates
            .into_iter()
            .find(|base| relative.iter().all(|path| exists(&base.join(path))))
            .ok_or_else(|| OverlayError::NoBase {
                mount_point: self.mount_point.clone(),
                path: first.clone(),
            })?;
        let dirs = [&mut self.upper, &mut self.work].into_iter();
        for path in dirs.chain(&mut self.lowers).chain(&mut self.data_lowers) {
            // Joining an absolute path changes nothing.
            *path = base.join(&*path);
        }
        self.base = Some(base);
        Ok(self)
    }
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let dev = makedev(major.parse().ok()?, minor.parse().ok()?);
        let mount_point = unescape_octal(fields.nth(1)?);
        let flags = fields.next()?;
        // Any number of optional fields, then a dash.
        fields.find(|field| *field == b"-")?;
        Some(Self {
            dev,
            mount_point,
            flags,
            fstype: fields.next()?,
            source: unescape_octal(fields.next()?),
            options: fields.next().unwrap_or_default(),
        })
    }
}

fn mount_flags(options: &[u8]) -> MountFlags {
    let each = options.split(|byte| *byte == b',');
    each.fold(MountFlags::empty(), |flags, option| {
        flags
            | match option {
                b"ro" => MountFlags::RDONLY,
                b"nosuid" => MountFlags::NOSUID,
                b"nodev" => MountFlags::NODEV,
                b"noexec" => MountFlags::NOEXEC,
                b"noatime" => MountFlags::NOATIME,
                b"nodiratime" => MountFlags::NODIRATIME,
                b"relatime" => MountFlags::RELATIME,
                _ => MountFlags::empty(),
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &str, at: &str) -> Result<OverlayMount, OverlayError> {
        let table = format!(
            "26 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
             47 26 0:39 / /r/7/merged rw,nosuid,relatime shared:3 - overlay overlay {options}\n"
        );
        OverlayMount::parse(table.as_bytes(), Path::new(at))
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn every_way_of_escaping_gives_the_same_layers() {
        let rest = "upperdir=/u\\0401,workdir=/w\\134\\054k,index=off";
        for lowers in [
            // As the mounter wrote it, mangled once more by the kernel.
            "lowerdir=/l\\134:1:/l\\134\\0542:/l\\0403:/l\\134\\1344",
            // One by one.
            "lowerdir+=/l:1,lowerdir+=/l\\0542,lowerdir+=/l\\0403,lowerdir+=/l\\1344",
        ] {
            let found = parse(&format!("rw,{lowers},{rest}"), "/r/7/merged").unwrap();
            assert_eq!(found.lowers, paths(&["/l:1", "/l,2", "/l 3", "/l\\4"]));
            assert_eq!(found.upper, Path::new("/u 1"));
            assert_eq!(found.options, ["index=off"]);
            assert_eq!(found.dev, makedev(0, 39));
            assert_eq!(found.flags, MountFlags::NOSUID | MountFlags::RELATIME);
            let data = String::from_utf8(found.data()).unwrap();
            assert_eq!(
                data,
                "lowerdir=/l\\:1:/l\\,2:/l 3:/l\\\\4,upperdir=/u 1,workdir=/w\\,k,index=off"
            );
        }
    }

    #[test]
    fn a_colon_in_octal_and_data_layers_are_understood() {
        assert_eq!(
            split_lowers(b"/a\\072b:/c::/d"),
            [
                (b"/a:b".to_vec(), false),
                (b"/c".to_vec(), false),
                (b"/d".to_vec(), true)
            ]
        );
    }

    #[test]
    fn relative_paths_count_from_above_the_containers_layer() {
        // Docker: all of them.
        let found = parse(
            "rw,lowerdir=l/A:l/B,upperdir=7/diff,workdir=7/work",
            "/r/7/merged",
        );
        let found = found.unwrap().absolute(|_| true).unwrap();
        assert_eq!(found.upper, Path::new("/r/7/diff"));
        assert_eq!(found.lowers, paths(&["/r/l/A", "/r/l/B"]));
        let data = String::from_utf8(found.data()).unwrap();
        assert_eq!(data, "lowerdir=l/A:l/B,upperdir=7/diff,workdir=7/work");

        // containerd: the lower ones, and the mount point is elsewhere.
        let options = "rw,lowerdir=6/fs:5/fs,upperdir=/s/8/fs,workdir=/s/8/work";
        let found = parse(options, "/r/7/merged").unwrap();
        let found = found.absolute(|path| path.starts_with("/s")).unwrap();
        assert_eq!(found.lowers, paths(&["/s/6/fs", "/s/5/fs"]));
        let lost = parse(options, "/r/7/merged").unwrap().absolute(|_| false);
        assert!(matches!(lost, Err(OverlayError::NoBase { .. })));
    }

    #[test]
    fn what_is_no_overlay_of_its_own_is_refused() {
        let options = "rw,lowerdir=/l,upperdir=/u,workdir=/w";
        let text = |at| parse(options, at).unwrap_err().to_string();
        assert_eq!(
            text("/r/8/merged"),
            "rootfs /r/8/merged is ext4, not overlay"
        );
        assert!(text("/r/7/merged/x").contains("not an overlay of its own"));
        let read_only = parse("ro,lowerdir=/l:/m", "/r/7/merged");
        assert!(matches!(read_only, Err(OverlayError::NoUpper(_))));
    }
}
