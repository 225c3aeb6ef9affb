// SPDX-License-Identifier: Apache-2.0
//! What a capture is expected to take: by class and bytes, learned per sandbox.

use std::time::Duration;

use crate::job::Class;

/// How fast bytes come out of a sandbox beyond what it usually holds. Memory to memory.
const BYTES_PER_MS: u64 = 1_000_000;
/// The part of what is remembered that a new observation takes the place of.
const NEW: u32 = 4;

/// What one sandbox's captures have taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Costs([Option<Usual>; Class::ALL.len()]);

#[derive(Debug, Clone, Copy)]
struct Usual {
    took: Duration,
    bytes: u64,
}

/// Before anything is known: CRIU's own floor for a small sandbox, or a walk of the files.
fn at_first(class: Class) -> Duration {
    Duration::from_millis(match class {
        Class::Files => 5,
        Class::Processes => 80,
        Class::Full => 100,
    })
}

impl Costs {
    /// A capture has taken so long.
    pub(crate) fn note(&mut self, class: Class, took: Duration, bytes: u64) {
        let usual = &mut self.0[class as usize];
        *usual = Some(match *usual {
            None => Usual { took, bytes },
            Some(before) => Usual {
                took: (before.took * (NEW - 1) + took) / NEW,
                bytes: before.bytes - before.bytes / u64::from(NEW) + bytes / u64::from(NEW),
            },
        });
    }

    /// What one of so many bytes is expected to take.
    pub(crate) fn expected(&self, class: Class, bytes: u64) -> Duration {
        let (took, usual_bytes) = match self.0[class as usize] {
            Some(usual) => (usual.took, usual.bytes),
            None => (at_first(class), 0),
        };
        took + Duration::from_millis(bytes.saturating_sub(usual_bytes) / BYTES_PER_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn what_captures_of_a_sandbox_took_is_expected_again() {
        let mut costs = Costs::default();
        assert_eq!(costs.expected(Class::Full, 0), MS(100));
        assert_eq!(costs.expected(Class::Full, 50_000_000), MS(150));
        costs.note(Class::Full, MS(300), 200_000_000);
        assert_eq!(costs.expected(Class::Full, 200_000_000), MS(300));
        assert_eq!(costs.expected(Class::Full, 300_000_000), MS(400));
        costs.note(Class::Full, MS(100), 200_000_000);
        assert_eq!(costs.expected(Class::Full, 0), MS(250));
        assert_eq!(costs.expected(Class::Files, 0), MS(5), "another class");
    }
}
