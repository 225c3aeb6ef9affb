// SPDX-License-Identifier: Apache-2.0

//! A process that a test plants, to see whether memory comes back.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use anyhow::{Context, Result};

use super::{Digest, maps::Mapping};

const PROGRAM: &str = include_str!("probe.py");
/// Where it is in a container.
const FILE: &str = "/var/tmp/crab-probe/probe.py";
/// As in the program.
const MAGIC: &[u8; 32] = b"crab probe, version 1 \xc3\xb7\x91\x07\xee\x9a\x11\xd4\x8f\x02";
const SIZE: usize = 1 << 20;
const PAGE: usize = 4096;
/// A mapping larger than this is not looked through.
const LARGEST: u64 = 1 << 30;

/// Plants it: scripts for an exec of `sh -c`, in an image with Python. A [`Witness`] takes its
/// memory as a part of the state, the same in two runs with the same pokes.
///
/// [`Witness`]: super::Witness
#[derive(Debug)]
pub struct Probe;

impl Probe {
    /// A script that starts it in the background, and ends when it runs.
    pub fn start() -> String {
        let here = FILE.strip_suffix("/probe.py").unwrap_or(FILE);
        format!(
            "mkdir -p {here} && cat >{FILE} <<'END' && exec python3 {FILE} start\n{PROGRAM}END\n"
        )
    }

    /// A script that changes its memory in a way that depends on the number and on what was
    /// there before; it ends when that is done, and fails if no probe runs.
    pub fn poke(n: u64) -> String {
        format!("exec python3 {FILE} poke {n}")
    }
}

/// Whether a command line is that of one.
pub(super) fn is_one(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    words.next() == Some(FILE.as_bytes()) && words.next() == Some(b"start")
}

/// The digest of a probe's memory; nothing if the process has no such memory. Its neighbours in
/// the same mapping, which the kernel may have merged with it, do not count.
pub(super) fn memory(pid: u32) -> Result<Option<Digest>> {
    let table = fs::read(format!("/proc/{pid}/maps")).context("read its mappings")?;
    let memory = File::open(format!("/proc/{pid}/mem")).context("open its memory")?;
    for line in table.split(|byte| *byte == b'\n') {
        let Some(mapping) = Mapping::parse(line) else {
            continue;
        };
        let length = mapping.end.saturating_sub(mapping.start);
        let anonymous = mapping.may == b"rw-p" && mapping.inode == 0 && mapping.path.is_empty();
        if !anonymous || length < SIZE as u64 || length > LARGEST {
            continue;
        }
        let mut magic = [0; MAGIC.len()];
        for at in (mapping.start..=mapping.end - SIZE as u64).step_by(PAGE) {
            if memory.read_exact_at(&mut magic, at).is_ok() && magic == *MAGIC {
                let mut bytes = vec![0; SIZE];
                memory
                    .read_exact_at(&mut bytes, at)
                    .context("read its memory")?;
                return Ok(Some(blake3::hash(&bytes).into()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_known_by_its_command_line() {
        let line = format!("python3\0{FILE}\0start\0");
        assert!(is_one(line.as_bytes()));
        assert!(!is_one(line.replace("start", "poke").as_bytes()));
        assert!(!is_one(b"python3\0/tmp/probe.py\0start\0"));
        assert!(!is_one(b""));
    }

    #[test]
    fn the_program_has_the_same_magic_and_does_not_end_its_own_script() {
        let escaped: String = MAGIC
            .iter()
            .map(|byte| match byte.is_ascii_graphic() || *byte == b' ' {
                true => char::from(*byte).to_string(),
                false => format!("\\x{byte:02x}"),
            })
            .collect();
        assert!(PROGRAM.contains(&format!("b\"{escaped}\"")), "{escaped}");
        assert!(PROGRAM.lines().all(|line| line != "END"));
        assert!(Probe::start().ends_with("\nEND\n"));
    }
}
