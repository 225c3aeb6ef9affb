// SPDX-License-Identifier: Apache-2.0
//! aya's errors in one line: they keep the kernel's answer out of their text,
//! in a source, or follow it with pages of verifier output. Their `Debug` form
//! holds all of it.

use std::error::Error;

/// The error and its causes, each cut to its first line.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let whole = error.to_string();
        let line = whole.lines().next().unwrap_or_default();
        let line = line.split(". Verifier output").next().unwrap_or_default();
        // Some repeat their source.
        if !text.contains(line) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(line);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::programs::ProgramError;
    use aya::sys::SyscallError;
    use std::io;

    #[test]
    fn the_kernels_answer_is_in_the_line() {
        let error = ProgramError::SyscallError(SyscallError {
            call: "bpf_raw_tracepoint_open",
            io_error: io::Error::from_raw_os_error(1),
        });
        assert_eq!(
            one_line(&error),
            "`bpf_raw_tracepoint_open` failed: Operation not permitted (os error 1)"
        );
    }
}
