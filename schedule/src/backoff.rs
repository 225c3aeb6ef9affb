// SPDX-License-Identifier: Apache-2.0
//! How far work in the background steps back while processes wait for a processor.
//!
//! The kernel says which share of the last ten seconds some process was ready and had no processor
//! (`/proc/pressure/cpu`, "some"). Above a limit, what may run at a time is halved with each
//! reading, down to one; well below it, it is doubled again. So it never stops, and what an agent
//! waits for is not held back by it.

/// A percentage in hundredths, as the kernel prints them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hundredths(pub u32);

/// From which pressure on to step back, and below which to come again.
const PRESSED: Hundredths = Hundredths(40_00);
const CALM: Hundredths = Hundredths(20_00);
/// So often halved, everything is one.
const MOST: u32 = 16;

/// The average over ten seconds in the kernel's text; nothing if that has none.
pub fn cpu_pressure(text: &str) -> Option<Hundredths> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let avg10 = some
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix("avg10="))?;
    let (whole, rest) = avg10.split_once('.')?;
    let (whole, rest): (u32, u32) = (whole.parse().ok()?, rest.parse().ok()?);
    (rest < 100 && whole <= 100).then_some(Hundredths(whole * 100 + rest))
}

/// How often what may run was halved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backoff {
    halved: u32,
}

impl Backoff {
    pub(crate) fn read(&mut self, pressure: Hundredths) {
        if pressure >= PRESSED {
            self.halved = (self.halved + 1).min(MOST);
        } else if pressure < CALM {
            self.halved = self.halved.saturating_sub(1);
        }
    }

    /// How much of what may run at a time may do so in the background.
    pub(crate) fn limit(self, most: usize) -> usize {
        (most >> self.halved.min(usize::BITS - 1)).max(1).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let text = "some avg10=12.05 avg60=0.39 avg300=0.13 total=1\nfull avg10=99.00 avg60=0.00";
        assert_eq!(cpu_pressure(text), Some(Hundredths(1205)));
        for wrong in [
            "",
            "some",
            "full avg10=1.00",
            "some avg10=x",
            "some avg10=1.234",
        ] {
            assert_eq!(cpu_pressure(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn work_steps_back_under_pressure_and_comes_again_after_it() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.limit(8), 8);
        backoff.read(Hundredths(50_00));
        assert_eq!(backoff.limit(8), 4);
        (0..40).for_each(|_| backoff.read(Hundredths(90_00)));
        assert_eq!(backoff.limit(8), 1, "it never stops");
        backoff.read(Hundredths(30_00));
        assert_eq!(backoff.limit(8), 1);
        (0..40).for_each(|_| backoff.read(Hundredths(1_00)));
        assert_eq!(backoff.limit(8), 8);
    }
}
