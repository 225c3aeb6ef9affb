// SPDX-License-Identifier: Apache-2.0
//! What the kernel side knows a sandbox by.

use std::fmt;

/// Inode of a directory in the cgroup v2 hierarchy: the id of that cgroup, in
/// hybrid and in unified mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A superblock, by its `s_dev` as the kernel holds it (`major << 20 | minor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device(pub(crate) u64);

impl Device {
    /// From a `st_dev` of stat(2), whose bits are in another order.
    ///
    /// Take it from a directory: files on overlayfs may show the device of a
    /// lower layer, and btrfs shows subvolumes, which are not superblocks.
    #[must_use]
    pub fn from_st_dev(st_dev: u64) -> Self {
        let major = u64::from(rustix::fs::major(st_dev));
        let minor = u64::from(rustix::fs::minor(st_dev));
        Self(major << 20 | minor)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0 >> 20, self.0 & 0xf_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_put_into_the_kernels_order() {
        let st_dev = rustix::fs::makedev(8, 0x12345);
        assert_eq!(Device::from_st_dev(st_dev).0, 8 << 20 | 0x12345);
        assert_eq!(Device::from_st_dev(0x2f).to_string(), "0:47");
    }
}
