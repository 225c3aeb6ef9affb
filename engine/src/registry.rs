// SPDX-License-Identifier: Apache-2.0
//! Which sandbox is in which cgroup, and who stands for it.
//!
//! ```text
//!   inherited cgroup --claim--> sandbox --drop, shim's death--> given up
//!        \--nobody claims it in time, and it is empty---------/
//! ```
//!
//! Pure: takes a clock, says which cgroups to give up, and leaves the kernel
//! to its caller. After a restart it knows cgroups but no names; the shims
//! renew their watches and bring them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crab_bpf::CgroupId;

/// How often it is seen whether a watch that a predecessor made still has something to
/// watch. Its shim claims it with its next turn, which may be long after.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Something whose death ends a watch.
pub(crate) trait Liveness {
    fn lives(&self) -> bool;
}

/// Why a cgroup is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The sandbox's shim is dead.
    ShimDied { sandbox: String },
    /// A predecessor's watch that no shim renewed, of a cgroup without processes.
    Unclaimed,
}

#[derive(Debug)]
struct Entry<S> {
    cgroup: CgroupId,
    shim: S,
}

#[derive(Debug)]
pub(crate) struct Registry<S> {
    sandboxes: BTreeMap<String, Entry<S>>,
    unclaimed: BTreeSet<CgroupId>,
    unclaimed_until: Instant,
    /// When somebody last wanted something.
    last_use: Instant,
}

