// SPDX-License-Identifier: Apache-2.0
//! The formats of cgroup files. Whatever is missing or odd reads as 0 or as nothing.

use std::{collections::HashMap, fs, path::Path};

/// A file with one number; "max" is the largest.
pub(super) fn number(dir: &Path, file: &str) -> u64 {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

/// A file with lines `key value`.
pub(super) struct Keyed(HashMap<String, u64>);

impl Keyed {
    pub(super) fn read(dir: &Path, file: &str) -> Self {
        Self::parse(&fs::read_to_string(dir.join(file)).unwrap_or_default())
    }

    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        });
        Self(pairs.collect())
    }

    /// A value, 0 if there is none.
    pub(super) fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A line of `blkio.*`: `<major>:<minor> [<op>] <value>`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlkioLine<'a> {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) op: &'a str,
    pub(super) value: u64,
}

/// All but the line of the total.
pub(super) fn blkio(text: &str) -> impl Iterator<Item = BlkioLine<'_>> {
    text.lines().filter_map(|line| {
        let (device, rest) = line.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        let (op, value) = rest.rsplit_once(' ').unwrap_or(("", rest));
        Some(BlkioLine {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            op,
            value: value.parse().ok()?,
        })
    })
}

/// The numbers after `key=` in a line of `io.stat`, `rdma.*` or `*.pressure`.
pub(super) fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// One device's use of RDMA.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RdmaLine {
    pub(super) device: String,
    pub(super) handles: u32,
    pub(super) objects: u32,
}

pub(super) fn rdma(dir: &Path, file: &str) -> Vec<RdmaLine> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let count = |key: &str| match field(line, key) {
            Some("max") => u32::MAX,
            value => value.and_then(|v| v.parse().ok()).unwrap_or(0),
        };
        Some(RdmaLine {
            device: line.split_whitespace().next()?.to_owned(),
            handles: count("hca_handle"),
            objects: count("hca_object"),
        })
    });
    lines.collect()
}

/// The sizes of huge pages, as the controller's files name them ("2MB").
pub(super) fn huge_page_sizes() -> Vec<String> {
    let dir = fs::read_dir("/sys/kernel/mm/hugepages");
    let names = dir.into_iter().flatten().flatten();
    let mut sizes: Vec<String> = names
        .filter_map(|entry| page_size(entry.file_name().to_str()?))
        .collect();
    sizes.sort();
    sizes
}

/// From `hugepages-2048kB`.
fn page_size(name: &str) -> Option<String> {
    let kb: u64 = name
        .strip_prefix("hugepages-")?
        .strip_suffix("kB")?
        .parse()
        .ok()?;
    Some(match kb {
        _ if kb >= 1 << 20 => format!("{}GB", kb >> 20),
        _ if kb >= 1 << 10 => format!("{}MB", kb >> 10),
        _ => format!("{kb}KB"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_files_and_their_odd_lines() {
        let stat = Keyed::parse("anon 4096\nodd\nfile x\nslab 1\n");
        assert_eq!((stat.get("anon"), stat.get("slab")), (4096, 1));
        assert_eq!((stat.get("file"), stat.get("none")), (0, 0));
    }

    #[test]
    fn blkio_with_and_without_an_operation() {
        let lines: Vec<_> = blkio("8:0 Read 12\n8:16 7\nTotal 19\n\n").collect();
        let line = |major, minor, op, value| BlkioLine {
            major,
            minor,
            op,
            value,
        };
        assert_eq!(lines, [line(8, 0, "Read", 12), line(8, 16, "", 7)]);
    }

    #[test]
    fn fields_are_found_by_their_whole_key() {
        let line = "8:0 rbytes=1 wbytes=2 rios=3 wios=4";
        assert_eq!(field(line, "wbytes"), Some("2"));
        assert_eq!(field(line, "bytes"), None);
        let pressure = "some avg10=0.10 avg60=0.00 avg300=0.00 total=123";
        assert_eq!(field(pressure, "avg10"), Some("0.10"));
        assert_eq!(field(pressure, "total"), Some("123"));
    }

    #[test]
    fn rdma_names_its_devices() {
        let dir = tempfile::tempdir().unwrap();
        let text = "mlx4_0 hca_handle=2 hca_object=2000\nocrdma1 hca_handle=3 hca_object=max\n";
        fs::write(dir.path().join("rdma.max"), text).unwrap();
        let line = |device: &str, handles, objects| RdmaLine {
            device: device.into(),
            handles,
            objects,
        };
        assert_eq!(
            rdma(dir.path(), "rdma.max"),
            [line("mlx4_0", 2, 2000), line("ocrdma1", 3, u32::MAX)]
        );
    }

    #[test]
    fn page_sizes_are_named_as_the_controller_names_them() {
        let size = |name| page_size(name);
        assert_eq!(size("hugepages-2048kB").as_deref(), Some("2MB"));
        assert_eq!(size("hugepages-1048576kB").as_deref(), Some("1GB"));
        assert_eq!(size("hugepages-64kB").as_deref(), Some("64KB"));
        assert_eq!(size("other"), None);
    }
}
