// SPDX-License-Identifier: Apache-2.0

//! A process beside what the agent does, whose memory is known to the last byte.

use anyhow::Result;

use super::{
    drive::{Hand, Part},
    state::Probe,
};
use crate::sandbox::Sandbox;

/// Its memory changes with every so many turns.
const EVERY: usize = 3;

/// Whether there is one. It is where the agent leaves processes, too: in a run that leaves none
/// it would be what decides who can bring that run back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// None.
    None,
    /// One.
    Some,
}

impl Marks {
    /// Makes what the agent found, and starts it.
    pub(super) fn set_up<'a>(self, part: &'a Part, sandbox: &'a Sandbox) -> Result<Hand<'a>> {
        let hand = Hand::set_up(part, sandbox)?;
        if self == Self::Some {
            sandbox.sh_ok(&Probe::start())?;
        }
        Ok(hand)
    }

    /// What is to be done after a turn, counted from 0, as a shell script.
    pub fn after(self, n: usize) -> String {
        match self {
            Self::Some if n.is_multiple_of(EVERY) => Probe::poke(n as u64),
            _ => String::new(),
        }
    }
}