impl<S: Liveness> Registry<S> {
    pub(crate) fn new(inherited: impl IntoIterator<Item = CgroupId>, now: Instant) -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            unclaimed: inherited.into_iter().collect(),
            unclaimed_until: now + GRACE,
            last_use: now,
        }
    }

    /// `sandbox` is in `cgroup` from now on. Gives the cgroup that it was in
    /// before, if another.
    pub(crate) fn claim(&mut self, sandbox: &str, cgroup: CgroupId, shim: S) -> Option<CgroupId> {
        self.unclaimed.remove(&cgroup);
        // A cgroup holds one sandbox: the newest word counts.
        self.sandboxes
            .retain(|name, entry| entry.cgroup != cgroup || name == sandbox);
        let before = self
            .sandboxes
            .insert(sandbox.to_owned(), Entry { cgroup, shim })?;
        (before.cgroup != cgroup).then_some(before.cgroup)
    }

    /// Nobody asks for `sandbox` any more. Gives its cgroup.
    pub(crate) fn drop(&mut self, sandbox: &str) -> Option<CgroupId> {
        self.sandboxes.remove(sandbox).map(|entry| entry.cgroup)
    }

    pub(crate) fn cgroup(&self, sandbox: &str) -> Option<CgroupId> {
        self.sandboxes.get(sandbox).map(|entry| entry.cgroup)
    }

    /// Sandboxes and inherited watches.
    pub(crate) fn len(&self) -> usize {
        self.sandboxes.len() + self.unclaimed.len()
    }

    /// Gives up what nobody stands for any more. `populated` tells which of some cgroups
    /// have processes.
    pub(crate) fn sweep(
        &mut self,
        now: Instant,
        populated: impl FnOnce(&BTreeSet<CgroupId>) -> BTreeSet<CgroupId>,
    ) -> Vec<(CgroupId, Gone)> {
        let mut gone = Vec::new();
        self.sandboxes.retain(|sandbox, entry| {
            let lives = entry.shim.lives();
            if !lives {
                let sandbox = sandbox.clone();
                gone.push((entry.cgroup, Gone::ShimDied { sandbox }));
            }
            lives
        });
        if now >= self.unclaimed_until && !self.unclaimed.is_empty() {
            let living = populated(&self.unclaimed);
            let (kept, unclaimed): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.unclaimed)
                .into_iter()
                .partition(|cgroup| living.contains(cgroup));
            gone.extend(unclaimed.into_iter().map(|c| (c, Gone::Unclaimed)));
            self.unclaimed = kept;
            self.unclaimed_until = now + GRACE;
        }
        if self.len() > 0 || !gone.is_empty() {
            self.used(now);
        }
        gone
    }

    /// Somebody asked for something.
    pub(crate) fn used(&mut self, now: Instant) {
        self.last_use = now;
    }

    /// For how long nobody has wanted anything; none while anything is watched.
    pub(crate) fn idle(&self, now: Instant) -> Option<Duration> {
        (self.len() == 0).then(|| now.saturating_duration_since(self.last_use))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[derive(Clone)]
    struct Life(Rc<Cell<bool>>);

    impl Life {
        fn new() -> Self {
            Self(Rc::new(Cell::new(true)))
        }
    }

    impl Liveness for Life {
        fn lives(&self) -> bool {
            self.0.get()
        }
    }

    fn none(_: &BTreeSet<CgroupId>) -> BTreeSet<CgroupId> {
        BTreeSet::new()
    }

    const A: CgroupId = CgroupId(1);
    const B: CgroupId = CgroupId(2);

    #[test]
    fn a_sandbox_is_given_up_when_its_shim_dies() {
        let now = Instant::now();
        let mut registry = Registry::new([], now);
        let (one, two) = (Life::new(), Life::new());
        registry.claim("ns/one", A, one.clone());
        registry.claim("ns/two", B, two);
        assert_eq!(registry.sweep(now, none), []);
        one.0.set(false);
        let sandbox = "ns/one".to_owned();
        assert_eq!(registry.sweep(now, none), [(A, Gone::ShimDied { sandbox })]);
        assert_eq!(registry.cgroup("ns/one"), None);
        assert_eq!(registry.cgroup("ns/two"), Some(B));
    }

    #[test]
    fn an_inherited_watch_lasts_as_long_as_there_is_something_to_watch() {
        let now = Instant::now();
        let mut registry = Registry::<Life>::new([A, B], now);
        let late = now + GRACE;
        assert_eq!(registry.sweep(late, |_| [A].into()), [(B, Gone::Unclaimed)]);
        // Looked at again only after a while.
        assert_eq!(registry.sweep(late, |_| unreachable!()), []);
        let later = late + GRACE;
        assert_eq!(registry.sweep(later, |_| [A].into()), []);
        assert_eq!(registry.claim("ns/one", A, Life::new()), None);
        assert_eq!(registry.sweep(later + GRACE, |_| unreachable!()), []);
        assert_eq!(registry.cgroup("ns/one"), Some(A));
    }

    #[test]
    fn an_inherited_watch_waits_for_its_shim_but_not_for_ever() {
        let now = Instant::now();
        let mut registry = Registry::new([A, B], now);
        assert_eq!(registry.sweep(now, none), []);
        assert_eq!(registry.claim("ns/one", A, Life::new()), None);
        let late = now + GRACE;
        assert_eq!(registry.sweep(late, none), [(B, Gone::Unclaimed)]);
        assert_eq!(registry.sweep(late, none), []);
        assert_eq!(registry.cgroup("ns/one"), Some(A));
    }

    #[test]
    fn a_sandbox_that_moved_leaves_its_old_cgroup() {
        let mut registry = Registry::new([], Instant::now());
        assert_eq!(registry.claim("ns/one", A, Life::new()), None);
        assert_eq!(registry.claim("ns/one", A, Life::new()), None);
        assert_eq!(registry.claim("ns/one", B, Life::new()), Some(A));
        assert_eq!(registry.drop("ns/one"), Some(B));
        assert_eq!(registry.drop("ns/one"), None);
    }

    #[test]
    fn a_cgroup_changes_hands_without_being_given_up() {
        let mut registry = Registry::new([], Instant::now());
        registry.claim("ns/one", A, Life::new());
        assert_eq!(registry.claim("ns/two", A, Life::new()), None);
        assert_eq!(registry.cgroup("ns/one"), None);
        assert_eq!(registry.len(), 1);
    }

    #[test]
    fn it_is_idle_only_while_nothing_is_watched() {
        let now = Instant::now();
        let mut registry = Registry::new([A], now);
        let later = now + GRACE;
        assert_eq!(registry.idle(later), None);
        registry.sweep(later, none);
        assert_eq!(registry.idle(later), Some(Duration::ZERO));
        registry.claim("ns/one", A, Life::new());
        assert_eq!(registry.idle(later + GRACE), None);
        registry.drop("ns/one");
        registry.used(later + GRACE);
        assert_eq!(registry.idle(later + GRACE * 2), Some(GRACE));
    }
}
