// SPDX-License-Identifier: Apache-2.0
//! The values of the maps, as the kernel side declares them in `c/effects.h`:
//! plain arrays of 64-bit words, so that no cast is needed on either side.

use crate::ids::Device;
use crate::tracer::MAX_DEVICES;

/// `struct crab_counters`
pub(crate) type Counters = [u64; 16];

/// `struct crab_member`: a [`Counters`], the period, then devices up to the
/// first 0.
pub(crate) type MemberWords = [u64; DEVICES + MAX_DEVICES];

const PERIOD: usize = 16;
const DEVICES: usize = 17;

const _: () = assert!(size_of::<Counters>() == 128);
const _: () = assert!(size_of::<MemberWords>() == 392);

/// What a sandbox did since its watch began. Only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Changes to files, directories, symlinks and special files.
    pub files: u64,
    /// Forks, execs and exits, of threads too.
    pub processes: u64,
    /// Mounts, unmounts and the like.
    pub mounts: u64,
    /// Made so far: writable shared file mappings, io_uring and AIO instances,
    /// loop devices. Through them files may change with no further call.
    pub unseen: u64,
    /// Events that could not be counted. An increase means "may have changed".
    pub lost: u64,
    /// System calls that were completed while there was attention
    /// ([`crate::Tracer::attend`]), those of spared processes left out.
    pub calls: u64,
    /// Connections that it began to make; loopback is left out.
    pub connected: u64,
    /// Sockets that it began to listen at.
    pub listened: u64,
    /// Bytes that it sent over IP.
    pub sent: u64,
}

/// The places in [`Counters`] that user space adds to.
pub(crate) const MOUNTS: usize = 2;
pub(crate) const LOST: usize = 4;

impl Effects {
    /// In the order of `enum crab_counter`.
    pub(crate) fn from_words(words: &Counters) -> Self {
        let [
            files,
            processes,
            mounts,
            unseen,
            lost,
            calls,
            connected,
            listened,
            sent,
            ..,
        ] = *words;
        Self {
            files,
            processes,
            mounts,
            unseen,
            lost,
            calls,
            connected,
            listened,
            sent,
        }
    }
}

/// Processes whose system calls are not in [`Effects::calls`]: those that only hold a
/// sandbox open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    /// The inode number of the innermost pid namespace that they are in.
    pub pid_namespace: u32,
    /// Their process ids there; those after the third are not spared.
    pub pids: Vec<u32>,
}

/// `struct crab_spared`
pub(crate) type SparedWords = [u32; 4];

impl Spared {
    pub(crate) fn to_words(&self) -> SparedWords {
        let mut words = [self.pid_namespace, 0, 0, 0];
        for (word, pid) in words[1..].iter_mut().zip(&self.pids) {
            *word = *pid;
        }
        words
    }
}

pub(crate) fn add(to: &mut Counters, what: &Counters) {
    for (to, what) in to.iter_mut().zip(what) {
        *to = to.saturating_add(*what);
    }
}

/// Which devices are a sandbox's, and what it keeps of those that no longer
/// are: without that its sum would fall when one goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) base: Counters,
    /// Tells this watch from an earlier one of the same cgroup: counters of
    /// one must not be compared with the other's.
    pub(crate) period: u64,
    pub(crate) devices: Vec<Device>,
}

impl Member {
    pub(crate) fn to_words(&self) -> MemberWords {
        let mut words = [0; DEVICES + MAX_DEVICES];
        words[..PERIOD].copy_from_slice(&self.base);
        words[PERIOD] = self.period;
        for (word, device) in words[DEVICES..].iter_mut().zip(&self.devices) {
            *word = device.0;
        }
        words
    }

    pub(crate) fn from_words(words: &MemberWords) -> Self {
        let mut base = Counters::default();
        base.copy_from_slice(&words[..PERIOD]);
        Self {
            base,
            period: words[PERIOD],
            devices: words[DEVICES..]
                .iter()
                .take_while(|&&device| device != 0)
                .map(|&device| Device(device))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_survives_its_map() {
        let member = Member {
            base: [1, 2, 3, 4, 5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            period: 6,
            devices: (1..=MAX_DEVICES as u64).map(Device).collect(),
        };
        assert_eq!(Member::from_words(&member.to_words()), member);
        let none = Member::default();
        assert_eq!(Member::from_words(&none.to_words()), none);
    }
}
