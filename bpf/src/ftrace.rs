// SPDX-License-Identifier: Apache-2.0
//! Whether programs at functions of the kernel are run at all.

use std::fs;

/// See `Documentation/admin-guide/sysctl/kernel.rst`.
const SWITCH: &str = "/proc/sys/kernel/ftrace_enabled";

/// Whether the administrator has switched all function hooks off. The kernel then attaches
/// such programs as ever, and runs none of them; and those that were attached before stop.
///
/// What cannot be read counts as off, but a kernel without the switch has no way to be so.
pub(crate) fn is_off() -> bool {
    match fs::read_to_string(SWITCH) {
        Ok(text) => text.trim() == "0",
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}
