// SPDX-License-Identifier: Apache-2.0

//! A limit for the checkpoints of all sandboxes of a host together: who gives something up for it,
//! and how much. What must stay of each stays in any case (collect.rs).

use crate::{
    Wanted, collect::bytes_on_disk, error::FileError, id::SandboxId, sandbox::SandboxStore,
    store::Store,
};

/// Of what is allowed, one part in so many is left free when something has to go, or the next
/// checkpoint would be over it again.
const SLACK: u64 = 32;

/// How many bytes have to go where `taken` are taken and `most` are allowed.
pub fn over(taken: u64, most: u64) -> u64 {
    match taken > most {
        true => taken - (most - most / SLACK),
        false => 0,
    }
}

impl Store {
    /// These sandboxes in the order in which they give something up: those that are gone first,
    /// and of each kind the one that is longest unused. Those that cannot be read give nothing.
    pub fn givers<'a>(
        &self,
        sandboxes: impl IntoIterator<Item = &'a SandboxId>,
        is_live: impl Fn(&SandboxId) -> bool,
    ) -> Vec<SandboxStore> {
        let mut givers = Vec::new();
        for (number, id) in sandboxes.into_iter().enumerate() {
            let Ok(sandbox) = self.sandbox(id) else {
                continue;
            };
            let newest = sandbox.latest().ok().flatten();
            let newest = newest.map_or(0, |manifest| manifest.created_ms);
            givers.push(((is_live(id), newest, number), sandbox));
        }
        givers.sort_unstable_by_key(|(key, _)| *key);
        givers.into_iter().map(|(_, sandbox)| sandbox).collect()
    }
}

impl SandboxStore {
    /// How many bytes its packs take of the disk, those that copies have, too, counted.
    pub fn bytes(&self) -> Result<u64, FileError> {
        bytes_on_disk(self)
    }

    /// How many bytes it may keep of the `left` that it has, where `over` have to go. Nothing
    /// where checkpoints would go for nothing: because all else must stay, or since copies have
    /// what they hold, too. `now_ms`: since the Unix epoch.
    pub fn room(&self, left: u64, over: u64, now_ms: u64) -> Option<u64> {
        let shared = self.bytes_shared().unwrap_or(left);
        if left <= shared {
            return None;
        }
        let room = left.saturating_sub(over).max(shared);
        let would = self.would_collect(&Wanted::down_to(room, now_ms)).ok()?;
        (would.bytes_freed > 0).then_some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_go_leaves_a_little_free() {
        assert_eq!(over(3200, 3200), 0);
        assert_eq!(over(3201, 3200), 101);
        assert_eq!(over(1, 0), 1);
        assert_eq!(over(u64::MAX, 1), u64::MAX - 1);
    }
}
