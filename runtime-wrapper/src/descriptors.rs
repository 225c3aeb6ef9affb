// SPDX-License-Identifier: Apache-2.0
//! How many descriptors this process may have open, and what it starts.
//!
//! A service may have 1024, and as many as its hard limit if it asks for them (systemd's
//! `DefaultLimitNOFILE=1024:524288`). A shim has some for each process of its containers and
//! each file that a capture looks at. But a container without a limit of its own has that of
//! whoever started its runtime, and there are programs that use `select(2)`, or close every
//! descriptor up to the limit: what is started from here has the limit that this process was
//! given.

use std::{io, os::unix::process::CommandExt, process::Command, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was given, if it has taken more.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Takes as many as are to be had, for this process alone.
///
/// # Errors
/// When the kernel refuses.
pub fn take_all() -> io::Result<()> {
    let given = getrlimit(Resource::Nofile);
    if given.current == given.maximum {
        return Ok(());
    }
    let all = Rlimit {
        current: given.maximum,
        maximum: given.maximum,
    };
    // First: who is started meanwhile does not have more.
    let _ = GIVEN.set(given);
    Ok(setrlimit(Resource::Nofile, all)?)
}

/// Has a command begin with the limit that this process was given.
pub(crate) fn give(command: &mut Command) {
    let Some(given) = GIVEN.get().copied() else {
        return;
    };
    // SAFETY: between fork and exec only prlimit(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::Nofile, given)?));
    }
}
