// SPDX-License-Identifier: Apache-2.0
//! Events that the kernel did not run a program for: one that comes while the same
//! program runs on the same processor (an interrupt's) is dropped, and counted by the
//! kernel alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use aya::programs::{ProgramError, ProgramFd, ProgramInfo};

/// What the kernel says of one program.
#[derive(Debug)]
pub(crate) struct Misses {
    /// Of this descriptor.
    _program: ProgramFd,
    fdinfo: File,
}

impl Misses {
    pub(crate) fn of(pin: &Path) -> Result<Self, ProgramError> {
        let program = ProgramInfo::from_pin(pin)?.fd()?;
        let path = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
        let fdinfo = File::open(path).map_err(ProgramError::IOError)?;
        Ok(Self {
            _program: program,
            fdinfo,
        })
    }

    /// Since the program was loaded.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut text = [0; 1024];
        let length = self.fdinfo.read_at(&mut text, 0)?;
        Ok(parse(&String::from_utf8_lossy(&text[..length])))
    }
}

/// None where the kernel (before 5.12) does not say.
fn parse(fdinfo: &str) -> u64 {
    fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("recursion_misses:"))
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_among_the_rest() {
        let text =
            "pos:\t0\nprog_type:\t26\nrun_cnt:\t3\nrecursion_misses:\t7\nverified_insns:\t9\n";
        assert_eq!(parse(text), 7);
        assert_eq!(parse("pos:\t0\n"), 0);
    }
}
