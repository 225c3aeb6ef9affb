// SPDX-License-Identifier: Apache-2.0

//! Which turn goes on from which, in a sandbox and from sandbox to sandbox: from journals
//! alone. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crab_store::{ForkRecord, JournalRecord, SandboxId, TurnId, TurnRecord};

/// A turn of a sandbox.
pub(super) type Place = (SandboxId, TurnId);

/// What a journal says of its turns.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Each turn, and the one that it goes on from.
    pub(super) turns: BTreeMap<TurnId, (TurnRecord, Option<TurnId>)>,
    /// Of whom it is a copy.
    pub(super) origin: Option<ForkRecord>,
    /// The turn in whose state the sandbox is, or was last.
    pub(super) tip: Option<TurnId>,
}

impl Line {
    pub(super) fn of(records: Vec<JournalRecord>) -> Self {
        let mut line = Self::default();
        for record in records {
            match record {
                JournalRecord::Turn(record) => {
                    let (turn, tip) = (record.turn, line.tip);
                    // One that was recorded before is not continued by itself.
                    line.turns.entry(turn).or_insert((record, tip));
                    line.tip = Some(turn);
                }
                JournalRecord::Rollback(back) | JournalRecord::Restore(back) => {
                    if line.turns.contains_key(&back.asked) {
                        line.tip = Some(back.asked);
                    }
                }
                JournalRecord::Fork(origin) => line.origin = Some(origin),
                JournalRecord::CaptureFailed(_)
                | JournalRecord::Removed(_)
                | JournalRecord::Began(_)
                | JournalRecord::Step(_)
                | JournalRecord::Ended(_)
                | JournalRecord::Unknown => {}
            }
        }
        line
    }

    /// When its history began.
    fn began_ms(&self) -> Option<u64> {
        let first = self.turns.values().next();
        first.map(|(record, _)| record.began_ms)
    }
}

/// Where a sandbox has come from, as far as it is still known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parent {
    pub(super) at: Place,
    /// Its history is in the store.
    pub(super) is_there: bool,
}

/// The one among all sandboxes that an origin means: its history may have another name by
/// now, because another sandbox has taken its own.
pub(super) fn parent(
    child: &SandboxId,
    origin: &ForkRecord,
    all: &BTreeMap<SandboxId, Line>,
) -> Parent {
    let meant = all
        .iter()
        .filter(|(id, line)| {
            *id != child
                && id.is_or_was(&origin.from)
                && line.turns.contains_key(&origin.turn)
                && line.began_ms().is_some_and(|began| began <= origin.at_ms)
        })
        .max_by_key(|(_, line)| line.began_ms());
    match meant {
        Some((id, _)) => Parent {
            at: (id.clone(), origin.turn),
            is_there: true,
        },
        None => Parent {
            at: (origin.from.clone(), origin.turn),
            is_there: false,
        },
    }
}

/// All that have an ancestor in common with a sandbox, it included.
pub(super) fn family(of: &SandboxId, parents: &BTreeMap<SandboxId, Parent>) -> BTreeSet<SandboxId> {
    // A parent whose history is gone is only a name: those who share it are a family.
    let mut family = BTreeSet::from([of.clone()]);
    loop {
        let before = family.len();
        for (child, parent) in parents {
            let (related, ancestor) = (family.contains(child), &parent.at.0);
            if related || family.contains(ancestor) {
                family.insert(child.clone());
                family.insert(ancestor.clone());
            }
        }
        if family.len() == before {
            return family;
        }
    }
}

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) place: Place,
    /// Its record; nothing of a turn whose sandbox's history is gone.
    pub(super) record: Option<&'a TurnRecord>,
    pub(super) parent: Option<usize>,
}

