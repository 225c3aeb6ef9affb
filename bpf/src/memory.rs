// SPDX-License-Identifier: Apache-2.0
//! Memory that loading took and nothing needs afterwards: the kernel's type
//! information is parsed into some 30 MB, half of which the allocator would
//! keep for the daemon's whole life.

#![allow(unsafe_code)] // malloc_trim has no safe wrapper

/// Gives free memory back to the kernel, where the allocator can.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