/// Every turn of a family, oldest first, each after the one that it goes on from.
pub(super) fn nodes<'a>(
    family: &BTreeSet<SandboxId>,
    lines: &'a BTreeMap<SandboxId, Line>,
    parents: &BTreeMap<SandboxId, Parent>,
) -> Vec<Node<'a>> {
    let mut found: BTreeMap<Place, (Option<&TurnRecord>, Option<Place>)> = BTreeMap::new();
    for id in family {
        let origin = parents.get(id);
        if let Some(Parent {
            at,
            is_there: false,
        }) = origin
        {
            found.entry(at.clone()).or_insert((None, None));
        }
        for (turn, (record, before)) in lines.get(id).map(|line| &line.turns).into_iter().flatten()
        {
            let inside = before.map(|before| (id.clone(), before));
            let before = inside.or_else(|| origin.map(|origin| origin.at.clone()));
            found.insert((id.clone(), *turn), (Some(record), before));
        }
    }
    let mut order: Vec<Place> = found.keys().cloned().collect();
    // By depth first, so that no clock puts a child before its parent; then by time.
    let depth = |place: &Place| {
        let mut depth = 0u64;
        let mut at = found.get(place).and_then(|(_, before)| before.as_ref());
        while let Some(before) = at {
            depth += 1;
            if depth > found.len() as u64 {
                break;
            }
            at = found.get(before).and_then(|(_, before)| before.as_ref());
        }
        depth
    };
    let time = |place: &Place| found[place].0.map_or(0, |record| record.ended_ms);
    let mut keys: BTreeMap<Place, u64> = BTreeMap::new();
    order.sort_by_key(|place| depth(place));
    for place in &order {
        let before = found[place].1.as_ref().and_then(|before| keys.get(before));
        let after = before.map_or(0, |before| before + 1);
        keys.insert(place.clone(), time(place).max(after));
    }
    order.sort_by_key(|place| keys[place]);
    let number: BTreeMap<&Place, usize> = order.iter().zip(0..).collect();
    order
        .iter()
        .map(|place| {
            let (record, before) = &found[place];
            Node {
                place: place.clone(),
                record: *record,
                parent: before
                    .as_ref()
                    .and_then(|before| number.get(before).copied()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{Class, RollbackRecord, Trigger};

    fn id(name: &str) -> SandboxId {
        name.parse().unwrap()
    }

    fn turn(turn: u64, at: u64) -> JournalRecord {
        JournalRecord::Turn(TurnRecord {
            began_ms: at,
            ended_ms: at,
            class: Class::Files,
            checkpoint: Some(TurnId(turn)),
            ..TurnRecord::new(TurnId(turn), Trigger::Exec)
        })
    }

    fn rollback(asked: u64) -> JournalRecord {
        JournalRecord::Rollback(RollbackRecord {
            at_ms: 0,
            from: TurnId(9),
            asked: TurnId(asked),
            checkpoint: TurnId(asked),
            processes: false,
            took_us: 0,
            warm: false,
        })
    }

    fn fork(from: &str, turn: u64, at_ms: u64) -> JournalRecord {
        JournalRecord::Fork(ForkRecord {
            at_ms,
            from: id(from),
            turn: TurnId(turn),
            checkpoint: TurnId(turn),
        })
    }

    fn tree(of: &str, all: Vec<(&str, Vec<JournalRecord>)>) -> Vec<String> {
        let lines: BTreeMap<SandboxId, Line> = all
            .into_iter()
            .map(|(name, records)| (id(name), Line::of(records)))
            .collect();
        let parents = lines
            .iter()
            .filter_map(|(id, line)| Some((id.clone(), parent(id, line.origin.as_ref()?, &lines))))
            .collect();
        let nodes = nodes(&family(&id(of), &parents), &lines, &parents);
        let name = |node: &Node| format!("{}@{}", node.place.0.id(), node.place.1);
        let line = |node: &Node| match node.parent {
            Some(parent) => format!("{}<{}", name(node), name(&nodes[parent])),
            None => name(node),
        };
        nodes.iter().map(line).collect()
    }

    #[test]
    fn rollbacks_and_forks_branch_and_strangers_are_left_out() {
        let all = || {
            vec![
                (
                    "a",
                    vec![turn(0, 1), turn(1, 2), turn(2, 3), rollback(1), turn(3, 9)],
                ),
                ("b", vec![fork("a", 1, 5), turn(0, 5), turn(1, 6)]),
                ("c", vec![fork("b", 0, 7), turn(0, 7)]),
                ("x", vec![turn(0, 1)]),
            ]
        };
        let expected = [
            "a@0", "a@1<a@0", "a@2<a@1", "b@0<a@1", "b@1<b@0", "c@0<b@0", "a@3<a@1",
        ];
        for of in ["a", "b", "c"] {
            assert_eq!(tree(of, all()), expected, "{of}");
        }
        assert_eq!(tree("x", all()), ["x@0"]);
    }

    #[test]
    fn a_parent_that_is_gone_or_has_another_name_is_still_one() {
        let forks = || {
            vec![
                ("b", vec![fork("a", 1, 50), turn(0, 50)]),
                ("c", vec![fork("a", 1, 60), turn(0, 60)]),
            ]
        };
        assert_eq!(tree("c", forks()), ["a@1", "b@0<a@1", "c@0<a@1"]);
        // Another sandbox of that name began later.
        let mut all = forks();
        all.push(("a", vec![turn(0, 70), turn(1, 71)]));
        all.push(("a.12", vec![turn(0, 12), turn(1, 13)]));
        let expected = ["a.12@0", "a.12@1<a.12@0", "b@0<a.12@1", "c@0<a.12@1"];
        assert_eq!(tree("b", all), expected);
    }

    #[test]
    fn no_clock_and_no_circle_puts_a_child_before_its_parent_or_ends_never() {
        let all = vec![
            ("a", vec![turn(0, 100), turn(1, 1)]),
            ("b", vec![fork("b", 0, 200), turn(0, 3)]),
        ];
        assert_eq!(tree("a", all), ["a@0", "a@1<a@0"]);
        let circle = vec![("b", vec![fork("b", 0, 200), turn(0, 3)])];
        assert_eq!(tree("b", circle).len(), 1);
        let circle = vec![
            ("b", vec![fork("c", 0, 200), turn(0, 3)]),
            ("c", vec![fork("b", 0, 200), turn(0, 3)]),
        ];
        assert_eq!(tree("b", circle).len(), 2);
    }
}
